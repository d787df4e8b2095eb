from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepscope.analyses.common.device_work import device_work, occupancy
from stepscope.core.remedies import Recording
from stepscope.reports._idle import idle_costs, loader_advice
from stepscope.reports._summary import scope_of

US = 1_000


def costs(trace):
    scope = scope_of(trace)
    work = device_work(trace.spans, trace.tracks, needed_by="test")
    means, n_devices = occupancy(work, *scope.windows)
    idle = int(means["idle_ns"].sum())
    scope = replace(scope, n_devices=n_devices)
    found = idle_costs(work, trace, scope, idle)
    assert sum(cost.ns for cost in found) == pytest.approx(idle, abs=1)
    return {cost.kind.removeprefix("idle "): cost for cost in found}


def late(rows, *, n: int, gap_us: int, work_us: int = 2) -> None:
    """Kernels that the host launches one by one, each after the one before has ended."""
    for i in range(n):
        at = i * (gap_us + work_us) * US
        op = rows.op(at, US, "aten::add")
        rows.kernel(at + 500, work_us * US, "add", launch=rows.launch(at + 100, 100, op=op), op=op)


def test_many_short_gaps_are_the_cost_of_launching(rows) -> None:
    late(rows, n=50, gap_us=20)
    found = costs(rows.trace())["launching"]
    assert found.title.startswith("Launch-bound")
    assert found.details[0] == "49 gaps, mean 20 µs, longest 20 µs; the host is in code not recorded"
    assert "CUDA graphs" in found.details[1]


@pytest.mark.slow
def test_a_decode_whose_gaps_are_of_a_tenth_of_a_millisecond_is_launch_bound(rows) -> None:
    late(rows, n=711, gap_us=102)
    found = costs(rows.trace())
    assert next(iter(found)) == "launching"
    assert not any("longest gap" in text for text in found["launching"].details)


def test_few_long_gaps_point_to_what_the_host_was_doing(rows) -> None:
    rows.add(0, 0, 9000 * US, "train.py(1): main", "python")
    rows.add(0, 10 * US, 4900 * US, "train.py(8): log", "python")
    late(rows, n=2, gap_us=5000)
    found = costs(rows.trace())["python"]
    assert found.details[0] == "1 gap of 5 ms; 4.9 ms of it at train.py(8): log"
    assert found.details[1] == "The longest is at 2.5 µs, before aten::add"


def test_of_several_devices_the_one_that_waits_most_is_named(rows) -> None:
    for i in range(4):
        rows.kernel(i * 100 * US, 90 * US, launch=rows.launch(i * 100 * US, 1))
        rows.kernel(i * 100 * US, 20 * US, launch=rows.launch(i * 100 * US, 1), track=20)
    details = [detail for cost in costs(rows.trace()).values() for detail in cost.details]
    assert any("of it on cuda:1" in detail for detail in details)


def test_gaps_in_ranges_of_the_program_name_the_ranges(rows) -> None:
    late(rows, n=4, gap_us=5000)
    for i in range(3):
        rows.add(0, (5002 * i + 10) * US, 4900 * US, f"IO {i + 7}", "user_range")
    found = costs(rows.trace())["unrecorded"]
    assert "; 14.7 ms of it in 3 ranges such as IO " in found.details[0]
    assert len(found.details) == 2  # no advice to record what was recorded


def test_one_call_that_fills_nearly_all_is_the_cost(rows) -> None:
    rows.kernel(0, 10 * US, launch=rows.launch(0, 10))
    op = rows.op(20 * US, 633_000 * US, "aten::cudnn_convolution")
    slow = rows.launch(3_900 * US, 629_000 * US, op=op)
    rows.kernel(632_910 * US, 10 * US, "conv", launch=slow, op=op)
    found = costs(rows.trace())
    assert next(iter(found)) == "first_use"
    assert found["first_use"].details[0] == (
        "1 gap of 633 ms; 629 ms of it in one cudaLaunchKernel in aten::cudnn_convolution"
    )
    assert "warm up" in found["first_use"].details[-1]


