"""NVIDIA's accelerators, through the NVIDIA Management Library: use, clocks, why they are low, power, memory, links."""

from __future__ import annotations

import importlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.record._readings import Row

__all__ = ["Gpus", "Watch", "described", "opened", "samples", "slow_samples"]

#: Each bit of the clocks' event reasons, as a counter of 0 or 1. Names and bits: nvml.h.
_REASONS = {
    0x4: "gpu_limited_by_power_cap", 0x8: "gpu_limited_by_hw_slowdown", 0x20: "gpu_limited_by_sw_thermal",
    0x40: "gpu_limited_by_hw_thermal", 0x80: "gpu_limited_by_power_brake",
}  # fmt: skip
_IDLE = 0x1
_KIB = 1 << 10
#: nvml.h: NVLINK_THROUGHPUT_DATA_RX and _TX, in KiB since the driver was loaded, all links together.
_FIELD_NVLINK_TX, _FIELD_NVLINK_RX, _ALL_LINKS = 138, 139, 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Gpus:
    """The library, ready for use, and the devices that it sees."""

    nvml: Any
    handles: tuple[Any, ...]


def opened() -> Gpus | str:
    """The library and its devices, or in words why there are none."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return "no NVIDIA counters: the package nvidia-ml-py is not installed (pip install 'stepscope[record]')"
    try:
        nvml.nvmlInit()
        n = nvml.nvmlDeviceGetCount()
        handles = tuple(nvml.nvmlDeviceGetHandleByIndex(i) for i in range(n))
    except nvml.NVMLError as error:
        return f"no NVIDIA counters: {error}"
    return Gpus(nvml, handles) if handles else "no NVIDIA counters: the driver sees no device"


def described(gpus: Gpus) -> list[dict[str, Any]]:
    """Name, memory and identity of each device, and the driver's version."""
    nvml = gpus.nvml
    found = []
    for i, handle in enumerate(gpus.handles):
        facts: dict[str, Any] = {"device": f"gpu{i}"}
        for name, call in (
            ("name", lambda h: _text(nvml.nvmlDeviceGetName(h))),
            ("uuid", lambda h: _text(nvml.nvmlDeviceGetUUID(h))),
            ("memory_bytes", lambda h: int(nvml.nvmlDeviceGetMemoryInfo(h).total)),
            ("power_limit_watts", lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000),
            ("driver", lambda _: _text(nvml.nvmlSystemGetDriverVersion())),
        ):
            for value in _asked(nvml, call, handle):
                facts[name] = value
        found.append(facts)
    return found


def samples(gpus: Gpus) -> Iterator[Row]:
    """What changes quickly, of each device. What a device does not tell is left out."""
    nvml = gpus.nvml
    for i, handle in enumerate(gpus.handles):
        device = f"gpu{i}"
        for use in _asked(nvml, nvml.nvmlDeviceGetUtilizationRates, handle):
            yield "gpu_usage", "%", device, float(use.gpu)
            yield "gpu_mem_usage", "%", device, float(use.memory)
        for metric, unit, scale, call in (
            ("gpu_sm_frequency", "MHz", 1.0, lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
            ("gpu_mem_frequency", "MHz", 1.0, lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)),
            ("gpu_power", "W", 1e-3, nvml.nvmlDeviceGetPowerUsage),
        ):
            for value in _asked(nvml, call, handle):
                yield metric, unit, device, value * scale
        for bits in _asked(nvml, _reasons_call(nvml), handle):
            for bit, metric in _REASONS.items():
                yield metric, "flag", device, float(bool(bits & bit))
            yield "gpu_idle_clock", "flag", device, float(bool(bits & _IDLE))
        for memory in _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle):
            yield "gpu_mem_used", "bytes", device, float(memory.used)


