from __future__ import annotations

import paddle_profiles as made
import pytest
from paddle_profiles import host, profile, thread

from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.paddle._protobuf import decode
from stepscope.readers.paddle._tracks import _place, build_tracks


def tracks_of(data, rank=None, machine=None):
    return build_tracks(decode(Wire([data]), IssueLog()), rank, machine)


def test_threads_have_names_and_streams_devices():
    found = tracks_of(made.training(), 2, "node-7")
    assert found.tracks.rows() == [
        (0, 2, "node-7", 5, 7, None, None, "thread", None, "MainThread"),
        (1, 2, "node-7", None, None, 1, 3, "stream", None, "stream 3"),
        (2, 2, "node-7", None, None, 1, 4, "stream", None, "stream 4"),
    ]
    assert found.devices.rows() == [
        (0, "cpu", None, None, None, None, None),
        (1, "cuda", 0, "NVIDIA T4", 40, 16 << 30, "7.5"),
    ]
    assert set(found.of_host.tolist()) == set(found.of_memory.tolist()) == {0}
    assert found.of_device.tolist() == [2, 1, 1, 1]


def test_devices_are_known_from_work_alone():
    call = made.call("hipLaunchKernel", 1, 2, 1, made.kernel("k", 3, 4, index=5), made.kernel("k", 3, 4, index=1))
    found = tracks_of(profile(thread((0, host("x", 0, 0, 9, call)))))
    assert found.devices.select("device_id", "type", "index", "name").rows() == [
        (0, "cpu", None, None), (1, "rocm", 1, None), (2, "rocm", 5, None),
    ]  # fmt: skip
    assert found.tracks["device_id"].to_list() == [None, 1, 2]


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("Place(cpu)", -1),
        ("Place(gpu:3)", 3),
        ("Place(xpu)", 0),
        ("Place(gpu_pinned)", None),
        ("elsewhere", None),
        ("", None),
    ],
)
def test_a_place_names_the_device_whose_memory_it_is(text, index):
    assert _place(text) == index


def test_indices_that_no_device_has_make_no_devices():
    call = made.call("c", 1, 2, 1, made.kernel("k", 3, 4, index=-7), made.kernel("k", 3, 4, index=10**9))
    found = tracks_of(profile(thread((0, host("x", 0, 0, 9, call)))))
    assert found.devices.height == 1
    assert found.tracks["device_id"].to_list() == [None, None, None]
