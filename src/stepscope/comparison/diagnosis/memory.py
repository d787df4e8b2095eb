"""Causes in memory: it grows from cycle to cycle, there is too little of it, or other processes take its bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison.diagnosis.case import (
    Judgement,
    Missing,
    Rule,
    Suspect,
    View,
    not_slower,
    typical_slowdown,
)
from stepscope.comparison.diagnosis.change import Change, evidence, fold, gpu_name, moved, span
from stepscope.comparison.diagnosis.cores import HALF_CORE, core_clock, outside_cores, waited, with_workers
from stepscope.comparison.diagnosis.cpu import STRETCHED
from stepscope.comparison.diagnosis.workload import is_other, other_work
from stepscope.comparison.model import MATRIX_PRODUCTS, PROCESS, RuledOut
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.model import Observation

    Floats = NDArray[np.float64]


_TENSORS, _SYSTEMS = "process_mem_allocated", "process_mem_rss"
_HOST_LEVELS = (_TENSORS, _SYSTEMS)
_DEVICE_LEVELS = ("gpu_mem_allocated", "gpu_mem_used")
#: Growth within the recording beyond the base's: 5 % of the level, by which levels of healthy runs differ, and 16 MiB,
#: a few of the blocks in which allocators take memory.
_LEAST_SHARE, _LEAST_BYTES = 0.05, 16 * 2**20
#: Growth must be faster by this share of the usual growth, and by this many times the spread of the base's runs: the
#: growth of runs whose heap a profiler fragmented by 30 MiB a cycle mostly differed by 5 %.
_FASTER, _BEYOND = 0.25, 3.0
#: The same share for resident memory if tensors are known as well: the heaps of some of 40 runs grew by 10 MiB a cycle.
_FASTER_HEAP = 2.0
#: Share of pairs of cycles in which the later one must have more; in a sawtooth it is about half.
_STEADY = 0.8
#: Time per byte of new memory, in ns: a page fault per 4 KiB and filling it take 1 µs, 4 µs in a virtual machine.
_TOUCH_NS = 1.0
#: What each page costs whose first use is counted, with its size: what grows may be made in memory that is given back.
_FAULT_NS, _PAGE = 4000.0, 4096
#: And that of a page with its zeros on a machine that is not virtual.
_LEAST_FAULT_NS = 1000.0
#: Memory in which a recorder holds one call until it is written, at most. PyTorch's profiler uses 0.4 to 1.8 KB.
_EVENT_BYTES = 2048.0
#: Operators that compute much with each byte. Most others do one operation for each number that they read and write.
_COMPUTES = rf"{MATRIX_PRODUCTS}|conv|attention|lstm|gru|linalg"
#: Calls that take less of their own are spent on calling, not on memory.
_MOVES_NS = 20_000.0
#: How much more the work that memory binds must be slowed than products: the clock, or a neighbour on the same core,
#: slows products as much or more.
_APART = 1.1
#: Share of the operators' time that each of the two kinds of work must have.
_LEAST = 0.05
#: A major fault waits for a disk: at least 0.1 ms on flash.
_MAJOR_NS = 1e5
#: Runtime functions that take memory of a device from its driver, or give it back.
_DRIVER_MEMORY = (
    "cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease",
    "cnrtMalloc", "cnrtFree", "aclrtMalloc", "aclrtFree",
)  # fmt: skip
_MOST_POINTS = 400
#: Cycles, or samples along the run, that show how a level grows.
_LEAST_CYCLES, _LEAST_SAMPLES = 8, 5


class Growth(msgspec.Struct, frozen=True):
    """How a level changes along a run: its slope per cycle, its first and last value.

    `steady` is the share of pairs of cycles in which it rises, `late` the slope of the second half.
    """

    per_cycle: float
    first: float
    last: float
    steady: float
    late: float


def slope(values: Floats, at: Floats | None = None) -> float:
    """Median of the slopes between all pairs of cycles (Theil–Sen), in the values' unit per cycle.

    `at` are the cycles of the values; else they follow one another.
    """
    chosen = _chosen(values)
    left, right = np.triu_indices(chosen.size, 1)
    place = (np.arange(values.size, dtype=np.float64) if at is None else at)[chosen]
    picked = values[chosen]
    return float(np.median((picked[right] - picked[left]) / (place[right] - place[left])))


def _chosen(values: Floats) -> NDArray[np.int64]:
    return np.linspace(0, values.size - 1, min(values.size, _MOST_POINTS)).round().astype(np.int64)


def growth_of(values: Floats, at: Floats | None = None) -> Growth | None:
    """Growth of a level from its values at some cycles, else one a cycle; None with too few of them."""
    if values.size < (_LEAST_CYCLES if at is None else _LEAST_SAMPLES):
        return None
    place = np.arange(values.size, dtype=np.float64) if at is None else at
    picked = values[_chosen(values)]
    left, right = np.triu_indices(picked.size, 1)
    steady = float((picked[right] > picked[left]).mean())
    half = values.size // 2
    late = slope(values[half:], place[half:])
    return Growth(slope(values, place), float(values[0]), float(values[-1]), steady, late)


def memory_growth(view: View) -> Judgement:
    """Memory of the process, or of its device, grows from cycle to cycle, more than in the base.

    Necessary: it grows steadily, also in the second half (start-up is over); a quarter faster than in any of the base's
    runs, on any rank, and by more than these differ; and in this recording by 5 % of its level and 16 MiB more than at
    the base's rate. Memory of tensors is tested first, because resident memory includes the allocator's own behaviour:
    a heap that a profiler's records fragment grows in proportion to the work, so the base's growth is scaled by it, and
    differently from run to run, so resident memory must grow three times as fast if tensors are known. Resident memory
    also includes the recorder's: 2 KiB for each additional call per cycle are subtracted.
    """
    name = "memory_growth"
    levels = [(PROCESS, metric) for metric in _HOST_LEVELS]
    levels += [(device, metric) for device in ("host", *view.devices("gpu")) for metric in _DEVICE_LEVELS]
    known = [key for key in levels if view.resource(*key).is_known]
    if not known:
        return Missing(name, "process_mem_rss, or the allocator's events")
    growths = []
    for device, metric in known:
        unit = view.resource(device, metric).unit
        if unit not in ("bytes", None):
            continue
        is_timed = _is_timed(view, device, metric)
        base, other = (_growths(side, device, metric, is_timed=is_timed) for side in (view.pair.base, view.pair.other))
        if not base or not other:
            continue
        # The heap of one rank may grow in this run as another's did in the base.
        peers = view.peers if device == PROCESS else ()
        like = [
            suspect.per_cycle for pair in peers for suspect in _growths(pair.base, device, metric, is_timed=is_timed)
        ]
        n = min(_n_cycles(run, is_timed=is_timed) for run in view.pair.other)
        suspect = _grown(view, device, metric, base, other, like, n)
        if suspect is not None:
            return suspect
        growths.append(
            f"{metric} of {device}: {units.size(other[0].per_cycle)} a cycle (base {units.size(base[0].per_cycle)})"
        )
    reason = "; ".join(growths[:2]) or "too few cycles to see a trend"
    return RuledOut(name, reason, is_judged=bool(growths))


def _is_timed(view: View, device: str, metric: str) -> bool:
    """Whether the level is known for the whole run on both sides: a profiler alone takes much memory while it runs."""
    is_it = (pl.col("device").cast(pl.String) == device) & (pl.col("metric").cast(pl.String) == metric)
    return all(run.run_resources.filter(is_it).height >= 8 for run in (*view.pair.base, *view.pair.other))


def _n_cycles(run: Observation, *, is_timed: bool) -> int:
    return int(run.steps["n_steps"].sum()) if is_timed else run.complete_cycles.height


def _growths(runs: Sequence[Observation], device: str, metric: str, *, is_timed: bool) -> list[Growth]:
    growths = []
    for run in runs:
        growth = growth_of(*(_timed_levels if is_timed else _levels)(run, device, metric))
        growths += [] if growth is None else [growth]
    return growths


def _grown(
    view: View, device: str, metric: str, base: Sequence[Growth], other: Sequence[Growth], like: Sequence[float], n: int
) -> Suspect | None:
    work = other_work(view)
    scale = max(1.0, work[1]) if work is not None and is_other(work) else 1.0
    slopes = [g.per_cycle for g in base]
    usual = max(0.0, *slopes, *like) * scale
    now = min(other, key=lambda g: g.per_cycle)
    faster = _FASTER_HEAP if metric == _SYSTEMS and view.resource(PROCESS, _TENSORS).is_known else _FASTER
    calls = view.work.filter(pl.col("device") == "host").select((pl.col("calls_other") - pl.col("calls_base")).sum())
    recorded = max(float(calls.item() or 0.0), 0.0) * _EVENT_BYTES if device == PROCESS else 0.0
    extra = now.per_cycle - usual - recorded
    level = max(g.first for g in base)
    if not (
        extra * n >= max(_LEAST_SHARE * level, _LEAST_BYTES)
        and extra >= max(faster * usual, _BEYOND * (max(slopes) - min(slopes)))
        and now.steady >= _STEADY
        and now.late >= 0.5 * now.per_cycle
    ):
        return None
    change = Change(usual, now.per_cycle, True, "bytes")
    faults = view.per_cycle(PROCESS, "process_minor_faults")
    affected = max(extra * _TOUCH_NS, faults.delta * _FAULT_NS if faults.rose(by=0.5 * extra / _PAGE) else 0.0)
    shown = [
        evidence("growth per cycle", change, role="necessary", device=device, metric=metric),
        evidence(
            f"first to last cycle of this recording: {span(now.first, now.last, 'bytes')}", device=device, metric=metric
        ),
    ]
    confidence = 0.75 + 0.1 * (now.steady >= 0.95) + 0.1 * (metric in (_TENSORS, "gpu_mem_allocated"))
    if faults.rose(by=0.5 * extra / _PAGE):
        shown.append(
            evidence(
                "pages touched for the first time, per cycle", faults, device=PROCESS, metric="process_minor_faults"
            )
        )
        confidence += 0.05
    who = "the process" if device in (PROCESS, "host") else gpu_name(device, device)
    return view.suspect(
        "memory_growth",
        f"Memory of {who} grows by {units.size(now.per_cycle)} every cycle"
        f" (was {units.size(usual)}), {span(now.first, now.last, 'bytes')} in this recording.",
        affected * view.stretch,
        confidence,
        shown,
        resource="memory",
        device=device,
        magnitude=change.ratio if usual else None,
        advice="look for objects that stay alive: lists of losses with their graphs, caches, logs; show memory;"
        " tracemalloc",
    )


def _timed_levels(run: Observation, device: str, metric: str) -> tuple[Floats, Floats]:
    """Values by stretch of the whole run, and the cycles where these are; empty if the run has none.

    Stretches without a sample have the value of the nearest one, so only the first of them counts.
    """
    is_it = (pl.col("device").cast(pl.String) == device) & (pl.col("metric").cast(pl.String) == metric)
    rows = run.run_resources.filter(is_it).sort("stretch")
    each = max(_n_cycles(run, is_timed=True) / max(rows.height, 1), 1.0)
    rows = rows.filter((pl.col("n_samples") > 0) | (pl.col("stretch") == pl.col("stretch").min()))
    values: Floats = rows["mu"].to_numpy()
    return values, rows["stretch"].cast(pl.Float64).to_numpy() * each


def _levels(run: Observation, device: str, metric: str) -> tuple[Floats, None]:
    """Values by cycle; empty if the run has none."""
    whole = run.complete_cycles.select("cycle")
    is_it = (pl.col("device") == device) & (pl.col("metric") == metric) & pl.col("name").is_null()
    rows = whole.join(run.resources.filter(is_it), on="cycle", how="inner", maintain_order="left")
    levels: Floats = rows["mu"].to_numpy()
    return levels, None


def memory_pressure(view: View) -> Judgement:
    """There is too little memory, or memory goes back and is taken again in each cycle.

    Necessary is one of five: major faults cost 3 % of a cycle more at 0.1 ms each (flash; other disks take longer)
    while swap is in use or less than half of the base's free memory is left, since a first read of files faults as
    well; or swap use rises by 16 MiB; or the allocator retries more often; or calls that take memory
    from the driver and give it back, for which all work on the device must end, take 3 % of a cycle longer: an
    allocator that has enough memory keeps it; or three times as many pages are new to the process in each cycle,
    beyond what its memory grows by, which cost 3 % of it at 1 µs each.
    """
    name = "memory_pressure"
    faults = view.per_cycle(PROCESS, "process_major_faults")
    swap, free = view.resource(PROCESS, "process_mem_swap"), view.resource("host", "host_mem_available")
    retries = [(k, c) for k, c in view.resources.items() if "alloc_retries" in k[1] and c.rose(by=0.5)]
    swaps = swap.rose(by=_LEAST_BYTES)
    scarce = swaps or (swap.other or 0.0) > _LEAST_BYTES or free.fell(to=0.5)
    lost = faults.delta * _MAJOR_NS if faults.rose(times=2) and scarce else 0.0
    by_driver = _from_driver(view)
    if by_driver is not None and not scarce and not retries:
        return by_driver
    if not faults.is_known and not swap.is_known and not free.is_known:
        return Missing(name, "process_major_faults, process_mem_swap, host_mem_available")
    if not retries and not swaps and (lost < view.least_ns or not lost):
        return _from_system(view) or RuledOut(name, _plenty(faults, swap, free))
    shown, says = [], []
    for change, text, device, metric in (
        (faults, "pages fetched from disk, per cycle", PROCESS, "process_major_faults"),
        (swap, "swapped out", PROCESS, "process_mem_swap"),
        (free, "memory available", "host", "host_mem_available"),
    ):
        if change.is_known and change.is_real:
            role = "supporting" if change is free else "necessary"
            shown.append(evidence(text, change, role=role, device=device, metric=metric))
            says.append(f"{text} {moved(change)}")
    for (device, metric), change in retries:
        shown.append(
            evidence("allocator frees and tries again", change, role="necessary", device=device, metric=metric)
        )
        says.append(f"{metric} of {device} {moved(change)}")
    text = "; ".join(says)
    return view.suspect(
        name,
        f"{text[0].upper()}{text[1:]}: there is too little memory.",
        lost,
        0.65 + 0.1 * len(shown),
        shown,
        resource="memory",
        device=retries[0][0][0] if retries else "host",
        magnitude=faults.ratio,
        advice="free memory on the machine, or use less: smaller batch, checkpointing of activations",
    )


def _from_driver(view: View) -> Suspect | None:
    """The suspect if memory of a device goes to the driver and comes back in each cycle."""
    is_it = (pl.col("device") == "host") & pl.col("name").is_in(_DRIVER_MEMORY) & pl.col("calls_real")
    calls = view.work.filter(is_it & (pl.col("calls_other") >= 2 * pl.col("calls_base"))).sort(
        "delta_ns", descending=True
    )
    lost = float(calls["delta_ns"].sum())
    if calls.is_empty() or lost < view.least_ns or not view.is_slower:
        return None
    times = [
        evidence(
            f"calls of {row['name']} per cycle",
            Change(row["calls_base"], row["calls_other"], is_real=True),
            role="necessary",
            device="host",
            name=row["name"],
        )
        for row in calls.head(3).iter_rows(named=True)
    ]
    names = " and ".join(f"{units.number(row['calls_other'])} calls of {row['name']}" for row in calls.to_dicts()[:2])
    return view.suspect(
        "memory_pressure",
        f"Memory of the device goes back to the driver and is taken again: {names} per cycle,"
        f" {units.duration(lost)} more. The device must be idle for each.",
        lost,
        0.85,
        times,
        resource="memory of the device",
        device="host",
        advice="look for torch.cuda.empty_cache() in the loop; else memory is short or fragmented: show memory,"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a smaller batch",
    )


def _from_system(view: View) -> Suspect | None:
    """The suspect if the process gives memory back to the system and takes it again in each cycle."""
    pages = with_workers(view, view.per_cycle(PROCESS, "process_minor_faults"), "process_minor_faults")
    is_timed = _is_timed(view, PROCESS, _SYSTEMS)
    grows = [each.per_cycle for each in _growths(view.pair.other, PROCESS, _SYSTEMS, is_timed=is_timed)]
    again = pages.delta - max(grows, default=0.0) / _PAGE  # memory that grows is taken once, and stays
    if not pages.rose(times=3) or again * _LEAST_FAULT_NS < view.least_ns or not view.is_slower:
        return None
    return view.suspect(
        "memory_pressure",
        f"Memory goes back to the system and is taken again: {span(pages.base, pages.other, None)} pages per cycle are"
        " new to the process. Each costs about 1 to 4 µs, in which it is found and filled with zeros.",
        again * _FAULT_NS,
        0.6,
        [
            evidence(
                "pages that are new, per cycle", pages, role="necessary", device=PROCESS, metric="process_minor_faults"
            )
        ],
        resource="memory",
        device="host",
        magnitude=pages.ratio,
        advice="keep buffers from step to step; let the allocator keep memory (MALLOC_TRIM_THRESHOLD_,"
        " MALLOC_MMAP_THRESHOLD_, jemalloc, tcmalloc); look for malloc_trim in the loop",
    )


def _plenty(faults: Change, swap: Change, free: Change) -> str:
    parts = []
    if free.is_known:
        parts.append(f"memory available {span(free.base, free.other, free.unit)}")
    if faults.is_known:
        parts.append(f"{units.number(faults.other)} major faults per cycle")
    if swap.is_known:
        parts.append(f"{units.size(swap.other)} swapped")
    return ", ".join(parts)


def memory_bandwidth(view: View) -> Judgement:
    """Other processes use the memory's bandwidth, or the caches that cores share.

    Necessary: they use half a core more; operators that move memory (20 µs a call and more) take 15 % longer at equal
    clock and sizes, and a tenth more than products of matrices and convolutions were slowed; cycles take longer.
    """
    name = "memory_bandwidth"
    outside = outside_cores(view)
    work = view.host_work().filter((pl.col("category") == "operator") & ~pl.col("calls_real"))
    own = pl.col("own_ns_base")
    computes = work.filter(pl.col("name").str.contains(_COMPUTES))
    moves = work.filter(~pl.col("name").str.contains(_COMPUTES) & (own >= _MOVES_NS * pl.col("calls_base")))
    whole = float(work["own_ns_base"].sum())
    is_known = all(float(kind["own_ns_base"].sum()) >= _LEAST * whole > 0 for kind in (computes, moves))
    if outside is None or not is_known:
        return Missing(name, "host_cpu_usage, and operators that move memory and that compute")
    if outside < HALF_CORE:
        return RuledOut(name, "other processes use the cores as before")
    if not view.is_slower:
        return not_slower(name, view)
    clock = min(core_clock(view).ratio or 1.0, 1.0)
    moving, computing = ((typical_slowdown(kind) or 1.0) * clock for kind in (moves, computes))
    texts = f"operators that move memory take {fold(moving)} as long, products of matrices {fold(computing)}"
    if moving < STRETCHED or moving < _APART * max(computing, 1.0):
        return RuledOut(name, texts)
    # What a core is waited for stretches operators too, but is no matter of memory.
    cost = float(work["delta_ns"].sum()) - max(waited(view).delta, 0.0)
    load = view.resource("host", "host_cpu_usage")
    return view.suspect(
        name,
        f"Other processes use the memory's bandwidth: {texts}, {units.duration(cost)} more per cycle in all.",
        cost,
        0.75,
        [
            evidence(texts, role="necessary"),
            evidence("use of all processors", load, role="necessary", device="host", metric="host_cpu_usage"),
        ],
        resource="memory bandwidth",
        device="host",
        magnitude=moving,
        advice="see what else moves memory there (perf stat -e cache-misses, pcm-memory); run it elsewhere, or on"
        " another socket: numactl --cpunodebind --membind",
    )


RULES = (
    Rule("memory_bandwidth", memory_bandwidth),
    Rule("memory_growth", memory_growth),
    Rule("memory_pressure", memory_pressure),
)
