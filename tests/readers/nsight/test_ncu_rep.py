"""The package that reads reports is not needed here: what it offers is acted out."""

from __future__ import annotations

import gzip
import sys
from types import ModuleType, SimpleNamespace

import pytest

from stepscope.core import files
from stepscope.core.errors import CorruptInput, MissingExtra
from stepscope.readers import open_trace, reader_for

MAGIC = b"NVR\0report"
METRICS = {
    "gpu__time_duration.sum": (26_112, "ns"),
    "dram__bytes.sum": (1.5, "Mbyte"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": (float("nan"), "%"),
    "launch__grid_dim_x": (96, ""), "launch__grid_dim_y": (1, ""), "launch__grid_dim_z": (1, ""),
    "launch__block_dim_x": (128, ""), "launch__block_dim_y": (1, ""), "launch__block_dim_z": (1, ""),
    "launch__stream_id": (7.0, ""), "launch__device_id": (1, ""),
    "device__attribute_compute_capability_major": (8, ""), "device__attribute_compute_capability_minor": (0, ""),
    "device__attribute_display_name": ("NVIDIA A100", ""),
    "launch__func_cache_config": ("CachePreferNone", ""),
    "absent": (None, ""),
}  # fmt: skip


class Action:
    NameBase_DEMANGLED, NameBase_FUNCTION = 1, 0

    def __init__(self, name: str, kind: int = 0):
        self._name, self._kind = name, kind

    def name(self, base):
        return self._name if base == self.NameBase_DEMANGLED else ""

    def workload_type(self):
        return self._kind

    def metric_names(self):
        return tuple(METRICS)

    def metric_by_name(self, name):
        value, unit = METRICS[name]
        return SimpleNamespace(value=lambda: value, unit=lambda: unit, has_value=lambda: value is not None)


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A file, and what the package makes of it."""
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(MAGIC)
    seen = []

    def of(*actions, packed=False, url=None):
        part = SimpleNamespace(num_actions=lambda: len(actions), action_by_idx=lambda i: actions[i])
        whole = SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda _: part)

        def load_report(name):
            with open(name, "rb") as file:  # noqa: PTH123  as the package does
                seen.append(file.read())
            return whole

        package = ModuleType("ncu_report")
        package.load_report = load_report
        monkeypatch.setitem(sys.modules, "ncu_report", package)
        if packed:
            path.write_bytes(gzip.compress(MAGIC))
        if url is not None:
            files.write(url, path.read_bytes())
        return open_trace(url or str(path))

    of.seen = seen
    return of


@pytest.mark.parametrize("packed", [False, True])
def test_kernels_with_all_their_numbers(report, packed):
    trace = report(Action("void gemm<int>(T1)"), packed=packed)
    assert report.seen == [MAGIC]
    assert trace.spans.select("name", "dur_ns").rows() == [("void gemm<int>(T1)", 26_112)]
    values = {metric: (unit, value) for _, metric, unit, value in trace.kernel_metrics.rows()}
    assert values["dram__bytes.sum"] == ("byte", 1.5e6)
    assert values["sm__throughput.avg.pct_of_peak_sustained_elapsed"] == ("%", None)
    assert values["absent"] == ("", None)
    assert "launch__func_cache_config" not in values
    assert trace.kernels.select("grid_x", "block_x").rows() == [(96, 128)]
    assert trace.devices.select("index", "name", "compute_capability").rows() == [(1, "NVIDIA A100", "8.0")]
    assert trace.tracks["stream"].to_list() == [7]


def test_a_size_that_is_no_64_bit_number_is_unknown(report, monkeypatch):
    monkeypatch.setitem(METRICS, "launch__grid_dim_x", (5e301, ""))
    assert report(Action("gemm")).kernels.select("grid_x", "block_x").rows() == [(None, 128)]


def test_graphs_and_ranges_are_left_out_and_counted(report):
    trace = report(Action("gemm"), Action("graph", 2))
    assert trace.spans.height == 1
    assert ("not_kernels", 1) in trace.issues.select("code", "count").rows()


def test_a_report_without_kernels_or_that_cannot_be_read(report, monkeypatch, tmp_path):
    with pytest.raises(CorruptInput, match="no kernel launches"):
        report(Action("graph", 2))

    def broken(_name):
        raise RuntimeError("bad file")

    monkeypatch.setattr(sys.modules["ncu_report"], "load_report", broken)
    with pytest.raises(CorruptInput, match="bad file"):
        open_trace(str(tmp_path / "a.ncu-rep"))


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    path = tmp_path / "a.ncu-rep"
    path.write_bytes(MAGIC)
    with pytest.raises(MissingExtra) as caught:
        open_trace(str(path))
    assert caught.value.hint == "install the extra ncu: pip install '.[ncu]' in a checkout of stepscope"


def test_it_is_known_by_its_first_bytes():
    assert reader_for("x", MAGIC).name == "ncu-rep"


def test_a_report_in_an_object_store_is_fetched(report):
    assert report(Action("gemm"), url="memory://ncu-test/a.ncu-rep").spans.height == 1
    assert report.seen == [MAGIC]
