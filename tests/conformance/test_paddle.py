"""Profiles of PaddlePaddle 3.3.1 against the texts that it printed from them."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest

from stepscope.exports.paddle_summary import VIEWS, summary
from stepscope.readers import open_trace

CASES = (
    "attention_block", "dist_gloo/rank0", "dist_gloo/rank1", "gpu/flash_attn_reconstruction", "gpu/synthetic_gpu_train",
    "lenet_train", "static_mlp/cycle0", "static_mlp/cycle1",
)  # fmt: skip
#: Names of the texts, and the options with which they were printed.
TEXTS = {
    "summary_ms": {},
    "summary_us": {"time_unit": "us"},
    "summary_ns": {"time_unit": "ns"},
    "summary_s": {"time_unit": "s"},
    "summary_ms_nodetail": {"op_detail": False},
    "summary_ms_threadsep": {"thread_sep": True},
    "summary_us_nodetail_threadsep": {"time_unit": "us", "op_detail": False, "thread_sep": True},
    **{
        f"views/{view}_ms": {"views": [view]}
        for view in (
            "device", "overview", "model", "distributed", "kernel", "operator", "memory", "memory_manipulation", "udf",
        )
    },
    **{
        f"sorted/{key}_us": {
            "time_unit": "us", "sorted_by": key, "op_detail": False, "views": ["operator", "kernel", "udf"],
        }
        for key in ("CPUTotal", "CPUAvg", "CPUMax", "CPUMin", "GPUTotal", "GPUAvg", "GPUMax", "GPUMin")
    },
}  # fmt: skip
#: JSON rounds times to single precision: lines of these texts that differ in their last digits.
ROUNDED = {
    ("attention_block", "summary_ns"): 3,  # a first step of 35 ms is 1 ns shorter
    # Of events that overlap, the time covered depends on starts, which are off by some ns.
    ("gpu/synthetic_gpu_train", "summary_ns"): 6,
    ("gpu/synthetic_gpu_train", "summary_us"): 1,
    ("gpu/synthetic_gpu_train", "summary_us_nodetail_threadsep"): 1,
}
#: with_flops adds a section that no profile holds.
FLOPS = "--------------------------------------- Flops Profiler Begin"

PERF = (
    "attention_block",
    "dist_gloo/rank0",
    "dist_gloo/rank1",
    "gpu/flash_attn_reconstruction",
    "lenet_train",
    "static_mlp",
)


@pytest.fixture(scope="module")
def folder(shared):
    return shared / "paddle"


@pytest.fixture(scope="module")
def load(folder):
    return cache(lambda case, kind: open_trace(str(folder / case / f"trace.{kind}.gz")))


def printed(folder, case, name):
    return (folder / case / f"{name}.txt").read_text().split(FLOPS)[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TEXTS)
def test_the_summary_of_protobuf_is_paddles_to_the_byte(folder, load, case, name):
    assert summary(load(case, "pb"), **TEXTS[name]) == printed(folder, case, name)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TEXTS)
def test_the_summary_of_json_is_paddles_but_for_last_digits(folder, load, case, name):
    found, wanted = summary(load(case, "json"), **TEXTS[name]), printed(folder, case, name)
    if (case, name) not in ROUNDED:
        assert found == wanted
        return
    pairs = [(a, b) for a, b in zip(found.splitlines(), wanted.splitlines(), strict=True) if a != b]
    assert len(pairs) == ROUNDED[case, name]
    for ours, theirs in pairs:
        for a, b in zip(ours.split(), theirs.split(), strict=True):
            assert a == b or abs(float(a) - float(b)) <= 4


def test_every_text_of_the_collection_is_compared(folder):
    texts = {
        str(path.relative_to(folder))[:-4] for path in folder.rglob("*_*.txt") if "public_summaries" not in path.parts
    }
    mine = {f"{case}/{name}" for case in CASES for name in TEXTS} | {f"{case}/perf_summary" for case in PERF}
    assert texts == mine
    assert len(TEXTS) == 7 + len(VIEWS) + 8


@pytest.mark.parametrize("case", PERF)
def test_costs_of_steps_make_paddles_perf_summary(folder, load, case):
    costs = open_trace(str(folder / case / "perf_raw.json")).step_costs
    trace = load("static_mlp/cycle0" if case == "static_mlp" else case, "pb")
    unit = "images" if case == "lenet_train" else None
    told = [
        line for line in printed(folder, case, "perf_summary").splitlines(keepends=True) if not line.startswith("Iter")
    ]
    assert summary(trace, views=[], steps=costs, ips_unit=unit) == "".join(told) + "\n"


@pytest.mark.parametrize("kind", ["pb", "json"])
def test_the_reference_is_reproduced_above_what_its_user_printed(folder, shared, load, kind):
    case = "gpu/flash_attn_reconstruction"
    reference = (shared / "reference" / "paddle_summary_flash_attn.txt").read_text().splitlines(keepends=True)
    costs = open_trace(str(folder / case / "perf_raw.json")).step_costs
    assert summary(load(case, kind), steps=costs) == "".join(reference[:-2])


@pytest.mark.parametrize("case", CASES)
def test_both_forms_give_the_same_tables(load, case):
    exact, rounded = load(case, "pb"), load(case, "json")
    assert set(exact.tables) == set(rounded.tables)
    assert exact.issues.is_empty()
    same = [
        "track_id",
        "name",
        "category",
        "recorded_category",
        "correlation",
        "parent_id",
        "launch_id",
        "op_id",
        "step",
    ]
    as_text = pl.selectors.categorical().cast(pl.String)
    for name, columns in (("spans", same), ("tracks", pl.all()), ("devices", pl.all()), ("ops", pl.all())):
        ours, theirs = (trace.table(name).select(columns).with_columns(as_text) for trace in (exact, rounded))
        assert ours.equals(theirs), name
    for name in ("ts_ns", "dur_ns"):
        assert (exact.spans[name] - rounded.spans[name]).abs().max() <= 16
    assert abs(exact.meta.origin_unix_ns - rounded.meta.origin_unix_ns) <= 16
