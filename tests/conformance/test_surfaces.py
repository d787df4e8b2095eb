"""Every surface says the same number by the same name: report, markdown, JSON, show, SQL, page, one-file page."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import surface_checks

import stepscope

pytestmark = pytest.mark.exhaustive

#: With STEPSCOPE_SURFACES=all every trace is asked everything; without it, what fits into a run of all tests.
EVERYTHING = os.environ.get("STEPSCOPE_SURFACES") == "all"
SMALL_BYTES = 250_000
COLLECTION = Path(__file__).parents[3] / "shared" / "data"


def traces() -> list[str]:
    """The files that hold a trace, the small ones only unless everything is asked for."""
    with Path(__file__).with_name("every_trace.csv").open(newline="") as file:
        paths = [row["path"] for row in csv.DictReader(file) if row["spans"]]
    there = [path for path in paths if (COLLECTION / path).exists()]
    return [path for path in there if EVERYTHING or (COLLECTION / path).stat().st_size < SMALL_BYTES]


TRACES = traces()


@pytest.mark.parametrize("path", TRACES if EVERYTHING else TRACES[::2])
def test_the_report_and_its_tables_have_the_same_numbers(shared, path):
    assert surface_checks.numbers(shared / path) == []


#: Traces that communicate: by NCCL, also as messages, RCCL, HCCL, DeepEP, multimem, XLA, MPI.
COMMUNICATING = [
    "traces/hta/nccl_parser_config/nccl_data.json.gz",
    "traces/hta/trace_filter/sampled_rank-0.json.gz",
    "traces/hta/trace_diff/control/control.json.gz",
    "traces/more/kineto-multirank/deepseek-dualpipe-h800-rank0of64/train.json.gz",
    "traces/more/kineto-multirank/megatron-tp8-a100/megatron_kineto_0.json.gz",
    "traces/more/tpu-jax-trace/2026_01_12_01_08_50.trace.json.gz",
    "traces/more/nsys-multigpu/mfu_2gpu_before.sqlite",
    "traces/tracelens/b200/eager_trace.json.gz",
    "traces/tracelens/mi300/resnet_act_checkpoint.json.gz",
    "ascend/text/level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json",
    "nsight/nsys-sqlite/a100-saxpy-mpi-2022.2.sqlite",
]


def with_kernels() -> list[str]:
    """All traces of the table that have kernels."""
    with Path(__file__).with_name("every_trace.csv").open(newline="") as file:
        return [row["path"] for row in csv.DictReader(file) if row["kernels"] not in ("", "0")]


@pytest.mark.parametrize("path", sorted({*COMMUNICATING, *with_kernels()}) if EVERYTHING else COMMUNICATING)
def test_communication_is_the_same_in_every_table(shared, path):
    assert surface_checks.communication(shared / path) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_communication_on_the_host_is_the_same_in_every_table(rank):
    examples = Path(__file__).parents[2] / "examples" / "demo-cpu-2ranks"
    trace = stepscope.load(examples / f"rank{rank}.pt.trace.json.gz")
    calls, steps, parts = (trace.show(name) for name in ("communication", "steps", "step-breakdown"))
    assert calls["merged_ns"].sum() == parts["communication_ns"].sum()
    assert calls["exposed_ns"].sum() == steps["exposed_communication_ns"].sum()
    (ratio,) = (part.ratio for part in trace.report().bars[0].parts if part.name == "exposed communication")
    assert ratio == pytest.approx(steps["exposed_communication_ns"].sum() / steps["window_ns"].sum())


@pytest.mark.parametrize("path", TRACES if EVERYTHING else TRACES[::6])
def test_every_form_of_the_report_says_the_same(shared, path):
    assert surface_checks.forms(shared / path) == []


@pytest.mark.parametrize("path", TRACES if EVERYTHING else TRACES[2::11])
def test_show_sql_and_the_page_give_the_same_tables(shared, path):
    assert surface_checks.tables(shared / path) == []
