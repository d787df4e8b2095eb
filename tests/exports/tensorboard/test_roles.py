from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import call, kernel, op, read, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exports.tensorboard._events import find_launches, read_events
from stepscope.exports.tensorboard._roles import (
    amounts,
    find_roles,
    find_steps,
    flags_of,
    intersected,
    merged,
    overlap_costs,
    step_costs,
    subtracted,
    summed,
)

MLU = {"deviceProperties": [{"id": 0, "name": "MLU370"}]}
STEP = x("ProfilerStep#1", 0, 1000, "user_annotation")


def copy(name: str, ts: float, dur: float, correlation: int, cat: str = "gpu_memcpy", **more: object):
    return kernel(name, ts, dur, correlation, cat=cat, **more)


def costs(*recorded, **meta):
    events = read_events(read(list(recorded), **meta))
    roles, steps = find_roles(events), find_steps(events, find_launches(events))
    return roles, step_costs(roles, steps), overlap_costs(roles, steps)


def parts(*recorded, **meta) -> dict[str, float]:
    """What is not 0 of the first step."""
    found = costs(*recorded, **meta)[1]
    return {role: values[0] for role, values in found.parts.items() if values[0]} | {"Total": found.total[0]}


def test_each_moment_goes_to_the_first_role_that_ran_then() -> None:
    found = parts(
        STEP, op("aten::mm", 100, 800), x("enumerate(DataLoader)#_Iter.__next__", 100, 200, "user_annotation"),
        call("cudaLaunchKernel", 250, 100, 1), kernel("k", 300, 100, 1), copy("Memcpy HtoD", 350, 100, 2),
        copy("Memset", 440, 20, 3, "gpu_memset"), op("nccl:all_reduce", 455, 45, External_id=9),
    )  # fmt: skip
    assert found == {
        "Kernel": 100, "Memcpy": 50, "Memset": 10, "Communication": 40, "Runtime": 50, "DataLoader": 150,
        "CPU Exec": 400, "Other": 200, "Total": 1000,
    }  # fmt: skip


def test_a_kernel_with_a_collectives_id_is_communication_others_are_not() -> None:
    recorded = (
        STEP, op("nccl:all_reduce", 100, 10, External_id=9), kernel("ncclKernel", 200, 50, 1, External_id=9),
        kernel("ncclKernel", 300, 50, 2, External_id=8), copy("Memcpy PtoP", 400, 50, 3, External_id=9),
    )  # fmt: skip
    assert parts(*recorded) == {"Kernel": 50, "Memcpy": 50, "Communication": 60, "Other": 840, "Total": 1000}


def test_a_kernel_and_a_collective_both_without_an_id_count_as_one_as_in_the_plugin() -> None:
    assert parts(STEP, op("nccl:all_reduce", 100, 10), kernel("k", 200, 50, 1)) == {
        "Communication": 60, "Other": 940, "Total": 1000,
    }  # fmt: skip


def test_on_mlu_a_copy_with_a_collectives_id_is_communication_too() -> None:
    recorded = (
        STEP, op("cncl:all_reduce", 100, 10, External_id=9), kernel("cnclKernel", 200, 50, 1, external_id=9),
        copy("Memcpy PtoP", 400, 50, 3, external_id=9), copy("Memcpy HtoD", 500, 20, 4, external_id=7),
    )  # fmt: skip
    assert parts(*recorded, **MLU) == {"Memcpy": 20, "Communication": 110, "Other": 870, "Total": 1000}


def test_python_work_of_a_loaders_name_is_ordinary_host_work() -> None:
    name = "enumerate(DataLoader)#_Iter.__next__"
    assert parts(STEP, x(name, 0, 10, "python"), op(name, 20, 5)) == {
        "DataLoader": 5, "CPU Exec": 10, "Other": 985, "Total": 1000,
    }  # fmt: skip


def test_once_all_time_is_claimed_the_next_role_starts_anew_as_in_the_plugin() -> None:
    found = parts(
        x("ProfilerStep#1", 100, 100, "user_annotation"), op("aten::mm", 110, 50), kernel("k", 100, 100, 9),
        call("cudaLaunchKernel", 120, 10, 1),
    )  # fmt: skip
    assert found == {"Kernel": 100, "Runtime": 10, "CPU Exec": 40, "Other": 50, "Total": 100}


