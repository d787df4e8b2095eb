"""The plugin's overview page: where the steps' time went, the recommendations, and the devices that were used.

The recommendations are the plugin's rules in its order and wording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.exports.tensorboard._devices import device_metrics, eligible_ratio
from stepscope.exports.tensorboard._distributed import used_devices
from stepscope.exports.tensorboard._events import ANNOTATION, KERNEL, MODULE, OPERATOR, PL_MODULE, PYTHON
from stepscope.exports.tensorboard._names import library
from stepscope.exports.tensorboard._roles import OTHER, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._devices import DeviceUse
    from stepscope.exports.tensorboard._events import Events, Launches
    from stepscope.exports.tensorboard._forest import Costs, Forest
    from stepscope.exports.tensorboard._roles import Flags, StepCosts

    Bools = NDArray[np.bool_]
    from stepscope.exports.tensorboard._roles import Steps


_DOCS = "https://pytorch.org/docs/stable/"
_GIB = 1 << 30
#: From the first share on, device memory is nearly used up. Below the second share of the time, a device is idle.
_NEARLY_FULL, _IDLE = 0.9, 0.5
#: From these shares of the step on, data loading and communication take too long.
_MUCH_LOADING, _MUCH_COMMUNICATION = 0.05, 0.1
#: First compute capability for which NCCL is advised, and first major one with tensor cores.
_NCCL_CAPABILITY, _TENSOR_CORES = (3, 5), 7


class Advice(msgspec.Struct, frozen=True):
    """One recommendation: which rule, and its text with links as HTML."""

    kind: str
    text: str


def recommendations(
    events: Events, launches: Launches, forest: Forest, costs: Costs, steps: StepCosts, flags: Flags,
    devices: list[DeviceUse], uses_tc: Bools,
) -> list[Advice]:  # fmt: skip
    """What to improve. `uses_tc` says for each item of `launches.work` whether it uses tensor cores.

    Source: the plugin; for MLU Cambricon's fork, which has no rule for tensor cores.
    """
    advice = [*_loading(steps), *_distributed(events, steps), *_idle(devices, events.dialect.noun)]
    if events.properties:
        if flags.has_kernel and not events.dialect.is_mlu:
            advice += _tensor_cores(events, launches, forest, costs, uses_tc)
        advice += _memory(events)
    return advice


def as_html(advice: list[Advice]) -> str:
    """The recommendations as the view's list."""
    return f"<ul>{''.join(f'<li>{one.text}</li>' for one in advice) or '<li>N/A</li>'}</ul>"


def _link(text: str, url: object) -> str:
    return f'<a href="{url}" target="_blank">{text}</a>'


def _part(steps: StepCosts, role: str) -> float:
    whole = steps.mean()
    return steps.mean(role) / whole if whole else 0.0


def _loading(steps: StepCosts) -> Iterator[Advice]:
    part = _part(steps, "DataLoader")
    if part > _MUCH_LOADING:
        url = f"{_DOCS}data.html#single-and-multi-process-data-loading"
        link = _link("enable multi-processes on data loading", url)
        yield Advice(
            "dataloader_time_high",
            f"This run has high time cost on input data loading. {part * 100:.1f}% of the step time is in DataLoader. "
            f"You could try to set num_workers on DataLoader's construction and {link}.",
        )


def _distributed(events: Events, steps: StepCosts) -> Iterator[Advice]:
    rows = events.rows(OPERATOR, ANNOTATION, PYTHON, MODULE, PL_MODULE)
    used = np.zeros(len(events.names), bool)
    used[events.name[rows]] = True
    names = {events.names[i] for i in np.flatnonzero(used).tolist()}
    if "DataParallel.forward" in names and len(used_devices(events)) > 1:
        url = f"{_DOCS}notes/cuda.html#cuda-nn-ddp-instead"
        link = _link("use DistributedDataParallel instead of DataParallel", url)
        yield Advice("use_ddp_not_dp", f"It is recommended to {link} to do multi-{events.dialect.noun} training.")
    advised = "cncl" if events.dialect.is_mlu else "nccl"
    capable = events.properties if events.dialect.is_mlu else any(map(_has_nccl, events.properties))
    if "DistributedDataParallel.forward" in names and capable and advised not in map(library, names):
        yield Advice(
            f"use_{advised}",
            f"{advised.capitalize()} backend is currently the fastest and highly recommended backend when using DDP "
            "for training.",
        )
    part = _part(steps, "Communication")
    if part > _MUCH_COMMUNICATION:
        # By mistake, the plugin's first address is a Python tuple and is shown as one.
        compress = _link("Gradient Compression", (f"{_DOCS}ddp_comm_hooks.html",))
        accumulate = _link(
            "Gradient Accumulation",
            "https://towardsdatascience.com/what-is-gradient-accumulation-in-deep-learning-ec034122cfa",
        )
        lamb = _link("LAMB optimizer", "https://nvidia.github.io/apex/optimizers.html#apex.optimizers.FusedLAMB")
        yield Advice(
            "communication_time_high",
            f"This run has high time cost on communication. {part * 100:.1f}% of the step time is in communication. "
            f"You could try {compress} or {accumulate} or increase the batch size. Note: Gradient accumulation will "
            "increase global effective batch size, which may hurt model convergence and accuracy. For such case, you "
            f"may want to evaluate {lamb}.",
        )


