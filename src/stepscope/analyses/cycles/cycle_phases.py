"""Prefill and decode told apart: the two kinds of step that a serving engine takes."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["DECODE", "PREFILL", "phases"]

Ints = NDArray[np.int64]

PREFILL, DECODE = "prefill", "decode"
#: Ranges that say how many requests of each kind a step works on (vLLM).
_BATCH = re.compile(r"context_(\d+).*?generation_(\d+)")
_PREFILL = re.compile(r"(?<![a-z])(?:forward_)?(?:extend|prefill)(?![a-z])|\[EXTEND|\[PREFILL|Prefill(?=[A-Z]|$)")
_DECODE = re.compile(r"(?<![a-z])(?:forward_)?decode(?![a-z])|\[DECODE|Decode(?=[A-Z]|$)")
#: Python functions that decode or extend something else: only those of serving engines count.
_PYTHON = re.compile(r"\(\d+\): |^<")
_ENGINE = re.compile(
    r"vllm|sglang|sgl_|lightllm|lmdeploy|tgi|text_generation|mlc_llm|tensorrt_llm|transformers/generation"
)
_NOT = re.compile(r"(?:is|has|should|split|get)_\w*$|_and_")
_SERVING = re.compile(r"vllm|sglang|paged|kv_?cache|flashinfer|BatchDecode|BatchPrefill|lm_?head", re.IGNORECASE)
#: A prefill lasts at least so many times as long as the median step, where durations are all there is.
_MUCH_LONGER = 3.0


def phases(names: pl.Series, cycle: Ints, n_cycles: int, dur_ns: Ints) -> list[str | None]:
    """The kind of each cycle: prefill, decode, or null where nothing tells, or all are of one kind.

    `names` and `cycle` are those of spans: what ran, and in which cycle (-1: in none). A cycle that works on both kinds
    of requests is a prefill: its time is. What tells: ranges that count requests; then names that speak of one kind and
    come in some cycles only (of one of the kinds will do if the program serves a language model); then, if it does,
    cycles at least 3 times as long as most.
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


def _by_batch(
    names: pl.Series, cycle: Ints, inside: NDArray[np.bool_], text: pl.Series, n_cycles: int
) -> list[str | None] | None:
    kinds = {name: match for name in text if (match := _BATCH.search(name))}
    if not kinds:
        return None
    is_one = names.is_in(pl.Series(list(kinds), dtype=names.dtype).implode()).to_numpy() & inside
    found: list[str | None] = [None] * n_cycles
    for name, row in zip(names.filter(pl.Series(is_one)).cast(pl.String), cycle[is_one].tolist(), strict=True):
        prefills, decodes = (int(group) for group in kinds[name].groups())
        if prefills:
            found[row] = PREFILL
        elif decodes and found[row] is None:
            found[row] = DECODE
    return found


def _cycles_with(
    names: pl.Series,
    cycle: Ints,
    inside: NDArray[np.bool_],
    text: pl.Series,
    pattern: re.Pattern[str],
    n_cycles: int,
) -> NDArray[np.bool_]:
    """Cycles with a name that fits and that some cycles have and others have not."""
    found = np.zeros(n_cycles, np.bool_)
    for name in (name for name in text if pattern.search(name) and _speaks(name)):
        rows = (names == name).to_numpy() & inside
        has = np.zeros(n_cycles, np.bool_)
        has[cycle[rows]] = True
        if 0 < has.sum() < n_cycles:
            found |= has
    return found


def _speaks(name: str) -> bool:
    return not _NOT.search(name) and (not _PYTHON.search(name) or _ENGINE.search(name) is not None)


def _unless_alike(found: list[str | None]) -> list[str | None]:
    return found if len(set(found)) > 1 else [None] * len(found)
