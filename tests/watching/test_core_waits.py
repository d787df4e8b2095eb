"""Slow steps whose process waited for a core are told from slow steps whose process did more, or slept."""

from __future__ import annotations

import gzip

import pytest

from stepscope.record.step_times import TimedStep
from stepscope.watching.core_waits import cause_of, sentence_of, stretches_of

HEAD = "ts_ns,metric,unit,device,value\n"


def _minute(folder, usual, slow):
    """Counters and steps of 10 s of 100 ms, then of 4 s of 200 ms; shares of the time waiting and running."""
    rows = [
        f"{i * 100_000_000},{metric},ns/s,pid:7,{share * 1e9}"
        for i in range(141)
        for metric, share in zip(("process_runq_time", "process_oncpu_time"), usual if i <= 100 else slow, strict=True)
    ]
    path = folder / "counters.csv.gz"
    path.write_bytes(gzip.compress((HEAD + "\n".join(rows)).encode()))
    steps = [TimedStep(0.1 * i, 100_000_000, 1) for i in range(1, 101)]
    return path, steps + [TimedStep(10 + 0.2 * i, 200_000_000, 1) for i in range(1, 21)]


@pytest.mark.parametrize(
    ("usual", "slow", "explained_ms"),
    [
        ((0.1, 0.9), (0.54, 0.46), 96),  # 10 → 108 ms waiting, 90 → 92 ms running
        ((0.1, 0.9), (0.1, 0.9), None),  # twice the work
        ((0.1, 0.9), (0.05, 0.45), None),  # it sleeps
        ((0.4, 0.6), (0.4, 0.6), None),  # twice the work on a busy machine waits twice as long
        ((0.1, 0.9), (0.9, 0.9), None),  # another thread of the process takes the core
    ],
)
def test_longer_waits_for_a_core_explain_slow_steps(tmp_path, usual, slow, explained_ms):
    path, steps = _minute(tmp_path, usual, slow)
    stretches = stretches_of(path, 7, steps, 10.0, 14.0)
    assert stretches is not None
    cause = cause_of(*stretches)
    if explained_ms is None:
        assert cause is None
    else:
        assert cause is not None
        assert cause["category"] == "cpu_contention"
        assert cause["explained_ns"] == pytest.approx(explained_ms * 1e6, rel=0.05)
        assert "10 ms → 10" in cause["statement"]


def test_nothing_is_said_of_another_process_or_without_counters(tmp_path):
    path, steps = _minute(tmp_path, (0.1, 0.9), (0.54, 0.46))
    assert stretches_of(path, 8, steps, 10.0, 14.0) is None
    assert stretches_of(tmp_path / "none", 7, steps, 10.0, 14.0) is None
    assert stretches_of(path, 7, steps[95:], 10.0, 14.0) is None


def test_what_waits_for_no_core_is_said(tmp_path):
    path, steps = _minute(tmp_path, (0.1, 0.8), (0.05, 0.45))
    stretches = stretches_of(path, 7, steps, 10.0, 14.0)
    assert stretches is not None
    text = sentence_of(*stretches)
    assert text.startswith("per step the process ran 80 ms → 9")
    assert text.split("something else ")[1].split(" → ")[0] == "10 ms"
