"""The views of the TensorBoard plugin on real traces, value by value and in order: integers exactly, doubles at 1e-9.

Two things are not as in the plugin, on purpose: `operation_stack_*` is there where calls have stacks (the golden files
have no such view), and the golden files shorten three views, which is undone here before comparing.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.api import verbs

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = {
    "b200_eager_trace": 12,
    "h100_Falconsai_nsfw_image_detection__1016002": 15,
    "h100_Qwen_Qwen1.5-0.5B-Chat__1016005": 15,
    "hta_nccl_parser_config": 11,
    "hta_trace_diff_control": 11,
    "kineto_resnet50_num_workers_0_worker0.1623143089861": 14,
    "kineto_resnet50_num_workers_0_worker0.1623143566756": 14,
    "kineto_resnet50_num_workers_4_worker0.1623212756351": 14,
    "kineto_resnet50_num_workers_4_worker0.1623213129365": 14,
}
KINETO = "traces/kineto/resnet50_num_workers_{}.pt.trace.json.gz"


def differences(expected: Any, found: Any, where: str) -> list[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(expected) != list(found):
            return [f"{where}: keys {list(expected)} expected, {list(found)} found"]
        return [line for key in expected for line in differences(expected[key], found[key], f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{where}: {len(expected)} expected, {len(found)} found"]
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]")]
    return [] if equal(expected, found) else [f"{where}: {expected!r} expected, {found!r} found"]


def equal(expected: Any, found: Any) -> bool:
    if type(expected) is float and type(found) in (int, float):
        return math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-9)
    # A whole number may come as a double, as where the plugin starts a sum with 0.
    return bool(expected == found) and (type(expected) is type(found) or type(expected) is int)


@lru_cache(1)
def exported(path: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(verbs.export(path, "tensorboard"))
    return document


def shortened(views: dict[str, Any]) -> dict[str, Any]:
    """Our views with the three long ones cut as the golden files have them."""
    found = {k: v for k, v in views.items() if not k.startswith("operation_stack_")}
    efficiency = [e for e in views["trace_counters"] if "SM Efficiency" in e["name"]]
    found["trace_counters"] = {
        "n_total": len(views["trace_counters"]),
        "gpu_utilization": [e for e in views["trace_counters"] if "SM Efficiency" not in e["name"]],
        "n_sm_efficiency": len(efficiency),
        "sm_efficiency_first_40": efficiency[:40],
        "sm_efficiency_value_sum": sum(e["args"]["Est. SM Efficiency"] for e in efficiency),
    }
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", VIEWS)
def test_all_views_are_equal(shared: Path, name: str):
    golden = json.loads((shared / "golden" / "tbprofiler" / f"{name}.json").read_text(encoding="utf-8"))
    found = shortened(exported(str(shared / golden["_input"])))
    expected = {k: v for k, v in golden.items() if not k.startswith("_")}
    assert [k.removesuffix("_summary") for k in expected] == list(found)
    lines = []
    for key, view in expected.items():
        if key == "memory_curve_summary":
            lines += differences(view, curve_summary(found["memory_curve"]), key)
        elif key == "memory_events_summary":
            lines += differences(view, events_summary(found["memory_events"]), key)
        else:
            lines += differences(view, found[key], key)
    assert lines == []
    assert len(expected) == VIEWS[name]


def curve_summary(view: dict[str, Any]) -> dict[str, Any]:
    rows = view["rows"]
    ends = {device: [points[:20], points[-20:]] for device, points in rows.items()}
    return {
        "metadata": view["metadata"],
        "columns": view["columns"],
        "n_points": {device: len(points) for device, points in rows.items()},
        "rows_head_tail": ends,
    }


def events_summary(view: dict[str, Any]) -> dict[str, Any]:
    rows = view["rows"]
    return {
        "metadata": view["metadata"],
        "columns": view["columns"],
        "n_rows": {device: len(blocks) for device, blocks in rows.items()},
        "rows_first_50": {device: blocks[:50] for device, blocks in rows.items()},
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_upstream_golden_is_equal_byte_for_byte(shared: Path):
    lines = (
        (shared / "golden" / "tbprofiler" / "upstream_result_check_file.txt").read_text(encoding="utf-8").splitlines()
    )
    keys = ("overview", "operation_pie_by_name", "operation_table_by_name", "kernel_table", "kernel_pie")
    found = []
    for trace in ("0/worker0.1623143089861", "4/worker0.1623212756351"):
        views = exported(str(shared / KINETO.format(trace)))
        found += [json.dumps(views[key]) for key in keys]
    assert found == lines
    assert len(lines) == 10


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_difference_of_two_runs_is_equal(shared: Path):
    golden = json.loads((shared / "golden" / "tbprofiler" / "diff_kineto_w0_vs_w4.json").read_text(encoding="utf-8"))
    left, right = (str(shared / KINETO.format(t)) for t in ("0/worker0.1623143089861", "4/worker0.1623212756351"))
    found = json.loads(verbs.export(left, "tensorboard", diff=right))["diff"]
    assert differences({k: v for k, v in golden.items() if not k.startswith("_")}, found, "diff") == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_view_of_all_workers_is_equal(shared: Path):
    path = shared / "golden" / "tbprofiler" / "distributed_trace_filter_2ranks.json"
    golden = json.loads(path.read_text(encoding="utf-8"))
    ranks = [str(shared / f"traces/hta/trace_filter/sampled_rank-{i}.json.gz") for i in range(2)]
    found = json.loads(verbs.export(verbs.load_run(ranks), "tensorboard"))
    assert list(found) == ["rank_0", "rank_1", "distributed"]
    assert differences({k: v for k, v in golden.items() if not k.startswith("_")}, found["distributed"], "all") == []
