from __future__ import annotations

from collections import Counter

import plotly.graph_objects as go
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.renderers import figures
from stepscope.renderers.figures import python_stacks

DRAW = figures.find("python-stacks")
EVIL = "<script>alert(1)</script>"


def rows(*pairs, **more):
    stacks, samples = zip(*pairs, strict=True)
    return pl.DataFrame({"stack": stacks, "samples": samples, **more})


def boxes(frame):
    """Weight of each box by the names from the root to it."""
    (data,) = DRAW(frame)["data"]
    names = dict(zip(data["ids"], data["labels"], strict=True))
    above = dict(zip(data["ids"], data["parents"], strict=True))
    sizes = {}
    for ident, value in zip(data["ids"], data["values"], strict=True):
        path, at = [], ident
        while at:
            path.append(names[at])
            at = above[at]
        sizes[tuple(path[::-1])] = value
    assert len(sizes) == len(data["ids"])
    return sizes


def test_a_box_has_the_samples_of_all_that_it_called():
    frame = rows(("main;f;g", 5), ("main;f", 3), ("main;h", 2), ("idle", 1))
    assert boxes(frame) == {
        ("all",): 11, ("all", "main"): 10, ("all", "idle"): 1, ("all", "main", "f"): 8, ("all", "main", "h"): 2,
        ("all", "main", "f", "g"): 5,
    }  # fmt: skip
    assert go.Figure(DRAW(frame)).data[0].branchvalues == "total"


def test_shares_are_told_of_all_and_of_the_caller():
    (data,) = DRAW(rows(("main;f", 1), ("main", 3)))["data"]
    assert data["text"] == [
        "4 samples", "4 samples, 100 % of all, 100 % of its caller", "1 sample, 25 % of all, 25 % of its caller",
    ]  # fmt: skip
    times = pl.DataFrame({"stack": ["main"], "self_ns": [2_000_000]})
    assert DRAW(times)["data"][0]["text"][0] == "2 ms"


def test_the_same_stack_of_several_rows_is_added_up_and_who_ran_it_stands_above():
    frame = rows(("a", 1), ("a", 2), ("a", 4), rank=[0, 1, 1], thread=["T", "T", "T"])
    assert boxes(frame) == {
        ("all",): 7, ("all", "rank 0"): 1, ("all", "rank 1"): 6, ("all", "rank 0", "a"): 1, ("all", "rank 1", "a"): 6,
    }  # fmt: skip


def test_names_are_literal_and_folders_are_left_to_the_text_below():
    (data,) = DRAW(rows((f"{EVIL} (/opt/lib/a.py:3)", 1)))["data"]
    assert data["labels"][1] == "&lt;script&gt;alert(1)&lt;/script&gt; (a.py:3)"
    assert "/opt/lib/a.py:3" in data["hovertext"][1]
    assert "<script>" not in str(data)


def test_functions_of_a_file_have_one_colour_and_what_is_left_over_is_grey():
    (data,) = DRAW(rows(("f (a.py:1);g (a.py:9);h (b.py:1)", 1), ("…", 1)))["data"]
    colour = dict(zip(data["labels"], data["marker"]["colors"], strict=True))
    assert colour["f (a.py:1)"] == colour["g (a.py:9)"] != colour["h (b.py:1)"]
    assert colour["…"] == colour["all"]


def test_of_very_many_boxes_the_heaviest_are_drawn_and_the_rest_of_each_is_one(monkeypatch):
    monkeypatch.setattr(python_stacks, "_MOST_NODES", 3)
    frame = rows(("m;a", 10), ("m;b", 5), ("m;c", 2), ("m;c;d", 1), ("n", 1))
    assert boxes(frame) == {
        ("all",): 19, ("all", "m"): 18, ("all", "m", "a"): 10, ("all", "m", "b"): 5, ("all", "m", "…"): 3,
        ("all", "…"): 1,
    }  # fmt: skip


def test_no_samples_are_no_figure():
    assert DRAW(rows(("a", 0))) is None
    assert DRAW(pl.DataFrame({"stack": ["a"]})) is None


def test_samples_without_a_stack_belong_to_no_function():
    assert boxes(rows((None, 2), ("a", 1))) == {("all",): 3, ("all", "a"): 1}
    assert boxes(rows(("", 2))) == {("all",): 2}


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=5), st.integers(0, 9)), min_size=1),
    st.integers(1, 8),
)
def test_boxes_are_those_of_brute_force(stacks, most):
    counted, called = Counter(), Counter()
    for frames, n in stacks:
        for depth in range(len(frames) + 1):
            counted["all", *frames[:depth]] += n
    whole = counted["all",]
    frame = rows(*((";".join(frames), n) for frames, n in stacks))
    if not whole:
        assert DRAW(frame) is None
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_stacks, "_MOST_NODES", most)
        sizes = boxes(frame)
    drawn = {path: n for path, n in sizes.items() if path[-1] != "…"}
    assert all(counted[path] == n for path, n in drawn.items())
    wanted = sorted((n for path, n in counted.items() if n and len(path) > 1), reverse=True)[:most]
    assert sorted((n for path, n in drawn.items() if len(path) > 1), reverse=True) == wanted
    for path, n in counted.items():
        if n and len(path) > 1:
            called[path[:-1]] += n
    for path, n in drawn.items():  # every callee is drawn or in the box that is left over
        below = sum(m for other, m in sizes.items() if other[:-1] == path)
        assert below == called[path] <= n
