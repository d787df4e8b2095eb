from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chrome_traces import call, kernel, op, read, x

from stepscope.exports.tensorboard._devices import (
    buckets_of,
    device_metrics,
    eligible_ratio,
    find_devices,
    swept,
    trace_counters,
    utilization,
)
from stepscope.exports.tensorboard._events import Dialect, find_launches, read_events
from stepscope.exports.tensorboard._forest import costs_of, grow
from stepscope.exports.tensorboard._names import uses_tensor_cores
from stepscope.exports.tensorboard._roles import find_steps

STEP = x("ProfilerStep#1", 0, 1000, "user_annotation")
MLU = {"deviceProperties": [{"id": 0, "name": "MLU370-X8", "totalMem(MiB)": 49152, "computeMajor": 3}]}
H100 = {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_024_112_640, "computeMajor": 9, "computeMinor": 0}


def launched(
    name: str, ts: float, dur: float, blocks: float | None = None, occupancy: float | None = None, **more: Any
):
    """A kernel with what the recorder worked out of its launch."""
    event = kernel(name, ts, dur, more.pop("correlation", int(ts)), grid=[1, 1, 1], **more)
    known = {"blocks per SM": blocks, "est. achieved occupancy %": occupancy}
    event["args"] |= {key: value for key, value in known.items() if value is not None}
    return event


def parts(*recorded, **meta):
    events = read_events(read(list(recorded), **meta))
    launches = find_launches(events)
    forest = grow(events, launches)
    return events, launches, forest, events.where(uses_tensor_cores, launches.work)


def devices(*recorded, **meta):
    events, launches, forest, uses_tc = parts(*recorded, **meta)
    return find_devices(events, launches, forest, find_steps(events, launches), uses_tc)


def table(*recorded, **meta) -> dict[str, Any]:
    events = read_events(read(list(recorded), **meta))
    found = device_metrics(devices(*recorded, **meta), events.properties, events.dialect)
    assert found is not None
    return found


def rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["title"], row["value"]) for row in found["data"]]


def test_utilization_is_the_part_of_the_steps_in_which_any_kernel_ran() -> None:
    (use,) = devices(STEP, kernel("a", 100, 200, 1), kernel("b", 200, 200, 2, stream=8), kernel("c", 900, 500, 3))
    assert use.busy_ratio == 0.4
    assert [values.tolist() for values in use.busy] == [[100, 900], [400, 1400]]


def test_copies_are_no_utilization_and_make_no_device() -> None:
    assert devices(STEP, kernel("Memcpy HtoD", 100, 200, 1, cat="gpu_memcpy")) == []


def test_devices_come_by_number_and_those_the_plugin_has_no_place_for_are_left_out() -> None:
    found = devices(
        STEP, kernel("a", 100, 200, 1, device=3), kernel("b", 1, 2, 2, device=1), kernel("c", 1, 2, 3, device=64)
    )
    assert [(use.device, use.busy_ratio) for use in found] == [(1, 0.002), (3, 0.2)]


def test_the_efficiency_is_the_sum_of_blocks_per_multiprocessor_1_at_most_over_the_steps() -> None:
    (use,) = devices(
        x("ProfilerStep#1", 0, 100, "user_annotation"), launched("a", 10, 20, 0.5),
        launched("b", 20, 20, 0.75, stream=8), launched("c", 90, 20, 4.0), launched("d", 50, 10, -1.0),
    )  # fmt: skip
    ranges = list(zip(use.sm_start.tolist(), use.sm_end.tolist(), use.sm_ratio.tolist(), strict=True))
    assert ranges == [(10, 20, 0.5), (20, 30, 1.0), (30, 40, 0.75), (90, 110, 1.0)]
    assert use.sm_efficiency_ratio == pytest.approx((5 + 10 + 7.5 + 10) / 100)


def test_the_occupancy_is_the_mean_by_duration_inside_the_steps() -> None:
    (use,) = devices(
        x("ProfilerStep#1", 0, 100, "user_annotation"), launched("a", 10, 20, occupancy=29.0),
        launched("b", 80, 60, occupancy=50.0), launched("c", 40, 10, occupancy=-1.0),
        launched("d", 200, 10, occupancy=9.0),
    )  # fmt: skip
    assert use.occupancy_percent == (29.0 * 20 + 50.0 * 20) / 40


