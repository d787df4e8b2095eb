"""Windows, and stretches for a file: every span is there, in full or in a bar, and so are the samples."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_traces import document, event, training, written
from windows_of import unpacked

from stepscope import load
from stepscope.web.timeline import drawing
from stepscope.web.timeline.drawing import draw_stretch, draw_window, pack, short
from stepscope.web.timeline.scene import Line, Scene, layout, scene_of

PLENTY = 10**6


@pytest.fixture
def scene(tmp_path):
    return scene_of(load(written(tmp_path / "t.json", training())))


def whole(scene, low, high):
    """Ids of the spans in [low, high)."""
    spans = scene.trace.spans
    starts, ends = spans["ts_ns"].to_numpy(), (spans["ts_ns"] + spans["dur_ns"]).to_numpy()
    return np.flatnonzero((starts < high) & (ends > low)).tolist()


def test_all_spans_are_in_full_if_they_are_not_too_many(scene):
    low, high = scene.first_ns + 150_000, scene.last_ns - 200_000
    part = draw_stretch(scene, low, high, PLENTY, PLENTY)
    header, arrays = unpacked(part.data)
    spans = scene.trace.spans
    assert sorted(arrays["id"]) == whole(scene, low, high)
    for i, span in enumerate(arrays["id"]):
        assert arrays["start"][i] + low == spans["ts_ns"][span]
        assert arrays["dur"][i] == spans["dur_ns"][span]
        assert header["names"][arrays["name"][i]] == spans["name"][span]
        assert header["lanes"][arrays["lane"][i]][0] == spans["track_id"][span]
        launch = spans["launch_id"][span]
        assert arrays["launch"][i] == (2**32 - 1 if launch is None else launch)
    assert arrays["bar_id"] == []
    assert part.n_merged == 0
    assert arrays["lane"] == sorted(arrays["lane"])


@pytest.fixture(scope="module")
def kept_scene(tmp_path_factory):
    """One scene for all that hypothesis asks of it."""
    return scene_of(load(written(tmp_path_factory.mktemp("cut") / "t.json", training())))


@given(start=st.integers(0, 900), length=st.integers(1, 900), most=st.integers(1, 12), finest=st.sampled_from([4, 50]))
def test_no_busy_time_is_lost_in_bars(kept_scene, start, length, most, finest):
    scene = kept_scene
    low = scene.first_ns + start * 1_000
    high = min(low + length * 1_000, scene.last_ns)
    if low >= high:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_FINEST", finest)
        part = draw_stretch(scene, low, high, most, PLENTY)
    header, arrays = unpacked(part.data)
    edges = low + np.arange(header["pixels"] + 1) * (high - low) // header["pixels"]
    sums = {}
    for i, lane in enumerate(arrays["lane"]):
        track = header["lanes"][lane][0]
        begin = arrays["start"][i] + low
        sums[track] = sums.get(track, 0) + min(begin + arrays["dur"][i], high) - max(begin, low)
    for lane, pixel, busy in zip(arrays["bar_lane"], arrays["bar_pixel"], arrays["bar_busy"], strict=True):
        track = header["lanes"][lane][0]
        sums[track] = sums.get(track, 0) + busy * (edges[pixel + 1] - edges[pixel])
    spans = scene.trace.spans
    wanted = {}
    for span in whole(scene, low, high):
        track, begin = spans["track_id"][span], spans["ts_ns"][span]
        wanted[track] = wanted.get(track, 0) + min(begin + spans["dur_ns"][span], high) - max(begin, low)
    for track, ns in wanted.items():
        assert sums[track] == pytest.approx(ns, rel=0.02, abs=300)
    assert {header["lanes"][lane][0] for lane in (*arrays["lane"], *arrays["bar_lane"])} == set(part.lanes)


def test_lanes_in_which_nothing_lies_are_left_out(tmp_path):
    # The third call begins inside the second and ends outside of it: it lies below, in the second step alone.
    events = [event("a", 0, 100), event("b", 10, 50), event("c", 20, 10), event("d", 205, 10), event("e", 200, 100)]
    scene = scene_of(load(written(tmp_path / "t.json", document(events))))
    low = scene.first_ns
    assert list(draw_stretch(scene, low, low + 100_000, PLENTY, PLENTY).lanes.values()) == [3]
    part = draw_stretch(scene, low + 150_000, low + 400_000, PLENTY, PLENTY)
    assert list(part.lanes.values()) == [2]
    deep = draw_stretch(scene, low + 22_000, low + 25_000, PLENTY, PLENTY)
    assert [depth for _, depth in unpacked(deep.data)[0]["lanes"]] == [0, 1, 2]


def with_lines(scene, *lines):
    return Scene(scene.trace, scene.lanes, scene.codes, scene.names, scene.categories, lines, scene.first_ns,
                 scene.last_ns)  # fmt: skip


def line(times, values):
    return Line("x", None, np.array(times, np.int64), np.array(values, np.float64))


def test_samples_are_kept_with_what_was_before_and_later_lines_left_out(scene):
    low, high = 100_000, 200_000
    lines = (line([0, 150_000], [7, 9]), line([300_000], [1]), line([120_000, 120_000, 199_999], [1, 5, 2]))
    part = draw_stretch(with_lines(scene, *lines), low, high, PLENTY, PLENTY)
    header, arrays = unpacked(part.data)
    assert part.lines == (0, 2)
    assert header["before"] == [7, None]
    assert arrays["line"] == [0, 1, 1]
    assert arrays["line_max"] == [9, 5, 2]
    assert arrays["line_min"] == [9, 1, 2]
    width = (high - low) / header["pixels"]
    assert arrays["line_pixel"] == [int(50_000 / width), int(20_000 / width), header["pixels"] - 1]
    assert json.dumps(header, allow_nan=False)


def test_without_lines_there_are_no_samples(scene):
    part = draw_stretch(with_lines(scene), scene.first_ns, scene.last_ns, PLENTY, PLENTY)
    assert unpacked(part.data)[1]["line"] == []


def test_many_samples_are_drawn_on_fewer_pixels(scene):
    times = np.linspace(0, 1_000_000, 50_000)
    scene = with_lines(scene, *(line(times, np.sin(times)) for _ in range(8)))
    _, arrays = unpacked(draw_stretch(scene, 0, 1_000_000, PLENTY, 8_000).data)
    assert 4_000 <= len(arrays["line"]) <= 8_000
    assert max(arrays["line_max"]) > 0.99


def test_a_stretch_shorter_than_its_pixels_has_one_for_each_ns(scene):
    part = draw_stretch(scene, scene.first_ns, scene.first_ns + 20, PLENTY, PLENTY)
    assert unpacked(part.data)[0]["pixels"] == 20


def test_as_coarse_as_it_gets_it_is_still_drawn(scene, monkeypatch):
    monkeypatch.setattr(drawing, "_FINEST", 8)
    monkeypatch.setattr(drawing, "_COARSEST", 2)
    part = draw_stretch(scene, scene.first_ns, scene.last_ns, 1, PLENTY)
    header, arrays = unpacked(part.data)
    assert header["pixels"] == 2
    assert arrays["bar_id"]


def tracks(scene):
    return [track["id"] for group in layout(scene)["groups"] for track in group["tracks"]]


def test_a_window_has_all_spans_in_full_where_there_is_room(scene):
    header, arrays = unpacked(draw_window(scene, scene.first_ns, scene.last_ns, 8000, tracks(scene), []))
    assert len(arrays["id"]) == scene.trace.spans.height
    by_id = {row["span_id"]: row for row in scene.trace.spans.iter_rows(named=True)}
    for i, span in enumerate(arrays["id"]):
        row = by_id[span]
        assert header["names"][arrays["name"][i]] == row["name"]
        assert arrays["start"][i] + scene.first_ns == row["ts_ns"]
        assert header["lanes"][arrays["lane"][i]][0] == row["track_id"]
    assert arrays["bar_id"] == []
    assert max(arrays["line_max"]) == 4096


def test_on_few_pixels_short_spans_become_bars(scene):
    _, arrays = unpacked(draw_window(scene, scene.first_ns, scene.last_ns, 16, tracks(scene), []))
    assert len(arrays["id"]) < scene.trace.spans.height
    assert arrays["bar_busy"]
    assert all(0 <= share <= 1 for share in arrays["bar_busy"])


def test_of_a_folded_track_the_outermost_lane_is_given(scene):
    header, _ = unpacked(draw_window(scene, scene.first_ns, scene.last_ns, 100, [], tracks(scene)))
    assert {depth for _, depth in header["lanes"]} == {0}
    header, arrays = unpacked(draw_window(scene, scene.first_ns, scene.last_ns, 100, [], []))
    assert header["lanes"] == []
    assert arrays["id"] == []


def test_lines_tell_what_they_were_before_the_window(scene):
    header, arrays = unpacked(draw_window(scene, scene.last_ns, scene.last_ns + 10, 100, [], []))
    assert header["before"][1] == 4096
    assert arrays["line"] == []
    header, _ = unpacked(draw_window(scene, scene.first_ns - 10, scene.first_ns - 5, 100, [], []))
    assert header["before"] == [None, None]


def test_what_is_packed_comes_out_again_aligned_to_eight_bytes():
    arrays = {"a": np.array([1, 2, 3], "u2"), "b": np.array([0.5]), "none": np.empty(0, "u1")}
    data = pack({"name": "süß <b>"}, arrays)
    header, sums = unpacked(data)
    assert header["name"] == "süß <b>"
    assert sums == {"a": [1, 2, 3], "b": [0.5], "none": []}
    assert (4 + int.from_bytes(data[:4], "little")) % 8 == 0
    assert all(one["offset"] % 8 == 0 for one in header["arrays"])


def test_other_types_are_refused():
    with pytest.raises(KeyError):
        pack({}, {"a": np.array([1], "i8")})


def test_lone_surrogates_do_not_break_the_header():
    header, _ = unpacked(pack({"name": "a\ud800b"}, {}))
    assert header["name"] == "a?b"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("/opt/app/base_model.py(677): _run_timed_pipe", "_run_timed_pipe · base_model.py:677"),
        ("C:\\app\\train.py(3): <module>", "<module> · train.py:3"),
        ("<frozen runpy>(88): _run_code", "_run_code · <frozen runpy>:88"),
        ("aten::mm", "aten::mm"),
    ],
)
def test_labels_of_python_frames_name_the_function_first(name, label):
    assert short(name) == label
