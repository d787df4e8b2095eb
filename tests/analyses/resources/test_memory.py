from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.resources.memory import ANALYSIS, MEMORY
from stepscope.core.errors import MissingTable
from stepscope.core.schema import ALLOCATIONS, DEVICES, OPS, SPANS, STACKS, STEPS
from stepscope.core.trace import Meta, Trace

GPU, HOST = 1, 0


def trace_of(*events: tuple[int, int, int, int, int | None, int | None], **tables: pl.DataFrame) -> Trace:
    """From (ts_ns, device_id, address, bytes, total_allocated_bytes, op_id)."""
    columns = ("ts_ns", "device_id", "address", "bytes", "total_allocated_bytes", "op_id")
    allocations = ALLOCATIONS.conform(pl.DataFrame(events, schema=columns, orient="row"))
    devices = pl.DataFrame(
        {"device_id": [HOST, GPU], "type": ["cpu", "cuda"], "index": [None, 0], "memory_bytes": [None, 1000]}
    )
    return Trace(Meta("x", "kineto"), {"allocations": allocations, "devices": DEVICES.conform(devices), **tables})


def steps_of(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return STEPS.conform(pl.DataFrame(rows, schema=("step", "ts_ns", "dur_ns"), orient="row"))


def test_the_peak_is_the_highest_recorded_level() -> None:
    got = ANALYSIS(
        trace_of(
            (5, GPU, 0xA, 100, 300, None),
            (7, GPU, 0xB, 50, 350, None),
            (8, GPU, 0xA, -100, 250, None),
            (6, HOST, 0xC, 8, 8, None),
            steps=steps_of((1, 0, 6), (2, 6, 6)),
        )
    )
    assert got["device"].to_list() == ["cuda:0", "cpu"]
    gpu = got.row(0, named=True)
    assert (gpu["peak_allocated_bytes"], gpu["peak_ts_ns"], gpu["peak_step"]) == (350, 7, 2)
    assert (gpu["n_allocations"], gpu["n_frees"], gpu["requested_bytes"], gpu["growth_bytes"]) == (2, 1, 150, 50)
    assert gpu["capacity_bytes"] == 1000


def test_without_recorded_levels_they_are_summed_up_from_nothing() -> None:
    got = ANALYSIS(trace_of((1, GPU, 1, 10, None, None), (2, GPU, 2, 20, None, None), (3, GPU, 1, -10, None, None)))
    assert got.select("peak_allocated_bytes", "growth_bytes").row(0) == (30, 20)


def test_growth_per_step_is_the_median_change_between_ends_of_steps() -> None:
    levels = [(0, 500), (10, 510), (20, 520), (30, 900), (40, 910)]
    events = [(t, GPU, t, 1, level, None) for t, level in levels]
    got = ANALYSIS(trace_of(*events, steps=steps_of(*((k, 10 * k, 10) for k in range(5)))))
    assert got["growth_bytes_per_step"].to_list() == [10.0]


def test_each_device_grows_by_its_own_events_and_has_its_peak_in_its_own_step() -> None:
    events = [(5, GPU, 1, 1, 100, None), (15, GPU, 2, 1, 130, None), (25, GPU, 3, 1, 190, None)]
    events += [(12, HOST, 4, 1, 7, None), (22, HOST, 5, 1, 5, None)]
    got = ANALYSIS(trace_of(*events, steps=steps_of((1, 0, 10), (2, 10, 10), (4, 20, 4))))
    columns = ("device", "growth_bytes_per_step", "peak_step")
    assert set(got.select(columns).rows()) == {("cuda:0", 15.0, None), ("cpu", -2.0, 2)}


def test_without_two_ends_of_steps_growth_is_unknown() -> None:
    got = ANALYSIS(trace_of((5, GPU, 1, 1, 100, None), steps=steps_of((1, 0, 10))))
    assert got.select("growth_bytes_per_step", "peak_step").rows() == [(None, 1)]


def test_over_time_gives_the_curve() -> None:
    got = ANALYSIS(trace_of((2, GPU, 2, 20, None, None), (1, GPU, 1, 10, None, None)), by="time")
    assert got.select("ts_ns", "allocated_bytes").rows() == [(1, 10), (2, 30)]


def test_operators_are_charged_for_what_they_still_hold_at_the_peak() -> None:
    spans = SPANS.conform(
        pl.DataFrame(
            {
                "span_id": [0, 1, 2],
                "track_id": [0, 0, 0],
                "ts_ns": [0, 1, 50],
                "dur_ns": [40, 30, 10],
                "name": ["nn.Module: Linear_0", "aten::addmm", "aten::relu"],
                "category": ["module", "operator", "operator"],
                "parent_id": [None, 0, None],
            }
        )
    )
    trace = trace_of(
        (2, GPU, 0xA, 100, None, 1),
        (3, GPU, 0xB, 30, None, 1),
        (4, GPU, 0xB, -30, None, 1),
        (51, GPU, 0xB, 60, None, 2),
        (60, GPU, 0xA, -100, None, None),
        (61, GPU, 0xC, 5, None, None),
        spans=spans,
        ops=OPS.conform(pl.DataFrame({"span_id": [1], "stack_id": [0]})),
        stacks=STACKS.conform(pl.DataFrame({"stack_id": [0], "frames": [["train", "forward"]]})),
    )
    measures = ("at_peak_bytes", "requested_bytes", "kept_bytes", "n_allocations", "n_frees")
    assert ANALYSIS(trace, by="operator").select("name", *measures).rows() == [
        ("aten::addmm", 100, 130, 0, 2, 2),
        ("aten::relu", 60, 60, 60, 1, 0),
        (None, 0, 5, 5, 1, 0),
    ]
    assert ANALYSIS(trace, by="module").select("module", "at_peak_bytes").rows() == [
        ("nn.Module: Linear_0", 100),
        (None, 60),
    ]
    assert ANALYSIS(trace, by="stack").select("name", "stack").rows()[0] == ("aten::addmm", "train;forward")


def test_a_block_freed_in_the_same_nanosecond_as_the_peak_is_judged_by_order() -> None:
    got = ANALYSIS(
        trace_of((1, GPU, 1, 10, None, None), (1, GPU, 2, 5, None, None), (1, GPU, 1, -10, None, None)), by="operator"
    )
    assert got["at_peak_bytes"].to_list() == [15]


def test_no_events_is_an_error_that_names_them() -> None:
    with pytest.raises(MissingTable, match="allocations"):
        ANALYSIS(Trace(Meta("x", "kineto"), {}))


@pytest.mark.parametrize("by", ["device", "operator", "module", "stack", "time"])
def test_results_have_declared_columns_in_order(by: str) -> None:
    got = ANALYSIS(trace_of((1, GPU, 1, 10, None, None), spans=SPANS.empty(), steps=steps_of((0, 0, 5))), by=by)
    assert dict(got.schema) == {c: t for c, t in MEMORY.dtypes.items() if c in got.columns}


def test_without_addresses_nothing_is_said_of_what_is_still_held() -> None:
    allocations = [(1, GPU, None, 10, 10, None), (2, GPU, None, -10, 0, None)]
    spans = SPANS.conform(pl.DataFrame({"span_id": [0], "ts_ns": [0], "dur_ns": [9], "name": ["aten::mm"]}))
    got = ANALYSIS(trace_of(*allocations, spans=spans), by="operator")
    row = got.row(0, named=True)
    assert (row["requested_bytes"], row["n_allocations"]) == (10, 1)
    assert (row["at_peak_bytes"], row["kept_bytes"], row["n_frees"]) == (None, None, None)
