"""The views of two workers on Cambricon MLU: ours have their form and words, and their figures obey our definitions.

The traces behind these views are not public, so that a hand-made recording stands in for the comparison of form.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from chrome_traces import packed
from mlu_trace import EVENTS

from stepscope.api import verbs

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = ("overview", "operation_pie_by_name", "operation_table_by_name", "kernel_table", "kernel_pie")


@pytest.fixture(scope="module")
def workers(shared: Path) -> list[dict[str, Any]]:
    lines = (shared / "reference" / "tensorboard_views_resnet50_mlu.jsonl").read_text(encoding="utf-8").splitlines()
    return [dict(zip(VIEWS, map(json.loads, lines[i : i + 5]), strict=True)) for i in (0, 5)]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("mlu") / "worker0.pt.trace.json"
    path.write_bytes(packed(EVENTS, schemaVersion=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not recorded
        document: dict[str, Any] = json.loads(verbs.export(path, "tensorboard"))
    return document


def form(value: Any) -> Any:
    """Keys in order, kinds of values, and the first element of lists; texts that are not data stay."""
    if isinstance(value, dict):
        return {k: form(v) for k, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [form(v) for v in value] if "type" in value[0] else form(value[0])  # columns, or rows all alike
    if isinstance(value, list):
        return [form(v) for v in value[:1]] if value and isinstance(value[0], list) else [kind(v) for v in value]
    return kind(value)


def kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize("view", VIEWS)
def test_our_views_have_the_form_of_the_reference(workers: list[dict[str, Any]], ours: dict[str, Any], view: str):
    assert form(ours[view]) == form(workers[0][view])


def test_our_words_are_those_of_the_reference(workers: list[dict[str, Any]], ours: dict[str, Any]):
    page, mine = workers[0]["overview"], ours["overview"]
    assert mine["mlu_metrics"]["tooltip"] == page["mlu_metrics"]["tooltip"]
    assert mine["mlu_metrics"]["title"] == page["mlu_metrics"]["title"]
    assert [r["title"] for r in mine["mlu_metrics"]["data"]] == [r["title"] for r in page["mlu_metrics"]["data"]]
    assert mine["environments"] == page["environments"]
    idle = page["recommendations"].removeprefix("<ul>").removesuffix("</ul>")
    assert idle in mine["recommendations"]
    assert ours["operation_table_by_name"]["metadata"] == workers[0]["operation_table_by_name"]["metadata"]
    columns = [view["kernel_table"]["data"]["columns"] for view in (ours, workers[0])]
    assert columns[0] == columns[1]


def test_the_reference_obeys_our_definitions(workers: list[dict[str, Any]]):
    for views in workers:
        page = views["overview"]
        average = page["performance"][0]
        titles = [c["name"] for c in page["steps"]["columns"] if "name" in c]
        step = dict(zip(titles, [page["steps"]["rows"][0][0], *page["steps"]["rows"][0][1::2]], strict=True))
        parts = {child["name"]: child for child in average["children"]}
        assert list(parts) == titles[1:]
        assert sum(child["value"] for child in parts.values()) == average["value"]
        for name, child in parts.items():
            assert child["value"] == step[name]
            assert child["extra"] == round(100 * child["value"] / average["value"], 2)
        busy = next(r["value"] for r in page["mlu_metrics"]["data"] if r["title"] == "MLU Utilization")
        assert busy == f"{parts['Kernel']['extra']} %"
        assert ("low utilization" in page["recommendations"]) == (parts["Kernel"]["extra"] < 50)


def test_kernels_and_operators_of_the_reference_add_up(workers: list[dict[str, Any]]):
    for views, total in zip(workers, (578_421, 583_538), strict=True):
        rows = views["kernel_table"]["data"]["rows"]
        assert sum(row[3] for row in rows) == sum(row[1] for row in views["kernel_pie"]["total"]["rows"]) == total
        assert [row[3] for row in rows] == sorted((row[3] for row in rows), reverse=True)
        assert all(row[4] == round(row[3] / row[2]) and row[6] <= row[4] <= row[5] for row in rows)
        table = {row["name"]: row for row in views["operation_table_by_name"]["data"]}
        for key, column in (("device_self_time", "device_self_duration"), ("host_total_time", "host_total_duration")):
            pie = dict(views["operation_pie_by_name"][key]["rows"])
            assert pie == {name: row[column] for name, row in table.items() if row[column] > 0}
        assert all(row["device_self_duration"] <= row["device_total_duration"] for row in table.values())
