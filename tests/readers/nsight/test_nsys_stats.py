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
from stepscope.core.result_tables import NSYS
from stepscope.core.trace import Results, Trace
from stepscope.readers import expand, open_trace, reader_for
from stepscope.readers.common.source import IssueLog
from stepscope.readers.nsight.nsys_stats import report_of, summaries
from stepscope.readers.nsight.nsys_stats_text import printed_tables

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
        (PREAMBLE + left_out("nvtx_sum", "NVTX"), StepscopeError, "nsys stats reported: does not contain NVTX data"),
        (PREAMBLE, UnknownFormat, "no table"),
        (
            "Name,Projected Start (ns),Projected Duration (ns),Style\nstep,1,2,PushPop\n",
            UnknownFormat,
            "reports of nsys stats that are not read: the one of name, projected start",
        ),
        (
            " Time (%)  Total Time (ns)  Instances  Name\n --------  -----\n    75.0  3,000  3  add\n",
            UnknownFormat,
            "in its text form",
        ),
        ("shortName,calls,total_ns\n18318,3258,665015457\n", UnknownFormat, "StringIds"),
    ],
    ids=["header", "trace", "rows", "skipped", "nothing", "unread", "text", "numbers"],
)
def test_what_holds_nothing_is_refused_with_what_to_do(read, text, kind, words):
    with pytest.raises(kind, match=words) as caught:
        read(text)
    assert caught.value.hint


@pytest.mark.slow
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


def read_sums(text: str, report: str = ""):
    log = IssueLog()
    tables = list(printed_tables(text.encode(), report, log))
    found = summaries([(report_of(table), table) for table in tables], log)
    return found, dict(log.table().select("code", "count").rows())


def sums_row(text: str, report: str, i: int = 0) -> dict[str, object]:
    return read_sums(text)[0][report].frame.row(i, named=True)


@pytest.mark.parametrize(
    ("text", "report"),
    [
        (KERN, "cuda_gpu_kern_sum"),
        (KERN.replace("StdDev (ns)", "GridXYZ").replace("Max (ns)", "BlockXYZ"), "cuda_gpu_kern_gb_sum"),
        (API, "cuda_api_sum"),
        (API.replace("cudaLaunchKernel", "cuLaunchKernel"), "cuda_api_sum"),
        (OSRT, "osrt_sum"),
        (TIMES, "cuda_gpu_mem_time_sum"),
        (SIZES, "cuda_gpu_mem_size_sum"),
        (NVTX, "nvtx_sum"),
        (NVTX.replace("Style,", "").replace("PushPop,", "").replace("StartEnd,", ""), "nvtx_pushpop_sum"),
        ("Time (%),Total Time (ns),Instances,Category,Operation\n1,2,3,CUDA_KERNEL,add\n", "cuda_gpu_sum"),
        ("Time (%),Total Time (ns),Instances,Category,Operation\n1,2,3,CUDA_API,cudaFree\n", "cuda_api_gpu_sum"),
        ("Time (%),Total Time (ns),Count,Name\n1,2,3,barrier\n", "other_sum"),
        (
            "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Kernel Name\na,PushPop,1,1,1,1,5,k\n",
            "nvtx_kern_sum",
        ),
        ("Range,Style,Total Proj Time (ns),Range Instances\na,PushPop,5,1\n", "nvtx_gpu_proj_sum"),
        ("PID,TID,DevId,Count,TAvg (ns),API Name,Kernel Name\n1,2,0,3,4.5,cudaLaunchKernel,k\n", "cuda_kern_exec_sum"),
    ],
)
def test_a_table_that_is_not_named_is_known_by_its_columns(text, report):
    found, _ = read_sums(text)
    assert next(iter(found)) == report


def test_events_and_tables_without_counts_are_no_summaries():
    log = IssueLog()
    for text in ("Start (ns),Duration (ns),Name,Tid\n1,2,a,3\n", "Time (%),Total Time (ns),Name,Style\n1,2,a,b\n"):
        (table,) = printed_tables(text.encode(), "", log)
        assert report_of(table) is None


