"""Our step-breakdown, device-utilisation and recommendations beside what the TensorBoard plugin shows of real traces.

Equal where neither collectives nor calls of the driver are recorded. Where they are, on purpose:

- kernels of collectives are communication for us, kernels for the plugin;
- calls of the driver count as runtime for us, which the plugin does not know.

The windows here are the plugin's: it leaves out the time between two steps on the host, and without steps what was
recorded before the first and after the last operator or device work. Our own tables count both.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from stepscope import analyses
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.common.windows import device_steps, whole
from stepscope.analyses.steps.device_utilisation import utilisation_of
from stepscope.analyses.steps.step_breakdown import broken_down
from stepscope.readers import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

SAMPLES = (
    "kineto_resnet50_num_workers_0_worker0.1623143089861", "kineto_resnet50_num_workers_0_worker0.1623143566756",
    "kineto_resnet50_num_workers_4_worker0.1623212756351", "kineto_resnet50_num_workers_4_worker0.1623213129365",
)  # fmt: skip
WITH_DRIVER = ("h100_Falconsai_nsfw_image_detection__1016002", "h100_Qwen_Qwen1.5-0.5B-Chat__1016005")
WITH_COLLECTIVES = ("b200_eager_trace", "hta_nccl_parser_config", "hta_trace_diff_control")
ALL = (*SAMPLES, *WITH_DRIVER, *WITH_COLLECTIVES)
PARTS = {
    "Kernel": "kernel", "Memcpy": "memcpy", "Memset": "memset", "Communication": "communication", "Runtime": "runtime",
    "DataLoader": "dataloader", "CPU Exec": "cpu_exec", "Other": "other",
}  # fmt: skip
FIGURES = {
    "GPU Utilization": "busy_ratio", "Est. SM Efficiency": "est_sm_efficiency_ratio",
    "Est. Achieved Occupancy": "est_occupancy_ratio",
}  # fmt: skip


def opened(shared: Path, name: str) -> tuple[Trace, dict[str, Any]]:
    golden = json.loads((shared / "golden" / "tbprofiler" / f"{name}.json").read_text())
    return open_trace(str(shared / golden["_input"])), golden["overview"]


def of_plugin(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Device work, and the windows (ts_ns, end_ns) that the plugin takes for steps."""
    work = device_work(trace.spans, trace.tracks, needed_by=None)
    if trace.steps.height:
        return work, device_steps(trace.steps, work)
    low, high = whole(trace.spans)
    return work, pl.DataFrame({"ts_ns": [low], "end_ns": [high]})


def plugin_steps(overview: dict[str, Any]) -> list[dict[str, float]]:
    names = [column.get("name") for column in overview["steps"]["columns"]]
    return [{PARTS[names[i]]: row[i] for i in range(1, len(row), 2)} for row in overview["steps"]["rows"]]


@pytest.mark.parametrize("name", ALL)
def test_steps_are_as_long_and_divide_alike_up_to_what_counts_as_communication_and_runtime(shared, name) -> None:
    trace, overview = opened(shared, name)
    work, windows = of_plugin(trace)
    each = broken_down(trace.spans, work, windows["ts_ns"].to_numpy(), windows["end_ns"].to_numpy())
    columns = {f"{part}_ns": pl.Series(ns) for part, ns in each.items()}
    ours = windows.select(total_ns=pl.col("end_ns") - pl.col("ts_ns"), **columns)
    theirs = plugin_steps(overview)
    assert ours.height == len(theirs)
    free = (
        {"runtime", "cpu_exec"} if name in WITH_DRIVER else set(PARTS.values()) if name in WITH_COLLECTIVES else set()
    )
    for row, parts in zip(ours.iter_rows(named=True), theirs, strict=True):
        assert row["total_ns"] / 1000 == pytest.approx(sum(parts.values()), abs=0.01)
        for part in set(PARTS.values()) - free:
            assert row[f"{part}_ns"] / 1000 == pytest.approx(parts.get(part, 0), abs=0.01), part
        assert sum(row[f"{part}_ns"] for part in PARTS.values()) == row["total_ns"]
        merged = sum(row[f"{part}_ns"] for part in ("runtime", "cpu_exec", "communication", "kernel"))
        if name in WITH_DRIVER:
            assert merged / 1000 == pytest.approx(
                sum(parts.get(p, 0) for p in ("runtime", "cpu_exec", "kernel")), abs=0.01
            )


@pytest.mark.parametrize("name", ALL)
def test_devices_are_as_busy_and_as_full(shared, name) -> None:
    trace, overview = opened(shared, name)
    work, windows = of_plugin(trace)
    window = windows.select(pl.col("ts_ns").min(), pl.col("end_ns").max())
    ours = utilisation_of(work, trace.devices, trace.kernels, window).row(0, named=True)
    shown = {entry["title"]: entry["value"] for entry in overview["gpu_metrics"]["data"]}
    for title, column in FIGURES.items():
        assert 100 * ours[column] == pytest.approx(float(shown[title].removesuffix(" %")), abs=0.0051), title


def test_what_the_plugin_advises_is_advised(shared) -> None:
    trace, overview = opened(shared, SAMPLES[0])
    found = analyses.find("recommendations")(trace).filter(pl.col("origin") == "tensorboard")
    assert found["rule"].to_list() == ["data_loading", "tensor_cores_unused"]
    assert "33.4% of the step time is in DataLoader" in overview["recommendations"]
    assert "Kernels with 68% time" in overview["recommendations"]
    assert found["value_ratio"].to_list() == [pytest.approx(0.334, abs=0.0005), pytest.approx(0.68, abs=0.005)]


def test_modules_take_as_long(shared) -> None:
    trace, _ = opened(shared, WITH_DRIVER[1])
    golden = json.loads((shared / "golden" / "tbprofiler" / f"{WITH_DRIVER[1]}.json").read_text())["module"]
    ours = analyses.find("modules")(trace)
    names = ours["path"].str.split("/").list.last()
    found = ours.with_columns(name=names).group_by("name").agg(pl.col("calls", "host_total_ns", "n_operators").sum())
    theirs: dict[str, tuple[int, int, float]] = {}

    def walk(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            theirs[entry["name"]] = entry["occurences"], entry["operators"], entry["host_duration"]
            walk(entry["children"])

    walk(golden["data"])
    assert found.height == len(theirs) == 316
    for name, calls, host_ns, n_operators in found.iter_rows():
        assert (calls, n_operators, host_ns / 1000) == pytest.approx(theirs[name], abs=0.6), name
