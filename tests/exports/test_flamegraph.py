from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.errors import MissingTable
from stepscope.core.schema import STACK_SAMPLES, STACKS, TRACKS
from stepscope.core.trace import Meta, Run, Trace
from stepscope.exports import Context, find

TOLD: list[str] = []
CONTEXT = Context(open_run=lambda path: Run((path,), open_trace), tell=TOLD.append)


def open_trace(path: str) -> Trace:
    """The trace of a name: `empty` has no stacks, `1` is rank 1."""
    if path == "empty":
        return Trace(Meta(path, "counters"), {})
    rows = [
        {"ts_ns": 0, "dur_ns": 10, "pid": 7, "tid": 7, "thread": "Main;Thread", "stack_id": 0, "n_samples": 3},
        {"ts_ns": 10, "dur_ns": 10, "pid": 7, "tid": 8, "thread": None, "stack_id": 1, "n_samples": 1},
    ]
    samples = pl.DataFrame([{**row, "on_gil": False} for row in rows])
    frames = [["a (x.py:1)", "b (x.py:2)"], ["c (x.py:3)"]]
    ranks = [1] if path == "1" else []
    tables = {
        "stack_samples": STACK_SAMPLES.conform(samples),
        "stacks": STACKS.conform(pl.DataFrame({"stack_id": [0, 1], "frames": frames})),
        "tracks": TRACKS.conform(
            pl.DataFrame(
                {"track_id": range(len(ranks)), "rank": ranks}, schema={"track_id": pl.UInt32, "rank": pl.Int32}
            )
        ),
    }
    return Trace(Meta(path, "counters"), tables)


def text(*paths: str, **options: object) -> str:
    return "".join(find("flamegraph")(Run(paths, open_trace), CONTEXT, **options).pieces)


def test_a_line_for_each_stack():
    assert text("0") == (
        "process 7;Main,Thread;a (x.py:1);b (x.py:2) 3\n"  # 10 of 20 ns each: in order of names
        "process 7;thread;c (x.py:3) 1\n"
    )


def test_ranks_are_told_and_traces_without_stacks_are_left_out():
    TOLD.clear()
    assert text("empty", "1").splitlines()[0] == "rank 1;process 7;Main,Thread;a (x.py:1);b (x.py:2) 3"
    assert len(TOLD) == 1
    assert TOLD[0].startswith("empty is left out")


def test_without_any_it_says_how_to_record_them():
    with pytest.raises(MissingTable) as caught:
        text("empty")
    assert "--stacks" in caught.value.hint
    with pytest.raises(MissingTable):
        text("0", gil=True)