def _has_nccl(properties: dict[str, Any]) -> bool:
    major, minor = (_integer(properties, key) for key in ("computeMajor", "computeMinor"))
    return major is not None and minor is not None and (major, minor) >= _NCCL_CAPABILITY


def _integer(properties: dict[str, Any], key: str) -> int | None:
    value = properties.get(key)
    return value if isinstance(value, int) else None


def _idle(devices: list[DeviceUse], noun: str) -> Iterator[Advice]:
    idle = [str(use.device) for use in devices if use.busy_ratio < _IDLE]
    if idle:
        which = ", ".join(idle[:-1]) + "and " * (len(idle) > 1) + idle[-1]
        yield Advice(
            "device_utilization_low",
            f"{noun} {which} {'has' if len(which) == 1 else 'have'} low utilization. You could try to increase batch "
            "size to improve. Note: Increasing batch size may affect the speed and stability of model convergence.",
        )


def _tensor_cores(events: Events, launches: Launches, forest: Forest, costs: Costs, uses_tc: Bools) -> Iterator[Advice]:
    major = _integer(events.properties[0], "computeMajor")
    used = events.dur[launches.work[uses_tc & (events.kind[launches.work] == KERNEL)]]
    if major is None or major < _TENSOR_CORES or used.any():
        return
    part = eligible_ratio(events, launches, forest, costs)
    if part > 0:
        link = _link("Automatic Mixed Precision", f"{_DOCS}amp.html")
        yield Advice(
            "tensor_cores_unused",
            f"Kernels with {round(part * 100)}% time are launched by Tensor Cores eligible operators. You could enable "
            f"{link} to speedup by using FP16.",
        )


def _memory(events: Events) -> Iterator[Advice]:
    """Advice on the first device that is nearly full. Unlike the plugin's, it does not count the host as a device."""
    peak = pl.col("total_allocated_bytes")
    devices = events.trace.devices.filter(pl.col("type") != "cpu").select("device_id", "index")
    recorded = events.trace.table("allocations").filter(peak.is_not_null())
    peaks = recorded.group_by("device_id", maintain_order=True).agg(peak.max()).join(
        devices, on="device_id", how="inner", maintain_order="left"
    )  # fmt: skip
    for number, most in peaks.select("index", peak).iter_rows():
        size = _memory_bytes(events, number)
        if not size or most <= size * _NEARLY_FULL:
            continue
        noun = events.dialect.noun
        checkpoint, mixed = (
            _link(text, f"{_DOCS}{page}")
            for text, page in (("Gradient Checkpoint", "checkpoint.html"), ("Automatic Mixed Precision", "amp.html"))
        )
        yield Advice(
            "device_memory_near_limit",
            f"Device memory usage is at the limit of device memory capacity ({most / size * 100:.1f}% of "
            f"{size / _GIB:.1f}GB on {noun}{number}). To get better value of your {noun} or to use larger batch size "
            f"for training, please refer to {checkpoint} or {mixed}.",
        )
        return


def _memory_bytes(events: Events, number: int) -> int | None:
    if number >= len(events.properties):
        return None
    size, mebibytes = (_integer(events.properties[number], key) for key in ("totalGlobalMem", "totalMem(MiB)"))
    return size if mebibytes is None else mebibytes << 20


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
    # The plugin fails at an empty step. A step that overlaps the next one can become empty.
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