def test_kernels_in_ns_and_ratios():
    assert sums_row(KERN, "cuda_gpu_kern_sum") == {
        "name": "void add_relu<float, 4>(T1 *, int)", "calls": 3, "total_ns": 3000, "share_ratio": 0.75,
        "mean_ns": 1000.0, "p50_ns": 900.0, "min_ns": 600, "max_ns": 1500, "std_ns": 458.3,
    }  # fmt: skip
    assert sums_row(KERN, "cuda_gpu_kern_sum", 1)["std_ns"] is None


def test_kernels_stand_also_under_the_name_of_the_analysis():
    kernels = read_sums(KERN)[0]["kernels"]
    assert kernels.frame.select("name", "kernel_class", "calls", "total_ns").rows() == [
        ("void add_relu<float, 4>(T1 *, int)", "elementwise", 3, 3000), ("ampere_sgemm_128x64_tn", "gemm", 1, 1000),
    ]  # fmt: skip
    assert kernels.frame.columns == [column.name for column in kernels.table.columns]


def test_sizes_in_bytes():
    found, codes = read_sums(SIZES)
    assert found["cuda_gpu_mem_size_sum"].frame.row(0) == (
        "[CUDA memcpy Host-to-Device]", 3, 4_500_000, 1_500_000.0, 1_000_000.0, 500_000, 3_000_000, 1_323_000.0,
    )  # fmt: skip
    assert codes == {"rounded": 6}


def test_the_unit_that_was_asked_for():
    text = KERN.replace("(ns)", "(ms)").replace("3000,3", "0.003,3")
    found = sums_row(text, "cuda_gpu_kern_sum", 1)
    assert (found["total_ns"], found["mean_ns"]) == (3000, 1e9)
    assert read_sums(text)[1] == {"rounded": 6}


def test_a_unit_that_nobody_knows_leaves_its_columns_empty():
    found, codes = read_sums(KERN.replace("Avg (ns)", "Avg (eons)"))
    assert found["cuda_gpu_kern_sum"].frame["mean_ns"].to_list() == [None, None]
    assert codes == {"unknown_units": 1}


@pytest.mark.parametrize(
    ("text", "report", "expected"),
    [
        (
            "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n62.5,1250000,100,12500.0,10000,20000,mm\n",
            "cuda_gpu_kern_sum", ("mm", 100, 1_250_000, 0.625, 12_500.0, None, 10_000, 20_000, None),
        ),
        (
            "Time(%),Total Time (ns),Operations,Average,Minimum,Maximum,Operation\n100.0,60,2,30.0,20,40,[memset]\n",
            "cuda_gpu_mem_time_sum", ("[memset]", 2, 60, 1.0, 30.0, None, 20, 40, None),
        ),
        (
            "Total,Operations,Average,Minimum,Maximum,Operation\n3.000,2,1.500,1.000,2.000,[CUDA memset]\n",
            "cuda_gpu_mem_size_sum", ("[CUDA memset]", 2, 3072, 1536.0, None, 1024, 2048, None),
        ),
    ],
    ids=["kernels", "times", "sizes"],
)  # fmt: skip
def test_layouts_until_2021(text, report, expected):
    assert read_sums(text)[0][report].frame.row(0) == expected


def test_launches_by_call_queue_and_kernel():
    text = (
        "PID,TID,DevId,Count,QCount,TAvg (ns),TMed (ns),TMin (ns),TMax (ns),TStdDev (ns),AAvg (ns),QMed (ns),KMax (ns),"
        "API Name,Kernel Name\n42,77,1,3,2,10.5,10.0,9,12,1.5,4.5,,8,cudaLaunchKernel,add\n"
    )
    found = sums_row(text, "cuda_kern_exec_sum")
    assert {name: value for name, value in found.items() if value is not None} == {
        "name": "add", "call": "cudaLaunchKernel", "pid": 42, "tid": 77, "device": 1, "calls": 3, "queued_calls": 2,
        "mean_ns": 10.5, "p50_ns": 10.0, "min_ns": 9, "max_ns": 12, "std_ns": 1.5, "call_mean_ns": 4.5,
        "kernel_max_ns": 8,
    }  # fmt: skip


