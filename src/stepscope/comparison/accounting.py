"""Where every microsecond of a difference went: the change of a cycle as a sum of named parts, and of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.effects import complete_cycles
from stepscope.core.schema import Category, Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Observation, Pair

__all__ = ["DELTAS", "FUNCTION_DELTAS", "function_deltas", "part_deltas"]

DELTAS = Table(
    "parts",
    "the change of a mean cycle as a sum of parts: their changes add up to it exactly",
    (
        Column("part", Name, "part of the cycle", key=True),
        Column("base_ns", pl.Float64(), "its time per cycle in the base", "ns"),
        Column("other_ns", pl.Float64(), "its time per cycle in the other", "ns"),
        Column("delta_ns", pl.Float64(), "how much more in the other", "ns"),
        Column("share_ratio", pl.Float64(), "of the cycle's change; exceeds 1 where other parts shrank", "ratio"),
    ),
)
FUNCTION_DELTAS = Table(
    "attribution",
    "the change of each function's own time per cycle, split into more calls and longer calls, which add up to it",
    (
        Column("process", pl.String(), "label of the pair of processes", key=True),
        Column("device", Name, "where it runs", key=True),
        Column("name", Name, "function", key=True),
        Column("category", Category, "what it is"),
        Column("base_calls", pl.Float64(), "calls per cycle in the base"),
        Column("other_calls", pl.Float64(), "calls per cycle in the other"),
        Column("base_ns", pl.Float64(), "own time (device: time) per cycle in the base", "ns"),
        Column("other_ns", pl.Float64(), "own time per cycle in the other", "ns"),
        Column("delta_ns", pl.Float64(), "how much more in the other", "ns"),
        Column("calls_delta_ns", pl.Float64(), "of it because of more calls", "ns"),
        Column("per_call_delta_ns", pl.Float64(), "of it because of longer calls", "ns"),
        Column("low_ns", pl.Float64(), "lower end of the 95 % interval of the change", "ns"),
        Column("high_ns", pl.Float64(), "its upper end", "ns"),
        Column("q_value", pl.Float64(), "chance of such a change by luck, corrected for the number of functions"),
        Column("is_different", pl.Boolean(), "more than luck and more than healthy runs differ"),
    ),
)
_UNNAMED = "not accounted for"


def part_deltas(pairs: Sequence[Pair]) -> pl.DataFrame:
    """DELTAS, in order of time: the mean over processes and runs of each part of a complete cycle.

    What the named parts leave over of the cycle is the part `not accounted for`; it is 0, and left out, for recordings.
    """
    sides = [_mean_parts([run for pair in pairs for run in getattr(pair, side)]) for side in ("base", "other")]
    found = sides[0].join(sides[1], on="part", how="full", coalesce=True, suffix="_other", maintain_order="left_right")
    found = found.select(
        "part", base_ns=pl.col("total_ns").fill_null(0.0), other_ns=pl.col("total_ns_other").fill_null(0.0)
    ).with_columns(delta_ns=pl.col("other_ns") - pl.col("base_ns"))
    whole = float(found["delta_ns"].sum())
    return DELTAS.conform(found.with_columns(share_ratio=pl.col("delta_ns") / whole if whole else pl.lit(None)))


def _mean_parts(runs: Sequence[Observation]) -> pl.DataFrame:
    if not runs:
        return pl.DataFrame(schema={"part": pl.String, "total_ns": pl.Float64})
    each = []
    for run in runs:
        cycles = complete_cycles(run)
        rows = run.parts.join(cycles.select("cycle"), on="cycle", how="semi", maintain_order="left")
        mine = rows.group_by(pl.col("part").cast(pl.String), maintain_order=True).agg(pl.col("total_ns").sum())
        mine = mine.with_columns(pl.col("total_ns") / max(cycles.height, 1))
        left = float(cycles["dur_ns"].sum()) / max(cycles.height, 1) - float(mine["total_ns"].sum())
        if abs(left) > 0.5:
            rest = pl.DataFrame({"part": [_UNNAMED], "total_ns": [left]})
            mine = pl.concat([mine, rest], how="vertical_relaxed")
        each.append(mine)
    stacked = pl.concat(each, how="vertical_relaxed")
    return stacked.group_by("part", maintain_order=True).agg(pl.col("total_ns").sum() / len(each))


def function_deltas(effects: pl.DataFrame) -> pl.DataFrame:
    """FUNCTION_DELTAS from EFFECTS, largest change first.

    A change of calls × time per call is split at the mean of the two sides, which leaves no mixed term: calls change at
    the mean time per call, times per call change at the mean number of calls. What one side lacks is all calls.
    """
    keys = ["process", "device", "name"]
    names = effects.with_columns(pl.col("device", "name").cast(pl.String))
    own = names.filter(pl.col("measure") == "self_ns")
    rest = names.filter(pl.col("measure") == "total_ns").join(own, on=keys, how="anti", nulls_equal=True)
    time = pl.concat([own, rest], how="vertical")
    calls = names.filter(pl.col("measure") == "calls").select(*keys, base_calls="base", other_calls="other")
    found = time.join(calls, on=keys, how="left", nulls_equal=True, maintain_order="left").with_columns(
        pl.col("base_calls", "other_calls").fill_null(0.0),
        base_ns=pl.col("base").fill_null(0.0),
        other_ns=pl.col("other").fill_null(0.0),
    )
    per_base, per_other = pl.col("base_ns") / pl.col("base_calls"), pl.col("other_ns") / pl.col("other_calls")
    more = pl.col("other_calls") - pl.col("base_calls")
    on_both = (pl.col("base_calls") > 0) & (pl.col("other_calls") > 0)
    found = found.with_columns(
        delta_ns=pl.col("other_ns") - pl.col("base_ns"), low_ns="low", high_ns="high",
        calls_delta_ns=pl.when(on_both).then(more * (per_base + per_other) / 2)
        .otherwise(pl.col("other_ns") - pl.col("base_ns")),
    ).with_columns(per_call_delta_ns=pl.col("delta_ns") - pl.col("calls_delta_ns"))  # fmt: skip
    return FUNCTION_DELTAS.conform(found.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True))
