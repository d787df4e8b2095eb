from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.schema import SPANS, TRANSFERS
from stepscope.core.table import Column, Table
from stepscope.renderers.cells import cell, cells, labels, width


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, None, "–"),
        (None, "ns", "–"),
        (float("nan"), None, "–"),
        (float("nan"), "ratio", "–"),
        (True, None, "yes"),
        (False, "ns", "no"),
        (1_500_000, "ns", "1.5 ms"),
        (0.61, "ratio", "61 %"),
        (2048, "bytes", "2 KiB"),
        (123456, None, "123456"),
        (1234.5, None, "1,234"),
        ([1, None, "a\n"], None, "1, –, a\\n"),
        ("a\x1b[0m", None, "a\\x1b[0m"),
        ("12", "ns", "12"),
    ],
)
def test_values_are_read_as_people_do(value, unit, text):
    assert cell(value, unit) == text


def test_counts_have_separators_and_ids_have_none():
    frame = pl.DataFrame({"span_id": [123456], "bytes": [1], "correlation": [123456], "other": [123456]})
    assert cells(frame, SPANS) == [["123456"], ["1"], ["123456"], ["123456"]]
    assert cells(frame.select("bytes"), TRANSFERS) == [["1 B"]]
    assert cell(123456, separated=True) == "123,456"


def test_labels_leave_the_unit_out_unless_two_would_be_alike():
    assert labels(["dur_ns", "n_calls", "idle_ns", "idle_ratio", "recorded_bytes_per_s", "bytes"]) == [
        "dur", "calls", "idle time", "idle share", "recorded", "bytes"
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("内核", 4), ("e\u0301", 1), ("🚀", 2), ("", 0)])
def test_wide_signs_count_twice_and_accents_not_at_all(text, columns):
    assert width(text) == columns


def test_the_unit_of_a_row_is_that_of_its_numbers() -> None:
    frame = pl.DataFrame(
        {"metric": ["m", "t", "u", "x"], "unit": ["bytes", "ns/s", "%", None], "mean": [2.0**34, 3e8, 51.8, 1e6]}
    )
    table = Table(
        "t",
        "",
        (
            Column("metric", pl.String(), "", key=True),
            Column("unit", pl.String(), ""),
            Column("mean", pl.Float64(), ""),
        ),
    )
    assert cells(frame, table)[2] == ["16 GiB", "300 ms/s", "51.8", "1,000,000"]
