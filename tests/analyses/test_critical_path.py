from __future__ import annotations

import polars as pl
import pytest
from path_traces import AUTOGRAD, MAIN, NO_ARROWS, NO_OPS, NO_STEPS, PATH_TRACKS, US, Row, call, kernel, op, spans_of, steps_of

from stepscope.analyses.critical_path import ANALYSIS, CRITICAL_PATH, WAYS, critical_path
from stepscope.errors import MissingTable, StepscopeError, UnknownName
from stepscope.trace import Meta, Trace

# One step. The host loads data, runs two operators that launch a kernel each, and waits for the second; the kernels
# follow each other. A helper thread works meanwhile, for nobody.
SPANS = spans_of(
    Row(MAIN, 0, 100, "ProfilerStep#7", "step", step=7),
    Row(MAIN, 0, 10, "enumerate(DataLoader)#next", "dataloader", step=7),
    Row(MAIN, 12, 40, "forward", "user_range", step=7),
    op(15, 10, "aten::mm", key="mm", step=7),
    call(18, 4, key="a", op="mm", step=7),
    op(30, 10, "aten::relu", key="relu", step=7),
    call(33, 4, key="b", op="relu", step=7),
    call(60, 35, "cudaDeviceSynchronize", step=7),
    kernel(25, 45, "a", "ampere_sgemm", op="mm", step=7),
    kernel(72, 20, "b", "relu_kernel", op="relu", step=7),
    op(20, 30, "aten::copy_", AUTOGRAD),
)
STEPS = steps_of((0, 100), first=7)


def path(spans=SPANS, steps=STEPS, **options):
    return critical_path(spans, PATH_TRACKS, steps, NO_OPS, NO_ARROWS, **options)


def us(rows, *columns):
    return rows.select(*columns, pl.col("on_path_ns") // US).rows()


def test_what_bound_the_step_adds_up_to_it():
    found = path()
    assert us(found, "step", "rank", "kind") == [
        (7, 0, "computation", 65), (7, 0, "other_host", 10), (7, 0, "dataloader", 10), (7, 0, "operator", 3),
        (7, 0, "runtime", 4), (7, 0, "sync", 3), (7, 0, "launch_delay", 3), (7, 0, "kernel_wait", 2),
    ] or sorted(us(found, "kind")) == [
        ("computation", 65), ("dataloader", 10), ("kernel_wait", 2), ("launch_delay", 3), ("operator", 3),
        ("other_host", 10), ("runtime", 4), ("sync", 3),
    ]  # fmt: skip
