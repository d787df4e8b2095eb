from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from chrome_traces import arrow, by_name, call, column, issues, kernel, label, op, packed, read, rows, x

from stepscope.readers.chrome.event_columns import Columns
from stepscope.readers.chrome.events import Event
from stepscope.readers.common.source import IssueLog

DOCUMENT = [
    op("aten::mm", 0, 9, External_id=4, Input_Dims=[[2, 3], [3, 4]], Input_type=["float", "float"]),
    call("cudaLaunchKernel", 2, 1, 91, External_id=4),
    kernel("sgemm", 5, 2, 91, grid=[8, 1, 1], block=[64, 1, 1]),
    x("cpu", 1, 1, None),
]


def columns_from(events, *, block_size: int = 100) -> Columns:
    columns = Columns(IssueLog(), exact=False)
    for start in range(0, len(events), block_size):
        block = packed(events[start : start + block_size])[15:-1]
        columns.add(msgspec.json.decode(block, type=list[Event]), block)
    return columns


def joined(group) -> dict[str, list]:
    return {name: column.join().tolist() for name, column in group.items()}


@pytest.mark.parametrize("block_size", [1, 2, 100])
def test_blocks_of_any_size_give_the_same_columns(block_size):
    columns = columns_from(DOCUMENT, block_size=block_size)
    assert columns.n_events == columns.n_spans == 4
    assert columns.phases == {"X"}
    assert list(columns.names) == ["aten::mm", "cudaLaunchKernel", "sgemm", "cpu"]
    assert list(columns.tracks) == [(1, 1), (0, 7, 0, 7)]
    assert joined(columns.spans) == {
        "ts": [0, 2, 5, 1], "dur": [9, 1, 2, 1], "name": [0, 1, 2, 3], "cat": [0, 1, 2, 3], "track": [0, 0, 1, 0],
    }  # fmt: skip
    assert joined(columns.calls) == {"row": [1, 2], "correlation": [91, 91]}
    assert joined(columns.ops)["row"] == [0]
    assert joined(columns.kernels)["row"] == [2]
    assert list(columns.dims) == [b"[8,1,1]", b"[64,1,1]"]


def test_exact_times_are_rounded_to_nanoseconds_and_what_is_no_time_is_none():
    columns = Columns(IssueLog(), exact=True)
    times = [
        Decimal("1712345678901234.567"),
        None,
        Decimal("0.0006"),
        Decimal("-0.0006"),
        Decimal("1e999999"),
        Decimal(0),
    ]
    assert columns.times(times) == [1712345678901234567, None, 1, -1, None, 0]
    odd = [Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal(1)]
    assert columns.times(odd) == [None, None, None, 1000]


def test_ids_spelled_in_lower_case_are_found_beside_the_others():
    trace = read([
        op("a", 0, 1, External_id=1), op("b", 2, 1, external_id=2), op("c", 4, 1),
        call("d", 6, 1, 1, external_id=2, tid=2), call("e", 8, 1, 2, External_id=1, tid=2),
    ])  # fmt: skip
    assert by_name(trace, "external_id") == {"a": 1, "b": 2, "c": None, "d": 2, "e": 1}
    assert column(trace.spans, "op_id") == [None, None, None, 1, 0]


def test_counters_of_hardware_are_read_from_the_arguments_of_ranges():
    trace = read([
        kernel("k", 0, 5, 1),
        x("gemm", 0, 5, "cuda_profiler_range", pid=0, tid=0, smsp__inst_executed=12.5, l2_hits=3, text="x"),
        x("norm", 6, 5, "cuda_profiler_range", pid=0, tid=0, smsp__inst_executed=7),
    ])  # fmt: skip
    names = column(trace.spans, "name")
    found = [(names[i], m, v) for i, m, v in rows(trace.kernel_metrics, "span_id", "metric", "value")]
    assert found == [
        ("gemm", "smsp  inst executed", 12.5),
        ("gemm", "l2 hits", 3.0),
        ("norm", "smsp  inst executed", 7.0),
    ]


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
