"""Causes on the accelerator: a low clock, or single kernels that became slower."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.diagnosis.case import (
    Judgement,
    Missing,
    Rule,
    Suspect,
    View,
    exposed_on_device,
    not_slower,
    share_slowed_by,
    typical_slowdown,
)
from stepscope.comparison.diagnosis.change import Change, evidence, fold, gpu_name, moved, span
from stepscope.comparison.model import NEIGHBOURS, ON_DEVICE, PROCESS, RuledOut
from stepscope.core import units
from stepscope.core.names import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Evidence, Observation


_CLOCKS = ("gpu_sm_frequency", "gpu_frequency", "gpu_sm_clock", "gpu_clock")
_MEMORY_CLOCKS = ("gpu_mem_frequency", "gpu_memory_frequency", "gpu_mem_clock")
#: Clocks of healthy runs differ by 5 % and times per call by as much.
_LOWER, _SLOWER = 0.95, 1.05
#: Slowdown that counts for a single kernel; other users of the machine may cause smaller ones.
_KERNEL_SLOWER = 1.1
#: Percent of the time in which processes that are not the job's must use its device: a monitor that looks at it now and
#: then uses less.
_USED = 10.0
#: Kernels that are slower than the clock's ratio to this power are slower for another reason, too.
_BEYOND_CLOCK = 1.5


def clock_of(view: View, device: str) -> Change:
    """Clock of an accelerator's multiprocessors during its work."""
    return view.resource(device, *_CLOCKS)


def gpu_frequency(view: View) -> Judgement:
    """The clock of the job's own accelerator is low while it works.

    Necessary: the clock fell by 5 % or more, and a typical kernel call became slower by 5 % and by at least the clock's
    ratio to the power of 0.3. Kernels bound by memory follow the clock less than those bound by arithmetic; but if no
    kernel follows it, it was low only while nothing ran (boost clocks vary by tens of per cent between idle and load).
    """
    name = "gpu_frequency"
    devices = [device for device in view.devices("gpu") if view.kernels(device).height]
    if not devices:
        return RuledOut(name, "no accelerator worked")
    clocks = {device: clock_of(view, device) for device in devices}
    known = {device: clock for device, clock in clocks.items() if clock.is_known}
    if not known:
        return Missing(name, "gpu_sm_frequency (clock of the accelerator)")
    device = min(known, key=lambda d: known[d].ratio or 1.0)
    clock = known[device]
    if not clock.fell(to=_LOWER):
        return RuledOut(name, f"clock of {gpu_name(device, 'The GPU')}: {span(clock.base, clock.other, clock.unit)}")
    kernels = view.kernels(device)
    slower = typical_slowdown(kernels)
    inverse = 1 / (clock.ratio or 1.0)
    if slower is None or slower < max(_SLOWER, inverse**0.3):
        text = "" if slower is None else f", but its kernels take {fold(slower)} as long"
        return RuledOut(name, f"clock of {gpu_name(device, 'The GPU')} {moved(clock)}{text}")
    if slower > inverse**_BEYOND_CLOCK and _neighbours_use(view).delta >= _USED:
        text = f"clock of {gpu_name(device, 'The GPU')} {moved(clock)}, but its kernels take {fold(slower)} as long"
        return RuledOut(name, f"{text} while other processes compute on it")
    share = share_slowed_by(kernels, slower)
    memory = view.resource(device, *_MEMORY_CLOCKS)
    shown = [
        evidence("clock of the multiprocessors", clock, role="necessary", device=device, metric=_CLOCKS[0]),
        evidence(
            f"kernels take {fold(slower)} as long per call, the clock is {fold(inverse)} slower",
            role="necessary",
            device=device,
        ),
    ]
    confidence = 0.7 + 0.15 * (share >= 0.6)
    end = ""
    if memory.is_known and memory.ratio is not None and abs(memory.ratio - 1) < 0.05:
        end = "; memory clock unchanged: locked or throttled clock"
        shown.append(evidence("memory clock", memory, device=device, metric=_MEMORY_CLOCKS[0]))
        confidence += 0.07
    elif memory.is_known:
        end = f"; memory clock {moved(memory)}"
        shown.append(evidence("memory clock", memory, device=device, metric=_MEMORY_CLOCKS[0]))
    if view.same_cycles and not view.is_slower:
        shown.append(evidence("the cycle does not take longer: other work hides the cost", view.step))
    more, hints = _around(view, device)
    confidence += 0.05 if hints else 0.0
    which = "every compute kernel on it" if share >= 0.6 else "a typical compute kernel on it"
    affected = float(kernels["delta_ns"].sum()) if view.same_cycles else (view.step.other or 0.0) * (1 - 1 / slower)
    return view.suspect(
        name,
        f"{gpu_name(device, 'The GPU')}'s SM clock {moved(clock)}; {which} slowed {fold(slower)}{end}.",
        affected,
        confidence,
        (*shown, *hints),
        resource="clock of the multiprocessors",
        device=device,
        magnitude=clock.ratio,
        explained_ns=exposed_on_device(view, affected),
        consequences=(*_slowest(kernels, device), *more),
        advice="nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE tells a locked clock (-rgc resets it) from"
        " throttling",
    )


