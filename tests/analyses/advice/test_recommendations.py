from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.advice.recommendations import (
    ANALYSIS,
    RECOMMENDATIONS,
    RULES,
    STEPSCOPE,
    TENSORBOARD,
    Facts,
    advice,
)
from stepscope.core.errors import MissingTable
from stepscope.core.remedies import Recording
from stepscope.core.schema import ALLOCATIONS, DEVICES, STEPS, TABLES, TRANSFERS
from stepscope.core.trace import Meta, Trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
V100 = DEVICES.conform(
    pl.DataFrame(
        {"device_id": [0], "type": ["cuda"], "index": [0], "memory_bytes": [1000], "compute_capability": ["7.0"]}
    )
)

PYTORCH = Recording(framework="PyTorch")


def advised(spans: pl.DataFrame, **tables: Any) -> dict[str, dict[str, object]]:
    """Rows of the result by rule; `tables` are rows or frames by name."""
    found = {"spans": spans, "tracks": TRACKS_5, "devices": DEVICES_2}
    frames = {n: t if isinstance(t, pl.DataFrame) else TABLES[n].conform(pl.DataFrame(t)) for n, t in tables.items()}
    got = ANALYSIS(Trace(Meta("x", "kineto"), found | frames))
    assert dict(got.schema) == dict(RECOMMENDATIONS.dtypes)
    return {row["rule"]: row for row in got.iter_rows(named=True)}


def one_step(dur: int) -> pl.DataFrame:
    row = {"step": [1], "rank": [3], "ts_ns": [0], "dur_ns": [dur], "source": ["annotation"]}
    return STEPS.conform(pl.DataFrame(row))


def test_nothing_to_advise_is_an_empty_table() -> None:
    assert advised(spans_of((HOST, 0, 10, "aten::mm", "operator"), kernel(STREAM_7, 0, 95)), steps=one_step(100)) == {}


def test_data_loading_and_communication_are_parts_of_the_steps() -> None:
    spans = spans_of((HOST, 0, 20, LOADER, "dataloader"), (HOST, 30, 30, "gloo:all_reduce", "user_range"))
    got = advised(spans, steps=one_step(100))
    assert {rule: row["value_ratio"] for rule, row in got.items()} == {"data_loading": 0.2, "communication": 0.3}
    assert got["data_loading"]["origin"] == "tensorboard"
    assert got["data_loading"]["command"] == "show step-breakdown"


def test_data_parallel_is_told_on_several_devices() -> None:
    forward = (HOST, 0, 10, "DataParallel.forward", "operator")
    both = (kernel(STREAM_7, 0, 95), kernel(OTHER_DEVICE, 0, 95))
    assert set(advised(spans_of(forward, *both), steps=one_step(100))) == {"data_parallel"}
    assert advised(spans_of(forward, both[0]), steps=one_step(100)) == {}
    assert advised(spans_of(forward), steps=one_step(100)) == {}


def test_a_slow_backend_is_told_where_nccl_could_serve() -> None:
    forward = (HOST, 0, 10, "DistributedDataParallel.forward", "user_range")
    gloo, nccl = (HOST, 20, 5, "gloo:all_reduce", "user_range"), kernel(STREAM_7, 0, 1, "ncclDevKernel_AllReduce")
    assert set(advised(spans_of(forward, gloo), steps=one_step(100))) == {"slow_backend"}
    full = kernel(STREAM_7, 0, 95)
    assert advised(spans_of(forward, gloo, full, nccl), steps=one_step(100)) == {}
    assert advised(spans_of(forward), steps=one_step(100)) == {}  # no word of any backend
    cpu = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cpu"]}))
    assert advised(spans_of(forward, gloo), steps=one_step(100), devices=cpu) == {}


def test_kernels_tell_of_devices_hardly_used_and_of_tensor_cores_not_used() -> None:
    spans = spans_of(
        (HOST, 0, 10, "aten::mm", "operator"),
        kernel(STREAM_7, 0, 30, "sgemm"),
        kernel(STREAM_7, 30, 10, "relu"),
        op_id=[None, 0, None],
    )
    got = advised(spans, steps=one_step(100), devices=V100)
    assert {rule: row["value_ratio"] for rule, row in got.items()} == {
        "device_underused": 0.4,
        "tensor_cores_unused": 0.75,
    }
    copies = spans_of((STREAM_7, 0, 5, "Memcpy HtoD", "memcpy"))
    assert advised(copies, steps=one_step(100)) == {}
    assert advised(spans_of(kernel(STREAM_7, 0, 0)), steps=one_step(100)).keys() == {"device_underused"}


def test_memory_is_compared_with_that_of_the_device() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 95))
    held = [{"ts_ns": 0, "track_id": 0, "device_id": 0, "bytes": 950}]
    got = advised(spans, steps=one_step(100), devices=V100, allocations=held)
    assert got["memory_full"]["value_ratio"] == 0.95
    assert (
        advised(spans, steps=one_step(100), allocations=ALLOCATIONS.conform(pl.DataFrame(held))) == {}
    )  # size unknown


def call(ts: int, dur: int, name: str = "cudaLaunchKernel") -> tuple[int, int, int, str, str]:
    return (HOST, ts, dur, name, "runtime")


