from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard import _distributed
from stepscope.exports.tensorboard._distributed import (
    Part,
    Worker,
    by_span,
    device_info,
    distributed,
    find_collectives,
    used_devices,
    workers_of,
)
from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._roles import Overlap, Steps

V100 = {"name": "V100", "totalGlobalMem": 16945512448, "computeMajor": 7, "computeMinor": 0}
SIZED = {"Input_Dims": [[4]], "Input_type": ["float"]}


def part(worker, *events, costs=((0, 0, 0, 0),), steps=((0, 1000),), names=("5",), **meta):
    seen = read_events(read(list(events), **meta))
    start, end = np.array(steps, np.int64).T
    step = Steps(start, end, list(names))
    of_step = Overlap(*(np.array(values) for values in zip(*costs, strict=True)))
    return Part(worker, find_collectives(seen, step), step, of_step, used_devices(seen), seen.properties, "GPU")


def reduces(*spans, library="nccl"):
    return [op(f"{library}:all_reduce", ts, dur, External_id=i, **SIZED) for i, (ts, dur) in enumerate(spans, 1)]


def test_data_moves_in_the_last_part_of_a_collective_as_long_as_it_takes_the_shortest():
    slow = part("b_1", *reduces((10, 30), (100, 5)), kernel("nccl", 50, 40, 1, External_id=1))
    fast = part("b_0", *reduces((35, 10), (100, 5)), kernel("nccl", 60, 30, 1, External_id=1))
    view = distributed([fast, slow])
    assert view is not None
    assert list(view) == ["gpu_info", "steps_to_overlap", "steps_to_wait", "comm_ops"]
    assert view["gpu_info"] is None
    assert view["steps_to_wait"] == {
        "metadata": {
            "title": "Synchronizing/Communication Overview",
            "legends": ["Data Transfer Time", "Synchronizing Time"],
            "units": "us",
        },
        "data": {"all": {"b_0": [45, 0], "b_1": [45, 30]}, "5": {"b_0": [45, 0], "b_1": [45, 30]}},
    }
    assert view["comm_ops"]["metadata"] == {"title": "Communication Operations Stats"}
    table = view["comm_ops"]["data"]["b_1"]
    assert [c["name"] for c in table["columns"]] == [
        "Name", "Calls", "Total Size (bytes)", "Avg Size (bytes)", "Total Latency (us)", "Avg Latency (us)",
        "Data Transfer Time (us)", "Avg Data Transfer Time (us)",
    ]  # fmt: skip
    assert table["rows"] == [["nccl:all_reduce", 2, 32, 16, 75, 38, 45, 22]]
    assert json.loads(json.dumps(view)) == view


def test_what_runs_at_the_same_time_counts_once_and_names_come_in_order_of_the_first():
    events = (
        op("gloo:reduce", 0, 10, External_id=1), op("gloo:broadcast", 5, 10, tid=2, External_id=2),
        op("gloo:reduce", 8, 10, tid=3, External_id=3),
    )  # fmt: skip
    view = distributed([part("w", *events)])
    assert view is not None
    assert [row[:2] + row[4:6] for row in view["comm_ops"]["data"]["w"]["rows"]] == [
        ["gloo:reduce", 2, 18, 9], ["gloo:broadcast", 1, 10, 10],
    ]  # fmt: skip
    assert view["steps_to_wait"]["data"]["5"] == {"w": [18, 0]}


def test_overlap_takes_shared_time_off_both_and_means_are_cut_to_whole_numbers():
    one = part("w", *reduces((10, 30)), costs=((10, 8, 5, 7), (3, 2, 0, 1.5)), steps=((0, 60), (60, 90)), names="12")
    view = distributed([one])
    assert view is not None
    assert view["steps_to_overlap"] == {
        "metadata": {
            "title": "Computation/Communication Overview",
            "legends": ["Computation", "Overlapping", "Communication", "Other"],
            "units": "us",
        },
        "data": {"all": {"w": [4, 2, 2, 4]}, "1": {"w": [5, 5, 3, 7.0]}, "2": {"w": [3, 0, 2, 1.5]}},
    }


def test_collectives_in_no_step_have_one_of_their_own_and_steps_of_one_name_are_one():
    events = reduces((0, 10), (20, 5), (30, 6))
    steps = ((15, 28), (28, 40))
    view = distributed([part("w", *events, steps=steps, names="77", costs=((1, 1, 0, 0), (4, 1, 0, 0)))])
    assert view is not None
    assert view["steps_to_wait"]["data"] == {"all": {"w": [10, 0]}, "null": {"w": [10, 0]}, "7": {"w": [11, 0]}}
    assert view["steps_to_overlap"]["data"] == {"all": {"w": [2, 0, 1, 0]}, "7": {"w": [4, 0, 1, 0]}}


def test_there_is_no_view_unless_all_workers_did_the_same():
    two = part("a", *reduces((0, 5), (10, 5)))
    assert distributed([]) is None
    assert distributed([two, part("b", op("aten::mm", 0, 1, External_id=1))]) is None
    assert distributed([two, part("b", *reduces((0, 5)))]) is None
    assert distributed([two, part("b", *reduces((0, 5), (10, 5)), kernel("n", 30, 1, 1, External_id=2))]) is None
    both = (*reduces((0, 5)), op("gloo:reduce", 10, 5, External_id=9))
    assert distributed([part("b", *both)]) is None
    assert distributed([two, two]) is not None


