"""Decides when cycles are slower than the stream's own past explains, at a rate of false alarms that is chosen.

Three statistics are watched, each the logarithm of measured by expected time: of one cycle less half of the longest
right before it (stall), what most of the last `SLOW_CYCLES` reach (slow), and the median of the last `CREEP_CYCLES`
against what was usual before (creep). Each has a limit of its own. The limit comes from the greatest value in each
block of cycles of this stream, so that correlated cycles and heavy tails are part of it: where the chosen rate allows a
few alarms in the blocks so far, the limit is the value that so many blocks exceeded; before that, the tail of the
blocks is extrapolated.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.watching.expected_time import MOST_LOG
from stepscope.watching.medians import last_reached

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

KINDS = ("stall", "slow", "creep")
SLOW_CYCLES, CREEP_CYCLES = 20, 64
#: A slow level moves all cycles. So many of the last must be slow: some long ones between usual ones are no level.
SLOW_MOST = 14
#: Values of each statistic in a block. There is at most one alarm of a kind within as many, but of a larger level.
_BLOCK = {"stall": 64, "slow": 256, "creep": 32}
#: Blocks before a limit is extrapolated; until then, and at the most, it is a few times the greatest value, and a
#: margin. Single cycles have heavier tails than what many reach.
_LEARNT_BLOCKS, _MARGIN, _EARLY_GROWTH = 20, 0.05, 1.1
_MOST_TIMES, _MOST_TIMES_STALL = 2.0, 3.0
#: A limit holds for so many values. The newest values are learned only later: they may be the begin of a fault.
_CHUNK, _HELD = 32, 32
#: From so many blocks beyond it the limit is counted; at the most it is forgotten what half of the blocks said.
_COUNTED, _MOST = 8.0, 64.0
_TOP, _LEAST_TOP = 512, 10
#: Shapes of the tail that extrapolation allows, and the least excess in a tail.
_SHAPES, _LEAST_EXCESS = (0.0, 0.5), 1e-4
#: A single stall is worth an alarm if it is so many times what a level must be.
_STALL = 6.0
#: Share of the longest cycle right before it that a cycle must take longer: among others a long one is no surprise.
_UNREST = 0.5
#: While few blocks are known, a single cycle must take so many times what was expected to be worth an alarm.
_EARLY_STALL = 3.0
#: After a slow level was reported, so many values are not learned: they are of a fault, or of a busy machine. Single
#: cycles are then another alarm only if they are much larger: so many times, as logarithms of ratios.
_EPISODE, MUCH_LARGER = 1024, 2.0
#: The level is over when cycles are faster than expected by this part of it: what is expected has followed it.
_FALLEN = 0.5
#: An alarm may be so many times as large as one that waits for a core explained, to be checked for these first.
_AGAIN = 1.25
#: Medians whose mean is what was usual for `creep`. A change of level that was reported is what is usual from then on,
#: and no creeping growth: the median of cycles before and after it is left out.
_USUAL, _MIXED = 32, -1


@dataclass(frozen=True)
class Tail:
    """What is known of one statistic: greatest values of blocks, descending, and how many blocks there were.

    `position` and `greatest` are of the block that is not complete, and `early` is the greatest value while there are
    few blocks. `chunk_position` values are in a chunk that is not complete; `held` are the newest values, which are
    not learned yet. `since` counts values since the last alarm. That alarm's greatest value is `alarm`, it was learned
    as `counted`, and `early` was `early_before`; all three are null once it is known what the alarm meant. `waits` is
    the greatest alarm that waits for a core explained. The next `n_left_out` values are not learned,
    because a slow level was reported: `level`.
    """

    block: int
    hold: int = _HELD
    most_times: float = _MOST_TIMES
    n: float = 0.0
    top: tuple[float, ...] = ()
    position: int = 0
    greatest: float = -math.inf
    early: float = -math.inf
    chunk_position: int = 0
    held: tuple[float, ...] = ()
    since: int = 1 << 30
    alarm: float | None = None
    counted: float | None = None
    early_before: float | None = None
    waits: float = -math.inf
    n_left_out: int = 0
    level: float = 0.0

    def limit(self, rate: float) -> float:
        """The value that blocks exceed with probability `rate` times their length; `rate` is a value's."""
        if self.n < _LEARNT_BLOCKS:
            return math.inf if self.early == -math.inf else self.most_times * max(self.early, 0.0) + _MARGIN
        p = min(rate * self.block, 0.5)
        if p * self.n >= _COUNTED:
            place = p * self.n - 1
            return float(np.interp(place, np.arange(len(self.top)), self.top))
        # So far beyond what was seen, a tail as heavy as the greatest values suggest says nothing.
        return min(self._extrapolated(p), self.most_times * max(self.top[0], 0.0) + _MARGIN)

    def _extrapolated(self, p: float) -> float:
        m = int(min(len(self.top), max(10, self.n / 10)))
        threshold = self.top[m - 1]
        excess = np.maximum(np.array(self.top[: m - 1])[::-1] - threshold, 0)
        mean = max(float(excess.mean()), _LEAST_EXCESS)
        # Probability-weighted moments of a generalised Pareto distribution (Hosking and Wallis, 1987).
        weighted = float((excess * (1 - (np.arange(1, m) - 0.35) / (m - 1))).mean())
        raw = 2 - mean / max(mean - 2 * weighted, mean / 10)
        # Few values say little of the shape.
        shape = min(max(raw * (m / (m + 50)), _SHAPES[0]), _SHAPES[1])
        scale, times = mean * (1 - shape), m / self.n / p
        return float(threshold + scale * (math.log(times) if shape < 1e-3 else (times**shape - 1) / shape))

    def add(self, value: float, rate: float) -> Tail:
        """The tail after a block with this greatest value."""
        rising = [-one for one in self.top]
        insort(rising, -value)
        top, n = tuple(-one for one in rising[:_TOP]), self.n + 1
        if rate * self.block * n > _MOST:
            top, n = top[1::2], n / 2
        return replace(self, top=top, n=n)

    def alarmed(self, value: float, rate: float) -> Tail:
        """The tail after an alarm, which says something of healthy cycles, but little, so that alarms cannot go on.

        What is held may be the begin of what caused it, and is forgotten.
        """
        early = self.early
        if self.n >= _LEARNT_BLOCKS:
            counted = min(value, self.limit(rate) + self._excess())
        else:
            counted, early = max(early, 0.0), max(early, 0.0) * _EARLY_GROWTH + _MARGIN / 10
        after = replace(self, early=early, held=(), alarm=value, counted=counted, early_before=self.early)
        return after.add(counted, rate)

    def judged(self, *, is_usual: bool, by_waits: bool = False) -> Tail:
        """The tail once it is known what the last alarm meant: what is usual here is learned, a fault is not.

        Waits for a core (`by_waits`) are not learned either: when they come again, counters tell them from a fault.
        """
        if self.alarm is None or self.counted is None or self.early_before is None:
            return self
        tail = replace(self, alarm=None, counted=None, early_before=None)
        if by_waits:
            tail, is_usual = replace(tail, waits=max(self.waits, self.alarm)), False
        if self.n < _LEARNT_BLOCKS:
            tail = replace(tail, early=max(self.early, self.alarm) if is_usual else self.early_before)
        if self.counted not in self.top:
            return tail
        remaining = list(self.top)
        remaining.remove(self.counted)
        if is_usual:
            return replace(tail, top=tuple(sorted([*remaining, self.alarm], reverse=True)))
        return replace(tail, top=tuple(remaining), n=self.n - 1)

    def learned(self, rate: float) -> Tail:
        """The tail after a chunk: it learns what is held, but the newest values."""
        tail, values = replace(self, held=self.held[-self.hold :]), self.held[: -self.hold]
        while values:
            part, values = values[: tail.block - tail.position], values[tail.block - tail.position :]
            greatest = max(tail.greatest, *part)
            early = max(tail.early, *part) if tail.n < _LEARNT_BLOCKS else tail.early
            tail = replace(tail, position=tail.position + len(part), greatest=greatest, early=early)
            if tail.position == tail.block:
                tail = replace(tail.add(greatest, rate), position=0, greatest=-math.inf)
        return tail

    def had_waits(self, value: float) -> bool:
        """Whether waits for a core have explained an alarm that was hardly smaller."""
        return value <= _AGAIN * self.waits + _MARGIN

    def _excess(self) -> float:
        m = min(len(self.top), 20)
        return max(float(np.mean(self.top[:m])) - self.top[m - 1], _LEAST_EXCESS)


