"""Two runs of an engine that serves a model, at equal work: batches of the same kind and size.

Whole steps compare badly: one run may have had longer prompts, or more requests at once. So each batch is set against
those of the base with the same kind, the same number of requests (decode) or nearly as many new tokens (others), and
nearly as many tokens to attend to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.steps.batches import timed_batches
from stepscope.comparison.effects import DELTAS, DRIFTS
from stepscope.comparison.model import EFFECTS, Comparison
from stepscope.comparison.statistics import PRIOR_REACH, differences, moments_of
from stepscope.core.errors import MissingTable
from stepscope.core.table import Column, Table
from stepscope.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Verdict
    from stepscope.core.trace import Trace

#: Steps of sizes that count as equal: an eighth of a doubling for new tokens, a half for tokens in the cache.
_TOKEN_STEPS, _KV_STEPS = 8, 2
BATCH_CHANGES = Table(
    "batch-changes",
    "how long batches take in two runs, at equal work",
    (
        Column("kind", pl.String(), "prefill, decode or mixed", key=True),
        Column("size", pl.Int64(), "requests (decode) or new tokens (up to a tenth more); null: all sizes", key=True),
        Column("base_batches", pl.Int64(), "batches of the base that have a counterpart"),
        Column("other_batches", pl.Int64(), "batches of the other that have one"),
        Column("base_ns", pl.Float64(), "what they take in the base, geometric mean", "ns"),
        Column("other_ns", pl.Float64(), "what batches of the same work take in the other", "ns"),
        Column("ratio", pl.Float64(), "other over base"),
        Column("low_ratio", pl.Float64(), "lower end of the 95 % interval; null: too few batches"),
        Column("high_ratio", pl.Float64(), "its upper end"),
        Column("is_different", pl.Boolean(), "more than luck and more than healthy runs differ"),
    ),
)


def observe_batches(trace: Trace) -> pl.DataFrame:
    """What is compared of each batch: kind, size, work (size and context as text), dur_ns. Perhaps empty."""
    try:
        rows, _ = timed_batches(trace.spans, trace.tracks)
    except MissingTable:
        rows = pl.DataFrame(schema=_OBSERVED)
    size = pl.when(pl.col("kind") == "decode").then("n_requests").otherwise(_at_least("n_tokens", _TOKEN_STEPS))
    context = pl.col("kv_tokens").log(2) * _KV_STEPS
    work = pl.format("{} {} {}", "kind", "size", context.floor().fill_null(-1.0).fill_nan(-1.0))
    sized = rows.select("kind", "n_requests", "n_tokens", "kv_tokens", "dur_ns", size=size.cast(pl.Int64))
    return sized.filter(pl.col("dur_ns") > 0).drop_nulls("size").select("kind", "size", work.alias("work"), "dur_ns")


_OBSERVED = {"kind": pl.String(), **dict.fromkeys(("n_requests", "n_tokens", "kv_tokens", "dur_ns"), pl.Int64())}


def _at_least(name: str, steps: int) -> pl.Expr:
    """The largest of the sizes 2^(k / steps) that is not above the column."""
    return (2 ** ((pl.col(name).log(2) * steps + 1e-9).floor() / steps)).ceil()


def compare_batches(base: Sequence[pl.DataFrame], other: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """BATCH_CHANGES of two runs, a row per kind and then per kind and size; frames are of `observe_batches`."""
    rows = pl.concat(
        frame.with_columns(side=pl.lit(side), run=pl.lit(run))
        for side, frames in enumerate((base, other))
        for run, frame in enumerate(frames)
    )
    is_common = pl.col("side").n_unique().over("work") > 1
    usual = pl.col("dur_ns").filter(pl.col("side") == 0).median().over("work")
    rows = rows.filter(is_common).with_columns(log_ratio=(pl.col("dur_ns") / usual).log())
    changes = []
    for keys in (["kind"], ["kind", "size"]):
        for key, part in sorted(rows.partition_by(keys, as_dict=True, maintain_order=True).items()):
            size = key[1] if len(key) > 1 else None
            changes.append({"kind": key[0], "size": size, **_change(part)})
    return BATCH_CHANGES.conform(pl.DataFrame(changes, schema=dict(BATCH_CHANGES.dtypes)))


def _change(part: pl.DataFrame) -> dict[str, object]:
    base, other = (part.filter(pl.col("side") == side) for side in (0, 1))
    of_base, of_other = (moments_of([run["log_ratio"].to_numpy() for run in rows.partition_by("run")])
                         for rows in (base, other))  # fmt: skip
    floor = np.array([np.log1p(DRIFTS["time"][0]) / PRIOR_REACH])
    change = differences(of_base, of_other, floor)
    delta, low, high, drift = (float(x[0]) for x in (change.delta, change.low, change.high, change.drift))
    has_interval = bool(np.isfinite(low) and np.isfinite(high))
    base_ns = float(np.exp(np.log(base["dur_ns"].to_numpy()).mean()))
    ratio = float(np.exp(delta))
    return {
        "base_batches": base.height, "other_batches": other.height,
        "base_ns": base_ns, "other_ns": base_ns * ratio, "ratio": ratio,
        "low_ratio": float(np.exp(low)) if has_interval else None,
        "high_ratio": float(np.exp(high)) if has_interval else None,
        "is_different": has_interval and not low <= 0 <= high and abs(delta) > drift,
    }  # fmt: skip


def judged_at_equal_work(result: Comparison, base: Sequence[pl.DataFrame], other: Sequence[pl.DataFrame]) -> Comparison:
    """The comparison with its BATCH_CHANGES, which overrule a verdict by whole steps.

    They do so if batches of equal work are half of each run or more, enough for an interval, and no kind differs: then
    steps differ because the batches do.
    """
    changes = compare_batches(base, other)
    result = replace(result, batches=changes)
    whole = changes.filter(pl.col("size").is_null() & pl.col("low_ratio").is_not_null())
    n_all = [sum(frame.height for frame in frames) for frames in (base, other)]
    n_equal = [int(whole[name].sum()) for name in ("base_batches", "other_batches")]
    is_most = all(2 * n >= of for n, of in zip(n_equal, n_all, strict=True))
    if whole.is_empty() or not is_most or whole["is_different"].any() or result.step_verdict != "different":
        return result
    step = result.step_time
    return replace(
        result,
        verdict="no_difference",
        step_verdict="no_difference",
        reason="steps differ because the batches do",
        step_time=None if step is None else replace(step, is_different=False),
        typical_step=None,
        causes=(),
    )


def of_batches(changes: pl.DataFrame) -> Comparison:
    """The comparison of two runs in which nothing but batches repeats, by their BATCH_CHANGES."""
    whole = changes.filter(pl.col("size").is_null())
    is_known = whole["low_ratio"].count() > 0
    verdict: Verdict = "different" if whole["is_different"].any() else "no_difference" if is_known else "inconclusive"
    return Comparison(
        verdict=verdict,
        reason=at_equal_work(changes),
        step_time=None,
        pairs=(),
        parts=DELTAS.empty(),
        effects=EFFECTS.empty(),
        causes=(),
        notes=("nothing but batches repeats: parts and functions are not compared",),
        batches=changes,
    )


def at_equal_work(changes: pl.DataFrame) -> str:
    """The changes of each kind in a sentence, as in 'decode takes 1.2× as long (1.15× to 1.25×, 8 sizes)'."""
    parts = []
    for row in changes.filter(pl.col("size").is_null()).iter_rows(named=True):
        n_sizes = changes.filter((pl.col("kind") == row["kind"]) & pl.col("size").is_not_null()).height
        interval = "" if row["low_ratio"] is None else f"{row['low_ratio']:.2f}× to {row['high_ratio']:.2f}×, "
        word = "" if row["is_different"] or row["low_ratio"] is None else ", no difference"
        parts.append(f"{row['kind']} takes {row['ratio']:.2f}× as long ({interval}{counted(n_sizes, 'size')}){word}")
    return f"at equal work {'; '.join(parts)}" if parts else "no batch of equal work is in both runs"
