from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import arrow, by_name, column, issues, kernel, op, read, rows, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.chrome.spans import joined_edges, to_ns
from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.source import IssueLog

DAY_US = 86_400 * 10**6


@given(st.lists(st.integers(-(2**61), 2**61).map(lambda ns: ns / 1000)))
def test_microseconds_become_the_nearest_nanosecond(values):
    for us, ns in zip(values, to_ns(np.array(values, np.float64)).tolist(), strict=True):
        if abs(us) < 2**51:
            assert abs(ns - int(us) * 1000 - (us - int(us)) * 1000) <= 0.5
        else:
            assert ns == ABSENT


@given(st.integers(0, 10**12), st.integers(0, 999), st.sampled_from([1, -1]))
def test_three_decimals_are_exact_for_the_times_of_a_machine_that_is_up_for_days(us, ns, sign):
    assert to_ns(np.array([sign * float(f"{us}.{ns:03}")])).tolist() == [sign * (us * 1000 + ns)]


def test_what_no_time_is_becomes_absent():
    assert to_ns(np.array([np.nan, np.inf, -np.inf, 1e300, 2.0**51, 1.0])).tolist() == [ABSENT] * 5 + [1000]
    assert to_ns(np.array([2**62, -(2**62), -(2**63), 5])).tolist() == [ABSENT] * 3 + [5]


def test_a_few_events_days_away_are_dropped_and_counted():
    sound = [op(f"n{i}", 10**12 + i, 1) for i in range(20)]
    trace = read([*sound, op("zero", 0, 1), op("late", 10**12 + 2 * DAY_US, 1)])
    assert column(trace.spans, "name") == [f"n{i}" for i in range(20)]
    assert column(trace.spans, "ts_ns")[0] == 0
    assert issues(trace) == {"wild_times": 2}


def test_many_events_days_apart_are_believed_and_counted():
    trace = read([op(f"n{i}", i * DAY_US, 1) for i in range(20)])
    assert trace.spans.height == 20
    assert issues(trace) == {"far_times": 18}


def test_a_duration_of_months_is_not_believed():
    trace = read([op("n", 0, 1), op("m", 1, 60 * DAY_US), op("day", 2, DAY_US)])
    assert column(trace.spans, "name") == ["n", "day"]
    assert issues(trace) == {"wild_times": 1}


def test_side_tables_follow_their_spans_when_others_are_dropped():
    trace = read(
        [
            op("b", 5, 1, External_id=2),
            op("no dur", 1, None, External_id=9),
            op("a", 0, 1, External_id=1),
            op("wild", 10**14, 1, External_id=8),
        ]
    )
    assert rows(trace.spans, "span_id", "external_id") == [(0, 1), (1, 2)]
    assert column(trace.ops, "span_id") == [0, 1]
    assert column(trace.spans, "name") == ["a", "b"]


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(1, 3)), max_size=30)


@pytest.mark.slow
@given(intervals)
def test_rows_are_sorted_by_track_start_and_length_and_keep_the_recorded_order_else(found):
    trace = read([x(f"{i}", ts, dur, "a", tid=tid) for i, (ts, dur, tid) in enumerate(found)])
    got = rows(trace.spans, "track_id", "ts_ns", "dur_ns", "name")
    assert got == sorted(got, key=lambda row: (row[0], row[1], -row[2], int(row[3])))
    assert len(got) == len(found)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("BE"), st.integers(0, 8), st.integers(1, 2)), max_size=30))
def test_begin_and_end_are_joined_like_brackets(edges):
    edges.sort(key=lambda edge: edge[1])
    trace = read([{"ph": ph, "name": f"{i}", "ts": ts, "pid": 1, "tid": tid} for i, (ph, ts, tid) in enumerate(edges)])
    expected, open_ = [], {1: [], 2: []}
    for i, (ph, ts, tid) in enumerate(edges):
        if ph == "B":
            open_[tid].append((f"{i}", ts))
        elif open_[tid]:
            name, began = open_[tid].pop()
            expected.append((name, began, ts - began))
    origin = min((began for _, began, _ in expected), default=0)
    got = {(n, t // 1000 + origin, d // 1000) for n, t, d in rows(trace.spans, "name", "ts_ns", "dur_ns")}
    assert got == set(expected)
    assert issues(trace).get("unpaired_events", 0) == len(edges) - 2 * len(expected)


def test_a_begin_that_stays_open_on_one_track_hides_no_end_too_many_on_the_next():
    track, ts, sign = (np.array(c) for c in ([0, 0, 0, 1, 1, 1], [5, 3, 6, 0, 9, 4], [1, 1, -1, 1, -1, -1]))
    begin, end = joined_edges(ts, track, sign.astype(np.int8), IssueLog())
    assert list(zip(begin.tolist(), end.tolist(), strict=True)) == [(0, 2), (3, 5)]


@pytest.mark.parametrize("dur", [-1, -(10**12), "-3.5"])
def test_durations_below_zero_are_zero(dur):
    trace = read([op("a", 5, dur), op("b", 5, 1)])
    assert by_name(trace, "dur_ns") == {"a": 0, "b": 1_000}
    assert issues(trace) == {"negative_durations": 1}


def test_arrows_between_threads_are_kept_with_both_ends():
    trace = read([
        op("forward", 0, 2), op("backward", 9, 2, tid=2),
        arrow("s", 5, 0, cat="fwdbwd"), arrow("f", 5, 9, cat="fwdbwd", tid=2),
    ])  # fmt: skip
    assert trace.arrows.rows() == [("fwdbwd", 0, 0, 1, 9_000)]


def test_arrows_stand_in_order_of_their_first_start_and_the_last_of_a_key_counts():
    trace = read([
        op("a", 0, 90),
        arrow("s", 2, 1, cat="fwdbwd"), arrow("s", 1, 2, cat="fwdbwd"), arrow("s", 2, 3, cat="fwdbwd"),
        arrow("f", 1, 20, cat="fwdbwd"), arrow("f", 2, 30, cat="fwdbwd"), arrow("f", 2, 40, cat="fwdbwd"),
        arrow("s", 9, 5, cat="fwdbwd"), arrow("f", 8, 50, cat="fwdbwd"),
    ])  # fmt: skip
    assert rows(trace.arrows, "from_ts_ns", "to_ts_ns") == [(3_000, 40_000), (2_000, 20_000)]


def test_kinds_of_arrows_are_told_apart():
    trace = read([
        op("a", 0, 90),
        arrow("s", 1, 1, cat="one"), arrow("f", 1, 2, cat="two"), arrow("s", 1, 3, cat="two"),
        arrow("s", 7, 3, cat="three"),
    ])  # fmt: skip
    assert rows(trace.arrows, "recorded_category", "from_ts_ns", "to_ts_ns") == [("two", 3_000, 2_000)]


def test_arrows_to_device_work_are_no_rows():
    trace = read([op("a", 0, 9), kernel("k", 5, 1, 1), arrow("s", 1, 1), arrow("f", 1, 5, pid=0, tid=7)])
    assert column(trace.arrows, "from_ts_ns") == []
