from __future__ import annotations

import polars as pl
import pytest

from stepscope.exports.latencyprism._cycles import cycles_of
from stepscope.exports.latencyprism._shares import events_in_cycles, merged_runs, shares


@pytest.fixture
def two(rows):
    """Two cycles of 100 ns with a pause of 10 between."""
    rows.step(1, 0, 100)
    rows.step(2, 110, 100)
    return rows


def events(trace):
    return events_in_cycles(trace, cycles_of(trace))


def test_device_work_belongs_whole_to_the_cycle_that_launched_it(two, recorded):
    two.kernel(90, 60, launch=two.launch(50))
    two.kernel(150, 5, "ncclDevKernel_AllReduce", launch=two.launch(115), track=20)
    two.kernel(205, 50, "Memset (Device)")  # without a launch: by its own start
    two.kernel(104, 5, "lost")
    assert events(recorded(two)).rows() == [
        (1, 42, "gpu0", "gemm", "gpu_compute", "kernel", 90, 150),
        (2, 42, "gpu1", "ncclDevKernel_AllReduce", "gpu_comm", "kernel", 150, 155),
        (2, 42, "gpu0", "Memset (Device)", "gpu_memcpy_h2d", "memset", 205, 255),
    ]


def test_what_runs_on_the_host_is_cut_at_the_borders(two, recorded):
    two.add(1, 90, 60, "oncpu", "sched_oncpu")
    two.add(1, 101, 5, "oncpu", "sched_oncpu")
    assert events(recorded(two)).select("cycle", "pid", "device", "start", "end").rows() == [
        (1, 42, "host", 90, 100), (2, 42, "host", 110, 150),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("cross_device_reduce_1stage", "kernel", "gpu_compute"),
        ("Memcpy HtoD (Pinned -> Device)", "memcpy", "gpu_memcpy_h2d"),
        ("Memcpy DtoH (Device -> Pageable)", "memcpy", "gpu_memcpy_d2h"),
        ("Memcpy DtoD (Device -> Device)", "memcpy", "gpu_memcpy_d2d"),
        ("Memcpy PtoP", "memcpy", "gpu_memcpy_h2d"),
        ("mmap", "other", "cpu_os_syscall_mem"),
        ("cudaStreamSynchronize", "runtime", "cpu_sync"),
        ("write", "io", "disk_read_and_write"),
        ("runq", "sched_runq", "runq"),
        ("write", "other", None),
        ("cudaDeviceSynchronize", "runtime", None),
        ("aten::mm", "operator", None),
    ],
)
def test_events_have_the_published_types(two, recorded, name, category, kind):
    two.add(10 if category in ("kernel", "memcpy") else 0, 10, 5, name, category)
    assert events(recorded(two))["type"].to_list() == ([] if kind is None else [kind])


def test_time_on_cores_is_joined_where_it_overlaps(two, recorded):
    for track, ts, dur in ((0, 10, 20), (1, 20, 20), (0, 40, 5), (1, 60, 10), (0, 120, 5), (0, 62, 2)):
        two.add(track, ts, dur, "oncpu", "sched_oncpu")
    two.kernel(5, 50)
    found = merged_runs(events(recorded(two))).filter(pl.col("type") == "oncpu")
    assert found.select("cycle", "start", "end", "weight", "calls").rows() == [
        (1, 10, 40, 40, 2), (1, 40, 45, 5, 1), (1, 60, 70, 12, 2), (2, 120, 125, 5, 1),
    ]  # fmt: skip


def test_shares_add_up_over_threads_and_may_exceed_all(two, recorded):
    for track in (0, 1):
        two.add(track, 0, 80, "oncpu", "sched_oncpu")
    two.kernel(10, 30)
    two.kernel(120, 25)
    trace = recorded(two)
    found = shares(events(trace), cycles_of(trace)).sort("cycle", "name")
    assert found.select("cycle", "pid", "device", "name", "calls", "total_ns", "type", "beta_ratio").rows() == [
        (1, 42, "gpu0", "gemm", 1, 30, "gpu_compute", 0.3),
        (1, 42, "host", "oncpu", 2, 160, "oncpu", 1.6),
        (2, 42, "gpu0", "gemm", 1, 25, "gpu_compute", 0.25),
    ]


def test_events_of_one_name_have_the_type_of_the_last(two, recorded):
    two.add(0, 10, 5, "write", "io")
    two.add(10, 20, 5, "write", "kernel")
    trace = recorded(two)
    assert shares(events(trace), cycles_of(trace))["type"].to_list() == ["gpu_compute"] * 2
