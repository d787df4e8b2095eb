"""The report of memory snapshots, also of several and next to a trace."""

from __future__ import annotations

import json
import pickle

import pytest
from snapshots import MIB, limited, snapshot

import stepscope


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot()))
    return tmp_path


def test_the_document_has_peaks_and_holders_that_add_up(folder):
    report = stepscope.report(folder / "rank0.pickle")
    (device,) = report.more["memory"]["devices"]
    assert (device["device"], device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (
        "cuda:0", 22 * MIB, 42 * MIB,
    )  # fmt: skip
    assert sum(holder["bytes"] for holder in device["holders"]) == 22 * MIB
    assert device["holders"][-1]["stack"] == "allocated before recording"
    assert "held 22 MiB at its peak" in report.headline


def test_several_snapshots_are_compared_by_their_peaks(folder):
    larger = snapshot()
    larger["device_traces"][0][1]["size"] += MIB
    larger["device_traces"][0][3]["size"] += MIB
    (folder / "rank1.pickle").write_bytes(pickle.dumps(larger))
    report = stepscope.report(folder)
    assert [one["peak_allocated_bytes"] >> 20 for one in report.more["memory"]["devices"]] == [22, 23]
    assert report.tables[0].frame["file"].to_list() == ["rank1.pickle", "rank0.pickle"]
    growth = report.tables[1]
    assert growth.title == "What rank1.pickle holds more than rank0.pickle, at their peaks"
    assert growth.frame["delta_bytes"].to_list() == [MIB]


def test_a_snapshot_next_to_a_trace_adds_its_tables(folder):
    events = [{"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    report = stepscope.report(folder)
    titles = [block.title for block in report.tables]
    assert "What held it at the peak" in titles
    assert len(titles) > 3
    assert report.more["memory"]["devices"]


def test_why_memory_ran_out_is_the_first_finding_next_to_a_trace(folder):
    (folder / "rank0.pickle").unlink()
    for name in ("pid7.memory.oom-1.pickle", "pid7.memory.pickle"):
        (folder / name).write_bytes(pickle.dumps(limited(100)))
    events = [{"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    first, *rest = stepscope.report(folder).findings
    assert first.title == "One large step: cuda:0 had no memory for a request of 60 MiB"
    assert not any("no memory" in finding.title for finding in rest)
    text = "\n".join(first.details)
    assert "no step before needed more than 20 MiB" in text
    assert "a limit of its own, of 120 MiB or somewhat more" in text


def test_the_failures_of_two_ranks_are_named_by_their_files(folder):
    for rank, large in enumerate((100, 200)):
        (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(limited(large)))
    titles = [finding.title for finding in stepscope.report(folder).findings]
    assert [title.partition(":")[0] for title in titles] == ["rank0.pickle", "rank1.pickle"]
