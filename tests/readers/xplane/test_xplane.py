from __future__ import annotations

import gzip

import polars as pl
import pytest
import xplane_profiles as made
from chrome_traces import issues

from stepscope import report
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.readers import expand, open_trace


def test_a_profile_knows_its_framework_host_and_beginning(read):
    meta = read(made.jax_gpu()).meta
    assert (meta.format, meta.framework, meta.framework_version, meta.host) == ("xplane", "JAX/XLA", "0.10.2", "node7")
    assert meta.origin_unix_ns == 1_700_000_000_000_000_000 + 1_000  # lines begin 1 µs after the profile


def test_what_begins_as_a_plane_is_recognised_without_its_name_and_packed(read):
    assert read(made.tpu(), "anything").meta.format == "xplane"
    assert read(gzip.compress(made.tpu()), "x.xplane.pb.gz").spans.height == 8


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("PjitFunction(f)", "JAX/XLA"),
        ("FunctionRun", "TensorFlow"),
        ("torch_xla::StepMarker", "PyTorch/XLA"),
        ("something", None),
    ],
)
def test_the_framework_is_known_by_names_that_only_it_writes(read, name, framework):
    plane = made.Plane("/host:CPU")
    assert read(made.space(plane.line("python", plane.event(name, 0, 5)))).meta.framework == framework


def test_errors_of_the_recorder_and_lost_names_are_issues(read):
    plane = made.Plane("/host:CPU")
    plane.line("python", plane.event("f", 0, 5), made.content(4, made.number(1, 77) + made.number(3, 1_000)))
    trace = read(made.space(plane, errors=("no permission",)))
    assert issues(trace) == {"recorder_errors": 1, "no_metadata": 1}
    assert trace.issues.filter(code="recorder_errors")["example"].item() == "no permission"


def test_a_file_that_ends_early_gives_what_it_has_and_counts_the_damage(read):
    whole = made.tpu()
    trace = read(whole[: whole.index(b"Async XLA Ops")])
    assert trace.spans.height > 0
    assert issues(trace)["damaged_messages"] > 0
    with pytest.raises(CorruptInput, match="not one of its events"):
        read(whole[:30])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_one_flipped_byte_never_raises_anything_else(read):
    whole = made.jax_gpu()
    for number, place in enumerate(range(0, len(whole), 11)):
        data = bytearray(whole)
        data[place] ^= (0x01, 0x80)[number % 2]
        try:
            read(bytes(data)).spans.height  # noqa: B018  it is made when asked for
        except StepscopeError:
            continue


def test_files_of_several_hosts_in_the_folder_of_a_run_are_one_job(tmp_path):
    folder = tmp_path / "plugins" / "profile" / "2026_01_01"
    folder.mkdir(parents=True)
    for host in ("a", "b"):
        (folder / f"{host}.xplane.pb").write_bytes(made.jax_gpu().replace(b"node7", f"node{host}".encode()))
        (folder / f"{host}.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    files = expand([str(tmp_path)])
    assert [open_trace(file).meta.host for file in files] == ["nodea", "nodeb"]  # and not the cut copies as JSON


def test_the_report_speaks_of_jax_and_of_its_steps(read):
    text = str(report(read(made.jax_gpu())))
    assert "JAX/XLA 0.10.2" in text
    assert "steps 0–1 (2)" in text
    assert "profiler.step" not in text
    assert "show hlo_ops" in text


def test_kernels_of_a_tpu_are_compared_with_the_peaks_of_its_plane(read):
    table = read(made.tpu()).show("roofline", by="kernel")
    row = table.row(by_predicate=pl.col("name") == "fusion.1", named=True)
    assert (row["flop"], row["bytes"], row["calls"]) == (4_000, 128, 2)
    assert (row["peak_flop_per_s"], row["peak_bytes_per_s"]) == (918e12, 1640e9)
    assert row["accelerator"] == "TPU v6 Lite (recorded peaks)"


def test_a_device_that_only_states_what_it_has_is_named_if_one_product_has_that(read):
    stated = {"core_count": 304, "clock_rate": 2_100_000, "memory_size": 206_141_652_992}
    for facts, name in ((stated, "MI300X"), (stated | {"core_count": 303}, None)):
        plane = made.Plane("/device:GPU:0", **facts)
        plane.line("Stream #1(Compute)", plane.event("gemm", 0, 5))
        assert read(made.space(plane)).devices["name"].to_list() == [None, name]