def _slowest(kernels: pl.DataFrame, device: str) -> tuple[Evidence, ...]:
    top = kernels.filter(pl.col("is_real") & (pl.col("delta_ns") > 0)).sort("delta_ns", descending=True).head(5)
    return tuple(
        evidence(
            f"{shorten(row['name'])}: time per call",
            Change(row["ns_per_call_base"], row["ns_per_call_other"], True, "ns"),
            role="consequence",
            device=device,
            name=row["name"],
        )
        for row in top.iter_rows(named=True)
    )


def _around(view: View, device: str) -> tuple[list[Evidence], list[Evidence]]:
    """The consequences of a low clock, and hints at its reason."""
    follows: list[Evidence] = []
    hints: list[Evidence] = []
    use = view.resource(device, "gpu_usage", "gpu_sm_util")
    if use.rose(times=1.1):
        follows.append(
            evidence(
                "use of the accelerator: the same work takes longer",
                use,
                role="consequence",
                device=device,
                metric="gpu_usage",
            )
        )
    for metric, text in (("gpu_temp", "temperature"), ("gpu_power", "power"), ("gpu_power_limit", "power limit")):
        change = view.resource(device, metric)
        if change.is_known and change.is_real:
            hints.append(evidence(text, change, device=device, metric=metric))
    for key, change in view.resources.items():
        if key[0] == device and "throttle" in key[1] and change.rose():
            hints.append(evidence("reason for a lower clock", change, device=device, metric=key[1]))
    return follows, hints


