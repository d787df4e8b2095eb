"""NVIDIA's accelerators, through the NVIDIA Management Library: use, clocks, why they are low, power, memory, links."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.record.system import meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.record.counters.readings import Row

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
    #: The set that receives each device's Xid and memory errors; None if the device cannot report them.
    events: tuple[Any, ...] = ()
    #: Metrics by device: those that it refused, and those that it has reported at least once.
    refused: dict[str, set[str]] = field(default_factory=dict)
    reported: dict[str, set[str]] = field(default_factory=dict)
    #: Xid errors by device: how often each number came.
    xids: dict[str, dict[int, int]] = field(default_factory=dict)
    #: When each device's last sample of its processes was taken, by the driver's clock. Units: µs.
    last_us: dict[str, int] = field(default_factory=dict)


def opened() -> Gpus | str:
    """The library and its devices, or in words why there are none."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return "no NVIDIA counters: the package nvidia-ml-py is not installed: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        n = nvml.nvmlDeviceGetCount()
        handles = tuple(nvml.nvmlDeviceGetHandleByIndex(i) for i in range(n))
    except nvml.NVMLError as error:
        return f"no NVIDIA counters: {error}"
    if not handles:
        return "no NVIDIA counters: the driver sees no device"
    return Gpus(nvml, handles, tuple(_listening(nvml, handle) for handle in handles))


def _listening(nvml: Any, handle: Any) -> Any:
    """The set that receives a device's Xid errors; None if the driver has none (in some containers)."""
    try:
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    except nvml.NVMLError:
        return None
    return events


def described(gpus: Gpus) -> list[dict[str, Any]]:
    """Name, memory and identity of each device, and the driver's version."""
    nvml = gpus.nvml
    devices = []
    for i, handle in enumerate(gpus.handles):
        device = f"gpu{i}"
        facts: dict[str, Any] = {"device": device, "type": "cuda"}
        for name, call in (
            ("name", lambda h: _text(nvml.nvmlDeviceGetName(h))),
            ("uuid", lambda h: _text(nvml.nvmlDeviceGetUUID(h))),
            ("memory_bytes", lambda h: int(nvml.nvmlDeviceGetMemoryInfo(h).total)),
            ("power_limit_watts", lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000),
            ("driver", lambda _: _text(nvml.nvmlSystemGetDriverVersion())),
        ):
            for value in _asked(gpus, device, None, call, handle):
                facts[name] = value
        devices.append(facts)
    return devices


def samples(gpus: Gpus) -> Iterator[Row]:
    """Counters of each device that change quickly. What a device does not report is left out."""
    nvml = gpus.nvml
    for i, handle in enumerate(gpus.handles):
        device = f"gpu{i}"
        for use in _asked(gpus, device, "gpu_usage", nvml.nvmlDeviceGetUtilizationRates, handle):
            yield "gpu_usage", "%", device, float(use.gpu)
            yield "gpu_mem_usage", "%", device, float(use.memory)
        for metric, unit, scale, call in (
            ("gpu_sm_frequency", "MHz", 1.0, lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
            ("gpu_mem_frequency", "MHz", 1.0, lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)),
            ("gpu_power", "W", 1e-3, nvml.nvmlDeviceGetPowerUsage),
        ):
            for value in _asked(gpus, device, metric, call, handle):
                yield metric, unit, device, value * scale
        for bits in _asked(gpus, device, "gpu_limited_by_power_cap", _reasons_call(nvml), handle):
            for bit, metric in _REASONS.items():
                yield metric, "flag", device, float(bool(bits & bit))
            yield "gpu_idle_clock", "flag", device, float(bool(bits & _IDLE))
        for memory in _asked(gpus, device, "gpu_mem_used", nvml.nvmlDeviceGetMemoryInfo, handle):
            yield "gpu_mem_used", "bytes", device, float(memory.used)


def slow_samples(gpus: Gpus) -> Iterator[Row]:
    """Counters that change slowly or take the driver 20 ms (PCIe): temperature, links, memory errors, processes."""
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
            for value in _asked(gpus, device, metric, call, handle):
                yield metric, unit, device, float(value * scale)
        n_xids = sum(_new_xids(gpus, i, device).values())
        if gpus.events[i] is not None:
            yield "gpu_xid_errors", "count", device, float(n_xids)
    yield from _processes(gpus)


