"""Real jobs of several ranks: eight A100s with NCCL, and four processes with Gloo of which one is made late."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from stepscope import exports, load_run, show
from stepscope.analyses.ranks.calls import rank_calls
from stepscope.analyses.ranks.clocks import clocks_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.api import verbs
from stepscope.exports.chrome import EXPORT

WAITS = "makes the others wait"


@pytest.fixture(scope="module")
def megatron(shared):
    return sorted(str(p) for p in (shared / "traces/more/kineto-multirank/megatron-tp8-a100").glob("*_kineto_*.gz"))


@pytest.fixture(scope="module")
def parts(megatron):
    return [rank_calls(trace) for trace in load_run(megatron)]


@pytest.fixture(scope="module")
def job(parts):
    return job_of(parts)


def test_every_collective_of_the_eight_is_matched_on_all_of_them(megatron, job):
    assert job.collectives.select("status", "n_ranks").unique().rows() == [("matched", 8)]
    assert job.collectives["seq"].to_list() == list(range(337, 421))
    table = show(megatron, "collectives", by="group")
    assert table.select("parallelism", "exchanges", "unmatched", "size_bytes").rows() == [
        ("TP", 81, 0, 81 * (64 << 20)), ("TP", 3, 0, 3 * (32 << 10)),
    ]  # fmt: skip
    # NVLink of an A100 moves 300 GB/s each way; all-reduces of 64 MiB get well over half of it.
    assert 150e9 < table["bus_bytes_per_s"][0] < 300e9


def test_transfers_are_the_shortest_durations_and_waits_the_rest(megatron):
    table = show(megatron, "collectives")
    assert table["bus_bytes_per_s"].null_count() == 0
    calls = show(megatron, "collectives", by="call")
    least = calls.group_by("exchange").agg(pl.col("total_ns").min()).sort("exchange")["total_ns"]
    assert table["transfer_ns"].to_list() == least.to_list()
    assert (calls["total_ns"] == calls["transfer_ns"] + calls["wait_ns"]).all()


def test_their_clocks_agree_to_microseconds_within_bounds(job):
    clocks = clocks_of(job)
    assert (clocks.low <= clocks.offset).all()
    assert (clocks.offset <= clocks.high).all()
    assert np.abs(clocks.offset).max() < 20_000
    assert (clocks.error > 0).all()
    assert clocks.error.max() < 20_000


@pytest.mark.parametrize("seed", [0, 1])
def test_clocks_that_are_put_wrong_are_put_right_again(parts, seed):
    wrong = np.random.default_rng(seed).normal(0, 1e6, 8).astype(int)
    moved = [replace(part, origin_unix_ns=part.origin_unix_ns + int(ns)) for part, ns in zip(parts, wrong, strict=True)]
    true, found = clocks_of(job_of(parts)).offset, clocks_of(job_of(moved)).offset
    apart = found - true - wrong
    assert np.abs(apart - np.median(apart)).max() < 1_000


@pytest.mark.exhaustive
def test_on_the_merged_timeline_none_ends_before_it_has_begun_everywhere(megatron):
    context = exports.Context(verbs.load_run, print)
    events = json.loads("".join(EXPORT(load_run(megatron), context).pieces))["traceEvents"]
    calls: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] == "kernel" and "nccl" in event["name"]:
            calls.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
    times = np.array([sorted(own) for own in calls.values()])
    assert times.shape == (8, 84, 2)
    assert (times[:, :, 1].min(axis=0) > times[:, :, 0].max(axis=0)).all()


def test_the_two_whose_hosts_come_late_are_named(megatron):
    table = show(megatron, "stragglers")
    assert sorted(table["rank"].to_list()) == [0, 6]
    assert table["cause"].to_list() == ["host", "host"]


@pytest.mark.exhaustive
def test_their_report_names_the_same_two(megatron):
    findings = verbs.report(load_run(megatron)).findings
    assert [f.title for f in findings if WAITS in f.title] == [f"Rank {rank} {WAITS}" for rank in (0, 6)]
    assert findings[0].title.startswith("Rank ")
    assert findings[0].details[0].startswith("Host: ")
    assert not any("wait for rank" in line for f in findings for line in (f.title, *f.details))


def test_offsets_have_error_bars_and_bounds(megatron):
    table = show(megatron, "clock-offsets")
    assert table.height == 8
    assert table.null_count().select("offset_ns", "error_ns", "low_ns", "high_ns", "exchanges").row(0) == (0,) * 5
    assert table["exchanges"].to_list() == [84] * 8


@pytest.mark.exhaustive
def test_where_they_are_read_changes_nothing(megatron):
    here = show(megatron, "stragglers", workers=0)
    assert show(megatron, "stragglers", workers=2).equals(here)
    assert str(verbs.report(megatron, workers=2)) == str(verbs.report(megatron, workers=0))


@pytest.mark.parametrize("run", ["normal0", "normal1"])
def test_a_report_of_healthy_processes_names_none(shared, run):
    report = verbs.report(shared / "faultlab/ddp_straggler" / run)
    assert report.meta["stragglers"] == []
    assert not any(WAITS in f.title for f in report.findings)


def test_the_report_of_the_faulty_run_names_the_process_first_with_its_cause(shared):
    case = shared / "faultlab/ddp_straggler"
    rank = json.loads((case / "labels.json").read_text())["rank"]
    report = verbs.report(case / "abnormal")
    first = report.findings[0]
    assert first.title == f"Rank {rank} {WAITS}"
    assert first.details[0].startswith("Compute: aten::mm: +500 calls")
    assert first.command == "show stragglers"
    assert [row["rank"] for row in report.meta["stragglers"]] == [rank]


@pytest.mark.parametrize("run", ["normal0", "normal1"])
def test_of_healthy_processes_none_is_named(shared, run):
    assert show(shared / "faultlab/ddp_straggler" / run, "stragglers").is_empty()


def test_the_process_with_more_to_compute_is_named_with_its_cause(shared):
    case = shared / "faultlab/ddp_straggler"
    answer = json.loads((case / "labels.json").read_text())
    table = show(case / "abnormal", "stragglers")
    row = table.row(0, named=True)
    assert table.height == 1
    assert (row["rank"], row["cause"], row["kind"]) == (answer["rank"], "compute", "slow rank")
    assert row["evidence"].startswith("aten::mm: +500 calls")
    # Steps of 71.3 ms instead of 56.8 ms: what the replay saves is most of that.
    saved = row["step_ns"] - row["step_without_ns"]
    assert 0.6 * 14.4e6 < saved < 1.4 * 14.4e6
