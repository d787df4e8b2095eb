from __future__ import annotations

import pytest
from rocprof_files import dispatch, document

from stepscope.core.errors import CorruptInput
from stepscope.readers.rocm.rocprof_json import read_json


def test_every_kind_of_record_is_read():
    found = read_json(document(), "a.json")
    assert found.dispatches.select("start", "end", "name", "agent", "stream", "pid", "correlation").rows() == [
        (200, 300, "add(float*)", "46", 3, 908, 5)
    ]
    assert found.dispatches.select("group_x", "grid_x", "grid_y", "registers", "shared_bytes").rows() == [
        (64, 256, 2, 8, 512)
    ]
    assert found.calls.select("name", "domain", "tid", "correlation").rows() == [
        ("hipLaunchKernel", "HIP_RUNTIME_API", 9, 5), ("forward", "MARKER_CORE_API", 9, 70),
    ]  # fmt: skip
    assert found.copies.select("kind", "bytes", "agent").rows() == [("MEMORY_COPY_DEVICE_TO_HOST", 4096, "46")]
    assert found.metrics.rows() == [(1, "SQ_WAVES", 4.0)]
    assert found.agents.rows() == [("46", 0, "AMD Instinct MI350X", "gfx950", 256, 309220868096)]
    assert "SECRET" not in repr(found)


def test_unknown_kernels_and_operations_have_stand_ins():
    text = document(kernel_symbols=[], strings={}, buffer_records={
        "kernel_dispatch": [dispatch(1, 2)],
        "hip_api": [{"kind": 9, "operation": 9, "start_timestamp": 1, "end_timestamp": 2}],
    })  # fmt: skip
    found = read_json(text, "a.json")
    assert found.dispatches["name"].to_list() == [None]
    assert found.calls.select("name", "domain").rows() == [("hip_api", "hip_api")]


def test_a_document_nested_without_end_is_corrupt():
    with pytest.raises(CorruptInput, match="recursion"):
        read_json(b'{"rocprofiler-sdk-tool": [], "x": ' + b"[" * 100_000, "a.json")
