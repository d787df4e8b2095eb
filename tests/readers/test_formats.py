from __future__ import annotations

import paddle_profiles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsys_stats_files import API, KERN

from stepscope.readers import reader_for
from stepscope.readers.formats import FORMATS
from stepscope.readers.recorded import COUNTER_FILES, side_file

FORMAT = {one.name: one for one in FORMATS}
PADDLE = paddle_profiles.training()[:64]
PADDLE_JSON = paddle_profiles.json_training()[:300]
COUNTERS = b"ts_ns,metric,unit,device,value\n"


@given(st.sampled_from(FORMATS), st.binary(max_size=200))
def test_sniffing_never_fails(one, head):
    assert 0 <= one.sniff("x", head) <= 1


@pytest.mark.parametrize(
    ("name", "path", "head", "sure"),
    [
        ("stepscope", "x/meta.json", b'["stepscope", {"stepscope": "trace"}]', 1),
        ("stepscope", "x/other.json", b'["stepscope", {"stepscope": "trace"}]', 0),
        ("stepscope", "x/meta.json", b"{}", 0),
        ("kineto", "x", b'{"schemaVersion":1,"traceEvents":[', 0.98),
        ("kineto", "x", b'\xef\xbb\xbf  {\n"traceEvents" : [', 0.98),
        ("kineto", "x", b'{"deviceProperties":[', 0.4),
        ("kineto", "x", b'[{"ph":"M"', 0.9),
        ("kineto", "x", b"[ \n {", 0.1),
        ("kineto", "x", b'{"a":1}', 0.1),
        ("kineto", "x", b"\x89PNG\r\n\x1a\n", 0),
        ("kineto", "x", b"a,b,c\n1,2,3", 0),
        ("kineto", "x", b"", 0),
        ("paddle", "x", PADDLE, 1),
        ("paddle", "x", b"\n\x051.0.2", 1),
        ("paddle", "x", b"\n\x06" + b"10.0.2\x10\x01", 1),
        ("paddle", "x", PADDLE_JSON, 0.99),
        ("paddle", "x", b'{"schemaVersion": "1.0.2", "span_indx": "0", "traceEvents": [', 0.99),
        ("paddle", "x", b'{"schemaVersion": 1, "traceEvents": [', 0),
        ("paddle", "x", b'{"span_index": 0, "numbers": {}}', 0),
        ("paddle", "x", b"\n\x05hello\x10\x00", 0),
        ("paddle", "x", b"", 0),
        ("nsys", "x", b"SQLite format 3\0..META_DATA_EXPORT", 1),
        ("nsys", "x", b"SQLite format 3\0", 0.1),
        ("nsys", "x", b"META_DATA_EXPORT", 0),
        ("rocprof", "x", b"SQLite format 3\0..rocpd_info", 1),
        ("rocprof", "x", b'{"rocprofiler-sdk-tool": [', 1),
        ("rocprof", "x", b'{"other-tool": [', 0),
        ("rocprof", "x", b"Domain,Function,Start_Timestamp\n", 1),
        ("rocprof", "x", b"Domain,Function\n", 0),
        ("nsys-stats", "x.csv", KERN.encode(), 1),
        ("nsys-stats", "x.csv", API.encode("utf-16"), 1),
        ("nsys-stats", "x.csv", b"Time (%)  Total Time (ns)\n", 0.3),
        ("nsys-stats", "x.csv", b"Generating SQLite file x.sqlite\n", 1),
        ("nsys-stats", "x.csv", b"demangledName,start\n17,1\n", 0.5),
        ("nsys-stats", "x.csv", b"a,b\n1,2\n", 0),
        ("nsys-stats", "x.csv", b"Name,Calls\nx,1\n", 0),
        ("nsys-stats", "x.csv", b'"ID","Process ID"\n', 0),
        ("nsys-stats", "x.csv", b"Total,Count\n1,2\n", 0),
        ("ncu-csv", "x", b"==PROF== Connected\n", 0.6),
        ("ncu-csv", "x.txt", b"anything", 0.05),
        ("ncu-csv", "x.txt", b"any\0thing", 0),
        ("ncu-csv", "x.txt", b"", 0),
        ("kernel-table", "x", b" Kernel  Latency  Tensor  DRAM \r\n", 1),
        ("kernel-table", "x", b"\n Kernel  Latency  Tensor  DRAM\n", 0),
        ("unsupported", "x.QDREP", b"\x0a\x1b", 0.9),
        ("unsupported", "x.nsys-rep", b'{"traceEvents":', 0),
        ("perfetto", "x.pftrace", b'{"traceEvents":', 0),
        ("perfetto", "x.pftrace", b"\n\4\x40\1\x50\1", 0.95),
        ("perfetto", "x", b"\n\4\x40\1\x50\1\n\2\x50\1", 0.9),
        ("perfetto", "x", b"\n\4\x40\1\x50\1 and text", 0),
        ("perfetto", "x.PFTRACE.gz", b"\n\4\x9a\6\0\0", 0.5),
        ("latencyprism-counters", "x", b"counter_name,timestamp,value\n", 0.3),
        ("latencyprism-counters", "x", COUNTERS, 0),
        ("counters", "x.csv", COUNTERS, 0.3),
        ("counters", "x.csv", b"ts_ns,metric\n1,2\n", 0),
        ("counters", "a/counters.parquet", b"PAR1", 0.3),
        ("counters", "a/x.parquet", b"PAR1", 0),
        ("step_costs", "x", b'{ "batch_cost_s": [', 0.3),
        ("step_costs", "x", b'["batch_cost_s"]', 0),
        ("step_costs", "x", b"", 0),
    ],
)
def test_a_format_says_how_sure_it_is_of_a_file(name, path, head, sure):
    assert FORMAT[name].sniff(path, head) == sure
    assert FORMAT[name].sniff(path, head, above=sure / 2) == sure
    assert FORMAT[name].sniff(path, head, above=sure) == 0


def test_side_files_are_not_sure_enough_to_be_taken_for_traces_of_a_folder():
    assert {name for name, one in FORMAT.items() if max(sign.sure for sign in one.signs) < 0.4} == {
        "latencyprism-counters",
        "step_costs",
        "counters",
        "requests",
        "metrics",
    }


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: one.name)
def test_every_format_has_a_module_that_reads_it(one):
    assert one.doc
    assert callable(getattr(__import__(f"stepscope.readers.{one.module}", fromlist=[one.function]), one.function, None))


def test_the_surest_format_is_taken():
    assert reader_for("x.json", b'{"traceEvents":[').name == "kineto"
    assert reader_for("x", PADDLE).name == reader_for("x", PADDLE_JSON).name == "paddle"


@pytest.mark.parametrize("name", COUNTER_FILES)
def test_a_side_file_is_in_the_folder_of_the_trace(tmp_path, name):
    trace = str(tmp_path / "trace.json")
    assert side_file(trace, COUNTER_FILES) is None
    (tmp_path / name).touch()
    assert side_file(trace, COUNTER_FILES) == str(tmp_path / name)
