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
    assert "Counters alone were recorded" in report.quality[0]


def test_nothing_at_all_is_said_to_be_nothing():
    assert overview(trace()).quality == ("The trace holds no spans with times: there is nothing to report.",)
