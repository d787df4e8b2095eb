"""Py-spy's output as stacks of threads: when each began and ended, or how often it was sampled.

Py-spy's trace has only changes: frames that begin or end. A thread has a stack from the sample that first shows it to
the sample that shows another one; samples of the same stack in between are not in the trace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Function, file, line; 0 if that is not known.
Frame = tuple[str, str, int]
_PROCESS = re.compile(r'process (\d+):"(.*)"', re.DOTALL)
_THREAD = re.compile(r"thread \((\w+)\)(?:: (.*))?", re.DOTALL)
_FOLDED = re.compile(r'(?P<processes>.*";)?(?P<thread>thread \(\w+\)(?:: [^;]*)?);(?P<frames>.*) (?P<n>\d+)')
_NAMED = re.compile(r"(.*) \((.*?)(?::(\d+))?\)")
_SAMPLES = re.compile(rb"Samples: (\d+) Errors: (\d+)")


@dataclass(frozen=True, slots=True)
class StackSpan:
    """A stack of one thread, outermost frame first. Times: us from when py-spy began."""

    start_us: int
    end_us: int
    pid: int
    tid: int
    thread: str
    frames: tuple[Frame, ...]
    n_samples: int = 1
    #: Pid and command of the process, last, after those of its ancestors from the first one that py-spy sampled.
    processes: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class _Open:
    start_us: int
    stack: tuple[Frame, ...]


@dataclass(slots=True)
class _Threads:
    """The threads' stacks after some events. Py-spy identifies threads by a number that forked processes share."""

    stacks: dict[int, list[Frame]] = field(default_factory=dict)
    shown: dict[tuple[int, int], _Open] = field(default_factory=dict)

    def after(self, events: list[dict[str, Any]]) -> Iterator[StackSpan]:
        """Apply one sample of one thread. Yields the stack that ended with it, if one did."""
        key, pid, at = events[0]["tid"], events[0]["pid"], events[0]["ts"]
        stack = self.stacks.setdefault(key, [])
        for event in events:
            if event["ph"] == "B":
                where = event["args"]
                stack.append((event["name"], where.get("filename") or "", where.get("line") or 0))
            elif stack:
                stack.pop()
        before = self.shown.pop((key, pid), None)
        if before is not None:
            yield from _span(before, at, pid)
        if stack:
            self.shown[key, pid] = _Open(at, tuple(stack))

    def at_end(self, at: int) -> Iterator[StackSpan]:
        """The stacks that had not ended by then."""
        for (_, pid), last in self.shown.items():
            yield from _span(last, at, pid)


def from_events(events: Sequence[dict[str, Any]]) -> list[StackSpan]:
    """Stacks from events of py-spy's chrometrace, in the order in which they ended."""
    threads = _Threads()
    spans: list[StackSpan] = []
    sample: list[dict[str, Any]] = []
    for event in events:
        if event.get("ph") not in {"B", "E"}:
            continue
        if sample and not _same_sample(sample[-1], event):
            spans += threads.after(sample)
            sample = []
        sample.append(event)
    if sample:
        spans += threads.after(sample)
        spans += threads.at_end(max(event["ts"] for event in events))
    return spans


def _same_sample(before: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether two events are of one sample, which ends frames, then begins others, all at one time."""
    same = before["tid"] == event["tid"] and before["pid"] == event["pid"] and before["ts"] == event["ts"]
    return same and not (before["ph"] == "B" and event["ph"] == "E")


def _span(last: _Open, end_us: int, pid: int) -> Iterator[StackSpan]:
    """The stack as a span; none if the thread was not in Python."""
    processes = []
    rest = list(last.stack)
    while rest and (match := _PROCESS.fullmatch(rest[0][0])) and not rest[0][1]:
        processes.append((int(match[1]), match[2]))
        rest.pop(0)
    thread = _THREAD.fullmatch(rest[0][0]) if rest else None
    if thread is None or len(rest) == 1 or end_us <= last.start_us:
        return
    name = thread[2] or ""
    tid = int(thread[1], 0)
    yield StackSpan(last.start_us, end_us, pid, tid, name, tuple(rest[1:]), processes=tuple(processes))


def from_folded(text: str, end_us: int, pid: int) -> list[StackSpan]:
    """Stacks from py-spy's raw format: a line has a stack and its count; one without a process is of `pid`."""
    spans = []
    for line in text.splitlines():
        match = _FOLDED.fullmatch(line)
        thread = _THREAD.fullmatch(match["thread"]) if match else None
        if match is None or thread is None:
            continue
        pids = re.findall(r'process (\d+):"', match["processes"] or "")
        frames = tuple(_frame(frame) for frame in match["frames"].split(";"))
        tid, n = int(thread[1], 0), int(match["n"])
        spans.append(StackSpan(0, end_us, int(pids[-1]) if pids else pid, tid, thread[2] or "", frames, n))
    return spans


def _frame(text: str) -> Frame:
    match = _NAMED.fullmatch(text)
    return (match[1], match[2], int(match[3] or 0)) if match else (text, "", 0)


def n_samples(output: bytes | bytearray) -> tuple[int, int] | None:
    """How many stacks py-spy reports to have sampled, and how often it failed; None if it reports neither."""
    match = _SAMPLES.search(output)
    return (int(match[1]), int(match[2])) if match else None


def with_counts(spans: Sequence[StackSpan], n: int | None) -> list[int]:
    """How many samples each stack had: its share, by duration, of all `n` samples, but at least one."""
    whole = sum(each.end_us - each.start_us for each in spans)
    if not n or not whole:
        return [1] * len(spans)
    return [max(1, round(n * (each.end_us - each.start_us) / whole)) for each in spans]
