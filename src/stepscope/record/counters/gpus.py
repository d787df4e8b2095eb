"""Accelerators of all makers, sampled on a thread of their own: drivers can be slow, and the host must not wait."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.record.counters import amdsmi, nvml
from stepscope.record.system import meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.record.counters.readings import Row

#: Files that exist if the maker's driver is loaded.
_NVIDIA, _AMD = "/proc/driver/nvidia", "/sys/class/kfd"


@dataclass(frozen=True, slots=True)
class Gpus:
    """What a maker's library reports: counters that change quickly, or slowly, and totals whose growth is a rate."""

    described: Callable[[], list[dict[str, Any]]]
    quick: Callable[[], Iterator[Row]]
    slow: Callable[[], Iterator[Row]]
    totals: Callable[[], Iterator[Row]]
    #: At the end: the counters that the devices did not report, and errors that they did.
    issues: Callable[[], list[dict[str, Any]]]
    close: Callable[[], None]


def opened() -> tuple[list[Gpus], list[dict[str, Any]]]:
    """The makers that have devices here. As an issue: why there are none, or none of a maker whose driver is loaded."""
    makers, reasons = [], []
    nvidia = nvml.opened()
    if not isinstance(nvidia, str):
        makers.append(_of_nvidia(nvidia))
    amd = amdsmi.opened(0 if isinstance(nvidia, str) else len(nvidia.handles))
    if not isinstance(amd, str):
        makers.append(_of_amd(amd))
    if isinstance(nvidia, str) and (not makers or Path(_NVIDIA).exists()):
        reasons.append(nvidia)
    if isinstance(amd, str) and Path(_AMD).exists():
        reasons.append(amd)
    return makers, [meta.issue("no_gpu_counters", "; ".join(reasons), severity="info")] if reasons else []


def _of_nvidia(gpus: nvml.Gpus) -> Gpus:
    return Gpus(
        lambda: nvml.described(gpus),
        lambda: nvml.samples(gpus),
        lambda: nvml.slow_samples(gpus),
        lambda: nvml.nvlink_totals(gpus),
        lambda: nvml.issues(gpus),
        lambda: None,
    )


def _of_amd(gpus: amdsmi.Gpus) -> Gpus:
    return Gpus(
        lambda: amdsmi.described(gpus),
        lambda: amdsmi.samples(gpus),
        lambda: amdsmi.slow_samples(gpus),
        lambda: amdsmi.link_totals(gpus),
        lambda: amdsmi.issues(gpus),
        lambda: amdsmi.close(gpus),
    )


class GpuWatch:
    """Samples the devices on a thread of its own. `on_sample(time_ns, rows)` is called on that thread."""

    def __init__(self, gpus: Gpus, hz: float, on_sample: Callable[[int, list[Row]], None]) -> None:
        self._gpus, self._period, self._on_sample = gpus, 1 / hz, on_sample
        self._stop = threading.Event()
        self._before: dict[tuple[str, str], tuple[int, float]] = {}
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, after the current sample."""
        self._stop.set()
        self._thread.join(timeout=2)
        if not self._thread.is_alive():
            self._gpus.close()

    def _run(self) -> None:
        next_slow = 0.0
        while not self._stop.wait(self._period):
            now = time.time_ns()
            self._on_sample(now, list(self._gpus.quick()))
            if time.monotonic() >= next_slow:
                next_slow = time.monotonic() + 1
                now = time.time_ns()
                self._on_sample(now, [*self._gpus.slow(), *self._rates()])

    def _rates(self) -> Iterator[Row]:
        for metric, unit, device, total in self._gpus.totals():
            now = time.monotonic_ns()
            then, before = self._before.get((metric, device), (now, total))
            self._before[metric, device] = (now, total)
            if now > then and total >= before:
                yield metric, unit, device, (total - before) / (now - then) * 1e9
