"""What a change does to a recorded program: 'class gemm: 2x' as factors of device work, host time and waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace
from numpy.typing import NDArray

from stepscope.analyses.common.batch_names import is_sampling
from stepscope.analyses.common.device_work import COMMUNICATION, COMPUTATION, MEMCPY
from stepscope.analyses.critical_path.longest_path import KINDS, like, nowhere, of_kind, spans_like, where_innermost
from stepscope.analyses.critical_path.replay import COPY, GUESSED, LOADER, QUEUE, SYNC, Changes, Program, unchanged
from stepscope.analyses.critical_path.threads import Threads
from stepscope.analyses.critical_path.work import WAITS, Work, called_within, warmed_up
from stepscope.analyses.steps.batches import factors_without
from stepscope.core.arrays import distinct_values
from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import Bools, Intervals, difference, union
from stepscope.core.names import FUSIBLE, KERNEL_CLASSES, is_launch_call, kernel_class, map_names
from stepscope.core.patterns import regex

_RULE = regex(r"\s*(?P<what>.+?)\s*=\s*(?P<factor>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)\s*(?:,|$)")
_HINT = "write it as in 'gemm=0.5,launch delay=0': a kind, a class of kernels or a regular expression, and a factor"
#: Kinds of device work. All other kinds, except waits, are on the host.
_SORTS = {"computation": COMPUTATION, "communication": COMMUNICATION, "memcpy": MEMCPY}


class Rule(msgspec.Struct, frozen=True):
    """What is scaled by `factor`: a kind of KINDS, or all whose name matches, anywhere or on devices only."""

    what: str
    factor: float
    kind: str | None = None
    matches: Callable[[str], bool] = bool
    device_only: bool = False


def rules(text: str) -> list[Rule]:
    """The rules of a text such as 'gemm=0.5,launch delay=0'. Raises StepscopeError."""
    result, at = [], 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise StepscopeError(f"not a scale: {text[at:]!r}", _HINT)
        result.append(_rule(match["what"], float(match["factor"])))
        at = match.end()
    if not result:
        raise StepscopeError("nothing to scale", _HINT)
    return result


def _rule(what: str, factor: float) -> Rule:
    kind = what.lower().replace(" ", "_").replace("-", "_")
    if kind in KINDS:
        return Rule(what, factor, kind)
    if what in KERNEL_CLASSES:
        return Rule(what, factor, matches=lambda name: kernel_class(name) == what, device_only=True)
    return Rule(what, factor, matches=searched(what, _HINT))


def searched(pattern: str, hint: str) -> Callable[[str], bool]:
    """Whether a name matches the regular expression. Raises StepscopeError if it is none."""
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise StepscopeError(f"not a regular expression: {pattern!r} ({error})", hint) from error
    return lambda name: search(name) is not None


def scale_of(wanted: Sequence[Rule], spans: pl.DataFrame, threads: Threads, work: Work) -> Changes:
    """What the rules change; the first of several counts. Raises StepscopeError if a rule holds nowhere.

    On the host, a rule for names holds for everything inside a matching span on its thread.
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
            taken.append((rule.factor, _rest(taken, held)))
        if n_held == 0 and rule.kind not in WAITS:
            raise StepscopeError(f"nothing to scale: no operator, call, range or kernel matches {rule.what!r}", _HINT)
    return Changes(factor, waits, tuple(map(tuple, host)))


def _rest(taken: Sequence[tuple[float, Intervals]], held: Intervals) -> Intervals:
    """The part of the intervals for which no earlier rule holds."""
    return reduce(difference, (before for _, before in taken), held)


def _held(rule: Rule, spans: pl.DataFrame, threads: Threads, *, has_device: bool) -> Iterator[Intervals]:
    """The times at which the rule holds on each thread."""
    if rule.device_only or rule.kind in WAITS:
        yield from nowhere(threads)
    elif rule.kind is not None:
        yield from of_kind(spans, threads, rule.kind, has_device=has_device)
    else:
        yield from spans_like(spans, threads, rule.matches)


