from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.schema import KERNEL_METRICS, KERNELS, SPANS, STEPS, TABLES, TRACKS
from stepscope.core.soundness import flaw_of, in_order

N_ROWS = {"spans": 4, "tracks": 2, "devices": 1, "stacks": 0}


def spans(**columns):
    """A step around an operator and its launch on track 0, and what was launched on track 1; some columns changed."""
    whole = {
        "span_id": [0, 1, 2, 3],
        "track_id": [0, 0, 0, 1],
        "ts_ns": [0, 0, 5, 7],
        "dur_ns": [9, 8, 1, 3],
        "name": ["step", "mm", "launch", "gemm"],
        "category": ["step", "operator", "runtime", "kernel"],
        "parent_id": [None, 0, 1, None],
        "launch_id": [None, None, None, 2],
        "op_id": [None, None, 1, 1],
    }
    return SPANS.conform(pl.DataFrame(whole | columns, strict=False))


def test_what_readers_make_is_sound():
    assert flaw_of(SPANS, spans(), N_ROWS) is None
    assert flaw_of(SPANS, spans(ts_ns=[None] * 4, dur_ns=[None] * 4), N_ROWS) is None
    assert flaw_of(SPANS, spans(ts_ns=[None] * 4, track_id=[1, 1, 1, 0]), N_ROWS) is None


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_table_is_sound(name):
    assert flaw_of(TABLES[name], TABLES[name].empty(), {}) is None


@pytest.mark.parametrize(
    ("columns", "flaw"),
    [
        ({"span_id": [0, 1, 3, 3]}, "span_id in row 2 is 3: rows are numbered from 0"),
        ({"track_id": [0, 0, 0, 2]}, "track_id in row 3 is 2: tracks has 2 rows"),
        ({"track_id": [0, 0, None, 1]}, "track_id in row 2 is null: it must be known"),
        ({"track_id": [0, 1, 0, 1]}, "track_id in row 2 is 0: spans are sorted by track"),
        ({"name": ["a", None, "b", "c"]}, "name in row 1 is null"),
        ({"category": [None] * 4}, "category in row 0 is null"),
        ({"ts_ns": [0, 0, None, 7]}, "ts_ns in row 2 is null: all spans have a start, or none has"),
        ({"ts_ns": [0, 6, 5, 7]}, "ts_ns in row 2 is 5: spans of a track are sorted by start"),
        ({"ts_ns": [0, 0, 5, 2**62 + 1]}, "ts_ns in row 3 is 4611686018427387905: it must lie between"),
        ({"dur_ns": [8, 9, 1, 3]}, "dur_ns in row 1 is 9: the longest of spans that start together is first"),
        ({"dur_ns": [9, 8, -1, 3]}, "dur_ns in row 2 is -1: it must lie between 0 and"),
        ({"dur_ns": [9, 8, None, 3]}, "dur_ns in row 2 is null: it must be known"),
        ({"parent_id": [None, 1, None, None]}, "parent_id in row 1 is 1: a parent begins before its child"),
        ({"parent_id": [1, 0, None, None]}, "parent_id in row 0 is 1: a parent begins before its child"),
        ({"parent_id": [None, None, None, 2]}, "parent_id in row 3 is 2: a parent is on the track of its child"),
        ({"parent_id": [None, 4, None, None]}, "parent_id in row 1 is 4: spans has 4 rows"),
        ({"launch_id": [None, 2, 1, None]}, "launch_id in row 1 is 2: the span that it names has one of its own"),
        ({"op_id": [None, 1, None, None]}, "op_id in row 1 is 1: the span that it names has one of its own"),
    ],
)  # fmt: skip
def test_spans_that_cannot_be_are_named_with_column_and_row(columns, flaw):
    assert (flaw_of(SPANS, spans(**columns), N_ROWS) or "").startswith(flaw)


def test_columns_and_their_types_are_those_of_the_table():
    steps = STEPS.empty()
    assert flaw_of(STEPS, steps.drop("dur_ns"), {}) == "the column dur_ns is missing"
    assert flaw_of(STEPS, steps.with_columns(pl.col("step").cast(pl.String)), {}) == "step is String instead of Int32"
    assert flaw_of(STEPS, steps.with_columns(novel=1), {}) == "there is no column 'novel' in this table"
    assert flaw_of(STEPS, steps.select(reversed(steps.columns)), {}) is None


def test_numbers_that_are_none_cannot_be():
    for value in (float("nan"), float("inf")):
        frame = KERNELS.conform(pl.DataFrame({"span_id": [0, 1], "blocks_per_sm": [1.5, value]}))
        assert (flaw_of(KERNELS, frame, N_ROWS) or "").startswith("blocks_per_sm in row 1 is ")


def test_a_span_has_one_row_of_its_arguments_and_any_number_of_counters():
    assert flaw_of(KERNELS, KERNELS.conform(pl.DataFrame({"span_id": [0, 3, 3]})), N_ROWS) == (
        "span_id in row 2 is 3: each has one row"
    )
    metrics = KERNEL_METRICS.conform(pl.DataFrame({"span_id": [3, 3], "metric": ["a", "b"], "value": [1.0, 2.0]}))
    assert flaw_of(KERNEL_METRICS, metrics, N_ROWS) is None


def test_rows_are_put_into_the_order_of_their_numbers_or_times():
    tracks = TRACKS.conform(pl.DataFrame({"track_id": [1, 0], "kind": ["stream", "thread"]}))
    assert in_order(TRACKS, tracks)["kind"].to_list() == ["thread", "stream"]
    assert in_order(TRACKS, tracks.reverse())["track_id"].to_list() == [0, 1]
    issues = TABLES["issues"].conform(pl.DataFrame({"code": ["b", "a"]}))
    assert in_order(TABLES["issues"], issues).equals(issues)


def test_columns_come_in_the_order_of_their_table():
    issues = TABLES["issues"].conform(pl.DataFrame({"code": ["b", "a"]}))
    turned = issues.select("example", "count", pl.lit(1).alias("new"), "severity", "code")
    assert in_order(TABLES["issues"], turned).columns == [*issues.columns, "new"]
