from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from bar_notes import texts
from device_traces import HOST, STREAM_7, TRACKS_5, kernel, spans_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.analyses.advice.recommendations import Facts
from stepscope.analyses.common.device_work import device_work
from stepscope.core.intervals import total, union
from stepscope.core.remedies import Recording
from stepscope.core.schema import DEVICES, OPS
from stepscope.core.trace import Meta, Trace
from stepscope.reports._summary import Cost, scope_of
from stepscope.reports.at_a_glance import advice_costs, host_while_idle, mfu_at_a_glance, use_of
from stepscope.reports.overview import overview

LOADER, MAIN = 1, 0


def idle_of(trace) -> dict[str, int]:
    spans = trace.spans.filter(pl.col("category") == "kernel")
    starts = spans["ts_ns"].to_numpy()
    return host_while_idle(trace.spans, [union(starts, starts + spans["dur_ns"].to_numpy())], scope_of(trace))


def test_idle_time_divides_by_what_the_host_does(rows) -> None:
    rows.step(1, 0, 100)
    rows.kernel(10, 20)
    rows.op(5, 50)  # 10 to 30 is busy
    rows.launch(35, 5)
    rows.add(LOADER, 60, 30, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dataloader")
    rows.add(MAIN, 50, 15, "gloo:all_reduce", "user_range")
    rows.add(MAIN, 5, 2, "before the kernel", "user_range")
    rows.add(MAIN, 92, 6, "feature_extractor", "user_range")
    assert idle_of(rows.trace()) == {
        "communication": 15, "runtime calls": 5, "data loading": 25, "operators": 20, "named ranges": 6, "other": 9,
    }  # fmt: skip


def test_nothing_is_said_of_a_host_that_was_not_recorded(rows) -> None:
    rows.step(1, 0, 100)
    rows.kernel(10, 20)
    assert idle_of(rows.trace()) == {}


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 80), st.integers(0, 30)), max_size=8))
def test_parts_add_up_to_the_idle_time(new_rows, some) -> None:
    rows = new_rows()
    rows.step(1, 0, 100)
    rows.op(0, 1)
    for on_device, ts, dur in some:
        (rows.kernel if on_device else rows.op)(ts, dur)
    starts, lengths = (np.array([row[i] for row in some if row[0]], np.int64) for i in (1, 2))
    idle = 100 - total(union(np.minimum(starts, 100), np.minimum(starts + lengths, 100)))
    told = idle_of(rows.trace())
    assert sum(told.values()) == idle or told == {}


def use(trace):
    work = device_work(trace.spans, trace.tracks, needed_by="test")
    return use_of(trace, work, scope_of(trace))


def test_use_is_the_mean_over_devices_and_of_what_is_known(rows) -> None:
    rows.step(1, 0, 100)
    mm = rows.op(0, 10)
    rows.side("kernels", rows.kernel(0, 50, "ampere_s16816gemm", op=mm), blocks_per_sm=0.5, est_occupancy_ratio=0.25)
    rows.kernel(0, 50, "relu", track=20)
    ratios, facts = use(rows.trace())
    assert ratios == {"est_sm_efficiency_ratio": 0.25, "est_occupancy_ratio": 0.25, "tensor_core_ratio": 0.5}
    assert (facts.busy, facts.on_units, facts.capability, facts.eligible) == (
        {"cuda:0": 0.5, "cuda:1": 0.5},
        1.0,
        9,
        0.5,
    )


def test_copies_alone_say_nothing_of_use(rows) -> None:
    rows.step(1, 0, 100)
    rows.kernel(0, 50, "Memcpy HtoD")
    assert use(rows.trace()) == ({}, Facts(about=Recording("kineto", "PyTorch", "cuda")))


