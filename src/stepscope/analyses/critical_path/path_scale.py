"""What a what-if supposes: which spans and waits take how many times as long as recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.device_work import COMMUNICATION, COMPUTATION, MEMCPY
from stepscope.analyses.critical_path.path_pieces import KIND_CODE, KINDS, divided, kinds_of
from stepscope.analyses.critical_path.path_threads import Threads
from stepscope.analyses.critical_path.path_work import WAITS, Work
from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import Intervals, covered, difference, union
from stepscope.core.names import KERNEL_CLASSES, kernel_class, map_names

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_RULE = re.compile(r"\s*(?P<what>.+?)\s*=\s*(?P<factor>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)\s*(?:,|$)")
_HINT = "write it as in 'gemm=0.5,launch delay=0': a kind, a class of kernels or a regular expression, and a factor"


#: Kinds of device work, by its sort, and those of waits; the others lie on the host.
_SORTS = {"computation": COMPUTATION, "communication": COMMUNICATION, "memcpy": MEMCPY}


@dataclass(frozen=True, slots=True)
class Rule:
    """What is scaled: a kind of KINDS, else all whose name matches, on devices alone or anywhere; and by how much."""

    what: str
    factor: float
    kind: str | None = None
    matches: Callable[[str], bool] = bool
    device_only: bool = False


def rules(text: str) -> list[Rule]:
    """The rules of a text such as 'gemm=0.5,launch delay=0'. Raises StepscopeError."""
    found, at = [], 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise StepscopeError(f"not a scale: {text[at:]!r}", _HINT)
        found.append(_rule(match["what"], float(match["factor"])))
        at = match.end()
    if not found:
        raise StepscopeError("nothing to scale", _HINT)
    return found


def _rule(what: str, factor: float) -> Rule:
    kind = what.lower().replace(" ", "_").replace("-", "_")
    if kind in KINDS:
        return Rule(what, factor, kind)
    if what in KERNEL_CLASSES:
        return Rule(what, factor, matches=lambda name: kernel_class(name) == what, device_only=True)
    try:
        search = re.compile(what).search
    except re.error as error:
        raise StepscopeError(f"not a regular expression: {what!r} ({error})", _HINT) from error
    return Rule(what, factor, matches=lambda name: search(name) is not None)


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors of each piece of work, of the kinds of WAITS, and of time on each thread, in disjoint sets."""

    work: Floats
    waits: Floats
    host: tuple[tuple[tuple[float, Intervals], ...], ...]
    largest: float

    def on_thread(self, thread: int, times: Ints, origin: int) -> Floats:
        """How long after the origin each time on a thread would come, if nothing had to be waited for."""
        found = (times - origin).astype(np.float64)
        for factor, held in self.host[thread]:
            found -= (1 - factor) * covered(held, np.full(times.size, origin), times)
        return found


def scale_of(wanted: Sequence[Rule], spans: pl.DataFrame, threads: Threads, work: Work) -> Scale:
    """Where the rules hold; of several the first. Raises StepscopeError if one holds nowhere.

    A rule for names holds on the host for all that lies within a matching span on its thread.
    """
    names = spans["name"].gather(work.row)
    factor, free = np.ones(work.row.size), np.ones(work.row.size, np.bool_)
    host: list[list[tuple[float, Intervals]]] = [[] for _ in threads.track]
    of_waits = {rule.kind: rule.factor for rule in reversed(wanted)}
    waits = np.array([of_waits.get(kind, 1.0) for kind in WAITS])
    for rule in wanted:
        if rule.kind is not None:
            mine = np.isin(work.sort, [_SORTS[rule.kind]] if rule.kind in _SORTS else [])
        else:
            mine = map_names(names, rule.matches, pl.Boolean()).to_numpy()
        factor[mine & free] = rule.factor
        n_held = int(mine.sum())
        free &= ~mine
        for taken, held in zip(host, _held(rule, spans, threads, has_device=work.row.size > 0), strict=True):
            n_held += held[0].size
            rest = reduce(difference, (before for _, before in taken), held)
            taken.append((rule.factor, rest))
        if n_held == 0 and rule.kind not in WAITS:
            raise StepscopeError(f"nothing to scale: no operator, call, range or kernel matches {rule.what!r}", _HINT)
    return Scale(factor, waits, tuple(map(tuple, host)), max(1.0, *(rule.factor for rule in wanted)))


def _held(rule: Rule, spans: pl.DataFrame, threads: Threads, *, has_device: bool) -> Iterator[Intervals]:
    """When the rule holds on each thread."""
    if rule.device_only or rule.kind in WAITS:
        none = np.empty(0, np.int64)
        yield from ((none, none) for _ in threads.track)
    elif rule.kind is not None:
        whole = threads.start.min(keepdims=True), threads.end.max(keepdims=True)
        for thread in range(threads.track.size):
            _, row, start, end = divided(threads, thread, whole)
            mine = kinds_of(spans, row, has_device=has_device) == KIND_CODE[rule.kind]
            yield union(start[mine], end[mine])
    else:
        found = map_names(spans["name"].gather(threads.row), rule.matches, pl.Boolean()).to_numpy()
        for thread in range(threads.track.size):
            mine = np.flatnonzero(found[threads.of(thread)]) + threads.of(thread).start
            yield union(threads.start[mine], threads.end[mine])
