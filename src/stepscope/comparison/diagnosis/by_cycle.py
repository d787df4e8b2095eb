"""A run's values by cycle, in order of time: how long cycles take, their parts, functions and resources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison.diagnosis.change import Change, changed
from stepscope.comparison.effects import floor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.model import Observation

    Floats = NDArray[np.float64]

#: What names a function.
_WORK = ["device", "name"]


@dataclass(frozen=True, slots=True)
class RunByCycle:
    """A run's values by complete cycle, in order of time: durations, parts, resources.

    If `is_timed`, resources are those of the whole run, by stretch.
    """

    observed: Observation
    is_timed: bool
    cycles: Floats = field(init=False)
    parts: Mapping[str, Floats] = field(init=False)
    resources: Mapping[tuple[str, str], tuple[Floats, Floats, str | None]] = field(init=False)

    def __post_init__(self) -> None:
        whole = self.observed.complete_cycles[["cycle", "dur_ns", "at"]]
        object.__setattr__(self, "cycles", whole["dur_ns"].cast(pl.Float64).to_numpy())
        rows = self.observed.parts.join(whole[["cycle", "at"]], on="cycle").drop_nulls("total_ns")
        parts = {}
        for mine in rows.partition_by("part"):
            times = np.zeros(whole.height)
            times[mine["at"].to_numpy()] = mine["total_ns"].to_numpy()
            parts[str(mine["part"][0])] = times
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "resources", _series(self.observed, whole))
        if self.is_timed:
            object.__setattr__(self, "resources", {**self.resources, **_of_run(self.observed)})

    def part(self, name: str) -> Floats:
        """The time of each cycle in a part of it. Units: ns."""
        return self.parts[name] if name in self.parts else np.zeros(self.cycles.size)

    def of_functions(self, keys: pl.DataFrame) -> dict[tuple[str, str], tuple[Floats, Floats]]:
        """Own time by cycle (0 where it did not run) and time per call (where it ran) of some functions. Units: ns."""
        whole = self.observed.complete_cycles.select("cycle", "at")
        rows = self.observed.functions.with_columns(pl.col(_WORK).cast(pl.String)).join(keys.select(_WORK), on=_WORK)
        rows = rows.join(whole, on="cycle").sort("at")
        own = pl.coalesce("self_ns", "total_ns").cast(pl.Float64)
        rows = rows.with_columns(own=own, each=pl.col("total_ns") / pl.col("calls"))
        series = {}
        for mine in rows.partition_by(_WORK):  # with keys of its own a query is planned for each
            times = np.zeros(whole.height)
            times[mine["at"].to_numpy()] = mine["own"].to_numpy()
            series[str(mine["device"][0]), str(mine["name"][0])] = (times, mine["each"].to_numpy())
        return series

    def values(self, key: tuple[str, str]) -> Floats:
        """A resource's values by cycle, or by stretch of the whole run; none if it was not recorded."""
        return self.resources[key][0] if key in self.resources else np.empty(0)

    def amounts(self, key: tuple[str, str]) -> Floats:
        """A rate per second multiplied by the duration of each cycle."""
        return self.resources[key][0] * self.resources[key][1] / 1e9 if key in self.resources else np.empty(0)


def _series(observed: Observation, whole: pl.DataFrame) -> dict[tuple[str, str], tuple[Floats, Floats, str | None]]:
    """Each resource's values by cycle, the durations (ns) of those cycles, and the unit."""
    of_cycles = observed.resources.filter(pl.col("name").is_null())
    rows = of_cycles.join(whole, on="cycle").sort("cycle")
    rows = rows.with_columns(pl.col("device", "metric", "unit").cast(pl.String))
    return {
        (str(device), str(metric)): (
            mine["mu"].to_numpy(),
            mine["dur_ns"].cast(pl.Float64).to_numpy(),
            mine["unit"][0],
        )
        for (device, metric), mine in rows.partition_by(["device", "metric"], as_dict=True).items()
    }


def _of_run(observed: Observation) -> dict[tuple[str, str], tuple[Floats, Floats, str | None]]:
    """The same by stretch of the whole run, with the mean step of each stretch."""
    rows = observed.run_resources.with_columns(pl.col("device", "metric", "unit").cast(pl.String)).sort("stretch")
    return {
        (str(device), str(metric)): (mine["mu"].to_numpy(), mine["step_ns"].to_numpy(), mine["unit"][0])
        for (device, metric), mine in rows.partition_by(["device", "metric"], as_dict=True).items()
    }


def unit_of(key: tuple[str, str], base: Sequence[RunByCycle], other: Sequence[RunByCycle]) -> str:
    """The unit of a resource, empty if it has none or was not recorded."""
    return next((run.resources[key][2] for run in (*base, *other) if key in run.resources), None) or ""


def of_resource(key: tuple[str, str], base: Sequence[RunByCycle], other: Sequence[RunByCycle]) -> Change:
    """The change of a resource's mean."""
    unit = unit_of(key, base, other) or None
    relative, absolute = floor_of("mu", unit)
    values = [[run.values(key) for run in side] for side in (base, other)]
    return changed(values[0], values[1], relative=relative, absolute=absolute, unit=unit)


def of_amount(key: tuple[str, str], base: Sequence[RunByCycle], other: Sequence[RunByCycle], least: float) -> Change:
    """A rate as an amount per cycle. Times drift as those of functions do, other amounts by up to a factor of two."""
    unit = unit_of(key, base, other).removesuffix("/s")
    relative, absolute = (0.05, least) if unit == "ns" else (1.0, 0.0)
    values = [[run.amounts(key) for run in side] for side in (base, other)]
    named = None if unit in ("", "1") else unit
    return changed(values[0], values[1], relative=relative, absolute=absolute, unit=named)
