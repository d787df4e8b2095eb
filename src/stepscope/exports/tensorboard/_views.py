"""All views of one trace, in the order and under the names of the plugin's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.errors import MissingTable
from stepscope.exports.tensorboard import _kernels, _memory, _operators
from stepscope.exports.tensorboard._advice import overview, recommendations
from stepscope.exports.tensorboard._backward import rehung
from stepscope.exports.tensorboard._devices import find_devices, trace_counters
from stepscope.exports.tensorboard._distributed import Part, find_collectives, used_devices
from stepscope.exports.tensorboard._events import find_launches, read_events
from stepscope.exports.tensorboard._forest import costs_of, grow
from stepscope.exports.tensorboard._json import encoded_list
from stepscope.exports.tensorboard._modules import module_view
from stepscope.exports.tensorboard._names import uses_tensor_cores
from stepscope.exports.tensorboard._roles import find_roles, find_steps, flags_of, overlap_costs, step_costs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stepscope.core.trace import Trace
    from stepscope.exports.tensorboard._events import Events, Launches
    from stepscope.exports.tensorboard._forest import Costs, Forest
    from stepscope.exports.tensorboard._roles import Flags, Steps


class Basis(msgspec.Struct, frozen=True):
    """What all views are made from. `uses_tc` says for each item of `launches.work` whether it uses tensor cores.

    `forest` and `costs` have backward operators below their modules.
    """

    events: Events
    launches: Launches
    forest: Forest
    costs: Costs
    steps: Steps
    uses_tc: NDArray[np.bool_]


def basis_of(trace: Trace) -> Basis:
    """Events, launches, trees and steps of a trace. Raises MissingTable if it holds nothing that the plugin knows."""
    trace.require_clock(needed_by="tensorboard")
    events = read_events(trace)
    if not events.order.size and trace.table("allocations").is_empty():
        hint = "it reads the categories of PyTorch's profiler: cpu_op, cuda_runtime, kernel …"
        raise MissingTable("events that the TensorBoard plugin knows", needed_by="tensorboard", hint=hint)
    launches = find_launches(events)
    uses_tc = events.where(uses_tensor_cores, launches.work)
    first = grow(events, launches)
    forest, costs = rehung(events, first, costs_of(events, launches, first, uses_tc))
    return Basis(events, launches, forest, costs, find_steps(events, launches), uses_tc)


def views_of(basis: Basis, worker: str, *, n_workers: int) -> tuple[dict[str, Any], Part]:
    """All views, each ready for JSON, and this worker's part of the view of all workers."""
    events, launches, forest = basis.events, basis.launches, basis.forest
    roles = find_roles(events)
    flags, costs = flags_of(roles), step_costs(roles, basis.steps)
    devices = find_devices(events, launches, forest, basis.steps, basis.uses_tc)
    advice = recommendations(events, launches, forest, basis.costs, costs, flags, devices, basis.uses_tc)
    views: dict[str, Any] = {"views": []}
    views["overview"] = overview(events, basis.steps, costs, flags, devices, advice, n_workers=n_workers)
    views |= _operator_views(basis, flags)
    if flags.has_kernel:
        views |= _kernel_views(basis)
    views["trace_counters"] = encoded_list(trace_counters(events, devices))
    if not events.trace.table("allocations").is_empty():
        records = _memory.read_records(events, forest)
        views["memory"] = _memory.memory_stats(events, forest, records)
        views["memory_curve"] = _memory.memory_curve(events, records)
        views["memory_events"] = _memory.memory_events(events, forest, records)
    modules = module_view(events, forest, basis.costs)
    if modules is not None:
        views["module"] = modules[1]
    shown = {"Kernel": flags.has_kernel, "Trace": True, "Memory": "memory" in views}
    views["views"] = ["Overview", "Operator", *(name for name, has in shown.items() if has)]
    views["views"] += [modules[0]] if modules is not None else []
    collectives = find_collectives(events, basis.steps)
    overlap = overlap_costs(roles, basis.steps)
    part = Part(worker, collectives, basis.steps, overlap, used_devices(events), events.properties, events.dialect.noun)
    return views, part


def _operator_views(basis: Basis, flags: Flags) -> dict[str, Any]:
    calls = _operators.calls_of(basis.events, basis.forest)
    with_device = flags.has_kernel or flags.has_memcpy_or_memset
    views: dict[str, Any] = {}
    for by_shape, ending in ((False, "by_name"), (True, "by_name_input")):
        groups = _operators.grouped(calls, basis.costs, by_shape=by_shape)
        stacked = _operators.with_stack(calls, by_shape=by_shape)
        views[f"operation_pie_{ending}"] = _operators.pies(calls, groups)
        views[f"operation_table_{ending}"] = _operators.table(
            calls, groups, stacked, by_shape=by_shape, with_device=with_device
        )
        if stacked:
            groups = _operators.grouped(calls, basis.costs, by_shape=by_shape, by_stack=True)
            views[f"operation_stack_{ending}"] = _operators.stack_tables(
                calls, groups, by_shape=by_shape, with_device=with_device
            )
    return views


def _kernel_views(basis: Basis) -> dict[str, Any]:
    stats = _kernels.kernel_stats(basis.events)
    return {
        "kernel_op_table": _kernels.kernel_op_table(basis.events, basis.launches, basis.forest),
        "kernel_table": _kernels.kernel_table(basis.events, stats),
        "kernel_pie": _kernels.kernel_pie(stats),
        "tc_pie": _kernels.tc_pie(stats),
    }


def missing_from(basis: Basis, views: dict[str, Any]) -> list[str]:
    """One sentence for each thing that the views lack because the trace lacks it, and how to record it."""
    trace = basis.events.trace
    gaps = []
    if "kernel_table" not in views:
        gaps.append("no kernels are recorded: no Kernel view, no device times; record the device's activity too")
    if trace.steps.is_empty():
        gaps.append("no steps are marked: the whole recording counts as step 0; call profiler.step() after each")
    elif trace.steps.height == 1:
        gaps.append("one step is recorded: averages over steps are its own figures")
    if trace.table("ops")["input_shapes"].null_count() == trace.table("ops").height:
        gaps.append("no input shapes are recorded: tables by shape have one row per name; record_shapes=True")
    if "memory" not in views:
        gaps.append("no allocations are recorded: no Memory view; profile_memory=True")
    if "module" not in views:
        gaps.append("no modules are recorded: no Module view; with_stack=True, from PyTorch 1.12 on")
    return gaps
