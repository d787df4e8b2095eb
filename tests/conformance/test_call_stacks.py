"""Call stacks against the recorder's own ids: Kineto numbers each Python call and names the call that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

import stepscope
from stepscope.analyses.common.span_lookup import callers
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from pathlib import Path

WITH_STACKS = (
    "tracelens/inference/xdit_sd_3.5/profile_trace_rank_0.json.gz",
    "tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz",
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
    "tracelens/b200/eager_trace.json.gz",
)
_MOST = 300


@pytest.mark.parametrize("name", WITH_STACKS)
def test_functions_around_a_launch_were_open_and_are_all_that_the_ids_name(shared: Path, name: str) -> None:
    trace = stepscope.load(str(shared / "traces" / name))
    spans = trace.spans
    ends = spans["ts_ns"] + spans["dur_ns"]
    frames = trace.frames.drop_nulls("python_id")
    span_of = dict(frames.select("python_id", "span_id").iter_rows())
    above = dict(frames.select("span_id", "python_parent_id").iter_rows())
    launches = spans.filter(pl.col("category").is_in(DEVICE_WORK))["launch_id"].drop_nulls().unique().sort()
    checked = 0
    for launch in launches.gather_every(max(len(launches) // _MOST, 1)).to_list():
        at = spans["ts_ns"][launch]
        around = callers(spans, launch, trace.frames)
        assert all(ends[one] > at for one in around[1:]), "a function that had returned"
        ours = [one for one in around if one in above]
        if not ours:
            continue
        theirs = [ours[0]]
        while (parent := above[theirs[-1]]) in span_of:
            theirs.append(span_of[parent])
        theirs = [one for one in theirs if ends[one] > at]
        checked += len(ours) > 1
        # The ids leave out functions around operators that ran Python themselves; all of ours were open.
        assert [one for one in ours if one in theirs] == theirs
    assert checked
