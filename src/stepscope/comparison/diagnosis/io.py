"""Causes in reading and writing: the data loader, files and disks."""

from __future__ import annotations

import polars as pl
from msgspec.structs import replace

from stepscope.comparison.diagnosis.case import Judgement, Missing, Rule, Suspect, View, not_grown
from stepscope.comparison.diagnosis.change import ABSENT, Change, evidence, moved, span
from stepscope.comparison.diagnosis.cores import ran, ran_in_all, waited, with_workers
from stepscope.comparison.diagnosis.queueing import is_shared_out_badly
from stepscope.comparison.diagnosis.sampled import (
    fetching,
    grown,
    is_sampled,
    making_batches,
    taking,
    time_in,
    unexplained,
    waiting,
    without_wait,
)
from stepscope.comparison.function_lines import HARDLY_THERE
from stepscope.comparison.model import LOADING, PROCESS, Evidence, RuledOut
from stepscope.core import units
from stepscope.core.table import filtered

_OWN_RATES = ("process_write_bytes_rate", "process_read_bytes_rate")
_DISK_RATES = ("disk_write_bytes_rate", "disk_read_bytes_rate")
#: Time per byte through the page cache or to a disk, in ns: 1 GB/s at most, partly processor time in the kernel.
_COPY_NS = 1.0
#: Time per byte of slow storage whose waits Linux may not count, such as a network's: 10 MB/s.
_SLOWEST_NS = 100.0
#: Linux' own count of the time in which some task waited for a disk (pressure stall information).
_STALLED = ("host_pressure_io_some",)
#: What writing costs in all, in times that are accounted for: 1.4 with 4 MiB and fsync on a virtual disk.
_UNCOUNTED = 1.5
#: After a wait another process may finish its time slice first: 3 ms at most with Linux' default scheduler.
_SLICE_NS = 3e6
#: The part of a function's added time that must be outside of operators, or for a disk, if it waits there.
_MOSTLY = 0.5
#: The main thread sleeps if the process runs and waits for cores for no more than this part of its added time.
_STILL = 0.25
#: Bytes per cycle below which reading and writing do not count: one page.
_PAGE = 4096.0


def blocked(view: View) -> Change:
    """Time per cycle in which no thread of the process ran or was ready: it slept, or waited for a file or a peer.

    Unknown without the process' time on cores. Several threads that run at once may hide some of it.
    """
    own, wait = ran(view), waited(view)
    step = view.run_step
    if not own.is_known or not step.is_known:
        return ABSENT
    ends = []
    for whole, used, queued in ((step.base, own.base, wait.base), (step.other, own.other, wait.other)):
        ends.append(max((whole or 0.0) - (used or 0.0) - (queued or 0.0), 0.0))
    return Change(ends[0], ends[1], own.is_real or step.is_real, "ns")


def blocked_evidence(change: Change) -> Evidence:
    """The time that `blocked` returns, as evidence."""
    text = "time in which the process neither ran nor was ready, per cycle"
    return evidence(text, change, device=PROCESS, unit="ns")


def written(view: View) -> tuple[str, str, Change] | None:
    """The rate of reading or writing that rose most, at least twofold and by a page a cycle: device, metric, change.

    It is the process' own, or that of a disk if those are unknown.
    """
    rates = [(PROCESS, metric) for metric in _OWN_RATES if view.resource(PROCESS, metric).is_known]
    if not rates:
        rates = [key for key in view.resources if key[1] in _DISK_RATES]
    rising = []
    for device, metric in rates:
        change, amount = view.resource(device, metric), view.per_cycle(device, metric)
        if change.rose(times=2) and amount.delta > _PAGE:
            rising.append((device, metric, change))
    return max(rising, key=lambda row: row[2].delta, default=None)


