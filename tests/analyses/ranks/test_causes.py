from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from job_simulator import Fault, Layout, Plan, simulate, tables
from msgspec.structs import replace

from stepscope.analyses.ranks.calls import WORK
from stepscope.analyses.ranks.causes import cause_of
from stepscope.analyses.ranks.lateness import lateness_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.parallel_groups import roles_of


def cause(parts, rank: int = 3):
    job = job_of(parts)
    roles = roles_of(job)
    lateness = lateness_of(job, roles)
    rows = np.flatnonzero((job.rank == rank) & np.isfinite(lateness.excess))
    return cause_of(job, roles, lateness, rank, rows)


def parts_with(fault: Fault) -> list:
    return tables(simulate(Plan(Layout(dp=8), steps=10, faults=(fault,))))


@pytest.mark.parametrize(
    ("fault", "name", "phase"),
    [
        (Fault("compute", 3, amount_ns=1e6), "compute", "backward"),
        (Fault("host", 3, amount_ns=1e6), "host", "backward"),
        (Fault("data loading", 3, amount_ns=9e6), "data loading", "data loading"),
        (Fault("clock", 3, ratio=0.1), "clock", "backward"),
    ],
)
def test_the_cause_is_what_was_injected(fault, name, phase):
    result = cause(parts_with(fault))
    assert (result.name, result.phase) == (name, phase)


def test_more_calls_of_one_name_are_told():
    result = cause(parts_with(Fault("compute", 3, amount_ns=1e6)))
    assert result.evidence.startswith("extra: +40 calls, ")


def test_a_slower_name_is_told_without_calls():
    parts = parts_with(Fault("compute", 3, amount_ns=1e6))
    work, slow = ([("gemm", 40, 100_000_000), ("attention", 40, ns)] for ns in (30_000_000, 70_000_000))
    names = ["name", "calls", "total_ns"]
    tables_of = [pl.DataFrame(slow if i == 3 else work, schema=names, orient="row") for i in range(8)]
    result = cause([replace(p, work=WORK.conform(t)) for p, t in zip(parts, tables_of, strict=True)])
    assert (result.name, result.evidence) == ("compute", "attention: 40 ms more than the median of the others")


def on_host(parts: list) -> list:
    host = pl.lit("host").cast(parts[0].calls.schema["measured"])
    return [replace(p, calls=p.calls.with_columns(measured=host)) for p in parts]


def test_on_a_host_everything_slower_alike_is_the_host():
    result = cause(on_host(parts_with(Fault("clock", 3, ratio=0.1))))
    assert result.name == "host"
    assert "takes 10 % longer" in result.evidence or "takes 9" in result.evidence


def resources(value: float, metric: str, device: str = "process") -> pl.DataFrame:
    return pl.DataFrame({"device": [device], "metric": [metric], "unit": [None], "value": [value]})


def test_a_lower_frequency_is_its_clock_and_more_waiting_for_a_core_is_told():
    parts = on_host(parts_with(Fault("clock", 3, ratio=0.1)))
    usual, low = (resources(mhz, "cpu_frequency", "cpu0") for mhz in (2700.0, 2000.0))
    slow = [replace(p, resources=low if i == 3 else usual) for i, p in enumerate(parts)]
    assert cause(slow).name == "clock"
    waits = [replace(p, resources=resources(9e8 if i == 3 else 1e8, "process_runq_time")) for i, p in enumerate(parts)]
    result = cause(waits)
    assert result.name == "host"
    assert "time waiting for a core: process_runq_time" in result.evidence


def test_without_what_was_computed_the_class_is_still_told():
    parts = parts_with(Fault("compute", 3, amount_ns=1e6))
    assert cause([replace(p, work=None) for p in parts]).evidence.endswith("more computing")
    blind = [replace(p, calls=p.calls.with_columns(compute_ns=pl.lit(None, pl.Int64))) for p in parts]
    result = cause(blind)
    assert (result.name, result.evidence) == ("host", "its trace does not record what it computed")


def test_without_phases_none_is_named():
    none = {"backward_ns": pl.lit(None, pl.Int64), "optimizer_ns": pl.lit(None, pl.Int64)}
    parts = parts_with(Fault("compute", 3, amount_ns=1e6))
    assert cause([replace(p, calls=p.calls.with_columns(**none)) for p in parts]).phase is None
