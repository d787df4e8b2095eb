from __future__ import annotations

import polars as pl

from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Trace
from stepscope.reports._counters import summary_of_counters
from stepscope.reports.overview import overview


def trace(*rows) -> Trace:
    frame = pl.DataFrame(rows, schema=["ts_ns", "device", "metric", "unit", "value"], orient="row")
    return Trace(Meta("counters.csv", "counters"), {"counters": COUNTERS.conform(frame)} if rows else {})


def test_resources_that_were_used_are_shown_and_idle_ones_are_not():
    found = trace(
        (0, "host", "host_cpu_usage", "%", 10.0), (2000, "host", "host_cpu_usage", "%", 30.0), (0, "lo", "n", "", 0.0)
    )
    summary = summary_of_counters(found)
    assert summary.recorded_ns == 2000
    assert summary.tables[0].frame.rows() == [("host", "host_cpu_usage", "%", 10.0, 29.0, 30.0)]
    report = overview(found)
    assert [block.frame.height for block in report.tables] == [1]
    assert "Only counters were recorded" in report.quality[0]


def test_single_cores_come_last_and_accelerators_first():
    devices = ("cpu0", "cpu10", "eth0", "gpu0", "host", "pid:7")
    summary = summary_of_counters(trace(*((0, device, "usage", "%", 10.0) for device in devices)))
    assert summary.tables[0].frame["device"].to_list() == ["gpu0", "host", "pid:7", "eth0", "cpu0", "cpu10"]


def test_a_process_that_waits_for_cores_is_the_first_finding():
    rows = [
        (second * 10**9, "pid:7", metric, "ns/s", value)
        for second in range(11)
        for metric, value in (("process_runq_time", 6e8), ("process_oncpu_time", 3e8))
    ]
    rows += [(second * 10**9, "host", "host_cpu_usage", "%", 52.0) for second in range(11)]
    report = overview(trace(*rows))
    (finding,) = report.findings
    assert finding.title == "The CPU is starved: threads are ready to run and wait for a core"
    assert (finding.value_ns, finding.share_ratio) == (6e9, 0.6)
    assert finding.details[0] == (
        "pid:7: 600 ms of each second (95th percentile 600 ms); it runs for 300 ms of each; "
        "the host's cores are busy 52 % of the time"
    )
    assert report.bars == ()


def test_a_quota_that_stops_a_container_is_a_finding_and_short_waits_are_none():
    rows = [(second * 10**9, "pid:7", "cgroup_cpu_throttled_time", "ns/s", 5e8) for second in range(3)]
    assert "quota" in overview(trace(*rows)).findings[0].title
    short = [(second * 10**9, "pid:7", "process_runq_time", "ns/s", 9e7) for second in range(3)]
    assert overview(trace(*short)).findings == ()
    many = [(second * 10**9, "pid:7", "process_runq_time", "ns/s", 4e9) for second in range(3)]
    assert overview(trace(*many)).findings[0].share_ratio == 1.0


def test_nothing_at_all_is_said_to_be_nothing():
    assert overview(trace()).quality == ("The trace holds no spans with times: there is nothing to report.",)


def test_of_many_cores_only_the_busiest_is_shown_after_processes_and_accelerators():
    rows = [(1_000_000 * i, f"cpu{n}", "host_cpu_usage", 10.0 * (n + 1)) for n in range(8) for i in range(3)]
    rows += [(0, "vda", "disk_busy_time", 1.0), (0, "gpu0", "gpu_usage", 50.0), (0, "pid:7", "process_cpu_usage", 90.0)]
    frame = pl.DataFrame(rows, schema=["ts_ns", "device", "metric", "value"], orient="row")
    (block,) = summary_of_counters(Trace(Meta("x", "counters"), {"counters": COUNTERS.conform(frame)})).tables
    assert block.frame["device"].to_list() == ["gpu0", "pid:7", "vda", "cpu7, the busiest of 8"]
    assert block.frame["mean"].to_list() == [50.0, 90.0, 1.0, 80.0]