def test_what_nothing_in_the_steps_tells_is_unknown() -> None:
    (use,) = devices(x("ProfilerStep#1", 0, 100, "user_annotation"), launched("late", 200, 10, 0.5, 30.0))
    assert (use.sm_efficiency_ratio, use.occupancy_percent, use.tensor_core_ratio) == (None, None, None)
    assert use.sm_ratio.tolist() == [0.5]


def test_steps_of_no_length_have_no_utilization() -> None:
    (use,) = devices(x("ProfilerStep#1", 10, 0, "user_annotation"), launched("k", 5, 10, 0.5, 30.0))
    assert (use.busy_ratio, use.sm_efficiency_ratio, use.occupancy_percent) == (0.0, None, None)


def test_a_kernel_without_launch_values_is_only_busy() -> None:
    (use,) = devices(STEP, kernel("k", 100, 200, 1))
    assert (use.busy_ratio, use.sm_ratio.size, use.sm_efficiency_ratio, use.occupancy_percent) == (0.2, 0, None, None)


def test_the_running_sum_keeps_its_residue_as_the_plugins_does() -> None:
    start, end, value = np.array([130, 135, 145]), np.array([140, 150, 170]), np.array([0.5, 0.6, 0.3])
    found = list(zip(*(values.tolist() for values in swept(start, end, value)), strict=True))
    assert found[:5] == [
        (130, 135, 0.5), (135, 140, 1.0), (140, 145, 1.1 - 0.5), (145, 150, 1.1 - 0.5 + 0.3),
        (150, 170, 1.1 - 0.5 + 0.3 - 0.6),
    ]  # fmt: skip


def test_what_starts_as_another_ends_starts_first_and_nothing_is_swept_to_nothing() -> None:
    both = swept(np.array([0, 10]), np.array([10, 20]), np.array([0.25, 0.5]))
    assert [values.tolist() for values in both] == [[0, 10], [10, 20], [0.25, 0.5]]
    empty = np.array([], np.int64)
    assert [values.tolist() for values in swept(empty, empty, empty.astype(float))] == [[], [], []]


OPERATORS = (
    STEP, op("aten::linear", 0, 400, External_id=1), op("aten::mm", 10, 300, External_id=2),
    op("aten::add", 500, 100, External_id=3),
    call("cudaLaunchKernel", 20, 5, 1, External_id=2), kernel("volta_h884gemm", 100, 30, 1),
    call("cudaLaunchKernel", 30, 5, 2, External_id=2), kernel("splitK", 130, 10, 2),
    call("cudaLaunchKernel", 320, 5, 3, External_id=1), kernel("bias", 350, 20, 3),
    call("cudaMemcpyAsync", 510, 5, 4, External_id=3), kernel("Memcpy DtoD", 520, 500, 4, cat="gpu_memcpy"),
    call("cudaLaunchKernel", 520, 5, 5, External_id=3), kernel("add", 550, 40, 5, device=1),
    kernel("nobody's h884", 700, 100, 9),
)  # fmt: skip


def test_the_tensor_core_ratio_is_of_the_kernels_that_operators_queued() -> None:
    assert [(use.device, use.tensor_core_ratio) for use in devices(*OPERATORS)] == [(0, 0.5), (1, 0.0)]


def test_a_device_whose_kernels_no_operator_queued_has_none_of_it() -> None:
    found = devices(*OPERATORS, kernel("h884", 700, 10, 10, device=2))
    assert [use.tensor_core_ratio for use in found] == [0.5, 0.0, 0.0]


def test_the_eligible_time_is_that_of_the_innermost_operators_that_can_use_tensor_cores() -> None:
    events, launches, forest, uses_tc = parts(*OPERATORS)
    costs = costs_of(events, launches, forest, uses_tc)
    assert eligible_ratio(events, launches, forest, costs) == 40 / 100


