from __future__ import annotations

import pytest

from stepscope.record.profiles import NOTHING, Wanted, ask_for_snapshots, why_none

STEPS, WINDOW = Wanted((5, 15), None), Wanted(None, (20.0, 30.0))


def why(wanted: Wanted, *processes: dict, issues: tuple[dict, ...] = ()) -> str | None:
    found = why_none({"processes": list(processes), "issues": list(issues)}, wanted)
    return found[0]["example"] if found else None


def test_what_is_wanted_goes_to_the_job_in_its_environment(monkeypatch):
    monkeypatch.setattr("time.monotonic_ns", lambda: 1_000)
    assert STEPS.environment({}) == {
        "KINETO_LOG_LEVEL": "6", "STEPSCOPE_RECORD_STEPS": "5:15", "STEPSCOPE_RECORD_WINDOW": "",
    }  # fmt: skip
    assert WINDOW.environment({"KINETO_LOG_LEVEL": "0"}) == {
        "STEPSCOPE_RECORD_STEPS": "", "STEPSCOPE_RECORD_WINDOW": "20000001000:30000001000",
    }  # fmt: skip
    assert NOTHING.environment({}) == {"STEPSCOPE_RECORD_STEPS": "", "STEPSCOPE_RECORD_WINDOW": ""}
    assert Wanted((5, 15), None, memory=True).environment({})["STEPSCOPE_RECORD_MEMORY"] == "1"
    assert STEPS.facts() == {"profiled_steps": [5, 15], "profiled_window_s": None}


@pytest.mark.parametrize(
    ("wanted", "processes", "words"),
    [
        (STEPS, [], "-I, -E or -S"),
        (STEPS, [{"python": "3.12"}], "imported torch, paddle or jax"),
        (STEPS, [{"torch": "2.9", "steps": 0}], "PyTorch was imported, but no step of an optimizer and no call"),
        (STEPS, [{"torch": "2.9"}, {"jax": "0.9"}], "PyTorch and JAX was imported"),
        (STEPS, [{"jax": "0.9", "steps": 0}], "StepTraceAnnotation. Profile a window of time, as in --window 20s:30s"),
        (STEPS, [{"paddle": "3.1", "steps": 0}], "no step of an optimizer could be seen"),
        (
            STEPS,
            [{"torch": "2.9", "steps": 3, "step_source": "optimizer steps"}, {"torch": "2.9"}],
            "ended after 3 (optimizer steps). Use --steps 1:3",
        ),
        (
            STEPS,
            [{"torch": "2.9", "step_source": "module calls"}],
            "before the number of its steps was known (module calls)",
        ),
        (STEPS, [{"torch": "2.9", "steps": 1, "step_source": "module calls"}], "Use --window 20s:30s"),
        (WINDOW, [{"torch": "2.9"}], "from 20 to 30 s after the start no process used torch"),
    ],
)
def test_why_there_is_no_profile_is_said_with_what_to_do(wanted, processes, words):
    assert words in why(wanted, *processes)


def test_it_is_not_said_twice_or_where_none_was_wanted():
    assert why(STEPS, issues=({"code": "profile_failed"},)) is None
    assert why(NOTHING) is None


def test_each_request_for_snapshots_makes_the_file_of_requests_longer(tmp_path):
    (tmp_path / ".job").mkdir()
    for _ in range(3):
        ask_for_snapshots(tmp_path)
    assert (tmp_path / ".job" / "memory-snapshots").stat().st_size == 3
    assert Wanted(None, None, snapshots=True).environment({})["STEPSCOPE_RECORD_SNAPSHOTS"] == "1"
