"""Everything that stepscope's TensorBoard views rest on, in the words of the unit cases' `computed`, for comparison."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import asdict, replace

from stepscope.exports.tensorboard import _diff, _distributed, _forest, _kernels, _operators, _views
from stepscope.exports.tensorboard import _roles as roles_of
from stepscope.exports.tensorboard._advice import recommendations
from stepscope.exports.tensorboard._devices import _shares, buckets_of, eligible_ratio, find_devices
from stepscope.exports.tensorboard._distributed import find_collectives
from stepscope.readers import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

    Found = dict[str, Any]

PARTS = {
    "Kernel": "kernel_us", "Memcpy": "memcpy_us", "Memset": "memset_us", "Communication": "communication_us",
    "Runtime": "runtime_us", "DataLoader": "dataloader_us", "CPU Exec": "cpu_exec_us", "Other": "other_us",
}  # fmt: skip
PROPERTIES = {"Grid": "grid", "Block": "block", "DimXYZ": "dim", "Kernel Type": "kernel_type"}
#: Kinds of nodes in the cases' trees.
KINDS = {
    _forest.PLAIN: "operator", _forest.STEP_NODE: "profilerstep", _forest.MODULE_NODE: "module",
    _forest.LOADING: "dataloader", _forest.OPTIMIZER: "optimizer", _forest.BACKWARD: "backward",
}  # fmt: skip


def opened(document: dict[str, Any], folder: Path, name: str = "trace.json") -> Trace:
    """A document of a case as a trace."""
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return open_trace(str(path))


def figures(trace: Trace) -> Found:
    """The sections of `computed` for one trace."""
    basis = _views.basis_of(trace)
    events, steps = basis.events, basis.steps
    roles = roles_of.find_roles(events)
    flags, costs, overlap = (
        roles_of.flags_of(roles),
        roles_of.step_costs(roles, steps),
        roles_of.overlap_costs(roles, steps),
    )
    views, _ = _views.views_of(basis, "worker0", n_workers=1)
    devices = find_devices(events, basis.launches, basis.forest, steps, basis.uses_tc)
    advice = recommendations(events, basis.launches, basis.forest, basis.costs, costs, flags, devices, basis.uses_tc)
    found: Found = {
        "flags": asdict(flags),
        "step_count": len(steps.names),
        "steps": [
            {"name": name, "total_us": costs.total[i]} | {key: costs.parts[role][i] for role, key in PARTS.items()}
            for i, name in enumerate(steps.names)
        ],
        "avg_costs": {"total_us": costs.mean()} | {key: costs.mean(role) for role, key in PARTS.items()},
        "compute_communication": [
            {"step": name, "computation_us": overlap.computation[i], "communication_us": overlap.communication[i],
             "overlap_us": overlap.overlap[i], "other_us": overlap.other[i]}
            for i, name in enumerate(steps.names)
        ],
        "operators": operators(basis),
        "kernels": kernels(basis, has_kernel=flags.has_kernel),
        "device_use": {str(use.device): device_use(basis, use) for use in devices},
        "tensor_core": {
            "eligible_ops_kernel_time_ratio": eligible_ratio(events, basis.launches, basis.forest, basis.costs),
            "kernel_time_ratio": views["tc_pie"]["total"]["rows"][0][1] if flags.has_kernel else None,
        },
        "devices": {"used_device_ids": _distributed.used_devices(events)},
        "communication": communication(basis),
        "dataloader_ranges_us": np.stack(roles["DataLoader"], axis=1).tolist(),
        "call_tree": call_trees(basis),
        "recommendations": [one.kind for one in advice],
        "views": views["views"],
        "displayed_overview": displayed(views["overview"]),
    }  # fmt: skip
    if "module" in views:
        found["modules"] = [module(row) for row in views["module"]["data"]]
    if "memory" in views:
        found["memory"] = memory(views)
    return found


def operators(basis: _views.Basis) -> Found:
    """Operators by name, and by name and shape."""
    calls = _operators.calls_of(basis.events, basis.forest)
    found: Found = {}
    for by_shape, key in ((False, "by_name"), (True, "by_name_input")):
        groups = _operators.grouped(calls, basis.costs, by_shape=by_shape)
        rows = []
        for i, first in enumerate(groups.first.tolist()):
            sums = {name: values[i].item() for name, values in groups.sums.items()}
            row = {"name": calls.names[calls.name[first]], "calls": int(groups.calls[i])}
            row |= {f"{k}_us": sums[k] for k in ("host_self", "host_total", "device_self", "device_total")}
            row["tc_eligible"] = bool(groups.eligible[i])
            for part in ("self", "total"):
                whole = sums[f"device_{part}"]
                row[f"tc_{part}_ratio"] = sums[f"tc_{part}"] / whole if whole > 0 else 0
            row["input_shape" if by_shape else "first_input_shape"] = calls.shapes[calls.shape[first]]
            rows.append(row)
        found |= {key: rows, f"count_{key}": len(rows)}
    return found


def kernels(basis: _views.Basis, *, has_kernel: bool) -> Found:
    """Kernels by name, and by name, operator and launch properties, from the two tables."""
    found: Found = {}
    table = _kernels.kernel_op_table(basis.events, basis.launches, basis.forest)["data"]
    titles = [c["name"] for c in table["columns"]]
    rows = [dict(zip(titles, row, strict=True)) for row in table["rows"]]
    found["count_by_name_op"] = len(rows)
    found["by_name_op"] = [
        {"name": r["Name"], "op": r["Operator"], "calls": r["Calls"], "sum_us": r["Total Duration (us)"],
         "min_us": r["Min Duration (us)"], "max_us": r["Max Duration (us)"],
         "tc_used": r["Kernel Uses Tensor Cores"] == "Yes"}
        | {new: r[old] for old, new in PROPERTIES.items() if old in r}
        for r in rows
    ]  # fmt: skip
    if has_kernel:
        stats = _kernels.kernel_stats(basis.events)
        found["count_by_name"] = len(stats.names)
        found["by_name"] = [
            {"name": name, "calls": int(stats.calls[i]), "sum_us": stats.total[i], "mean_us": stats.mean[i],
             "min_us": stats.shortest[i], "max_us": stats.longest[i], "tc_used": stats.uses_tc[i],
             "mean_blocks_per_sm": stats.blocks_per_sm[i], "mean_occupancy_pct": stats.occupancy[i]}
            for i, name in enumerate(stats.names)
        ]  # fmt: skip
    return found


def device_use(basis: _views.Basis, use: Any) -> Found:
    """One device's figures."""
    times, values = _shares(use.busy, buckets_of(basis.events))
    swept = zip(use.sm_start.tolist(), use.sm_end.tolist(), use.sm_ratio.tolist(), strict=True)
    return {
        "utilization_ratio": use.busy_ratio,
        "sm_efficiency_ratio": use.sm_efficiency_ratio,
        "occupancy_pct": use.occupancy_percent,
        "tensor_core_time_ratio": use.tensor_core_ratio,
        "utilization_timeline": [list(point) for point in zip(times, values, strict=True)],
        "sm_efficiency_ranges": [list(r) for r in swept if r[2] >= 1e-9],
    }


