"""From two readings of the machine to the counters of the interval between them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.record.system.files import Kept, Texts, read_once
from stepscope.record.system.parse import core_times, disk_bytes, meminfo_bytes, net_bytes, pressure_us

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Row", "Sample", "cores", "frequencies", "machine", "memory_and_clocks", "rates", "sample_now"]

Key = tuple[str, str, str]  # metric, unit, device
Row = tuple[str, str, str, float]


@dataclass(slots=True)
class Sample:
    """What was read at one time: levels as they stand, and totals whose growth is a rate.

    `time_ns` is Unix time; `clock_ns` is of the clock that nobody sets, and tells how long an interval was. `shares`
    are (part, whole) totals whose growth divided is a percentage.
    """

    time_ns: int
    clock_ns: int
    levels: dict[Key, float] = field(default_factory=dict)
    totals: dict[Key, float] = field(default_factory=dict)
    shares: dict[Key, tuple[float, float]] = field(default_factory=dict)


def sample_now() -> Sample:
    """An empty sample of this moment."""
    return Sample(time.time_ns(), time.monotonic_ns())


def rates(before: Sample | None, after: Sample) -> Iterator[Row]:
    """Metric, unit, device, value at the end of an interval: levels, and totals as growth per second.

    A total that shrank (a counter that started again) gives nothing, nor does a first sample.
    """
    for (metric, unit, device), value in after.levels.items():
        yield metric, unit, device, value
    if before is None or after.clock_ns <= before.clock_ns:
        return
    seconds = (after.clock_ns - before.clock_ns) / 1e9
    for key, value in after.totals.items():
        old = before.totals.get(key)
        if old is not None and value >= old:
            yield (*key, (value - old) / seconds)
    for key, (part, whole) in after.shares.items():
        was = before.shares.get(key)
        if was is not None and whole > was[1]:
            yield (*key, max(0.0, 100 * (part - was[0]) / (whole - was[1])))


def cores(files: Texts, sample: Sample) -> None:
    """Adds how busy the host and each of its cores are."""
    if text := files.read("/proc/stat"):
        for device, times in core_times(text).items():
            sample.shares["host_cpu_usage", "%", device] = times


def machine(files: Texts, sample: Sample) -> None:
    """Adds what disks and networks do, and pressure: the time in which work waited for a resource."""
    for resource in ("cpu", "io", "memory"):
        if text := files.read(f"/proc/pressure/{resource}"):
            for kind, total in pressure_us(text).items():
                if (resource, kind) != ("cpu", "full"):  # of a whole machine it is 0 by definition
                    sample.totals[f"host_pressure_{resource}_{kind}", "ns/s", "host"] = total * 1000
    if text := files.read("/proc/diskstats"):
        for disk, (read, written, open_ms) in disk_bytes(text).items():
            sample.totals["disk_read_bytes_rate", "bytes/s", disk] = read
            sample.totals["disk_write_bytes_rate", "bytes/s", disk] = written
            sample.totals["disk_busy_time", "ns/s", disk] = open_ms * 1_000_000
    if text := files.read("/proc/net/dev"):
        for name, (received, sent) in net_bytes(text).items():
            sample.totals["net_recv_bytes_rate", "bytes/s", name] = received
            sample.totals["net_sent_bytes_rate", "bytes/s", name] = sent


def memory_and_clocks(kept: Kept, sample: Sample) -> None:
    """Adds what changes slowly: memory of the host, clocks of the cores."""
    if text := kept.read("/proc/meminfo"):
        known = meminfo_bytes(text)
        for name, metric in (("MemAvailable", "host_mem_available"), ("Dirty", "host_mem_dirty")):
            if name in known:
                sample.levels[metric, "bytes", "host"] = known[name]
        if known.get("SwapTotal"):
            sample.levels["host_swap_used", "bytes", "host"] = known["SwapTotal"] - known.get("SwapFree", 0)
    for core, mhz in frequencies(kept).items():
        sample.levels["cpu_frequency", "MHz", core] = mhz


def frequencies(kept: Kept) -> dict[str, float]:
    """The clock of each core in MHz, from cpufreq where there is one, else from /proc/cpuinfo."""
    found = {}
    for i in range(os.cpu_count() or 1):
        text = kept.read(f"/sys/devices/system/cpu/cpu{i}/cpufreq/scaling_cur_freq")
        if text is None:
            break
        found[f"cpu{i}"] = int(text) / 1000
    if found:
        return found
    lines = (read_once("/proc/cpuinfo") or "").splitlines()
    clocks = [line.partition(":")[2] for line in lines if line.startswith("cpu MHz")]
    return {f"cpu{i}": float(clock) for i, clock in enumerate(clocks)}
