from __future__ import annotations

import gzip
import os
import random

import paddle_profiles as made
import polars as pl
import pytest
from chrome_traces import issues
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from stepscope import analyses, show
from stepscope.core.errors import CorruptInput, MissingTable, StepscopeError
from stepscope.exports.paddle_summary import summary
from stepscope.readers import expand, open_trace
from stepscope.reports.overview import overview

PROFILE = made.training()
BOTH = {"pb": PROFILE, "json": made.json_training()}


def plain(frame):
    return frame.cast({pl.Categorical: pl.String})


@pytest.mark.parametrize("kind", BOTH)
def test_both_forms_hold_the_same_events(read, kind):
    trace = read(BOTH[kind])
    spans = trace.spans.join(trace.tracks.select("track_id", "tid", "stream"), on="track_id", how="left")
    assert trace.meta.n_events == 25
    assert spans.filter(pl.col("category") == "kernel").select("name", "ts_ns", "dur_ns", "stream", "step").rows() == [
        ("void gemm<float>(int)", 30_000, 30_000, 3, 3),
        ("void gemm<float>(int)", 130_000, 20_000, 3, 4),
        ("ncclDevKernel_AllReduce", 60_000, 30_000, 4, 3),
    ]
    assert trace.steps.select("step", "ts_ns", "dur_ns").rows() == [(3, 0, 100_000), (4, 100_000, 100_000)]


def test_json_tells_all_but_a_few_details(read):
    exact, rounded = read(BOTH["pb"]), read(BOTH["json"])
    assert set(exact.tables) == set(rounded.tables) - {"issues"}
    for name in set(exact.tables) - {"allocations", "reservations", "transfers"}:
        assert_frame_equal(plain(exact.table(name)), plain(rounded.table(name)), check_exact=True)
    for name in ("allocations", "reservations"):  # their times are whole µs
        ours, theirs = plain(exact.table(name)), plain(rounded.table(name))
        assert_frame_equal(ours.drop("ts_ns"), theirs.drop("ts_ns"), check_exact=True)
        assert (ours["ts_ns"] - theirs["ts_ns"]).is_between(0, 1_000).all()
    assert rounded.transfers.select("bytes", "kind", "src", "recorded_bytes_per_s").rows() == [
        (64, "HtoD", None, 1.6e10)
    ]
    assert summary(exact) == summary(rounded)


def test_what_the_file_says_of_itself(read):
    meta = read(PROFILE, "host_node-7pid_5_time_2026_01_02.paddle_trace.pb").meta
    assert (meta.format, meta.framework, meta.host, meta.rank) == ("paddle", "PaddlePaddle", "node-7", None)
    assert meta.origin_unix_ns == made.BEGAN
    assert meta.size_bytes == len(PROFILE)
    assert meta.facts == {
        "7": "MainThread",
        "Process Cpu Utilization": "1.250000",
        "System Cpu Utilization": "0.500000",
        "schemaVersion": "1.0.2",
        "span_index": "0",
    }
    assert read(PROFILE, "rank3.pb").meta.rank == 3


#: What a profile of Paddle does not hold: counters of host or kernels, what is seen from outside, modules …
LACKING = {
    "counters", "utilisation", "kernel-bins", "kernel-runs", "kernel-similarity", "modules", "communication",
    "sequences", "python-stacks", "python-functions", "scheduling", "batches",
    "memory-peak", "memory-holders", "memory-leaks", "memory-fragmentation", "memory-timeline", "memory-oom",
    "memory-savings", "hang", "hang-graph", "hang-matrix", "requests", "expert-load",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOTH)
def test_every_analysis_and_the_report_take_it(read, kind):
    trace = read(BOTH[kind])
    for name in analyses.names("trace"):
        try:
            frame = show(trace, name)
        except MissingTable:
            assert name in LACKING
        else:
            assert not frame.is_empty() or name in ("recommendations", "fusion"), name
    report = overview(trace)
    assert report.headline.startswith("PaddlePaddle · NVIDIA T4 · steps 3–4 (2)")
    assert report.quality == (
        "4.8 % of device time belongs to no operator.",  # the copy in the range
        "MFU is unknown (show mfu): no formula for matmul dygraph.",
    )


