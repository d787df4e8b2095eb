from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from device_traces import BACKWARD, DEVICES_2, HOST, STREAM_7, TRACKS_5, kernel, spans_of
from job_simulator import Layout, Plan, simulate
from make_ranks import write
from msgspec.structs import replace

from stepscope import exports
from stepscope.api import verbs
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import ARROWS, COUNTERS
from stepscope.core.trace import Meta, Run, Trace
from stepscope.exports.chrome import EXPORT, events


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    job = simulate(Plan(Layout(tp=2, dp=2), steps=2, offset_sd_ns=1e6))
    path = tmp_path_factory.mktemp("job")
    write(job, path)
    return path


def merged(source, **options) -> tuple[list[dict], list[str]]:
    told: list[str] = []
    run = source if isinstance(source, Run) else verbs.load_run(source)
    content = EXPORT(run, exports.Context(verbs.load_run, told.append), **options)
    return json.loads("".join(content.pieces))["traceEvents"], told


def ends_before_it_began(events: list[dict]) -> int:
    """Exchanges that end on one rank before they begin on another."""
    calls: dict[tuple, list[tuple[float, float]]] = {}
    for event in events:
        args = event["args"] if event["ph"] == "X" and event["cat"] == "kernel" else {}
        if "Seq" in args:
            key = args["Process Group Name"], args["Seq"]
            calls.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    assert all(len(own) == 2 for own in calls.values())
    return sum(min(end for _, end in own) < max(start for start, _ in own) for own in calls.values())


@pytest.mark.slow
def test_all_ranks_are_on_one_timeline_in_true_time(folder):
    events, told = merged(folder)
    assert told == []
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [sum(name.startswith(f"rank {r} ") for name in names) for r in range(4)] == [2, 2, 2, 2]
    assert "rank 3 · cuda:0 SIMULATED GPU" in names
    assert min(e["ts"] for e in events) >= 0
    assert ends_before_it_began(events) == 0


@pytest.mark.slow
def test_as_recorded_clocks_stay_off(folder):
    assert ends_before_it_began(merged(folder, as_recorded=True)[0]) > 0


def test_one_trace_begins_at_zero(folder):
    events, _ = merged(folder / "rank2.pt.trace.json.gz")
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0
    assert len({e["pid"] for e in events}) == 2


