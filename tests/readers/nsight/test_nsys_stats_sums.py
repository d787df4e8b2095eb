from __future__ import annotations

import pytest
from nsys_stats_files import API, KERN, NVTX, OSRT, SIZES, TIMES, announced

from stepscope.core.result_tables import NSYS
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.nsight.nsys_stats import report_of, summaries
from stepscope.readers.nsight.nsys_stats_text import printed_tables


def read(text: str, report: str = ""):
    log = IssueLog()
    tables = list(printed_tables(text.encode(), report, log))
    found = summaries([(report_of(table), table) for table in tables], log)
    return found, dict(log.table().select("code", "count").rows())


def row(text: str, report: str, i: int = 0) -> dict[str, object]:
    return read(text)[0][report].frame.row(i, named=True)


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
    found, _ = read(text)
    assert next(iter(found)) == report


def test_events_and_tables_without_counts_are_no_summaries():
    log = IssueLog()
    for text in ("Start (ns),Duration (ns),Name,Tid\n1,2,a,3\n", "Time (%),Total Time (ns),Name,Style\n1,2,a,b\n"):
        (table,) = printed_tables(text.encode(), "", log)
        assert report_of(table) is None


def test_kernels_in_ns_and_ratios():
    assert row(KERN, "cuda_gpu_kern_sum") == {
        "name": "void add_relu<float, 4>(T1 *, int)", "calls": 3, "total_ns": 3000, "share_ratio": 0.75,
        "mean_ns": 1000.0, "p50_ns": 900.0, "min_ns": 600, "max_ns": 1500, "std_ns": 458.3,
    }  # fmt: skip
    assert row(KERN, "cuda_gpu_kern_sum", 1)["std_ns"] is None


def test_kernels_stand_also_under_the_name_of_the_analysis():
    kernels = read(KERN)[0]["kernels"]
    assert kernels.frame.select("name", "kernel_class", "calls", "total_ns").rows() == [
        ("void add_relu<float, 4>(T1 *, int)", "elementwise", 3, 3000), ("ampere_sgemm_128x64_tn", "gemm", 1, 1000),
    ]  # fmt: skip
    assert kernels.frame.columns == [column.name for column in kernels.table.columns]


def test_sizes_in_bytes():
    found, codes = read(SIZES)
    assert found["cuda_gpu_mem_size_sum"].frame.row(0) == (
        "[CUDA memcpy Host-to-Device]", 3, 4_500_000, 1_500_000.0, 1_000_000.0, 500_000, 3_000_000, 1_323_000.0,
    )  # fmt: skip
    assert codes == {"rounded": 6}


def test_the_unit_that_was_asked_for():
    text = KERN.replace("(ns)", "(ms)").replace("3000,3", "0.003,3")
    found = row(text, "cuda_gpu_kern_sum", 1)
    assert (found["total_ns"], found["mean_ns"]) == (3000, 1e9)
    assert read(text)[1] == {"rounded": 6}


def test_a_unit_that_nobody_knows_leaves_its_columns_empty():
    found, codes = read(KERN.replace("Avg (ns)", "Avg (eons)"))
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
    assert read(text)[0][report].frame.row(0) == expected


def test_launches_by_call_queue_and_kernel():
    text = (
        "PID,TID,DevId,Count,QCount,TAvg (ns),TMed (ns),TMin (ns),TMax (ns),TStdDev (ns),AAvg (ns),QMed (ns),KMax (ns),"
        "API Name,Kernel Name\n42,77,1,3,2,10.5,10.0,9,12,1.5,4.5,,8,cudaLaunchKernel,add\n"
    )
    found = row(text, "cuda_kern_exec_sum")
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
    found = row(text, "nvtx_kern_sum")
    assert [found[name] for name in ("name", "range", "style", "pid", "n_ranges", "calls")] == [
        "add", "step", "PushPop", 42, 3, 6,
    ]  # fmt: skip
    text = (
        "Time (%),Total Time (ns),Instances,GridXYZ,BlockXYZ,Name\n100.0,5,1,   8    1    1, 256    1    1,add\n"
    )  # fmt: skip
    assert row(text, "cuda_gpu_kern_gb_sum")["grid"] == "8x1x1"
    assert row(text, "cuda_gpu_kern_gb_sum")["block"] == "256x1x1"


def test_projected_ranges_and_the_columns_that_are_not_kept():
    text = (
        "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),"
        "Total GPU Ops,Avg GPU Ops\nstep,PushPop,60,90,3,20.0,12,4.0\n"
    )
    found, codes = read(text)
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
    found, codes = read(text)
    assert found["other_sum"].frame.select("report", "name", "total_ns").rows() == [
        ("mpi_event_sum", "[CUDA memcpy Host-to-Device]", 900), ("vulkan_api_sum", "cudaLaunchKernel", 500),
    ]  # fmt: skip
    assert codes == {}


def test_two_tables_of_one_report_are_put_together():
    found, codes = read(announced("gpukernsum", KERN) + announced("gpukernsum", KERN))
    frame = found["cuda_gpu_kern_sum"].frame
    assert frame["total_ns"].to_list() == [3000, 3000, 1000, 1000]
    assert frame["share_ratio"].to_list() == [0.375, 0.375, 0.125, 0.125]
    assert codes == {"reports_joined": 2}
    sizes, _ = read(SIZES + "\n" + SIZES)
    assert sizes["cuda_gpu_mem_size_sum"].frame.height == 2


def test_tables_that_took_no_time_have_no_shares():
    found, _ = read((announced("gpukernsum", KERN) * 2).replace("3000,3", "0,3").replace("1000,1,", "0,1,"))
    assert found["cuda_gpu_kern_sum"].frame["share_ratio"].null_count() == 4


def test_rows_without_numbers_are_dropped_and_counted():
    found, codes = read(KERN + "what,is,this,here,,,,,x\n")
    assert found["cuda_gpu_kern_sum"].frame.height == 2
    assert codes == {"rows_dropped": 1}


@pytest.mark.parametrize("table", NSYS.values(), ids=NSYS.keys())
def test_every_table_declares_units_by_the_names_of_its_columns(table):
    for column in table.columns:
        end = column.name.rpartition("_")[2]
        assert column.unit == (end if end in ("ns", "bytes", "ratio") else None)
    assert table.columns[0].name == "name"
