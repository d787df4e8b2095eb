from __future__ import annotations

import gzip
import random

import polars as pl
import pytest
from ncu_files import COLUMNS, DETAILS, DRAM, DURATION, LONG, METRIC, SM, TENSOR, launch, quoted, row, rows

from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.readers import open_trace, reader_for
from stepscope.readers.nsight import ncu_lines

WIDE = quoted(*COLUMNS, DRAM, DURATION, "device__attribute_display_name", "launch__func_cache_config")
UNITS = quoted(*[""] * len(COLUMNS), "%", "us", "", "")
NO_PERMISSION = "==PROF== Connected to process 2 (x)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"


@pytest.fixture
def read(tmp_path):
    def of(text: str | bytes, name: str = "ncu.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return open_trace(str(path))

    return of


def durations(trace) -> list[int | None]:
    return trace.spans["dur_ns"].to_list()


def value(trace, span: int, metric: str) -> float | None:
    found = trace.kernel_metrics.filter((pl.col("span_id") == span) & (pl.col("metric") == metric))
    return found["value"].item()


def codes(trace) -> list[str]:
    return trace.issues["code"].to_list()


def test_the_long_form_with_what_else_was_printed(read):
    trace = read(f"hello\n==PROF== Connected\n{LONG}{rows(0)}{rows(1, '2,500', name='void copy<int, 4>(T1)')}bye\n")
    assert (trace.meta.format, trace.meta.n_events) == ("ncu-csv", 2)
    assert trace.spans.select("name", "dur_ns").rows() == [
        ("gemm(float *, int)", 1000),
        ("void copy<int, 4>(T1)", 2500),
    ]
    assert trace.kernel_metrics.filter(pl.col("span_id") == 0).rows() == [
        (0, DRAM, "%", 12.5), (0, DURATION, "ns", 1000.0), (0, TENSOR, "%", 40.25),
    ]  # fmt: skip
    assert trace.kernels.select("grid_x", "grid_y", "block_x").rows() == [(64, 2, 128)] * 2
    assert trace.issues.is_empty()


def test_details_with_rules_are_ragged(read):
    short = row(0, "Duration", "ns", "5,536", section="GPU Speed Of Light Throughput").rstrip("\n") + ",\n"
    advice = quoted(*launch(0), "SpeedOfLight", "", "", "", "Bottleneck", "OPT", "Too small, so\nit waits.", "", "")
    trace = read(DETAILS + short + advice + row(0, "DRAM Throughput", "%", "22.90").rstrip("\n") + ",\n")
    assert durations(trace) == [5536]
    assert trace.kernel_metrics["metric"].to_list() == ["Duration", "DRAM Throughput"]
    assert trace.issues.select("code", "count").rows() == [("rules_left_out", 1)]


def test_the_raw_page_has_units_in_its_second_row(read):
    one = quoted(*launch(0), "12.5", "26.11", "NVIDIA A100", "CachePreferNone")
    two = quoted(*launch(1, stream=8), "n/a", "1,026.00", "NVIDIA A100", "")
    trace = read(f"==PROF== Connected\n{WIDE}{UNITS}{one}{two}")
    assert durations(trace) == [26110, 1026000]
    assert trace.kernel_metrics.rows() == [
        (0, DRAM, "%", 12.5), (0, DURATION, "ns", pytest.approx(26110)), (1, DRAM, "%", None),
        (1, DURATION, "ns", 1026000.0),
    ]  # fmt: skip
    assert trace.devices["name"].to_list() == ["NVIDIA A100"]
    assert trace.tracks["stream"].to_list() == [7, 8]


def test_old_raw_pages_have_fewer_columns_and_nvtx_ranges_are_no_metrics(read):
    head = ("ID", "Process ID", "Process Name", "Kernel Name", "Id:Domain:Push/Pop_Range:PL_Type", DURATION)
    trace = read(quoted(*head) + quoted("", "", "", "", "", "nsecond") + quoted("0", "7", "a", "gemm", "1,2", "500"))
    assert trace.kernel_metrics.rows() == [(0, DURATION, "ns", 500.0)]
    assert trace.kernels["grid_x"].to_list() == [None]


def test_european_numbers(read):
    trace = read(LONG + rows(0, "117.344", "65,77", "0,00"))
    assert durations(trace) == [117344]
    assert value(trace, 0, DRAM) == 65.77


def test_mixed_notations_are_refused(read):
    with pytest.raises(CorruptInput, match="two notations"):
        read(LONG + rows(0, "1,234,567", "65.77") + rows(1, "1.234.567", "65,77"))


def test_reports_in_one_file_keep_their_launches_apart(read):
    trace = read(LONG + rows(0) + rows(1) + "==PROF== Connected\n" + DETAILS + rows(0, "3,000"))
    assert durations(trace) == [1000, 1000, 3000]
    assert trace.issues.select("code", "count").rows() == [("reports_joined", 2)]


def test_a_report_in_another_locale_may_follow(read):
    trace = read(LONG + rows(0, "1,000", "12.50") + LONG + rows(0, "1.000", "12,50", "3,25"))
    assert durations(trace) == [1000, 1000]
    assert value(trace, 1, TENSOR) == 3.25


def test_rows_without_a_metric_are_counted(read):
    bare = quoted(*launch(1), "Chosen")
    trace = read(LONG + rows(0) + bare)
    assert trace.kernel_metrics.height == 3
    assert ("bare_rows", 1) in trace.issues.select("code", "count").rows()


def test_a_damaged_header_is_none(read):
    with pytest.raises(UnknownFormat):
        read(quoted(*COLUMNS, "Section Name", "Metric Name", "Metr") + rows(0))


def test_processes_count_for_themselves(read):
    assert durations(read(LONG + rows(0, pid=7) + rows(0, "2,000", pid=8))) == [1000, 2000]


def test_a_launch_may_lie_in_two_blocks(read, monkeypatch):
    monkeypatch.setattr(ncu_lines, "BLOCK", 1)
    monkeypatch.setattr("stepscope.readers.common.source.CHUNK", 150)
    trace = read(LONG + "".join(rows(i, f"{i + 1},000") for i in range(12)))
    assert durations(trace) == [1000 * i for i in range(1, 13)]
    assert trace.kernel_metrics.height == 36


def test_program_output_between_rows_in_a_later_block(read, monkeypatch):
    monkeypatch.setattr(ncu_lines, "BLOCK", 1)
    monkeypatch.setattr("stepscope.readers.common.source.CHUNK", 400)
    text = LONG + rows(0) + rows(1) + 'step 1: "fine"\n12,5\n' + rows(2) + "==WARNING== hot\n" + LONG + rows(0)
    trace = read(text)
    assert durations(trace) == [1000] * 4
    assert codes(trace) == ["reports_joined", "ncu_warnings"]


def test_rows_in_any_order_find_their_launch(read):
    lines = [line for i in range(5) for line in rows(i, f"{i + 1},000").splitlines(keepends=True)]
    random.Random(1).shuffle(lines)
    trace = read(LONG + "".join(lines))
    assert sorted(durations(trace)) == [1000, 2000, 3000, 4000, 5000]
    assert trace.kernel_metrics.height == 15
    assert "rows_apart" in codes(trace)


def test_reports_joined_without_their_headers_are_told_by_metrics_that_repeat(read):
    trace = read(LONG + rows(0) + rows(1, "2,000") + rows(0, "3,000") + rows(1, "4,000"))
    assert durations(trace) == [1000, 2000, 3000, 4000]


def test_columns_without_quotes(read):
    plain = '0,7,python,host,gemm,1,7,"(128, 1, 1)","(64, 1, 1)",0,8.0,Chosen,gpu__time_duration.sum,ns,"12,000"\n'
    assert durations(read(",".join((*COLUMNS, *METRIC)) + "\n" + plain)) == [12000]


def test_letters_that_are_no_utf_8(read):
    trace = read((LONG + rows(0)).encode().replace(b"python", b"pyth\xf6n"))
    assert durations(trace) == [1000]
    assert trace.tracks["process"].to_list() == ["pyth\ufffdn"]


def test_utf_16_as_a_windows_shell_writes_it(read):
    assert durations(read((LONG + rows(0)).replace("\n", "\r\n").encode("utf-16"))) == [1000]


def test_packed_files_and_those_that_end_early(read):
    text = (LONG + "".join(rows(i, f"{random.Random(i).randrange(10**6):,}") for i in range(2000))).encode()
    assert read(gzip.compress(text), "ncu.csv.gz").spans.height == 2000
    cut = read(gzip.compress(text)[:-4000], "ncu.csv.gz")
    assert 0 < cut.spans.height < 2000
    assert "damaged_packing" in codes(cut)


def test_without_durations_the_reader_says_what_to_ask_for(read):
    trace = read(LONG + row(0, SM, "%", "80.66"))
    assert durations(trace) == [None]
    assert codes(trace) == ["no_duration"]


def test_errors_of_ncu_beside_launches_are_noted(read):
    assert codes(read(LONG + rows(0) + NO_PERMISSION)) == ["ncu_errors"]


def test_no_permission_says_how_to_get_it(read):
    with pytest.raises(StepscopeError, match=r"not allowed .*ERR_NVGPUCTRPERM") as caught:
        read(NO_PERMISSION)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (LONG, CorruptInput, "a header and no rows"),
        (WIDE + UNITS, CorruptInput, "a header and no rows"),
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", StepscopeError, "No kernels were profiled"),
        ("", UnknownFormat, "is empty"),
        ("a,b\n1,2\n", UnknownFormat, "without a table of a known format"),
        (quoted("Process ID", "Kernel Name", "Invocations", "Metric Name"), UnknownFormat, "a summary over launches"),
        (quoted("Kernel Name", "gemm") + quoted("Address", "Source"), UnknownFormat, "instructions of kernels"),
        (b"\x00\x01\x02 binary", UnknownFormat, "begins with"),
        (LONG.encode() + b'"0","7\xff\x00' * 9, CorruptInput, "a header and no rows"),
    ],
    ids=["header", "units", "warning", "empty", "other", "summary", "source", "binary", "broken"],
)
def test_files_without_launches_say_why(read, text, kind, words):
    with pytest.raises(kind, match=words) as caught:
        read(text)
    assert "ncu.csv" in caught.value.message
    assert caught.value.hint


