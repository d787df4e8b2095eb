"""Laws of every analysis of one trace: tiny traces give its declared columns, or an error of ours."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope import analyses
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import TABLES
from stepscope.core.trace import Meta, Trace

SPAN = {"span_id": 0, "track_id": 0, "ts_ns": 0, "dur_ns": 5, "name": "aten::mm", "category": "operator"}


def trace_of(spans, steps=()):
    """A trace of a thread (track 0) and a stream (track 1); device work is launched by span 0 of the thread."""
    rows = {
        "devices": [{"device_id": 0, "type": "cpu"}, {"device_id": 1, "type": "cuda", "index": 0}],
        "tracks": [
            {"track_id": 0, "kind": "thread", "pid": 1, "tid": 1},
            {"track_id": 1, "kind": "stream", "device_id": 1, "stream": 7},
        ],
        "spans": spans,
        "steps": list(steps),
        "ops": [{"span_id": s["span_id"], "input_shapes": "[[2,3],[3,4]]"} for s in spans if s["name"] == "aten::mm"],
        "kernels": [{"span_id": s["span_id"], "grid_x": 1} for s in spans if s["category"] == "kernel"],
        "collectives": [{"span_id": s["span_id"], "group": "0"} for s in spans if "nccl" in s["name"]],
        "allocations": [{"ts_ns": 0, "track_id": 0, "device_id": 1, "bytes": 8, "total_allocated_bytes": 8}],
        "counters": [{"ts_ns": 0, "device_id": 1, "device": "gpu0", "metric": "use", "unit": "%", "value": 5.0}],
    }
    frames = {
        name: TABLES[name].conform(pl.DataFrame(some, infer_schema_length=None)) for name, some in rows.items() if some
    }
    return Trace(Meta("tiny", "kineto", rank=0), frames)


def work(number, ts, dur, name="gemm"):
    return {"span_id": number, "track_id": 1, "ts_ns": ts, "dur_ns": dur, "name": name, "category": "kernel",
            "launch_id": 0, "op_id": 0, "step": 0}  # fmt: skip


def dumped(number, height=3):
    """A memory snapshot and a flight recorder's dump in one, whose numbers are all the same, or unknown."""
    names = ("memory_events", "memory_segments", "memory_blocks", "collective_records", "group_status")
    texts = {"action": ["alloc", "free_completed", "oom"], "state": ["active_allocated", "inactive", "scheduled"],
             "members": ["[0, 1]"] * 3}  # fmt: skip
    frames = {}
    for name in names:
        columns = {
            column: pl.repeat(False, height, dtype=dtype, eager=True)
            if dtype == pl.Boolean
            else pl.Series(texts.get(column, ["0"] * 3)[:height], dtype=dtype)
            if dtype in (pl.String, pl.Categorical)
            else pl.repeat(
                0 if (number is None and column in TABLES[name].never_null) or dtype != pl.Int64 else number,
                height, dtype=dtype, eager=True,
            )
            for column, dtype in TABLES[name].dtypes.items()
        }  # fmt: skip
        frames[name] = TABLES[name].conform(pl.DataFrame(columns))
    frames["devices"] = TABLES["devices"].conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [0]}))
    frames["stacks"] = TABLES["stacks"].conform(pl.DataFrame({"stack_id": [0], "frames": [["f (a.py:1)"]]}))
    return Trace(Meta("tiny", "memory-snapshot"), frames)


STEP = {"step": 0, "rank": 0, "ts_ns": 0, "dur_ns": 0, "source": "annotation"}
TINY = {
    "nothing": Trace(Meta("tiny", "kineto"), {}),
    "one span": trace_of([SPAN]),
    "no length": trace_of(
        [SPAN | {"dur_ns": 0}, *(work(i, i, 0) for i in range(1, 5)), work(5, 5, 0, "ncclDevKernel_AllReduce")], [STEP]
    ),
    "all equal": trace_of(
        [SPAN, *(SPAN | {"span_id": i, "parent_id": 0} for i in range(1, 4)), *(work(i, 0, 5) for i in range(4, 9))],
        [STEP | {"dur_ns": 5}, STEP | {"dur_ns": 5, "step": 1}],
    ),
    "one row of a dump": dumped(1, height=1),
    **{f"a dump of {number}": dumped(number) for number in (None, 0, -1, 1, 2**62)},
}


def ways(name):
    """The defaults of an analysis, and each value that an option may have."""
    options = analyses.find(name).options().values()
    return [{}, *({option.name: value} for option in options for value in option.choices)]


@pytest.mark.slow
@pytest.mark.parametrize("tiny", TINY)
@pytest.mark.parametrize("name", analyses.names("trace"))
def test_a_tiny_trace_gives_the_declared_columns_or_an_error_of_ours(name, tiny):
    analysis = analyses.find(name)
    for options in ways(name):
        try:
            frame = analysis(TINY[tiny], **options)
        except StepscopeError:
            continue
        declared = analysis.output.dtypes
        assert {column: declared[column] for column in frame.columns} == dict(frame.schema), options
