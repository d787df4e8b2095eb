from __future__ import annotations

import paddle_profiles as made
import polars as pl
import pytest
from paddle_profiles import content, host, number, numbers, profile, thread

from stepscope.core.schema import CATEGORIES
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.common.source import IssueLog
from stepscope.readers.paddle._protobuf import decode
from stepscope.readers.paddle._tables import CATEGORY, _place, build_tables, build_tracks

US = 1000


def tables(data, rank=None):
    log = IssueLog()
    found, _ = build_tables(decode(Wire([data]), log), log, rank=rank, host=None)
    return found, {row[0]: row[2] for row in log.table().iter_rows()}


def test_every_type_of_paddle_has_a_category_of_ours_and_keeps_its_own_word():
    assert set(CATEGORY.values()) <= set(CATEGORIES)
    spans = tables(made.training())[0]["spans"]
    found = spans.select("recorded_category", "category").unique().cast(pl.String).sort("recorded_category").rows()
    assert found == [
        ("Communication", "operator"), ("CudaRuntime", "runtime"), ("Dataloader", "dataloader"),
        ("DygraphKernelLaunch", "other"), ("Forward", "module"), ("Kernel", "kernel"), ("Memcpy", "memcpy"),
        ("Operator", "operator"), ("OperatorInner", "other"), ("ProfileStep", "step"),
        ("PythonUserDefined", "user_range"),
    ]  # fmt: skip


def test_device_work_belongs_to_the_operator_and_the_step_that_launched_it():
    spans = tables(made.training())[0]["spans"]
    names = spans["name"].cast(pl.String)
    work = spans.filter(pl.col("category").is_in(["kernel", "memcpy"])).sort("ts_ns")
    linked = work.select(
        "ts_ns", "correlation", "step",
        launch=names.gather(work["launch_id"]), op=names.gather(work["op_id"]),
    )  # fmt: skip
    assert linked.rows() == [
        (30 * US, 1, 3, "cudaLaunchKernel", "matmul dygraph"),
        (60 * US, 2, 3, "cudaLaunchKernel", "all_reduce"),
        (75 * US, 3, 3, "cudaMemcpyAsync", None),
        (130 * US, 4, 4, "cudaLaunchKernel", "matmul dygraph"),
    ]


def test_parents_are_the_recorded_ones():
    spans = tables(made.training())[0]["spans"]
    names = spans["name"].cast(pl.String)
    above = spans.filter(pl.col("parent_id").is_not_null()).select(
        "name", up=names.gather(spans["parent_id"].drop_nulls())
    )
    assert above.cast(pl.String).row(-1) == ("my range", "ProfileStep#4")
    assert ("cudaLaunchKernel", "all_reduce") in above.cast(pl.String).rows()


def test_steps_are_numbered_ranges_of_one_thread():
    nodes = [host(f"ProfileStep#{i}", made.STEP, i * 10, i * 10 + 9) for i in (2, 3)]
    other = thread(
        (0, host("ProfileStep#7", made.STEP, 0, 90, tid=9)), (0, host("ProfileStep", made.STEP, 0, 90, tid=9)), tid=9
    )
    steps = tables(profile(thread(*((0, n) for n in nodes)), other), rank=4)[0]["steps"]
    assert steps.rows() == [(2, 4, 20, 9, "annotation"), (3, 4, 30, 9, "annotation")]


def test_threads_come_in_the_order_of_their_ids_and_ties_in_that_of_the_file():
    late = thread((0, host("outer", 0, 5, 9, tid=20)), (1, host("inner", 0, 5, 9, tid=20)), tid=20)
    early = thread((0, host("first", 0, 7, 9, tid=3)), tid=3)
    spans = tables(profile(late, early))[0]["spans"]
    assert spans.select("name", "parent_id").cast({"name": pl.String}).rows() == [
        ("first", None),
        ("outer", None),
        ("inner", 1),
    ]


def test_a_parent_that_begins_later_is_none():
    """Links that point forward could form rings."""
    found, issues = tables(profile(thread((0, host("a", 0, 50, 60)), (1, host("b", 0, 1, 2)))))
    assert found["spans"]["parent_id"].null_count() == 2
    assert issues == {"odd_parents": 1}


def test_times_that_cannot_be_are_dropped_or_mended():
    nodes = [(0, host(f"n{i}", 0, i, i + 5)) for i in range(300)]
    nodes += [(0, host("wild", 0, 10**18, 10**18 + 5)), (0, host("negative", 0, 9, 4))]
    found, issues = tables(profile(thread(*nodes)))
    assert issues == {"wild_times": 1, "negative_durations": 1}
    spans = found["spans"]
    assert spans.height == 301
    assert spans.filter(spans["name"] == "negative")["dur_ns"].to_list() == [0]


def tracks_of(data, rank=None, machine=None):
    return build_tracks(decode(Wire([data]), IssueLog()), rank, machine)


def test_threads_have_names_and_streams_devices():
    found = tracks_of(made.training(), 2, "node-7")
    assert found.tracks.rows() == [
        (0, 2, "node-7", 5, 7, None, None, "thread", None, "MainThread"),
        (1, 2, "node-7", None, None, 1, 3, "stream", None, "stream 3"),
        (2, 2, "node-7", None, None, 1, 4, "stream", None, "stream 4"),
    ]
    assert found.devices.select(pl.exclude("^recorded_.*$")).rows() == [
        (0, "cpu", None, None, None, None, None),
        (1, "cuda", 0, "NVIDIA T4", 40, 16 << 30, "7.5"),
    ]
    assert set(found.of_host.tolist()) == set(found.of_memory.tolist()) == {0}
    assert found.of_device.tolist() == [2, 1, 1, 1]


def test_devices_are_known_from_work_alone():
    call = made.call("hipLaunchKernel", 1, 2, 1, made.kernel("k", 3, 4, index=5), made.kernel("k", 3, 4, index=1))
    found = tracks_of(profile(thread((0, host("x", 0, 0, 9, call)))))
    assert found.devices.select("device_id", "type", "index", "name").rows() == [
        (0, "cpu", None, None), (1, "rocm", 1, None), (2, "rocm", 5, None),
    ]  # fmt: skip
    assert found.tracks["device_id"].to_list() == [None, 1, 2]


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("Place(cpu)", -1),
        ("Place(gpu:3)", 3),
        ("Place(xpu)", 0),
        ("Place(gpu_pinned)", None),
        ("elsewhere", None),
        ("", None),
    ],
)
def test_a_place_names_the_device_whose_memory_it_is(text, index):
    assert _place(text) == index


def test_indices_that_no_device_has_make_no_devices():
    call = made.call("c", 1, 2, 1, made.kernel("k", 3, 4, index=-7), made.kernel("k", 3, 4, index=10**9))
    found = tracks_of(profile(thread((0, host("x", 0, 0, 9, call)))))
    assert found.devices.height == 1
    assert found.tracks["device_id"].to_list() == [None, None, None]


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