def test_text_for_people_below_a_long_preamble_is_handed_on(read):
    title = "  gemm(int) (64, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 8.0\n"
    table = "    Section: S\n    ---- ---- ----\n    gpu__time_duration.sum\n"
    text = "==PROF== Connected\n" + "loss\n" * 20_000 + title + table
    assert read(text).meta.format == "ncu-text"


def test_who_reads_what():
    assert reader_for("x", LONG.encode()).name == "ncu-csv"
    assert reader_for("x", (LONG + rows(0)).encode("utf-16")).name == "ncu-csv"
    assert reader_for("x", b"loss\n==PROF== Connected to process 7\n").name == "ncu-csv"
    assert reader_for("x.csv", b"a,b\n").name == "ncu-csv"


PAGE = """\
==PROF== Connected to process 9 (/home/me/app)
loss 0.5
[9] app@127.0.0.1
  void cutlass::Kernel<gemm<(int)128>>(T1::Params) (1024, 5, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    DRAM Frequency                  Ghz         6.98
    Duration                    usecond       472.93
    Memory Throughput                 %        33.52
    Compute (SM) Throughput           %        67.54
    ----------------------- ----------- ------------

    OPT   Compute is more heavily utilized than Memory: look at the workload
          analysis section.

    Section: Launch Statistics
    -------------------------------- --------------- ---------------
    Metric Name                          Metric Unit    Metric Value
    -------------------------------- --------------- ---------------
    Function Cache Configuration                     CachePreferNone
    Registers Per Thread             register/thread              16
    Threads                                   thread       1,310,720
    Memory Throughput                   Gbyte/second           12.50
    -------------------------------- --------------- ---------------

  copy(int), 2021-Mar-04 12:01:02, Context 2, Stream 13
    Section: Command line profiler metrics
    ---------------------------------------------------------------- --------------- ------------------------------
    gpu__time_duration.sum                                                   msecond                           1.45
    ---------------------------------------------------------------- --------------- ------------------------------
"""


