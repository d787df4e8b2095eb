from __future__ import annotations

from chrome_traces import call, kernel, op, read, x

from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._launches import find_launches
from stepscope.exports.tensorboard._steps import find_steps

MLU = {"deviceProperties": [{"id": 0, "name": "MLU370"}]}


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
