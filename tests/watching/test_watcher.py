"""A watch reads each step once, goes on after a restart, and reports an alarm of many ranks once."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record.step_times import Steps
from stepscope.watching import watcher
from stepscope.watching.watcher import Stream, Watcher, follow_steps, load_state, save_state


def _steps(pid, rank, n, times):
    return Steps(pid, rank, n, tuple(map(int, times)), (1,) * len(times))


class Job:
    """Two ranks whose steps come in blocks, of which those from 2000 on are slow."""

    def __init__(self, folder):
        self.folder, self.n = folder, 0
        self.times = np.exp(np.random.default_rng(0).normal(16, 0.01, (2, 2100)))
        self.times[:, 2000:] *= 1.5

    def steps(self, since):
        self.n = min(self.n + 100, 2100)
        rows = [_steps(pid, pid - 7, self.n, self.times[pid - 7, since.get(pid, 0) : self.n]) for pid in (7, 8)]
        return rows if self.n < 2100 or since.get(7, 0) < 2100 else []

    def is_recorded(self):
        return True


def test_a_slow_job_is_reported_once_for_all_ranks_and_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "dump", lambda _: (_ for _ in ()).throw(StepscopeError("no ring", "")))
    events, job = [], Job(tmp_path)
    for _ in range(3):  # a watch that is killed, and begins again from its file
        watch = Watcher(job, tmp_path / "state", 1e-6, events.append)
        for _ in range(7):
            watch.tick()
        watch._save()
        if watch._diagnosis:
            watch._diagnosis.join()
    alarms = [event for event in events if event["event"] == "alarm"]
    assert {event["kind"] for event in alarms} == {"stall", "slow"}
    assert len(alarms) == 2
    assert all(2000 <= event["step"] < 2020 for event in alarms)
    assert {event["text"] for event in events if event["event"] == "cause"} == {"cause unknown: no ring"}
    assert {stream.n for stream in load_state(tmp_path / "state").values()} == {2100}


def test_state_survives_a_file_and_a_damaged_one_is_refused(tmp_path):
    stream, _, interval = follow_steps(Stream(), _steps(7, -1, 100, (0, *range(1000, 1099))), 1e-6)
    assert interval.shape == (99, 3)
    save_state(tmp_path / "state", {"process 1": stream})
    assert load_state(tmp_path / "state") == {"process 1": stream}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    for text in ("", "[]", "{}", json.dumps({watcher.SCHEMA: {"a": {"model": 1}}})):
        (tmp_path / "state").write_text(text)
        with pytest.raises(StepscopeError, match="no state of a watch"):
            load_state(tmp_path / "state")


def test_the_minute_says_what_was_expected(tmp_path):
    events = []
    watch = Watcher(Job(tmp_path), tmp_path / "state", 1e-6, events.append)
    watch.tick()
    watch.tick()
    watch._report_minute()
    watch._report_minute()
    assert events[0]["steps"] == 400
    assert events[0]["low_ns"] < events[0]["expected_ns"] < events[0]["high_ns"]
    assert events[1]["text"] == "no step ended in the last minute"