def waiting_for_disk(view: View) -> float:
    """How much longer per profiled cycle the process waits outside operators while it reads or writes more (ns).

    At most half as much again as is accounted for: by time in which it was blocked, or by its bytes and the kernel's
    own count of time in which a task waited for a disk. Times between a file system's calls to its disk are the rest.
    """
    disk = written(view)
    if disk is None or not view.same_cycles:
        return 0.0
    device, metric, _ = disk
    gaps, off, amount = view.gaps(), blocked(view), view.per_cycle(device, metric)
    calls = filtered(view.work, view.work["category"] == "io")
    lost = max(gaps.delta if gaps.rose() else 0.0, float(calls["delta_ns"].sum()) if calls.height else 0.0)
    lost *= view.stretch  # a profiler makes operators longer, and not what is between them
    lost = max(lost, _in_one_function(view))
    if not view.is_profiled and (new := _in_new_function(view, disk)):
        lost = min(lost, new)  # without a profile all time is between operators, and samples say more
    stalled = view.per_cycle("host", *_STALLED)
    if not lost and view.is_slower and stalled.rose():
        lost = view.delta_ns  # a few profiled cycles do not prove what the whole run does
    if not lost and view.pair.answers_requests and stalled.rose():
        lost = stalled.delta  # what comes after a call of the model is part of no step that is compared
    if off.is_known:
        for_disk = amount.delta * _COPY_NS + (stalled.delta if stalled.rose() else 0.0)
        asleep = off.delta + _queued_after_waits(view)
        if stalled.is_known and not stalled.rose():
            asleep = min(asleep, amount.delta * _SLOWEST_NS)
        known = max(asleep, for_disk) * view.stretch
        return min(lost, _UNCOUNTED * known) if known >= lost / 3 or stalled.rose() else 0.0
    return lost if view.per_cycle(PROCESS, "process_voluntary_ctx_switches").rose(by=1.0, times=2) else 0.0


def _in_one_function(view: View) -> float:
    """How much longer per cycle the main thread is in the function that grew most, by samples of its stack. Units: ns.

    If the process writes more, that is the function which writes.
    """
    rows = _function_that_waits(view)
    return float(rows["high"][0] - rows["low"][0]) * view.stretch if rows.height else 0.0


def _in_new_function(view: View, disk: tuple[str, str, Change]) -> float:
    """How much longer per cycle the main thread is in the largest of the functions that the base hardly has. Units: ns.

    Where the base hardly reads or writes, as `written` says, that function does: 0 if it does, or if there is none.
    """
    if (view.per_cycle(*disk[:2]).base or 0.0) >= _PAGE:
        return 0.0
    rows = grown(view).filter(~waiting() & (pl.col("high") >= HARDLY_THERE * pl.col("low")))
    return float(rows["delta"][0]) * view.stretch if rows.height else 0.0


def _function_that_waits(view: View) -> pl.DataFrame:
    """The function that grew most, with the columns of `grown`; no row if none grew."""
    return grown(view).filter(~waiting()).head(1)


def at_disk(view: View) -> pl.DataFrame:
    """The function that grew most, if waiting for a disk is half of what it takes longer or more; else no row."""
    rows = _function_that_waits(view)
    return rows if waiting_for_disk(view) >= _MOSTLY * _in_one_function(view) > 0 else rows.clear()


def _queued_after_waits(view: View) -> float:
    """Added time per cycle in which the process queued for a core after a wait. Units: ns.

    A process that computes keeps its core. One that waits for a disk must get it back each time, for example from the
    kernel's own writing threads.
    """
    gave_up = view.per_cycle(PROCESS, "process_voluntary_ctx_switches")
    queued = waited(view)
    if not gave_up.rose(by=1.0, times=2) or not queued.is_known:
        return 0.0
    return max(min(queued.delta, gave_up.delta * _SLICE_NS), 0.0)


def data_loading(view: View) -> Judgement:
    """The loop waits for its next batch.

    Necessary: the part of the cycle in which the loader's next() is open and the device is idle grew by 3 % of a cycle.
    Time that device work hides belongs to other parts and does not count. Without ranges of a loader: samples of its
    stack show the main thread for that much longer in a function that gets data, as its name says, or in what functions
    that make batches call; with a profile, outside of operators. So do samples where the profiled steps wait no longer.
    """
    name = "data_loading"
    loading = view.part(LOADING)
    if LOADING not in view.parts:
        if is_sampled(view) and not view.pair.answers_requests:
            return _fetching(view, _getting(view))
        loads = view.work["category"].is_in(["dataloader"]).any()
        return RuledOut(name, "the loader's time is hidden") if loads else Missing(name, "ranges of the data loader")
    if not view.same_cycles or not loading.rose(by=view.least_ns):
        # The whole run may wait for batches where the few steps of a profile found some ready.
        if view.is_slower and is_sampled(view):
            sampled = _fetching(view, grown(view).filter(making_batches()))
            if isinstance(sampled, Suspect):
                return sampled
        reason = f"time in the data loader: {span(loading.base, loading.other, 'ns')} per cycle"
        return not_grown(name, view, loading, reason)
    shown = [
        evidence(
            "time in the data loader, per cycle", loading, role="necessary", device="host", name=LOADING, unit="ns"
        )
    ]
    confidence = 0.85
    off = blocked(view)
    how = ""
    if off.rose(by=0.5 * loading.delta):
        shown.append(blocked_evidence(off))
        how = ", asleep or waiting"
        confidence += 0.05
    elif ran(view).rose(by=0.5 * loading.delta):
        shown.append(evidence("own processor time per cycle", ran(view), device=PROCESS, unit="ns"))
        how = ", at work on the batch"
        confidence += 0.05
    disk = written(view)
    if disk is not None and "read" in disk[1] and view.per_cycle(*disk[:2]).delta * _COPY_NS >= 0.1 * loading.delta:
        shown.append(evidence(f"reading of {disk[0]}", disk[2], device=disk[0], metric=disk[1]))
        how = f", reading {units.rate(disk[2].other)}"
        confidence += 0.05
    if abs(view.part("operators").delta) < 0.5 * loading.delta:
        shown.append(evidence("time in operators, per cycle", view.part("operators"), name="operators", unit="ns"))
        confidence += 0.03
    return view.suspect(
        name,
        f"The loop waits for its data: the loader takes {span(loading.base, loading.other, 'ns')} per cycle{how}.",
        loading.delta * view.stretch,
        confidence,
        shown,
        resource="data loader",
        device="host",
        magnitude=loading.ratio,
        advice="load in worker processes ahead of time (num_workers, prefetch_factor), or make a batch cheaper",
    )


