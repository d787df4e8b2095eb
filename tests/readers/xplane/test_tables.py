from __future__ import annotations

import polars as pl
import pytest
import xplane_profiles as made

from stepscope.core.schema import TABLES
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.common.source import IssueLog
from stepscope.readers.xplane._decode import decode
from stepscope.readers.xplane._tables import build_tables


def tables_of(data):
    wire = Wire([data])
    tables, _ = build_tables(decode(wire), wire, IssueLog(), rank=None, host=None)
    return {name: TABLES[name].empty() for name in TABLES} | tables


def plain(frame, *columns):
    return frame.select(pl.col(columns).cast(pl.String) if columns else pl.all()).rows()


def spans(data, *columns):
    tables = tables_of(data)
    frame = tables["spans"].join(tables["tracks"].select("track_id", "label"), on="track_id", maintain_order="left")
    return frame.with_columns(pl.col("name", "category", "recorded_category").cast(pl.String)).select(columns).rows()


def test_streams_hold_work_and_calls_launch_it():
    frame = tables_of(made.jax_gpu())["spans"]
    work = frame.filter(pl.col("category").is_in(["kernel", "memcpy"]))
    names = frame["name"].cast(pl.String)
    assert work["name"].cast(pl.String).to_list() == ["MemcpyH2D", "loop_add", "loop_add"]
    assert [names[launch] for launch in work["launch_id"]] == ["cuMemcpyHtoDAsync", "cuLaunchKernel", "cuLaunchKernel"]
    assert work["step"].to_list() == [0, 0, 1]
    assert work.select("ts_ns", "dur_ns").rows() == [(5_000, 2_000), (20_000, 10_000), (120_000, 12_000)]


def test_host_spans_are_steps_python_calls_and_runtime_calls():
    found = spans(made.jax_gpu(), "label", "name", "category")
    assert [row[1:] for row in found if row[0] == "python"] == [
        ("train 0", "step"),
        ("$train.py:12 step", "python"),
        ("cuMemcpyHtoDAsync", "runtime"),
        ("cuLaunchKernel", "runtime"),
        ("train 1", "step"),
        ("cuLaunchKernel", "runtime"),
    ]


def test_steps_are_those_that_the_host_marks():
    steps = tables_of(made.jax_gpu())["steps"]
    assert steps.select("step", "ts_ns", "dur_ns").rows() == [(0, 0, 50_000), (1, 100_000, 50_000)]


def test_without_marks_on_the_host_steps_are_those_of_the_devices_each_as_long_as_on_the_slowest():
    planes = [made.Plane(f"/device:TPU:{i}", i + 1) for i in range(2)]
    for plane, late in zip(planes, (0, 5), strict=True):
        plane.line("Steps", plane.event("3", 10, 20 + late), plane.event("4", 50, 30 - late))
        plane.line("XLA Ops", plane.event("fusion", 12, 10), plane.event("fusion", 60, 10))
    tables = tables_of(made.space(*planes))
    assert tables["steps"].select("step", "ts_ns", "dur_ns").rows() == [(3, 0, 25_000), (4, 40_000, 30_000)]
    work = tables["spans"].filter(pl.col("category") == "kernel")
    assert work["step"].to_list() == [3, 4, 3, 4]


def test_kernels_have_their_launch_and_their_operation():
    tables = tables_of(made.jax_gpu())
    row = tables["kernels"].row(0, named=True)
    assert (row["grid_x"], row["grid_y"], row["block_x"], row["registers"], row["shared_bytes"]) == (
        8,
        2,
        128,
        32,
        1024,
    )
    assert row["est_occupancy_ratio"] == 0.5
    assert (
        plain(tables["hlo_ops"], "operation", "module", "program_id", "framework_op", "source", "shape")
        == [("fusion.1", "jit_f", "4", "jit(f)/add", "m.py:9", None)] * 2
    )  # the last three come from the module in the file
    assert {row[2] for row in spans(made.jax_gpu(), "label", "name", "recorded_category") if row[1] == "loop_add"} == {
        "loop fusion"
    }