def gpu_contention(view: View) -> Judgement:
    """Processes that are not the job's compute on its accelerator.

    Necessary: they use it for 10 % of the time more than in the base; and a typical kernel call takes 10 % longer, and
    more than the clock's ratio to the power of 1.5, because a driver lets processes compute in turns, each for a few
    milliseconds. Without a profile: cycles take longer.
    """
    name = "gpu_contention"
    if not view.devices("gpu"):
        return RuledOut(name, "no accelerator worked")
    use = _neighbours_use(view)
    if not use.is_known:
        return Missing(name, f"{ON_DEVICE} (who uses the accelerator; stepscope record outside of a container)")
    texts = f"other processes use the accelerator for {units.percent((use.other or 0.0) / 100)} of the time"
    if use.delta < _USED:
        return RuledOut(name, texts)
    devices = [device for device in view.devices("gpu") if view.kernels(device).height]
    slowed = {device: typical_slowdown(view.kernels(device)) or 1.0 for device in devices}
    device = max(slowed, key=slowed.__getitem__, default=None)
    shown = [evidence("use of the accelerator by other processes", use, role="necessary", metric=ON_DEVICE)]
    if device is None:
        if not view.is_slower and not view.is_of_time:
            return not_slower(name, view)
        affected, times, how = view.delta_ns, None, ""
        follows: tuple[Evidence, ...] = ()
    else:
        times = slowed[device]
        low = clock_of(view, device)
        clock = 1 / min(low.ratio or 1.0, 1.0)
        if times < max(_KERNEL_SLOWER, clock**_BEYOND_CLOCK):
            return RuledOut(name, f"{texts}, but its kernels take {fold(times)} as long")
        kernels = view.kernels(device)
        whole = float(kernels["delta_ns"].sum()) if view.same_cycles else (view.step.other or 0.0) * (1 - 1 / times)
        affected = whole * (times - clock) / (times - 1)
        how = f"; a typical kernel of the job takes {fold(times)} as long"
        shown.append(evidence(f"kernels take {fold(times)} as long per call", role="necessary", device=device))
        follows = _slowest(kernels, device)
        if low.fell(to=_LOWER):
            follows = (evidence("clock of the multiprocessors", low, role="consequence", device=device), *follows)
    for where in (device,) if device is not None else view.devices("gpu"):
        memory = view.resource(where, "gpu_mem_used")
        if memory.is_known and memory.rose():
            shown.append(evidence("memory of the device in use", memory, device=where, metric="gpu_mem_used"))
    share = units.percent((use.other or 0.0) / 100)
    return view.suspect(
        name,
        f"Other processes compute on {gpu_name(device, 'the GPU') if device else 'the GPU'} for {share} of the time"
        f" (was {units.percent((use.base or 0.0) / 100)}){how}.",
        affected,
        0.9 if device is not None else 0.7,
        shown,
        resource="accelerator",
        device=device,
        magnitude=times,
        explained_ns=exposed_on_device(view, affected),
        consequences=follows,
        advice="see who else uses it (nvidia-smi pmon -s um) and move one of them; nvidia-smi -c EXCLUSIVE_PROCESS"
        " keeps others off, MIG gives each a part",
    )


def _neighbours_use(view: View) -> Change:
    """For how much of the time processes that are not the job's use accelerators. Units: percent."""
    base, other = (_mean_use(runs) for runs in (view.pair.base, view.pair.other))
    return Change(base, other, is_real=base is not None and other is not None, unit="%")


def _mean_use(runs: Sequence[Observation]) -> float | None:
    """The mean over repeats; None if it is not known of one of them even for the job itself."""
    means = []
    for run in runs:
        rows = run.run_resources if run.run_resources.height else run.resources.filter(pl.col("name").is_null())
        rows = rows.filter(pl.col("metric").cast(pl.String) == ON_DEVICE)
        own, theirs = (rows.filter(pl.col("device").cast(pl.String) == who) for who in (PROCESS, NEIGHBOURS))
        if own.is_empty():
            return None
        means.append(float(theirs["mu"].sum()) / own.height)
    return sum(means) / len(means) if means else None


def slow_kernel(view: View) -> Judgement:
    """One kernel, or few, became slower at equal clock while the others did not.

    Necessary: kernels whose calls take 10 % longer and that together cost 3 % of a cycle, or 10 % of the device's time,
    while a typical other kernel is slower by at most the root of their ratio.
    """
    name = "slow_kernel"
    devices = [device for device in view.devices("gpu") if view.kernels(device).height]
    if not devices:
        return RuledOut(name, "no accelerator worked")
    judgements = [_slow_on(view, device) for device in devices]
    suspects = [s for s in judgements if isinstance(s, Suspect)]
    return max(suspects, key=lambda s: s.affected_ns) if suspects else judgements[0]