def test_a_wait_for_the_device_is_told_with_the_call_and_the_place(rows) -> None:
    rows.add(0, 0, 900 * US, "train.py(5): step", "python")
    op = rows.op(0, 400 * US, "aten::_local_scalar_dense")
    rows.kernel(10 * US, 100 * US, launch=rows.launch(US, 100))
    rows.launch(5 * US, 300 * US, "cudaStreamSynchronize", op=op)
    rows.kernel(450 * US, 10 * US, launch=rows.launch(420 * US, 100))
    found = costs(rows.trace())["sync"]
    assert "after cudaStreamSynchronize in aten::_local_scalar_dense: .item()" in found.details[0]
    assert found.details[0].endswith("at train.py(5): step")


def test_a_wait_for_the_loader_is_told_with_what_the_loader_is(rows) -> None:
    rows.kernel(0, 10 * US, launch=rows.launch(0, 10))
    rows.add(0, 20 * US, 500 * US, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dataloader")
    rows.kernel(540 * US, 10 * US, launch=rows.launch(530 * US, 10))
    found = costs(rows.trace())["data_loading"]
    assert found.title == "The device waits for the next batch from the data loader"
    assert "num_workers" in found.details[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "in the training process itself"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "workers are not ahead"),
        ("enumerate(DataPipe)#Mapper", "ahead of time"),
    ],
)
def test_advice_depends_on_the_kind_of_loader(rows, name, words) -> None:
    rows.add(0, 0, 10, name, "dataloader")
    assert words in loader_advice(rows.trace(), Recording("kineto", "PyTorch", "cuda"))


def test_work_that_was_queued_in_time_but_starts_late_is_told_apart(rows) -> None:
    calls = [rows.launch(10 * i, 5) for i in range(3)]
    rows.kernel(1 * US, 10 * US, launch=calls[0])
    rows.kernel(13 * US, 10 * US, launch=calls[1])
    rows.kernel(123 * US, 10 * US, "last", launch=calls[2])
    found = costs(rows.trace())
    assert found["kernel_wait"].ns == 2 * US
    assert found["other"].ns == 100 * US
    assert found["other"].details[1] == "The longest is at 23 µs, before last"


def test_many_short_gaps_between_queued_kernels_ask_for_fewer_kernels(rows) -> None:
    calls = [rows.launch(i, 1) for i in range(150)]
    for i, call in enumerate(calls):
        rows.kernel(1000 + 3000 * i, 1000, launch=call)
    assert "fewer kernels" in costs(rows.trace())["kernel_wait"].details[1]


def test_without_launches_the_cause_cannot_be_told(rows) -> None:
    rows.kernel(0, 10)
    rows.kernel(50, 10)
    assert "unknown" in costs(rows.trace())["unlinked"].title


def test_gaps_count_as_far_as_they_lie_in_the_steps_and_name_the_step(rows) -> None:
    rows.step(1, 0, 100)
    rows.step(2, 100, 100)
    rows.kernel(0, 80, launch=rows.launch(0))
    rows.kernel(130, 70, launch=rows.launch(120))
    rows.kernel(900, 10, launch=rows.launch(890))
    found = costs(rows.trace())
    assert found["unrecorded"].ns == 50
    assert "in step 2" in found["unrecorded"].details[1]


def test_the_ends_without_device_work_are_told_with_what_the_host_did(rows) -> None:
    rows.op(0, 560, "aten::randn")
    rows.kernel(600, 300, launch=rows.launch(590))
    rows.launch(999)
    found = costs(rows.trace())["ends"]
    assert found.ns == 700
    assert found.title == "No device work in the first 600 ns and the last 100 ns of the recording"
    assert found.details == ("The host spends most of that in aten::randn",)


