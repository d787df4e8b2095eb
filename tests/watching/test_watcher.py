"""A watch reads each cycle once, goes on after a restart, and reports an alarm of many streams once."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from stepscope.watching.streams import Cycles, load_state
from stepscope.watching.watcher import Watcher, Wording


class Source:
    """Two streams whose cycles come in blocks, of which those from 2000 on are slow."""

    every_s = 0.0
    wording = Wording("step", "process", "processes", "took {time}", "slow", "creep", " each", "nothing")

    def __init__(self):
        self.n = 0
        self.times = np.exp(np.random.default_rng(0).normal(16, 0.01, (2, 2100)))
        self.times[:, 2000:] *= 1.5

    def is_over(self):
        return self.n == 2100

    def read(self, streams):
        self.n = min(self.n + 100, 2100)
        since = {stream.epoch: stream.n for stream in streams.values()}
        new = [self.times[i, since.get(7 + i, 0) : self.n].astype(int).tolist() for i in (0, 1)]
        return [Cycles(f"rank {i}", 7 + i, self.n, tuple(row), (1,) * len(row)) for i, row in enumerate(new)]

    def status(self):
        return "all is well"

    def waits_for_a_core(self, _alarm):
        return False

    def cause(self, alarm):
        return {"text": f"cause of {alarm['kind']} unknown", "causes": []}


def test_a_slow_job_is_reported_once_for_all_ranks_and_after_a_restart(tmp_path):
    events, source = [], Source()
    for _ in range(3):  # a watch that is killed, and begins again from its file
        watch = Watcher(source, tmp_path / "state", 1e-6, events.append)
        for _ in range(7):
            watch.tick()
        watch.save()
    alarms = [event for event in events if event["event"] == "alarm"]
    assert {event["kind"] for event in alarms} == {"stall", "slow"}
    assert len(alarms) == 2
    assert all(2000 <= event["step"] < 2020 for event in alarms)
    assert {stream.n for stream in load_state(tmp_path / "state").values()} == {2100}


def test_a_run_ends_with_its_source_and_names_the_cause_of_the_alarm(tmp_path):
    events = []
    Watcher(Source(), tmp_path / "state", 1e-6, events.append).run()
    causes = [event for event in events if event["event"] == "cause"]
    assert causes[0].items() >= {"kind": "stall", "text": "cause of stall unknown", "causes": []}.items()


def test_the_minute_says_what_was_expected(tmp_path):
    events = []
    watch = Watcher(Source(), tmp_path / "state", 1e-6, events.append)
    watch.tick()
    watch.tick()
    watch._report_minute()
    watch._report_minute()
    assert events[0]["steps"] == 400
    assert events[0]["low_ns"] < events[0]["expected_ns"] < events[0]["high_ns"]
    assert events[1]["text"] == "nothing; all is well"


def test_a_state_that_cannot_be_written_is_reported_once(tmp_path):
    events = []
    watch = Watcher(Source(), tmp_path / "no" / "state", 1e-6, events.append)
    watch.save()
    watch.save()
    assert [event["event"] for event in events] == ["problem"]


def test_an_alarm_soon_after_another_is_reported_if_it_is_much_larger(tmp_path):
    events, source = [], Source()
    source.times[:, 2000:] /= 1.5
    source.times[:, 1000:1260] *= 1.1
    source.times[:, 1400:1700] *= 1.15
    source.times[:, 1800:] *= 2.0
    watch = Watcher(source, tmp_path / "state", 1e-6, events.append, least=0.05)
    for _ in range(21):
        watch.tick()
    slow = [event for event in events if event["event"] == "alarm" and event["kind"] == "slow"]
    assert [event["step"] // 100 for event in slow] == [10, 18]


def test_all_alarms_that_share_a_cause_are_judged_by_it(tmp_path):
    source, said = Source(), threading.Event()

    def cause(_alarm):
        said.wait(5)
        return {"text": "a fault", "causes": [], "is_usual": False}

    source.cause = cause
    watch = Watcher(source, tmp_path / "state", 1e-6, lambda _: None)
    for _ in range(21):
        watch.tick()
    said.set()
    watch._diagnosis.join()
    before = {kind: getattr(watch._streams["rank 0"].test, kind).alarm for kind in ("stall", "slow")}
    watch._judge()
    after = {kind: getattr(watch._streams["rank 0"].test, kind).alarm for kind in ("stall", "slow")}
    assert None not in before.values()
    assert set(after.values()) == {None}


@pytest.mark.parametrize("waits_again", [True, False])
def test_waits_for_a_core_that_came_before_are_no_alarm(tmp_path, monkeypatch, waits_again):
    monkeypatch.setattr("stepscope.watching.watcher._COUNTERS_S", 0.0)
    monkeypatch.setattr("stepscope.watching.watcher._SAME_S", 0.0)
    events, source = [], Source()
    source.times[:, 1000:1020] *= 1.5
    contention = {"text": "it waits", "causes": [{"category": "cpu_contention"}], "is_usual": True}
    source.cause = lambda _: contention
    source.waits_for_a_core = lambda _: waits_again
    watch = Watcher(source, tmp_path / "state", 1e-6, events.append)
    for _ in range(21):
        watch.tick()
        if watch._diagnosis is not None:
            watch._diagnosis.join()
    said = [(event["event"], event["kind"]) for event in events if event["step"] >= 2000]
    assert ("waits", "slow") in said if waits_again else ("alarm", "slow") in said
    assert (("alarm", "slow") in said) is not waits_again
    first = [event["event"] for event in events if event["step"] < 2000]
    assert first[0] == "alarm"
