from __future__ import annotations

import polars as pl
import pytest
from batch_traces import TABLE_OF_TRACKS, run

from stepscope.analyses.critical_path.predictions import predictions
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import SPANS

DECODE, PREFILL, MIXED = "step[DECODE bs=4]", "step[EXTEND bs=1 toks=512]", "step[MIXED bs=5 c=1 g=4 c_sq=64 g_sq=4]"
PADDED = "execute_{}_context_0(sq0sk0sqsq0sqsk0)_generation_{}(sq{}sk9sqsq9sqsk9)"


def spans_of_batches(*batches):
    """Batches (name, µs of device work), one behind the other, each queued ahead of its work."""
    at, rows = 0, []
    for i, (name, took) in enumerate(batches):
        rows.append((name, 3 * i, 3, 100 + at, took))
        at += took
    return run(*rows)


def predicted(spans, question):
    row = predictions(spans, TABLE_OF_TRACKS, changes=question).row(0, named=True)
    return row["step_ns"] - row["predicted_ns"], row["basis"]


def test_without_prefill_only_decode_remains():
    spans = spans_of_batches((DECODE, 100), (PREFILL, 700), (DECODE, 100), (MIXED, 400), (DECODE, 100))
    assert predicted(spans, "prefill: removed") == (pytest.approx(700_000 + 300_000, abs=5_000), "replayed")


def test_an_empty_place_takes_what_a_request_takes():
    sizes = [(8, 8), (16, 12), (32, 20), (4, 4)] * 5
    spans = spans_of_batches(*[(PADDED.format(size, n, n), 100 + 10 * n) for size, n in sizes])
    assert predicted(spans, "padding: removed") == (pytest.approx(5 * 16 * 10_000, rel=0.02), "modelled")


@pytest.mark.parametrize("question", ["padding: removed", "prefill: removed", "sampling: free"])
def test_what_a_recording_does_not_have_is_refused(question):
    for spans in (spans_of_batches((DECODE, 100), (DECODE, 100)), spans_of_batches(("forward", 100))):
        with pytest.raises(StepscopeError, match="nothing to change"):
            predicted(spans, question)


def test_an_operator_in_a_replayed_graph_speaks_of_its_kernels():
    rows = [  # a graph launch with two operators in it, a nanosecond for each launch
        {"category": "runtime", "name": "cudaGraphLaunch", "ts_ns": 0, "dur_ns": 1000, "track_id": 0},
        {"category": "operator", "name": "outer", "ts_ns": 0, "dur_ns": 2, "track_id": 0},
        {"category": "operator", "name": "mm", "ts_ns": 0, "dur_ns": 1, "track_id": 0},
        {"category": "operator", "name": "add", "ts_ns": 1, "dur_ns": 1, "track_id": 0},
        {"category": "kernel", "name": "k", "ts_ns": 2000, "dur_ns": 9000, "track_id": 1, "launch_id": 0, "op_id": 2},
        {"category": "kernel", "name": "k", "ts_ns": 11000, "dur_ns": 3000, "track_id": 1, "launch_id": 0, "op_id": 3},
    ]
    spans = SPANS.conform(pl.DataFrame(rows, infer_schema_length=None).with_row_index("span_id"))
    for name, saved in (("mm", 9000), ("add", 3000), ("outer", 12000)):
        assert predicted(spans, f"op ~ ^{name}$: removed")[0] == pytest.approx(saved, abs=10)
