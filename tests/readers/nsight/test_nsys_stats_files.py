from __future__ import annotations

import pytest
from nsys_stats_files import KERN, KERN_HEADER

from stepscope.readers.formats import FORMATS
from stepscope.readers.nsight.nsys_stats_files import family, has_table, is_superseded, named_by_file


def test_a_table_is_known_by_its_header():
    assert has_table(KERN_HEADER.encode())
    assert not has_table(b"Time (%),Total Time\n")
    assert not has_table(b"Time (%),Total Time (ns),12,4\n")
    assert not has_table(b"Time (%),Total Time (ns),Name," + b"(" * 5000 + b"\n")


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("run_cuda_gpu_kern_sum.csv", ("run_", "cuda_gpu_kern_sum")),
        ("run.gpukernsum.csv.gz", ("run.", "cuda_gpu_kern_sum")),
        ("cuda_api_gpu_sum.csv", ("", "cuda_api_gpu_sum")),
        ("a_b_cuda_gpu_trace_base.csv", ("a_b_", "cuda_gpu_trace")),
        ("a_nvtx_gpu_proj_sum_nvtx-name_base.csv", ("a_", "nvtx_gpu_proj_sum")),
        ("mycuda_gpu_sum.csv", None),
        ("notes.csv", None),
        ("run_cuda_gpu_kern_sum.txt", None),
    ],
)
def test_files_are_named_after_their_report(name, report):
    assert named_by_file(name) == report


def test_of_a_family_the_first_is_read_unless_there_is_an_export(tmp_path):
    first, second = (tmp_path / f"run_{report}.csv" for report in ("cuda_gpu_kern_sum", "osrt_sum"))
    for path in (second, first):
        path.write_text(KERN)
    (tmp_path / "other_osrt_sum.csv").write_text(KERN)
    assert family(str(second)) == [str(first), str(second)]
    assert [is_superseded(str(path)) for path in (first, second)] == [False, True]
    nsys_stats = next(one for one in FORMATS if one.name == "nsys-stats")
    assert [nsys_stats.sniff(str(path), KERN.encode()) for path in (first, second)] == [1.0, 0.35]
    (tmp_path / "run.sqlite").touch()
    assert is_superseded(str(first))
