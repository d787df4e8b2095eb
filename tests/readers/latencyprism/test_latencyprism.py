from __future__ import annotations

import gzip

import polars as pl
import pytest
from perf_files import COLUMNS, GEMM, START_US, counters_text, perf_row, perf_text, write_case

from stepscope.core.errors import CorruptInput, MissingTable, StepscopeError
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.trace import Results
from stepscope.readers import Source, expand, open_trace, reader_for
from stepscope.readers.common.source import IssueLog
from stepscope.readers.formats import header_of
from stepscope.readers.latencyprism.reader import nanoseconds, read_rows, unit_of


@pytest.fixture
def read(tmp_path):
    def read_rows(rows, *, name="result_perf_data.csv", columns=COLUMNS):
        path = tmp_path / name
        text = perf_text(rows, columns).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        return open_trace(str(path))

    return read_rows


def codes(results):
    return dict(results.issues.select("code", "count").rows())


def test_the_header_tells_the_format():
    assert reader_for("x", perf_text([]).encode()).name == "latencyprism"
    assert reader_for("x", b"\xef\xbb\xbf" + perf_text([]).encode()).name == "latencyprism"


def test_a_file_gives_cycles_and_attribution(read):
    results = read([perf_row(1), perf_row(1, metric_name="gpu_sm_util", mu_pct="0.26"), perf_row(2)])
    assert isinstance(results, Results)
    assert {name: result.table for name, result in results.results.items()} == {
        "cycles": CYCLES, "attribution": ATTRIBUTION,
    }  # fmt: skip
    assert results.result("cycles").rows() == [
        (1, None, 7, 0, 1_000_250, None, None, "Scheduler.run_batch", None, None, None, None),
        (2, None, 7, 1_000_000, 1_000_250, None, None, "Scheduler.run_batch", None, None, None, None),
    ]
    assert results.meta.origin_unix_ns == (START_US + 1000) * 1000 + 750
    first = results.result("attribution").row(0, named=True)
    assert first == {
        "cycle": 1, "host": None, "pid": 7, "device": "gpu3", "name": GEMM, "metric": "gpu_usage",
        "category": "kernel", "recorded_category": "gpu_compute", "short_name": "gemm", "calls": 4,
        "total_ns": 100_000, "beta_ratio": 0.1, "unit": "%", "mu": 6.0, "sigma": 0.0, "sampled": "none",
        "recorded_beta": 10.0, "recorded_mu": 6.0, "resource": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "recorded", "value", "unit"),
    [
        ("gpu_usage", 6.0, 6.0, "%"),
        ("gpu_sm_util", 0.26, 0.26, "ratio"),
        ("gpu_frequency", 118687.5, 1186.875, "MHz"),
        ("gpu_link_receive", 2.48e13, 2.48e11, "bytes/s"),
        ("net_rx_rate", 17612.0, 17612.0, "bytes/s"),
        ("cpu_frequency", 87.5, 0.875, "ratio"),
        ("cpu_frequency", 350000.0, 3500.0, "MHz"),
        ("gpu_mem_used", 85.7, 0.857, "ratio"),
        ("gpu_mem_used", 7.36e12, 7.36e10, "bytes"),
    ],
)
def test_metrics_come_in_units_that_people_know(read, metric, recorded, value, unit):
    found = read([perf_row(1, metric_name=metric, mu_pct=recorded, sigma_pct=recorded)]).result("attribution")
    row = found.row(0, named=True)
    assert (row["recorded_mu"], row["unit"]) == (recorded, unit)
    assert row["mu"] == pytest.approx(value)
    assert row["sigma"] == pytest.approx(value)


def test_a_function_without_a_metric_keeps_its_share(read):
    row = perf_row(1, metric_name="N/A", mu_pct="", sigma_pct="", interpolation_status=" ")
    found = read([row]).result("attribution").row(0, named=True)
    assert [found[name] for name in ("metric", "unit", "mu", "sigma", "sampled", "recorded_mu")] == [None] * 6
    assert found["beta_ratio"] == 0.1


