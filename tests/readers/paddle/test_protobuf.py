from __future__ import annotations

import paddle_profiles as made
import pytest
from paddle_profiles import BEGAN, PID, content, host, number, profile, thread

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.common.source import IssueLog
from stepscope.readers.paddle._columns import COLUMNS
from stepscope.readers.paddle._protobuf import DOCUMENT, decode, device_properties, keyed, pairs, shapes_of, texts_of


def decoded(data):
    log = IssueLog()
    return decode(Wire([data]), log), {row[0]: row[2] for row in log.table().iter_rows()}


def names(recording, table):
    return [recording.names[i] for i in table["name"].tolist()]


def types(recording, table):
    return [recording.types[i] for i in table["type"].tolist()]


def test_the_tree_is_the_recorded_one():
    recording, issues = decoded(made.training())
    assert issues == {}
    assert names(recording, recording.host)[:4] == [
        "ProfileStep#3",
        "ProfileStep#4",
        "_DataLoaderIterSingleProcess",
        "Linear",
    ]
    assert recording.host["parent"].tolist() == [-1, -1, 0, 0, 0, 0, 1, 1, 3, 6, 8, 8, 9]
    assert recording.host["start"][0] == BEGAN
    assert set(recording.host["pid"].tolist()) == {PID}
    assert recording.runtime["host"].tolist() == [-1, 4, 5, 11, 12]  # the first hangs on the root
    assert recording.device["runtime"].tolist() == [1, 2, 3, 4]
    assert recording.memory["host"].tolist() == [11, 11, 12]
    assert recording.arguments["host"].tolist() == [8]


@pytest.mark.parametrize("data", [made.training(), profile()])
def test_all_columns_are_there(data):
    recording, _ = decoded(data)
    for name, columns in COLUMNS.items():
        assert set(getattr(recording, name)) == set(columns)


def test_details_of_device_work_are_kept():
    recording, _ = decoded(made.training())
    kernels = {name: column.tolist()[0] for name, column in recording.kernels.items()}
    assert kernels == {
        "device": 0, "grid_x": 8, "grid_y": 4, "grid_z": 2, "block_x": 128, "block_y": 1, "block_z": 1,
        "registers": 40, "shared_bytes": 1536, "blocks_per_sm": 2.5, "warps_per_sm": 10.0, "est_occupancy_ratio": 0.25,
    }  # fmt: skip
    transfers = {name: column.tolist() for name, column in recording.transfers.items()}
    assert (transfers["device"], transfers["bytes"]) == ([1], [64])
    assert [recording.texts[transfers[end][0]] for end in ("src", "dst")] == ["Pageable", "Device"]


def test_a_fill_has_bytes_and_a_target():
    recording, _ = decoded(profile(thread((0, host("x", 0, 0, 9, made.call("c", 1, 2, 1, made.memset(3, 4)))))))
    assert recording.transfers["bytes"].tolist() == [32]
    assert recording.texts[recording.transfers["dst"][0]] == "Device"
    assert types(recording, recording.device) == ["Memset"]


def test_arguments_become_compact_json():
    node = host("op", 0, 0, 9, made.arguments({"X": [[2, 3], [4]], "Y": []}, {"X": ["float32"]}, "a\nb"))
    recording, _ = decoded(profile(thread((0, node))))
    told = {name: recording.texts[recording.arguments[name][0]] for name in ("shapes", "types", "stack")}
    assert told == {"shapes": '{"X":[[2,3],[4]],"Y":[]}', "types": '{"X":["float32"]}', "stack": "a\nb"}


def test_threads_keep_apart_and_unnumbered_types_keep_their_number():
    first = thread((0, host("a", 99, 0, 9)), (1, host("b", made.LAUNCH, 1, 2)), tid=8)
    second = thread((0, host("c", 0, 0, 9, tid=9)), (1, host("d", 0, 1, 2, tid=9)), tid=9)
    recording, issues = decoded(profile(first, second))
    assert recording.host["tid"].tolist() == [8, 8, 9, 9]
    assert recording.host["parent"].tolist() == [-1, 0, -1, 2]
    assert types(recording, recording.host) == ["99", "DygraphKernelLaunch", "Operator", "Operator"]
    assert issues == {}