def test_time_that_is_free_of_all_is_whole_numbers_where_the_traces_are_and_a_0_without_digits_where_not() -> None:
    found = costs(x("ProfilerStep#1", 0.5, 10.0, "user_annotation"), op("aten::mm", 1.5, 2.0))[1]
    assert [str(found.parts[role][0]) for role in ("Kernel", "CPU Exec", "Other")] == ["0", "2.0", "8.0"]
    found = costs(x("ProfilerStep#1", 0, 10, "user_annotation"), op("aten::mm", 1, 2))[1]
    assert [str(found.parts[role][0]) for role in ("Kernel", "CPU Exec", "Other")] == ["0", "2", "8"]


def test_means_are_over_all_steps() -> None:
    found = costs(STEP, x("ProfilerStep#2", 1000, 501, "user_annotation"), op("aten::mm", 900, 201))[1]
    assert (found.mean(), found.mean("CPU Exec"), found.mean("Kernel")) == (750.5, 100.5, 0.0)


def test_work_outside_all_steps_counts_for_whether_there_is_any() -> None:
    flags = flags_of(costs(STEP, kernel("k", 5000, 10, 1))[0])
    assert (flags.has_kernel, flags.has_runtime, flags.has_communication, flags.has_memcpy_or_memset) == (
        True, False, False, False,
    )  # fmt: skip
    assert flags.has_device


def test_a_call_that_took_no_time_is_a_call() -> None:
    flags = flags_of(costs(STEP, call("cudaLaunchKernel", 10, 0, 1))[0])
    assert flags.has_runtime
    assert not flags.has_kernel


def test_without_an_accelerator_there_is_none() -> None:
    assert not flags_of(costs(STEP, op("gloo:all_reduce", 10, 10))[0]).has_device


def test_copies_or_fills_are_one_flag() -> None:
    assert flags_of(costs(STEP, copy("Memset", 1, 1, 1, "gpu_memset"))[0]).has_memcpy_or_memset
    assert flags_of(costs(STEP, copy("Memcpy DtoD", 1, 1, 1))[0]).has_memcpy_or_memset


def overlap(*recorded) -> list[tuple[float, ...]]:
    found = costs(*recorded)[2]
    return list(
        zip(*(v.tolist() for v in (found.computation, found.communication, found.overlap, found.other)), strict=True)
    )


def test_communication_and_kernels_may_overlap() -> None:
    found = overlap(
        STEP, op("nccl:all_reduce", 100, 100, External_id=9), kernel("k", 150, 100, 1), op("aten::mm", 0, 900),
        kernel("ncclKernel", 240, 60, 2, stream=8, External_id=9),
    )  # fmt: skip
    assert found == [(100, 160, 60, 800)]


def test_without_kernels_computation_is_host_work() -> None:
    assert overlap(STEP, op("gloo:all_reduce", 100, 100), op("aten::mm", 150, 100, tid=2)) == [(100, 100, 50, 850)]


def step(number: object, ts: float, dur: float, cat: str = "user_annotation", **more: object):
    return x(f"ProfilerStep#{number}", ts, dur, cat, **more)


def steps(*recorded, **meta):
    events = read_events(read(list(recorded), **meta))
    found = find_steps(events, find_launches(events))
    return list(zip(found.names, found.start.tolist(), found.end.tolist(), strict=True))


def test_without_device_work_steps_are_as_annotated() -> None:
    assert steps(step(1, 0, 100), step(2, 150, 50), op("aten::mm", 10, 20)) == [("1", 0, 100), ("2", 150, 200)]


def test_a_step_lasts_until_the_device_work_that_it_queued_has_ended_and_the_next_begins_then() -> None:
    found = steps(
        step(1, 0, 100), step(2, 100, 100),
        call("cudaLaunchKernel", 10, 5, 1), kernel("k", 90, 40, 1),
        call("cudaLaunchKernel", 110, 5, 2), kernel("k", 140, 10, 2),
    )  # fmt: skip
    assert found == [("1", 0, 130), ("2", 130, 200)]


def test_a_step_that_the_one_before_runs_over_has_no_length() -> None:
    found = steps(
        step(1, 0, 100), step(2, 100, 20), step(3, 120, 80),
        call("cudaLaunchKernel", 10, 5, 1), kernel("k", 90, 60, 1),
        call("cudaLaunchKernel", 130, 5, 3), kernel("k", 160, 10, 3),
    )  # fmt: skip
    assert found == [("1", 0, 150), ("2", 150, 150), ("3", 150, 200)]


def test_device_work_that_ends_before_its_step_begins_on_the_device_leaves_it_empty() -> None:
    found = steps(
        step(1, 0, 100), step(2, 100, 20),
        call("cudaLaunchKernel", 10, 5, 1), kernel("k", 90, 60, 1),
        call("cudaLaunchKernel", 110, 5, 2), kernel("k", 112, 5, 2, stream=8),
    )  # fmt: skip
    assert found == [("1", 0, 150), ("2", 150, 150)]


