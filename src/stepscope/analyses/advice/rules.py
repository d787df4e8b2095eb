"""Rules of advice: what is measured, from where on it matters, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from stepscope.core.units import percent

TENSORBOARD, STEPSCOPE = "tensorboard", "stepscope"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules look at. Ratios are 0..1 of the steps' time unless said otherwise; None is unknown.

    A rule says nothing where one of its facts is unknown.
    """

    loading: float | None = None  # a data loader fetches while the device does nothing
    communication: float | None = None  # communication that nothing hides
    busy: Mapping[str, float] = field(default_factory=dict)  # of each device, by its name: some kernel runs
    n_data_parallel: int = 0  # devices that one process drives by torch.nn.DataParallel
    backend: str = ""  # by which DistributedDataParallel communicates on devices that NCCL could serve, if not by NCCL
    on_units: float | None = None  # kernel time on matrix units, of all kernel time
    eligible: float | None = None  # kernel time in operators that could use them, of all kernel time
    capability: int | None = None  # first number of the compute capability of NVIDIA devices
    memory: Mapping[str, float] = field(
        default_factory=dict
    )  # of each device, by its name: held by tensors at the peak
    short: float | None = None  # launch calls that take longer than the work they queue, of all of them
    late: float | None = None  # the device is idle as the host comes late
    sync: float | None = None  # the device is idle as the host had been waiting for it
    pageable: float | None = None  # copies from or to pageable memory while no kernel runs


@dataclass(frozen=True, slots=True)
class Advice:
    """What a rule says: its measure, the threshold that it is beyond, what was found, and what to try.

    Rules that look for something being there have neither measure nor threshold.
    """

    value: float | None
    threshold: float | None
    found: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, who made it, the command (after `stepscope`) that looks further, and its judgement."""

    name: str
    origin: str
    command: str
    judge: Callable[[Facts], Advice | None]


def advice(facts: Facts) -> Iterator[tuple[Rule, Advice]]:
    """What the rules have to say, in their order."""
    for rule in RULES:
        found = rule.judge(facts)
        if found is not None:
            yield rule, found


def _above(value: float | None, threshold: float, found: str, remedy: str) -> Advice | None:
    """The advice if the value is known and above the threshold; {} in what was found is the value."""
    if value is None or value <= threshold:
        return None
    return Advice(value, threshold, found.format(percent(value)), remedy)


def _data_loading(facts: Facts) -> Advice | None:
    remedy = (
        "let more workers prepare batches (DataLoader num_workers, prefetch_factor, pin_memory), or make that cheaper"
    )
    return _above(facts.loading, 0.05, "Data loading holds up {} of the step", remedy)


def _data_parallel(facts: Facts) -> Advice | None:
    if facts.n_data_parallel < 2:
        return None
    found = f"One process drives {facts.n_data_parallel} devices by DataParallel"
    return Advice(None, None, found, "DistributedDataParallel, with a process for each, is faster")


def _slow_backend(facts: Facts) -> Advice | None:
    if not facts.backend:
        return None
    return Advice(
        None, None, f"Gradients travel by {facts.backend}", "the nccl backend is faster between these devices"
    )


def _communication(facts: Facts) -> Advice | None:
    remedy = "overlap it, send less (compressed gradients), or less often (gradient accumulation, a larger batch)"
    return _above(facts.communication, 0.1, "Communication that nothing hides takes {} of the step", remedy)


def _device_underused(facts: Facts) -> Advice | None:
    low = {device: ratio for device, ratio in facts.busy.items() if ratio < 0.5}
    if not low:
        return None
    told = ", ".join(f"{device} {percent(ratio)}" for device, ratio in low.items())
    return Advice(min(low.values()), 0.5, f"Kernels run for little of the time ({told})", "try a larger batch")


def _tensor_cores_unused(facts: Facts) -> Advice | None:
    if facts.on_units is None or facts.on_units > 0 or facts.capability is None or facts.capability < 7:
        return None
    remedy = "autocast to bfloat16, or allow TF32" if facts.capability >= 8 else "autocast to float16"
    found = "Tensor cores are not used, but {} of kernel time is in operators that could use them"
    return _above(facts.eligible, 0.05, found, remedy)


def _memory_full(facts: Facts) -> Advice | None:
    full = {device: ratio for device, ratio in facts.memory.items() if ratio > 0.9}
    if not full:
        return None
    device = max(full, key=lambda name: full[name])
    found = f"Tensors hold up to {percent(full[device])} of the memory of {device}"
    return Advice(full[device], 0.9, found, "activation checkpointing, autocast or a smaller batch make room")


def _launch_bound(facts: Facts) -> Advice | None:
    if facts.short is None or facts.short <= 0.5:
        return None
    found = (
        f"{percent(facts.short)} of launches take longer than the work they queue, and the device waits {{}} of the "
        "time for them"
    )
    return _above(facts.late, 0.1, found, "torch.compile, captured graphs, fused or foreach operators, a larger batch")


def _pageable_copies(facts: Facts) -> Advice | None:
    found = "Copies from or to pageable memory take {} of the time while no kernel runs"
    return _above(facts.pageable, 0.01, found, "pin_memory=True and non_blocking=True would hide them")


def _sync_waits(facts: Facts) -> Advice | None:
    found = "The device runs dry for {} of the time because the host waits for it before it launches more"
    remedy = "read values (.item(), .cpu(), print) rarely and late, drop explicit synchronize()"
    return _above(facts.sync, 0.05, found, remedy)


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
