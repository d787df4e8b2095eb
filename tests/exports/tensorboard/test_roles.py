from __future__ import annotations

from chrome_traces import call, kernel, op, read, x

from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._launches import find_launches
from stepscope.exports.tensorboard._roles import find_roles, flags_of, overlap_costs, step_costs
from stepscope.exports.tensorboard._steps import find_steps

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