def slow_samples(gpus: Gpus) -> Iterator[Row]:
    """What changes slowly, or takes the driver 20 ms to tell (PCIe): temperature, links, memory errors, processes."""
    nvml = gpus.nvml
    for i, handle in enumerate(gpus.handles):
        device = f"gpu{i}"
        for metric, unit, scale, call in (
            ("gpu_temp", "°C", 1, lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
            ("gpu_power_limit", "W", 1e-3, nvml.nvmlDeviceGetEnforcedPowerLimit),
            ("gpu_pcie_rx_rate", "bytes/s", _KIB,
             lambda h: nvml.nvmlDeviceGetPcieThroughput(h, nvml.NVML_PCIE_UTIL_RX_BYTES)),
            ("gpu_pcie_tx_rate", "bytes/s", _KIB,
             lambda h: nvml.nvmlDeviceGetPcieThroughput(h, nvml.NVML_PCIE_UTIL_TX_BYTES)),
            ("gpu_ecc_uncorrected", "count", 1, lambda h: nvml.nvmlDeviceGetTotalEccErrors(
                h, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)),
            ("gpu_ecc_corrected", "count", 1, lambda h: nvml.nvmlDeviceGetTotalEccErrors(
                h, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC)),
        ):  # fmt: skip
            for value in _asked(nvml, call, handle):
                yield metric, unit, device, float(value * scale)
        for running in _asked(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle):
            for process in running:
                if process.usedGpuMemory is not None:
                    yield "process_gpu_mem_usage", "bytes", f"pid:{process.pid}", float(process.usedGpuMemory)


def nvlink_totals(gpus: Gpus) -> Iterator[Row]:
    """Bytes that came and went over all NVLinks of each device, since the driver was loaded."""
    nvml = gpus.nvml
    fields = {_FIELD_NVLINK_RX: "gpu_nvlink_rx_rate", _FIELD_NVLINK_TX: "gpu_nvlink_tx_rate"}
    wanted = [(field, _ALL_LINKS) for field in fields]
    for i, handle in enumerate(gpus.handles):
        for values in _asked(nvml, lambda h: nvml.nvmlDeviceGetFieldValues(h, wanted), handle):
            for value in values:
                if value.nvmlReturn == 0:
                    yield fields[value.fieldId], "bytes/s", f"gpu{i}", float(value.value.ullVal) * _KIB


class Watch:
    """Samples the devices on a thread of its own: their driver may take its time, and the host's samples must not wait.

    `tell(time_ns, rows)` is called on that thread.
    """

    def __init__(self, gpus: Gpus, hz: float, tell: Callable[[int, list[Row]], None]) -> None:
        self._gpus, self._period, self._tell = gpus, 1 / hz, tell
        self._stop = threading.Event()
        self._links: dict[tuple[str, str], tuple[int, float]] = {}
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, after the sample under way."""
        self._stop.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        next_slow = 0.0
        while not self._stop.wait(self._period):
            now = time.time_ns()
            rows = list(samples(self._gpus))
            self._tell(now, rows)
            if time.monotonic() >= next_slow:
                next_slow = time.monotonic() + 1
                now = time.time_ns()
                self._tell(now, [*slow_samples(self._gpus), *self._link_rates()])

    def _link_rates(self) -> Iterator[Row]:
        for metric, unit, device, total in nvlink_totals(self._gpus):
            now = time.monotonic_ns()
            then, before = self._links.get((metric, device), (now, total))
            self._links[metric, device] = (now, total)
            if now > then and total >= before:
                yield metric, unit, device, (total - before) / (now - then) * 1e9


def _asked(nvml: Any, call: Callable[[Any], Any], handle: Any) -> Iterator[Any]:
    """The answer, or nothing where the device or the driver has none."""
    try:
        yield call(handle)
    except nvml.NVMLError:
        return


def _reasons_call(nvml: Any) -> Callable[[Any], int]:
    # Renamed by NVIDIA; both names mean the same bits.
    new = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    call: Callable[[Any], int] = new or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return call


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
