from __future__ import annotations

import polars as pl
import pytest
from nsys_stats_files import API, KERN, KERN_HEADER, NVTX, OSRT, announced, left_out

from stepscope.readers.common.source import IssueLog
from stepscope.readers.nsight import nsys_stats_text
from stepscope.readers.nsight.nsys_stats_text import number, printed_tables, scaled, skipped


def tables(text: str, report: str = ""):
    log = IssueLog()
    return list(printed_tables(text.encode(), report, log)), log


def first(table, column: str = "0"):
    return table.select(IssueLog(), x=pl.col(column))["x"].to_list()


@pytest.mark.parametrize(
    ("before", "report"),
    [
        ("Processing [/tmp/a.sqlite] with [/opt/reports/cuda_gpu_kern_sum.py]... \n", "cuda_gpu_kern_sum"),
        ("Processing [a.sqlite] with [cuda_gpu_kern_sum.py:base]...\n", "cuda_gpu_kern_sum"),
        ("Running [/usr/local/cuda/reports/gpukernsum.py a.sqlite]...\n\n", "cuda_gpu_kern_sum"),
        ("[6/8] Executing 'gpukernsum' stats report\n\n", "cuda_gpu_kern_sum"),
        ("\n ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n", "cuda_gpu_kern_sum"),
        ("Running [/usr/local/cuda/reports/mine.py a.sqlite]...\n", "mine"),
        ("", "from_file"),
    ],
)
def test_the_report_is_named_before_its_table(before, report):
    (table,), _ = tables(before + KERN, "from_file")
    assert table.report == report


def test_a_name_for_the_file_is_for_its_only_table():
    found, _ = tables(KERN + "\n" + API, "cuda_gpu_kern_sum")
    assert [table.report for table in found] == ["", ""]


def test_the_names_of_reports_stand_before_each():
    text = announced("nvtx_sum", NVTX) + left_out("osrt_sum", "OS Runtime trace") + announced("cuda_api_sum", API)
    found, _ = tables(text)
    assert [(table.report, first(table)) for table in found] == [
        ("nvtx_sum", ["60.0", "40.0"]),
        ("cuda_api_sum", ["100.0"]),
    ]
    assert skipped(text.encode()) == ["does not contain OS Runtime trace data."]


def test_columns_have_a_label_and_a_unit():
    (table,), _ = tables('"Time(%)","Total Time (ns)","Num Calls","Avg (\u03bcs)",\n1,2,3,4,\n')
    assert [(c.label, c.unit) for c in table.columns] == [
        ("time", "%"), ("total time", "ns"), ("num calls", ""), ("avg", "\u03bcs"),
    ]  # fmt: skip
    assert (table.place("instances", "num calls"), table.place("name")) == ("2", None)


def test_what_follows_a_table_is_no_row():
    for after in ("\nGenerated:\n    /tmp/a.nsys-rep\n", "NOTICE: done\n", "[8/8] Executing 'osrt_sum' stats report\n"):
        (table,), _ = tables(KERN + after)
        assert first(table) == ["75.0", "25.0"]


def test_a_name_may_run_over_lines():
    (table,), _ = tables(KERN_HEADER + '75.0,1,1,1,1,1,1,1,"a\n\nProcessing [b\n"\n25.0,1,1,1,1,1,1,1,c\n\nbye\n')
    assert first(table, "8") == ["a\n\nProcessing [b\n", "c"]


def test_a_row_that_the_file_breaks_off_within_is_left_out():
    for end in ("9.0,12", '9.0,1,1,1,1,1,1,1,"voi'):
        (table,), log = tables(KERN + end)
        assert first(table) == ["75.0", "25.0"]
        assert log.table()["code"].to_list() == ["truncated"]
    (table,), log = tables(KERN.rstrip("\n"))
    assert first(table) == ["75.0", "25.0"]
    assert log.table().is_empty()


def test_stray_quotes_cost_no_more_than_their_rows():
    (table,), _ = tables(KERN_HEADER + '75.0,1,1,1,1,1,1,1,"a\n25.0,1,1,1,1,1,1,,b\n')
    assert first(table, "8") == ["a", "b"]
    assert first(table, "7") == ["1", None]


def test_rows_with_too_few_fields_are_counted_where_they_are_read_one_by_one():
    (table,), _ = tables(KERN_HEADER + '1,2\n75.0,1,1,1,1,1,1,1,a"b\n')
    log = IssueLog()
    assert table.select(log, x=pl.col("0"))["x"].to_list() == ["75.0"]
    assert log.table().select("code", "count").rows() == [("rows_dropped", 1)]


def test_long_tables_are_read_in_parts(monkeypatch):
    monkeypatch.setattr(nsys_stats_text, "_BLOCK", 30)
    (table,), _ = tables(KERN_HEADER + "".join(f'{i},1,1,1,1,1,1,1,"k\n{i}"\n' for i in range(50)))
    assert first(table) == [str(i) for i in range(50)]
    assert table.first("8", 4) == ["k\n0", "k\n1"]


def test_no_rows():
    (table,), _ = tables(KERN_HEADER)
    assert table.is_empty


@pytest.mark.parametrize(
    ("unit", "kind", "factor"),
    [
        ("ns", "ns", 1.0), ("", "ns", 1.0), ("us", "ns", 1e3), ("\u00b5s", "ns", 1e3), ("msec", "ns", 1e6),
        ("sec", "ns", 1e9), ("s", "ns", 1e9), ("fortnight", "ns", None), ("", "bytes", 1024.0), ("MB", "bytes", 1e6),
        ("MiB", "bytes", 2.0**20), ("B", "bytes", 1.0), ("ns", "bytes", None),
    ],
)  # fmt: skip
def test_units_are_read_from_the_header(unit, kind, factor):
    word = f" ({unit})" if unit else ""
    (table,), _ = tables(f"Time (%),Total Time{word},Num Calls,Name\n1.0,2.5,3,x\n")
    value = table.select(IssueLog(), x=scaled(table, "1", kind))["x"].to_list()
    assert value == [None if factor is None else 2.5 * factor]


def test_units_that_round_and_units_that_nobody_knows_are_told():
    log = IssueLog()
    (table,), _ = tables("Time (%),Total Time (ms),Num Calls,Avg (fortnight)\n1.0,2.5,3,1\n")
    table.note_units("ns", log)
    assert log.table().select("code", "severity", "count").rows() == [
        ("unknown_units", "warning", 1),
        ("rounded", "info", 1),
    ]
    log = IssueLog()
    table.note_units("ns", log, of=("num calls",))
    assert log.table().is_empty()


def test_numbers_may_be_grouped():
    frame = pl.DataFrame({"0": ["1,234,567.5", "12", "n/a", None]}).select(x=number("0"))
    assert frame["x"].to_list() == [1234567.5, 12.0, None, None]


def test_osrt_and_calls_of_cuda_have_one_header():
    assert OSRT.splitlines()[0] == API.splitlines()[0]
