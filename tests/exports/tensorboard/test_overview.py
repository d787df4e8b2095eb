from __future__ import annotations

from typing import Any

from chrome_traces import call, kernel, op, read, x

from stepscope.exports.tensorboard._advice import Advice
from stepscope.exports.tensorboard._devices import find_devices
from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._forest import grow
from stepscope.exports.tensorboard._launches import find_launches
from stepscope.exports.tensorboard._names import uses_tensor_cores
from stepscope.exports.tensorboard._overview import overview
from stepscope.exports.tensorboard._roles import find_roles, flags_of, step_costs
from stepscope.exports.tensorboard._steps import find_steps

STEP = x("ProfilerStep#7", 0, 1000, "user_annotation")


def page(*recorded, advice: tuple[Advice, ...] = (), n_workers: int = 1, **meta) -> dict[str, Any]:
    events = read_events(read(list(recorded), **meta))
    launches = find_launches(events)
    forest, steps, roles = grow(events, launches), find_steps(events, launches), find_roles(events)
    devices = find_devices(events, launches, forest, steps, events.where(uses_tensor_cores, launches.work))
    costs = step_costs(roles, steps)
    return overview(events, steps, costs, flags_of(roles), devices, list(advice), n_workers=n_workers)


def columns(found: dict[str, Any]) -> list[str]:
    return [column["name"] for column in found["steps"]["columns"] if "name" in column]


def tooltip(part: str, percent: str) -> str:
    opens = '<div class="visualization-tooltip" style="white-space: nowrap;">'
    return f"{opens}Step 7<br>Total: 1000us<br><b>{part}</b><br>Percentage: {percent}</div>"


def test_the_page_of_a_host_only_recording() -> None:
    assert page(STEP, op("aten::mm", 100, 250)) == {
        "steps": {
            "columns": [
                {"type": "string", "name": "Step"},
                {"type": "number", "name": "DataLoader"},
                {"type": "string", "role": "tooltip", "p": {"html": "true"}},
                {"type": "number", "name": "CPU Exec"},
                {"type": "string", "role": "tooltip", "p": {"html": "true"}},
                {"type": "number", "name": "Other"},
                {"type": "string", "role": "tooltip", "p": {"html": "true"}},
            ],
            "rows": [
                [
                    "7",
                    0,
                    tooltip("DataLoader: 0us", "0.0%"),
                    250,
                    tooltip("CPU Exec: 250us", "25.0%"),
                    750,
                    tooltip("Other: 750us", "75.0%"),
                ]
            ],
        },
        "performance": [
            {
                "name": "Average Step Time",
                "description": "",
                "value": 1000,
                "extra": 100,
                "children": [
                    {"name": "DataLoader", "description": "", "value": 0, "extra": 0.0},
                    {"name": "CPU Exec", "description": "", "value": 250, "extra": 25.0},
                    {"name": "Other", "description": "", "value": 750, "extra": 75.0},
                ],
            }
        ],
        "recommendations": "<ul><li>N/A</li></ul>",
        "environments": [
            {"title": "Number of Worker(s)", "value": "1"},
            {"title": "Device Type", "value": "CPU"},
        ],
    }


def test_roles_of_the_device_are_shown_if_there_is_any_and_communication_if_there_is_some() -> None:
    device = ["Step", "Kernel", "Memcpy", "Memset", "Runtime", "DataLoader", "CPU Exec", "Other"]
    assert columns(page(STEP, call("cudaDeviceSynchronize", 0, 10, 0))) == device
    assert columns(page(STEP, op("gloo:all_reduce", 0, 10))) == [
        "Step", "Communication", "DataLoader", "CPU Exec", "Other",
    ]  # fmt: skip
    assert columns(page(STEP, kernel("k", 0, 10, 1), op("gloo:all_reduce", 0, 10, External_id=3))) == [
        *device[:4], "Communication", *device[4:],
    ]  # fmt: skip


def test_a_gpu_has_its_metrics_after_the_environment() -> None:
    found = page(STEP, kernel("k", 0, 10, 1), n_workers=3, advice=(Advice("a", "hurry"),))
    assert list(found) == ["steps", "performance", "recommendations", "environments", "gpu_metrics"]
    assert found["recommendations"] == "<ul><li>hurry</li></ul>"
    assert [row["value"] for row in found["environments"]] == ["3", "GPU"]
    assert found["gpu_metrics"]["title"] == "GPU Summary"


def test_other_devices_have_their_own_name() -> None:
    found = page(STEP, kernel("k", 0, 10, 1), deviceProperties=[{"id": 0, "name": "MLU370"}])
    assert list(found)[-1] == "mlu_metrics"
    assert found["environments"][1]["value"] == "MLU"


def test_means_are_rounded_and_their_parts_are_not_made_of_rounded_values() -> None:
    found = page(STEP, x("ProfilerStep#8", 1000, 501, "user_annotation"), op("aten::mm", 900, 201))
    (mean,) = found["performance"]
    assert mean["value"] == 750
    assert [(part["value"], part["extra"]) for part in mean["children"]] == [(0, 0.0), (100, 13.39), (650, 86.61)]
    assert [row[0] for row in found["steps"]["rows"]] == ["7", "8"]


def test_fractions_of_a_microsecond_are_shown_as_recorded() -> None:
    found = page(x("ProfilerStep#1", 0.5, 10.25, "user_annotation"), op("aten::mm", 1.5, 2.0))
    assert found["steps"]["rows"][0][3] == 2.0
    assert "Total: 10.25us<br><b>CPU Exec: 2.0us</b><br>Percentage: 19.51%" in found["steps"]["rows"][0][4]


def test_a_step_of_no_length_has_parts_of_0_percent() -> None:
    found = page(x("ProfilerStep#1", 5, 0, "user_annotation"))
    assert found["steps"]["rows"][0][1::2] == [0, 0, 0]
    assert [part["extra"] for part in found["performance"][0]["children"]] == [0.0, 0.0, 0.0]
