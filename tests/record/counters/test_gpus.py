from __future__ import annotations

import time

import pytest

from stepscope.record.counters import amdsmi, nvml
from stepscope.record.counters import gpus as _gpus


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Puts devices of NVIDIA's and AMD's in place, or why there are none, and their drivers."""

    def put(nvidia: str | int, amd: str | int, *, drivers: bool = False):
        monkeypatch.setattr(_gpus, "_NVIDIA", str(tmp_path / ("" if drivers else "none")))
        monkeypatch.setattr(_gpus, "_AMD", str(tmp_path / ("" if drivers else "none")))
        answer = nvidia if isinstance(nvidia, str) else nvml.Gpus(None, ("handle",) * nvidia)
        monkeypatch.setattr(nvml, "opened", lambda: answer)
        opened = (lambda _: amd) if isinstance(amd, str) else lambda first: amdsmi.Gpus(None, ("handle",) * amd, first)
        monkeypatch.setattr(amdsmi, "opened", opened)
        return _gpus.opened()

    return put


@pytest.mark.parametrize(
    ("nvidia", "amd", "drivers", "n_makers", "told"),
    [
        ("no NVIDIA", "no AMD", False, 0, ["no NVIDIA"]),  # once, and not of every maker there is
        ("no NVIDIA", "no AMD", True, 0, ["no NVIDIA; no AMD"]),
        (1, "no AMD", False, 1, []),
        (1, "no AMD", True, 1, ["no AMD"]),
        ("no NVIDIA", 1, False, 1, []),
        ("no NVIDIA", 1, True, 1, ["no NVIDIA"]),
        (1, 1, True, 2, []),
    ],
)
def test_what_is_missing_is_said_once(machine, nvidia, amd, drivers, n_makers, told):
    found, issues = machine(nvidia, amd, drivers=drivers)
    assert len(found) == n_makers
    assert [issue["example"] for issue in issues] == told


def test_each_maker_is_asked_through_its_library(machine, monkeypatch):
    for module, links in ((nvml, "nvlink_totals"), (amdsmi, "link_totals")):
        for name in ("described", "samples", "slow_samples", links, "issues"):
            monkeypatch.setattr(module, name, lambda gpus, name=name: [(name, len(gpus.handles))])
    monkeypatch.setattr(amdsmi, "close", lambda gpus: gpus.ticks.update(closed={}))
    (nvidia, amd), _ = machine(2, 3)
    for maker, n, links in ((nvidia, 2, "nvlink_totals"), (amd, 3, "link_totals")):
        asked = [maker.described, maker.quick, maker.slow, maker.totals, maker.issues]
        names = ["described", "samples", "slow_samples", links, "issues"]
        assert [call() for call in asked] == [[(name, n)] for name in names]
        maker.close()


def test_devices_of_both_makers_have_numbers_of_their_own(machine, monkeypatch):
    monkeypatch.setattr(amdsmi, "described", lambda gpus: [gpus.first])
    (_, amd), _ = machine(2, 1)
    assert amd.described() == [2]


def test_a_watch_samples_until_it_is_stopped():
    totals = iter(range(0, 10**9, 1000))
    closed = []
    maker = _gpus.Gpus(
        list,
        lambda: iter([("gpu_usage", "%", "gpu0", 5.0)]),
        lambda: iter([("gpu_temp", "°C", "gpu0", 60.0)]),
        lambda: iter([("gpu_nvlink_rx_rate", "bytes/s", "gpu0", float(next(totals)))]),
        list,
        lambda: closed.append(True),
    )
    told = []
    before = time.time_ns()
    watch = _gpus.GpuWatch(maker, 100, lambda t, rows: told.append((t, rows)))
    deadline = time.monotonic() + 20
    while not any(row[0] == "gpu_nvlink_rx_rate" for _, rows in told for row in rows):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    watch.stop()
    n = len(told)
    time.sleep(0.05)
    assert (len(told), closed) == (n, [True])
    assert all(before <= t <= time.time_ns() for t, _ in told)
    rate = next(row[3] for _, rows in told for row in rows if row[0] == "gpu_nvlink_rx_rate")
    assert 0 < rate <= 1000 / 0.9
