"""Reduces LatencyPrism's results to observations, with its own cycles and its own times per function.

Its arithmetic is corrected where the file allows: a function's share does not depend on the metric in the same row,
rows without a metric count, metrics have their usual units, and each GPU keeps its own metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.windows import HOST
from stepscope.analyses.cycles.content import is_whole
from stepscope.comparison._resources import by_cycle, counter_remarks, counters_around, cycle_remarks
from stepscope.comparison.kinds import setup_of_results
from stepscope.comparison.model import (
    COMPUTATION,
    FUNCTIONS,
    OBSERVED_CYCLES,
    OTHER,
    PARTS,
    PROCESS,
    RESOURCES,
    WORKLOAD,
    Observation,
)
from stepscope.core.collectives import talks_to_ranks
from stepscope.core.errors import MissingTable
from stepscope.core.patterns import regex
from stepscope.core.schema import COUNTERS, DEVICE_WORK

if TYPE_CHECKING:
    from stepscope.core.trace import Results

_FUNCTION = ["cycle", "device", "name"]
#: Resources whose mean the recorder divided by what the machine has: the number of cores, the highest clock. The former
#: is a whole number.
_DIVIDED = ("process_cpu_usage", "cpu_frequency")
_WHOLE = ("process_cpu_usage",)
_UNPLACED = "the file does not say when its cycles began: counters are not used"
_PHASE = regex(r"_(prefill|decode)_perf_data\.csv")


def observe_results(results: Results) -> tuple[Observation, ...]:
    """One observation for each process of the file, by host and number. Raises MissingTable (no cycles)."""
    for name in ("cycles", "attribution"):
        if name not in results.results or results.result(name).is_empty():
            hint = f"{results.meta.path} holds other results: compare them with --table"
            raise MissingTable(name, needed_by="compare", hint=hint)
    cycles, rows = results.result("cycles"), results.result("attribution")
    known = cycles.select(pl.col("host").cast(pl.String), "pid").drop_nulls("pid").unique().sort("host", "pid")
    pids, hosts = known["pid"].to_list(), known["host"].n_unique()
    observations = []
    for host, pid in known.iter_rows():
        mine = (pl.col("pid") == pid) & pl.col("host").cast(pl.String).eq_missing(pl.lit(host, pl.String))
        label = [*([host or "unnamed host"] if hosts > 1 else []), *([f"pid {pid}"] if len(pids) > 1 else [])]
        observations.append(_observation(results, cycles.filter(mine), rows.filter(mine), pid, pids, " ".join(label)))
    return tuple(observations)


def _observation(
    results: Results, cycles: pl.DataFrame, rows: pl.DataFrame, pid: int, pids: list[int], label: str
) -> Observation:
    anchors = cycles["anchor"].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
    cycles = cycles.unique("cycle", keep="first", maintain_order=True)
    rows = _with_times(rows, cycles)
    functions = _functions(rows)
    is_placed = cycles["ts_ns"].null_count() == 0
    if not is_placed:  # their starts are unknown: put one after the other, in order
        cycles = cycles.with_columns(ts_ns=pl.col("dur_ns").cum_sum() - pl.col("dur_ns"))
    cycles = OBSERVED_CYCLES.conform(
        cycles.with_columns(is_complete=_is_complete(functions, cycles["cycle"]), phase=pl.lit(_phase(results)))
    )
    low = int(cycles["ts_ns"].to_numpy().min())
    high = int((cycles["ts_ns"] + cycles["dur_ns"]).to_numpy().max())
    recorded = results.table("counters") if is_placed else COUNTERS.empty()
    counters = counters_around(recorded, pid, pids, low, high)
    of_cycles = by_cycle(counters, cycles)
    inside = counters.filter(pl.col("ts_ns").is_between(low, high))
    parts, remarks = _parts(functions, cycles)
    remarks = [*cycle_remarks(cycles), *remarks, *counter_remarks(recorded, inside, cycles, results.issues)]
    return Observation(
        label=label,
        meta=results.meta,
        pid=pid,
        anchor=", ".join(anchors),
        source="recorded",
        cycles=cycles,
        functions=functions,
        parts=parts,
        resources=pl.concat([of_cycles, _resources(rows, of_cycles, cycles, inside)]),
        counters=inside,
        workload=_workload(functions, cycles),
        remarks=tuple(remarks) if is_placed else (*cycle_remarks(cycles), _UNPLACED),
        setup=setup_of_results(results.meta),
    )


def _with_times(rows: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """The rows with the functions' time where the file has only their share of the cycle."""
    if rows["total_ns"].null_count() == 0:
        return rows
    lengths = cycles.select("cycle", cycle_ns="dur_ns")
    share = (pl.col("beta_ratio") * pl.col("cycle_ns")).round().cast(pl.Int64)
    rows = rows.join(lengths, on="cycle", how="left", maintain_order="left")
    return rows.with_columns(pl.col("total_ns").fill_null(share)).drop("cycle_ns")