@pytest.mark.parametrize(
    ("kind", "name", "category"),
    [
        ("oncpu", "oncpu", "sched_oncpu"), ("runq", "runq", "sched_runq"), ("gpu_comm", "nccl", "kernel"),
        ("gpu_memcpy_h2d", "Memcpy HtoD", "memcpy"), ("gpu_memcpy_h2d", "Memset (Device)", "memset"),
        ("cpu_sync", "cudaStreamSynchronize", "sync"), ("disk_read_and_write", "write", "io"), ("new", "x", "other"),
    ],
)  # fmt: skip
def test_types_of_functions_are_categories(read, kind, name, category):
    found = read([perf_row(1, func_type=kind, function_name=name)]).result("attribution")
    assert found.select("category", "recorded_category").row(0) == (category, kind)


def test_devices_have_the_names_of_counters(read):
    devices = ["Host", "GPU 7", "GPU 7 (virtual)", ""]
    found = read([perf_row(1, device=device) for device in devices]).result("attribution")
    assert found["device"].to_list() == ["host", "gpu7", "gpu7 (virtual)", None]


def test_events_with_samples_of_their_own_are_told(read):
    found = read([perf_row(1, interpolation_status=status) for status in (" ", "*", "**", "?")]).result("attribution")
    assert found["sampled"].to_list() == ["all", "some", "none", None]


def test_rows_without_their_numbers_are_dropped_and_counted(read):
    bad = [{"cycle": "one"}, {"pid": ""}, {"beta_pct": "inf"}, {"anchor_dur_us": "?"}]
    results = read([perf_row(1), *(perf_row(2) | values for values in bad)])
    assert results.result("attribution").height == 1
    assert codes(results) == {"rows_dropped": 4}
    with pytest.raises(CorruptInput, match="not one of its rows"):
        read([perf_row(1, pid="?")])


def test_columns_that_only_some_versions_write_may_lack(read):
    needed = ("cycle", "pid", "beta_pct", "function_name", "metric_name", "device", "mu_pct", "anchor_dur_us")
    results = read([perf_row(1), perf_row(2)], columns=needed)
    assert results.result("cycles").select("ts_ns", "dur_ns", "anchor").rows() == [(None, 1_000_250, None)] * 2
    assert results.result("attribution").select("calls", "total_ns", "category").row(0) == (None, None, "other")
    assert results.meta.origin_unix_ns is None


def test_the_samples_beside_a_file_are_read_with_it(read, tmp_path):
    samples = [("gpu_usage", f"{START_US + 900}", 5), ("host_cpu_usage", f"{START_US + 1500}", 7)]
    (tmp_path / "result_counters_data.csv.gz").write_bytes(gzip.compress(counters_text(samples).encode()))
    (tmp_path / "other_counters_data.csv").write_text(counters_text([("x", "1", 1)]))
    results = read([perf_row(1)], name="result_perf_data.csv.gz")
    assert results.meta.origin_unix_ns == (START_US + 900) * 1000
    assert results.result("cycles")["ts_ns"].to_list() == [100_750]
    assert results.counters.select("ts_ns", "metric").rows() == [(0, "gpu_usage"), (600_000, "host_cpu_usage")]


def test_samples_that_cannot_be_read_are_an_issue(read, tmp_path):
    (tmp_path / "result_counters_data.csv").write_text("when,what\n1,2\n")
    results = read([perf_row(1)])
    assert codes(results) == {"counters_unreadable": 1}
    with pytest.raises(MissingTable, match="counters"):
        results.require("counters")