def test_kernels_by_range_and_by_size():
    text = (
        "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),"
        "Kernel Name\nstep,PushPop,42,77,3,6,60,10.0,10.0,8,12,1.0,add\n"
    )
    found = sums_row(text, "nvtx_kern_sum")
    assert [found[name] for name in ("name", "range", "style", "pid", "n_ranges", "calls")] == [
        "add", "step", "PushPop", 42, 3, 6,
    ]  # fmt: skip
    text = (
        "Time (%),Total Time (ns),Instances,GridXYZ,BlockXYZ,Name\n100.0,5,1,   8    1    1, 256    1    1,add\n"
    )  # fmt: skip
    assert sums_row(text, "cuda_gpu_kern_gb_sum")["grid"] == "8x1x1"
    assert sums_row(text, "cuda_gpu_kern_gb_sum")["block"] == "256x1x1"


def test_projected_ranges_and_the_columns_that_are_not_kept():
    text = (
        "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),"
        "Total GPU Ops,Avg GPU Ops\nstep,PushPop,60,90,3,20.0,12,4.0\n"
    )
    found, codes = read_sums(text)
    one = found["nvtx_gpu_proj_sum"].frame.row(0, named=True)
    assert [one[name] for name in ("total_ns", "range_total_ns", "calls", "mean_ns", "n_device_ops")] == [
        60,
        90,
        3,
        20.0,
        12,
    ]
    assert codes == {"columns_left_out": 1}


def test_other_summaries_keep_the_name_of_their_report():
    text = announced("mpi_event_sum", TIMES.replace("Operation", "Name")) + announced("vulkan_api_sum", API)
    found, codes = read_sums(text)
    assert found["other_sum"].frame.select("report", "name", "total_ns").rows() == [
        ("mpi_event_sum", "[CUDA memcpy Host-to-Device]", 900), ("vulkan_api_sum", "cudaLaunchKernel", 500),
    ]  # fmt: skip
    assert codes == {}


def test_two_tables_of_one_report_are_put_together():
    found, codes = read_sums(announced("gpukernsum", KERN) + announced("gpukernsum", KERN))
    frame = found["cuda_gpu_kern_sum"].frame
    assert frame["total_ns"].to_list() == [3000, 3000, 1000, 1000]
    assert frame["share_ratio"].to_list() == [0.375, 0.375, 0.125, 0.125]
    assert codes == {"reports_joined": 2}
    sizes, _ = read_sums(SIZES + "\n" + SIZES)
    assert sizes["cuda_gpu_mem_size_sum"].frame.height == 2


def test_tables_that_took_no_time_have_no_shares():
    found, _ = read_sums((announced("gpukernsum", KERN) * 2).replace("3000,3", "0,3").replace("1000,1,", "0,1,"))
    assert found["cuda_gpu_kern_sum"].frame["share_ratio"].null_count() == 4


def test_rows_without_numbers_are_dropped_and_counted():
    found, codes = read_sums(KERN + "what,is,this,here,,,,,x\n")
    assert found["cuda_gpu_kern_sum"].frame.height == 2
    assert codes == {"rows_dropped": 1}


@pytest.mark.parametrize("table", NSYS.values(), ids=NSYS.keys())
def test_every_table_declares_units_by_the_names_of_its_columns(table):
    for column in table.columns:
        end = column.name.rpartition("_")[2]
        assert column.unit == (end if end in ("ns", "bytes", "ratio") else None)
    assert table.columns[0].name == "name"
