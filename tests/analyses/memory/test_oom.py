from __future__ import annotations

import pickle

import memory_snapshots as lab
import pytest
from memory_snapshots import tables
from snapshots import MIB, limited

import stepscope
from stepscope.analyses.memory.oom import failures


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [(kind, 2 if kind == "other process" else 1) for kind in lab.KINDS])
def test_the_kind_of_failure_and_the_stack_to_blame(kind, seed):
    case = lab.make(kind, seed)
    events, segments, blocks, stacks = tables(case.snapshot)
    answers = failures(events, segments, blocks, None)
    assert [answer.kind for answer in answers] == [lab.ANSWERS[kind]] * (kind != "healthy")
    if case.guilty:
        first = answers[0].stacks["stack_id"][0]
        assert stacks[first][1:] == tuple(f"/job/{frame}" for frame in case.guilty)
    for answer in answers:
        assert answer.allocated_bytes == case.held.total()
        assert answer.idle_bytes == case.idle


def test_a_known_device_says_what_others_hold():
    case = lab.make("leak", 1)
    events, segments, blocks, _ = tables(case.snapshot)
    (answer,) = failures(events, segments, blocks, None, {0: 4 * case.device.total})
    assert answer.kind == "other process"
    assert answer.outside_bytes > 2 * case.device.total


@pytest.mark.slow
def test_what_changes_would_save_is_a_row_each(tmp_path):
    case = lab.make("leak", 4)
    lab.write(case, tmp_path / "leak.pickle")
    trace = stepscope.load(tmp_path / "leak.pickle")
    savings = stepscope.show(trace, "memory-savings")
    first = savings.row(0, named=True)
    assert (first["change"], first["is_enough"]) == ("keep nothing from step to step", True)
    assert first["line"] == "log (/job/train.py:71)"
    assert first["saved_bytes"] == pytest.approx(case.held[case.guilty], rel=0.1)
    by_stack = stepscope.show(trace, "memory-oom", by="stack")
    assert by_stack["held_bytes"].sum() == stepscope.show(trace, "memory-oom")["allocated_bytes"][0]
    assert by_stack["held_bytes"].sum() == pytest.approx(case.held.total(), rel=1e-3)
    assert by_stack["is_growing"].to_list() == [True] + [False] * (by_stack.height - 1)


@pytest.mark.slow
def test_the_report_says_why_and_what_to_do(tmp_path):
    lab.write(lab.make("fragmentation", 4), tmp_path / "oom.pickle")
    report = stepscope.report(tmp_path / "oom.pickle")
    (finding,) = report.findings
    assert finding.title.startswith("Fragmentation: cuda:0 had no memory for a request of 3.46 GiB")
    assert any("expandable_segments:True: saves 38.4 GiB, which is enough" in line for line in finding.details)
    oom = report.more["memory"]["oom"]
    assert (oom["kind"], oom["line"]) == ("fragmentation", "keep (/job/cache.py:33)")


@pytest.mark.slow
def test_a_job_that_did_not_fail_has_no_answer(tmp_path):
    lab.write(lab.make("healthy", 1), tmp_path / "healthy.pickle")
    report = stepscope.report(tmp_path / "healthy.pickle")
    assert (report.findings, report.more["memory"]["oom"]) == ((), None)
    assert stepscope.show(tmp_path / "healthy.pickle", "memory-savings").is_empty()


@pytest.mark.parametrize(
    ("snapshot", "kind", "limit", "before"),
    [
        (limited(0), "one large request", 20, 20),
        (limited(100), "one large step", 120, 20),
        (limited(0, fragmented=True), "fragmentation", 220, 120),
    ],
)
def test_a_process_that_reaches_a_limit_of_its_own(snapshot, kind, limit, before, tmp_path):
    (tmp_path / "oom.pickle").write_bytes(pickle.dumps(snapshot))
    (row,) = stepscope.show(stepscope.load(tmp_path / "oom.pickle"), "memory-oom").to_dicts()
    assert (row["kind"], row["own_limit_bytes"], row["before_bytes"]) == (kind, limit * MIB, before * MIB)
    assert row["outside_bytes"] == 0