def test_a_folder_gives_the_files_of_results_and_not_those_of_samples(tmp_path):
    write_case(tmp_path, [perf_row(1)], [perf_row(1)])
    (tmp_path / "normal_perf_data" / "result_counters_data.csv").write_text(counters_text([("x", "1", 1)]))
    assert expand([str(tmp_path)]) == [
        str(tmp_path / f"{side}_perf_data" / "result_perf_data.csv") for side in ("abnormal", "normal")
    ]


def test_processes_stand_beside_each_other(read):
    results = read([perf_row(1, pid=8), perf_row(1, pid=7), perf_row(2, pid=7)])
    assert results.result("cycles").select("cycle", "pid").rows() == [(1, 7), (1, 8), (2, 7)]
    assert results.result("attribution").filter(pl.col("pid") == 8).height == 1


@pytest.mark.slow
def test_a_file_cut_anywhere_gives_its_whole_rows_or_the_reason(tmp_path):
    rows = [perf_row(1), perf_row(2, simple_name='a "b", c')]
    text = perf_text(rows).encode()
    ends = [i + 1 for i, sign in enumerate(text) if sign == ord("\n")]
    path = tmp_path / "result_perf_data.csv"
    for cut in range(ends[0] + 1, len(text)):
        path.write_bytes(text[:cut])
        whole = sum(end <= cut for end in ends[1:])
        try:
            found = open_trace(str(path)).result("attribution")
        except StepscopeError:
            assert whole == 0
        else:
            assert whole <= found.height <= whole + 1
            assert found["calls"].to_list() == [4] * found.height


@pytest.fixture
def counters_data(tmp_path):
    def read_samples(samples):
        path = tmp_path / "result_counters_data.csv"
        path.write_text(counters_text(samples), newline="")
        return open_trace(str(path))

    return read_samples


def test_the_header_shows_the_format():
    assert reader_for("x", b"counter_name,timestamp,value,hostname\r\n").name == "latencyprism-counters"


def test_samples_are_of_a_process_of_the_host_or_of_some_gpu(counters_data):
    trace = counters_data([
        ("process_cpu_usage_4013652", f"{START_US + 2}.500000", 160.5), ("host_cpu_usage", f"{START_US}.000000", 6),
        ("gpu_frequency", f"{START_US + 1}.250000", 1155),
    ])  # fmt: skip
    assert trace.counters.select("ts_ns", "device", "pid", "metric", "unit", "value").rows() == [
        (0, "host", None, "host_cpu_usage", "%", 6.0),
        (1_250, None, None, "gpu_frequency", "MHz", 1155.0),
        (2_500, "pid:4013652", 4013652, "process_cpu_usage", "%", 160.5),
    ]
    assert trace.meta.origin_unix_ns == START_US * 1000
    assert trace.issues.rows() == [("counters_pooled", "info", 1, "samples of all GPUs have one name")]


def test_a_process_number_written_as_a_float_is_the_same_process(counters_data):
    samples = [("process_mem_rss_4.013652e+06", f"{START_US}", 1), ("process_mem_rss_4013652", f"{START_US + 1}", 2)]
    assert counters_data(samples).counters["pid"].to_list() == [4013652] * 2


@pytest.mark.parametrize("name", ["process_cpu_usage", "process_x_1.5", "process_x_1e", "process_x_9e99"])
def test_a_name_without_a_process_number_is_kept_as_it_is(counters_data, name):
    found = counters_data([(name, f"{START_US}", 1)]).counters
    assert found.select("metric", "pid").rows() == [(name, None)]


def test_rows_without_a_time_or_value_are_dropped_and_counted(counters_data):
    trace = counters_data(
        [("net_rx_rate", "soon", 1), ("net_rx_rate", f"{START_US}", "much"), ("net_rx_rate", f"{START_US}", 1)]
    )
    assert trace.counters.height == 1
    assert trace.issues.filter(pl.col("code") == "counters_dropped")["count"].to_list() == [2]