def test_without_kernels_of_operators_nothing_is_eligible() -> None:
    events, launches, forest, uses_tc = parts(STEP, op("aten::mm", 0, 10))
    assert eligible_ratio(events, launches, forest, costs_of(events, launches, forest, uses_tc)) == 0.0


def test_the_table_describes_and_measures_each_device() -> None:
    kernels = (
        op("aten::mm", 0, 50, External_id=1), call("cudaLaunchKernel", 5, 5, 100, External_id=1),
        launched("h884", 100, 250, 0.5, 12.5),
    )  # fmt: skip
    found = table(STEP, *kernels, kernel("k", 400, 2, 1, device=1), deviceProperties=[H100])
    assert found["title"] == "GPU Summary"
    assert rows(found) == [
        ("GPU 0:", ""), ("Name", "NVIDIA H100"), ("Memory", "79.18 GB"), ("Compute Capability", "9.0"),
        ("GPU Utilization", "25.0 %"), ("Est. SM Efficiency", "12.5 %"), ("Est. Achieved Occupancy", "12.5 %"),
        ("Kernel Time using Tensor Cores", "100.0 %"), ("<hr/>", ""), ("GPU 1:", ""), ("GPU Utilization", "0.2 %"),
        ("Kernel Time using Tensor Cores", "0.0 %"),
    ]  # fmt: skip
    assert [line.partition(":")[0] for line in found["tooltip"].split("\n\n")] == [
        "The GPU usage metrics", "GPU Utilization", "Est. SM Efficiency", "Est. Achieved Occupancy",
        "Kernel using Tensor Cores",
    ]  # fmt: skip


def test_the_tooltip_tells_only_of_what_is_shown() -> None:
    assert table(STEP, kernel("k", 100, 250, 1))["tooltip"] == (
        "The GPU usage metrics:\n\nGPU Utilization:\nGPU busy time / All steps time. The higher, the better. "
        "GPU busy time is the time during which there is at least one GPU kernel running on it. All steps time is the "
        "total time of all profiler steps(or called as iterations).\n"
    )


def test_mlu_has_its_own_words_and_neither_multiprocessors_nor_tensor_cores() -> None:
    found = table(
        STEP, op("aten::mm", 0, 50, External_id=1),
        x("cnInvokeKernel", 5, 5, "mlu_runtime", correlation=100, External_id=1),
        launched("hmma_conv1x1", 100, 250, 0.5, 12.5), **MLU,
    )  # fmt: skip
    assert found["title"] == "MLU Summary"
    assert rows(found) == [
        ("MLU 0:", ""), ("Name", "MLU370-X8"), ("Memory", "48.0 GB"), ("MLU Utilization", "25.0 %"),
        ("Kernel Time using Tensor Cores", "0.0 %"),
    ]  # fmt: skip
    assert found["tooltip"] == (
        "The MLU usage metrics:\n\nMLU Utilization:\nMLU busy time / All steps time. The higher, the better. MLU busy "
        "time is the time during which there is at least one MLU kernel running on it. All steps time is the total "
        "time of all profiler steps(or called as iterations).\n\nKernel using Tensor Cores:\nTotal MLU Time for Tensor "
        "Core kernels / Total MLU Time for all kernels.\nIt is always 0.0 On MLU devices because MLU does not using "
        "Tensor Cores.\n"
    )


def test_without_kernels_there_is_no_table() -> None:
    assert device_metrics([], [H100], Dialect("cuda")) is None


MLU_SMALL = {"deviceProperties": [{"id": 0, "name": "MLU370"}]}


def with_blocks(ts: float, dur: float, blocks: float, **more: Any):
    event = kernel("k", ts, dur, int(ts), grid=[1, 1, 1], **more)
    event["args"]["blocks per SM"] = blocks
    return event


def counters(*recorded, **meta) -> list[tuple[str, int, float, dict[str, float]]]:
    events = read_events(read(list(recorded), **meta))
    launches = find_launches(events)
    forest = grow(events, launches)
    tc = events.where(uses_tensor_cores, launches.work)
    found = list(trace_counters(events, find_devices(events, launches, forest, find_steps(events, launches), tc)))
    assert all(list(event) == ["ph", "name", "pid", "ts", "args"] and event["ph"] == "C" for event in found)
    return [(event["name"], event["pid"], event["ts"], event["args"]) for event in found]


