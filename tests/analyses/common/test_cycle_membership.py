from __future__ import annotations

import numpy as np
import polars as pl
from cycle_traces import GPU, LANE, MAIN, STREAM, TRACKS_4, spans_of

from stepscope.analyses.common.cycle_membership import NOWHERE, counted_at, cycle_of, device_of_tracks
from stepscope.core.schema import DEVICES


def test_an_accelerator_is_a_gpu_and_lanes_are_nowhere():
    assert device_of_tracks(TRACKS_4, GPU).to_list() == ["host", "host", "gpu3", None]


def test_a_device_that_is_not_described_is_a_gpu_all_the_same():
    assert device_of_tracks(TRACKS_4, DEVICES.empty()).to_list() == ["host", "host", "gpu", None]


def test_tracks_of_unknown_kind_count():
    tracks = TRACKS_4.with_columns(kind=pl.lit(None, TRACKS_4.schema["kind"]))
    assert device_of_tracks(tracks, GPU).to_list() == ["host", "host", "gpu3", "host"]


def test_device_work_counts_when_it_was_queued():
    late = (STREAM, 90, 5, "late", "kernel", "launch")
    spans = spans_of((MAIN, 5, 2, "launch", "runtime"), (STREAM, 1, 2, "early", "kernel"), late)
    assert counted_at(spans).tolist() == [5, NOWHERE, 5]


def test_device_work_without_any_launch_record_counts_when_it_ran():
    spans = spans_of((MAIN, 5, 2, "op", "operator"), (STREAM, 90, 5, "k", "kernel"))
    assert counted_at(spans).tolist() == [5, 90]


def test_host_work_counts_when_it_begins():
    spans = spans_of((MAIN, 5, 2, "op", "operator"), (LANE, 6, 2, "x", "other"))
    assert counted_at(spans).tolist() == [5, 6]


def test_each_time_is_in_one_cycle_or_in_none():
    lows, highs = np.array([0, 10, 30]), np.array([10, 20, 40])
    at = np.array([-1, 0, 9, 10, 19, 20, 29, 30, 40, NOWHERE])
    assert cycle_of(at, lows, highs).tolist() == [-1, 0, 0, 1, 1, -1, -1, 2, -1, -1]
    assert cycle_of(at, lows[:0], highs[:0]).tolist() == [-1] * 10
