from __future__ import annotations

import gzip
import random

import polars as pl
import pytest
from nsys_stats_files import (
    API,
    API_TRACE,
    GPU_TRACE,
    KERN,
    KERN_HEADER,
    NVTX,
    OSRT,
    PUSHPOP_TRACE,
    SIZES,
    TIMES,
    announced,
    left_out,
)

from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.core.trace import Results, Trace
from stepscope.readers import expand, open_trace, reader_for

PREAMBLE = "Generating SQLite file /tmp/a.sqlite from /tmp/a.nsys-rep\n"


@pytest.fixture
def read(tmp_path):
    def of(text: str | bytes, name: str = "stats.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return open_trace(str(path))

    return of


def codes(trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").rows())


def test_a_summary_is_a_result_under_the_name_of_its_report(read):
    found = read(KERN)
    assert isinstance(found, Results)
    assert (found.meta.format, found.meta.n_events) == ("nsys-stats", 2)
    assert set(found.results) == {"cuda_gpu_kern_sum", "kernels"}
    assert found.result("cuda_gpu_kern_sum")["total_ns"].to_list() == [3000, 1000]


def test_tables_of_one_file_are_told_by_the_lines_between_them(read):
    text = PREAMBLE + left_out("nvtx_sum", "NV Tools Extension (NVTX)") + announced("osrt_sum", OSRT)
    text += announced("cuda_gpu_kern_sum", KERN) + announced("cuda_gpu_mem_size_sum", SIZES)
    found = read(text)
    assert set(found.results) == {"osrt_sum", "cuda_gpu_kern_sum", "kernels", "cuda_gpu_mem_size_sum"}
    assert codes(found) == {"reports_skipped": 1, "rounded": 6}


def test_files_of_one_run_are_read_together(read, tmp_path):
    (tmp_path / "run_cuda_gpu_kern_sum.csv").write_text(KERN)
    (tmp_path / "run_cuda_api_sum.csv").write_text(API)
    (tmp_path / "other_osrt_sum.csv").write_text(OSRT)
    found = read(SIZES, "run_cuda_gpu_mem_size_sum.csv")
    assert set(found.results) == {"cuda_api_sum", "cuda_gpu_kern_sum", "kernels", "cuda_gpu_mem_size_sum"}
    firsts = [str(tmp_path / name) for name in ("other_osrt_sum.csv", "run_cuda_api_sum.csv")]
    assert expand([str(tmp_path)]) == firsts
    assert expand([str(tmp_path / "*.csv")]) == firsts
    one = str(tmp_path / "run_cuda_gpu_kern_sum.csv")
    assert expand([one]) == [one]


def test_a_file_of_the_run_that_cannot_be_read_is_an_issue(read, tmp_path):
    (tmp_path / "run_osrt_sum.csv").mkdir()
    assert codes(read(KERN, "run_cuda_gpu_kern_sum.csv")) == {"file_unreadable": 1}


def test_beside_an_export_to_sqlite_summaries_stand_back(tmp_path):
    (tmp_path / "run_gpukernsum.csv").write_text(KERN)
    (tmp_path / "run.sqlite").write_bytes(b"SQLite format 3\0 META_DATA_EXPORT")
    assert expand([str(tmp_path)]) == [str(tmp_path / "run.sqlite")]
    assert reader_for(str(tmp_path / "run_gpukernsum.csv"), KERN.encode()).name == "nsys-stats"


def test_reports_of_events_are_a_recording(read):
    trace = read(announced("cuda_gpu_trace", GPU_TRACE) + announced("cuda_api_trace", API_TRACE))
    assert type(trace) is Trace
    assert trace.has_clock
    assert trace.spans.height == 7


def test_a_file_may_hold_both(read):
    found = read(announced("cuda_gpu_trace", GPU_TRACE) + announced("cuda_gpu_kern_sum", KERN))
    assert isinstance(found, Results)
    assert found.spans.height == 4
    assert found.result("cuda_gpu_kern_sum").height == 2


@pytest.mark.parametrize("packed", [gzip.compress, lambda text: text.decode().replace("\n", "\r\n").encode("utf-16")])
def test_packed_and_written_by_a_windows_shell(read, packed):
    assert read(packed(KERN.encode())).result("cuda_gpu_kern_sum").height == 2


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (KERN_HEADER, CorruptInput, "a header and no rows"),
        (announced("cuda_gpu_trace", GPU_TRACE.partition("\n")[0] + "\n"), CorruptInput, "a header and no rows"),
        (GPU_TRACE.partition("\n")[0] + "\n,,,,,,,,,,,,,,,,,,,,x\n", CorruptInput, "not one of its rows"),
        (PREAMBLE + left_out("nvtx_sum", "NVTX"), StepscopeError, "nsys stats says: does not contain NVTX data"),
        (PREAMBLE, UnknownFormat, "no table"),
        (
            "Name,Projected Start (ns),Projected Duration (ns),Style\nstep,1,2,PushPop\n",
            UnknownFormat,
            "reports of nsys stats that are not read: the one of name, projected start",
        ),
        (
            " Time (%)  Total Time (ns)  Instances  Name\n --------  -----\n    75.0  3,000  3  add\n",
            UnknownFormat,
            "printed for people",
        ),
        ("shortName,calls,total_ns\n18318,3258,665015457\n", UnknownFormat, "StringIds"),
    ],
    ids=["header", "trace", "rows", "skipped", "nothing", "unread", "text", "numbers"],
)
def test_what_holds_nothing_is_refused_with_what_to_do(read, text, kind, words):
    with pytest.raises(kind, match=words) as caught:
        read(text)
    assert caught.value.hint


