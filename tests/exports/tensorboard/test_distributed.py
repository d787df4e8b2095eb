from __future__ import annotations

import json

import numpy as np
from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard._communication import find_collectives
from stepscope.exports.tensorboard._distributed import Part, device_info, distributed, used_devices
from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._roles import Overlap
from stepscope.exports.tensorboard._steps import Steps

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
