"""Levels by pixel against a count event by event, and the segments and blocks at a moment."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import FORWARD, MIB, event, snapshot

import stepscope
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.web.timeline.memory_levels import BEFORE, draw_levels, memory_layout, memory_scene_of, moment


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    def load(document):
        path = tmp_path_factory.mktemp("a") / "a.pickle"
        path.write_bytes(pickle.dumps(document))
        return stepscope.load(path)

    return load


def arrays_of(data):
    """The header and the arrays of a packed window."""
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    kinds = {"Uint32Array": "u4", "Float32Array": "f4", "Float64Array": "f8"}
    at = 4 + length
    return header | {
        one["name"]: np.frombuffer(data, kinds[one["type"]], one["length"], at + one["offset"])
        for one in header["arrays"]
    }


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=25)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(steps, st.integers(-3, 80), st.integers(1, 90), st.integers(1, 12), st.sampled_from(["category", "stack"]))
def test_a_pixel_has_the_most_and_the_least_of_its_stretch(load, history, low, length, n_pixels, by):
    """Blocks are allocated, or freed where the address is in use; several events may have one time."""
    document = snapshot()
    live, events, now = {}, [], 0
    for wait, slot, wanted in history:
        now += wait
        address = (1000 + slot) * MIB
        action = "free_completed" if address in live else "alloc"
        size = live.pop(address, None) or live.setdefault(address, wanted)
        events.append(event(action, address, size, frames=FORWARD, time_us=now))
    document["device_traces"] = [events]
    device = memory_scene_of(load(document)).devices[0]
    drawn = arrays_of(draw_levels(device, low * 1000, (low + length) * 1000, n_pixels, by, "time"))
    times, level = device.axis("time"), device.level
    edges = [low * 1000 + i * (length * 1000) // n_pixels for i in range(n_pixels + 1)]
    for i, (a, b) in enumerate(pairwise(edges)):
        inside = [int(v) for t, v in zip(times, level, strict=True) if a <= t < b]
        before = [int(v) for t, v in zip(times, level, strict=True) if t < a]
        held = inside if a in times else [*before[-1:], *inside]
        if held:
            assert (drawn["most"][i], drawn["least"][i]) == (max(held), min(held))
    parts = drawn["parts"].reshape(drawn["groups"], n_pixels)
    assert np.allclose(parts.sum(axis=0), drawn["most"])


def test_at_a_moment_groups_and_holders_add_up(load):
    scene = memory_scene_of(load(snapshot()))
    device = scene.device(0)
    for place, allocated in ((0, 10 * MIB + 100), (2, 22 * MIB), (4, 14 * MIB)):
        for by in ("category", "stack"):
            now = moment(scene, device, place, by)
            assert now["allocated"] == sum(now["groups"]) == allocated
        listed = sum(one["bytes"] for one in now["holders"])
        assert allocated - listed == 100  # rounding belongs to no block
    assert now["segments"] == [(64 * MIB, 22 * MIB), (128 * MIB, 20 * MIB)]
    assert now["blocks"][0] == [64 * MIB, 74 * MIB]
    assert now["holders"][0]["line"] == "__init__ (model.py:2)"


def test_segments_are_those_of_the_moment(load):
    document = snapshot()
    taken, given_back = event("segment_alloc", 128 * MIB, 20 * MIB), event("segment_free", 256 * MIB, 2 * MIB)
    document["device_traces"][0] = [given_back, *document["device_traces"][0], taken]
    scene = memory_scene_of(load(document))
    known = [moment(scene, scene.device(0), place, "stack")["segments"] for place in (0, 1, 6)]
    assert [[begin // MIB for begin, _ in one] for one in known] == [[64, 256], [64], [64, 128]]
    assert [sum(size for _, size in one) for one in known] == scene.device(0).reserved[[0, 1, 6]].tolist()


def test_the_layout_names_the_groups(load):
    (device,) = memory_layout(memory_scene_of(load(snapshot())))["devices"]
    assert device["label"] == "cuda:0"
    assert device["groups"]["stack"][:3] == [BEFORE, "forward (model.py:7)", "__init__ (model.py:2)"]
    assert device["peak"] == 2


def test_a_trace_has_no_levels_and_a_snapshot_no_ninth_device(load, examples):
    with pytest.raises(MissingTable, match="memory snapshot"):
        memory_scene_of(stepscope.load(examples / "demo-cpu-decode"))
    with pytest.raises(StepscopeError, match="no device has the number 9"):
        memory_scene_of(load(snapshot())).device(9)
