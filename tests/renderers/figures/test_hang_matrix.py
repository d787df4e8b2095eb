from __future__ import annotations

import polars as pl

from stepscope.analyses.communication.hang import HANG_MATRIX
from stepscope.renderers import figures


def matrix(*rows):
    """Rows of rank, group, description, culprit, pending, behind."""
    names = "rank", "group", "group_desc", "is_culprit", "pending", "behind"
    frame = pl.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    return HANG_MATRIX.conform(frame.with_columns(enqueued=9, completed=8, line=pl.lit("train (train.py:12)")))


def test_each_rank_has_a_row_and_each_kind_of_group_a_column():
    frame = matrix((0, "0", "world", False, 1, 0), (0, "3", "tensor", False, 0, 0), (1, "0", "world", True, 0, 2),
                   (1, "4", "tensor", True, 0, 0))  # fmt: skip
    (data,) = figures.drawn("hang-matrix", frame, lambda row: f"/{row['rank']}/{row['group']}")["data"]
    assert data["x"] == ["world", "tensor"]
    assert data["y"] == ["0", "1 to blame"]
    assert data["z"] == [[1, 0], [2, 0]]
    assert data["customdata"] == [["/0/0", "/0/3"], ["/1/0", "/1/4"]]
    assert "2 behind the first of the group" in data["text"][1][0]
    assert "to blame" in data["text"][1][1]


def test_groups_of_a_rank_that_are_called_alike_have_columns_of_their_own():
    frame = matrix((0, "1", "tp", False, 0, 0), (0, "2", "tp", False, 0, 0), (0, "5", None, False, 0, 0))
    (data,) = figures.drawn("hang-matrix", frame)["data"]
    assert data["x"] == ["tp (1)", "tp (2)", "group 5"]


def test_of_many_ranks_those_to_blame_are_always_named():
    frame = matrix(*((rank, "0", "world", rank == 77, 1, 0) for rank in range(3000)))
    drawn = figures.drawn("hang-matrix", frame)
    assert len(drawn["data"][0]["y"]) == 2048
    ticks = drawn["layout"]["yaxis"]["tickvals"]
    assert "77 to blame" in ticks
    assert len(ticks) < 50
    assert "952 more ranks are not drawn" in drawn["layout"]["title"]["text"]


def test_names_are_drawn_literally():
    frame = matrix((0, "0", "<b>x</b>", False, 0, 0))
    (data,) = figures.drawn("hang-matrix", frame)["data"]
    assert data["x"] == ["&lt;b&gt;x&lt;/b&gt;"]
    assert "<b>" not in data["text"][0][0]