def test_rules_speak_where_no_cost_says_it_better(rows) -> None:
    facts = Facts(about=Recording(framework="PyTorch"), busy={"cuda:0": 0.2}, on_units=0.0, eligible=0.5, capability=8)
    held = pl.DataFrame({"device_id": [1], "peak_allocated_bytes": [79 << 30]})
    gemm = Cost(
        "compute gemm", "Matrix products", 5.0, ("10 kernels", "→ 90 % of it runs in float32 without tensor cores: …")
    )
    costs = [gemm, Cost("idle host_late", "The device waits", 9.0), Cost("compute norm", "Norms", 1.0)]
    found = {cost.kind: cost for cost in advice_costs(facts, held, rows.trace().devices, costs)}
    assert {kind: cost.covered_by for kind, cost in found.items()} == {
        "rule device_underused": ("idle host_late",),
        "rule tensor_cores_unused": ("compute gemm",),
        "rule memory_full": (),
    }
    full = found["rule memory_full"]
    assert (full.title, full.ns) == ("Tensors hold up to 99 % of the memory of cuda:0", None)
    assert (full.details, full.command) == (
        ("→ activation checkpointing, autocast or a smaller batch make room",), "show memory --by operator",
    )  # fmt: skip
    assert advice_costs(Facts(), None, rows.trace().devices, costs) == []


@pytest.mark.parametrize("kind", ["memcpy", "kernel"])
def test_a_report_of_any_work_can_be_made(rows, kind) -> None:
    rows.step(1, 0, 0)
    rows.kernel(0, 0, "Memcpy" if kind == "memcpy" else "gemm")
    use(rows.trace())


MM = ("[[1024,1024],[1024,1024]]", '["c10::BFloat16","c10::BFloat16"]', '["",""]')
H100 = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [0], "name": ["NVIDIA H100 PCIe"]}))
RATIO = 2 * 1024**3 / 756e12 / 9_990e-9


def trace_of(*known: bool, devices=H100, name="gemm", ops=True):
    """Products of 3 µs each; of those that are known the shapes were recorded. The recording takes 9,990 ns."""
    calls = [(HOST, 10 + 10 * i, 5, "aten::mm", "operator") for i in range(len(known))]
    works = [kernel(STREAM_7, 7_000 - 3_000 * i, 3_000, name, i) for i in range(len(known))]
    n = len(known)
    spans = spans_of(*calls, *works, op_id=[None] * n + list(range(n)))
    rows = [(i, *(MM if full else (None,) * 3)) for i, full in enumerate(known) if ops]
    schema = ("span_id", "input_shapes", "input_types", "concrete_inputs")
    tables = {"spans": spans, "tracks": TRACKS_5, "devices": devices}
    tables["ops"] = OPS.conform(pl.DataFrame(rows, schema=schema, orient="row", infer_schema_length=None))
    return Trace(Meta("x.json", "kineto", framework="PyTorch"), tables)


def glance(trace):
    work = device_work(trace.spans, trace.tracks, needed_by="test")
    return mfu_at_a_glance(trace, work, scope_of(trace))


def test_the_report_tells_the_ratio_of_the_analysis():
    (use, lacks) = glance(trace_of(True, True))
    assert use["mfu_known_ratio"] == 1.0
    assert abs(use["mfu_ratio"] - 2 * RATIO) < 1e-12
    assert lacks == ()
    assert f"MFU {200 * RATIO:.0f} %" in texts(overview(trace_of(True, True)).bars[0])


def test_little_known_is_not_told_and_the_reason_is():
    use, (lack,) = glance(trace_of(True, False, False))
    assert use == {}
    assert lack.text == (
        "MFU is unknown (show mfu): operations are known for only 33 % of the time of matrix products."
    )
    use, _ = glance(trace_of(True, True, False))
    assert use["mfu_known_ratio"] == 2 / 3


def test_an_unknown_device_and_missing_shapes_are_the_reason():
    use, (lack,) = glance(trace_of(True, devices=H100.with_columns(name=pl.lit("Voodoo"))))
    assert use == {}
    assert lack.text.startswith("MFU is unknown (show mfu): 'Voodoo' is not a known accelerator")
    _, (lack,) = glance(trace_of(False))
    assert lack.text == (
        "MFU is unknown (show mfu): shapes were not recorded; record_shapes=True in the profiler records them."
    )
    assert lack.text in overview(trace_of(False)).quality


def test_nothing_is_said_where_there_is_nothing_to_multiply():
    assert glance(trace_of(True, ops=False)) == ({}, ())
    copies = trace_of(False, name="elementwise_kernel")
    assert glance(copies) == ({}, ())
    spans = copies.spans.with_columns(category=pl.col("category").cast(pl.String).replace("kernel", "memcpy"))
    assert glance(copies.with_tables(spans=spans.cast({"category": copies.spans["category"].dtype}))) == ({}, ())