def _slow_on(view: View, device: str) -> Judgement:
    name = "slow_kernel"
    if not view.same_cycles:
        return not_slower(name, view)
    kernels = view.kernels(device)
    ratio = pl.col("ns_per_call_other") / pl.col("ns_per_call_base")
    is_slower = pl.col("is_real") & pl.col("ns_per_call_real") & (ratio >= _KERNEL_SLOWER) & (pl.col("delta_ns") > 0)
    slow = kernels.filter(is_slower).sort("delta_ns", descending=True)
    whole = float(kernels["own_ns_base"].sum())
    affected = float(slow["delta_ns"].sum())
    if slow.is_empty() or affected < min(view.least_ns, 0.1 * whole):
        if typical_slowdown(kernels) is None:
            none = RuledOut(name, f"the runs have no kernel on {device} in common", is_judged=False)
        else:
            none = RuledOut(name, f"no kernel on {device} takes longer per call")
        return _replaced_on(view, device) or none
    rest = typical_slowdown(kernels.filter(~is_slower.fill_null(value=False)))
    theirs = typical_slowdown(slow) or 1.0
    share = float(slow["own_ns_base"].sum()) / whole if whole else 0.0
    if rest is not None and rest > math.sqrt(theirs):
        return RuledOut(name, f"all kernels on {device} are slower alike")
    if share > 0.6:
        return RuledOut(name, f"most kernels on {device} are slower: no single one")
    clock = clock_of(view, device)
    if clock.fell(to=_LOWER):
        return RuledOut(name, f"the clock of {device} {moved(clock)}")
    first = slow.row(0, named=True)
    times = first["ns_per_call_other"] / first["ns_per_call_base"]
    says = f"{shorten(first['name'])} takes {fold(times)} as long per call"
    says += f" ({span(first['ns_per_call_base'], first['ns_per_call_other'], 'ns')})"
    n_more = slow.height - 1
    says += f" and so do{'es' * (n_more == 1)} {units.counted(n_more, 'other')}" if n_more else ""
    return view.suspect(
        name,
        f"{says}; a typical other kernel on {gpu_name(device, 'The GPU')} does not"
        + (f" ({fold(rest)})" if rest is not None else "")
        + ".",
        affected,
        0.6 + 0.2 * clock.is_known,
        _slowest(slow, device),
        resource=first["name"],
        device=device,
        magnitude=theirs,
        explained_ns=exposed_on_device(view, affected),
        advice="compare the kernels' launches and counters: show kernels; profile it with ncu",
    )


def _replaced_on(view: View, device: str) -> Suspect | None:
    """New kernels that replace others for the same operators and take 3 % of a cycle longer."""
    same = view.share_of_same_work
    if same is None or same <= 0.5 or not view.is_slower:
        return None
    kernels = view.kernels(device)
    new = kernels.filter((pl.col("calls_base") == 0) & pl.col("is_real")).sort("own_ns_other", descending=True)
    gone = kernels.filter(pl.col("calls_other") == 0).sort("own_ns_base", descending=True)
    affected = float(new["own_ns_other"].sum()) - float(gone["own_ns_base"].sum())
    if new.is_empty() or gone.is_empty() or affected < view.least_ns:
        return None
    after, before = new.row(0, named=True), gone.row(0, named=True)
    shown = [
        evidence(
            f"{shorten(row['name'])}: own time per cycle",
            Change(row["own_ns_base"], row["own_ns_other"], True, "ns"),
            role="necessary",
            device=device,
            name=row["name"],
        )
        for row in (before, after)
    ]
    return view.suspect(
        "slow_kernel",
        f"The same operators run other kernels on {gpu_name(device, 'The GPU')}: {shorten(after['name'])} and"
        f" {new.height - 1} more in place of {shorten(before['name'])} and {gone.height - 1} more,"
        f" {units.duration(affected)} longer per cycle.",
        affected,
        0.7,
        shown,
        resource=after["name"],
        device=device,
        explained_ns=exposed_on_device(view, affected),
        advice="compare library versions, element types and the tuning of both runs",
    )


RULES = (
    Rule("gpu_frequency", gpu_frequency),
    Rule("gpu_contention", gpu_contention),
    Rule("slow_kernel", slow_kernel),
)
