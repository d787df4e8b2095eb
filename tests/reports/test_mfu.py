from __future__ import annotations

import polars as pl
from bar_notes import texts
from device_traces import HOST, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.common.device_work import device_work
from stepscope.core.schema import DEVICES, OPS
from stepscope.core.trace import Meta, Trace
from stepscope.reports._mfu import mfu_at_a_glance
from stepscope.reports.overview import overview

MM = ("[[1024,1024],[1024,1024]]", '["c10::BFloat16","c10::BFloat16"]', '["",""]')
H100 = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [0], "name": ["NVIDIA H100 PCIe"]}))
RATIO = 2 * 1024**3 / 756e12 / 9_990e-9


def trace_of(*known: bool, devices=H100, name="gemm", ops=True):
    """Products of 3 µs each; of those that are known the shapes were recorded. The recording takes 9,990 ns."""
    calls = [(HOST, 10 + 10 * i, 5, "aten::mm", "operator") for i in range(len(known))]
    works = [kernel(STREAM_7, 7_000 - 3_000 * i, 3_000, name, i) for i in range(len(known))]
    n = len(known)
    spans = spans_of(*calls, *works, op_id=[None] * n + list(range(n)))
    rows = [(i, *(MM if full else (None,) * 3)) for i, full in enumerate(known) if ops]
    schema = ("span_id", "input_shapes", "input_types", "concrete_inputs")
    tables = {"spans": spans, "tracks": TRACKS_5, "devices": devices}
    tables["ops"] = OPS.conform(pl.DataFrame(rows, schema=schema, orient="row", infer_schema_length=None))
    return Trace(Meta("x.json", "kineto", framework="PyTorch"), tables)


def glance(trace):
    work = device_work(trace.spans, trace.tracks, needed_by="test")
    return mfu_at_a_glance(trace, work)


def test_the_report_tells_the_ratio_of_the_analysis():
    (use, lacks) = glance(trace_of(True, True))
    assert use["mfu_known_ratio"] == 1.0
    assert abs(use["mfu_ratio"] - 2 * RATIO) < 1e-12
    assert lacks == ()
    assert f"MFU {200 * RATIO:.0f} %" in texts(overview(trace_of(True, True)).bars[0])


def test_little_known_is_not_told_and_the_reason_is():
    use, (lack,) = glance(trace_of(True, False, False))
    assert use == {}
    assert lack.text == (
        "MFU is not told (show mfu): the operations of 33 % of the time in products of matrices are known."
    )
    use, _ = glance(trace_of(True, True, False))
    assert use["mfu_known_ratio"] == 2 / 3


def test_an_unknown_device_and_missing_shapes_are_the_reason():
    use, (lack,) = glance(trace_of(True, devices=H100.with_columns(name=pl.lit("Voodoo"))))
    assert use == {}
    assert lack.text.startswith("MFU is not told (show mfu): 'Voodoo' is not a known accelerator")
    _, (lack,) = glance(trace_of(False))
    assert lack.text == "MFU is not told (show mfu): shapes were not recorded (record_shapes=True)."
    assert lack.text in overview(trace_of(False)).quality


def test_nothing_is_said_where_there_is_nothing_to_multiply():
    assert glance(trace_of(True, ops=False)) == ({}, ())
    copies = trace_of(False, name="elementwise_kernel")
    assert glance(copies) == ({}, ())
    spans = copies.spans.with_columns(category=pl.col("category").cast(pl.String).replace("kernel", "memcpy"))
    assert glance(copies.with_tables(spans=spans.cast({"category": copies.spans["category"].dtype}))) == ({}, ())