def test_devices_are_shown_by_node_and_process():
    def on(worker, device, **more):
        return part(worker, *reduces((0, 5)), kernel("k", 30, 1, 1, device=device), **more)

    known = {"deviceProperties": [V100, {"name": "A"}]}
    view = distributed([on("host_10", 0, **known), on("host_2", 1, **known), on("host_3", 2, **known),
                        on("other", 1, **known), on("more", 0, **known), on("mute_1", 0)])  # fmt: skip
    assert view is not None
    full = {"Name": "V100", "Memory": "15.78 GB", "Memory Raw": 16945512448, "Compute Capability": "7.0"}
    assert view["gpu_info"] == {
        "metadata": {"title": "Device Information"},
        "data": {
            "host": {"Process 10": {"GPU0": full}, "Process 2": {"GPU1": {"Name": "A"}}, "Process 3": {}},
            "more": {"Process 0": {"GPU0": full}},
            "other": {"Process 1": {"GPU1": {"Name": "A"}}},
        },
    }
    assert list(view["gpu_info"]["data"]["host"]) == ["Process 10", "Process 2", "Process 3"]


def test_memory_may_be_given_in_mebibytes_and_what_is_not_recorded_is_left_out():
    assert device_info([{"name": "MLU370", "totalMem(MiB)": 49152}], 0) == {
        "Name": "MLU370", "Memory": "48.0 GB", "Memory Raw": 49152,
    }  # fmt: skip
    assert device_info([{}], 0) == {}
    assert device_info([V100], 1) is None
    assert device_info([V100], -1) is None


def test_used_devices_are_the_numeric_process_ids_of_device_work():
    seen = read_events(read([
        op("aten::mm", 0, 1, External_id=1), kernel("k", 3, 1, 1, device=2), kernel("k", 5, 1, 1, device=0),
        kernel("k", 9, 1, 1, device=2, stream=9),
        x("Memcpy", 5, 1, "gpu_memcpy", pid="GPU 1", tid=7, device=1, stream=7, correlation=3),
    ]))  # fmt: skip
    assert used_devices(seen) == [0, 2]


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
    assert _distributed._size("[[1", '["float"]') == 0


def test_two_libraries_are_both_named_and_a_trace_without_any_has_no_collectives():
    assert found(op("nccl:reduce", 0, 1, External_id=1), op("gloo:reduce", 5, 1, External_id=2)).libraries == (
        "nccl", "gloo",
    )  # fmt: skip
    nothing = found(op("aten::mm", 0, 1, External_id=1))
    assert nothing.row.size == 0
    assert nothing.libraries == ()
    assert nothing.first.tolist() == [0]


def named(*paths: str, ranks: tuple[int | None, ...] | None = None) -> list[tuple[str, str]]:
    known = ranks or (None,) * len(paths)
    return [(w.worker, w.span) for w in workers_of(list(zip(paths, known, strict=True)))]


def test_a_name_of_the_recorder_says_worker_and_span():
    assert named(
        "run/host_12.1623143566756.pt.trace.json",
        "run/host_12.1623143089861.pt.trace.json.gz",
        "run/host_13.1623143089861.pt.trace.json.gz",
        "run/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    ) == [("host_12", "2"), ("host_12", "1"), ("host_13", "1"), ("rank-34.Jul_15_10_52_41", "1")]


def test_times_are_sorted_as_text():
    assert named("w.9.pt.trace.json", "w.10.pt.trace.json", "w.1.pt.trace.json") == [("w", "3"), ("w", "2"), ("w", "1")]


def test_without_a_time_the_span_is_the_default():
    assert named("w.pt.trace.json", "w.5.pt.trace.json.gz") == [("w", "default"), ("w", "1")]


def test_what_the_recorder_calls_a_worker_is_not_overridden_by_its_rank():
    assert named("a_0.pt.trace.json", "a_1.pt.trace.json", ranks=(3, 4)) == [("a_0", "default"), ("a_1", "default")]


def test_other_files_are_called_by_their_rank_or_else_by_their_name():
    assert named("x/sampled_rank-0.json.gz", "x/sampled_rank-1.json.gz", ranks=(0, 1)) == [
        ("rank_0", "default"), ("rank_1", "default"),
    ]  # fmt: skip
    assert named("x/eager_trace.json.gz", r"x\train.json", "y/step.zip", "z/plain") == [
        ("eager", "default"), ("train", "default"), ("step", "default"), ("plain", "default"),
    ]  # fmt: skip


@pytest.mark.parametrize("path", [".json.gz", "a/trace.json", "trace"])
def test_there_is_always_a_name(path):
    assert all(worker for worker, _ in named(path))


def test_ranks_that_are_not_unique_give_way_to_names():
    assert named("rank_0_epoch_1.json", "rank_0_epoch_2.json", "rank_1.json", ranks=(0, 0, 1)) == [
        ("rank_0_epoch_1", "default"), ("rank_0_epoch_2", "default"), ("rank_1", "default"),
    ]  # fmt: skip


def test_folders_tell_apart_what_would_be_the_same():
    assert named("jobs/a/w.1.pt.trace.json", "jobs/a/w.2.pt.trace.json", "jobs/b/w.1.pt.trace.json") == [
        ("a/w", "1"), ("a/w", "2"), ("b/w", "1"),
    ]  # fmt: skip
    assert named("1/a/trace.json", "2/a/trace.json", "2/b/trace.json") == [
        ("1/a/trace", "default"), ("2/a/trace", "default"), ("b/trace", "default"),
    ]  # fmt: skip


def test_a_file_that_is_given_twice_is_two_workers():
    assert named("a/w.1.pt.trace.json", "a/w.1.pt.trace.json") == [("a/w", "1"), ("a/w (2)", "1")]


def test_workers_of_one_span_are_together_in_order_of_their_names():
    workers = [Worker("b", "2"), Worker("b", "1"), Worker("a", "1"), Worker("c", "default")]
    assert by_span(workers) == {"1": [2, 1], "2": [0], "default": [3]}
    assert workers_of([]) == []
