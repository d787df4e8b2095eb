"""A dump without a profile is divided into two recordings that can be compared: the steps before, and the slow ones."""

from __future__ import annotations

import gzip
import json

import pytest

import stepscope
from stepscope.record.step_times import RunningJob, TimedStep, write_steps
from stepscope.watching import slow_part

HEAD = "ts_ns,metric,unit,device,value\n"
STACKS_HEAD = "kind\tid\tts_ns\tdur_ns\tpid\ttid\tn\ttext\tfile\n"
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
        f"{begin_ns + i * 100_000_000 - 50_000_000},{metric},{unit},pid:7,{value}"
        for i in range(1, 141)
        for metric, unit, value in (
            ("process_python_gc_time", "ns/s", 0 if i <= 100 else 450_000_000),
            ("process_python_gc_collections", "1/s", 0 if i <= 100 else 50),
            ("process_oncpu_time", "ns/s", 990_000_000),
        )
    ]
    (folder / "counters.csv.gz").write_bytes(gzip.compress((HEAD + "\n".join(rows) + "\n").encode()))
    return folder


def _divided(dump, n_before: int, n_slow: int):
    """The two parts of the dump of a job that made so many steps before it was slow, and so many slow ones."""
    write_steps(dump.parent, 7, _steps(n_before, n_slow))
    from_s = START_S + 0.1 * n_before
    return slow_part.divided(RunningJob(dump.parent), dump, [7], 7, from_s, from_s + 0.2 * n_slow + 1e-5)


def test_the_two_parts_compare_and_name_the_cause(dump):
    assert not slow_part.has_profile(dump)
    parts = _divided(dump, 100, 20)
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
def test_too_few_steps_are_not_divided(dump, n_before, n_slow):
    assert _divided(dump, n_before, n_slow) is None
    assert sorted(path.name for path in dump.parent.iterdir()) == [dump.name, "pid7.steps"]


def test_without_counters_nothing_is_divided(dump):
    (dump / "counters.csv.gz").unlink()
    assert _divided(dump, 100, 20) is None


def test_healthy_steps_whose_stacks_were_sampled_are_before_too(dump):
    """A minute before, stacks of five seconds were sampled."""
    healthy = [TimedStep(START_S - 60 + 0.1 * i, 100_000_000, 1) for i in range(1, 51)]
    for folder, begin_s, function in ((dump.parent, START_S - 60, "work"), (dump, START_S + 10, "load")):
        rows = f"L\t\t{int(begin_s * 1e9)}\t4000000000\t\t\t100\t\t\nP\t\t\t\t7\t0\t0\tpython\t\n"
        rows += f"F\t0\t\t\t\t\t3\t{function}\tloop.py\nS\t0\t\t\t\t\t\t0\t\n"
        rows += f"W\t0\t{int(begin_s * 1e9)}\t4000000000\t7\t7\t400\t\t\n"
        (folder / "stacks.tsv.gz").write_bytes(gzip.compress((STACKS_HEAD + rows).encode()))
    write_steps(dump.parent, 7, [*healthy, *_steps(100, 20)])
    parts = slow_part.divided(RunningJob(dump.parent), dump, [7], 7, START_S + 10, START_S + 14 + 1e-5)
    assert parts is not None
    base, other = (stepscope.load(str(part)) for part in parts)
    times = base.step_times["ts_ns"].to_numpy()
    assert times.size == pytest.approx(40 + 99, abs=1)  # a step at a bound
    assert times.max() - times.min() == pytest.approx(69.9e9, abs=1e8)
    functions = [trace.show("python-stacks", by="function")["function"].to_list() for trace in (base, other)]
    assert [names[0].split()[0] for names in functions] == ["work", "load"]


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
