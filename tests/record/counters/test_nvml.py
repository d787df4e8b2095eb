from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from stepscope.record.counters import nvml as _nvml


class NVMLError(Exception):
    value = 3


class NotFound(NVMLError):
    value = 6


class Timeout(NVMLError):
    value = 10


def refuse(*_):
    raise NVMLError("Not Supported")


def nothing_new(*_):
    raise NotFound


def no_event(*_):
    raise Timeout


def library(**changes) -> SimpleNamespace:
    """A library of one device, with the names and units of NVIDIA's."""
    field = SimpleNamespace
    calls = {
        "NVMLError": NVMLError,
        "NVML_ERROR_NOT_FOUND": 6,
        "nvmlEventSetCreate": lambda: "events",
        "nvmlDeviceRegisterEvents": lambda *_: None,
        "nvmlEventTypeXidCriticalError": 8,
        "nvmlEventSetWait_v2": no_event,
        "nvmlDeviceGetProcessUtilization": nothing_new,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: f"handle{i}",
        "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
        "nvmlDeviceGetUUID": lambda _: "GPU-1",
        "nvmlSystemGetDriverVersion": lambda: "570.1",
        "nvmlDeviceGetMemoryInfo": lambda _: field(total=1000, used=400),
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "nvmlDeviceGetUtilizationRates": lambda _: field(gpu=90, memory=30),
        "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1980, 2: 3201}[kind],
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "nvmlDeviceGetPowerUsage": lambda _: 350_500,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x44,
        "nvmlDeviceGetTemperature": lambda _, __: 61,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetPcieThroughput": lambda _, way: 10 + way,
        "NVML_PCIE_UTIL_TX_BYTES": 0,
        "NVML_PCIE_UTIL_RX_BYTES": 1,
        "nvmlDeviceGetTotalEccErrors": refuse,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
        "NVML_VOLATILE_ECC": 0,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            field(pid=7, usedGpuMemory=100),
            field(pid=8, usedGpuMemory=None),
        ],
        "nvmlDeviceGetFieldValues": lambda _, fields: [
            field(nvmlReturn=0, fieldId=fields[0][0], value=field(ullVal=5)),
            field(nvmlReturn=3, fieldId=fields[1][0], value=field(ullVal=0)),
        ],
    }
    return SimpleNamespace(**calls | changes)


@pytest.fixture
def nvml(monkeypatch):
    """Puts a library in the place of NVIDIA's."""

    def put(found):
        monkeypatch.setitem(sys.modules, "pynvml", found)
        return _nvml.opened()

    return put


def test_why_there_are_no_devices_is_said_in_words(nvml):
    assert "not installed" in nvml(None)
    assert nvml(library(nvmlInit=refuse)) == "no NVIDIA counters: Not Supported"
    assert "no device" in nvml(library(nvmlDeviceGetCount=lambda: 0))


def test_names_are_those_of_the_installed_library():
    real = pytest.importorskip("pynvml")
    assert not [name for name in vars(library()) if not hasattr(real, name)]


def test_devices_are_described(nvml):
    facts = {
        "device": "gpu0",
        "type": "cuda",
        "name": "NVIDIA H200",
        "uuid": "GPU-1",
        "memory_bytes": 1000,
        "driver": "570.1",
    }
    assert _nvml.described(nvml(library())) == [facts | {"power_limit_watts": 700.0}]
    bare = nvml(library(nvmlDeviceGetEnforcedPowerLimit=refuse))
    assert _nvml.described(bare) == [facts]


def test_what_changes_quickly(nvml):
    found = {
        metric: (value, unit) for metric, unit, device, value in _nvml.samples(nvml(library())) if device == "gpu0"
    }
    assert found == {
        "gpu_usage": (90, "%"),
        "gpu_mem_usage": (30, "%"),
        "gpu_sm_frequency": (1980, "MHz"),
        "gpu_mem_frequency": (3201, "MHz"),
        "gpu_power": (350.5, "W"),
        "gpu_limited_by_power_cap": (1, "flag"),
        "gpu_limited_by_hw_slowdown": (0, "flag"),
        "gpu_limited_by_sw_thermal": (0, "flag"),
        "gpu_limited_by_hw_thermal": (1, "flag"),
        "gpu_limited_by_power_brake": (0, "flag"),
        "gpu_idle_clock": (0, "flag"),
        "gpu_mem_used": (400, "bytes"),
    }