def is_asleep(view: View, added_ns: float) -> bool:
    """Whether added time is none in which the process and its workers run, or wait for a core or a device."""
    own, wait = ran_in_all(view), with_workers(view, waited(view), "process_runq_time")
    is_known = own.is_known and wait.is_known and not view.devices("gpu")
    return is_known and own.delta + wait.delta < _STILL * added_ns


def how_spent(view: View, added_ns: float) -> tuple[str, list[Evidence]]:
    """Whether added time of the main thread was spent asleep or at work, in words and as evidence; empty if unclear."""
    off, own = blocked(view), ran(view)
    if off.rose(by=0.5 * added_ns):
        return ", asleep or waiting", [blocked_evidence(off)]
    if is_asleep(view, added_ns):
        return ", asleep or waiting", [evidence("own processor time per cycle", own, device=PROCESS, unit="ns")]
    if own.rose(by=0.5 * added_ns):
        return ", at work", [evidence("own processor time per cycle", own, device=PROCESS, unit="ns")]
    return "", []


def _getting(view: View) -> pl.DataFrame:
    """What `grown` gives of functions that wait for a queue, or that get data.

    Threads that wait for requests while others have too many are none of these.
    With a profile these must be outside of operators, and wait there, unless they make batches, as names say.
    """
    waits = pl.lit(value=False) if is_shared_out_badly(view) else taking()
    rows = grown(view).filter(waits | fetching())
    if not view.is_profiled:
        return rows
    makers = rows.filter(taking() | making_batches())
    least, of_makers = (_MOSTLY * float(some.filter(fetching())["delta"].sum()) for some in (rows, makers))
    if view.gaps().rose(by=least) and blocked(view).rose(by=least):
        return rows
    # Samples prove that they take longer, so a few profiled steps need not.
    if view.gaps().delta >= of_makers:
        return makers
    return rows.filter(taking())


def fetched(view: View) -> float:
    """How much longer per cycle the main thread gets data, outside of operators and of a loader's ranges. Units: ns."""
    if LOADING in view.parts or view.pair.answers_requests:
        return 0.0
    return float(_getting(view).filter(fetching())["delta"].sum()) * view.stretch


def _fetching(view: View, rows: pl.DataFrame) -> Judgement:
    """The judgement by samples of the main thread's stack: by these functions that `grown` gave, if they get data.

    A profile that shows no loader shows what such a function computes, so there it counts if it waits.
    """
    name = "data_loading"
    times = unexplained(view, rows, waiting_for_disk(view))
    if times is None:
        return RuledOut(name, "the main thread is in no function longer whose name says that it gets data")
    change, lost = times
    how, shown = how_spent(view, lost / view.stretch)
    first = str(rows["function"][0])
    took, advice = f"{first} takes", "get data ahead of time, in another process or thread, or make a batch cheaper"
    if (taker := without_wait(first)) != first:
        took = f"{taker} waits for the next item of a queue,"
        advice = "see what fills the queue (stepscope show python-stacks --idle): make it faster, or let several do it"
    return view.suspect(
        name,
        f"The loop waits for its data: {took} {span(change.base, change.other, 'ns')} per cycle{how}.",
        lost,
        0.75,
        [*time_in(rows), *shown],
        resource="data loader",
        device="host",
        magnitude=change.ratio,
        advice=advice,
    )


