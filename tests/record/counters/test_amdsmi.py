from __future__ import annotations

import sys
from enum import IntEnum
from types import SimpleNamespace

import pytest

from stepscope.record.counters import amdsmi as _amdsmi


class AmdSmiException(Exception):
    pass


class InitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class ClkType(IntEnum):
    GFX = 0
    MEM = 4


class TemperatureType(IntEnum):
    HOTSPOT = 1
    VRAM = 2


class TemperatureMetric(IntEnum):
    CURRENT = 0


class MemoryType(IntEnum):
    VRAM = 0


class LinkType(IntEnum):
    AMDSMI_LINK_TYPE_XGMI = 1
    AMDSMI_LINK_TYPE_PCIE = 2


def refuse(*_):
    raise AmdSmiException("Error code:\n\t2 | AMDSMI_STATUS_NOT_SUPPORTED")


METRICS = {
    "throttle_status": "N/A", "accumulation_counter": 1000, "ppt_residency_acc": 10, "socket_thm_residency_acc": 0,
    "vr_thm_residency_acc": "N/A", "prochot_residency_acc": 5,
}  # fmt: skip


def library(**changes) -> SimpleNamespace:
    """A library of one MI300X, with the names and units of AMD's."""
    link = {"link_type": LinkType.AMDSMI_LINK_TYPE_XGMI, "read": 5, "write": 7}
    calls = {
        "AmdSmiException": AmdSmiException,
        "AmdSmiInitFlags": InitFlags,
        "AmdSmiClkType": ClkType,
        "AmdSmiTemperatureType": TemperatureType,
        "AmdSmiTemperatureMetric": TemperatureMetric,
        "AmdSmiMemoryType": MemoryType,
        "AmdSmiLinkType": LinkType,
        "amdsmi_init": lambda _: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["handle0"],
        "amdsmi_get_gpu_asic_info": lambda _: {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_device_uuid": lambda _: "uuid",
        "amdsmi_get_gpu_memory_total": lambda _, __: 1000,
        "amdsmi_get_gpu_memory_usage": lambda _, __: 400,
        "amdsmi_get_power_cap_info": lambda _: {"power_cap": 750_000_000},
        "amdsmi_get_gpu_driver_info": lambda _: {"driver_version": "6.8"},
        "amdsmi_get_gpu_activity": lambda _: {"gfx_activity": 90, "umc_activity": 30, "mm_activity": "N/A"},
        "amdsmi_get_clock_info": lambda _, kind: {"clk": {ClkType.GFX: 2100, ClkType.MEM: 1300}[kind]},
        "amdsmi_get_power_info": lambda _: {"current_socket_power": 512, "average_socket_power": "N/A"},
        "amdsmi_get_temp_metric": lambda _, kind, __: {1: 61, 2: 55}[kind],
        "amdsmi_get_pcie_info": lambda _: {"pcie_metric": {"pcie_bandwidth": 8000}},
        "amdsmi_get_gpu_total_ecc_count": refuse,
        "amdsmi_get_gpu_metrics_info": lambda _: METRICS,
        "amdsmi_get_gpu_process_list": lambda _: [{"pid": 7, "memory_usage": {"vram_mem": 100}}],
        "amdsmi_get_link_metrics": lambda _: {
            "num_links": 3,
            "links": [link, link, {**link, "link_type": LinkType.AMDSMI_LINK_TYPE_PCIE}, link],
        },
    }
    return SimpleNamespace(**calls | changes)


@pytest.fixture
def amdsmi(monkeypatch):
    """Puts a library in the place of AMD's."""

    def put(found, first: int = 0):
        monkeypatch.setitem(sys.modules, "amdsmi", found)
        return _amdsmi.opened(first)

    return put


def reported(rows) -> dict:
    return {(device, metric): value for metric, _, device, value in rows}


def test_why_there_are_no_devices_is_said_in_words(amdsmi, monkeypatch, tmp_path, capsys):
    assert "cannot be used (ModuleNotFoundError" in amdsmi(None)
    monkeypatch.delitem(sys.modules, "amdsmi")
    # As the package does without the driver's library.
    (tmp_path / "amdsmi.py").write_text("print('Unable to find libamd_smi.so')\n{}['libamd_smi.so']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "KeyError: 'libamd_smi.so'" in _amdsmi.opened()
    assert capsys.readouterr().out == ""
    assert amdsmi(library(amdsmi_init=refuse)).endswith("Error code: 2 | AMDSMI_STATUS_NOT_SUPPORTED")
    assert "no device" in amdsmi(library(amdsmi_get_processor_handles=list))


def test_devices_are_described_and_count_after_those_of_others(amdsmi):
    [facts] = _amdsmi.described(amdsmi(library(amdsmi_get_gpu_device_uuid=refuse), first=2))
    assert facts == {
        "device": "gpu2", "type": "rocm", "name": "AMD Instinct MI300X", "memory_bytes": 1000,
        "power_limit_watts": 750, "driver": "6.8",
    }  # fmt: skip


def test_what_changes_quickly(amdsmi):
    assert reported(_amdsmi.samples(amdsmi(library()))) == {
        ("gpu0", "gpu_usage"): 90,
        ("gpu0", "gpu_mem_usage"): 30,
        ("gpu0", "gpu_sm_frequency"): 2100,
        ("gpu0", "gpu_mem_frequency"): 1300,
        ("gpu0", "gpu_power"): 512,
        ("gpu0", "gpu_mem_used"): 400,
    }


@pytest.mark.parametrize(
    ("info", "watts"),
    [
        ({"current_socket_power": "N/A", "average_socket_power": 45}, 45),
        ({"current_socket_power": 0, "average_socket_power": 45}, 45),
        ({"average_socket_power": "N/A"}, None),
    ],
)
def test_older_devices_tell_an_average_of_power(amdsmi, info, watts):
    found = reported(_amdsmi.samples(amdsmi(library(amdsmi_get_power_info=lambda _: info))))
    assert found.get(("gpu0", "gpu_power")) == watts


def test_what_changes_slowly(amdsmi):
    gpus = amdsmi(library())
    assert reported(_amdsmi.slow_samples(gpus)) == {
        ("gpu0", "gpu_temp"): 61,
        ("gpu0", "gpu_mem_temp"): 55,
        ("gpu0", "gpu_power_limit"): 750,
        ("gpu0", "gpu_pcie_rate"): 1e9,
        ("pid:7", "process_gpu_mem_usage"): 100,
    }
    [issue] = _amdsmi.issues(gpus)
    assert issue["example"] == "gpu0 does not report: gpu_ecc_corrected, gpu_ecc_uncorrected"


def test_limits_are_shares_of_the_time_between_two_readings(amdsmi):
    answers = iter(
        [METRICS, METRICS | {"accumulation_counter": 1100, "ppt_residency_acc": 35, "throttle_status": True}]
    )
    gpus = amdsmi(library(amdsmi_get_gpu_metrics_info=lambda _: next(answers)))
    first = reported(_amdsmi.slow_samples(gpus))
    assert not [metric for _, metric in first if metric.startswith(("gpu_limited", "gpu_throttled"))]
    second = reported(_amdsmi.slow_samples(gpus))
    assert {metric: value for (_, metric), value in second.items() if "limited" in metric or "throttled" in metric} == {
        "gpu_throttled": 1,
        "gpu_limited_by_power_cap": 0.25,
        "gpu_limited_by_hw_thermal": 0,
        "gpu_limited_by_hw_slowdown": 0,
    }


def test_firmware_that_started_again_gives_no_share(amdsmi):
    answers = iter([METRICS, METRICS | {"accumulation_counter": 3}])
    gpus = amdsmi(library(amdsmi_get_gpu_metrics_info=lambda _: next(answers)))
    for _ in range(2):
        assert ("gpu0", "gpu_limited_by_power_cap") not in reported(_amdsmi.slow_samples(gpus))


def test_links_between_devices_are_counted_in_bytes(amdsmi):
    assert list(_amdsmi.link_totals(amdsmi(library()))) == [
        ("gpu_link_receive", "bytes/s", "gpu0", 10 * 1024),
        ("gpu_link_transmit", "bytes/s", "gpu0", 14 * 1024),
    ]
    none = {"num_links": 0, "links": []}
    assert not list(_amdsmi.link_totals(amdsmi(library(amdsmi_get_link_metrics=lambda _: none))))


def test_a_field_that_a_version_does_not_have_is_left_out(amdsmi):
    gpus = amdsmi(library(amdsmi_get_pcie_info=lambda _: {}))
    assert ("gpu0", "gpu_pcie_rate") not in reported(_amdsmi.slow_samples(gpus))
    assert "gpu_pcie_rate" in _amdsmi.issues(gpus)[0]["example"]


def test_the_library_is_let_go_of_even_if_it_refuses(amdsmi):
    _amdsmi.close(amdsmi(library(amdsmi_shut_down=refuse)))