@pytest.mark.parametrize(
    ("details", "launch"),
    [
        ("regs:38 shm:7 grid:160,1,2 block:1024,1,1", (160, 2, 38, 7, None)),
        (" grid:16,1,1 block:512,1,1 private_mem:0 group_mem:2112 occ_pct:0", (16, 1, None, 2112, None)),
        ("grid:1,2 block:x regs:99999999999 occ_pct:1.2.3", (None, None, None, None, None)),
        ("", (None, None, None, None, None)),
    ],
)
def test_launches_are_read_as_different_versions_write_them(details, launch):
    plane = made.Plane("/device:GPU:0")
    plane.line("Stream #1(Compute)", plane.event("k", 0, 1, kernel_details=details))
    row = tables_of(made.space(plane))["kernels"].row(0, named=True)
    names = ("grid_x", "grid_z", "registers", "shared_bytes", "est_occupancy_ratio")
    assert tuple(row[name] for name in names) == launch


def test_copies_have_bytes_and_a_kind():
    assert plain(tables_of(made.jax_gpu())["transfers"], "bytes", "kind") == [("4096", "HtoD")]


def test_allocators_events_are_allocations_of_their_device():
    tables = tables_of(made.jax_gpu())
    columns = ("ts_ns", "device_id", "address", "bytes", "total_allocated_bytes", "place")
    assert plain(tables["allocations"], *columns) == [
        ("12000", "1", "4096", "512", "512", "GPU_0_bfc"),
        ("130000", "1", "4096", "-512", "0", "GPU_0_bfc"),
    ]


def test_devices_are_those_with_events():
    idle = made.Plane("/device:GPU:1", device_vendor="Nvidia")
    gpu = made.Plane("/device:GPU:0", device_vendor="AMD", core_count=304, compute_cap_major=9, compute_cap_minor=4)
    devices = tables_of(made.space(idle, gpu.line("Stream #1", gpu.event("k", 0, 1))))["devices"]
    assert plain(devices, "type", "index", "sm_count", "compute_capability") == [
        ("cpu", None, None, None), ("rocm", "0", "304", "9.4"),
    ]  # fmt: skip


def test_operations_of_a_tpu_are_its_work_but_not_what_only_contains_them():
    found = spans(made.tpu(), "label", "name", "category", "recorded_category")
    assert found == [
        ("Steps", "0", "device_range", None),
        ("Steps", "1", "device_range", None),
        ("XLA Modules", "jit_f(4)", "device_range", None),
        ("XLA Ops", "while.1", "device_range", "while"),
        ("XLA Ops", "fusion.1", "kernel", "convolution fusion"),
        ("XLA Ops", "fusion.1", "kernel", "convolution fusion"),
        ("XLA Ops", "all-reduce.2", "kernel", "all-reduce"),
        ("Async XLA Ops", "copy-start", "device_range", None),
    ]


def test_operations_of_a_tpu_have_flop_bytes_framework_operation_and_source():
    tables = tables_of(made.tpu())
    assert plain(tables["kernel_metrics"], "metric", "value")[:3] == [
        ("flops", "2000.0"), ("model_flops", "1800.0"), ("bytes", "64.0"),
    ]  # fmt: skip
    assert plain(tables["hlo_ops"], "operation", "framework_op", "source", "shape")[1] == (
        "fusion.1", "jit(f)/dot_general:", "m.py:9", "bf16[8]{0}",
    )  # fmt: skip


def test_operations_that_the_host_computes_are_operators_as_are_those_of_tensorflow():
    plane = made.Plane("/host:CPU")
    plane.line(
        "tf_XLA",
        plane.event("dot.3", 0, 5, hlo_op=made.Ref("dot.3"), hlo_module=made.Ref("jit_f")),
        plane.event("model/dense/MatMul:MatMul", 10, 5),
        plane.event("IteratorGetNextOp::DoCompute", 20, 5),
        plane.event("ExecutorState::Process", 30, 5),
    )
    found = [row[0] for row in spans(made.space(plane), "category")]
    assert found == ["operator", "operator", "dataloader", "other"]