def test_damage_is_told(read):
    whole = gzip.compress(
        b"".join(KERN_HEADER.encode() + f"1.0,{i},1,1,1,1,1,1,k{i * 7919}\n".encode() for i in range(3000))
    )
    found = read(whole[: len(whole) // 2])
    assert 0 < found.result("cuda_gpu_kern_sum").height < 3000
    assert "damaged_packing" in codes(found)
    with pytest.raises(CorruptInput, match="gzip"):
        read(gzip.compress(KERN.encode())[:40], "b.csv.gz")


def test_damage_before_the_first_table_is_the_error(read):
    text = PREAMBLE.encode() + random.Random(1).randbytes(3000).replace(b"\n", b"") + b"\n" + KERN.encode()
    with pytest.raises(CorruptInput, match="gzip data ends early"):
        read(gzip.compress(text)[:1000])


def test_a_file_that_unpacks_to_more_than_allowed_is_refused(tmp_path):
    (tmp_path / "run_osrt_sum.csv").write_text(OSRT)
    with pytest.raises(StepscopeError, match="more than 10 bytes"):
        open_trace(str(tmp_path / "run_osrt_sum.csv"), max_bytes=10)


def test_reports_that_have_no_place_are_named(read):
    other = "Name,Projected Start (ns),Projected Duration (ns),Style\nstep,1,2,PushPop\n"
    found = read(announced("cuda_gpu_kern_sum", KERN) + announced("nvtx_gpu_proj_trace", other))
    assert found.issues.select("code", "example").rows() == [
        ("reports_left_out", "reports that are not read, as nvtx_gpu_proj_trace")
    ]


def test_tables_without_rows_beside_others_are_an_issue(read):
    found = read(announced("cuda_gpu_kern_sum", KERN) + announced("osrt_sum", OSRT.partition("\n")[0] + "\n"))
    assert codes(found) == {"empty_reports": 1}


@pytest.mark.parametrize("text", [KERN, API, SIZES, TIMES, NVTX, GPU_TRACE, API_TRACE, PUSHPOP_TRACE, PREAMBLE + KERN])
def test_the_format_is_known_by_its_headers(text):
    assert reader_for("x.csv", text.encode()).name == "nsys-stats"


def test_a_member_of_an_archive_stands_for_itself(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("run_cuda_gpu_kern_sum.csv", KERN)
        archive.writestr("run_osrt_sum.csv", OSRT)
    results = [open_trace(path) for path in expand([str(tmp_path / "a.zip")])]
    assert [sorted(found.results) for found in results] == [["cuda_gpu_kern_sum", "kernels"], ["osrt_sum"]]


def test_a_folder_that_may_not_be_listed_leaves_the_file(monkeypatch, read):
    def refused(_):
        raise PermissionError

    monkeypatch.setattr("stepscope.readers.nsight.nsys_stats_files.os.listdir", refused)
    assert isinstance(read(KERN, "run_cuda_gpu_kern_sum.csv"), Results)


def test_a_recording_says_nothing_of_counters(read):
    assert read(GPU_TRACE).kernel_metrics.is_empty()
    assert read(GPU_TRACE).spans.filter(pl.col("category") == "kernel").height == 2
