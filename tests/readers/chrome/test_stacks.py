from __future__ import annotations

import numpy as np
from chrome_traces import column, op, read, rows, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.chrome.stacks import from_texts


def frame(name, ts, dur, **more):
    return x(name, ts, dur, "python_function", **more)


def stacks(trace) -> dict[str, list[str] | None]:
    """Frames for each operator's name."""
    frames = dict(rows(trace.stacks, "stack_id", "frames"))
    names = column(trace.spans, "name")
    return {names[span]: frames.get(stack) for span, stack in rows(trace.ops, "span_id", "stack_id")}


def test_texts_are_split_into_frames_outermost_first_and_shared():
    frame, stack = from_texts(["", "b.py(2): g;a.py(1): f", " c ; ;"], np.array([1, 0, 2, 1], np.uint32))
    assert frame["frames"].to_list() == [["a.py(1): f", "b.py(2): g"], ["c"]]
    assert frame["text"].to_list() == ["b.py(2): g;a.py(1): f", " c ; ;"]
    assert stack.tolist() == [0, -1, 1, 0]


def test_no_texts_are_no_stacks():
    frame, stack = from_texts([], np.array([], np.uint32))
    assert frame.is_empty()
    assert stack.tolist() == []


def test_operators_have_the_frames_around_them():
    trace = read([
        frame("main", 0, 100), frame("step", 1, 50), frame("nn.Module: Linear_0", 2, 40), op("aten::linear", 3, 30),
        op("aten::mm", 4, 20),
        frame("hook", 5, 2), op("inside", 5.5, 1), frame("step", 60, 30), op("aten::add", 61, 3),
        op("outside", 200, 1), op("elsewhere", 3, 1, tid=2),
    ])  # fmt: skip
    linear = ["main", "step", "nn.Module: Linear_0"]
    assert stacks(trace) == {
        "aten::linear": linear, "aten::mm": linear, "inside": [*linear, "hook"], "aten::add": ["main", "step"],
        "outside": None, "elsewhere": None,
    }  # fmt: skip
    assert trace.stacks.height == 3  # equal stacks are one


def test_equal_stacks_at_different_times_are_one():
    trace = read(
        [e for i in range(5) for e in (frame("f", 10 * i, 9), frame("g", 10 * i + 1, 5), op("a", 10 * i + 2, 1))]
    )
    assert column(trace.stacks, "frames") == [["f", "g"]]
    assert column(trace.ops, "stack_id") == [0] * 5


def test_frames_without_operators_make_no_stacks():
    assert read([frame("f", 0, 9)]).stacks.is_empty()
    assert read([frame("f", 0, 9), op("a", 20, 1)]).stacks.is_empty()


def test_recorded_texts_prevail_over_frames():
    trace = read([frame("f", 0, 9), op("a", 1, 1, Call_stack="x;y"), op("b", 3, 1)])
    assert stacks(trace) == {"a": ["y", "x"], "b": None}


@given(st.lists(st.tuples(st.sampled_from("fgo"), st.integers(0, 30), st.integers(1, 12)), max_size=25))
def test_stacks_equal_those_of_a_walk_up_the_parents(found):
    trace = read(
        [
            (op if kind == "o" else frame)(f"{kind}{i % 4}" if kind != "o" else f"o{i}", ts, dur)
            for i, (kind, ts, dur) in enumerate(found)
        ]
    )
    spans = rows(trace.spans, "name", "category", "parent_id")
    expected = {}
    for name, category, parent in spans:
        if category != "operator":
            continue
        frames, at = [], parent
        while at is not None:
            if spans[at][1] == "python":
                frames.append(spans[at][0])
            at = spans[at][2]
        expected[name] = frames[::-1] or None
    assert stacks(trace) == expected
