"""Two memory snapshots, or two runs of them, compared."""

from __future__ import annotations

import pickle

import pytest
from snapshots import MIB, snapshot

import stepscope
from stepscope.core.errors import StepscopeError


@pytest.fixture
def write(tmp_path):
    def write(name, more=0):
        """A snapshot that allocates so many bytes more in its second allocation."""
        made = snapshot()
        for event in made["device_traces"][0][1:]:
            event["size"] += more
        made["segments"][0]["total_size"] += more
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(made))
        return path

    return write


def test_a_larger_peak_is_a_difference_and_its_line_is_named(write):
    result = stepscope.compare(write("a.pickle"), write("b.pickle", 5 * MIB))
    assert result.verdict == "different"
    assert result.reason == "cuda:0 holds 5 MiB more at its peak (+23 %); of this 5 MiB is forward (model.py:7)"
    assert result.memory["delta_bytes"].sum() == 5 * MIB
    peak = result.effects.filter(measure="peak_allocated_bytes").row(0, named=True)
    assert (peak["base"], peak["other"]) == (22 * MIB, 27 * MIB)
    assert "What holds more or less at the peak" in str(result)


def test_a_hundredth_is_no_difference(write):
    result = stepscope.compare(write("a.pickle"), write("b.pickle", 100_000))
    assert result.verdict == "no_difference"
    assert "1 % or less is no change" in result.reason


def test_of_two_jobs_the_same_ranks_are_compared(write):
    base = [write("a/rank0.pickle"), write("a/rank1.pickle")]
    other = [write("b/rank1.pickle", 9 * MIB), write("b/rank0.pickle")]
    result = stepscope.compare(base, other)
    assert result.reason.startswith("rank 1 cuda:0 holds 9 MiB more")
    alone = stepscope.compare(base[:1], other[:1])
    assert alone.reason.startswith("cuda:0 holds 9 MiB more")


def test_a_snapshot_and_a_trace_are_not_compared(write, examples):
    with pytest.raises(StepscopeError, match="one run has memory snapshots alone"):
        stepscope.compare(write("a.pickle"), examples / "demo-cpu-decode")
