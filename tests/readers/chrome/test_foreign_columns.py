from __future__ import annotations

import pytest
from chrome_traces import arrow, by_name, column, issues, label, op, read, rows


def memory(ts, n_bytes, *, kind=1, index=0, tid=1, **more):
    args = {"Device Type": kind, "Device Id": index, "Bytes": n_bytes, "Addr": 4096, **more}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}


def edge(ph, name, ts, *, tid=1, cat=None, ident=None):
    event = {"ph": ph, "name": name, "pid": 1, "tid": tid, "ts": ts}
    return {**event, **({"cat": cat} if cat else {}), **({"id": ident} if ident is not None else {})}


def sample(name, ts, *, pid=1, **values):
    return {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": values}


def test_memory_events_become_allocations_with_their_operator():
    trace = read([
        op("outer", 0, 10), op("inner", 2, 3),
        memory(3, 512, **{"Total Allocated": 512, "Total Reserved": 2048}),
        memory(6, -512, **{"Total Allocated": 0, "Total Reserved": 2048}),
        memory(20, 8, kind=0, index=-1, tid=9),
    ])  # fmt: skip
    assert rows(trace.allocations, "ts_ns", "device_id", "address", "bytes", "total_allocated_bytes",
    "total_reserved_bytes", "op_id") == [
        (3_000, 1, 4096, 512, 512, 2048, 1), (6_000, 1, 4096, -512, 0, 2048, 0), (20_000, 0, 4096, 8, None, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "index", "device"), [(0, -1, 0), (0, 0, 0), (1, 0, 1), (6, 0, 1), (20, 3, 1)])
def test_memory_is_that_of_the_host_or_of_the_accelerator(kind, index, device):
    trace = read([op("a", 0, 1), memory(0.5, 8, kind=kind, index=index)])
    assert column(trace.allocations, "device_id") == [device]
    assert column(trace.devices, "index") == ([None] if not device else [None, index])


def test_memory_events_that_say_too_little_are_counted():
    trace = read([op("a", 0, 1), memory(1, None), {"ph": "i", "name": "[memory]", "ts": 3}, memory("soon", 8)])
    assert trace.allocations.is_empty()
    assert issues(trace)["incomplete_allocations"] >= 2


def test_other_instants_are_counted_except_the_recorders_own_marks():
    def mark(name):
        return {"ph": "i", "name": name, "pid": 1, "tid": 1, "ts": 3, "s": "g"}

    assert issues(
        read([op("a", 0, 1), mark("Iteration Start: PyTorch Profiler"), mark("Record Window End"), mark("gc")])
    ) == {"instants_dropped": 1}


def test_begin_and_end_are_paired_per_track_innermost_first():
    trace = read([
        edge("B", "outer", 0), edge("B", "other", 1, tid=2), edge("B", "inner", 2), edge("E", "", 5),
        edge("E", "", 7, tid=2), edge("E", "", 9),
        edge("B", "inner", 9), edge("E", "", 12),
    ])  # fmt: skip
    assert rows(trace.spans, "name", "ts_ns", "dur_ns", "parent_id") == [
        ("outer", 0, 9_000, None), ("inner", 2_000, 3_000, 0), ("inner", 9_000, 3_000, None),
        ("other", 1_000, 6_000, None),
    ]  # fmt: skip
    assert trace.issues.is_empty()


def test_what_has_no_partner_is_counted_and_leaves_the_others_alone():
    trace = read([
        edge("E", "", 0), edge("B", "never closed", 1), edge("B", "closed", 2), edge("E", "", 4),
        edge("E", "", 1, tid=2), edge("B", "open", 5, tid=2),
        edge("B", "fine", 1, tid=3), edge("E", "", 2, tid=3),
    ])  # fmt: skip
    assert by_name(trace, "ts_ns", "dur_ns") == {"closed": (1_000, 2_000), "fine": (0, 1_000)}
    assert issues(trace) == {"unpaired_events": 4}


def test_asynchronous_pairs_belong_together_by_category_and_id():
    trace = read([
        edge("b", "load", 0, cat="io", ident=1), edge("b", "load", 2, cat="io", ident=2),
        edge("e", "load", 5, cat="io", ident=1, tid=4),
        edge("b", "load", 6, cat="net", ident=2), edge("e", "load", 8, cat="io", ident=2),
        edge("e", "load", 9, cat="net", ident=2),
    ])  # fmt: skip
    assert sorted(rows(trace.spans, "ts_ns", "dur_ns")) == [(0, 5_000), (2_000, 6_000), (6_000, 3_000)]
    assert column(trace.tracks, "kind") == ["async"] * 3


def test_counter_samples_have_a_row_for_each_number():
    trace = read(
        [
            op("a", 10, 1),
            sample("Memory", 12, used=5, free=7.5, unit="MB"),
            sample("Load", 11, value=3),
            sample("Load", 13, Load=4),
            sample("Load", 14),
        ]
    )
    assert rows(trace.counters, "ts_ns", "metric", "value", "pid") == [
        (1_000, "Load", 3.0, 1), (2_000, "Memory used", 5.0, 1), (2_000, "Memory free", 7.5, 1),
        (3_000, "Load", 4.0, 1),
    ]  # fmt: skip


def test_samples_without_a_time_cost_only_themselves():
    trace = read(
        [op("a", 0, 1), sample("Load", None, value=3), sample("Load", "x", value=4), sample("Load", 2, value=5)]
    )
    assert rows(trace.counters, "ts_ns", "value") == [(2_000, 5.0)]


def test_samples_beside_damage_are_kept():
    odd = {"ph": 7, "name": "odd", "cat": 5, "args": [1]}
    trace = read([op("a", 0, 1), sample("Load", 1, value=3), odd, sample("7", 2, pid="gpu", value=5)])
    assert rows(trace.counters, "device", "metric", "value") == [(None, "Load", 3.0), ("gpu", "7", 5.0)]


def test_names_of_processes_and_threads_label_the_tracks():
    trace = read(
        [
            op("a", 0, 1, pid=5, tid=6),
            label("process_name", "python", pid=5),
            label("thread_name", "main", pid=5, tid=6),
            label("process_sort_index", "", pid=5),
        ]
    )
    assert rows(trace.tracks, "pid", "tid", "process", "label") == [(5, 6, "python", "main")]


def test_unknown_phases_are_counted():
    trace = read([op("a", 0, 1), {"ph": "P", "ts": 1}, {"ph": "N", "ts": 1, "id": 2}, {"ph": "N", "ts": 2, "id": 2}])
    assert rows(trace.issues, "code", "severity", "count") == [("unknown_events", "info", 3)]


def test_arrows_between_host_spans_are_no_launches():
    trace = read(
        [op("a", 0, 1), op("b", 2, 1, tid=2), arrow("s", 1, 0, cat="fwdbwd"), arrow("f", 1, 2, tid=2, cat="fwdbwd")]
    )
    assert column(trace.spans, "launch_id") == [None, None]
    assert column(trace.spans, "flow") == [None, None]
