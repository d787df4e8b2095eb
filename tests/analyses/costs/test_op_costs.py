from __future__ import annotations

import polars as pl
from device_traces import HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.op_costs import NO_OPERATOR, priced
from stepscope.core.schema import OPS

MM = ("[[8,4],[4,2]]", '["float","float"]', '["",""]')
NORM = (
    "[[8,4],[],[4],[4],[],[]]",
    '["float","ScalarList","float","float","Scalar","Scalar"]',
    '["","[4]","","","1e-5","True"]',
)
NATIVE = ("[[8,4],[],[4],[4],[]]", '["float","ScalarList","float","float","Scalar"]', '["","[4]","","","1e-5"]')


def ops_of(**calls):
    rows = [(int(i[1:]), *arguments) for i, arguments in calls.items()]
    schema = ("span_id", "input_shapes", "input_types", "concrete_inputs")
    return OPS.conform(pl.DataFrame(rows, schema=schema, orient="row"))


def found(spans, ops):
    work = device_work(spans, TRACKS_5, needed_by="test").with_columns(tensor_core=pl.lit(False))
    return priced(work, spans, ops)[1].sort("call_id")


def test_the_outermost_operator_with_a_known_cost_stands_for_the_work():
    spans = spans_of(
        (HOST, 0, 100, "aten::linear", "operator"),
        (HOST, 10, 50, "aten::layer_norm", "operator"),
        (HOST, 20, 30, "aten::native_layer_norm", "operator"),
        (HOST, 70, 20, "aten::mm", "operator"),
        kernel(STREAM_7, 200, 10, "norm"),
        kernel(STREAM_7, 300, 30, "gemm"),
        parent_id=[None, 0, 1, 0, None, None],
        op_id=[None, None, None, None, 2, 3],
    )
    got = found(spans, ops_of(_1=NORM, _2=NATIVE, _3=MM))
    assert got.select("name", "family", "device_ns", "flop").rows() == [
        ("aten::layer_norm", "norm", 10, 184.0), ("aten::mm", "gemm", 30, 128.0),
    ]  # fmt: skip


def test_without_a_known_cost_the_innermost_operator_tells_why():
    spans = spans_of(
        (HOST, 0, 100, "aten::layer_norm", "operator"),
        (HOST, 20, 30, "aten::cat", "operator"),
        kernel(STREAM_7, 200, 10, "cat"),
        kernel(STREAM_7, 300, 30, "loose"),
        kernel(STREAM_8, 300, 5, "loose"),
        parent_id=[None, 0, None, None, None],
        op_id=[None, None, 1, None, None],
    )
    got = found(spans, ops_of(_1=("[[[2],[3]],[]]", '["TensorList","Scalar"]', '["","0"]')))
    assert got.select("name", "reason", "n_work", "device_ns").rows() == [
        (None, NO_OPERATOR, 1, 5), (None, NO_OPERATOR, 1, 30), ("aten::cat", "no formula for this operator", 1, 10),
    ]  # fmt: skip


def test_overlapping_work_of_one_call_counts_once():
    spans = spans_of(
        (HOST, 0, 100, "aten::mm", "operator"),
        kernel(STREAM_7, 200, 100, "a"),
        kernel(STREAM_8, 250, 100, "b"),
        op_id=[None, 0, 0],
    )
    got = found(spans, ops_of(_0=MM))
    assert got.select("n_work", "device_ns", "device_id").rows() == [(2, 150, 0)]
