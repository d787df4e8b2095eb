from __future__ import annotations

import polars as pl

from stepscope.analyses.common.span_lookup import during, most_called, most_of
from stepscope.core.names import is_own_code


def traced(rows):
    rows.add(0, 0, 1000, "train.py(10): main", "python")
    rows.add(0, 10, 500, "torch/nn/modules/module.py(1): _call_impl", "python")
    rows.add(0, 20, 400, "model.py(7): forward", "python")
    rows.launch(30)
    rows.add(0, 600, 300, "data.py(3): load", "python")
    rows.launch(610)
    rows.op(620, 270, "aten::copy_")
    return rows.trace().spans


def test_the_innermost_frame_of_the_program_with_the_most_weight_is_named(rows) -> None:
    spans = traced(rows)
    calls = spans.filter(pl.col("category") == "runtime")["span_id"]
    assert most_of(spans, calls, pl.Series([30, 70]), ("python",)) == ("data.py(3): load", 0.7)


def test_frames_of_libraries_are_passed_over(rows) -> None:
    spans = traced(rows)
    inside = spans.filter(pl.col("name") == "torch/nn/modules/module.py(1): _call_impl")["span_id"]
    assert most_of(spans, inside, pl.Series([1]), ("python",)) == ("train.py(10): main", 1.0)
    assert not is_own_code("<built-in method to of Tensor>")
    assert is_own_code("transformers/models/vit/modeling_vit.py(252): forward")


def test_intervals_weigh_as_far_as_the_span_was_open_in_them(rows) -> None:
    spans = traced(rows)
    calls = spans.filter(pl.col("category") == "runtime")["span_id"]
    since = pl.Series([0, 500])
    assert most_of(spans, calls, pl.Series([100, 200]), ("python",), since) == ("data.py(3): load", 100 / 300)


def test_the_calls_that_took_most_of_a_stretch_are_summed_by_name(rows) -> None:
    rows.launch(0, 30, "cudaFree")
    rows.launch(40, 20, "cuModuleUnload")
    rows.launch(70, 20, "cuModuleUnload")
    spans = rows.trace().spans
    assert most_called(spans, 0, 100) == ("cuModuleUnload", 2, 40)
    assert most_called(spans, 0, 45) == ("cudaFree", 1, 30)
    assert most_called(spans, 200, 300) is None


def test_nothing_around_is_none(rows) -> None:
    spans = traced(rows)
    calls = spans.filter(pl.col("category") == "runtime")["span_id"]
    assert most_of(spans, calls, pl.Series([1, 1]), ("user_range",)) is None
    assert most_of(spans, calls, pl.Series([0, 0]), ("python",)) is None
    assert most_of(spans, pl.Series([None], dtype=pl.UInt32), pl.Series([5]), ("python",)) is None
    assert most_of(spans, pl.Series([], dtype=pl.UInt32), pl.Series([], dtype=pl.Int64), ("python",)) is None


def test_a_stretch_of_time_is_told_by_what_was_open_for_most_of_it(rows) -> None:
    spans = traced(rows)
    assert during(spans, 640, 880) == "aten::copy_ at data.py(3): load"
    assert during(spans, 0, 1000) == "train.py(10): main"
    assert during(spans, 5000, 6000) == ""
