"""Waits that no call was recorded of: the device runs dry, and the silent thread goes on."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.critical_path.predictions import predictions
from stepscope.core.schema import ARROWS, EVENT_WAITS, OPS, SPANS, STEPS, TRACKS

US = 1_000
TRACKS_OF_ONE_STREAM = TRACKS.conform(
    pl.DataFrame({
        "track_id": [0, 1], "pid": [7, None], "device_id": [None, 0], "stream": [None, 1], "kind": ["thread", "stream"],
    })
)  # fmt: skip


def recording(goes_on_at: int, *, noted: bool = False) -> pl.DataFrame:
    """A graph launch whose two kernels run until 5,010 µs, and a copy that the host queues at `goes_on_at`."""
    rows = [
        ("hipGraphLaunch", "runtime", 0, 0, 10, None),
        ("hipMemcpyAsync", "runtime", 0, goes_on_at, 10, None),
        ("gemm", "kernel", 1, 10, 4_000, 0),
        ("softmax", "kernel", 1, 4_010, 1_000, 0),
        ("Memcpy DtoH", "memcpy", 1, goes_on_at + 10, 10, 1),
    ]
    if noted:
        rows.append(("hipStreamSynchronize", "runtime", 0, goes_on_at + 30, 1, None))
    names = ("name", "category", "track_id", "ts_ns", "dur_ns", "launch_id")
    spans = pl.DataFrame(rows, schema=names, orient="row").with_row_index("span_id")
    return SPANS.conform(spans.with_columns(pl.col("ts_ns", "dur_ns") * US))


def step_with(spans: pl.DataFrame, question: str) -> float:
    empty = (STEPS.empty(), OPS.empty(), ARROWS.empty(), EVENT_WAITS.empty())
    return predictions(spans, TRACKS_OF_ONE_STREAM, *empty, changes=question)["predicted_ns"][0]


def test_a_thread_that_goes_on_when_the_device_has_run_dry_waited_for_it() -> None:
    assert step_with(recording(5_020), "kernel ~ gemm: 2x") == pytest.approx(5_040 * US - 2_000 * US, rel=0.01)


@pytest.mark.parametrize(
    "spans", [recording(9_000), recording(5_020, noted=True)], ids=["goes on later", "waits are recorded"]
)
def test_else_it_computed(spans) -> None:
    last = (spans["ts_ns"] + spans["dur_ns"]).max() - spans["ts_ns"].min()
    assert step_with(spans, "kernel ~ gemm: 2x") >= 0.97 * (last - 50 * US)


def test_work_of_which_nothing_is_known_follows_the_work_of_its_device() -> None:
    spans = recording(5_020).with_columns(
        launch_id=pl.when(pl.col("name") != "Memcpy DtoH").then("launch_id"),
        track_id=pl.when(pl.col("name") == "Memcpy DtoH").then(2).otherwise("track_id").cast(pl.UInt32),
    )
    other = TRACKS.conform(pl.DataFrame({"track_id": [2], "device_id": [0], "stream": [2], "kind": ["stream"]}))
    tracks = pl.concat([TRACKS_OF_ONE_STREAM, other])
    empty = (STEPS.empty(), OPS.empty(), ARROWS.empty(), EVENT_WAITS.empty())
    row = predictions(spans, tracks, *empty, changes="kernel ~ gemm: 2x").row(0, named=True)
    assert row["predicted_ns"] == pytest.approx(row["step_ns"] - 2_000 * US, rel=0.01)