def test_late_launches_longer_than_their_work_are_told() -> None:
    rows = (
        call(0, 5),
        call(30, 5),
        call(70, 5),
        *(kernel(STREAM_7, *k) for k in ((5, 4, "a", 0), (35, 4, "b", 1), (75, 4, "c", 2))),
    )
    got = advised(spans_of(*rows), steps=one_step(100))
    assert got["launch_bound"]["value_ratio"] == pytest.approx((26 + 36) / 100)
    assert got["launch_bound"]["origin"] == "stepscope"


def test_idle_time_after_waiting_for_the_device_is_told() -> None:
    rows = (call(0, 5), call(6, 50, "cudaStreamSynchronize"), call(60, 5))
    spans = spans_of(*rows, kernel(STREAM_7, 5, 45, "a", 0), kernel(STREAM_7, 65, 30, "b", 2))
    got = advised(spans, steps=one_step(100))
    assert got["sync_waits"]["value_ratio"] == pytest.approx(0.15)


def test_copies_from_pageable_memory_count_while_no_kernel_runs() -> None:
    spans = spans_of(
        kernel(STREAM_7, 10, 90),
        *((STREAM_7, ts, 10, "Memcpy HtoD", "memcpy") for ts in (0, 5)),
        (STREAM_7, 100, 5, "Memcpy", "memcpy"),
    )
    sizes = pl.DataFrame({"span_id": [1, 2, 3], "src": ["Pageable", "Pageable", "Pinned"], "dst": ["Device"] * 3})
    got = advised(spans, steps=one_step(105), transfers=TRANSFERS.conform(sizes))
    assert got["pageable_copies"]["value_ratio"] == pytest.approx(10 / 105)


def test_a_trace_without_host_and_device_is_refused() -> None:
    with pytest.raises(MissingTable, match="recommendations needs host or device work"):
        advised(spans_of((HOST, 0, 5, "x", "python")))


def said(**facts: Any) -> dict[str, str]:
    """Texts of the rules that speak, by name."""
    return {
        rule.name: f"{advised.situation}: {advised.remedy}" for rule, advised in advice(Facts(about=PYTORCH, **facts))
    }


def test_nothing_known_is_nothing_advised() -> None:
    assert said() == {}


@pytest.mark.parametrize(
    ("fact", "rule", "threshold"),
    [
        ("loading", "data_loading", 0.05),
        ("communication", "communication", 0.1),
        ("pageable", "pageable_copies", 0.01),
        ("sync", "sync_waits", 0.05),
    ],
)
def test_a_part_of_the_step_matters_from_a_threshold_on(fact: str, rule: str, threshold: float) -> None:
    assert said(**{fact: threshold}) == {}
    (found,) = (found for _, found in advice(Facts(**{fact: 2 * threshold})))
    assert (found.value, found.threshold) == (2 * threshold, threshold)
    assert f"{2 * threshold:.0%}".replace("%", " %") in said(**{fact: 2 * threshold})[rule]


def test_devices_that_are_used_for_less_than_half_of_the_time_are_named() -> None:
    assert said(busy={"cuda:0": 0.5}) == {}
    text = said(busy={"cuda:0": 0.4, "cuda:1": 0.9, "cuda:2": 0.25})["device_underused"]
    assert "(cuda:0 40 %, cuda:2 25 %)" in text
    (found,) = (found for _, found in advice(Facts(busy={"cuda:0": 0.4, "cuda:2": 0.25})))
    assert found.value == 0.25


def test_tensor_cores_are_missed_only_where_there_are_some_and_none_is_used() -> None:
    facts = {"on_units": 0.0, "eligible": 0.68, "capability": 7}
    assert "68 %" in said(**facts)["tensor_cores_unused"]
    assert said(**facts)["tensor_cores_unused"].endswith("autocast to float16")
    assert said(**facts | {"capability": 8})["tensor_cores_unused"].endswith("or allow TF32")
    for change in ({"on_units": 0.01}, {"on_units": None}, {"eligible": 0.04}, {"capability": 6}, {"capability": None}):
        assert said(**facts | change) == {}


def test_the_fullest_device_is_named() -> None:
    assert said(memory={"cuda:0": 0.9}) == {}
    assert "95 % of the memory of cuda:1" in said(memory={"cuda:0": 0.91, "cuda:1": 0.95})["memory_full"]


def test_data_parallel_matters_on_more_than_one_device() -> None:
    assert said(n_data_parallel=1) == {}
    assert "drives 4 devices" in said(n_data_parallel=4)["data_parallel"]
    assert "by gloo" in said(backend="gloo")["slow_backend"]


def test_late_launches_matter_where_most_are_longer_than_their_work() -> None:
    assert said(short=0.5, late=0.9) == {}
    assert said(short=0.6, late=0.1) == {}
    text = said(short=0.6, late=0.2)["launch_bound"]
    assert text.startswith("60 % of launches take longer than the work they queue, and the device waits 20 %")


def test_rules_of_the_plugin_come_first_and_all_have_names_of_their_own() -> None:
    origins = [rule.origin for rule in RULES]
    assert origins == sorted(origins, key=[TENSORBOARD, STEPSCOPE].index)
    assert len({rule.name for rule in RULES}) == len(RULES)
