from __future__ import annotations

import paddle_profiles as made
import polars as pl
from paddle_profiles import content, host, number, numbers, profile, thread

from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.paddle._protobuf import decode
from stepscope.readers.paddle._tables import build_tables


def tables(data):
    log = IssueLog()
    found, _ = build_tables(decode(Wire([data]), log), log, rank=None, host=None)
    return found, {row[0]: row[2] for row in log.table().iter_rows()}


def plain(frame, *columns):
    return frame.select(columns).cast({pl.Categorical: pl.String}).rows()


def test_arguments_and_stacks_of_operators():
    stacked = [
        host(f"op{i}", 0, i, i + 1, made.arguments({}, {}, stack)) for i, stack in enumerate(["x\ny", "", "x\ny"])
    ]
    node = host("op3", 0, 5, 6, made.arguments({"X": [[2]]}, {}))
    found, _ = tables(profile(thread(*((0, n) for n in (*stacked, node)))))
    assert plain(found["ops"], "span_id", "input_shapes", "input_types", "stack_id") == [
        (0, None, None, 0), (2, None, None, 0), (3, '{"X":[[2]]}', None, None),
    ]  # fmt: skip
    assert found["stacks"]["frames"].to_list() == [["x", "y"]]
    assert "ops" not in tables(profile(thread((0, host("op", 0, 0, 1)))))[0]


def test_kernels_without_details_are_listed_too():
    call = made.call("c", 1, 2, 1, made.device("gemm", made.KERNEL, 3, 4), made.kernel("other", 5, 6))
    found, _ = tables(profile(thread((0, host("x", 0, 0, 9, call)))))
    assert found["kernels"].select("span_id", "grid_x", "registers", "est_occupancy_ratio").rows() == [
        (2, None, None, None), (3, 8, 40, 0.25),
    ]  # fmt: skip


def test_copies_and_fills_are_transfers():
    call = made.call("c", 1, 2, 1, made.memcpy("MEMCPY_DtoH", 3, 4, 100), made.memset(5, 6, 8))
    found, _ = tables(profile(thread((0, host("x", 0, 0, 9, call)))))
    assert plain(found["transfers"], "bytes", "kind", "src", "dst") == [
        (100, "DtoH", "Pageable", "Device"), (8, "memset", None, "Device"),
    ]  # fmt: skip


def test_what_paddle_calls_communication_is_a_collective():
    found, _ = tables(made.training())
    assert plain(found["collectives"], "collective") == [("all_reduce",)]


def test_memory_of_tensors_and_of_the_allocator_keep_apart():
    found, issues = tables(made.training())
    columns = ("ts_ns", "device_id", "address", "bytes", "recorded_category", "place", "op_id", "span_id")
    assert plain(found["allocations"], *columns) == [
        (25_000, 1, 4096, 512, "Allocate", "Place(gpu:0)", 3, 5),
        (126_000, 1, 4096, -512, "Free", "Place(gpu:0)", 13, 14),
    ]
    levels = ("total_allocated_bytes", "total_reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
    assert found["allocations"].select(levels).rows() == [(512, 1024, 512, 1024), (0, 0, 512, 1024)]
    assert plain(found["reservations"], "bytes", "recorded_category") == [(1024, "ReservedAllocate")]
    assert issues == {}


def test_memory_events_outside_any_host_event_or_without_a_size():
    root = made.memory(made.ALLOCATE, 4, 7, place="Place(cpu)")
    bare = content(5, content(1, numbers(made.BEGAN + 5, made.FREE) + content(7, "Place(cpu)")))
    high = content(5, content(1, numbers(made.BEGAN + 6, made.ALLOCATE, 2**63 + 1, 5, 7, 9) + content(7, "odd")))
    found, issues = tables(profile(thread((0, host("x", 0, 0, 9)), root=root + bare + high + number(99, 1))))
    assert found["allocations"].select("device_id", "address", "bytes", "span_id").rows() == [
        (0, 4096, 7, None), (None, 2**63 + 1, 9, None),
    ]  # fmt: skip
    assert issues == {"incomplete_allocations": 1}
