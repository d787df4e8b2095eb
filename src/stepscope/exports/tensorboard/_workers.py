"""Which worker and which span of it a trace file is: by its name, as the plugin reads a folder of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The span of a file whose name has no time.
DEFAULT_SPAN = "default"

_PACKED = r"(?:\.(?:gz|zst|xz|bz2|zip))?"
#: The names that `torch.profiler.tensorboard_trace_handler` gives: a worker, perhaps a time, an ending.
_RECORDED = re.compile(rf"(?P<worker>.+?)(?:\.(?P<time>\d+))?\.pt\.trace\.json{_PACKED}", re.DOTALL)
_ENDING = re.compile(rf"(?:[._-]trace)?(?:\.json)?{_PACKED}$")


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of a job, and which of its recordings: "1", "2", … by time, or "default"."""

    worker: str
    span: str


@dataclass(frozen=True, slots=True)
class _Names:
    """What a file's worker may be called, the shortest first, and the time in its name."""

    names: tuple[str, ...]
    time: str | None


def workers_of(files: Sequence[tuple[str, int | None]]) -> list[Worker]:
    """Worker and span of each file, given its path and the rank that the trace knows; no two are the same.

    A name `<worker>[.<digits>].pt.trace.json[.gz]` says both: the digits of one worker are sorted as text, and the
    span is the place of a file's own among them, from 1 on. Any other file is `rank_N` or called as it is without its
    ending, and has the span "default". What would then be the same is told apart by the folders above it.

    Source: the plugin's names of files in a run. It took the last of those that are the same.
    """
    known = [_names(path, rank) for path, rank in files]
    chosen = [0] * len(known)
    while True:
        workers = [names.names[i] for names, i in zip(known, chosen, strict=True)]
        keys = list(zip(workers, (names.time for names in known), strict=True))
        same = {worker for (worker, _), n in Counter(keys).items() if n > 1}
        longer = [
            min(i + 1, len(names.names) - 1) if worker in same else i
            for names, i, worker in zip(known, chosen, workers, strict=True)
        ]
        if longer == chosen:
            break
        chosen = longer
    times: dict[str, list[str]] = {}
    for worker, time in sorted({key for key in keys if key[1] is not None}):
        times.setdefault(worker, []).append(str(time))
    spans = [DEFAULT_SPAN if t is None else str(times[w].index(t) + 1) for w, t in keys]
    return [Worker(w, s) for w, s in zip(_numbered(keys), spans, strict=True)]


def by_span(workers: Iterable[Worker]) -> dict[str, list[int]]:
    """Places of the workers of each span, in order of the workers' names; spans in order of theirs, as text."""
    found: dict[str, list[int]] = {}
    for place, worker in sorted(enumerate(workers), key=lambda item: (item[1].span, item[1].worker)):
        found.setdefault(worker.span, []).append(place)
    return found


def _names(path: str, rank: int | None) -> _Names:
    *folders, base = re.split(r"[/\\]", path)
    recorded = _RECORDED.fullmatch(base)
    name = recorded["worker"] if recorded else _ENDING.sub("", base) or base
    longer = ["/".join((*folders[len(folders) - n :], name)) for n in range(len(folders) + 1)]
    by_rank = [f"rank_{rank}"] if rank is not None and recorded is None else []
    return _Names((*by_rank, *longer), recorded["time"] if recorded else None)


def _numbered(keys: list[tuple[str, str | None]]) -> list[str]:
    """Workers' names; the second of a file that is given twice says so."""
    seen: Counter[tuple[str, str | None]] = Counter()
    names = []
    for key in keys:
        seen[key] += 1
        names.append(key[0] if seen[key] == 1 else f"{key[0]} ({seen[key]})")
    return names
