from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard import _communication
from stepscope.exports.tensorboard._communication import find_collectives
from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._steps import Steps

MLU = [{"id": 0, "name": "MLU370-X8"}]


def found(*events, steps=((0, 1000),), **meta):
    seen = read_events(read(list(events), **meta))
    start, end = np.array(steps, np.int64).reshape(-1, 2).T
    return find_collectives(seen, Steps(start, end, [str(i) for i in range(start.size)]))


def ranges(collectives):
    pairs = list(zip(collectives.range_start.tolist(), collectives.range_end.tolist(), strict=True))
    cuts = collectives.first.tolist()
    return [pairs[lo:hi] for lo, hi in pairwise(cuts)]


def names(collectives):
    return [collectives.names[i] for i in collectives.name.tolist()]


def test_a_collective_is_a_host_operator_and_the_kernels_with_its_id():
    got = found(
        op("nccl:all_reduce", 20, 5, External_id=2),
        op("nccl:broadcast", 10, 5, External_id=1),
        op("nccl:all_to_all", 15, 1, External_id=3),
        kernel("nccl", 40, 8, 1, External_id=2),
        kernel("nccl", 30, 8, 2, External_id=2),
        kernel("gemm", 30, 9, 3, External_id=3),
        x("Memcpy PtoP", 31, 2, "gpu_memcpy", pid=0, tid=7, device=0, stream=7, correlation=4, External_id=2),
    )
    assert names(got) == ["nccl:broadcast", "nccl:all_reduce"]
    assert got.libraries == ("nccl",)
    assert got.external.tolist() == [1, 2]
    assert ranges(got) == [[(10, 15)], [(20, 25), (30, 38), (40, 48)]]


def test_annotations_count_and_of_one_id_only_the_last():
    got = found(
        x("nccl:reduce", 10, 5, "user_annotation", External_id=7),
        x("nccl:all_gather", 60, 9, "user_annotation", External_id=7),
        x("nccl:reduce", 30, 5, "gpu_user_annotation", pid=0, tid=7, External_id=8),
    )
    assert names(got) == ["nccl:reduce", "nccl:all_gather"]
    assert got.start.tolist() == [30, 60]


def test_without_a_device_library_kernels_do_not_count():
    got = found(op("gloo:all_reduce", 10, 5, External_id=1), kernel("k", 30, 8, 1, External_id=1))
    assert got.libraries == ("gloo",)
    assert ranges(got) == [[(10, 15)]]


def test_copies_of_an_mlu_count_too():
    got = found(
        op("cncl:all_reduce", 100, 50, external_id=3),
        kernel("cncl", 120, 60, 1, external_id=3),
        x("Memcpy PtoP", 200, 40, "mlu_memcpy", pid=0, tid="1", device=0, correlation=2, external_id=3),
        x("Memcpy HtoD", 300, 20, "mlu_memcpy", pid=0, tid="1", device=0, correlation=4, external_id=9),
        deviceProperties=MLU,
    )
    assert got.libraries == ("cncl",)
    assert ranges(got) == [[(100, 150), (120, 180), (200, 240)]]


def test_the_longest_of_those_that_start_together_is_first():
    got = found(op("nccl:reduce", 5, 2, External_id=1), op("nccl:broadcast", 5, 9, tid=2, External_id=2))
    assert names(got) == ["nccl:broadcast", "nccl:reduce"]


def test_a_collective_belongs_to_the_step_that_holds_it_wholly():
    got = found(
        *(op("nccl:reduce", ts, dur, External_id=i) for i, (ts, dur) in enumerate(
            [(0, 5), (15, 5), (28, 4), (30, 3), (30, 0), (45, 0), (60, 0), (70, 5)]
        )),
        steps=((10, 30), (30, 45), (50, 60)),
    )  # fmt: skip
    # Before the first; inside; across a border; at the start of the next; an empty one there, which the step before
    # may no longer have; two empty ones at the end of a step; behind the last.
    assert got.step.tolist() == [-1, 0, -1, 1, 1, 1, 2, -1]


@pytest.mark.parametrize(
    ("dims", "types", "n_bytes"),
    [
        ([[8, 4]], ["float"], 128),
        ([[8, 4]], ["c10::BFloat16"], 64),
        ([[8, 4], [2], []], ["long int", "unsigned char", "int"], 262),
        ([[8, 4]], ["double"], 0),
        ([[8], [4]], ["c10::Half"], 16),
        ([[[8], [4]]], ["float"], 0),
        ([], [], 0),
        ({"no": "list"}, ["float"], 0),
    ],
)
def test_bytes_are_elements_times_the_size_of_one(dims, types, n_bytes):
    got = found(op("nccl:reduce", 0, 5, External_id=1, Input_Dims=dims, Input_type=types))
    assert got.n_bytes.tolist() == [n_bytes]


def test_equal_inputs_of_several_collectives_are_measured_once_and_missing_ones_are_empty():
    sized = {"Input_Dims": [[3]], "Input_type": ["float"]}
    got = found(
        op("nccl:reduce", 0, 5, External_id=1, **sized), op("nccl:reduce", 9, 5, External_id=2),
        op("nccl:reduce", 19, 5, External_id=3, **sized),
    )  # fmt: skip
    assert got.n_bytes.tolist() == [12, 0, 12]


def test_shapes_that_are_no_json_have_no_size():
    assert _communication._size("[[1", '["float"]') == 0


def test_two_libraries_are_both_named_and_a_trace_without_any_has_no_collectives():
    assert found(op("nccl:reduce", 0, 1, External_id=1), op("gloo:reduce", 5, 1, External_id=2)).libraries == (
        "nccl", "gloo",
    )  # fmt: skip
    nothing = found(op("aten::mm", 0, 1, External_id=1))
    assert nothing.row.size == 0
    assert nothing.libraries == ()
    assert nothing.first.tolist() == [0]