def test_in_paddle_2_the_number_of_kernel_launches_was_that_of_mlu_calls():
    recording, _ = decoded(
        profile(thread((0, host("cnrtQueueSync", 15, 0, 9)), (0, host("conv kernel launch", 15, 9, 12))))
    )
    assert types(recording, recording.host) == ["MluRuntime", "DygraphKernelLaunch"]


def test_ids_need_not_be_positions():
    nodes = [(10, -1, host("root node", 7, 0, 0)), (12, 10, host("a", 0, 0, 9)), (11, 12, host("b", 0, 1, 2))]
    body = b"".join(content(2, number(1, i) + number(2, up) + node) for i, up, node in nodes)
    recording, issues = decoded(profile(content(3, number(1, 7) + body)))
    assert names(recording, recording.host) == ["a", "b"]
    assert recording.host["parent"].tolist() == [
        -1,
        -1,
    ]  # such ids are of no file seen: the nodes stay, their tree is lost
    assert issues == {"odd_parents": 2}


@pytest.mark.parametrize("up", [2, 5, 77])
def test_a_parent_that_comes_later_or_is_not_there_is_none(up):
    recording, issues = decoded(profile(thread((0, host("a", 0, 0, 9)), (up, host("b", 0, 1, 2)))))
    assert recording.host["parent"].tolist() == [-1, -1]
    assert issues == {"odd_parents": 1}


def test_events_without_times_are_dropped_with_their_links():
    bare = content(3, content(1, "lost"))
    recording, issues = decoded(profile(thread((0, bare), (1, host("kept", 0, 1, 2, made.call("c", 1, 2, 1))))))
    assert names(recording, recording.host) == ["kept"]
    assert recording.host["parent"].tolist() == [-1]
    assert recording.runtime["host"].tolist() == [0]
    assert issues == {"incomplete_events": 1}


def test_fields_of_a_wrong_wire_type_are_left_out():
    event = content(3, content(1, "a") + content(2, "no number") + number(3, BEGAN) + number(4, BEGAN + 5))
    recording, issues = decoded(profile(thread((0, event))))
    assert recording.host["pid"].tolist() == [ABSENT]
    assert types(recording, recording.host) == [""]
    assert issues == {"wrong_wire_types": 1}


def test_a_document_without_any_known_field_is_an_empty_recording():
    recording, _ = decoded(number(99, 1))
    assert (recording.n_events, recording.version, recording.span_index, recording.devices) == (0, None, None, [])


def test_pairs_and_devices_of_a_document():
    wire = Wire([made.training()])
    top = wire.columns(wire.whole(), DOCUMENT)
    assert pairs(wire, top["extra"][1:]) == made.EXTRA
    assert device_properties(wire, top["devices"][1:]) == [
        {"name": "NVIDIA T4", "id": 0, "totalGlobalMem": 16 << 30, "computeMajor": 7, "computeMinor": 5, "smCount": 40}
    ]


def test_what_a_device_does_not_say_is_none():
    wire = Wire([content(5, content(2, "xpu"))])
    (found,) = device_properties(wire, wire.columns(wire.whole(), DOCUMENT)["devices"][1:])
    assert found == {
        "name": "xpu", "id": None, "totalGlobalMem": None, "computeMajor": None, "computeMinor": None, "smCount": None,
    }  # fmt: skip


def test_shapes_and_types_of_an_argument():
    assert shapes_of(content(1, number(1, 2) + number(1, 3)) + content(1, b"") + content(1, number(1, -1))) == [
        [2, 3],
        [],
        [-1],
    ]
    assert texts_of(content(1, "float32") + content(1, "int64")) == ["float32", "int64"]


def test_keys_and_values_are_compact_json():
    assert keyed(content(1, "X") + content(1, "Ü") + content(2, content(1, "a")), texts_of) == b'{"X":["a"]}'
    assert keyed(b"", texts_of) == b""
