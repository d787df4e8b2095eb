"""The report of a run, and what somebody wants of each of its files besides: each file is opened once for both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stepscope.api.verbs import reported
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Opener, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.core.report import Report
    from stepscope.core.trace import Trace

    T = TypeVar("T")


def report_and_more(
    run: Run, more: Callable[[Trace], T], *, progress: Callable[[int, int], None] | None = None
) -> tuple[Report, Mapping[str, T]]:
    """The report of a run, and `more` of the trace in each file, by path. Worker processes read the files, as `report`.

    Files that cannot be read, or whose summary comes from the cache, have no `more`. Raises StepscopeError.
    """
    from stepscope.query.map_files import map_over_files

    each = map_over_files(run, progress=progress)
    held = _Held(run.open_trace)
    made: dict[str, T] = {}

    def both_of_each(summarise: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
        both = partial(_both, summarise, more, held)
        results = [both(path) for path in paths] if each is None else each(both, paths)
        outcomes = []
        for path, result in zip(paths, results, strict=True):
            if isinstance(result, _Both):
                made[path] = result.more
            outcomes.append(result.outcome if isinstance(result, _Both) else result)
        return outcomes

    return reported(Run(run.paths, held, run.named), both_of_each), made


@dataclass(slots=True)
class _Held:
    """Opens the files of a run, and keeps the last trace for whoever asks for it next."""

    opener: Callable[[str], Trace]
    path: str = ""
    trace: Trace | None = None

    def __call__(self, path: str) -> Trace:
        return self._opened(path, self.opener)

    def once(self, path: str) -> Trace:
        return self._opened(path, self.opener.once if isinstance(self.opener, Opener) else self.opener)

    def depends(self, path: str) -> tuple[object, ...] | None:
        return self.opener.depends(path) if isinstance(self.opener, Opener) else None

    def _opened(self, path: str, opener: Callable[[str], Trace]) -> Trace:
        if self.trace is None or self.path != path:
            self.trace, self.path = None, ""
            self.trace, self.path = opener(path), path
        return self.trace

    def __reduce__(self) -> tuple[object, ...]:
        return _Held, (self.opener,)


class _Both(msgspec.Struct, frozen=True):
    """The summary of a file, and what else was wanted of it."""

    outcome: Any
    more: Any


def _both(summarise: Callable[[str], Any], more: Callable[[Trace], Any], held: _Held, path: str) -> Any:
    outcome = summarise(path)
    if isinstance(outcome, StepscopeError):
        return outcome
    try:
        return _Both(outcome, more(held(path)))
    except StepscopeError:  # it has gone meanwhile
        return outcome
