from __future__ import annotations

import threading
import time

import pytest
from fakes import Clock

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


def test_a_watch_samples_until_it_is_stopped(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_gpus, "time", clock)
    totals = iter(range(0, 10**9, 1000))
    closed = []
    done = threading.Event()

    def quick():
        clock.sleep(0.25)
        return iter([("gpu_usage", "%", "gpu0", 5.0)])

    maker = _gpus.Gpus(
        list,
        quick,
        lambda: iter([("gpu_temp", "°C", "gpu0", 60.0)]),
        lambda: iter([("gpu_nvlink_rx_rate", "bytes/s", "gpu0", float(next(totals)))]),
        list,
        lambda: closed.append(True),
    )
    samples = []

    def on_sample(time_ns: int, rows: list) -> None:
        samples.append((time_ns, rows))
        if rows[-1][0] == "gpu_nvlink_rx_rate":
            done.set()

    began = clock.time_ns()
    watch = _gpus.GpuWatch(maker, 1000, on_sample)
    assert done.wait(20)
    watch.stop()
    n = len(samples)
    time.sleep(0.02)
    assert (len(samples), closed) == (n, [True])
    times = [time_ns for time_ns, _ in samples]
    assert times == sorted(times)
    assert began <= times[0] <= times[-1] <= clock.time_ns()
    rates = [row[3] for _, rows in samples for row in rows if row[0] == "gpu_nvlink_rx_rate"]
    assert rates[0] == 1000  # bytes in the second between two slow samples
    assert [row[0] for _, rows in samples for row in rows][:6] == [
        "gpu_usage", "gpu_temp", "gpu_usage", "gpu_usage", "gpu_usage", "gpu_usage",
    ]  # fmt: skip
