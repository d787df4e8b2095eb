"""AMD's accelerators, through the library `amdsmi` that comes with ROCm: use, clocks, limits, power, memory, links.

Source of names, units and of "N/A" for what a device does not report: AMD SMI's Python API, versions 6.2 to 7.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.record.system import meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.record.counters.readings import Row

_KIB = 1 << 10
_MEGABIT_BYTES = 1e6 / 8
#: The firmware's accumulators of time in which a limit held the clocks down, in ticks of `accumulation_counter`.
_RESIDENCIES = {
    "ppt_residency_acc": "gpu_limited_by_power_cap", "socket_thm_residency_acc": "gpu_limited_by_hw_thermal",
    "hbm_thm_residency_acc": "gpu_limited_by_mem_thermal", "vr_thm_residency_acc": "gpu_limited_by_vr_thermal",
    "prochot_residency_acc": "gpu_limited_by_hw_slowdown",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpus:
    """The library, ready for use, and the devices that it sees, which count from `first`."""

    amdsmi: Any
    handles: tuple[Any, ...]
    first: int = 0
    #: Metrics by device: those that it refused, and those that it has reported at least once.
    refused: dict[str, set[str]] = field(default_factory=dict)
    reported: dict[str, set[str]] = field(default_factory=dict)
    #: The last values of the firmware's accumulators.
    ticks: dict[str, dict[str, int]] = field(default_factory=dict)


def opened(first: int = 0) -> Gpus | str:
    """The library and its devices, or in words why there are none."""
    try:
        # Without its driver's library the package prints that to standard output, which belongs to the job.
        with contextlib.redirect_stdout(io.StringIO()):
            amdsmi = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError) as error:
        return f"no AMD counters: the package amdsmi of ROCm cannot be used ({type(error).__name__}: {error})"
    try:
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
        handles = tuple(amdsmi.amdsmi_get_processor_handles())
    except amdsmi.AmdSmiException as error:
        return f"no AMD counters: {' '.join(str(error).split())}"
    return Gpus(amdsmi, handles, first) if handles else "no AMD counters: the driver sees no device"


def close(gpus: Gpus) -> None:
    """Shut the library down. An error no longer matters then."""
    with contextlib.suppress(gpus.amdsmi.AmdSmiException):
        gpus.amdsmi.amdsmi_shut_down()


def described(gpus: Gpus) -> list[dict[str, Any]]:
    """Name, memory and identity of each device, and the driver's version."""
    smi = gpus.amdsmi
    devices = []
    for device, handle in _devices(gpus):
        facts: dict[str, Any] = {"device": device, "type": "rocm"}
        for name, call in (
            ("name", lambda h: smi.amdsmi_get_gpu_asic_info(h)["market_name"]),
            ("uuid", smi.amdsmi_get_gpu_device_uuid),
            ("memory_bytes", lambda h: smi.amdsmi_get_gpu_memory_total(h, smi.AmdSmiMemoryType.VRAM)),
            ("power_limit_watts", lambda h: smi.amdsmi_get_power_cap_info(h)["power_cap"] / 1e6),
            ("driver", lambda h: smi.amdsmi_get_gpu_driver_info(h)["driver_version"]),
        ):
            for value in _asked(gpus, device, None, call, handle):
                facts[name] = value
        devices.append(facts)
    return devices


def samples(gpus: Gpus) -> Iterator[Row]:
    """Counters of each device that change quickly. What a device does not report is left out."""
    smi = gpus.amdsmi
    gfx, mem = smi.AmdSmiClkType.GFX, smi.AmdSmiClkType.MEM
    for device, handle in _devices(gpus):
        for use in _asked(gpus, device, "gpu_usage", smi.amdsmi_get_gpu_activity, handle):
            yield from _known("gpu_usage", "%", device, use["gfx_activity"])
            yield from _known("gpu_mem_usage", "%", device, use["umc_activity"])
        for metric, unit, call in (
            ("gpu_sm_frequency", "MHz", lambda h: smi.amdsmi_get_clock_info(h, gfx)["clk"]),
            ("gpu_mem_frequency", "MHz", lambda h: smi.amdsmi_get_clock_info(h, mem)["clk"]),
            ("gpu_power", "W", lambda h: _power(smi.amdsmi_get_power_info(h))),
            ("gpu_mem_used", "bytes", lambda h: smi.amdsmi_get_gpu_memory_usage(h, smi.AmdSmiMemoryType.VRAM)),
        ):
            for value in _asked(gpus, device, metric, call, handle):
                yield from _known(metric, unit, device, value)