def test_an_older_library_calls_the_reasons_otherwise(nvml):
    old = library(nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x1)
    del old.nvmlDeviceGetCurrentClocksEventReasons
    found = {metric: value for metric, _, _, value in _nvml.samples(nvml(old))}
    assert (found["gpu_idle_clock"], found["gpu_limited_by_power_cap"]) == (1, 0)


def test_what_changes_slowly_and_what_a_device_does_not_tell_is_left_out(nvml):
    found = {(device, metric): value for metric, _, device, value in _nvml.slow_samples(nvml(library()))}
    assert found == {
        ("gpu0", "gpu_temp"): 61,
        ("gpu0", "gpu_power_limit"): 700,
        ("gpu0", "gpu_pcie_rx_rate"): 11 * 1024,
        ("gpu0", "gpu_pcie_tx_rate"): 10 * 1024,
        ("gpu0", "gpu_xid_errors"): 0,
        ("pid:7", "process_gpu_mem_usage"): 100,
    }


def test_links_are_counted_in_bytes(nvml):
    assert list(_nvml.nvlink_totals(nvml(library()))) == [("gpu_nvlink_rx_rate", "bytes/s", "gpu0", 5 * 1024)]


def test_use_by_processes_is_summed_over_devices_and_asked_for_since_the_last_time(nvml):
    asked = []

    def used(handle, since):
        asked.append((handle, since))
        sample = SimpleNamespace
        if since:
            raise NotFound
        return [
            sample(pid=7, timeStamp=50, smUtil=20), sample(pid=7, timeStamp=60, smUtil=40),
            sample(pid=0, timeStamp=0, smUtil=99), sample(pid=9, timeStamp=55, smUtil=5),
        ]  # fmt: skip

    gpus = nvml(library(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetProcessUtilization=used))
    found = {(device, metric): value for metric, _, device, value in _nvml.slow_samples(gpus)}
    assert found["pid:7", "process_gpu_usage"] == 60
    assert found["pid:9", "process_gpu_usage"] == 10
    assert found["pid:7", "process_gpu_mem_usage"] == 200
    assert ("pid:0", "process_gpu_usage") not in found
    again = {metric for metric, *_ in _nvml.slow_samples(gpus)}
    assert "process_gpu_usage" not in again
    assert asked == [("handle0", 0), ("handle1", 0), ("handle0", 60), ("handle1", 60)]
    assert "process_gpu_usage" not in _nvml.issues(gpus)[0]["example"]


def test_xid_errors_are_counted_and_told(nvml):
    waiting = [SimpleNamespace(eventType=8, eventData=79), SimpleNamespace(eventType=1, eventData=0)]

    def wait(events, milliseconds):
        assert (events, milliseconds) == ("events", 0)
        if not waiting:
            raise Timeout
        return waiting.pop(0)

    gpus = nvml(library(nvmlEventSetWait_v2=wait))
    for _ in range(2):
        found = {metric: value for metric, _, _, value in _nvml.slow_samples(gpus)}
        assert found["gpu_xid_errors"] == 1
    reported = {issue["code"]: issue for issue in _nvml.issues(gpus)}
    assert "gpu0 reported Xid 79" in reported["gpu_xid"]["example"]
    assert (reported["gpu_xid"]["severity"], reported["gpu_xid"]["count"]) == ("error", 1)


def test_what_a_device_never_tells_is_named_once(nvml):
    answers = iter([40, None, 41])

    def now_and_then(*_):
        if (answer := next(answers)) is None:
            raise NVMLError
        return answer

    gpus = nvml(library(nvmlDeviceGetTemperature=now_and_then, nvmlDeviceRegisterEvents=refuse))
    for _ in range(3):
        list(_nvml.slow_samples(gpus))
    [reported] = _nvml.issues(gpus)
    assert reported["example"] == "gpu0 does not report: gpu_ecc_corrected, gpu_ecc_uncorrected, gpu_xid_errors"
    assert (reported["code"], reported["severity"], reported["count"]) == ("no_gpu_counters", "info", 3)