def communication(basis: _views.Basis) -> Found:
    """Collectives with their intervals."""
    found = find_collectives(basis.events, basis.steps)
    bounds = zip(found.range_start.tolist(), found.range_end.tolist(), strict=True)
    ranges = [list(r) for r in bounds]
    ops = []
    for i in range(found.row.size):
        own = ranges[found.first[i] : found.first[i + 1]]
        ops.append({
            "name": found.names[found.name[i]], "start_us": found.start[i].item(), "end_us": found.end[i].item(),
            "step": basis.steps.names[found.step[i]] if found.step[i] >= 0 else None, "ranges_us": own,
            "total_us": sum(b - a for a, b in own),
        })  # fmt: skip
    return {"libraries": sorted(found.libraries), "op_count": len(ops), "ops": ops}


def call_trees(basis: _views.Basis) -> Found:
    """The trees by thread, each node with what it launched."""
    forest, events, launches = basis.forest, basis.events, basis.launches
    nodes: list[Found] = []
    below: dict[int, list[int]] = {}
    for i, parent in enumerate(forest.parent.tolist()):
        below.setdefault(parent, []).append(i)
        costs = {k: getattr(basis.costs, k)[i].item() for k in ("host_self", "device_self", "device_total")}
        nodes.append({
            "name": forest.names[forest.name[i]], "kind": KINDS.get(int(forest.role[i])),
            "start_us": forest.start[i].item(), "end_us": forest.end[i].item(),
            **{f"{k}_us": v for k, v in costs.items()},
        })  # fmt: skip
    for call, node in zip(forest.claim_call.tolist(), forest.claim_node.tolist(), strict=True):
        work = launches.work[launches.work_of(np.array([call]))[1]]
        device = (events.end[work] - events.ts[work]).tolist()
        name = events.names[events.name[launches.calls[call]]]
        start = events.ts[launches.calls[call]].item()
        nodes[node].setdefault("launches", []).append((start, {"name": name, "device_us": sorted(device)}))

    def tree(i: int) -> Found:
        node = dict(nodes[i])
        if "launches" in node:
            node["launches"] = [one for _, one in sorted(node["launches"], key=lambda pair: pair[0])]
        if i in below:
            node["children"] = [tree(child) for child in below[i]]
        return node

    return {str(events.threads[forest.thread[i]]): [tree(c) for c in below.get(i, [])] for i in below.get(-1, [])}