def _phase(results: Results) -> str | None:
    """The recorder writes cycles of a serving engine's two phases to files named after them."""
    match = _PHASE.search(results.meta.path)
    return match[1] if match else None


def _is_complete(functions: pl.DataFrame, numbers: pl.Series) -> pl.Series:
    """Whether each cycle was recorded whole. Recorders often miss the kernels of the first one or two."""
    row = pl.DataFrame({"cycle": numbers}).with_row_index("row")
    named = functions.select("cycle", "device", "name").unique(["device", "name"]).with_row_index("column")
    at = functions.join(row, on="cycle").join(named.drop("cycle"), on=["device", "name"])
    counts = np.zeros((numbers.len(), named.height))
    counts[at["row"].to_numpy(), at["column"].to_numpy()] = at["calls"].fill_null(1).to_numpy()
    return pl.Series(is_whole(counts))


def _functions(rows: pl.DataFrame) -> pl.DataFrame:
    return FUNCTIONS.conform(rows.unique(_FUNCTION, keep="first", maintain_order=True))


def _parts(functions: pl.DataFrame, cycles: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Device work by kind and the rest as `other`, and a remark if the former had to be scaled down in some cycles.

    The file has sums only. Kernels of one queue run one after the other, so their sum is the time in which the device
    was busy, but some may have run after the end of the cycle that queued them.
    """
    work = functions.filter(pl.col("category").is_in(DEVICE_WORK))
    is_collective = talks_to_ranks(work["name"])
    part = (
        pl.when(pl.col("category") == "memcpy")
        .then(pl.lit("memcpy"))
        .when((pl.col("category") == "kernel") & is_collective)
        .then(pl.lit("communication"))
        .otherwise(pl.lit(COMPUTATION))
    )
    sums = work.group_by("cycle", part=part).agg(pl.col("total_ns").sum())
    sums = sums.join(cycles.select("cycle", "dur_ns"), on="cycle")
    used = pl.col("total_ns").sum().over("cycle")
    too_long = sorted(sums.filter(used > pl.col("dur_ns"))["cycle"].unique().to_list())
    scaled = (pl.col("total_ns") * (pl.col("dur_ns") / used)).floor().cast(pl.Int64, strict=False)
    sums = sums.with_columns(total_ns=pl.when(used > pl.col("dur_ns")).then(scaled).otherwise("total_ns"))
    rest = cycles.select("cycle", "dur_ns").join(
        sums.group_by("cycle").agg(used_ns=pl.col("total_ns").sum()), on="cycle", how="left", maintain_order="left"
    )
    rest = rest.select("cycle", part=pl.lit(OTHER), total_ns=pl.col("dur_ns") - pl.col("used_ns").fill_null(0))
    both = pl.concat([PARTS.conform(sums), PARTS.conform(rest)])
    remark = f"the device work queued by cycles {', '.join(map(str, too_long))} took longer than they lasted"
    return both.sort("cycle", pl.col("part").cast(pl.String)), [f"{remark}: its parts are scaled"] if too_long else []


def _resources(rows: pl.DataFrame, whole: pl.DataFrame, cycles: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES per function, and per device as the mean over its functions, weighted by their time."""
    known = rows.lazy().filter(pl.col("metric").is_not_null() & pl.col("mu").is_not_null())
    of_functions = known.select("cycle", "device", "metric", "name", "unit", "mu", "total_ns").collect()
    metric = of_functions["metric"].cast(pl.String)
    device = (
        pl.when(metric.str.starts_with("process_"))
        .then(pl.lit(PROCESS, pl.Categorical()))
        .when(metric.str.starts_with("gpu_"))
        .then(pl.col("device"))
        .otherwise(pl.lit(HOST, pl.Categorical()))
    )
    of_functions = _in_units(of_functions.with_columns(device=device), whole)
    keys = ["cycle", "device", "metric"]
    spread = pl.col("mu") * pl.col("total_ns")
    of_device = of_functions.group_by(*keys, "unit", maintain_order=True).agg(
        mu=pl.when(pl.col("total_ns").sum() > 0)
        .then(spread.sum() / pl.col("total_ns").sum())
        .otherwise(pl.col("mu").mean())
    )
    of_device = of_device.join(whole, on=keys, how="anti")
    both = pl.concat([RESOURCES.conform(of_device), RESOURCES.conform(of_functions)])
    return both.with_columns(n_samples=_samples(both, cycles, counters))


def _samples(resources: pl.DataFrame, cycles: pl.DataFrame, counters: pl.DataFrame) -> pl.Series:
    """Number of samples of each row's metric in its cycle, over all devices."""
    at = cycles.select("cycle", "ts_ns", end_ns=pl.col("ts_ns") + pl.col("dur_ns")).sort("ts_ns")
    times = counters.select("ts_ns", "metric").unique().sort("ts_ns")
    counted = (
        times.join_asof(at, on="ts_ns", strategy="backward")
        .filter(pl.col("ts_ns") < pl.col("end_ns"))
        .group_by("cycle", "metric")
        .agg(n=pl.len().cast(pl.Int64))
    )
    keys = ["cycle", "metric"]
    return resources.select(keys).join(counted, on=keys, how="left", maintain_order="left")["n"].fill_null(0)


def _in_units(known: pl.DataFrame, whole: pl.DataFrame) -> pl.DataFrame:
    """Undoes the recorder's division of means by what the machine has; the samples show the divisor."""
    keys = ["cycle", "device", "metric"]
    sampled = whole.select(*keys, as_sampled="mu", sampled_unit="unit")
    mu, unit = pl.col("mu"), pl.col("unit")
    for metric in _DIVIDED:
        pairs = known.filter((pl.col("metric") == metric) & (pl.col("mu") > 0)).join(sampled, on=keys)
        if pairs.height:
            times = float(np.median((pairs["as_sampled"] / pairs["mu"]).to_numpy()))
            times = float(round(times)) if metric in _WHOLE else times
            mu = pl.when(pl.col("metric") == metric).then(pl.col("mu") * times).otherwise(mu)
            now = pl.lit(pairs["sampled_unit"].cast(pl.String)[0], pl.Categorical())
            unit = pl.when(pl.col("metric") == metric).then(now).otherwise(unit)
    return known.with_columns(mu=mu, unit=unit)


def _workload(functions: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """WORKLOAD of the complete cycles: kernels and copies by name, since the file has no shapes."""
    whole = cycles.filter("is_complete").select("cycle")
    work = functions.filter(pl.col("category").is_in(DEVICE_WORK)).join(whole, on="cycle", how="semi")
    n = max(whole.height, 1)
    sums = work.group_by("device", "name", maintain_order=True).agg(
        calls_per_cycle=pl.col("calls").sum() / n, total_ns_per_cycle=pl.col("total_ns").sum() / n
    )
    return WORKLOAD.conform(sums).sort(-pl.col("total_ns_per_cycle"), pl.col("name").cast(pl.String))
