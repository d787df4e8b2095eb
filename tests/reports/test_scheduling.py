from __future__ import annotations

import polars as pl

from stepscope.core.schema import COUNTERS, SCHED, SPANS, TRACKS
from stepscope.core.trace import Meta, Trace
from stepscope.reports._without_profile import only_scheduled, scheduling_blocks
from stepscope.reports.overview import overview


def trace(*, n_threads=1, waits=True, operators=False, counters=False) -> Trace:
    rows = [(i, 10 * i, 5 + i, "sched_runq" if waits else "sched_oncpu") for i in range(n_threads)]
    frame = pl.DataFrame(rows, schema=["track_id", "ts_ns", "dur_ns", "category"], orient="row")
    frame = frame.with_columns(name=pl.lit("waits behind greedy"))
    tracks = [
        {"track_id": i, "pid": 1, "tid": i, "process": "job", "label": f"t{i} {i} · cores"} for i in range(n_threads)
    ]
    sched = frame.with_row_index("span_id").with_columns(reason=pl.lit("woken"), other=pl.lit("greedy"))
    if operators:
        more = pl.DataFrame({"track_id": [0], "ts_ns": [0], "dur_ns": [99], "category": ["operator"], "name": ["mm"]})
        frame = pl.concat([frame, more], how="diagonal")
    tables = {
        "spans": SPANS.conform(frame.with_row_index("span_id")), "tracks": TRACKS.conform(pl.DataFrame(tracks)),
        "sched": SCHED.conform(sched),
    }  # fmt: skip
    if counters:
        sample = {"ts_ns": [0], "device": ["host"], "metric": ["host_cpu_usage"], "unit": ["%"], "value": [7.0]}
        tables["counters"] = COUNTERS.conform(pl.DataFrame(sample))
    return Trace(Meta("counters.csv", "counters"), tables)


def titles(report) -> list[str]:
    return [block.title for block in report.tables]


def test_threads_that_waited_are_shown_longest_first():
    (block,) = scheduling_blocks(trace(n_threads=9))
    assert block.title == "Threads and cores, longest waits of 9"
    assert block.frame["runq_ns"].to_list() == [13, 12, 11, 10, 9]
    assert block.frame["behind"].to_list() == ["greedy"] * 5


def test_where_no_thread_waited_or_nothing_was_recorded_nothing_is_shown():
    assert scheduling_blocks(trace(waits=False)) == []
    assert scheduling_blocks(Trace(Meta("t", "kineto"), {})) == []


def test_beside_counters_alone_the_report_says_what_is_known():
    found = trace(counters=True)
    assert only_scheduled(found)
    report = overview(found)
    assert titles(report) == ["Threads and cores, longest waits of 1", "Resources that were used"]
    assert "when threads ran, not what they did" in report.quality[0]
    assert titles(overview(trace())) == ["Threads and cores, longest waits of 1"]


def test_beside_a_profile_it_is_one_table_more():
    found = trace(operators=True)
    assert not only_scheduled(found)
    assert "Threads and cores, longest waits of 1" in titles(overview(found))