def test_the_head_of_the_first_step_is_a_gap_if_it_is_known_what_launched_the_work_after_it(rows) -> None:
    rows.step(1, 0, 1000)
    rows.op(10, 560, "aten::randn")
    rows.kernel(600, 300, launch=rows.launch(590))
    rows.kernel(800, 150, track=20)
    found = costs(rows.trace())
    assert (found["operator"].ns, found["ends"].ns) == (300, 50 + 425)
    assert found["operator"].details[0].startswith("1 gap of 600 ns")
    assert found["ends"].title == "No device work in the first 400 ns and the last 75 ns of the step"


def test_work_far_from_the_steps_does_not_make_their_ends_longer(rows) -> None:
    rows.step(1, 0, 100)
    rows.kernel(20, 60)
    rows.kernel(5_000, 50, track=20)
    found = costs(rows.trace())["ends"]
    assert found.title == "No device work in the first 60 ns and the last 10 ns of the step"  # means of two devices


def test_calls_of_one_name_that_fill_an_end_together_are_named(rows) -> None:
    rows.kernel(0, 100, launch=rows.launch(0))
    for i in range(8):
        rows.launch(110 + 100 * i, 60, "cuModuleUnload")
    assert costs(rows.trace())["ends"].details == ("480 ns of that is in 8 calls of cuModuleUnload",)


def test_a_device_that_hardly_works_is_said_to(rows) -> None:
    for i in range(4):
        rows.kernel(i * 100 * US, 90 * US, launch=rows.launch(i * 100 * US, 1))
        rows.kernel(i * 100 * US, US, launch=rows.launch(i * 100 * US, 1), track=20)
    details = [detail for cost in costs(rows.trace()).values() for detail in cost.details]
    assert any(detail.endswith("of it on cuda:1, which works for 1 % of the time") for detail in details)


def test_a_range_is_the_place_of_a_gap_only_as_far_as_it_was_open_in_it(rows) -> None:
    rows.add(0, 4900 * US, 300 * US, "async_logger", "user_range")
    rows.add(0, 10 * US, 4800 * US, "aten::add", "operator")
    late(rows, n=2, gap_us=5000)
    assert "async_logger" not in costs(rows.trace())["operator"].details[0]


def test_the_time_of_a_call_is_that_of_a_step(rows) -> None:
    for i in range(2):
        at = 1000 * US * i
        rows.step(i, at, 1000 * US)
        rows.kernel(at + 10, 100 * US, launch=rows.launch(at, 5))
        slow = rows.launch(at + 200 * US, 600 * US, "cudaMemcpy")
        rows.kernel(at + 810 * US, 190 * US, launch=slow)
    found = costs(rows.trace())["blocking_call"]
    assert found.details[0].startswith("1 gap a step, ")
    assert "; 600 µs of it in cudaMemcpy, 2 calls" in found.details[0]


def test_a_device_that_is_never_idle_costs_nothing(rows) -> None:
    rows.kernel(0, 10)
    assert costs(rows.trace()) == {}


def test_idle_time_too_short_to_be_shown_is_summed_and_not_looked_into(rows) -> None:
    for i in range(2):
        at = 10_000 * US * i
        rows.step(i, at, 10_000 * US)
        rows.kernel(at, 5_000 * US, launch=rows.launch(at, 1))
        slow = rows.launch(at + 5_001 * US, 30 * US, "cudaFree")
        rows.kernel(at + 5_040 * US, 4_960 * US, launch=slow)
    found = costs(rows.trace())
    assert {kind: (cost.ns, cost.details) for kind, cost in found.items()} == {"allocator": (80 * US, ())}


def test_short_idle_times_of_a_slow_host_count_together(rows) -> None:
    late(rows, n=50, gap_us=20, work_us=1900)  # half a percent for each of two causes, one percent for both
    for i in range(0, 50, 2):
        rows.add(0, i * 1920 * US + 1500, 18 * US, "train.py(8): log", "python")
    assert costs(rows.trace())["launching"].details
