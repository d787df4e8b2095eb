"""Each resource's mean in each cycle: from counter samples, from scheduling, and from the allocator's events.

Samples are held until the next one and averaged over time. Scheduling spans and allocations are exact and replace what
counters say about the same metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.sampled import means, pieces_of, resources_of, series_of, spread_of
from stepscope.analyses.common.windows import HOST
from stepscope.comparison.model import (
    BLOCKER,
    NEIGHBOURS,
    OBSERVED_COUNTERS,
    ON_DEVICE,
    PROCESS,
    RESOURCES,
    WORKERS,
)
from stepscope.core.intervals import reached
from stepscope.core.schema import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepscope.analyses.cycles.functions import Functions
    from stepscope.core.trace import Trace

_SECOND = 1_000_000_000
_HOUR = 3600.0
_KIB = 1024
#: Number of functions of each accelerator, longest first, for which resources are averaged.
_LONGEST = 8
_SCHED_METRICS = {"sched_oncpu": "process_oncpu_time", "sched_runq": "process_runq_time"}
_GIVEN_UP, _PAGES = "process_voluntary_ctx_switches", "process_minor_faults"
#: Issues with which readers report counters that they could not use.
_UNUSABLE = ("counters_unplaced", "counters_unreadable")


def counters_around(
    counters: pl.DataFrame, pid: int | None, siblings: Collection[int], low_ns: int, high_ns: int
) -> pl.DataFrame:
    """The samples from one second before `low_ns` to one second after `high_ns`, in order of time.

    `counters` is a trace's table. The device of the process' own samples becomes `process`. Samples without a number
    and those of `siblings` (processes that are observed by themselves) are left out. kB (of 1024) become bytes.
    """
    if counters.is_empty():
        return OBSERVED_COUNTERS.empty()
    device = pl.col("device").cast(pl.String)
    near = counters.filter(
        pl.col("ts_ns").is_between(low_ns - _SECOND, high_ns + _SECOND) & pl.col("value").is_finite()
    ).filter(~device.is_in([f"pid:{sibling}" for sibling in siblings if sibling != pid]) | device.is_null())
    in_kib = pl.col("unit").cast(pl.String) == "kB"
    samples = near.with_columns(
        device=pl.when(device == f"pid:{pid}").then(pl.lit(PROCESS)).otherwise(device),
        value=pl.when(in_kib).then(pl.col("value") * _KIB).otherwise("value"),
        unit=pl.when(in_kib).then(pl.lit("bytes")).otherwise(pl.col("unit").cast(pl.String)),
    )
    return OBSERVED_COUNTERS.conform(samples).sort("ts_ns", maintain_order=True)


def by_cycle(counters: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES of whole cycles, from the result of `counters_around`. Cycles without a known value have no row."""
    lows = cycles["ts_ns"].to_numpy()
    highs = lows + cycles["dur_ns"].to_numpy()
    tables = []
    for device, metric, unit, held, values in series_of(counters):
        mu, count = means(held, values, lows, highs)
        known = np.flatnonzero(~np.isnan(mu))
        frame = pl.DataFrame({"cycle": cycles["cycle"].gather(known), "mu": mu[known], "n_samples": count[known]})
        named = {"device": device, "metric": metric, "unit": unit}
        tables.append(RESOURCES.conform(frame.with_columns(pl.lit(v, pl.String).alias(k) for k, v in named.items())))
    if not tables:
        return RESOURCES.empty()
    whole = pl.concat(tables)
    return pl.concat([whole, _of_workers(whole), _of_neighbours(whole)])


