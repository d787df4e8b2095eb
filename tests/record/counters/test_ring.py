from __future__ import annotations

from stepscope.record.counters import ring as _ring
from stepscope.record.counters.ring import Ring, opened
from stepscope.record.counters.writer import CounterFile


def test_the_sampler_and_the_hook_are_told_of_it():
    ring = Ring(30.0, 2.0, 3)
    assert ring.wanted((5, 15)) == {"keep_s": 30.0, "trigger": 2.0, "max_dumps": 3, "n_steps": 10}
    assert ring.wanted(None)["n_steps"] == 0
    assert ring.environment() == {"STEPSCOPE_RECORD_TRIGGER": "2"}
    assert Ring().environment() == {"STEPSCOPE_RECORD_TRIGGER": "0"}


def test_without_a_ring_nothing_is_opened(tmp_path):
    file = CounterFile(tmp_path / "counters.csv.gz")
    assert opened(tmp_path, file, None) == (None, [])
    file.close()


def test_where_no_pipe_can_be_made_a_signal_still_can_ask(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_ring, "Channel", refuse)
    file = CounterFile(tmp_path / "counters.csv.gz")
    dumps, [issue] = opened(tmp_path, file, Ring().wanted(None))
    assert dumps.channel is None
    assert dumps.heard() == []
    assert (issue["code"], "only by signal" in issue["example"]) == ("no_triggers", True)
    file.close()