#: Subjects of a change, and the changes that each understands; `2x` stands for any number.
SUBJECTS = {
    "kernel": ("2x", "removed"),
    "op": ("2x", "removed"),
    "self": ("2x", "removed"),
    "class": ("2x", "removed", "fused"),
    "range": ("2x", "removed"),
    "launch": ("2x", "free", "graphs"),
    "loader": ("2x", "hidden"),
    "sync": ("removed",),
    "comm": ("2x", "free", "overlapped"),
    "copies": ("2x", "free"),
    "host": ("2x", "free"),
    "bandwidth": ("2x",),
    "device": ("2x", "free", "fused"),
    "padding": ("removed",),
    "prefill": ("removed",),
    "sampling": ("2x", "free"),
    "ranks": ("no stragglers",),
    "gpu": ("NAME",),
    "batch": ("2x", "N"),
}
_DEVICE_UNKNOWN = (
    "on another device kernels that wait for memory take between as long as now and the ratio of the bandwidths, "
    "products of matrices the ratio of the peaks within a factor of 1.75, attention up to 4 times that; "
    "the host stays as recorded"
)
_BATCH_UNKNOWN = (
    "with another batch size device work and the data loader take between as long as now and a time in proportion to "
    "the batch; the host stays as recorded"
)
#: Subjects of which a recording gives no more than bounds.
BOUNDED = {"gpu": _DEVICE_UNKNOWN, "batch": _BATCH_UNKNOWN}
_RANKS_HINT = "another number of ranks changes what each rank computes and sends, of which one recording says nothing"
#: The subject that several ranks have, and none alone.
OF_RANKS = "ranks"
_NAMED = {"kernel": "~ REGEX", "op": "~ REGEX", "self": "~ REGEX", "class": "NAME", "range": "NAME"}
_CHANGE = regex(r"\s*(?P<subject>[a-z]+)\s*(?P<name>.*?)\s*:\s*(?P<change>[^:]+?)\s*", re.DOTALL)
_TIMES = regex(r"(?P<times>\d+(?:\.\d*)?|\.\d+)\s*(?:x|×)")
_BATCH = regex(r"[1-9]\d{0,8}")
#: Words for a factor of 0.
_GONE = ("removed", "free", "hidden")
_CHANGE_HINT = f"write it as in 'class gemm: 2x' or 'loader: hidden'; subjects are {', '.join(SUBJECTS)}"


class Change(msgspec.Struct, frozen=True):
    """One change in words: its subject, the name or pattern that it has, and what becomes of it."""

    subject: str
    name: str
    change: str

    @property
    def factor(self) -> float | None:
        """What durations are multiplied by; None if the change is of another kind."""
        times = _TIMES.fullmatch(self.change)
        if times is not None:
            return 1 / float(times["times"])
        return 0.0 if self.change in _GONE else None

    def __str__(self) -> str:
        joint = " ~ " if _NAMED.get(self.subject) == "~ REGEX" else " " if self.name else ""
        return f"{self.subject}{joint}{self.name}: {self.change}"


def change_of(text: str) -> Change:
    """The change that a text such as 'kernel ~ sgemm: 2x' describes. Raises StepscopeError."""
    match = _CHANGE.fullmatch(text)
    if match is None:
        raise StepscopeError(f"not a change: {text!r}", _CHANGE_HINT)
    subject, name = match["subject"], match["name"].removeprefix("~").strip()
    change = Change(subject, name, match["change"])
    if subject not in SUBJECTS:
        raise StepscopeError(f"not a subject of a change: {subject!r}", f"subjects are {', '.join(SUBJECTS)}")
    if subject == "gpu":
        from stepscope.analyses.critical_path.scaling import product

        product(change.change)
    times = _TIMES.fullmatch(change.change)
    known = "2x" in SUBJECTS[subject] if times and float(times["times"]) else change.change in SUBJECTS[subject]
    if not known and subject != "gpu" and not (subject == "batch" and _BATCH.fullmatch(change.change)):
        hint = f"it can be {', '.join(SUBJECTS[subject])}"
        if subject == OF_RANKS and change.change.isdigit():
            hint = f"{_RANKS_HINT}; {hint}"
        raise StepscopeError(f"{subject!r} has no change {change.change!r}", hint)
    if (subject in _NAMED) != bool(name):
        usage = f"{subject} {_NAMED.get(subject, '')}".strip()
        raise StepscopeError(f"not a change: {text!r}", f"write it as in '{usage}: {SUBJECTS[subject][0]}'")
    if subject == "class" and name not in KERNEL_CLASSES:
        raise StepscopeError(f"no class of kernels: {name!r}", f"classes are {', '.join(KERNEL_CLASSES)}")
    return change


def changed(program: Program, wanted: Sequence[Change], *, at_worst: bool = False) -> Changes:
    """What the changes do to a program of one rank together; where several hold, the first counts.

    Of BOUNDED subjects it is what they do at best, or at worst.
    Raises StepscopeError if one of them concerns nothing in the recording.
    """
    asked = (*wanted, at_worst)
    if asked in program.answers:
        return program.answers[asked]
    result = unchanged(program.work, program.threads.track.size)
    taken = np.zeros(program.work.row.size, np.bool_)
    for change in wanted:
        if change.subject == OF_RANKS:
            raise StepscopeError(f"{str(change)!r} needs the traces of all ranks", "name the folder of the job")
        one = partial(_bounded, at_worst=at_worst) if change.subject in BOUNDED else _with
        result, mine = one(program, result, change, taken)
        taken |= mine
    program.answers[asked] = result
    return result


