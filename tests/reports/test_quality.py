from __future__ import annotations

import polars as pl
import pytest
from msgspec.structs import replace

from stepscope.analyses.common.device_work import device_work
from stepscope.core.schema import ISSUES
from stepscope.reports._quality import lacks_of_issues, quality
from stepscope.reports._summary import scope_of


def told(trace) -> dict[str, str]:
    has_work = trace.spans["category"].is_in(["kernel", "memcpy", "memset"]).any()
    work = device_work(trace.spans, trace.tracks, needed_by="test") if has_work else None
    return {lack.kind: lack.text for lack in quality(trace, scope_of(trace), work)}


def test_a_complete_trace_lacks_nothing(rows) -> None:
    rows.step(1, 0, 100)
    op = rows.op(10, 20)
    rows.kernel(40, 50, launch=rows.launch(12, op=op), op=op)
    assert told(rows.trace()) == {}


def test_work_that_may_be_of_any_of_several_devices_is_counted(rows) -> None:
    op = rows.op(0, 1000)
    for track in (10, 11, 20):
        rows.kernel(0, 900, launch=rows.launch(1, op=op), op=op, track=track)
    trace = rows.trace()
    tracks = trace.tracks.with_columns(device_id=pl.when(pl.col("track_id") != 11).then("device_id"))
    found = told(replace(trace, tables={**trace.tables, "tracks": tracks}))
    assert found["no_device_named"] == ("1 piece of device work could be of any of several devices and is in no bar.")


def test_device_work_without_launch_is_told_by_its_share_of_time(rows) -> None:
    op = rows.op(0, 1000)
    rows.kernel(0, 900, launch=rows.launch(1, op=op), op=op)
    rows.kernel(900, 100)
    assert told(rows.trace())["no_launch"] == "No launch record of 1 piece of device work (10 % of device time)."


def test_device_work_without_operator_is_told_and_graphs_are_named_as_the_reason(rows) -> None:
    rows.op(0, 5)
    rows.kernel(20, 100, launch=rows.launch(10, name="cudaGraphLaunch"))
    assert told(rows.trace())["no_operator"].startswith("100 % of device time belongs to no operator: replayed graphs")


def test_a_recording_of_the_device_alone_says_what_it_cannot_tell(rows) -> None:
    rows.kernel(0, 100)
    assert list(told(rows.trace())) == ["no_host"]
    rows.launch(0)
    assert "ProfilerActivity.CPU" in told(rows.trace())["no_operators"]
    rows.add(0, 0, 10, "IO 190", "user_range")
    assert told(rows.trace())["no_operators"] == (
        "No operators are in the trace: show user-ranges says whose the kernels are."
    )


def test_launches_without_device_work_are_told(rows) -> None:
    rows.op(0, 10)
    rows.launch(2)
    assert "used a device" in told(rows.trace())["no_device"]


def test_collectives_of_a_library_for_devices_are_a_sign_of_a_device(rows) -> None:
    rows.op(0, 10, "nccl:all_to_all")
    assert "used a device" in told(rows.trace())["no_device"]


def test_python_that_waits_for_a_device_is_a_sign_of_one(rows) -> None:
    rows.add(0, 0, 100, "train.py(1): main", "python")
    assert "no_device" not in told(rows.trace())
    rows.add(0, 10, 80, "<built-in function _cuda_synchronize>", "python")
    assert "used a device" in told(rows.trace())["no_device"]


def test_collectives_on_the_host_are_no_sign_of_a_device(rows) -> None:
    rows.op(0, 10, "gloo:all_reduce")
    assert "no_device" not in told(rows.trace())


def test_unmarked_steps_come_with_the_way_to_mark_them(rows) -> None:
    rows.op(0, 10)
    assert "profiler.step()" in told(rows.trace())["no_steps"]


def test_what_lies_outside_steps_is_told(rows) -> None:
    rows.step(1, 0, 100)
    rows.step(2, 100, 100)
    rows.op(10, 5)
    rows.kernel(150, 100, launch=rows.launch(12))
    rows.op(900, 100)
    found = told(rows.trace())
    assert found["after_steps"].startswith("Device work goes on for 50 ns after the last step's end")
    assert found["outside_steps"].startswith("Steps cover 20 % of the recording")


def test_what_the_reader_dropped_is_told_unless_it_is_harmless(rows) -> None:
    rows.add(0, 0, 10, "x", "other")
    issues = [
        {"code": "truncated", "severity": "error", "count": 1, "example": "cut off at byte 512"},
        {"code": "bad_escapes", "severity": "warning", "count": 3, "example": "invalid escapes read literally"},
        {"code": "instants", "severity": "info", "count": 9, "example": "instants"},
        {"code": "silent", "severity": "warning", "count": 2, "example": None},
    ]
    assert told(rows.trace(issues=issues)) == {
        "truncated": "Cut off at byte 512.", "bad_escapes": "Invalid escapes read literally (3 ×).",
        "silent": "Silent (2 ×).",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("example", "n", "sentence"),
    [
        ("it was cut", 1, "It was cut."),
        ("it was cut.", 2, "It was cut (2 ×)."),
        ("was it profiled?", 1, "Was it profiled?"),
        ("was it profiled?", 3, "Was it profiled? (3 ×)."),
        (None, 1, "Wild times."),
    ],
)
def test_sentences_of_issues_have_one_full_stop(example, n, sentence) -> None:
    rows = pl.DataFrame({"code": ["wild_times"], "severity": ["warning"], "count": [n], "example": [example]})
    assert [lack.text for lack in lacks_of_issues(ISSUES.conform(rows))] == [sentence]
