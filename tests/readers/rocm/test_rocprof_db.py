from __future__ import annotations

import pytest
from rocprof_files import database, rpd

from stepscope.core.errors import UnknownFormat, UnsupportedVersion
from stepscope.readers import open_trace
from stepscope.readers.common.source import IssueLog, Source
from stepscope.readers.common.sqlite import opened
from stepscope.readers.rocm.rocprof_db import read_database


def records_of(path):
    with opened(Source(str(path)), IssueLog()) as db:
        return read_database(db, str(path))


@pytest.mark.parametrize("views", [True, False])
def test_rocpd_is_read_through_its_views_or_tables(tmp_path, views):
    found = records_of(database(tmp_path / "a.db", views=views))
    assert found.dispatches.select(
        "start", "end", "name", "agent", "stream", "pid", "correlation", "registers", "group_x", "grid_x"
    ).rows() == [(200, 300, "add(float*)", "2", 3, 908, 55, 8, 64, 1000)]
    assert found.calls.select("name", "domain", "pid", "tid", "correlation").rows() == [
        ("hipLaunchKernel", "HIP_RUNTIME_API", 908, 909, 55)
    ]
    assert found.copies.select("kind", "bytes", "agent", "correlation").rows() == [
        ("MEMORY_COPY_HOST_TO_DEVICE", 4096, "2", 56)
    ]
    assert found.metrics.rows() == [(1, "SQ_WAVES", 16.0)]
    assert found.agents.select("agent", "index", "name", "arch").rows() == [("2", 0, "AMD Instinct MI300X", "gfx942")]
    assert found.host == "node7"
    assert "SECRET" not in repr(found)


def test_grids_of_rocpd_are_in_work_items(tmp_path):
    trace = open_trace(str(database(tmp_path / "a.db")))
    assert trace.kernels.select("grid_x", "grid_y", "block_x").rows() == [(16, 2, 64)]


def test_a_version_that_is_not_known_says_what_to_do(tmp_path):
    newer = {"rocpd_kernel_dispatch": (("id", "track_id", "start_id", "end_id"), [])}
    with pytest.raises(UnsupportedVersion, match="unknown version") as caught:
        records_of(database(tmp_path / "a.db", **newer))
    assert "rocpd convert" in caught.value.hint


def test_another_database_is_refused(tmp_path):
    path = database(tmp_path / "a.db", views=False, suffix="_x")
    with pytest.raises(UnknownFormat, match="not of AMD's profilers"):
        records_of(path)


def test_rpd_knows_operators_graphs_and_blocks(tmp_path):
    found = records_of(rpd(tmp_path / "a.rpd"))
    assert found.dispatches.select("start", "name", "group_x", "grid_x", "correlation").rows() == [
        (200, "gemm", 256, 1024, 11), (310, "gemm", None, None, 11),
    ]  # fmt: skip
    assert found.copies.select("kind", "bytes", "correlation").rows() == [("CopyHostToDevice", 4096, 13)]
    assert found.calls.select("name", "domain", "shapes").rows() == [
        ("hipLaunchKernel", "HIP", None), ("aten::mm", "operator", "[[2,3],[3,4]]"), ("hipMemcpyAsync", "HIP", None),
        ("epoch", "ROCTX", None),
    ]  # fmt: skip
    trace = open_trace(str(tmp_path / "a.rpd"))
    assert trace.meta.framework == "PyTorch"
    assert trace.kernels["grid_x"].to_list() == [4, None]