def module(row: Found) -> Found:
    """A row of the module view under the cases' names."""
    names = {
        "name": "name", "id": "module_id", "occurences": "occurrences", "operators": "operators",
        "host_duration": "host_total_us", "self_host_duration": "host_self_us", "device_duration": "device_total_us",
        "self_device_duration": "device_self_us", "avg_duration": "avg_us",
    }  # fmt: skip
    return {new: row[old] for old, new in names.items()} | {"children": [module(child) for child in row["children"]]}


def memory(views: Found) -> Found:
    """Curves in µs and bytes, blocks, and what operators allocated, from the three views."""
    curve = {
        device: [[p[0] * 1e3, p[1] * 2**20, p[2] * 2**20] for p in points]
        for device, points in views["memory_curve"]["rows"].items()
    }
    events = {
        device: [{"op": row[0], "shown_kb": row[1]} for row in rows]
        for device, rows in views["memory_events"]["rows"].items()
    }
    return {"curve_devices": views["memory_curve"]["metadata"]["devices"], "curve_step_plot": curve, "events": events,
            "devices": sorted(views["memory"]["rows"])}  # fmt: skip


def displayed(overview: Found) -> Found:
    """The overview's rounded figures."""
    average = overview["performance"][0]
    parts = [{"name": c["name"], "us": c["value"], "percent": c["extra"]} for c in average["children"]]
    return {"avg_step_us": average["value"], "parts": parts}


def together(traces: dict[str, Trace]) -> Found | None:
    """The view of all workers."""
    parts = []
    for worker, trace in traces.items():
        _, part = _views.views_of(_views.basis_of(trace), worker, n_workers=len(traces))
        parts.append(replace(part, worker=worker))
    view = _distributed.distributed(parts)
    if view is None:
        return None
    keys = ("computation_only_us", "overlap_us", "communication_only_us", "other_us")
    overlap = view["steps_to_overlap"]["data"]
    wait = view["steps_to_wait"]["data"]
    columns = (
        "name", "calls", "total_bytes", "avg_bytes", "total_latency_us", "avg_latency_us", "data_transfer_us",
        "avg_data_transfer_us",
    )  # fmt: skip
    return {
        "overlap": {s: {w: dict(zip(keys, v, strict=True)) for w, v in row.items()} for s, row in overlap.items()},
        "wait": {
            s: {w: {"data_transfer_us": v[0], "synchronizing_us": v[1]} for w, v in row.items()}
            for s, row in wait.items()
        },
        "communication_ops": {
            w: [dict(zip(columns, row, strict=True)) for row in table["rows"]]
            for w, table in view["comm_ops"]["data"].items()
        },
    }


def difference(left: Trace, right: Trace) -> Found:
    """The tree of differences."""
    sides = [_views.basis_of(trace) for trace in (left, right)]
    return pair(_diff.diff(*((basis.forest, basis.costs) for basis in sides)), "0")


def pair(node: Found, path: str) -> Found:
    """One node of it."""
    found: Found = {"path": path}
    for side in ("left", "right"):
        one = node[side]
        found[side] = {
            "name": one["name"], "host_us": one["duration"], "device_us": one["device_duration"],
            "total_us": one["total_duration"],
            "operators": [
                {"name": a["name"], "calls": a["calls"], "host_total_us": a["host_duration"],
                 "device_total_us": a["device_duration"], "host_self_us": a["self_host_duration"],
                 "device_self_us": a["self_device_duration"]}
                for a in one["aggs"]
            ],
        }  # fmt: skip
    if node["children"]:
        found["children"] = [pair(child, f"{path}-{i}") for i, child in enumerate(node["children"])]
    return found