@pytest.fixture
def read_page(tmp_path):
    def of(text: str):
        path = tmp_path / "ncu.txt"
        path.write_text(text)
        return open_trace(str(path))

    return of


def test_launches_with_their_metrics_in_base_units(read_page):
    trace = read_page(PAGE)
    assert trace.meta.format == "ncu-text"
    assert not trace.has_clock
    assert trace.spans.select("name", "dur_ns").rows() == [
        ("void cutlass::Kernel<gemm<(int)128>>(T1::Params)", 472_930), ("copy(int)", 1_450_000),
    ]  # fmt: skip
    assert trace.kernels.select("grid_x", "grid_y", "block_x", "registers").rows() == [
        (1024, 5, 256, 16), (None, None, None, None),
    ]  # fmt: skip
    values = trace.kernel_metrics.filter(pl.col("span_id") == 0).select("metric", "unit", "value").rows()
    assert values == [
        ("DRAM Frequency", "hz", pytest.approx(6.98e9)), ("Duration", "ns", pytest.approx(472930)),
        ("Memory Throughput", "%", 33.52), ("Compute (SM) Throughput", "%", 67.54),
        ("Registers Per Thread", "register/thread", 16), ("Threads", "thread", 1310720),
        ("Launch Statistics: Memory Throughput", "byte/s", pytest.approx(12.5e9)),
    ]  # fmt: skip
    assert trace.tracks.select("pid", "process", "stream").rows() == [(9, "app", 7), (9, "app", 13)]
    assert trace.devices.select("index", "compute_capability").rows() == [(0, "8.0"), (None, None)]


def test_what_is_lost_is_noted(read_page):
    assert read_page(PAGE).issues["code"].to_list() == ["rounded", "metrics_in_words"]


@pytest.mark.slow
def test_a_cut_file_keeps_what_it_has(read_page, tmp_path):
    assert read_page(PAGE[: PAGE.index("    Memory Throughput")]).spans["dur_ns"].to_list() == [472_930]
    packed = tmp_path / "ncu.txt.gz"
    packed.write_bytes(gzip.compress(PAGE.encode(), 0)[:-300])
    assert "damaged_packing" in open_trace(str(packed)).issues["code"].to_list()


def test_a_text_without_launches_is_refused(tmp_path):
    from stepscope.readers import Source
    from stepscope.readers.nsight.ncu_csv import read_text

    path = tmp_path / "x"
    path.write_text("nothing here\n")
    with pytest.raises(CorruptInput, match="no kernel launches"):
        read_text(Source(str(path)))


def test_it_is_known_by_a_launch():
    assert reader_for("x", PAGE.encode()).name == "ncu-text"
    assert reader_for("x", PAGE.encode("utf-16")).name == "ncu-text"
