from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from chrome_traces import op, packed

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.readers import SideFiles, expand, open_trace
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
    trace = open_trace(str(trace_at(tmp_path)), side=SideFiles(str(other)))
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
        open_trace(str(trace), side=SideFiles(str(side)))
    assert str(side) in error.value.message


def test_a_named_side_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(StepscopeError, match=r"none\.csv"):
        open_trace(str(trace_at(tmp_path)), side=SideFiles(str(tmp_path / "none.csv")))


START_NS = 1_700_000_000_000_000_000
HEADER = "ts_ns,metric,unit,device,value\n"
ALONE = (
    HEADER
    + f"""{START_NS + 3_000},gpu_power,W,gpu1,350
{START_NS + 2_000},host_cpu_usage,%,host,12.5
{START_NS + 4_000},process_mem_rss,bytes,pid:77,4096
"""
)
META = {
    "recorder": "stepscope",
    "host": "node7",
    "command": ["python", "train.py"],
    "start_unix_ns": START_NS,
    "end_unix_ns": START_NS + 9_000,
    "exit_code": 0,
    "devices": [{"device": "gpu1", "name": "NVIDIA H200", "memory_bytes": 1 << 37}],
    "issues": [{"code": "no_gpu_counters", "severity": "info", "count": 1, "example": "no driver"}],
}


def put(folder: Path, text: str = ALONE, **meta) -> str:
    path = folder / "counters.csv.gz"
    lines = text.splitlines(keepends=True)
    path.write_bytes(b"".join(gzip.compress(line.encode()) for line in lines))  # a member for each flush
    if meta:
        (folder / "meta.json").write_text(json.dumps(meta))
    return str(path)


def issues(trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").iter_rows())


def test_a_folder_of_counters_alone_is_a_trace(tmp_path):
    path = put(tmp_path, **META)
    assert expand([str(tmp_path)]) == [path]
    trace = open_trace(path)
    assert trace.counters.select("ts_ns", "device_id", "device", "pid", "metric", "value").rows() == [
        (0, None, "host", None, "host_cpu_usage", 12.5),
        (1_000, 0, "gpu1", None, "gpu_power", 350.0),
        (2_000, None, "pid:77", 77, "process_mem_rss", 4096.0),
    ]
    assert trace.devices.select("device_id", "type", "index", "name", "memory_bytes").rows() == [
        (0, "cuda", 1, "NVIDIA H200", 1 << 37)
    ]
    assert (trace.meta.origin_unix_ns, trace.meta.host) == (START_NS + 2_000, "node7")
    assert trace.meta.facts["command"] == '["python", "train.py"]'
    assert trace.meta.facts["exit_code"] == "0"
    assert issues(trace) == {"no_gpu_counters": 1}


def test_dumps_in_a_recording_are_recordings_of_their_own(tmp_path):
    path = put(tmp_path, **META)
    for name in ("dump-0001-slow-step", "dump-0002-signal", ".dump-0003-request.part"):
        (tmp_path / name).mkdir()
        put(tmp_path / name, **META)
        (tmp_path / name / "rank0.pt.trace.json.gz").write_bytes(gzip.compress(packed([op("n", 1, 1)])))
    assert expand([str(tmp_path)]) == [path]
    dump = tmp_path / "dump-0001-slow-step"
    assert expand([str(dump)]) == [str(dump / "rank0.pt.trace.json.gz")]
    # Where there is nothing else, as after they were moved, they are what was meant.
    (tmp_path / "counters.csv.gz").unlink()
    assert len(expand([str(tmp_path)])) == 3


def test_an_accelerator_is_of_the_type_that_the_recorder_knows(tmp_path):
    devices = [{"device": "gpu1", "name": "AMD Instinct MI300X", "type": "rocm"}]
    trace = open_trace(put(tmp_path, **META | {"devices": devices}))
    assert trace.devices["type"].to_list() == ["rocm"]


@pytest.mark.parametrize("name", ["counters.csv", "counters.parquet"])
def test_every_form_of_the_side_file_stands_by_itself(tmp_path, name):
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    if name.endswith("csv"):
        (folder / name).write_text(ALONE)
    else:
        pl.read_csv(ALONE.encode()).write_parquet(folder / name)
    (found,) = expand([str(tmp_path)])
    assert open_trace(found).counters.height == 3


def test_beside_a_profile_it_is_a_side_file(tmp_path):
    put(tmp_path, **META)
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 77, "ts": 1, "dur": 5}
    profile = tmp_path / "rank0.pt.trace.json"
    profile.write_text(json.dumps({"traceEvents": [event], "schemaVersion": 1, "baseTimeNanoseconds": START_NS}))
    assert expand([str(tmp_path)]) == [str(profile)]
    trace = open_trace(str(profile))
    assert trace.counters.height == 3
    assert trace.meta.host == "node7"
    assert issues(trace) == {"no_gpu_counters": 1}


@pytest.mark.slow
def test_what_a_kill_left_is_read_as_far_as_it_goes(tmp_path):
    path = put(tmp_path, **META | {"end_unix_ns": None})
    whole = (tmp_path / "counters.csv.gz").read_bytes()
    for end in range(len(gzip.compress(HEADER.encode())), len(whole), 3):
        (tmp_path / "counters.csv.gz").write_bytes(whole[:end])
        trace = open_trace(path)
        assert 0 <= trace.counters.height <= 3
        assert "recording_cut" in issues(trace)
        assert ("no_samples" in issues(trace)) == trace.counters.is_empty()
        assert ("counters_cut" in issues(trace)) == (end not in ends())


def ends() -> set[int]:
    """Where its members end."""
    sizes = [len(gzip.compress(line.encode())) for line in ALONE.splitlines(keepends=True)]
    return {sum(sizes[:n]) for n in range(len(sizes) + 1)}


def test_not_one_whole_line_is_an_error(tmp_path):
    path = tmp_path / "counters.csv.gz"
    path.write_bytes(gzip.compress(ALONE.encode())[:30])
    with pytest.raises(StepscopeError):
        open_trace(str(path))


def test_counters_beside_a_trace_that_break_off_are_used(tmp_path):
    path = put(tmp_path)
    whole = (tmp_path / "counters.csv.gz").read_bytes()
    (tmp_path / "counters.csv.gz").write_bytes(whole[:-5])
    with pytest.raises(CorruptInput):
        read_counters(path)
    assert issues(open_trace(path)) == {"counters_cut": 1}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"recorder": "other", "issues": [{}]}'])
def test_a_meta_json_of_somebody_else_says_nothing(tmp_path, text):
    path = put(tmp_path)
    (tmp_path / "meta.json").write_text(text)
    trace = open_trace(path)
    assert (issues(trace), trace.meta.host) == ({}, None)


def test_an_issue_of_unknown_severity_is_a_warning(tmp_path):
    path = put(tmp_path, **META | {"issues": [{"code": "odd", "severity": "grave"}]})
    assert open_trace(path).issues.select("code", "severity").rows() == [("odd", "warning")]


def test_a_damaged_parquet_file_on_which_polars_panics_is_corrupt(tmp_path, monkeypatch):
    def panics(_):
        raise pl.exceptions.PanicException("assertion failed")

    monkeypatch.setattr(pl, "read_parquet", panics)
    (tmp_path / "counters.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(CorruptInput, match="not a counters file: assertion failed"):
        read_counters(str(tmp_path / "counters.parquet"))
