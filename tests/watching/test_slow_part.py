"""A dump without a profile is cut into two recordings, which can be compared: the steps before, and the slow ones."""

from __future__ import annotations

import gzip
import json

import pytest

import stepscope
from stepscope.record.step_times import TimedStep
from stepscope.watching import slow_part

HEAD = "ts_ns,metric,unit,device,value\n"
START_S = 1_700_000_000.0


def _steps(n_before: int, n_slow: int) -> list[TimedStep]:
    """Steps of 100 ms, and then of 200 ms."""
    steps = [TimedStep(START_S + 0.1 * i, 100_000_000, 1) for i in range(1, n_before + 1)]
    end_s = START_S + 0.1 * n_before
    return steps + [TimedStep(end_s + 0.2 * i, 200_000_000, 1) for i in range(1, n_slow + 1)]


@pytest.fixture
def dump(tmp_path):
    """A dump of 10 s in which the process 7 collects garbage from its tenth second on."""
    folder = tmp_path / "dump-0001-request"
    folder.mkdir()
    begin_ns = int(START_S * 1e9)
    facts = {"format": "stepscope-recording", "version": 1, "mode": "dump", "start_unix_ns": begin_ns}
    facts |= {"end_unix_ns": begin_ns + 10**10, "issues": [], "clocks": {}, "hz": 10.0, "pids": [7], "processes": []}
    (folder / "meta.json").write_text(json.dumps(facts))
    rows = [
        f"{begin_ns + i * 100_000_000},{metric},{unit},pid:7,{value}"
        for i in range(1, 141)
        for metric, unit, value in (
            ("process_python_gc_time", "ns/s", 0 if i <= 100 else 450_000_000),
            ("process_python_gc_collections", "1/s", 0 if i <= 100 else 50),
            ("process_oncpu_time", "ns/s", 990_000_000),
        )
    ]
    (folder / "counters.csv.gz").write_bytes(gzip.compress((HEAD + "\n".join(rows) + "\n").encode()))
    return folder


def test_the_two_parts_compare_and_name_the_cause(dump):
    assert not slow_part.has_profile(dump)
    parts = slow_part.cut(dump, {7: _steps(100, 20)}, 7, START_S + 10, START_S + 14)
    assert parts is not None
    base, other = parts
    assert (base.name, other.name) == ("dump-0001-request-before", "dump-0001-request-slow")
    for part, n, step_ns in ((base, 99, 100_000_000), (other, 20, 200_000_000)):
        times = stepscope.load(str(part)).step_times
        assert times.height == n
        assert times["dur_ns"].to_list() == [step_ns] * n
    result = stepscope.compare(str(base), str(other))
    assert result.causes[0].category == "python_gc"


@pytest.mark.parametrize(("n_before", "n_slow"), [(9, 20), (100, 9)])
def test_too_few_steps_are_not_cut(dump, n_before, n_slow):
    from_s = START_S + 0.1 * n_before
    assert slow_part.cut(dump, {7: _steps(n_before, n_slow)}, 7, from_s, from_s + 0.2 * n_slow) is None
    assert [path.name for path in dump.parent.iterdir()] == [dump.name]


def test_without_counters_nothing_is_cut(dump):
    (dump / "counters.csv.gz").unlink()
    assert slow_part.cut(dump, {7: _steps(100, 20)}, 7, START_S + 10, START_S + 14) is None


def test_a_profile_is_any_file_of_another_kind(dump):
    (dump / ".pid7.part").touch()
    assert not slow_part.has_profile(dump)
    (dump / "pid7.pt.trace.json.gz").touch()
    assert slow_part.has_profile(dump)


def test_slow_steps_that_follow_an_alarm_count_and_usual_ones_after_them_do_not():
    steps = _steps(100, 30)
    end_s = steps[-1].end_s
    steps += [TimedStep(end_s + 0.1 * i, 100_000_000, 1) for i in range(1, 20)]
    assert slow_part.slow_until(steps, START_S + 10, START_S + 14) == pytest.approx(end_s)
    assert slow_part.slow_until(steps[:120], START_S + 10, START_S + 14) == START_S + 14
    assert slow_part.slow_until([], START_S + 10, START_S + 14) == START_S + 14