def _processes(gpus: Gpus) -> Iterator[Row]:
    """Memory and use of each process, over all devices: 100 % is all of one device."""
    nvml = gpus.nvml
    memory_of: dict[int, float] = {}
    use_of: dict[int, float] = {}
    for i, handle in enumerate(gpus.handles):
        device = f"gpu{i}"
        for running in _asked(gpus, device, "process_gpu_mem_usage", nvml.nvmlDeviceGetComputeRunningProcesses, handle):
            for process in running:
                if process.usedGpuMemory is not None:
                    memory_of[process.pid] = memory_of.get(process.pid, 0.0) + float(process.usedGpuMemory)
        since = gpus.last_us.get(device, 0)
        call = partial(_used_since, nvml, since)
        for used in _asked(gpus, device, "process_gpu_usage", call, handle):
            for pid, percents in _by_pid(used).items():
                use_of[pid] = use_of.get(pid, 0.0) + sum(percents) / len(percents)
            gpus.last_us[device] = max((sample.timeStamp for sample in used), default=since)
    for pid, n_bytes in memory_of.items():
        yield "process_gpu_mem_usage", "bytes", f"pid:{pid}", n_bytes
    for pid, percent in use_of.items():
        yield "process_gpu_usage", "%", f"pid:{pid}", percent


def _used_since(nvml: Any, since_us: int, handle: Any) -> Any:
    return nvml.nvmlDeviceGetProcessUtilization(handle, since_us)


def _by_pid(samples: Any) -> dict[int, list[float]]:
    use: dict[int, list[float]] = {}
    for sample in samples:
        if sample.timeStamp:  # the driver leaves places of its list empty
            use.setdefault(sample.pid, []).append(float(sample.smUtil))
    return use


def _new_xids(gpus: Gpus, i: int, device: str) -> dict[int, int]:
    """Reads the errors since the last call without waiting for new ones. Returns all errors of the device so far."""
    counts = gpus.xids.setdefault(device, {})
    while gpus.events[i] is not None:
        try:
            event = gpus.nvml.nvmlEventSetWait_v2(gpus.events[i], 0)
        except gpus.nvml.NVMLError:  # there is none
            break
        if event.eventType == gpus.nvml.nvmlEventTypeXidCriticalError:
            counts[int(event.eventData)] = counts.get(int(event.eventData), 0) + 1
    return counts


def issues(gpus: Gpus) -> list[dict[str, Any]]:
    """Metrics that devices refuse, named once, and the Xid errors that came."""
    rows = []
    for i in range(len(gpus.handles)):
        device = f"gpu{i}"
        missing = gpus.refused.get(device, set()) - gpus.reported.get(device, set())
        if gpus.events[i] is None:
            missing.add("gpu_xid_errors")
        if missing:
            what = f"{device} does not report: {', '.join(sorted(missing))}"
            rows.append(meta.issue("no_gpu_counters", what, severity="info", count=len(missing)))
        for number, count in gpus.xids.get(device, {}).items():
            what = f"{device} reported Xid {number} (see NVIDIA's list of Xid errors)"
            rows.append(meta.issue("gpu_xid", what, severity="error", count=count))
    return rows


def nvlink_totals(gpus: Gpus) -> Iterator[Row]:
    """Bytes received and sent over all NVLinks of each device since the driver was loaded."""
    nvml = gpus.nvml
    fields = {_FIELD_NVLINK_RX: "gpu_nvlink_rx_rate", _FIELD_NVLINK_TX: "gpu_nvlink_tx_rate"}
    wanted = [(field, _ALL_LINKS) for field in fields]
    for i, handle in enumerate(gpus.handles):
        for values in _asked(
            gpus, f"gpu{i}", "gpu_nvlink_rx_rate", lambda h: nvml.nvmlDeviceGetFieldValues(h, wanted), handle
        ):
            for value in values:
                if value.nvmlReturn == 0:
                    yield fields[value.fieldId], "bytes/s", f"gpu{i}", float(value.value.ullVal) * _KIB


def _asked(gpus: Gpus, device: str, metric: str | None, call: Callable[[Any], Any], handle: Any) -> Iterator[Any]:
    """The answer, or nothing where the device or the driver has none."""
    nvml = gpus.nvml
    try:
        answer = call(handle)
    except nvml.NVMLError as error:
        # "Not found" is the answer that nothing is new.
        is_refused = getattr(error, "value", None) != nvml.NVML_ERROR_NOT_FOUND
        if metric is not None and is_refused:
            gpus.refused.setdefault(device, set()).add(metric)
        return
    if metric is not None:
        gpus.reported.setdefault(device, set()).add(metric)
    yield answer


def _reasons_call(nvml: Any) -> Callable[[Any], int]:
    # Renamed by NVIDIA; both names mean the same bits.
    new = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    call: Callable[[Any], int] = new or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return call


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
