"""Notes for the report's bar: how well kernels use the devices, and what the host does while they are idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from stepscope.analyses.advice.recommendations import Facts, advice, memory_held, with_kernels, with_program
from stepscope.analyses.common.device_work import mean_of
from stepscope.analyses.costs.arguments import NO_SHAPES
from stepscope.analyses.costs.mfu import NO_PRODUCTS, mfu_of
from stepscope.analyses.costs.roofline import roofs_of
from stepscope.analyses.kernels.utilisation import utilisation
from stepscope.analyses.steps.device_utilisation import utilisation_of
from stepscope.analyses.steps.step_breakdown import divided, host_parts
from stepscope.core.errors import MissingTable
from stepscope.core.remedies import remedy
from stepscope.core.report import Note
from stepscope.core.table import filtered
from stepscope.core.units import percent
from stepscope.reports._summary import Cost, Lack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.intervals import Intervals
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope


#: What hardware counters measure of kernels, and how to say it.
MEASURED = {"tensor_ratio": "tensor cores busy", "dram_ratio": "memory bandwidth used", "sm_ratio": "SMs busy"}
_LOW, _LEAST_LOW = 0.1, 0.005
#: Share of the matrix products' time whose operations must be known: below, MFU would mislead.
_LEAST_KNOWN = 0.5
#: Parts of the host's time in the order of `step-breakdown`, ranges apart from operators, and their names here.
_ON_HOST = {
    "communication": "communication",
    "runtime": "runtime calls",
    "dataloader": "data loading",
    "cpu_exec": "operators",
    "range": "named ranges",
    "other": "other",
}
_MEASURES = ("est_sm_efficiency_ratio", "est_occupancy_ratio", "tensor_core_ratio")


def mfu_at_a_glance(trace: Trace, work: pl.DataFrame, scope: Scope) -> tuple[dict[str, float], tuple[Lack, ...]]:
    """`mfu_ratio` and `mfu_known_ratio` over all steps, as in `show mfu --by all`; or a sentence that says why not.

    Both are empty if no kernel is a matrix product. `work` is what `device_work` returns.
    """
    if trace.ops.is_empty() or not (work["category"] == "kernel").any():
        return {}, ()
    bounds = {"step": scope.numbers or [None], "ts_ns": scope.lows, "end_ns": scope.highs}
    windows = pl.DataFrame(bounds, schema_overrides={"step": pl.Int32})
    roofs = roofs_of(trace.devices, None, None)
    total = mfu_of(work, windows, trace.spans, trace.ops, trace.kernels, roofs, by="all").row(0, named=True)
    ratio, known, reason = total["mfu_ratio"], total["known_ratio"], total["reason"]
    if reason == NO_PRODUCTS or not total["window_ns"]:
        return {}, ()
    if ratio is not None and known is not None and known >= _LEAST_KNOWN:
        return {"mfu_ratio": ratio, "mfu_known_ratio": known}, ()
    if reason == NO_SHAPES and (advice := remedy("shapes", scope.about)):
        reason = f"{reason}; {advice}"
    if ratio is not None:
        reason = f"operations are known for only {percent(known)} of the time of matrix products"
    return {}, (Lack("mfu", f"MFU is unknown (show mfu): {reason}."),)


def host_while_idle(spans: pl.DataFrame, busy: Sequence[Intervals], scope: Scope) -> dict[str, int]:
    """What the host does in the scope while a device is idle, mean over devices: parts that add up to the idle time.

    `busy` says for each device when it works. Empty where nothing of the host was recorded. Units: ns.
    """
    host = host_parts(spans).items()
    each = [divided([("busy", one), *host], *scope.windows) for one in busy]
    parts = mean_of(each, each[0])
    lengths = {word: int(parts[part].sum()) for part, word in _ON_HOST.items()}
    return lengths if any(ns for word, ns in lengths.items() if word != "other") else {}


def use_of(trace: Trace, work: pl.DataFrame, scope: Scope) -> tuple[dict[str, float], Facts]:
    """How well kernels use the devices in the scope, means over devices, and the facts that rules of advice check.

    `work` is what `device_work` returns. Without kernels there are no means.
    """
    facts = with_program(Facts(about=scope.about), trace.spans, work, trace.devices)
    kernels = filtered(work, work["category"] == "kernel")
    if kernels.is_empty():
        return {}, facts
    window = pl.DataFrame({"ts_ns": [scope.low], "end_ns": [scope.high]})
    used = utilisation_of(work, trace.devices, trace.kernels, window)
    means = {name: used[name].mean() for name in _MEASURES}
    ratios = {name: mean for name, mean in means.items() if isinstance(mean, float)}
    return ratios, with_kernels(facts, trace.spans, used, kernels, trace.devices)


def advice_costs(facts: Facts, memory: pl.DataFrame | None, devices: pl.DataFrame, costs: Sequence[Cost]) -> list[Cost]:
    """The recommendations of rules as costs without a time; `costs` name those that cover them."""
    if memory is not None:
        facts = replace(facts, memory=memory_held(memory, devices))
    covered_by: Mapping[str, tuple[str, ...]] = {
        "device_underused": tuple(cost.kind for cost in costs if cost.kind.startswith(("idle", "memcpy"))),
        "tensor_cores_unused": tuple(
            cost.kind for cost in costs if any("tensor cores" in text for text in cost.details)
        ),
    }
    return [
        Cost(
            f"rule {rule.name}",
            recommendation.situation,
            None,
            (f"→ {recommendation.remedy}",),
            rule.command,
            covered_by.get(rule.name, ()),
        )
        for rule, recommendation in advice(facts)
    ]


def hardware_use(trace: Trace) -> tuple[Note, ...]:
    """Notes on how much of the hardware was used; none if it was not measured."""
    if trace.kernel_metrics.is_empty():
        return ()
    try:
        used = utilisation(trace.spans, trace.kernel_metrics, low=_LOW).row(0, named=True)
    except MissingTable:
        return ()
    facts = [f"{what} {percent(used[ratio])}" for ratio, what in MEASURED.items() if used[ratio] is not None]
    if (used["low_ratio"] or 0.0) >= _LEAST_LOW:
        facts.append(f"tensor cores and memory both under {percent(_LOW)}: {percent(used['low_ratio'])} of the time")
    return tuple(Note(fact, "hardware use", "show utilisation") for fact in facts)