def _with(program: Program, changes: Changes, change: Change, taken: Bools) -> tuple[Changes, Bools]:
    """The changes with one more, and the device work that this one concerns."""
    work, factor = program.work, change.factor
    if change.subject == "comm" and change.change == "overlapped":
        talks = work.sort == COMMUNICATION
        _require(change, talks.any())
        return replace(changes, detached=talks), talks & False
    if change.change == "graphs":
        from stepscope.analyses.critical_path.graphs import GRAPH_BEGINS_NS, GRAPH_NODE_NS, captured_times, in_graphs

        held, calls, nodes = captured_times(program)
        _require(change, any(times[0].size for times in held))
        stopped = (*changes.without_waiting, QUEUE)
        host = _on_host(changes, calls, GRAPH_BEGINS_NS)
        host = _on_host(replace(changes, host=host), nodes, GRAPH_NODE_NS)
        host = _on_host(replace(changes, host=host), held, 0.0)
        return replace(changes, without_waiting=stopped, host=host, captured=in_graphs(work)), taken & False
    if change.subject in ("padding", "prefill"):
        factors, held = _without(program, change.subject)
        _require(change, (factors < 1).any())
        durations = np.where(taken, changes.work, changes.work * factors)
        return replace(changes, work=durations, host=_on_host(changes, held, 0.0)), factors < 1
    mine, held = _concerned(program, change)
    if change.change == "fused":
        mine, held = _fused(program, mine)
        _require(change, mine.any())
    gone = 0.0 if factor is None else factor
    if change.subject == "sync":
        stopped = (*changes.without_waiting, SYNC, COPY, GUESSED)
        return replace(changes, without_waiting=stopped, host=_on_host(changes, held, gone)), mine
    if change.subject == "loader":
        changes = replace(changes, loader=gone)
    waits = changes.waits
    if change.subject == "launch":
        waits = waits * np.array([gone if kind == "launch_delay" else 1.0 for kind in WAITS])
    durations = np.where(mine & ~taken, changes.work * gone, changes.work)
    return replace(changes, work=durations, waits=waits, host=_on_host(changes, held, gone)), mine


def _bounded(
    program: Program, changes: Changes, change: Change, taken: Bools, *, at_worst: bool
) -> tuple[Changes, Bools]:
    """The changes on another device or with another batch size, and the device work that these concern."""
    from stepscope.analyses.critical_path.scaling import batch_factor, on_device

    _require(change, program.work.row.size)
    every = taken | True
    if change.subject == "gpu":
        factors = on_device(program, change.change, at_worst=at_worst)
        return replace(changes, work=np.where(taken, changes.work, factors)), every
    size = batch_factor(program, change.change, None if change.factor is None else 1 / change.factor)
    grows = max(size, 1.0) if at_worst else min(size, 1.0)
    durations = np.where(taken, changes.work, grows)
    host = _on_host(changes, _fetches(program), grows)
    return replace(changes, work=durations, host=host, loader=changes.loader * grows), every


def _on_host(
    changes: Changes, held: Sequence[Intervals], factor: float
) -> tuple[tuple[tuple[float, Intervals], ...], ...]:
    """The factors of host time with a further one."""
    both = zip(changes.host, held, strict=True)
    return tuple((*taken, (factor, _rest(taken, more))) if more[0].size else taken for taken, more in both)


def _concerned(program: Program, change: Change) -> tuple[Bools, list[Intervals]]:
    """The device work, and the times on host threads, that a change speaks of. Raises StepscopeError if none."""
    subject = replace(change, change="")
    if subject not in program.known:
        program.known[subject] = _spoken_of(program, change)
    mine, held = program.known[subject]
    has_loader = change.subject == "loader" and program.loader_known
    _require(change, has_loader or mine.any() or any(times[0].size for times in held))
    return mine, held


