"""What to change in a program, by rules: those of the TensorBoard profiler plugin, and ours.

Each rule has a measure, the threshold from which it matters, and a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import device_work, label_devices
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.common.windows import windows_of
from stepscope.analyses.resources.memory import device_memory
from stepscope.analyses.steps.device_utilisation import utilisation_of
from stepscope.analyses.steps.idle import LAUNCHING, caused_gaps
from stepscope.analyses.steps.step_breakdown import broken_down, divided
from stepscope.core.collectives import HOST_LIBRARIES, is_communication, library_of
from stepscope.core.intervals import Intervals, covered, union
from stepscope.core.names import is_tensor_core_eligible, map_names
from stepscope.core.patterns import regex
from stepscope.core.remedies import Recording, recording_of, remedy
from stepscope.core.schema import ALLOCATIONS, DEVICES, KERNELS, STEPS, TRACKS, TRANSFERS
from stepscope.core.table import Column, Table, is_any_of
from stepscope.core.units import percent

TENSORBOARD, STEPSCOPE = "tensorboard", "stepscope"
_NCCL = regex("nccl|rccl", re.IGNORECASE)
_PARALLEL, _DISTRIBUTED = "DataParallel.forward", "DistributedDataParallel.forward"


class Facts(msgspec.Struct, frozen=True):
    """What the rules look at. Ratios are 0..1 of the steps' time unless said otherwise; None is unknown.

    A rule says nothing where one of its facts is unknown.
    """

    about: Recording = msgspec.field(default_factory=Recording)  # what a remedy may name
    loading: float | None = None  # a data loader fetches while the device does nothing
    communication: float | None = None  # communication that nothing hides
    busy: Mapping[str, float] = msgspec.field(default_factory=dict)  # of each device, by its name: some kernel runs
    n_data_parallel: int = 0  # devices that one process drives by torch.nn.DataParallel
    backend: str = ""  # by which DistributedDataParallel communicates on devices that NCCL could serve, if not by NCCL
    on_units: float | None = None  # kernel time on matrix units, of all kernel time
    eligible: float | None = None  # kernel time in operators that could use them, of all kernel time
    capability: int | None = None  # first number of the compute capability of NVIDIA devices
    # Of each device, by its name: held by tensors at the peak.
    memory: Mapping[str, float] = msgspec.field(default_factory=dict)
    short: float | None = None  # launch calls that take longer than the work they queue, of all of them
    late: float | None = None  # the device is idle as the host comes late
    sync: float | None = None  # the device is idle as the host had been waiting for it
    pageable: float | None = None  # copies from or to pageable memory while no kernel runs


class Advice(msgspec.Struct, frozen=True):
    """What a rule says: its measure, the threshold that it exceeds, the situation, and what to try.

    Rules about a feature that is used or not have neither measure nor threshold.
    """

    value: float | None
    threshold: float | None
    situation: str
    remedy: str


class Rule(msgspec.Struct, frozen=True):
    """A rule: its name, its origin, the command (after `stepscope`) that shows more, and its judgement."""

    name: str
    origin: str
    command: str
    judge: Callable[[Facts], Advice | None]


def advice(facts: Facts) -> Iterator[tuple[Rule, Advice]]:
    """The advice of each rule that has any, in order of the rules."""
    for rule in RULES:
        verdict = rule.judge(facts)
        if verdict is not None:
            yield rule, verdict


def _above(value: float | None, threshold: float, situation: str, remedy: str) -> Advice | None:
    """The advice if the value is known and above the threshold; {} in the situation is the value."""
    if value is None or value <= threshold:
        return None
    return Advice(value, threshold, situation.format(percent(value)), remedy)


def _data_loading(facts: Facts) -> Advice | None:
    text = remedy("data_loading", facts.about)
    return _above(facts.loading, 0.05, "Data loading holds up {} of the step", text)


def _data_parallel(facts: Facts) -> Advice | None:
    if facts.n_data_parallel < 2:
        return None
    situation = f"One process drives {facts.n_data_parallel} devices by DataParallel"
    return Advice(None, None, situation, "DistributedDataParallel, with a process for each, is faster")


def _slow_backend(facts: Facts) -> Advice | None:
    if not facts.backend:
        return None
    return Advice(
        None, None, f"Gradients travel by {facts.backend}", "the nccl backend is faster between these devices"
    )


def _communication(facts: Facts) -> Advice | None:
    text = "overlap it, send less (compressed gradients), or less often (gradient accumulation, a larger batch)"
    return _above(facts.communication, 0.1, "Communication that nothing hides takes {} of the step", text)


def _device_underused(facts: Facts) -> Advice | None:
    low = {device: ratio for device, ratio in facts.busy.items() if ratio < 0.5}
    if not low:
        return None
    ratios = ", ".join(f"{device} {percent(ratio)}" for device, ratio in low.items())
    return Advice(min(low.values()), 0.5, f"Kernels run for little of the time ({ratios})", "try a larger batch")


def _tensor_cores_unused(facts: Facts) -> Advice | None:
    if facts.on_units is None or facts.on_units > 0 or facts.capability is None or facts.capability < 7:
        return None
    text = remedy("float32" if facts.capability >= 8 else "float32_old", facts.about)
    situation = "Tensor cores are not used, but {} of kernel time is in operators that could use them"
    return _above(facts.eligible, 0.05, situation, text)


def _memory_full(facts: Facts) -> Advice | None:
    full = {device: ratio for device, ratio in facts.memory.items() if ratio > 0.9}
    if not full:
        return None
    device = max(full, key=lambda name: full[name])
    situation = f"Tensors hold up to {percent(full[device])} of the memory of {device}"
    return Advice(full[device], 0.9, situation, remedy("memory_full", facts.about))


def _launch_bound(facts: Facts) -> Advice | None:
    if facts.short is None or facts.short <= 0.5:
        return None
    situation = (
        f"{percent(facts.short)} of launches take longer than the work they queue, and the device waits {{}} of the "
        "time for them"
    )
    return _above(facts.late, 0.1, situation, remedy("launching", facts.about))


def _pageable_copies(facts: Facts) -> Advice | None:
    situation = "Copies from or to pageable memory take {} of the time while no kernel runs"
    return _above(facts.pageable, 0.01, situation, remedy("pageable", facts.about))


def _sync_waits(facts: Facts) -> Advice | None:
    situation = "The device runs dry for {} of the time because the host waits for it before it launches more"
    return _above(facts.sync, 0.05, situation, remedy("sync", facts.about))


#: The rules of the TensorBoard profiler plugin in its order, then those that it does not have.
RULES = (
    Rule("data_loading", TENSORBOARD, "show step-breakdown", _data_loading),
    Rule("data_parallel", TENSORBOARD, "show operators", _data_parallel),
    Rule("slow_backend", TENSORBOARD, "show user-ranges", _slow_backend),
    Rule("communication", TENSORBOARD, "show step-breakdown", _communication),
    Rule("device_underused", TENSORBOARD, "show idle", _device_underused),
    Rule("tensor_cores_unused", TENSORBOARD, "show operators", _tensor_cores_unused),
    Rule("memory_full", TENSORBOARD, "show memory --by operator", _memory_full),
    Rule("launch_bound", STEPSCOPE, "show launches", _launch_bound),
    Rule("pageable_copies", STEPSCOPE, "show transfers --by memory", _pageable_copies),
    Rule("sync_waits", STEPSCOPE, "show idle --by gap", _sync_waits),
)


RECOMMENDATIONS = Table(
    "recommendations",
    "what to change, by rules",
    (
        Column("rule", pl.Enum([rule.name for rule in RULES]), "which rule speaks", key=True),
        Column("origin", pl.Enum([TENSORBOARD, STEPSCOPE]), "whose rule it is: the TensorBoard plugin's, or ours"),
        Column(
            "value_ratio",
            pl.Float64(),
            "what the rule measures; null where it looks for something being there",
            "ratio",
        ),
        Column(
            "threshold_ratio",
            pl.Float64(),
            "beyond which it speaks: below it for device_underused, else above",
            "ratio",
        ),
        Column("text", pl.String(), "what was found, and what to try"),
        Column("command", pl.String(), "looks further, as words after stepscope"),
    ),
)


def recommendations(
    spans: pl.DataFrame,
    tracks: pl.DataFrame = TRACKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    kernels: pl.DataFrame = KERNELS.empty(),
    transfers: pl.DataFrame = TRANSFERS.empty(),
    allocations: pl.DataFrame = ALLOCATIONS.empty(),
) -> pl.DataFrame:
    """One row per rule that applies, those of the plugin first; no rows if none does.

    What the rules measure:

    - `data_loading`, `communication`: these parts of `step-breakdown`, as part of all steps
    - `data_parallel`: DataParallel on more than one device; `slow_backend`: DistributedDataParallel that does not
      communicate by NCCL or RCCL, although its devices could
    - `device_underused`: part of the steps' time in which kernels run on the least busy device
    - `tensor_cores_unused`: part of kernel time in eligible operators, as in `operators`, where no kernel uses them
    - `memory_full`: memory held by tensors at the peak, of the memory of the device
    - `launch_bound`: part of the steps' time in which the device is idle since the host came late, doing its usual
      work (`operator`, `runtime`, `python`, `unrecorded` in `idle`), where more than half of the launch calls take
      longer than the work they queue
    - `pageable_copies`: part of the steps' time in copies from or to pageable memory while no kernel runs
    - `sync_waits`: part of the steps' time in which the device is idle since the host waited for it (`sync` in `idle`)

    Units: ratios 0..1.
    Source: the recommendations of the TensorBoard profiler plugin, with its thresholds, which reports unused tensor
    cores at any share; the measures are our own, as steps and communication are determined differently.
    Raises MissingTable (neither host nor device work).
    """
    work = device_work(spans, tracks, needed_by=None)
    windows = windows_of(spans, tracks, steps, work).select("ts_ns", "end_ns")
    inside = windows["ts_ns"].to_numpy(), windows["end_ns"].to_numpy()
    whole = max(int((inside[1] - inside[0]).sum()), 1)
    parts = broken_down(spans, work, *inside, needed_by="recommendations")
    facts = Facts(
        about=recording_of(None, spans, devices),
        loading=int(parts["dataloader"].sum()) / whole,
        communication=int(parts["communication"].sum()) / whole,
        memory={} if allocations.is_empty() else memory_held(device_memory(allocations, steps), devices),
    )
    facts = with_program(facts, spans, work, devices)
    launched = work.filter(work["category"] == "kernel")
    if not launched.is_empty():
        used = utilisation_of(work, devices, kernels, windows.select(pl.col("ts_ns").first(), pl.col("end_ns").last()))
        facts = with_kernels(facts, spans, used, launched, devices)
    if not work.is_empty():
        facts = _with_waits(facts, spans, tracks, work, inside, whole)
        facts = replace(facts, pageable=_pageable_ns(work, transfers, inside) / whole)
    rows = [
        (
            rule.name,
            rule.origin,
            verdict.value,
            verdict.threshold,
            f"{verdict.situation}: {verdict.remedy}",
            rule.command,
        )
        for rule, verdict in advice(facts)
    ]
    return pl.DataFrame(rows, schema=dict(RECOMMENDATIONS.dtypes), orient="row")


def with_program(facts: Facts, spans: pl.DataFrame, work: pl.DataFrame, devices: pl.DataFrame) -> Facts:
    """The facts with those that names tell: how the program uses several devices. `work`: as of `device_work`."""
    host = spans["name"].filter(is_any_of(spans["category"], ("operator", "user_range"))).unique().cast(pl.String)
    if not host.is_in((_PARALLEL, _DISTRIBUTED)).any():
        return facts
    n_parallel = work["device_id"].n_unique() if _PARALLEL in host and not work.is_empty() else 0
    backend = ""
    if _DISTRIBUTED in host and devices["type"].is_in(("cuda", "rocm")).any():
        talking = [*host, *work["name"].unique().cast(pl.String)] if "name" in work.columns else host.to_list()
        talking = [name for name in talking if is_communication(name)]
        if not any(_NCCL.search(name) for name in talking):
            libraries = map(library_of, talking)
            backend = next((library for library in libraries if library in HOST_LIBRARIES), "")
    return replace(facts, n_data_parallel=n_parallel, backend=backend)


def memory_held(peaks: pl.DataFrame, devices: pl.DataFrame) -> dict[str, float]:
    """By accelerator what tensors held at the peak, of its memory, where both are known, from `device_memory`."""
    described = devices[["device_id", "type", "memory_bytes"]].iter_rows()
    sizes = {device_id: n_bytes for device_id, kind, n_bytes in described if kind != "cpu" and (n_bytes or 0) > 0}
    labelled = label_devices(peaks, devices)[["device_id", "device", "peak_allocated_bytes"]].iter_rows()
    return {
        device: n_bytes / sizes[device_id]
        for device_id, device, n_bytes in labelled
        if device_id in sizes and device is not None and n_bytes is not None
    }


def with_kernels(
    facts: Facts, spans: pl.DataFrame, used: pl.DataFrame, kernels: pl.DataFrame, devices: pl.DataFrame
) -> Facts:
    """The facts with those of kernels, rows of `device_work`; `used` is what `utilisation_of` says of one window."""
    labelled = label_devices(used, devices).with_columns(pl.coalesce("device", pl.lit("the device")))
    busy = dict(labelled.select("device", "busy_ratio").drop_nulls().iter_rows())
    capability = devices["compute_capability"].filter(devices["type"] == "cuda").drop_nulls().str.extract(r"^(\d+)\.")
    lowest = capability.cast(pl.Int32).min()
    on_units = used["tensor_core_ratio"].max()
    eligible = map_names(of_spans(spans, kernels["op_id"], "name"), is_tensor_core_eligible, pl.Boolean())
    ns, whole = int(kernels["dur_ns"].filter(eligible.fill_null(value=False)).sum()), int(kernels["dur_ns"].sum())
    return replace(
        facts,
        busy=busy,
        on_units=on_units if isinstance(on_units, float) else None,
        capability=lowest if isinstance(lowest, int) else None,
        eligible=ns / whole if whole else None,
    )


def _with_waits(
    facts: Facts, spans: pl.DataFrame, tracks: pl.DataFrame, work: pl.DataFrame, inside: Intervals, whole: int
) -> Facts:
    """The facts with those of launches and of idle time, of which `whole` is the length of the windows `inside`."""
    gaps = caused_gaps(work, spans, tracks, ("rank",)).select(
        "ts_ns", "cause", end_ns=pl.col("ts_ns") + pl.col("dur_ns")
    )

    def share(*causes: str) -> float:
        mine = gaps.filter(pl.col("cause").is_in(causes)).sort("ts_ns")
        return int(covered((mine["ts_ns"].to_numpy(), mine["end_ns"].to_numpy()), *inside).sum()) / whole

    calls = work.drop_nulls("launch_id").group_by("launch_id").agg(pl.col("dur_ns").sum())
    short = calls["dur_ns"] < of_spans(spans, calls["launch_id"], "dur_ns")
    n_short = int(short.sum())
    return replace(
        facts, late=share(*LAUNCHING), sync=share("sync"), short=n_short / short.len() if short.len() else None
    )


def _pageable_ns(work: pl.DataFrame, transfers: pl.DataFrame, inside: Intervals) -> int:
    """How long copies from or to pageable memory run within the windows while no kernel does. Units: ns."""
    pageable = transfers.filter(pl.any_horizontal(pl.col("src", "dst").cast(pl.String) == "Pageable"))
    copies = work.filter((pl.col("category") == "memcpy") & pl.col("span_id").is_in(pageable["span_id"].implode()))
    kernels = work.filter(pl.col("category") == "kernel")
    levels = [
        (name, union(w["ts_ns"].to_numpy(), w["end_ns"].to_numpy()))
        for name, w in (("kernel", kernels), ("copy", copies))
    ]
    return int(divided(levels, *inside)["copy"].sum())


ANALYSIS = analysis_of(
    recommendations, RECOMMENDATIONS, "What to change, by the rules of the TensorBoard profiler plugin and by ours."
)
