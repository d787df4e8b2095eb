from __future__ import annotations

from chrome_traces import arrow, column, kernel, op, read, rows


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