def _spoken_of(program: Program, change: Change) -> tuple[Bools, list[Intervals]]:
    spans, threads, work = program.spans, program.threads, program.work
    mine, held = np.zeros(work.row.size, np.bool_), nowhere(threads)
    if change.subject == "class":
        mine = (program.classes == change.name) & (work.sort != MEMCPY)
    elif change.subject == "kernel":
        matches = searched(change.name, _CHANGE_HINT)
        mine = map_names(spans["name"].gather(work.row), matches, pl.Boolean()).to_numpy() & (work.sort != MEMCPY)
    elif change.subject in ("op", "range", "self"):
        held = list(_named_on_host(program, change))
        mine = called_within(spans, work, held)
    elif change.subject == "launch":
        rows = np.flatnonzero(work.call >= 0)
        loading = union(warmed_up(work, rows, rows), work.returned[rows])  # which is not what launches usually cost
        calls = spans_like(spans, threads, is_launch_call, ("runtime", "driver"))
        held = [difference(times, loading) for times in calls]
    elif change.subject in ("loader", "sampling"):
        held = _fetches(program) if change.subject == "loader" else _sampling(program)
    elif change.subject == "sync":
        held = list(of_kind(spans, threads, "sync"))
        _require(change, bool(program.graph.moments.at.size))
    elif change.subject in ("bandwidth", "copies"):
        mine = work.sort == MEMCPY if change.subject == "copies" else _is_memory_bound(program)
    elif change.subject == "comm":
        mine = work.sort == COMMUNICATION
        held = list(of_kind(spans, threads, "communication", has_device=work.row.size > 0))
    elif change.subject == "host":
        whole = threads.start.min(keepdims=True), threads.end.max(keepdims=True)
        loads = spans_like(spans, threads, lambda _: True, ("dataloader",))
        held = [difference(whole, loading) for loading in loads]
    else:
        mine = np.ones(work.row.size, np.bool_)
    return mine, held


def _fetches(program: Program) -> list[Intervals]:
    """The times that threads spend on getting batches, as far as they may go.

    Of a loader with workers only the wait goes; the thread still takes the batch over. What is which may not be known:
    then all of it may go.
    """
    threads = program.threads
    held = list(spans_like(program.spans, threads, lambda _: True, ("dataloader",)))
    moments = program.graph.moments
    for thread in distinct_values(moments.thread[moments.kind == LOADER]):
        held[thread] = nowhere(threads)[thread]
    return held


def _sampling(program: Program) -> list[Intervals]:
    """The times in which threads choose tokens."""
    of_program = ("operator", "python", "user_range", "module")
    return list(spans_like(program.spans, program.threads, is_sampling, of_program))


def _without(program: Program, what: str) -> tuple[NDArray[np.float64], list[Intervals]]:
    """Factors of the device work without `padding` or `prefill`, and the times of threads in batches that are gone."""
    work, threads = program.work, program.threads
    frame = pl.DataFrame({"launch_id": work.call, "ts_ns": work.start, "end_ns": work.end})
    called = pl.when(pl.col("launch_id") >= 0).then("launch_id").cast(pl.UInt32)
    factors, gone = factors_without(what, program.spans, frame.with_columns(launch_id=called))
    of_tracks = (gone.filter(pl.col("track_id") == int(track)) for track in threads.track)
    return factors, [union(mine["ts_ns"].to_numpy(), mine["end_ns"].to_numpy()) for mine in of_tracks]


def _named_on_host(program: Program, change: Change) -> Iterator[Intervals]:
    """The times on each thread of the operators or ranges that a change names."""
    spans, threads = program.spans, program.threads
    if change.subject == "range":
        return spans_like(spans, threads, _is_named(change.name), ("user_range", "module", "python", "step"))
    matches = searched(change.name, _CHANGE_HINT)
    return (
        where_innermost(threads, like(spans, threads, matches, ("operator",)))
        if change.subject == "self"
        else spans_like(spans, threads, matches, ("operator",))
    )


def _is_memory_bound(program: Program) -> Bools:
    """The kernels of classes that mostly wait for the memory of the device."""
    result: Bools = np.isin(program.classes, FUSIBLE) & (program.work.sort == COMPUTATION)
    return result


def _fused(program: Program, concerned: Bools) -> tuple[Bools, list[Intervals]]:
    """What fusion takes away at best: of each run of memory-bound kernels all but the longest, and their launches."""
    work, mine = program.work, concerned & _is_memory_bound(program)
    follows = np.append(False, mine[1:] & mine[:-1] & (work.track[1:] == work.track[:-1]))[: mine.size]
    run = np.cumsum(~follows)
    order = np.lexsort((work.end - work.start, run))
    longest = np.zeros(mine.size, np.bool_)
    longest[order[np.flatnonzero(np.diff(run[order], append=-1))]] = True
    gone = mine & ~longest
    held = [
        union(work.called[rows], work.returned[rows])
        for thread in range(program.threads.track.size)
        for rows in [np.flatnonzero(gone & (work.thread == thread) & (work.call >= 0))]
    ]
    return gone, held


def _is_named(wanted: str) -> Callable[[str], bool]:
    return lambda name: name == wanted


def _require(change: Change, is_there: object) -> None:
    """Raises StepscopeError if the recording has nothing that the change speaks of."""
    if not is_there:
        raise StepscopeError(f"nothing to change: the recording has nothing for {str(change)!r}", _CHANGE_HINT)
