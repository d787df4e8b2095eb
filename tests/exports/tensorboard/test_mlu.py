"""What the views say of a Cambricon MLU: its words in titles, keys and texts, none of NVIDIA's figures."""

from __future__ import annotations

import json
import warnings

import pytest
from chrome_traces import packed
from mlu_trace import EVENTS, PROPERTIES

from stepscope.api import verbs


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    path = tmp_path_factory.mktemp("mlu") / "worker0.pt.trace.json"
    path.write_bytes(packed(EVENTS, schemaVersion=1, deviceProperties=PROPERTIES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not recorded
        return json.loads(verbs.export(path, "tensorboard"))


def test_the_overview_speaks_of_an_mlu(views):
    page = views["overview"]
    assert list(page) == ["steps", "performance", "recommendations", "environments", "mlu_metrics"]
    assert page["environments"][1] == {"title": "Device Type", "value": "MLU"}
    metrics = page["mlu_metrics"]
    assert metrics["title"] == "MLU Summary"
    assert [row["title"] for row in metrics["data"]] == [
        "MLU 0:", "Name", "Memory", "MLU Utilization", "Kernel Time using Tensor Cores",
    ]  # fmt: skip
    assert metrics["data"][2]["value"] == "24.0 GB"
    assert "MLU does not using Tensor Cores" in metrics["tooltip"]
    assert page["recommendations"].startswith("<ul><li>This run has high time cost on ")


def test_kernels_and_copies_of_collectives_are_communication(views):
    names = [child["name"] for child in views["overview"]["performance"][0]["children"]]
    times = {child["name"]: child["value"] for child in views["overview"]["performance"][0]["children"]}
    assert names == ["Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CPU Exec", "Other"]
    assert (times["Kernel"], times["Memcpy"], times["Communication"], times["DataLoader"]) == (80, 12, 70, 40)
    assert sum(times.values()) == views["overview"]["performance"][0]["value"] == 427


def test_calls_inside_calls_are_taken_off_once(views):
    rows = {row["name"]: row for row in views["operation_table_by_name"]["data"]}
    assert rows["aten::convolution"]["host_self_duration"] == 90 - 40
    assert rows["aten::conv2d"]["device_total_duration"] == 60
    assert {row["tc_eligible"] for row in rows.values()} == {"Yes", "No"}


def test_kernels_show_their_kind_and_task_dimensions_and_never_tensor_cores(views):
    table = views["kernel_op_table"]["data"]
    assert [c["name"] for c in table["columns"]][:5] == [
        "Name", "Operator", "DimXYZ", "Kernel Type", "Kernel Uses Tensor Cores",
    ]  # fmt: skip
    assert table["rows"][0][:5] == ["MLUUnion1KernelConv(void*)", "aten::convolution", "[16, 1, 1]", "UNION1", "No"]
    assert views["kernel_table"]["data"]["columns"][1]["tooltip"].endswith("because MLU does not have Tensor Cores.")
    assert views["tc_pie"]["total"]["rows"] == [["Using Tensor Cores", 0.0], ["Not Using Tensor Cores", 1.0]]


def test_counters_and_memory_are_of_the_mlu(views):
    assert {event["name"] for event in views["trace_counters"]} == {"MLU 0 Utilization"}
    assert list(views["memory"]["rows"]) == ["MLU0"]
    assert views["memory_curve"]["metadata"]["default_device"] == "MLU0"