def _through(
    tail: Tail, values: Floats, rate: float, least: float, level_at: Callable[[int], float] | None = None
) -> tuple[list[int], list[float], Tail]:
    """Places of alarms among new values of a statistic, their limits, and the tail that has learned from them.

    Values below `least` are no alarm, whatever the limit. After an alarm at least a block of values is not learned.
    With `level_at` an alarm is a level, which this gives for its place: then more values are not learned, and a much
    larger level is another alarm, however soon.
    """
    places, limits, start = [], [], 0
    while start < len(values):
        part = values[start : start + min(_CHUNK - tail.chunk_position, tail.n_left_out or _CHUNK)]
        is_in_level = level_at is None and tail.n_left_out > 0
        limit = max(tail.limit(rate), least, MUCH_LARGER * tail.level * is_in_level)
        beyond = np.flatnonzero(part > limit)
        is_larger = part[beyond] > (MUCH_LARGER * tail.level if level_at and tail.level else math.inf)
        beyond = beyond[(beyond + tail.since >= tail.block) | is_larger]
        n_in_episode = min(max(tail.block - tail.since, 0), len(part))
        n_left_out = min(max(n_in_episode, tail.n_left_out), len(part))
        tail = replace(tail, n_left_out=max(tail.n_left_out - len(part), 0))
        if len(beyond):
            first = int(beyond[0])
            places.append(start + first)
            limits.append(limit)
            tail = replace(tail, held=()) if is_in_level else tail.alarmed(float(part[first:].max()), rate)
            tail = replace(tail, since=len(part) - first)
            if level_at:
                tail = replace(tail, n_left_out=_EPISODE - tail.since, level=level_at(start + first))
        else:
            if tail.alarm is not None and n_in_episode:
                tail = replace(tail, alarm=max(tail.alarm, float(part[:n_in_episode].max())))
            held = (*tail.held, *part[n_left_out:].tolist())
            tail = replace(tail, since=min(tail.since + len(part), 1 << 30), held=held)
        tail = replace(tail, chunk_position=(tail.chunk_position + len(part)) % _CHUNK)
        if not tail.chunk_position:
            tail = tail.learned(rate)
        start += len(part)
    return places, limits, tail


