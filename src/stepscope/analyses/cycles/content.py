"""What each turn of a loop contains: how well turns agree, which are recorded in part only, and prefill or decode.

A true cycle contains everything that the program repeats, each name as often in one turn as in the next. A part of a
cycle, such as a layer, lacks what is outside it, and two parts that alternate differ from each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.span_lookup import in_rows
from stepscope.analyses.common.windows import NOWHERE
from stepscope.core.arrays import distinct_values, numbered
from stepscope.core.intervals import Bools, Ints
from stepscope.core.patterns import regex

_MOST_ROWS = 400_000
_MOST_NAMES = 300
_MOST_CYCLES = 1500
#: A name is steady if at least this share of the turns have it as often as the median turn.
_STEADY = 0.8
#: A turn at the border is partial if at least this share of the steady names occur less often than in the median.
_MISSING = 0.2
_NEARLY_ALL = 0.9
#: For that test a name is steady in half of the turns: in a short recording many turns are partial.
_MOSTLY = 0.5
PREFILL, DECODE = "prefill", "decode"
#: Ranges that count the requests of each kind in a step (vLLM).
_BATCH = regex(r"context_(\d+).*?generation_(\d+)")
_PREFILL = regex(r"(?<![a-z])(?:forward_)?(?:extend|prefill)(?![a-z])|\[EXTEND|\[PREFILL|Prefill(?=[A-Z]|$)")
_DECODE = regex(r"(?<![a-z])(?:forward_)?decode(?![a-z])|\[DECODE|Decode(?=[A-Z]|$)")
#: Python functions also decode or extend other things: only those of serving engines count.
_PYTHON = regex(r"\(\d+\): |^<")
_ENGINE = regex(r"vllm|sglang|sgl_|lightllm|lmdeploy|tgi|text_generation|mlc_llm|tensorrt_llm|transformers/generation")
_NOT = regex(r"(?:is|has|should|split|get)_\w*$|_and_")
_SERVING = regex(r"vllm|sglang|paged|kv_?cache|flashinfer|BatchDecode|BatchPrefill|lm_?head", re.IGNORECASE)
#: Judging by duration, a prefill lasts at least this many times as long as the median step.
_MUCH_LONGER = 3.0


class Content(msgspec.Struct, frozen=True):
    """Events by time and name, for the names that take most time."""

    at: Ints  # ascending
    code: Ints  # 0 … n_names-1
    n_names: int


def content_of(at: Ints, names: pl.Series, durations: pl.Series, wanted: pl.Series) -> Content:
    """The wanted spans whose names take most time; names that occur fewer than three times are left out."""
    rows = np.flatnonzero(wanted.to_numpy() & names.is_not_null().to_numpy() & (at != NOWHERE))
    first, number = numbered(names.to_physical().fill_null(0).to_numpy()[rows])
    by_name = pl.DataFrame(
        {
            "number": np.arange(first.size),
            "name": in_rows(names, rows[first]),
            "n": np.bincount(number, minlength=first.size),
            # Sums of whole nanoseconds are exact in float64 up to 104 days.
            "ns": np.bincount(number, durations.to_numpy()[rows], minlength=first.size),
        }
    ).filter(pl.col("n") >= 3)
    top = by_name.sort("ns", "name", descending=[True, False]).head(_MOST_NAMES)
    top = top.filter((pl.col("n").cum_sum() <= _MOST_ROWS) | (pl.int_range(pl.len()) == 0))
    code_of = np.full(first.size, -1, np.int64)
    code_of[top["number"].to_numpy()] = np.arange(top.height)
    code = code_of[number]
    is_top = code >= 0
    at, code = at[rows[is_top]], code[is_top]
    if (at[1:] < at[:-1]).any():
        order = np.argsort(at, kind="stable")
        at, code = at[order], code[order]
    return Content(at, code, top.height)


def counts(content: Content, lows: Ints, highs: Ints) -> NDArray[np.float64]:
    """How often each name (column) occurs in each window [low, high) (row)."""
    if not lows.size:
        return np.zeros((0, content.n_names))
    row = np.searchsorted(lows, content.at, side="right") - 1
    inside = (row >= 0) & (content.at < highs[row])
    key = row[inside] * content.n_names + content.code[inside]
    flat = np.bincount(key, minlength=lows.size * content.n_names)
    return flat.reshape(lows.size, content.n_names).astype(np.float64)


def agreement(content: Content, starts: Ints) -> float:
    """The share of names that occur equally often in all turns, 0..1; turns last from start to start.

    That holds for a name if at least 8 of 10 turns have it exactly as often as the median turn, and that is at least
    once. 0 if there are fewer than two turns, or no names.
    """
    starts = starts[: _MOST_CYCLES + 1]
    if starts.size < 3 or content.n_names == 0:
        return 0.0
    occurrences = counts(content, starts[:-1], starts[1:])
    present = occurrences.sum(axis=0) > 0
    if reach(content, starts) < _NEARLY_ALL:
        present[:] = True  # names that occur only before or after these turns count against them
    typical = np.median(occurrences, axis=0)
    steady = ((occurrences == typical).mean(axis=0) >= _STEADY) & (typical > 0)
    return float(steady.sum() / max(int(present.sum()), 1))


def reach(content: Content, starts: Ints) -> float:
    """The share of events that are within the turns, 0..1, if the last turn is as long as the median one.

    Events count, not time: a long startup, or waiting for work, does not speak against a loop.
    """
    if starts.size < 2 or content.at.size == 0:
        return 0.0
    end = starts[-1] + np.median(np.diff(starts))
    inside = np.searchsorted(content.at, end) - np.searchsorted(content.at, starts[0])
    return float(inside / content.at.size)


def is_whole(occurrences: NDArray[np.float64], kinds: Sequence[str | None] = ()) -> Bools:
    """Whether each turn (row of counts by name) was recorded completely: false for turns at either end that lack much.

    From both ends inwards, a turn is partial while at least a fifth of the steady names occur less often in it than in
    the median turn of its kind. At most half of the turns are partial; kinds with fewer than three turns are not
    tested. Without `kinds` all turns are of one kind.
    """
    n = occurrences.shape[0]
    whole = np.ones(n, np.bool_)
    if n < 3 or occurrences.shape[1] == 0:
        return whole
    lacks = np.zeros(n, np.bool_)
    kind = np.array([str(k) for k in kinds] if kinds else [""] * n)
    for one in distinct_values(kind):
        mine = kind == one
        if mine.sum() >= 3:
            lacks[mine] = _lacks_much(occurrences[mine])
    first = int(np.argmin(lacks)) if lacks[0] else 0
    last = n - (int(np.argmin(lacks[::-1])) if lacks[-1] else 0)
    if lacks.all() or last - first < (n + 1) // 2:
        return whole
    whole[:first] = False
    whole[last:] = False
    return whole


def _lacks_much(occurrences: NDArray[np.float64]) -> Bools:
    typical = np.median(occurrences, axis=0)
    steady = ((occurrences == typical).mean(axis=0) >= _MOSTLY) & (typical > 0)
    if not steady.any():
        return np.zeros(occurrences.shape[0], np.bool_)
    share: NDArray[np.float64] = (occurrences[:, steady] < typical[steady]).mean(axis=1)
    return share >= _MISSING


def phases(names: pl.Series, cycle: Ints, n_cycles: int, dur_ns: Ints) -> list[str | None]:
    """The kind of each cycle: prefill or decode; null if unknown, or if all are of one kind.

    `names` and `cycle` describe spans: what ran, and in which cycle (-1: in none). A cycle with both kinds of requests
    is a prefill, as that dominates its time. Evidence, in this order: ranges that count requests; names of one kind
    that occur in some cycles only (names of both kinds, or of one if the program serves a language model); and if it
    does, a duration of at least 3 times the median.
    """
    inside = cycle >= 0
    text = names.unique().drop_nulls().cast(pl.String)
    counted = _by_batch(names, cycle, inside, text, n_cycles)
    if counted is not None:
        return _unless_alike(counted)
    prefill = _cycles_with(names, cycle, inside, text, _PREFILL, n_cycles)
    decode = _cycles_with(names, cycle, inside, text, _DECODE, n_cycles)
    serves = any(_SERVING.search(name) for name in text)
    if (prefill.any() and decode.any()) or (serves and (prefill.any() or decode.any())):
        if not decode.any():
            decode = ~prefill
        elif not prefill.any():
            prefill = ~decode
        return _unless_alike([PREFILL if p else DECODE if d else None for p, d in zip(prefill, decode, strict=True)])
    if serves and n_cycles >= 4:
        long = dur_ns > _MUCH_LONGER * np.median(dur_ns)
        if 0 < long.sum() <= n_cycles / 4:
            return [PREFILL if is_long else DECODE for is_long in long]
    return [None] * n_cycles


def _by_batch(names: pl.Series, cycle: Ints, inside: Bools, text: pl.Series, n_cycles: int) -> list[str | None] | None:
    kinds = {name: match for name in text if (match := _BATCH.search(name))}
    if not kinds:
        return None
    is_one = names.is_in(pl.Series(list(kinds), dtype=names.dtype).implode()).to_numpy() & inside
    result: list[str | None] = [None] * n_cycles
    for name, row in zip(names.filter(pl.Series(is_one)).cast(pl.String), cycle[is_one].tolist(), strict=True):
        prefills, decodes = (int(group) for group in kinds[name].groups())
        if prefills:
            result[row] = PREFILL
        elif decodes and result[row] is None:
            result[row] = DECODE
    return result


def _cycles_with(
    names: pl.Series,
    cycle: Ints,
    inside: Bools,
    text: pl.Series,
    pattern: re.Pattern[str],
    n_cycles: int,
) -> Bools:
    """Cycles with a name that matches and that occurs in some cycles but not in all."""
    matches = np.zeros(n_cycles, np.bool_)
    for name in (name for name in text if pattern.search(name) and _is_evidence(name)):
        rows = (names == name).to_numpy() & inside
        has = np.zeros(n_cycles, np.bool_)
        has[cycle[rows]] = True
        if 0 < has.sum() < n_cycles:
            matches |= has
    return matches


def _is_evidence(name: str) -> bool:
    return not _NOT.search(name) and (not _PYTHON.search(name) or _ENGINE.search(name) is not None)


def _unless_alike(kinds: list[str | None]) -> list[str | None]:
    return kinds if len(set(kinds)) > 1 else [None] * len(kinds)