def slow_samples(gpus: Gpus) -> Iterator[Row]:
    """Counters that change slowly or take the driver long: temperature, limits, PCIe, memory errors, processes."""
    smi = gpus.amdsmi
    heat, current = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
    memory_of: dict[int, float] = {}
    for device, handle in _devices(gpus):
        for metric, unit, scale, call in (
            ("gpu_temp", "°C", 1, lambda h: smi.amdsmi_get_temp_metric(h, heat.HOTSPOT, current)),
            ("gpu_mem_temp", "°C", 1, lambda h: smi.amdsmi_get_temp_metric(h, heat.VRAM, current)),
            ("gpu_power_limit", "W", 1e-6, lambda h: smi.amdsmi_get_power_cap_info(h)["power_cap"]),
            ("gpu_pcie_rate", "bytes/s", _MEGABIT_BYTES,
             lambda h: smi.amdsmi_get_pcie_info(h)["pcie_metric"]["pcie_bandwidth"]),
            ("gpu_ecc_uncorrected", "count", 1,
             lambda h: smi.amdsmi_get_gpu_total_ecc_count(h)["uncorrectable_count"]),
            ("gpu_ecc_corrected", "count", 1, lambda h: smi.amdsmi_get_gpu_total_ecc_count(h)["correctable_count"]),
        ):  # fmt: skip
            for value in _asked(gpus, device, metric, call, handle):
                yield from _known(metric, unit, device, value, scale)
        for metrics in _asked(gpus, device, "gpu_throttled", smi.amdsmi_get_gpu_metrics_info, handle):
            yield from _throttling(gpus, device, metrics)
        for running in _asked(gpus, device, "process_gpu_mem_usage", smi.amdsmi_get_gpu_process_list, handle):
            for process in running:
                pid = int(process["pid"])
                memory_of[pid] = memory_of.get(pid, 0.0) + float(process["memory_usage"]["vram_mem"])
    for pid, n_bytes in memory_of.items():
        yield "process_gpu_mem_usage", "bytes", f"pid:{pid}", n_bytes


def link_totals(gpus: Gpus) -> Iterator[Row]:
    """Bytes received and sent over all XGMI links of each device since the driver was loaded."""
    smi = gpus.amdsmi
    xgmi = smi.AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI
    for device, handle in _devices(gpus):
        for metrics in _asked(gpus, device, "gpu_link_receive", smi.amdsmi_get_link_metrics, handle):
            links = [link for link in metrics["links"][: metrics["num_links"]] if link["link_type"] == xgmi]
            for metric, way in (("gpu_link_receive", "read"), ("gpu_link_transmit", "write")):
                known = [link[way] for link in links if isinstance(link[way], int)]
                if known:
                    yield metric, "bytes/s", device, float(sum(known) * _KIB)


def issues(gpus: Gpus) -> list[dict[str, Any]]:
    """Metrics that devices refuse, named once."""
    rows = []
    for device, refused in gpus.refused.items():
        if missing := sorted(refused - gpus.reported.get(device, set())):
            what = f"{device} does not report: {', '.join(missing)}"
            rows.append(meta.issue("no_gpu_counters", what, severity="info", count=len(missing)))
    return rows


def _throttling(gpus: Gpus, device: str, metrics: dict[str, Any]) -> Iterator[Row]:
    """Shares of time in which each limit was active; for older devices only whether any limit is active."""
    yield from _known("gpu_throttled", "flag", device, metrics.get("throttle_status"))
    now = {name: metrics.get(name) for name in (*_RESIDENCIES, "accumulation_counter")}
    known = {name: value for name, value in now.items() if isinstance(value, int)}
    before = gpus.ticks.get(device, {})
    gpus.ticks[device] = known
    ticks = known.get("accumulation_counter", 0) - before.get("accumulation_counter", 0)
    if not before or ticks <= 0:
        return
    for name, metric in _RESIDENCIES.items():
        if name in known and name in before and known[name] >= before[name]:
            yield metric, "flag", device, min(1.0, (known[name] - before[name]) / ticks)


def _power(info: dict[str, Any]) -> Any:
    """Watts now; older devices report an average."""
    now = info.get("current_socket_power")
    return now if isinstance(now, int | float) and now else info.get("average_socket_power")


def _known(metric: str, unit: str, device: str, value: Any, scale: float = 1.0) -> Iterator[Row]:
    if isinstance(value, int | float):  # else it is "N/A"
        yield metric, unit, device, float(value) * scale


def _devices(gpus: Gpus) -> Iterator[tuple[str, Any]]:
    for i, handle in enumerate(gpus.handles, gpus.first):
        yield f"gpu{i}", handle


def _asked(gpus: Gpus, device: str, metric: str | None, call: Callable[[Any], Any], handle: Any) -> Iterator[Any]:
    """The answer, or nothing where the device or the driver has none."""
    try:
        answer = call(handle)
    except (gpus.amdsmi.AmdSmiException, KeyError):  # a version of the library that does not have the field
        if metric is not None:
            gpus.refused.setdefault(device, set()).add(metric)
        return
    if metric is not None:
        gpus.reported.setdefault(device, set()).add(metric)
    yield answer