def test_cycles_and_ranks_in_a_folder_are_traces_of_their_own(tmp_path):
    """Names say neither the cycle nor its place in time: each file does."""
    first = made.profile(made.thread((0, made.host("ProfileStep#9", made.STEP, 10**9, 10**9 + 5))), span_index=1)
    second = made.profile(made.thread((0, made.host("ProfileStep#2", made.STEP, 0, 5))), span_index=0)
    for name, data in (("a_rank0.pb", first), ("b_rank0.pb", second), ("c_rank1.pb.gz", gzip.compress(second))):
        (tmp_path / name).write_bytes(data)
    traces = [open_trace(path) for path in expand([str(tmp_path)])]
    assert [t.rank for t in traces] == [0, 0, 1]
    assert [t.meta.facts["span_index"] for t in traces] == ["1", "0", "0"]
    assert [t.steps["step"].to_list() for t in traces] == [[9], [2], [2]]
    assert traces[0].meta.origin_unix_ns - traces[1].meta.origin_unix_ns == 10**9


@pytest.mark.parametrize("data", [made.profile(), made.profile(made.thread()), made.json_profile()])
def test_an_empty_profile_says_so(read, data):
    trace = read(data)
    assert trace.spans.is_empty()
    assert issues(trace) == {"no_spans": 1}
    assert summary(trace).startswith("-------------------Device Summary-------------------\n")
    assert overview(trace).headline


@pytest.mark.slow
def test_what_is_cut_off_is_read_as_far_as_it_goes(read):
    events = PROFILE[: PROFILE.index(b"Process Cpu") - 8]  # behind them nothing can be missed
    counts = []
    for size in range(200, len(events), 97):
        trace = read(events[:size])
        assert issues(trace)["damaged_messages"] > 0
        counts.append(trace.spans.height)
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] <= read(PROFILE).spans.height


def test_of_many_threads_too_the_last_one_is_read_as_far_as_it_goes(read):
    threads = [made.thread(*[(0, made.host("op", 0, i, i + 1, tid=t)) for i in range(4)], tid=t) for t in range(200)]
    trace = read(made.profile(*threads)[:-30])
    assert trace.spans.height == 200 * 4 - 1
    assert issues(trace) == {"damaged_messages": 3, "incomplete_events": 1}


def test_a_packed_profile_that_is_damaged_is_read_as_far_as_it_goes(read):
    noise = random.Random(1).randbytes(3000)  # so that it does not pack to nothing
    big = made.profile(made.thread((0, made.host("ProfileStep#1", 2, 0, 5))), extra={"x": noise.hex()})
    trace = read(gzip.compress(big)[:-200], "profile.pb.gz")
    assert trace.spans.height == 1
    assert "damaged_packing" in issues(trace)


def test_nothing_but_damage_is_corrupt(read):
    with pytest.raises(CorruptInput, match="not one of its events") as caught:
        read(PROFILE[:60])
    assert "profile.pb" in caught.value.message
    assert caught.value.hint


PATCHES = st.lists(st.tuples(st.integers(8, 2000), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=10)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", BOTH)
@settings(max_examples=int(os.environ.get("MUTATED_PROFILES", "30")))
@given(patches=PATCHES)
def test_mutated_profiles_never_crash(patches, kind, tmp_path_factory):
    """In the suite some; MUTATED_PROFILES=2000 is what a change of the reader should pass."""
    profile = bytearray(BOTH[kind])
    for at, n_removed, new in patches:
        place = at * len(profile) // 2000
        profile[place : place + n_removed] = new
    path = tmp_path_factory.mktemp("mutated") / "x.pb"
    path.write_bytes(profile)
    try:
        trace = open_trace(str(path))
    except StepscopeError as error:
        assert error.hint  # noqa: PT017  most profiles can be read
        return
    overview(trace)
    if trace.meta.format == "paddle":
        summary(trace)
