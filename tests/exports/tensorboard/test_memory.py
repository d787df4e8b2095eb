from __future__ import annotations

import numpy as np
import polars as pl
from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard import _memory
from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._forest import grow
from stepscope.exports.tensorboard._launches import find_launches

MLU = {"deviceProperties": [{"id": 0, "name": "MLU370"}]}


def memory(ts, size, *, device=(0, -1), address=1, tid=1, total=None):
    """A memory event; `device` is the recorded type and index."""
    args = {"Device Type": device[0], "Device Id": device[1], "Addr": address, "Bytes": size}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 2 * total}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}


def recorded(*events, **meta):
    seen = read_events(read(list(events), **meta))
    forest = grow(seen, find_launches(seen))
    return seen, forest, _memory.read_records(seen, forest)


def stats(*events, window=(), **meta):
    return _memory.memory_stats(*recorded(*events, **meta), *window)


def owners(*events):
    """The node that each record belongs to, by name."""
    _, forest, records = recorded(*events)
    return [None if i < 0 else forest.names[forest.name[i]] for i in records.node.tolist()]


def test_a_record_belongs_to_the_innermost_node_open_then():
    found = owners(
        op("outer", 10, 30), op("inner", 15, 5), op("empty", 22, 0), op("next", 50, 5),
        memory(9, 4), memory(10, 4), memory(15, 4), memory(19, 4), memory(20, 4), memory(22, 4), memory(40, 4),
        memory(50, 4), memory(55, 4),
    )  # fmt: skip
    assert found == [None, "outer", "inner", "inner", "outer", "outer", "CallTreeRoot", "next", None]


def test_threads_have_records_of_their_own():
    assert owners(op("a", 0, 10), op("b", 0, 10, tid=2), memory(5, 4), memory(5, 4, tid=2), memory(5, 4, tid=3)) == [
        "a", "b", None,
    ]  # fmt: skip


def test_a_trace_of_nothing_but_memory_has_records_without_owners():
    seen, forest, records = recorded(memory(7, 4), memory(3, 4))
    assert records.node.tolist() == [-1, -1]
    assert records.first_ts == 3
    assert _memory.memory_stats(seen, forest, records)["rows"] == {}


def test_time_begins_with_the_first_event_of_any_kind():
    _, _, records = recorded(op("a", 2, 10), memory(5, 4))
    assert records.first_ts == 2


def test_sizes_and_counts_are_an_operators_own_and_with_its_children():
    table = stats(op("outer", 0, 30), op("inner", 10, 10), memory(5, 1024), memory(15, 2048), memory(16, -1024))
    assert [column["name"] for column in table["columns"]] == [
        "Operator Name", "Calls", "Size Increase (KB)", "Self Size Increase (KB)", "Allocation Count",
        "Self Allocation Count", "Allocation Size (KB)", "Self Allocation Size (KB)",
    ]  # fmt: skip
    assert table["rows"] == {"CPU": [["inner", 1, 1.0, 1.0, 1, 1, 2.0, 2.0], ["outer", 1, 2.0, 1.0, 2, 1, 3.0, 1.0]]}
    assert table["metadata"]["default_device"] == "CPU"


def test_operators_that_changed_nothing_are_not_shown():
    assert stats(op("a", 0, 10), op("b", 20, 10), memory(5, 0), memory(25, 8))["rows"] == {
        "CPU": [["b", 1, 0.008, 0.008, 1, 1, 0.008, 0.008]]
    }


def test_a_device_on_which_nothing_changed_is_not_shown():
    table = stats(op("a", 0, 10), memory(5, 0, device=(1, 0)), memory(6, 512))
    assert list(table["rows"]) == ["CPU"]
    assert table["metadata"]["default_device"] == "CPU"


def test_what_modules_and_steps_allocate_themselves_counts_for_none_but_their_operators_do():
    table = stats(
        x("ProfilerStep#1", 0, 50, "user_annotation"), op("aten::mm", 10, 10), memory(5, 512), memory(15, 1024)
    )
    assert table["rows"] == {"CPU": [["aten::mm", 1, 1.0, 1.0, 1, 1, 1.0, 1.0]]}


def test_calls_inside_operators_without_records_are_not_counted():
    table = stats(
        op("outer", 0, 10), op("leaf", 2, 2), memory(3, 1024),
        op("outer", 20, 10), op("leaf", 22, 2),  # the second pair has no record
        op("leaf", 40, 2),
    )  # fmt: skip
    assert [row[:2] for row in table["rows"]["CPU"]] == [["leaf", 2], ["outer", 2]]


def test_a_window_leaves_out_records_and_calls_outside_of_it():
    events = (op("a", 0, 10), memory(5, 1024), op("a", 20, 10), memory(25, 2048), op("a", 40, 10), memory(45, 4096))
    assert stats(*events, window=(11, 30))["rows"] == {"CPU": [["a", 1, 2.0, 2.0, 1, 1, 2.0, 2.0]]}
    assert stats(*events, window=(20,))["rows"] == {"CPU": [["a", 2, 6.0, 6.0, 2, 2, 6.0, 6.0]]}
    assert stats(*events, window=(None, 30))["rows"] == {"CPU": [["a", 2, 3.0, 3.0, 2, 2, 3.0, 3.0]]}


def test_devices_stand_in_order_of_the_first_operator_that_used_them():
    table = stats(
        op("outer", 0, 30), op("inner", 5, 5), memory(6, 1024, device=(1, 1)), memory(20, 1024, device=(1, 0)),
        memory(21, 1024),
    )  # fmt: skip
    assert list(table["rows"]) == ["GPU0", "CPU", "GPU1"]
    assert table["metadata"]["default_device"] == "GPU0"


def test_devices_are_called_as_their_vendor_does():
    hip = x("hipLaunchKernel", 0, 1, "cuda_runtime", correlation=1)
    assert list(stats(op("a", 0, 10), hip, memory(5, 512, device=(6, 0)))["rows"]) == ["GPU0"]
    table = stats(op("a", 0, 10), kernel("k", 20, 1, 1), memory(5, 512, device=(20, 0)), **MLU)
    assert list(table["rows"]) == ["MLU0"]
    assert table["metadata"]["default_device"] == "MLU0"


def test_memory_of_an_unknown_device_is_called_by_the_noun_alone():
    trace = read([op("a", 0, 10), memory(5, 512, device=(1, 0))])
    nowhere = trace.table("allocations").with_columns(device_id=pl.lit(None, pl.UInt32()))
    seen = read_events(trace.with_tables(allocations=nowhere))
    forest = grow(seen, find_launches(seen))
    records = _memory.read_records(seen, forest)
    assert list(_memory.memory_stats(seen, forest, records)["rows"]) == ["GPU"]


def test_the_first_device_shown_is_the_first_accelerator_by_name():
    seen, _, _ = recorded(op("a", 0, 10))
    assert _memory.default_device(seen, ["CPU", "GPU1", "GPU0"]) == "GPU0"
    assert _memory.default_device(seen, []) == "CPU"


def test_fractions_of_microseconds_are_compared_as_recorded():
    _, _, records = recorded(op("a", 0.125, 0.25), memory(0.25, 4), memory(0.375, 4))
    assert records.ts.dtype == np.float64
    assert (records.node >= 0).tolist() == [True, False]
    assert records.in_op.tolist() == [True, False]