def test_a_call_counts_only_if_it_lies_in_a_step_wholly() -> None:
    found = steps(
        step(1, 100, 100), step(2, 200, 100),
        call("cudaLaunchKernel", 90, 5, 1), kernel("early", 95, 55, 1),
        call("cudaLaunchKernel", 99, 5, 2), kernel("early", 150, 5, 2),
        call("cudaLaunchKernel", 110, 5, 3), kernel("k", 160, 10, 3),
        call("cudaLaunchKernel", 195, 10, 4), kernel("across", 205, 400, 4),
        call("cudaLaunchKernel", 300, 0, 5), kernel("at the end", 300, 20, 5),
        call("cudaLaunchKernel", 310, 5, 6), kernel("late", 320, 500, 6),
    )  # fmt: skip
    # Step 1 is delayed by the work that ended before its own began.
    assert found == [("1", 155, 200), ("2", 200, 320)]


def test_a_call_without_length_at_a_border_belongs_to_the_step_that_ends_there() -> None:
    found = steps(
        step(1, 0, 100), step(2, 100, 100),
        call("cudaLaunchKernel", 100, 0, 1), kernel("k", 110, 10, 1),
        call("cudaLaunchKernel", 101, 5, 2), kernel("k", 120, 5, 2),
    )  # fmt: skip
    assert found == [("1", 0, 120), ("2", 120, 200)]


def test_early_work_does_not_delay_a_first_step_that_queued_nothing() -> None:
    found = steps(
        step(1, 100, 100), step(2, 200, 100),
        call("cudaLaunchKernel", 10, 5, 1), kernel("early", 20, 130, 1),
        call("cudaLaunchKernel", 210, 5, 2), kernel("k", 220, 10, 2),
    )  # fmt: skip
    assert found == [("1", 100, 200), ("2", 200, 300)]


def test_trailing_steps_that_queued_nothing_are_left_out() -> None:
    found = steps(
        step(1, 0, 100), step(2, 100, 100), step(3, 200, 100), step(4, 300, 100),
        call("cudaLaunchKernel", 10, 5, 1), kernel("k", 20, 5, 1),
        call("cudaLaunchKernel", 210, 5, 2), kernel("k", 220, 5, 2),
    )  # fmt: skip
    assert [name for name, *_ in found] == ["1", "2", "3"]


def cut(n_last: int) -> list[str]:
    """Names of two steps' steps of which the first queues five kernels and the last so many."""
    launches = [(i, 10 + i) for i in range(5)] + [(5 + i, 110 + i) for i in range(n_last)]
    work = [e for i, ts in launches for e in (call("cudaLaunchKernel", ts, 1, i), kernel("k", ts + 20, 1, i))]
    return [name for name, *_ in steps(step(1, 0, 100), step(2, 100, 100), *work)]


def test_a_last_step_with_less_than_four_fifths_of_the_work_of_the_one_before_is_left_out() -> None:
    assert cut(4) == ["1", "2"]
    assert cut(3) == ["1"]


def test_annotations_on_the_device_make_further_steps_as_in_the_plugin() -> None:
    found = steps(
        step(1, 0, 100), step(1, 20, 90, "gpu_user_annotation", pid=0, tid=7), step(2, 100, 100),
        call("cudaLaunchKernel", 10, 5, 1), kernel("k", 20, 90, 1),
        call("cudaLaunchKernel", 150, 5, 2), kernel("k", 160, 10, 2),
    )  # fmt: skip
    assert found == [("1", 0, 110), ("1", 110, 110), ("2", 110, 200)]


def test_numbers_of_steps_are_shown_as_numbers_and_texts_as_they_are() -> None:
    assert [name for name, *_ in steps(step("007", 0, 10), step("warm-up", 10, 10))] == ["7", "warm-up"]


def test_without_annotated_steps_all_host_work_is_one_step() -> None:
    found = steps(
        op("aten::mm", 10, 30), x("range", 0, 100, "user_annotation"), call("cudaLaunchKernel", 20, 5, 1),
        kernel("k", 60, 30, 1),
    )  # fmt: skip
    assert found == [("0", 10, 90)]


def test_on_mlu_user_ranges_are_host_work_too() -> None:
    found = steps(op("aten::mm", 10, 30), x("range", 0, 100, "user_annotation"), kernel("k", 60, 30, 1), **MLU)
    assert found == [("0", 0, 100)]


def test_without_host_work_the_whole_recording_is_one_step() -> None:
    assert steps(kernel("k", 60, 30, 1), kernel("k", 20, 30, 2)) == [("0", 20, 90)]