@pytest.mark.slow
def test_files_that_cannot_be_read_or_compared_are_told(folder, tmp_path, examples):
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [broken')
    lone = examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz"
    paths = [str(p) for p in (*sorted(folder.iterdir()), broken, lone)]
    events, told = merged(Run(tuple(paths), verbs.load))
    assert [note.split(": ")[0].split("/")[-1] for note in told] == [
        "broken.json is left out", "rank0.pt.trace.json.gz keeps its own clock",
    ]  # fmt: skip
    assert len({e["pid"] // 1000 for e in events}) == 5


def test_nothing_that_can_be_read_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.json").write_text('{"traceEvents": [broken')
    with pytest.raises(StepscopeError, match="none of the traces"):
        merged(Run((str(tmp_path / "a.json"), str(tmp_path / "b.json")), verbs.load))


@pytest.mark.slow
def test_traces_without_exchanges_keep_their_clocks(examples):
    lone = str(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")
    events, told = merged(Run((lone, lone), verbs.load))
    assert len(told) == 2
    assert {e["pid"] // 1000 for e in events} == {0, 1}


def test_from_python_it_is_text(folder):
    text = verbs.export(folder / "rank0.pt.trace.json.gz", "chrome")
    assert isinstance(text, str)
    assert json.loads(text)["traceEvents"]


def written(trace: Trace, number: int = 3, later: int = 0) -> list[dict]:
    text = ",".join(events(trace, number, lambda ns: ns + later))
    return json.loads(f"[{text}]")


def trace(*rows, **tables: pl.DataFrame) -> Trace:
    known = {"tracks": TRACKS_5, "devices": DEVICES_2, "spans": spans_of(*rows)}
    return Trace(Meta("x", "nsys", rank=3), known | tables)


def test_spans_have_their_times_as_microseconds_and_their_numbers():
    spans = spans_of((HOST, 1005, 2500, 'say "hi"', "operator"), step=[7], correlation=[5])
    found = [e for e in written(trace(spans=spans), later=1) if e["ph"] == "X"]
    assert found == [{
        "ph": "X", "cat": "cpu_op", "name": 'say "hi"', "pid": 3000, "tid": 0, "ts": 1.006, "dur": 2.5,
        "args": {"step": 7, "correlation": 5},
    }]  # fmt: skip


def test_tracks_are_named_by_rank_device_and_stream():
    found = written(trace(kernel(STREAM_7, 0, 5)))
    names = {(e["pid"], e["tid"], e["name"]): e["args"].get("name") for e in found if e["ph"] == "M"}
    assert names[3000, 0, "process_name"] == "rank 3 · host"
    assert names[3001, 0, "process_name"] == "rank 3 · cuda:0 H100"
    assert names[3002, 0, "process_name"] == "rank 3 · cuda:1 H100"
    assert names[3001, 32, "thread_name"] == "stream 7"


def test_a_device_without_an_ordinal_is_named_by_its_type():
    whole = trace(kernel(STREAM_7, 0, 5))
    devices = whole.devices.with_columns(index=pl.lit(None, pl.Int32))
    found = written(replace(whole, tables={**whole.tables, "devices": devices}))
    assert "rank 3 · cuda H100" in [e["args"].get("name") for e in found]


def test_work_has_an_arrow_from_its_launch():
    found = written(trace((HOST, 0, 5, "cudaLaunchKernel", "runtime"), kernel(STREAM_7, 20, 5, launch=0)))
    start, end = (e for e in found if e["ph"] in "sf")
    assert (start["pid"], start["ts"], end["pid"], end["ts"]) == (3000, 0.0, 3001, 0.02)
    assert start["id"] == end["id"]


def test_arrows_between_threads_are_kept():
    arrows = ARROWS.conform(pl.DataFrame([("fwdbwd", HOST, 5, BACKWARD, 90)], schema=list(ARROWS.dtypes), orient="row"))
    found = [e for e in written(trace((HOST, 0, 5, "x", "operator"), arrows=arrows)) if e["ph"] in "sf"]
    assert [(e["tid"], e["ts"], e["cat"]) for e in found] == [(0, 0.005, "fwdbwd"), (16, 0.09, "fwdbwd")]


def test_counters_are_kept_from_the_first_span_on():
    samples = {"ts_ns": [-5, 7, 8], "metric": ["load"] * 3, "device": ["host"] * 3, "value": [1.0, 2.5, float("nan")]}
    counters = COUNTERS.conform(pl.DataFrame(samples))
    found = [e for e in written(trace((HOST, 0, 5, "x", "operator"), counters=counters)) if e["ph"] == "C"]
    assert [(e["name"], e["ts"], e["args"]) for e in found] == [("load host", 0.007, {"value": 2.5})]
    early = COUNTERS.conform(pl.DataFrame(samples).head(1))
    assert not [e for e in written(trace((HOST, 0, 5, "x", "operator"), counters=early)) if e["ph"] == "C"]


def test_spans_that_overlap_are_drawn_on_lines_of_their_own():
    rows = [(HOST, 0, 100, "a", "operator"), (HOST, 50, 100, "b", "operator"), (HOST, 90, 100, "c", "operator"),
            (HOST, 160, 10, "d", "operator")]  # fmt: skip
    found = written(trace(*rows))
    lanes = {e["name"]: e["tid"] for e in found if e["ph"] == "X"}
    assert lanes == {"a": 0, "b": 1, "c": 2, "d": 0}
    assert [e["args"]["name"] for e in found if e["name"] == "thread_name" and e["tid"] in (1, 2)] == [
        "thread (2)", "thread (3)",
    ]  # fmt: skip


def test_a_trace_without_spans_has_its_tracks():
    empty = Trace(Meta("x", "kineto"), {"tracks": TRACKS_5})
    found = written(empty)
    assert {e["ph"] for e in found} == {"M"}
    assert found[0]["args"]["name"] == "trace 3 · host"


def test_without_a_clock_there_is_no_timeline():
    spans = spans_of(kernel(STREAM_7, 0, 5)).with_columns(ts_ns=pl.lit(None, pl.Int64))
    with pytest.raises(MissingTable, match="start times"):
        written(trace(spans=spans))


@pytest.mark.slow
def test_what_is_written_reads_back_as_it_was(examples, tmp_path):
    path = examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz"
    first = verbs.load(path)
    again = tmp_path / "again.json"
    again.write_text(str(verbs.export(path, "chrome")))
    second = verbs.load(again)
    assert second.spans.height == first.spans.height
    assert second.steps["dur_ns"].to_list() == first.steps["dur_ns"].to_list()
    sums = pl.len(), pl.col("dur_ns").sum()
    wanted, got = (
        t.spans.group_by(pl.col("name").cast(pl.String), "category").agg(*sums).sort("name", "category")
        for t in (first, second)
    )
    assert np.abs(wanted["dur_ns"].to_numpy() - got["dur_ns"].to_numpy()).max() <= 2 * wanted["len"].to_numpy().max()
    assert wanted.select("name", "category", "len").equals(got.select("name", "category", "len"))