@dataclass(frozen=True)
class Alarm:
    """A cycle of a block, from 0, at which a statistic of a kind exceeded its limit; both as ratios to expected.

    `had_waits` says that waits for a core have explained one like it.
    """

    kind: str
    cycle: int
    ratio: float
    limit: float
    had_waits: bool = False


@dataclass(frozen=True)
class StreamTest:
    """State of the sequential test of one stream: a tail for each kind, and what unfinished windows need."""

    stall: Tail = Tail(_BLOCK["stall"], most_times=_MOST_TIMES_STALL)
    slow: Tail = Tail(_BLOCK["slow"])
    creep: Tail = Tail(_BLOCK["creep"], _HELD // 4)
    #: The last errors; times since the last full median of `creep`; that statistic's usual, of how many medians
    #: (`_MIXED`: the next one is left out).
    errors: tuple[float, ...] = ()
    times: tuple[float, ...] = ()
    usual: float = 0.0
    n_usual: int = 0

    def judged(self, kind: str, *, is_usual: bool, by_waits: bool = False) -> StreamTest:
        """The test once it is known whether the last alarm of a kind was of what is usual here, or of a fault."""
        parts: dict[str, Any] = {kind: getattr(self, kind).judged(is_usual=is_usual, by_waits=by_waits)}
        return replace(self, **parts)

    def to_dict(self) -> dict[str, Any]:
        """The state as values that JSON has: at most some 40 kB."""
        return asdict(self)

    @staticmethod
    def from_dict(state: Mapping[str, Any]) -> StreamTest:
        """The state that `to_dict` made. Raises an error of `BAD_STATE` if it is another."""
        new = StreamTest()
        tails: dict[str, Any] = {kind: _tail_from(state[kind], getattr(new, kind)) for kind in KINDS}
        lists: dict[str, Any] = {name: tuple(map(_log, state[name])) for name in ("errors", "times")}
        if len(lists["errors"]) >= SLOW_CYCLES or len(lists["times"]) >= CREEP_CYCLES:
            raise ValueError("a window is longer than it is")
        n_usual = _whole(state["n_usual"] - _MIXED, _USUAL + 1 - _MIXED) + _MIXED
        return replace(StreamTest(**tails), **lists, usual=_log(state["usual"]), n_usual=n_usual)


def _tail_from(state: Mapping[str, Any], new: Tail) -> Tail:
    """The tail that `asdict` made, of the kind of a new one. Raises an error of `BAD_STATE`."""
    lists: dict[str, Any] = {name: tuple(map(_log, state[name])) for name in ("top", "held")}
    logs: dict[str, Any] = {
        name: state[name] if state[name] in (None, -math.inf) else _log(state[name])
        for name in ("greatest", "early", "alarm", "counted", "early_before")
    }
    logs["waits"] = state.get("waits", -math.inf)
    if logs["waits"] != -math.inf:
        logs["waits"] = _log(logs["waits"])
    bounds = {"position": new.block, "chunk_position": _CHUNK, "since": (1 << 30) + 1, "n_left_out": _EPISODE + 1}
    places: dict[str, Any] = {name: _whole(state.get(name, 0), bound) for name, bound in bounds.items()}
    tail = replace(new, n=float(state["n"]), level=_log(state.get("level", 0.0)), **lists, **logs, **places)
    n_known = len(tail.top)
    is_usable = n_known >= min(tail.n, _LEAST_TOP) and n_known <= _TOP and None not in (tail.greatest, tail.early)
    if not (0 <= tail.n < math.inf and is_usable and list(tail.top) == sorted(tail.top, reverse=True)):
        raise ValueError("no such tail is learnt")
    return tail


def _log(value: Any) -> float:
    """A logarithm of a ratio or of a time in ns."""
    if not abs(number := float(value)) <= 2 * MOST_LOG:
        raise ValueError("no ratio is so large")
    return number


def _whole(value: Any, bound: int) -> int:
    if not 0 <= (number := int(value)) < bound:
        raise ValueError("there is no such place")
    return number


def limits(test: StreamTest, rate: float) -> dict[str, float]:
    """The ratio of measured to expected time at which each kind of alarm is raised; infinite while nothing is known.

    `rate` is as for `find_alarms`.
    """
    return {kind: math.exp(getattr(test, kind).limit(_share(kind, rate))) for kind in KINDS}


def _share(kind: str, rate: float) -> float:
    """Chosen false alarms of a kind in one of its values."""
    return rate / len(KINDS) * (CREEP_CYCLES if kind == "creep" else 1)


def _spread(test: StreamTest) -> float:
    """What single cycles reach in half of the blocks of `stall`, while little is known of `slow`; later 0.

    The load of a machine changes by the minute. Few blocks have not seen how long it stays high, but their single
    cycles have seen how high it is.
    """
    if test.slow.n >= _LEARNT_BLOCKS:
        return 0.0
    # Of a long one among others that are as long, this share is left.
    return (float(np.median(test.stall.top)) if test.stall.top else max(test.stall.early, 0.0)) / (1 - _UNREST)


def _unrest(before: tuple[float, ...], error: Floats) -> Floats:
    """What each cycle must take longer for the longest error right before it."""
    longest = last_reached((), np.array([*before, *error]), SLOW_CYCLES - 1, 1)
    previous: Floats = np.concatenate([[np.nan], longest])[len(before) : -1]
    return np.maximum(np.nan_to_num(previous), 0.0) * _UNREST


def find_alarms(
    test: StreamTest, error: Floats, log_time: Floats, rate: float, least: float = 0.0
) -> tuple[list[Alarm], StreamTest]:
    """Alarms among new cycles in order of time, and the test that has learned from them.

    `error` is the logarithm of measured by expected time, `log_time` that of the time without what the work explains.
    `rate` is the chosen number of false alarms of all kinds in a cycle. Errors that are not a number are left out.
    `least` is the smallest slowdown that is worth an alarm, as a ratio above 1; of a single stall it is six times
    that.
    """
    alarms: list[Alarm] = []
    start = 0
    while start < len(error):
        # While limits follow what is learned of single cycles, they do so at the same cycles however these come.
        room = len(error) if test.slow.n >= _LEARNT_BLOCKS else _CHUNK - test.stall.chunk_position
        part = slice(start, start + room)
        raised, test = _alarms_of_part(test, error[part], log_time[part], rate, least)
        alarms += [replace(alarm, cycle=start + alarm.cycle) for alarm in raised]
        start += room
    return alarms, test


def _stalls(
    test: StreamTest, error: Floats, levels: dict[int, float], rate: float, least: float
) -> tuple[list[tuple[str, int, float, float]], Tail]:
    """Rows of single cycles that take too long, and their tail; `levels` are those reported, by cycle.

    Single cycles of a level that was reported say nothing of what is usual, and are not learned.
    """
    rows, tail, start = [], test.stall, 0
    unrest = _unrest(test.errors, error)
    fallen = last_reached([-one for one in test.errors], -error, SLOW_CYCLES, SLOW_MOST)
    while start < len(error):
        end = next((i + 1 for i in levels if i >= start), len(error))
        is_over = fallen[start:end] >= (_FALLEN * tail.level if tail.n_left_out and tail.level else math.inf)
        if is_over.any():
            end = start + int(np.argmax(is_over)) + 1
        early = math.log(_EARLY_STALL) if tail.n < _LEARNT_BLOCKS else 0.0
        values, floor = (error - unrest)[start:end], max(math.log1p(_STALL * least), early)
        at, exceeded, tail = _through(tail, values, _share("stall", rate), floor)
        places = [start + i for i in at]
        rows += [("stall", i, error[i], limit + unrest[i]) for i, limit in zip(places, exceeded, strict=True)]
        if end - 1 in levels:
            tail = replace(tail, held=(), since=0, n_left_out=_EPISODE, level=levels[end - 1])
        elif is_over.any():
            tail = replace(tail, n_left_out=0, level=0.0)
        start = end
    return rows, tail


def _alarms_of_part(
    test: StreamTest, error: Floats, log_time: Floats, rate: float, least: float
) -> tuple[list[Alarm], StreamTest]:
    is_known = ~np.isnan(error)
    place_of = np.flatnonzero(is_known)
    error, log_time = error[is_known], log_time[is_known]
    if not len(error):
        return [], test
    floor = math.log1p(least)
    n = np.arange(len(error))
    recent = np.concatenate([test.errors, error])
    reached = last_reached(test.errors, error, SLOW_CYCLES, SLOW_MOST)
    full = ~np.isnan(reached)
    values, places = reached[full], n[full]

    def level_at(i: int) -> float:
        """What the slow ones of the last cycles take: the statistic is what the fastest of them does."""
        last = recent[: len(test.errors) + places[i] + 1][-SLOW_CYCLES:]
        return float(np.median(last[last >= values[i]]))

    least_slow = max(floor, _spread(test))
    at, exceeded, slow = _through(test.slow, values, _share("slow", rate), least_slow, level_at)
    rows = [("slow", int(places[i]), values[i], limit) for i, limit in zip(at, exceeded, strict=True)]
    stalls, stall = _stalls(test, error, {int(places[i]): level_at(i) for i in at}, rate, least)
    rows += stalls
    times = np.concatenate([test.times, log_time])
    n_medians = len(times) // CREEP_CYCLES
    levels = np.median(times[: n_medians * CREEP_CYCLES].reshape(-1, CREEP_CYCLES), axis=1)
    ends = (np.arange(n_medians) + 1) * CREEP_CYCLES - len(test.times) - 1
    changes = {int(np.searchsorted(ends, row[1])) for row in rows if row[0] == "slow"}
    creep, usual, n_usual = test.creep, test.usual, test.n_usual
    for i, level in enumerate(levels):
        if i in changes:
            n_usual = _MIXED
        elif n_usual >= _USUAL // 4:
            value = level - usual
            at, exceeded, creep = _through(creep, np.array([value]), _share("creep", rate), floor)
            if at:
                rows.append(("creep", int(ends[i]), value, exceeded[0]))
                n_usual = 0
        n_usual = min(n_usual + 1, _USUAL)
        usual += (level - usual) / max(n_usual, 1)
    if n_medians in changes:
        n_usual = _MIXED
    after = StreamTest(
        stall,
        slow,
        creep,
        tuple(recent[-SLOW_CYCLES + 1 :].tolist()),
        tuple(times[n_medians * CREEP_CYCLES :].tolist()),
        float(usual),
        n_usual,
    )
    rows.sort(key=lambda row: row[1])
    alarms = [
        Alarm(k, int(place_of[i]), math.exp(value), math.exp(limit), had_waits=getattr(test, k).had_waits(value))
        for k, i, value, limit in rows
    ]
    return alarms, after
