"""Watches streams of cycles: state that survives a kill, alarms, and their causes.

Where cycles come from, and who can say their cause, is the matter of a source: a recorded job, or a server's metrics.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepscope.core.units import counted, duration
from stepscope.watching.alarms import MUCH_LARGER
from stepscope.watching.measures import StreamNow, now_of
from stepscope.watching.streams import Cycles, Stream, follow, load_state, save_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stepscope.watching.alarms import Alarm

_MINUTE_S = 60.0
#: Counters of the slow steps are written within this time.
_COUNTERS_S = 1.5
#: Alarms of a kind that follow within this time, of whatever stream, belong to the one that was reported; unless they
#: are much larger.
_SAME_S = 30.0


@dataclass(frozen=True)
class Wording:
    """How messages name a cycle, a stream and each kind of alarm; what a time is of, and that there was none."""

    cycle: str
    stream: str
    streams: str
    stall: str
    slow: str
    creep: str
    per: str
    nothing: str


class Source(Protocol):
    """Where cycles come from, and what knows their causes."""

    @property
    def every_s(self) -> float:
        """How long to wait from one reading to the next."""

    @property
    def wording(self) -> Wording:
        """How messages name what it gives."""

    def is_over(self) -> bool:
        """Whether nothing more will come."""

    def read(self, streams: Mapping[str, Stream]) -> list[Cycles]:
        """What is new of each stream since these were read."""

    def status(self) -> str:
        """What to say of it each minute, next to its times; may be empty."""

    def waits_for_a_core(self, alarm: dict[str, Any]) -> bool:
        """Whether waits for a core explain the slow cycles of an alarm. Called in another thread."""

    def cause(self, alarm: dict[str, Any]) -> dict[str, Any]:
        """Fields of the event that names an alarm's cause, with its `text`. Called in another thread.

        `is_usual` says whether what was found belongs to the machine (true) or is a fault (false); else it is null.
        """


class Watcher:
    """Watches until the source is over. `say` receives each event: a dictionary with `event` and `text`."""

    def __init__(
        self,
        source: Source,
        state: Path,
        rate_per_s: float,
        say: Callable[[dict[str, Any]], None],
        least: float = 0.0,
        show: Callable[[tuple[StreamNow, ...]], None] | None = None,
    ) -> None:
        """`rate_per_s` is the chosen number of false alarms in a second, over all streams. Raises StepscopeError.

        `least` is the smallest slowdown that is worth an alarm: 0.05 is 5 %. `show` receives the state of all streams
        after each reading, if somebody wants it.
        """
        self._source, self._path, self._rate, self._say, self._least = source, state, rate_per_s, say, least
        self._show = show
        self._now: dict[str, StreamNow] = {}
        self._streams = load_state(state)
        self._minute: list[float] = []
        self._interval = np.full(3, np.nan)
        self._n_alarms = 0
        #: When an alarm of a kind was last reported, and its ratio.
        self._reported: dict[str, tuple[float, float]] = {}
        self._is_saved = True
        self._diagnosis: threading.Thread | None = None
        #: Kinds of the alarms whose cause is looked for now.
        self._diagnosed: set[str] = set()
        self._judgements: queue.SimpleQueue[tuple[set[str], bool, bool]] = queue.SimpleQueue()

    def run(self) -> None:
        """Watch until the source is over. Raises KeyboardInterrupt."""
        minute = time.monotonic()
        try:
            while not self._source.is_over():
                self.tick()
                if time.monotonic() - minute >= _MINUTE_S:
                    minute += _MINUTE_S
                    self._report_minute()
                    self.save()
                time.sleep(self._source.every_s)
        finally:
            self.save()
        if self._diagnosis is not None:
            self._diagnosis.join()

    def tick(self) -> None:
        """Read new cycles of all streams, and report alarms."""
        self._judge()
        rows = self._source.read(self._streams)
        worst: dict[str, tuple[dict[str, Any], bool]] = {}
        for new in rows:
            before = self._streams.get(new.stream, Stream())
            stream, alarms, interval = follow(before, new, self._rate / len(rows), self._least)
            self._streams[new.stream] = stream
            self._minute += [time_ns for time_ns in new.times_ns if time_ns > 0]
            self._interval = interval[-1] if len(interval) else self._interval
            if self._show is not None:
                now = now_of(stream, new, interval, self._rate / len(rows))
                self._now |= {} if now is None else {new.stream: now}
            for alarm in alarms:
                event = self._alarm_event(alarm, new, stream.n_cycles, float(interval[alarm.cycle][0]))
                one = event, alarm.had_waits
                worst[alarm.kind] = max(worst.get(alarm.kind, one), one, key=lambda each: float(each[0]["ratio"]))
        if self._show is not None:
            self._show(tuple(self._now.values()))
        for event, had_waits in worst.values():
            if self._is_new(event):
                is_reported = not had_waits or self._is_diagnosing()
                if is_reported:
                    self._report(event)
                self._diagnose(event, is_reported=is_reported)

    def _is_new(self, event: dict[str, Any]) -> bool:
        """Whether an alarm does not belong to one that was reported."""
        reported_s, ratio = self._reported.get(event["kind"], (-math.inf, 1.0))
        is_larger = math.log(event["ratio"]) > MUCH_LARGER * math.log(ratio)
        return is_larger or time.monotonic() - reported_s > _SAME_S

    def _report(self, event: dict[str, Any]) -> None:
        self._reported[event["kind"]] = time.monotonic(), event["ratio"]
        self._n_alarms += 1
        self._say(event)

    def save(self) -> None:
        """Write the state. A failure is reported once, and again after it has worked in between."""
        try:
            save_state(self._path, self._streams)
            self._is_saved = True
        except OSError as error:
            if self._is_saved:
                text = f"cannot write {self._path}: {error.strerror}; watching goes on"
                self._say({"event": "problem", "text": text})
            self._is_saved = False

    def _report_minute(self) -> None:
        times, self._minute = self._minute, []
        word = self._source.wording
        facts: dict[str, Any] = {"steps": len(times), "alarms": self._n_alarms, "processes": len(self._streams)}
        if times:
            facts["median_ns"] = round(float(np.median(times)))
            facts |= {
                name: None if math.isnan(value) else round(float(value))
                for name, value in zip(("expected_ns", "low_ns", "high_ns"), self._interval, strict=True)
            }
            n = facts["processes"]
            text = f"{counted(len(times), word.cycle)} of {counted(n, word.stream, word.streams)}"
            text += f", median {duration(facts['median_ns'])}{word.per}"
            text += (
                f", expected {duration(facts['expected_ns'])}"
                f" ({duration(facts['low_ns'])} to {duration(facts['high_ns'])})"
                if facts["expected_ns"]
                else ", expected time not known yet"
            )
            text += f", alarms so far: {self._n_alarms}"
        else:
            text = word.nothing
        status = self._source.status()
        text += f"; {status}" if status else ""
        self._say({"event": "minute", "text": text, **facts})

    def _is_diagnosing(self) -> bool:
        return self._diagnosis is not None and self._diagnosis.is_alive()

    def _diagnose(self, alarm: dict[str, Any], *, is_reported: bool) -> None:
        """Look for the cause without holding up the watch. Alarms meanwhile share the one that is looked for.

        One that was not reported is, unless its cycles waited for a core.
        """
        if self._is_diagnosing():
            self._diagnosed.add(alarm["kind"])
            return
        self._diagnosed = diagnosed = {alarm["kind"]}
        about = {name: alarm[name] for name in ("kind", "stream", "step")}

        def look() -> None:
            if not is_reported:
                time.sleep(_COUNTERS_S)
                if self._source.waits_for_a_core(alarm):
                    self._judgements.put((diagnosed, True, True))
                    at = f"{alarm['stream']}, {self._source.wording.cycle} {alarm['step']}"
                    text = f"{at}: {alarm['ratio']:.2f} times the time expected, as it waits for a core again"
                    text += "; no alarm, because that came before"
                    self._say({"event": "waits", "text": text, "ratio": alarm["ratio"]} | about)
                    return
                self._report(alarm)
            fields = self._source.cause(alarm)
            if fields.get("is_usual") is not None:
                by_waits = fields["causes"][0]["category"] == "cpu_contention" if fields.get("causes") else False
                self._judgements.put((diagnosed, fields["is_usual"], by_waits))
            self._say(fields | {"event": "cause"} | about)

        self._diagnosis = threading.Thread(target=look, daemon=True)
        self._diagnosis.start()

    def _judge(self) -> None:
        """Learn from the causes that were found: they hold for all streams with an alarm of that kind."""
        while not self._judgements.empty():
            kinds, is_usual, by_waits = self._judgements.get()
            for kind in kinds:
                for name, stream in self._streams.items():
                    test = stream.test.judged(kind, is_usual=is_usual, by_waits=by_waits)
                    self._streams[name] = replace(stream, test=test)

    def _alarm_event(self, alarm: Alarm, new: Cycles, n_cycles: int, expected_ns: float) -> dict[str, Any]:
        # Some cycles have no time, and are no cycles of the test.
        at = [i for i, time_ns in enumerate(new.times_ns) if time_ns > 0][alarm.cycle]
        word, time_ns = self._source.wording, new.times_ns[at]
        step = n_cycles - sum(new.counts[at:])
        what = {
            "stall": word.stall.format(time=duration(time_ns)),
            "slow": word.slow,
            "creep": word.creep,
        }[alarm.kind]
        text = f"ALARM {alarm.kind}, {new.stream}, {word.cycle} {step}: {what} {alarm.ratio:.2f} times"
        text += (
            f" the {duration(expected_ns)} expected (limit {alarm.limit:.2f})"
            if alarm.kind != "creep"
            else " what was usual"
        )
        return {
            "event": "alarm", "text": text, "kind": alarm.kind, "stream": new.stream, "step": step,
            "ratio": alarm.ratio, "limit": alarm.limit, "step_ns": time_ns, "expected_ns": round(expected_ns),
        }  # fmt: skip