def buckets(*recorded) -> list[tuple[float, float]]:
    starts, ends = buckets_of(read_events(read(list(recorded))))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def test_each_device_has_its_utilization_by_bucket_after_a_scale_and_before_a_0() -> None:
    found = counters(op("aten::mm", 0, 4), kernel("a", 1, 2, 1, device=0), kernel("b", 2, 3, 2, device=1))
    name, key = "GPU 0 Utilization", "GPU Utilization"
    assert found[:8] == [
        (name, 0, 0, {key: 1}), (name, 0, 0, {key: 0}), (name, 0, 0, {key: 0.0}), (name, 0, 1, {key: 1.0}),
        (name, 0, 2, {key: 1.0}), (name, 0, 3, {key: 0.0}), (name, 0, 4, {key: 0.0}), (name, 0, 5, {key: 0}),
    ]  # fmt: skip
    assert [(ts, *args.values()) for name, pid, ts, args in found[8:] if (name, pid) == ("GPU 1 Utilization", 1)] == [
        (0, 1), (0, 0), (0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 0),
    ]  # fmt: skip


def test_the_efficiency_follows_with_a_start_and_an_end_for_each_range() -> None:
    found = counters(op("aten::mm", 0, 4), with_blocks(1, 2, 0.5), with_blocks(3, 1, 8.0))
    name, key = "GPU 0 Est. SM Efficiency", "Est. SM Efficiency"
    assert found[7:] == [
        (name, 0, 0, {key: 1}), (name, 0, 0, {key: 0}), (name, 0, 1, {key: 0.5}), (name, 0, 3, {key: 0}),
        (name, 0, 3, {key: 1.0}), (name, 0, 4, {key: 0}),
    ]  # fmt: skip


def test_mlu_has_no_efficiency() -> None:
    assert {name for name, *_ in counters(op("aten::mm", 0, 4), with_blocks(1, 2, 0.5), **MLU_SMALL)} == {
        "MLU 0 Utilization"
    }


def test_without_kernels_there_are_no_counters() -> None:
    assert counters(op("aten::mm", 0, 4)) == []


def test_a_bucket_is_as_long_as_gives_a_hundred_at_most_and_the_last_may_be_longer() -> None:
    assert len(buckets(op("a", 0, 100))) == 100
    found = buckets(op("a", 1000, 234))
    assert len(found) == 23
    assert (found[0], found[-1]) == ((1000, 1010), (1220, 1234))


def test_buckets_cover_the_recording_as_the_profiler_names_it_the_last_of_them() -> None:
    recorded = [x("PyTorch Profiler (0)", ts, 3, "Trace") for ts in (0, 10)]
    assert buckets(op("aten::mm", 0, 400), *recorded) == [(10, 11), (11, 12), (12, 13)]
    assert len(buckets(op("aten::mm", 0, 4), x("another", 0, 2, "Trace"))) == 4


def test_less_than_a_microsecond_has_no_bucket_and_no_utilization() -> None:
    assert buckets(op("aten::mm", 0.0, 0.5)) == []
    names = [name for name, *_ in counters(op("aten::mm", 0.0, 0.5), with_blocks(0.125, 0.25, 0.5))]
    assert names == ["GPU 0 Est. SM Efficiency"] * 2


def test_without_events_there_is_no_bucket() -> None:
    assert buckets(x("unknown", 0, 5, "something")) == []


def test_a_given_utilization_becomes_counters_in_the_devices_words() -> None:
    found = list(utilization(2, [10, 20], [0.5, 0], Dialect("mlu")))
    assert [(e["name"], e["ts"], e["args"]) for e in found] == [
        ("MLU 2 Utilization", 10, {"MLU Utilization": 1}), ("MLU 2 Utilization", 10, {"MLU Utilization": 0}),
        ("MLU 2 Utilization", 10, {"MLU Utilization": 0.5}), ("MLU 2 Utilization", 20, {"MLU Utilization": 0}),
    ]  # fmt: skip