def test_without_events_there_is_a_step_of_no_length() -> None:
    assert steps(x("unknown", 5, 5, "something")) == [("0", 0, 0)]


def ranges(*pairs: tuple[float, float]):
    starts, ends = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(starts), np.array(ends)


def pairs(found) -> list[tuple[float, float]]:
    return list(zip(*(values.tolist() for values in found), strict=True))


def test_ranges_that_touch_or_overlap_join_in_any_order_of_rows() -> None:
    assert pairs(merged(*ranges((30, 40), (0, 10), (10, 12), (5, 8)))) == [(0, 12), (30, 40)]


def test_nothing_merges_to_nothing() -> None:
    assert pairs(merged(*ranges())) == []


def test_a_range_without_length_stays_unless_another_touches_it() -> None:
    assert pairs(merged(*ranges((5, 5), (10, 20), (15, 15), (20, 20), (30, 30)))) == [(5, 5), (10, 20), (30, 30)]
    assert pairs(merged(*ranges((5, 5), (5, 9)))) == [(5, 9)]


def test_doubles_merge_as_they_are() -> None:
    assert pairs(merged(*ranges((1.1, 2.2), (1.5, 2.3), (3.3, 3.9), (3.5, 3.6)))) == [(1.1, 2.3), (3.3, 3.9)]


def test_the_intersection_is_cut_at_both_sets_borders() -> None:
    assert pairs(intersected(ranges((0, 10), (20, 30)), ranges((5, 22), (25, 26), (40, 50)))) == [
        (5, 10), (20, 22), (25, 26),
    ]  # fmt: skip


def test_a_point_inside_a_range_is_in_the_intersection_one_on_its_border_is_not() -> None:
    assert pairs(intersected(ranges((0, 10)), ranges((0, 0), (5, 5), (10, 10)))) == [(5, 5)]
    assert pairs(intersected(ranges((0, 0), (5, 5), (10, 10)), ranges((0, 10)))) == [(0, 0), (5, 5)]


def test_taking_off_leaves_what_is_before_between_and_after() -> None:
    assert pairs(subtracted(ranges((0, 10), (20, 30), (40, 50)), ranges((2, 3), (5, 22), (28, 30)))) == [
        (0, 2), (3, 5), (22, 28), (40, 50),
    ]  # fmt: skip


def test_taking_off_a_point_splits_a_range() -> None:
    assert pairs(subtracted(ranges((0, 10)), ranges((0, 0), (4, 4), (10, 10)))) == [(0, 4), (4, 10)]


def test_a_point_is_taken_off_only_by_what_covers_it() -> None:
    assert pairs(subtracted(ranges((5, 5), (7, 7)), ranges((6, 8)))) == [(5, 5)]


def test_taking_off_nothing_and_from_nothing() -> None:
    assert pairs(subtracted(ranges((0, 10)), ranges())) == [(0, 10)]
    assert pairs(subtracted(ranges(), ranges((0, 10)))) == []


def test_amounts_are_per_window_and_an_integer_0_where_nothing_is() -> None:
    found = amounts(ranges((0.0, 10.0), (20.0, 30.0)), ranges((5.0, 25.0), (12.0, 13.0), (0.0, 100.0), (5.0, 9.0)))
    assert found == [10.0, 0, 20.0, 4.0]
    assert [type(value) for value in found] == [float, int, float, float]


def test_sums_are_made_in_order() -> None:
    values = np.array([1e16, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1e16])
    assert summed(values) == 0.0
    assert summed(np.array([3, 4])) == 7
    assert isinstance(summed(np.array([], np.float64)), int)


points = st.lists(st.integers(0, 30), max_size=12, unique=True).map(sorted)


@given(points, points)
def test_the_parts_of_a_set_add_up(first: list[int], second: list[int]) -> None:
    a, b = (np.array(p[: len(p) // 2 * 2], np.int64).reshape(-1, 2) for p in (first, second))
    both, rest = intersected((a[:, 0], a[:, 1]), (b[:, 0], b[:, 1])), subtracted((a[:, 0], a[:, 1]), (b[:, 0], b[:, 1]))

    def inside(found) -> set[int]:
        return {t for low, high in pairs(found) for t in range(int(low), int(high))}

    of_a, of_b = inside(a.T), inside(b.T)
    assert inside(both) == of_a & of_b
    assert inside(rest) == of_a - of_b


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_the_type_of_the_times_is_kept(kind) -> None:
    a, b = ((np.array([0], kind), np.array([9], kind)), (np.array([3], kind), np.array([4], kind)))
    assert all(values.dtype == kind for found in (intersected(a, b), subtracted(a, b), merged(*a)) for values in found)
