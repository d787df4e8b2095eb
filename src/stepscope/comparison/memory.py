"""Two runs of memory snapshots: whether the peaks differ, by how much, and what holds more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stepscope.analyses.memory.growth import grown, holders_of
from stepscope.analyses.memory.snapshots import memory_peak
from stepscope.comparison.effects import DELTAS
from stepscope.comparison.model import EFFECTS, Comparison
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.units import percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.trace import Trace

#: Healthy runs of one program differ by some blocks: a change counts from this share of the base.
_LEAST_SHARE = 0.01
PEAK = "peak_allocated_bytes"
_MEASURES = (PEAK, "peak_reserved_bytes", "before_bytes", "allocated_bytes")
_FOLDERS = regex(r"\([^()]*/")


class Snapshot(NamedTuple):
    """What is compared of a memory snapshot: its rank, the peaks of its devices, and what held them."""

    rank: int | None
    peaks: pl.DataFrame
    holders: pl.DataFrame


def observe_snapshot(trace: Trace) -> Snapshot:
    """What is compared of the snapshot, without a reference to it. Raises MissingTable."""
    tables = trace.memory_events, trace.memory_segments, trace.memory_blocks
    return Snapshot(trace.rank, memory_peak(*tables, trace.devices), holders_of(trace))


def compare_snapshots(base: Sequence[Snapshot], other: Sequence[Snapshot]) -> Comparison:
    """The comparison of two runs of memory snapshots, device by device.

    The verdict is about the largest change of a device's peak of memory in use; a hundredth of it or less is no
    difference. Of runs of several snapshots, those of the same rank are compared, or else those in the same place
    of the list. Raises StepscopeError (not the same ranks and devices).
    """
    (left, held_left), (right, held_right) = _of_run(base), _of_run(other)
    devices, counterparts = left["device"], right["device"]
    if not set(devices) & set(counterparts):
        if devices.len() != counterparts.len():
            hint = "name as many snapshots of the base as of the other run"
            raise StepscopeError(
                f"the runs have {devices.len():,} and {counterparts.len():,} devices, and none in common", hint
            )
        renamed = pl.col("device").replace(devices, counterparts)
        left, held_left = left.with_columns(renamed), held_left.with_columns(renamed)
    peaks = left.join(right, on="device", suffix="_other", maintain_order="left")
    is_common = pl.col("device").is_in(peaks["device"].implode())
    growth = grown(held_left.filter(is_common), held_right.filter(is_common), by="stack")
    rows = [_effect(row, name) for row in peaks.iter_rows(named=True) for name in _MEASURES]
    top = max((row for row in rows if row["measure"] == PEAK), key=lambda row: abs(row["delta"]))
    single = [(side, name) for side, frame in (("base", left), ("other run", right))
              for name in frame.filter(~is_common)["device"]]  # fmt: skip
    return Comparison(
        verdict="different" if top["is_different"] else "no_difference",
        reason=_reason(top, growth),
        step_time=None,
        pairs=(),
        parts=DELTAS.empty(),
        effects=EFFECTS.conform(pl.DataFrame(rows)),
        causes=(),
        notes=tuple(f"only the {side} has {name}, which is left out" for side, name in single),
        memory=growth,
    )


def _of_run(run: Sequence[Snapshot]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The peaks and the holders of all devices of a run, whose labels have the rank if there are several snapshots."""
    ranks = [one.rank for one in run]
    by_rank = None not in ranks and len(set(ranks)) == len(ranks)
    starts = (
        [f"rank {rank} " if by_rank else f"snapshot {i} " for i, rank in enumerate(ranks)] if len(run) > 1 else [""]
    )
    labels = [(pl.lit(start) + pl.col("device").fill_null("device")).alias("device") for start in starts]
    peaks = [one.peaks.with_columns(label) for one, label in zip(run, labels, strict=True)]
    holders = [one.holders.with_columns(label) for one, label in zip(run, labels, strict=True)]
    return pl.concat(peaks), pl.concat(holders)


def _effect(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    base, other = row[name], row[f"{name}_other"]
    return {
        "process": "",
        "device": row["device"],
        "measure": name,
        "unit": "bytes",
        "base": float(base),
        "other": float(other),
        "delta": float(other - base),
        "ratio": other / base if base else None,
        "is_different": abs(other - base) > _LEAST_SHARE * base,
    }


def _reason(top: Mapping[str, Any], growth: pl.DataFrame) -> str:
    """The change of the peak in a sentence, with the line that changed most in that direction."""
    device, base, delta = top["device"], top["base"], int(top["delta"])
    if not top["is_different"]:
        least = percent(_LEAST_SHARE)
        return (
            f"{device} holds {size(top['other'])} at its peak, {size(base)} in the base: {least} or less is no change"
        )
    word = "more" if delta > 0 else "less"
    share = f" ({'+' if delta > 0 else '−'}{percent(abs(delta) / base)})" if base else ""
    text = f"{device} holds {size(abs(delta))} {word} at its peak{share}"
    own = growth.filter(pl.col("device") == device).group_by("line").agg(pl.col("delta_bytes").sum())
    line, change = own.sort(pl.col("delta_bytes") * (-1 if delta > 0 else 1), "line").row(0)
    where = "what was allocated before recording" if line is None else _FOLDERS.sub("(", line)
    return f"{text}; of this {size(abs(change))} is {where}"
