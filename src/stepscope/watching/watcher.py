"""Watches the steps of a recorded job: state that survives a kill, alarms, and their causes.

An alarm is reported at once. Then the recording, if it keeps the last seconds, dumps them with a profile of the next
steps of all ranks, and `compare` says what caused the difference from the profile of the job's first steps.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.core.units import duration
from stepscope.record import dump
from stepscope.record.system import meta
from stepscope.watching.alarms import Alarm, StreamTest, find_alarms
from stepscope.watching.expected_time import ExpectedTime, observe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.record.step_times import RunningJob, Steps

SCHEMA = "stepscope.watch/1"
_TICK_S, _MINUTE_S, _GONE_S = 1.0, 60.0, 5.0
#: Alarms of a kind that follow within this time, of whatever process, belong to the one that was reported.
_SAME_S = 30.0
_DUMP_S, _COMPARE_S = 120.0, 300.0


@dataclass(frozen=True)
class Stream:
    """What is known of the steps of one process: `n` marks of the process `pid` are read, which are of `n_steps`."""

    model: ExpectedTime = field(default_factory=ExpectedTime)
    test: StreamTest = field(default_factory=StreamTest)
    pid: int = 0
    n: int = 0
    n_steps: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The state as values that JSON has."""
        numbers = {"pid": self.pid, "n": self.n, "n_steps": self.n_steps}
        return {"model": json.loads(self.model.to_json()), "test": self.test.to_dict(), **numbers}

    @staticmethod
    def from_dict(state: dict[str, Any]) -> Stream:
        """The state that `to_dict` made. Raises `KeyError`, `TypeError` or `ValueError` if it is another."""
        model = ExpectedTime.from_json(json.dumps(state["model"]))
        return Stream(model, StreamTest.from_dict(state["test"]), *(int(state[k]) for k in ("pid", "n", "n_steps")))


def load_state(path: Path) -> dict[str, Stream]:
    """What an earlier watch learned; empty if there was none. Raises StepscopeError (the file is damaged)."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): Stream.from_dict(one) for name, one in state[SCHEMA].items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StepscopeError(f"cannot read {path}: {error.strerror}", "name another file with --state") from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        hint = "remove it, and the watch learns anew, or name another file with --state"
        raise StepscopeError(f"{path} is no state of a watch", hint) from None


def save_state(path: Path, streams: dict[str, Stream]) -> None:
    """Replace the file as a whole: a watch that is killed leaves the old state or the new one. Raises OSError."""
    part = path.with_name(f".{path.name}{meta.PART}")
    state = {SCHEMA: {name: one.to_dict() for name, one in streams.items()}}
    try:
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def follow_steps(stream: Stream, steps: Steps, rate_per_s: float) -> tuple[Stream, list[Alarm], np.ndarray[Any, Any]]:
    """The stream with a process' new steps, their alarms, and expected time with low and high end, a row a step."""
    if steps.pid != stream.pid:
        stream = replace(stream, model=stream.model.new_stream(), pid=steps.pid, n_steps=0)
    n_steps = stream.n_steps + sum(steps.counts)
    times = np.array([time_ns for time_ns in steps.times_ns if time_ns > 0], dtype=float)
    if not len(times):
        return replace(stream, n=steps.n, n_steps=n_steps), [], np.empty((0, 3))
    expectation, model = observe(stream.model, times)
    usual_s = math.exp(float(np.median(model.recent))) / 1e9
    alarms, test = find_alarms(stream.test, expectation.error, expectation.log_time, rate_per_s * usual_s)
    interval = np.stack([expectation.expected, expectation.low, expectation.high], axis=1)
    return Stream(model, test, steps.pid, steps.n, n_steps), alarms, interval