def _of_workers(whole: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES of all processes that are not observed by themselves together: their use of cores, and new pages."""
    is_other = pl.col("device").cast(pl.String).str.starts_with("pid:")
    summed = [*_SCHED_METRICS.values(), _GIVEN_UP, _PAGES]
    rows = whole.filter(is_other & pl.col("metric").cast(pl.String).is_in(summed))
    sums = rows.group_by("cycle", "metric", maintain_order=True).agg(
        pl.col("unit").first(), pl.col("mu").sum(), pl.col("n_samples").max()
    )
    return RESOURCES.conform(sums.with_columns(device=pl.lit(WORKERS)))


def _of_neighbours(whole: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES of processes that use accelerators and are not the job's, together: a recorder has only that of them.

    Empty unless the process' own use of them is known: then its number is not another one on the driver's host.
    """
    device, metric = (pl.col(name).cast(pl.String) for name in ("device", "metric"))
    of_use = metric == ON_DEVICE
    if whole.filter((device == PROCESS) & of_use).is_empty():
        return RESOURCES.empty()
    own = whole.filter(device.str.starts_with("pid:") & ~metric.str.starts_with("process_gpu")).select("device")
    rows = whole.filter(device.str.starts_with("pid:") & of_use).join(own, on="device", how="anti")
    sums = rows.group_by("cycle", "metric", maintain_order=True).agg(
        pl.col("unit").first(), pl.col("mu").sum(), pl.col("n_samples").max()
    )
    return RESOURCES.conform(sums.with_columns(device=pl.lit(NEIGHBOURS)))


def by_function(
    counters: pl.DataFrame, functions: Functions, cycles: pl.Series, spans: pl.DataFrame, whole: pl.DataFrame
) -> pl.DataFrame:
    """RESOURCES of each accelerator while its longest functions run.

    `cycles` are the numbers of the cycles. `whole` is the result of `by_cycle`, which has the numbers of samples.
    """
    if counters.is_empty():
        return RESOURCES.empty()
    frame = functions.frame.with_columns(cycle=cycles.gather(functions.frame["row"])).with_columns(
        pl.col("device", "name").cast(pl.String), group=pl.int_range(pl.len())
    )
    longest = frame.group_by("device", "name").agg(pl.col("total_ns").sum()).sort(-pl.col("total_ns"), "device", "name")
    longest = longest.filter(pl.col("device") != HOST).group_by("device", maintain_order=True).head(_LONGEST)
    frame = frame.join(longest.select("device", "name"), on=["device", "name"], how="semi")
    starts = spans["ts_ns"].to_numpy()[functions.events]
    ends = starts + spans["dur_ns"].to_numpy()[functions.events]
    tables = [RESOURCES.empty()]
    for together in resources_of(counters.filter(pl.col("device").cast(pl.String).is_in(frame["device"].implode()))):
        chosen = np.zeros(functions.frame.height, np.bool_)
        chosen[frame["group"].to_numpy()] = True
        mine = chosen[functions.group]
        pieces = pieces_of(together[0].held, starts[mine], ends[mine], functions.group[mine], functions.frame.height)
        for one in together:
            mu, _ = spread_of(pieces, one.values)
            rows = frame.filter(pl.col("device") == one.device)
            rows = rows.with_columns(
                mu=pl.Series(mu).gather(rows["group"]), metric=pl.lit(one.metric), unit=pl.lit(one.unit, pl.String)
            )
            tables.append(RESOURCES.conform(rows.filter(pl.col("mu").is_not_nan())))
    keys = ["cycle", "device", "metric"]
    counted = whole.select(*keys, "n_samples")
    rows = pl.concat(tables).drop("n_samples").join(counted, on=keys, how="left", maintain_order="left")
    return RESOURCES.conform(rows.with_columns(pl.col("n_samples").fill_null(0)))


def scheduled(trace: Trace, pid: int | None, cycles: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES of the process' threads by cycle in ns per second: time on a core, and time waiting for one.

    Waits have a second row under the device `behind NAME`, where NAME is another process that had the core meanwhile.
    Empty if scheduling was not recorded.
    """
    if trace.sched.is_empty():
        return RESOURCES.empty()
    lanes = trace.tracks.filter(pl.col("pid") == pid)["track_id"] if pid is not None else trace.tracks["track_id"]
    rows = trace.sched.join(trace.spans, on="span_id", how="inner")
    rows = rows.filter(pl.col("track_id").is_in(lanes.implode()))
    if rows.is_empty():
        return RESOURCES.empty()
    lows = cycles["ts_ns"].to_numpy()
    highs = lows + cycles["dur_ns"].to_numpy()
    start = rows["ts_ns"].to_numpy()
    end = start + rows["dur_ns"].to_numpy()
    row, cycle = reached(start, end, (lows, highs))
    time = np.minimum(end[row], highs[cycle]) - np.maximum(start[row], lows[cycle])
    metric = pl.col("category").cast(pl.String).replace(_SCHED_METRICS)
    pieces = rows.select("other", "other_is_own", metric=metric)[row].with_columns(
        cycle=cycles["cycle"].gather(cycle), time_ns=pl.Series(time), length_ns=pl.Series((highs - lows)[cycle])
    )
    is_wait = pl.col("metric") == _SCHED_METRICS["sched_runq"]
    blocked = pieces.filter(pl.col("other").is_not_null() & ~pl.col("other_is_own") & is_wait)
    sums = pl.concat(
        part.group_by("cycle", "device", "metric", maintain_order=True).agg(
            mu=pl.col("time_ns").sum() * 1e9 / pl.col("length_ns").first(), n_samples=pl.len()
        )
        for part in (
            pieces.with_columns(device=pl.lit(PROCESS)),
            blocked.with_columns(device=BLOCKER + pl.col("other").cast(pl.String)),
        )
    )
    # Within the recorded time, a thread without a span neither ran nor waited: the value is zero there.
    keys = sums.select("device", "metric").unique(maintain_order=True)
    known = cycles.filter(pl.Series((lows < int(end.max())) & (highs > int(start.min()))))
    whole = known.select("cycle").join(keys, how="cross")
    whole = whole.join(sums, on=["cycle", "device", "metric"], how="left", maintain_order="left")
    zero = whole.with_columns(pl.col("mu").fill_null(0.0), pl.col("n_samples").fill_null(0), unit=pl.lit("ns/s"))
    return RESOURCES.conform(zero)


def replaced(sampled: pl.DataFrame, exact: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES with the rows of `exact` in place of the sampled ones of the same device and metric."""
    if exact.is_empty():
        return sampled
    keys = ["device", "metric"]
    return pl.concat([sampled.join(exact.select(keys).unique(), on=keys, how="anti", maintain_order="left"), exact])


def held_by_tensors(trace: Trace) -> pl.DataFrame:
    """A sample of `process_mem_allocated`, or of an accelerator's `gpu_mem_allocated`, at each allocation and free.

    Rows as in the table `counters`, in bytes. Some recorders count from the start of the recording.
    """
    if trace.allocations.is_empty():
        return COUNTERS.empty()
    events = trace.allocations.filter(pl.col("total_allocated_bytes").is_not_null() & pl.col("ts_ns").is_not_null())
    on_device = pl.col("type") != "cpu"
    where = trace.devices.select(
        "device_id",
        device=pl.when(on_device).then(pl.format("gpu{}", "index")).otherwise(pl.lit(PROCESS)),
        metric=pl.when(on_device).then(pl.lit("gpu_mem_allocated")).otherwise(pl.lit("process_mem_allocated")),
    )
    samples = events.select("ts_ns", "device_id", value=pl.col("total_allocated_bytes").cast(pl.Float64))
    samples = samples.join(where, on="device_id", how="inner", maintain_order="left")
    return COUNTERS.conform(samples.drop_nulls("device").with_columns(unit=pl.lit("bytes")))


def cycle_remarks(cycles: pl.DataFrame) -> list[str]:
    """Which cycles are left out, and whether none remains."""
    remarks = []
    complete = cycles["is_complete"].fill_null(value=True)
    if not complete.all():
        numbers = cycles["cycle"].filter(~complete).to_list()
        shown = ", ".join(map(str, numbers[:8])) + (f" … {numbers[-1]}" if len(numbers) > 8 else "")
        remarks.append(f"recorded in part and left out: {'cycle' if len(numbers) == 1 else 'cycles'} {shown}")
    if not complete.sum():
        remarks.append("no complete cycles: how much cycles vary is not known")
    return remarks


def counter_remarks(
    counters: pl.DataFrame, inside: pl.DataFrame, cycles: pl.DataFrame, issues: pl.DataFrame
) -> list[str]:
    """Why no counters are used, if none are. `inside` are the samples of `counters` from first to last cycle."""
    if counters.is_empty():
        reasons = [example for code, example in issues.select("code", "example").iter_rows() if code in _UNUSABLE]
        reason = f"counters are not used ({reasons[0]})" if reasons else "no counters were recorded"
        return [reason]
    return [_displaced(counters, cycles)] if inside.is_empty() else []


def _displaced(counters: pl.DataFrame, cycles: pl.DataFrame) -> str:
    """Says that all samples are outside the cycles, and how far; whole hours suggest a time zone."""
    first, last = (float(f(counters["ts_ns"].to_numpy())) for f in (np.min, np.max))
    low = float(cycles["ts_ns"].to_numpy().min())
    high = float((cycles["ts_ns"] + cycles["dur_ns"]).to_numpy().max())
    side, off = ("after", first - high) if first > high else ("before", low - last)
    hours = abs((first + last) - (low + high)) / 2 / _SECOND / _HOUR
    zone = f", perhaps a time zone of {round(hours)} h" if hours > 0.4 and abs(hours - round(hours)) < 0.05 else ""
    where = (
        f"all are at least {off / _SECOND:,.1f} s {side} them{zone}" if off > 0 else "they pause while the cycles run"
    )
    return f"no counter sample was taken during the cycles ({where}): counters are not used"
