"""The plugin's overview page: where the steps went, what to do, on what it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.exports.tensorboard._advice import as_html
from stepscope.exports.tensorboard._devices import device_metrics
from stepscope.exports.tensorboard._roles import OTHER, ROLES

if TYPE_CHECKING:
    from stepscope.exports.tensorboard._advice import Advice
    from stepscope.exports.tensorboard._devices import DeviceUse
    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._roles import Flags, StepCosts
    from stepscope.exports.tensorboard._steps import Steps

_TOOLTIP = {"type": "string", "role": "tooltip", "p": {"html": "true"}}
_TOOLTIP_OPENS = '<div class="visualization-tooltip" style="white-space: nowrap;">'
_ON_DEVICE = ("Kernel", "Memcpy", "Memset", "Runtime")


def overview(
    events: Events, steps: Steps, costs: StepCosts, flags: Flags, devices: list[DeviceUse], advice: list[Advice],
    *, n_workers: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """The whole page; the key of the devices' table is missing where no device ran kernels.

    Units: µs.
    Source: the plugin; for other devices than GPUs Cambricon's fork, which puts their name where it says GPU.
    """
    roles = [role for role in (*ROLES, OTHER) if _is_shown(role, flags)]
    dialect = events.dialect
    page: dict[str, Any] = {
        "steps": {
            "columns": [
                {"type": "string", "name": "Step"},
                *(column for role in roles for column in ({"type": "number", "name": role}, _TOOLTIP)),
            ],
            "rows": [_row(i, name, costs, roles) for i, name in enumerate(steps.names)],
        },
        "performance": [_performance(costs, roles)],
        "recommendations": as_html(advice),
        "environments": [
            {"title": "Number of Worker(s)", "value": str(n_workers)},
            {"title": "Device Type", "value": dialect.noun if flags.has_device else "CPU"},
        ],
    }
    metrics = device_metrics(devices, events.properties, dialect)
    return page | ({f"{dialect.noun.lower()}_metrics": metrics} if metrics else {})


def _is_shown(role: str, flags: Flags) -> bool:
    if role in _ON_DEVICE:
        return flags.has_device
    return flags.has_communication if role == "Communication" else True


def _percent(part: float, whole: float) -> float:
    # The plugin fails at a step of no length, which one that ran into the next can become.
    return round(100 * part / whole, 2) if whole else 0.0


def _row(i: int, name: str, costs: StepCosts, roles: list[str]) -> list[Any]:
    total = costs.total[i]
    row: list[Any] = [name]
    for role in roles:
        part = costs.parts[role][i]
        share = f"<b>{role}: {part}us</b><br>Percentage: {_percent(part, total)}%"
        row += [part, f"{_TOOLTIP_OPENS}Step {name}<br>Total: {total}us<br>{share}</div>"]
    return row


def _performance(costs: StepCosts, roles: list[str]) -> dict[str, Any]:
    whole = costs.mean()
    parts = {role: costs.mean(role) for role in roles}
    children = [
        {"name": role, "description": "", "value": round(part), "extra": _percent(part, whole)}
        for role, part in parts.items()
    ]
    return {
        "name": "Average Step Time", "description": "", "value": round(whole), "extra": 100, "children": children,
    }  # fmt: skip
