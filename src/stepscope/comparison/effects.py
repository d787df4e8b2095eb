"""How every quantity of a pair of processes differs: functions, parts of the cycle, resources.

Values are means over complete cycles, so that they add up; `statistics` tests each difference. `part_deltas` and
`function_deltas` break the change of a mean cycle down into parts and functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.comparison.model import EFFECTS
from stepscope.comparison.statistics import PRIOR_REACH, by_false_discovery, combined, differences
from stepscope.core.schema import Category
from stepscope.core.table import Column, Name, Table, filtered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.comparison.model import Observation, Pair
    from stepscope.comparison.statistics import Differences, Floats, Moments


#: False discovery rate: at most one in twenty of the differences is a chance result.
CONFIDENCE = 0.05
#: How much healthy runs differ at most, nearly always, by kind of quantity: (share of the larger one, absolute).
#: Times and clocks drift by 5 % from run to run at equal work. Numbers of calls belong to the program and hardly drift.
#: Rates near zero (bytes/s, events/s) vary twofold with the other work of the machine, shares of time by some points.
DRIFTS = {
    "time": (0.05, 0.0),
    "calls": (0.005, 0.0),
    "clock": (0.05, 0.0),
    "share": (0.05, 0.05),
    "level": (0.05, 0.0),
    "rate": (0.5, 0.0),
    "other": (0.1, 0.0),
}
#: Share of the cycle below which changes of a function or part do not matter.
_LEAST_SHARE = 0.002
_KEYS = ["device", "name", "measure", "metric"]
#: Units whose quantities are shares of a whole, and the whole in that unit.
_WHOLES = {"%": 100.0, "ratio": 1.0, "ns/s": 1e9}
_ADDING = ("calls", "total_ns", "self_ns", "exposed_ns")
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
#: The part of a cycle that no part names; all of it, if nothing was recorded of where its time went.
UNNAMED = "not accounted for"


def effects(pairs: Sequence[Pair]) -> pl.DataFrame:
    """EFFECTS of all pairs: one row per function and measure, part (`part_ns`), and resource (`mu`), largest first.

    Absent functions count as taking no time; absent resources are unknown (null). q-values are over all rows.
    """
    frames = [_of_pair(pair) for pair in pairs]
    rows = pl.concat(frames, how="vertical") if frames else EFFECTS.empty()
    q_value = by_false_discovery(rows["p_value"].fill_null(np.nan).to_numpy())
    rows = rows.with_columns(q_value=pl.Series(q_value).fill_nan(None))
    beyond = (pl.col("delta").abs() > pl.col("drift")) & (pl.col("q_value") <= CONFIDENCE)
    rows = rows.with_columns(is_different=beyond.fill_null(value=False))
    order = [pl.col("is_different"), pl.col("unit") == "ns", pl.col("delta").abs()]
    return EFFECTS.conform(rows.sort(order, descending=True, nulls_last=True, maintain_order=True))


def _of_pair(pair: Pair) -> pl.DataFrame:
    tables = []
    for side, runs in enumerate((pair.base, pair.other)):
        tables += [_quantities(run).with_columns(side=pl.lit(side), run=pl.lit(i)) for i, run in enumerate(runs)]
    rows = pl.concat(tables, how="vertical")
    keys = rows.group_by(_KEYS, maintain_order=True).agg(
        pl.col("category").drop_nulls().first(), pl.col("unit").drop_nulls().first(), pl.col("adds_up").first()
    )
    keys = keys.with_row_index("key")
    rows = rows.join(keys.select("key", *_KEYS), on=_KEYS, how="left", nulls_equal=True)
    cycle_ns = _mean_cycle(pair)
    base = _moments(rows, keys, pair.base, 0)
    other = _moments(rows, keys, pair.other, 1)
    adds_up = keys["adds_up"].to_numpy()
    changes = differences(base, other, _floors(keys, base, other, cycle_ns))
    return _frame(pair.label, keys, (base, other), changes, adds_up)


def _frame(
    label: str, keys: pl.DataFrame, moments: tuple[Moments, Moments], changes: Differences, adds_up: Any
) -> pl.DataFrame:
    base, other = moments
    present = [(side.mean != 0) | ~adds_up for side in moments]
    columns = {
        "base": np.where(present[0], base.mean, np.nan),
        "other": np.where(present[1], other.mean, np.nan),
        "delta": changes.delta,
        "low": changes.low,
        "high": changes.high,
        "p_value": changes.p_value,
        "drift": changes.drift,
    }
    frame = keys.select(*_KEYS, "category", "unit").with_columns(
        process=pl.lit(label),
        n_base=pl.Series(base.cycles, dtype=pl.Int64),
        n_other=pl.Series(other.cycles, dtype=pl.Int64),
        **{name: pl.Series(values, dtype=pl.Float64).fill_nan(None) for name, values in columns.items()},
    )
    frame = frame.with_columns(
        ratio=pl.when(pl.col("base") != 0).then(pl.col("other") / pl.col("base")),
        q_value=pl.lit(None, pl.Float64),
        is_different=pl.lit(None, pl.Boolean),
    )
    return EFFECTS.conform(frame)


def _mean_cycle(pair: Pair) -> float:
    """Mean duration of the cycles of both sides. Units: ns."""
    means = [run.complete_cycles["dur_ns"].mean() for run in (*pair.base, *pair.other)]
    known = [float(mean) for mean in means if isinstance(mean, (int, float))]
    return sum(known) / max(len(known), 1)


def floor_of(measure: str, unit: str | None) -> tuple[float, float]:
    """How much healthy runs differ in a quantity: (of the larger one, absolute in its unit). See DRIFTS.

    >>> floor_of("mu", "MHz"), floor_of("mu", "%"), floor_of("calls", None)
    ((0.05, 0.0), (0.05, 5.0), (0.005, 0.0))
    """
    if measure != "mu":
        return DRIFTS["calls" if measure == "calls" else "time"]
    word = (unit or "").lower()
    if word in _WHOLES:
        relative, absolute = DRIFTS["share"]
        return relative, absolute * _WHOLES[word]
    if word.endswith("hz"):
        return DRIFTS["clock"]
    if word.endswith("/s"):
        return DRIFTS["rate"]
    return DRIFTS["level" if word.endswith(("bytes", "b")) else "other"]


def _floors(keys: pl.DataFrame, base: Moments, other: Moments, cycle_ns: float) -> Floats:
    distinct = keys.select("measure", "unit").unique(maintain_order=True)
    of_kind = [floor_of(measure, unit) for measure, unit in distinct.rows()]
    kinds = distinct.with_columns(
        relative=pl.Series([pair[0] for pair in of_kind], dtype=pl.Float64),
        absolute=pl.Series([pair[1] for pair in of_kind], dtype=pl.Float64),
    )
    on = ["measure", "unit"]
    joined = keys.select("key", *on).join(kinds, on=on, how="left", nulls_equal=True, maintain_order="left")
    level = np.fmax(np.abs(base.mean), np.abs(other.mean))
    least = np.where((keys["unit"] == "ns").fill_null(value=False).to_numpy(), _LEAST_SHARE * cycle_ns, 0.0)
    least = np.where((keys["measure"] == "ns_per_call").to_numpy(), 0.0, least)
    reach = joined["relative"].to_numpy() * level + joined["absolute"].to_numpy() + least
    floors: Floats = reach / PRIOR_REACH
    return floors


def _moments(rows: pl.DataFrame, keys: pl.DataFrame, runs: Iterable[Observation], side: int) -> Moments:
    """Moments of every key on one side. Times and calls of functions that did not run count as zero in each run."""
    of_side = rows.filter(pl.col("side") == side)
    n_cycles = pl.DataFrame({"run": list(range(len(list(runs))))}, schema={"run": pl.Int32}).with_columns(
        n_all=pl.Series([run.complete_cycles.height for run in runs], dtype=pl.Float64)
    )
    adding = keys.filter("adds_up").select("key").join(n_cycles, how="cross")
    filled = adding.join(of_side, on=["key", "run"], how="left").with_columns(
        n=pl.col("n_all"), **{name: pl.col(name).fill_null(0.0) for name in ("mean", "squares", "products")}
    )
    columns = ["key", "n", "mean", "squares", "products"]
    known = of_side.filter(~pl.col("adds_up")).select(columns)
    table = pl.concat([filled.select(columns), known], how="vertical")
    arrays = [table[name].cast(pl.Float64).to_numpy() for name in columns[1:]]
    return combined(table["key"].cast(pl.Int64).to_numpy(), keys.height, *arrays)


def _quantities(observed: Observation) -> pl.DataFrame:
    """A row per quantity of one run: number of cycles, mean, squares around it, products of neighbours."""
    cycles = observed.complete_cycles.select("cycle", pl.col("at").cast(pl.Int64))
    n = float(cycles.height)
    frames = [
        _of_functions(observed.functions.join(cycles, on="cycle"), n),
        _of_parts(observed.parts.join(cycles, on="cycle"), n),
        _of_resources(observed.resources.join(cycles, on="cycle")),
    ]
    return pl.concat(frames, how="vertical")


def _of_functions(rows: pl.DataFrame, n: float) -> pl.DataFrame:
    rows = rows.with_columns(pl.col("device", "name").cast(pl.String), pl.col("category").cast(pl.String))
    rows = rows.with_columns(ns_per_call=pl.col("total_ns") / pl.col("calls")).sort("device", "name", "at")
    keys = ["device", "name"]
    measured = [name for name in _ADDING if rows[name].null_count() < rows.height]
    sums = rows.lazy().with_columns(_is_next(keys)).group_by(keys, maintain_order=True)
    table = sums.agg(
        pl.col("category").first(), *(e for name in (*measured, "ns_per_call") for e in _sums(name, int(n)))
    ).collect()
    frames = [_melted(table, name, n, unit=None if name == "calls" else "ns") for name in measured]
    return pl.concat([*frames, _melted(table, "ns_per_call", None, unit="ns")], how="vertical")


def _of_parts(rows: pl.DataFrame, n: float) -> pl.DataFrame:
    rows = rows.select("at", "total_ns", name=pl.col("part").cast(pl.String)).sort("name", "at")
    rows = rows.with_columns(part_ns=pl.col("total_ns"))
    table = rows.lazy().with_columns(_is_next(["name"])).group_by("name", maintain_order=True)
    sums = table.agg(_sums("part_ns", int(n))).collect()
    sums = sums.with_columns(device=pl.lit(None, pl.String), category=pl.lit(None, pl.String))
    return _melted(sums, "part_ns", n, unit="ns")


def _of_resources(rows: pl.DataFrame) -> pl.DataFrame:
    keys = ["device", "name", "metric"]
    rows = rows.with_columns(pl.col(*keys, "unit").cast(pl.String)).sort(*keys, "at")
    table = rows.lazy().with_columns(_is_next(keys)).group_by(keys, maintain_order=True)
    sums = table.agg(pl.col("unit").drop_nulls().first(), *_sums("mu", 0)).collect()
    return _melted(sums, "mu", None, unit=pl.col("unit"))


def _is_next(keys: Sequence[str]) -> pl.Expr:
    """Whether a row follows the previous one in the next cycle of the same group. Rows are sorted by keys and `at`."""
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift()) for key in keys)
    return (same & (pl.col("at") == pl.col("at").shift() + 1)).fill_null(value=False).alias("is_next")


def _sums(name: str, n: int) -> list[pl.Expr]:
    value = pl.col(name).cast(pl.Float64)
    follows = pl.col("is_next") & value.is_not_null()
    is_end = (pl.col("at") == 0).cast(pl.Float64) + (pl.col("at") == n - 1).cast(pl.Float64)
    return [
        value.count().cast(pl.Float64).alias(f"{name}_n"),
        value.sum().alias(f"{name}_sum"),
        (value - value.mean()).pow(2).sum().alias(f"{name}_around"),
        (value * value.shift()).filter(follows).sum().alias(f"{name}_lagged"),
        (value * is_end).sum().alias(f"{name}_ends"),
        ((value - value.mean()) * (value.shift() - value.mean())).filter(follows).sum().alias(f"{name}_near"),
    ]


def _melted(table: pl.DataFrame, name: str, n: float | None, *, unit: str | pl.Expr | None) -> pl.DataFrame:
    """The rows of one measure. Cycles without a value count as zero if `n` is given, else not at all."""
    count, total, around, near = (pl.col(f"{name}_{what}") for what in ("n", "sum", "around", "near"))
    if n is None:
        moments = {"n": count, "mean": total / count, "squares": around, "products": near}
    else:
        mean = total / n
        # Squares around the mean of all cycles: squares around the mean of the present ones, plus the shift.
        squares = around + total**2 * (1 / count - 1 / n)
        products = pl.col(f"{name}_lagged") - mean * (2 * total - pl.col(f"{name}_ends")) + (n - 1) * mean**2
        moments = {"n": pl.lit(n), "mean": mean, "squares": squares, "products": products}
    names = set(table.columns)
    metric = pl.col("metric") if "metric" in names else pl.lit(None, pl.String)
    category = pl.col("category") if "category" in names else pl.lit(None, pl.String)
    return filtered(table, table[f"{name}_n"] > 0).select(
        "device", "name", pl.lit(name).alias("measure"), metric.alias("metric"), category.alias("category"),
        (unit if isinstance(unit, pl.Expr) else pl.lit(unit, pl.String)).alias("unit"),
        pl.lit(n is not None).alias("adds_up"), **moments,
    )  # fmt: skip


def part_deltas(pairs: Sequence[Pair]) -> pl.DataFrame:
    """DELTAS: each part of a complete cycle as mean over processes and runs, in the order of the base's parts.

    The rest of the cycle is the part `not accounted for`, which recordings never have.
    """
    means = [_mean_parts([run for pair in pairs for run in getattr(pair, side)]) for side in ("base", "other")]
    parts = means[0].join(means[1], on="part", how="full", coalesce=True, suffix="_other", maintain_order="left_right")
    parts = parts.select(
        "part", base_ns=pl.col("total_ns").fill_null(0.0), other_ns=pl.col("total_ns_other").fill_null(0.0)
    ).with_columns(delta_ns=pl.col("other_ns") - pl.col("base_ns"))
    whole = float(parts["delta_ns"].sum())
    return DELTAS.conform(parts.with_columns(share_ratio=pl.col("delta_ns") / whole if whole else pl.lit(None)))


def _mean_parts(runs: Sequence[Observation]) -> pl.DataFrame:
    if not runs:
        return pl.DataFrame(schema={"part": pl.String, "total_ns": pl.Float64})
    each = []
    for run in runs:
        cycles = run.complete_cycles
        rows = run.parts.join(cycles.select("cycle"), on="cycle", how="semi", maintain_order="left")
        mine = rows.group_by(pl.col("part").cast(pl.String), maintain_order=True).agg(pl.col("total_ns").sum())
        mine = mine.with_columns(pl.col("total_ns") / max(cycles.height, 1))
        left = float(cycles["dur_ns"].sum()) / max(cycles.height, 1) - float(mine["total_ns"].sum())
        if abs(left) > 0.5:
            rest = pl.DataFrame({"part": [UNNAMED], "total_ns": [left]})
            mine = pl.concat([mine, rest], how="vertical_relaxed")
        each.append(mine)
    stacked = pl.concat(each, how="vertical_relaxed")
    return stacked.group_by("part", maintain_order=True).agg(pl.col("total_ns").sum() / len(each))


def function_deltas(effects: pl.DataFrame) -> pl.DataFrame:
    """FUNCTION_DELTAS from EFFECTS, largest change first.

    The change of calls × time per call is split without a mixed term: calls change at the mean time per call of both
    runs, times per call at the mean number of calls. If a run lacks the function, the whole change counts as calls.
    """
    keys = ["process", "device", "name"]
    names = effects.with_columns(pl.col("device", "name").cast(pl.String))
    own = names.filter(pl.col("measure") == "self_ns")
    rest = names.filter(pl.col("measure") == "total_ns").join(own, on=keys, how="anti", nulls_equal=True)
    time = pl.concat([own, rest], how="vertical")
    calls = names.filter(pl.col("measure") == "calls").select(*keys, base_calls="base", other_calls="other")
    deltas = time.join(calls, on=keys, how="left", nulls_equal=True, maintain_order="left").with_columns(
        pl.col("base_calls", "other_calls").fill_null(0.0),
        base_ns=pl.col("base").fill_null(0.0),
        other_ns=pl.col("other").fill_null(0.0),
    )
    per_base, per_other = pl.col("base_ns") / pl.col("base_calls"), pl.col("other_ns") / pl.col("other_calls")
    more = pl.col("other_calls") - pl.col("base_calls")
    on_both = (pl.col("base_calls") > 0) & (pl.col("other_calls") > 0)
    deltas = deltas.with_columns(
        delta_ns=pl.col("other_ns") - pl.col("base_ns"), low_ns="low", high_ns="high",
        calls_delta_ns=pl.when(on_both).then(more * (per_base + per_other) / 2)
        .otherwise(pl.col("other_ns") - pl.col("base_ns")),
    ).with_columns(per_call_delta_ns=pl.col("delta_ns") - pl.col("calls_delta_ns"))  # fmt: skip
    return FUNCTION_DELTAS.conform(deltas.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True))
