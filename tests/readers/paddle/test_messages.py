from __future__ import annotations

import paddle_profiles as made
from paddle_profiles import content, number

from stepscope.readers.common.protobuf import Wire
from stepscope.readers.paddle._messages import DOCUMENT, device_properties, keyed, pairs, shapes_of, words_of


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
    assert words_of(content(1, "float32") + content(1, "int64")) == ["float32", "int64"]


def test_keys_and_values_are_compact_json():
    assert keyed(content(1, "X") + content(1, "Ü") + content(2, content(1, "a")), words_of) == b'{"X":["a"]}'
    assert keyed(b"", words_of) == b""