def disk_io(view: View) -> Judgement:
    """The loop waits for files to be written or read, outside the data loader.

    Necessary: the process (or a disk, if its own rates are unknown) reads or writes at least twice as much and a page
    per cycle more; and time outside operators and loader grew by 3 % of a cycle. A third of that growth must be time in
    which the process was blocked or queued for its core afterwards (3 ms per wait at most), or time that the bytes take
    at 1 GB/s, unless Linux counted more time in which a task waited for a disk. If blocked time is unknown, the process
    must have given up the core more often. If it reads and writes as before, Linux' count must have grown, and the time
    in which the process was blocked: then it shares the disk.
    """
    name = "disk_io"
    if not any(key[1] in (*_OWN_RATES, *_DISK_RATES) for key in view.resources):
        return Missing(name, "process_write_bytes_rate and process_read_bytes_rate, or the disks' own")
    disk = written(view)
    if disk is None:
        return _shared_disk(view) or RuledOut(name, "reading and writing are as before")
    device, metric, rate = disk
    gaps, off, amount = view.gaps(), blocked(view), view.per_cycle(device, metric)
    lost = waiting_for_disk(view)
    if not lost or lost < view.least_ns:
        what = f"{metric} of {'the process' if device == PROCESS else device} {moved(rate)}"
        return RuledOut(name, f"{what}, but nothing waits for it")
    gave_up = view.per_cycle(PROCESS, "process_voluntary_ctx_switches")
    shown = [
        evidence("reading" if "read" in metric else "writing", rate, role="necessary", device=device, metric=metric)
    ]
    stalled = view.per_cycle("host", *_STALLED)
    effect = f"some task waits for a disk {span(stalled.base, stalled.other, 'ns')} per cycle"
    if gaps.rose() or not stalled.rose():
        effect = f"time outside operators {moved(gaps, 'ns')} per cycle"
        text = "time outside operators and data loader, per cycle"
        shown.append(evidence(text, gaps, role="necessary", name="python and other", unit="ns"))
    confidence = 0.7 if device == PROCESS else 0.6
    if off.is_known:
        shown.append(blocked_evidence(off))
        confidence += 0.1
    if gave_up.rose(by=1.0, times=2):
        shown.append(
            evidence("times it waited, per cycle", gave_up, device=PROCESS, metric="process_voluntary_ctx_switches")
        )
        confidence += 0.1
    if stalled.rose():
        shown.append(
            evidence(
                "time in which some task waited for a disk, per cycle",
                stalled,
                device="host",
                unit="ns",
                metric=_STALLED[0],
            )
        )
    shown += _pressure(view)
    confidence += 0.05 * (len(shown) > 4)
    shown += [replace(row, role="supporting") for row in time_in(_function_that_waits(view))]
    verb = "reads" if "read" in metric else "writes"
    who = "The process" if device == PROCESS else f"Something ({device})"
    return view.suspect(
        name,
        f"{who} {verb} {units.size(amount.other)} per cycle (was {units.size(amount.base)}) and waits for it:"
        f" {effect}.",
        lost,
        confidence,
        shown,
        resource="files and disks",
        device=device,
        magnitude=rate.ratio,
        advice="write less often, or from another thread; look for fsync, checkpoints, logs (strace -c -f)",
    )


def _shared_disk(view: View) -> Suspect | None:
    """The judgement if the process reads and writes as before: what it shares the disk with, or the disk, is slower.

    Linux counts more time in which some task waited for a disk, and in as much of it the process was blocked.
    """
    stalled, off = view.per_cycle("host", *_STALLED), blocked(view)
    waits = max(_in_one_function(view), view.gaps().delta * view.stretch if view.gaps().rose() else 0.0)
    lost = min(waits, off.delta * view.stretch, _UNCOUNTED * stalled.delta * view.stretch)
    if not view.is_slower or not (stalled.rose() and off.rose()) or lost < view.least_ns:
        return None
    return view.suspect(
        "disk_io",
        "The process reads and writes as before, and waits for it longer: some task waits for a disk"
        f" {span(stalled.base, stalled.other, 'ns')} per cycle. Others use the disk too, or it is slower.",
        lost,
        0.8,
        [
            evidence(
                "time in which some task waited for a disk, per cycle",
                stalled,
                role="necessary",
                device="host",
                unit="ns",
                metric=_STALLED[0],
            ),
            blocked_evidence(off),
            *_pressure(view),
        ],
        resource="files and disks",
        device="host",
        magnitude=stalled.ratio,
        advice="see who else uses the disk (iotop, pidstat -d), or write elsewhere",
    )


def _pressure(view: View) -> list[Evidence]:
    signs = ("iowait", "io_pressure", "dirty", "writeback")
    return [
        evidence(f"{metric} of {device}", change, device=device, metric=metric)
        for (device, metric), change in view.resources.items()
        if any(sign in metric for sign in signs) and change.rose()
    ]


RULES = (Rule("data_loading", data_loading), Rule("disk_io", disk_io))
