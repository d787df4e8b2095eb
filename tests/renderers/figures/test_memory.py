from __future__ import annotations

import polars as pl

from stepscope.renderers import figures

DRAW = figures.find("memory")


def test_long_lines_of_memory_keep_their_peaks():
    held = [1] * 10_000
    held[5_555] = 99 << 20
    frame = pl.DataFrame(
        {"ts_ns": range(10_000), "device": ["cuda:0"] * 10_000, "allocated_bytes": held, "reserved_bytes": [0] * 10_000}
    )
    (line,) = DRAW(frame)["data"]
    assert max(line["y"]) == 99
    assert len(line["x"]) <= 2_001
    assert line["name"] == "cuda:0 allocated"


def test_devices_of_ranks_have_a_colour_each_and_the_allocator_a_dotted_line():
    frame = pl.DataFrame(
        {"ts_ns": [0, 0], "rank": [0, 1], "device": ["<d>", None], "allocated_bytes": [1, 1], "reserved_bytes": [2, 2]}
    )
    lines = DRAW(frame)["data"]
    assert [line["name"] for line in lines] == [
        "rank 0 &lt;d&gt; allocated", "rank 0 &lt;d&gt; reserved", "rank 1 allocated", "rank 1 reserved",
    ]  # fmt: skip
    assert [line["line"]["dash"] for line in lines] == ["solid", "dot"] * 2
    assert lines[0]["line"]["color"] == lines[1]["line"]["color"] != lines[2]["line"]["color"]


def test_without_devices_all_is_one_line_and_without_values_none():
    frame = pl.DataFrame({"ts_ns": [0], "allocated_bytes": [1]})
    assert [line["name"] for line in DRAW(frame)["data"]] == ["allocated"]
    assert DRAW(frame.with_columns(allocated_bytes=0)) is None
    assert DRAW(frame.with_columns(allocated_bytes=pl.lit(None, pl.Int64))) is None