def test_units_go_by_the_name():
    units = {
        "cpu_frequency": "MHz",
        "gpu_sm_util": "ratio", "gpu_usage": "%", "process_gpu_mem_usage": "bytes",
        "container_gpu_mem_usage": "%", "gpu_link_receive": "bytes/s", "net_tx_rate": "bytes/s",
        "gpu_mem_used": "bytes",
        "host_mem_free": "kB", "disk_free": "bytes", "process_mem_rss": "bytes", "cpu_temp": "°C", "gpu_power": "W",
        "anything": None,
    }  # fmt: skip
    found = pl.DataFrame({"metric": list(units)}).select(unit_of(pl.col("metric"))).to_series()
    assert found.to_list() == list(units.values())


@pytest.fixture
def rows_of(tmp_path):
    def read(content: bytes, needed=("a",)):
        path = tmp_path / "x.csv"
        path.write_bytes(content)
        log = IssueLog()
        frame = read_rows(Source(str(path)), needed, log)
        return frame, log.table()["code"].to_list()

    return read


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        (b"a,b\r\n1,2", ["a", "b"]),
        (b'\xef\xbb\xbfa,"b,c"\n', ["a", "b,c"]),
        (b"", []),
        (b"\xff\xfe\n", []),
        (b'"' + b"x" * 200_000 + b"\n", []),
    ],
    ids=["plain", "quoted, with a mark of byte order", "empty", "not text", "endless"],
)
def test_the_fields_of_the_first_line(head, fields):
    assert header_of(head) == fields


def test_rows_are_text_and_empty_fields_null(rows_of):
    frame, codes = rows_of(b'\xef\xbb\xbfa,b\r\n1.50,"x, ""y"""\r\n,z\r\n')
    assert frame.rows() == [("1.50", 'x, "y"'), (None, "z")]
    assert codes == []


@pytest.mark.parametrize("end", [b"3", b'3,"cut', b'3,"cut, he'])
def test_a_last_row_that_breaks_off_is_dropped_and_counted(rows_of, end):
    frame, codes = rows_of(b"a,b\n1,2\n" + end)
    assert frame.rows() == [("1", "2")]
    assert codes == ["truncated"]


def test_a_last_row_that_is_whole_needs_no_newline(rows_of):
    assert rows_of(b"a,b\n1,2\n3,4")[0].height == 2


def test_what_can_be_unpacked_is_read(rows_of):
    packed = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (i * i, i) for i in range(9_999)))
    frame, codes = rows_of(packed[: len(packed) // 2])
    assert frame.height > 100
    assert "damaged_packing" in codes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"b,c\n1,2\n", r"x\.csv at byte 0: no column a"),
        (b"a,b\n", "a header and not one whole row"),
        (b'a,b\n"1,x"y\n', "not one whole row"),
    ],
)
def test_what_is_no_table_is_refused_with_the_reason(rows_of, content, message):
    with pytest.raises(CorruptInput, match=message) as caught:
        rows_of(content)
    assert caught.value.hint


def test_a_stray_quote_costs_no_more_than_its_row(rows_of):
    frame, codes = rows_of(b'a,b\r\n1,x\r\n2,"y" z"\r\n"3,y\r\n\r\n4,\r\n5,6,7\r\n')
    assert frame.rows() == [("1", "x"), ("2", 'y z"'), ("4", None)]
    assert codes == ["rows_dropped"]


def test_signs_that_are_not_utf8_are_replaced(rows_of):
    assert rows_of(b"a,b\n1,\xff\n")[0].rows() == [("1", "\ufffd")]


def test_microseconds_become_nanoseconds_without_a_loss():
    texts = ["1762935807026558.7500", "0.0010", "-3", "1e3", "soon", None, "9" * 16, "9" * 40]
    found = pl.DataFrame({"t": texts}).select(nanoseconds("t")).to_series()
    assert found.to_list() == [1_762_935_807_026_558_750, 1, -3_000, 1_000_000, *[None] * 4]
