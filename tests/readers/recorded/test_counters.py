from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.readers import open_trace
from stepscope.readers.recorded.counters import read_counters

if TYPE_CHECKING:
    from pathlib import Path

BASE_NS = 1_700_000_000_000_000_000
CSV = f"""ts_ns,metric,unit,device,value
{BASE_NS + 3_000},gpu_clock,MHz,gpu0,1980
{BASE_NS + 2_000},cpu_usage,%,host,12.5
{BASE_NS + 4_000},rss,bytes,pid:77,4096
"""


def trace_at(folder: Path, *, base: int | None = BASE_NS) -> Path:
    kernel = {"device": 0, "stream": 7, "correlation": 1}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 77, "ts": 1, "dur": 5},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 2, "dur": 3, "args": kernel},
    ]
    document = {"schemaVersion": 1, "traceEvents": events}
    if base is not None:
        document["baseTimeNanoseconds"] = base
    path = folder / "rank0.json"
    path.write_text(json.dumps(document))
    return path


def codes(trace) -> list[str]:
    return trace.issues["code"].to_list()


def test_counters_beside_a_trace_are_placed_on_its_time_axis(tmp_path):
    (tmp_path / "counters.csv").write_text(CSV)
    trace = open_trace(str(trace_at(tmp_path)))
    device = trace.devices.filter(pl.col("type") != "cpu")["device_id"][0]
    assert trace.counters.select("ts_ns", "device_id", "device", "pid", "metric", "unit", "value").rows() == [
        (1_000, None, "host", None, "cpu_usage", "%", 12.5),
        (2_000, device, "gpu0", None, "gpu_clock", "MHz", 1980.0),
        (3_000, None, "pid:77", 77, "rss", "bytes", 4096.0),
    ]
    assert not [code for code in codes(trace) if code.startswith("counters")]


@pytest.mark.parametrize("name", ["counters.csv.gz", "counters.parquet"])
def test_packed_and_parquet_side_files_are_read(tmp_path, name):
    path = tmp_path / name
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(CSV.encode()))
    else:
        pl.read_csv(CSV.encode()).write_parquet(path)
    assert read_counters(str(path))["value"].to_list() == [1980.0, 12.5, 4096.0]


def test_a_named_side_file_goes_before_the_one_beside(tmp_path):
    (tmp_path / "counters.csv").write_text(CSV)
    other = tmp_path / "other.csv"
    other.write_text(f"ts_ns,metric,unit,device,value\n{BASE_NS + 2_000},load,,host,1\n")
    trace = open_trace(str(trace_at(tmp_path)), counters=str(other))
    assert trace.counters["metric"].to_list() == ["load"]


def test_rows_that_do_not_parse_are_dropped_and_counted(tmp_path):
    (tmp_path / "counters.csv").write_text(CSV + "soon,x,,host,1\n" + f"{BASE_NS},x,,host,\n")
    trace = open_trace(str(trace_at(tmp_path)))
    assert trace.counters.height == 3
    assert trace.issues.filter(pl.col("code") == "counters_dropped")["count"].to_list() == [2]


def test_without_a_unix_time_in_the_trace_counters_cannot_be_placed(tmp_path):
    (tmp_path / "counters.csv").write_text(CSV)
    trace = open_trace(str(trace_at(tmp_path, base=None)))
    assert trace.counters.is_empty()
    assert "counters_unplaced" in codes(trace)


def test_counters_of_another_time_are_kept_and_reported(tmp_path):
    (tmp_path / "counters.csv").write_text(CSV.replace("1700000000", "1600000000"))
    trace = open_trace(str(trace_at(tmp_path)))
    assert trace.counters.height == 3
    assert "counters_elsewhere" in codes(trace)


@pytest.mark.parametrize(
    "text",
    [b"", b"when,what\n1,2\n", b"PAR1 broken", gzip.compress(CSV.encode())[:40]],
    ids=["empty", "columns", "parquet", "cut"],
)
def test_a_side_file_that_cannot_be_read_is_an_issue_unless_it_was_named(tmp_path, text):
    side = tmp_path / "counters.csv"
    side.write_bytes(text)
    trace = trace_at(tmp_path)
    assert "counters_unreadable" in codes(open_trace(str(trace)))
    with pytest.raises(CorruptInput) as error:
        open_trace(str(trace), counters=str(side))
    assert str(side) in error.value.message


def test_a_named_side_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(StepscopeError, match=r"none\.csv"):
        open_trace(str(trace_at(tmp_path)), counters=str(tmp_path / "none.csv"))