class Watcher:
    """Watches a job until its recording ends. `say` receives each event: a dictionary with `event` and `text`."""

    def __init__(self, job: RunningJob, state: Path, rate_per_s: float, say: Callable[[dict[str, Any]], None]) -> None:
        """`rate_per_s` is the chosen number of false alarms in a second, over all processes. Raises StepscopeError."""
        self._job, self._path, self._rate, self._say = job, state, rate_per_s, say
        self._streams = load_state(state)
        self._minute: list[float] = []
        self._interval = np.full(3, np.nan)
        self._n_alarms = 0
        self._reported: dict[str, float] = {}
        self._is_saved = True
        self._diagnosis: threading.Thread | None = None

    def run(self) -> None:
        """Watch until the job has ended. Raises KeyboardInterrupt."""
        minute = last = time.monotonic()
        try:
            while self._job.is_recorded() and time.monotonic() - last < _GONE_S + _MINUTE_S * (not self._n_read()):
                last = time.monotonic() if self.tick() else last
                if time.monotonic() - minute >= _MINUTE_S:
                    minute += _MINUTE_S
                    self._report_minute()
                    self._save()
                time.sleep(_TICK_S)
        finally:
            self._save()
        if self._diagnosis is not None:
            self._diagnosis.join()

    def tick(self) -> bool:
        """Read new steps, and report alarms. Whether any process has steps."""
        known = {stream.pid: stream.n for stream in self._streams.values()}
        rows = self._job.steps(known)
        worst: dict[str, dict[str, Any]] = {}
        for i, steps in enumerate(rows):
            name = f"rank {steps.rank}" if steps.rank >= 0 else f"process {i + 1}"
            before = self._streams.get(name, Stream())
            stream, alarms, interval = follow_steps(before, steps, self._rate / len(rows))
            self._streams[name] = stream
            self._minute += [time_ns for time_ns in steps.times_ns if time_ns > 0]
            self._interval = interval[-1] if len(interval) else self._interval
            for alarm in alarms:
                event = _alarm_event(alarm, name, steps, stream.n_steps, float(interval[alarm.cycle][0]))
                worst[alarm.kind] = max(worst.get(alarm.kind, event), event, key=lambda one: float(one["ratio"]))
        for kind, event in worst.items():
            if time.monotonic() - self._reported.get(kind, -math.inf) > _SAME_S:
                self._reported[kind] = time.monotonic()
                self._n_alarms += 1
                self._say(event)
                self._diagnose(event)
        return bool(rows)

    def _n_read(self) -> int:
        return sum(stream.n for stream in self._streams.values())

    def _report_minute(self) -> None:
        times, self._minute = self._minute, []
        facts: dict[str, Any] = {"steps": len(times), "alarms": self._n_alarms, "processes": len(self._streams)}
        if times:
            facts["median_ns"] = round(float(np.median(times)))
            facts |= {
                name: None if math.isnan(value) else round(float(value))
                for name, value in zip(("expected_ns", "low_ns", "high_ns"), self._interval, strict=True)
            }
            n = facts["processes"]
            text = f"{len(times):,} steps of {n} process{'es' * (n != 1)}"
            text += f", median {duration(facts['median_ns'])}, expected {duration(facts['expected_ns'])}"
            text += f" ({duration(facts['low_ns'])} to {duration(facts['high_ns'])}), alarms so far: {self._n_alarms}"
        else:
            text = "no step ended in the last minute"
        self._say({"event": "minute", "text": text, **facts})

    def _save(self) -> None:
        try:
            save_state(self._path, self._streams)
            self._is_saved = True
        except OSError as error:
            if self._is_saved:
                self._say(
                    {"event": "problem", "text": f"cannot write {self._path}: {error.strerror}; watching goes on"}
                )
            self._is_saved = False

    def _diagnose(self, alarm: dict[str, Any]) -> None:
        """Look for the cause without holding up the watch. Alarms meanwhile share the one that is looked for."""
        if self._diagnosis is not None and self._diagnosis.is_alive():
            return
        about = {name: alarm[name] for name in ("kind", "stream", "step")}
        self._diagnosis = threading.Thread(target=lambda: self._say(self._cause() | about), daemon=True)
        self._diagnosis.start()

    def _cause(self) -> dict[str, Any]:
        try:
            folder = dump(self._job.folder)
        except StepscopeError as error:
            return {"event": "cause", "text": f"cause unknown: {error.message}", "causes": []}
        deadline = time.monotonic() + _DUMP_S
        while _is_open(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        return {**_compared(self._job.folder, folder), "event": "cause", "dump": str(folder)}


def _alarm_event(alarm: Alarm, name: str, steps: Steps, n_steps: int, expected_ns: float) -> dict[str, Any]:
    # Steps in which a profiler was at work have no time.
    place = [i for i, time_ns in enumerate(steps.times_ns) if time_ns > 0][alarm.cycle]
    step, time_ns = n_steps - sum(steps.counts[place:]), steps.times_ns[place]
    what = {
        "stall": f"one step took {duration(time_ns)}",
        "slow": "the last 20 steps took longer than expected",
        "creep": "steps have become slower little by little",
    }[alarm.kind]
    text = f"ALARM {alarm.kind}, {name}, step {step}: {what}, {alarm.ratio:.2f} times"
    text += (
        f" the {duration(expected_ns)} expected (limit {alarm.limit:.2f})"
        if alarm.kind != "creep"
        else " what was usual"
    )
    return {
        "event": "alarm", "text": text, "kind": alarm.kind, "stream": name, "step": step, "ratio": alarm.ratio,
        "limit": alarm.limit, "step_ns": time_ns, "expected_ns": round(expected_ns),
    }  # fmt: skip


def _is_open(folder: Path) -> bool:
    try:
        return json.loads((folder / meta.NAME).read_text(encoding="utf-8"))["end_unix_ns"] is None
    except (OSError, ValueError, KeyError):  # it is being replaced
        return True


def _compared(base: Path, other: Path) -> dict[str, Any]:
    """Verdict and causes of a dump against the recording, from a process of its own that gives way to the job."""
    command = ["nice", sys.executable, "-m", "stepscope", "compare", str(base), str(other), "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMPARE_S, check=False)  # noqa: S603  ourselves
        result = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {"text": f"cause unknown: the comparison failed; see stepscope report {other}", "causes": []}
    fields = ("category", "certainty", "statement", "rank", "explained_ns", "gain", "evidence", "advice")
    causes = [{name: one[name] for name in fields} for one in result["causes"]]
    if causes:
        text = f"cause, {causes[0]['certainty']}: {causes[0]['category']}: {causes[0]['statement']}"
    else:
        is_over = result["verdict"] == "no_difference"
        text = "cause unknown: the next steps took their usual time" if is_over else "cause unknown"
    return {"text": f"{text}; see stepscope compare {base} {other}", "causes": causes, "verdict": result["verdict"]}
