from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import by_name, column, issues, op, read, rows, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.chrome.spans import to_ns
from stepscope.readers.common.columns import ABSENT

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


def test_many_events_days_apart_are_believed():
    trace = read([op(f"n{i}", i * DAY_US, 1) for i in range(20)])
    assert trace.spans.height == 20
    assert trace.issues.is_empty()


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


@given(intervals)
def test_rows_are_sorted_by_track_start_and_length_and_keep_the_recorded_order_else(found):
    trace = read([x(f"{i}", ts, dur, "a", tid=tid) for i, (ts, dur, tid) in enumerate(found)])
    got = rows(trace.spans, "track_id", "ts_ns", "dur_ns", "name")
    assert got == sorted(got, key=lambda row: (row[0], row[1], -row[2], int(row[3])))
    assert len(got) == len(found)


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


@pytest.mark.parametrize("dur", [-1, -(10**12), "-3.5"])
def test_durations_below_zero_are_zero(dur):
    trace = read([op("a", 5, dur), op("b", 5, 1)])
    assert by_name(trace, "dur_ns") == {"a": 0, "b": 1_000}
    assert issues(trace) == {"negative_durations": 1}
