from __future__ import annotations

import os
import shutil
import time

import numpy as np
import pytest
from bar_notes import texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import stepscope
from stepscope import store
from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.trace import Meta, Run, Trace
from stepscope.reports import overview as overview_home
from stepscope.reports._summary import Scope, Summary
from stepscope.reports.overview import (
    WHAT,
    outlier_costs,
    overview,
    summarise,
    summarise_file,
)
from stepscope.store.cache_keys import settled as is_settled

US = 1_000


def training(rows, *, steps: int = 5, slow: int | None = None):
    """Steps of 100 µs: 60 µs of computation, then 20 µs of all-reduce; a slow step idles 300 µs more."""
    at = 0
    for number in range(steps):
        length = (100 + (300 if number == slow else 0)) * US
        rows.step(number, at, length)
        op = rows.op(at + US, 10 * US)
        rows.kernel(at + 5 * US, 60 * US, "ampere_bf16_s16816gemm", launch=rows.launch(at + 2 * US, US, op=op), op=op)
        talk = rows.op(at + 12 * US, 5 * US, "c10d::allreduce_")
        call = rows.launch(at + 13 * US, US, op=talk)
        rows.kernel(at + 65 * US, 20 * US, "ncclDevKernel_AllReduce_Sum", launch=call, op=talk, track=11)
        at += length
    return rows


def test_a_training_run_on_a_device(rows) -> None:
    report = overview(training(rows).trace(rank=0, world_size=2))
    assert report.headline.startswith("PyTorch 2.9.0 · NVIDIA H100 · rank 0 of 2 · steps 0–4 (5) · 500 µs recorded")
    (bar,) = report.bars
    assert {part.name: round(part.ratio, 3) for part in bar.parts} == {
        "computation": 0.6, "exposed communication": 0.2, "idle": 0.2,
    }  # fmt: skip
    assert texts(bar)[0] == "device busy 80 %"
    assert [finding.title.partition(":")[0] for finding in report.findings] == [
        "The device waits for the host, in code that was not recorded",
        "No device work in the last 15 µs of the recorded steps", "Matrix products",
    ]  # fmt: skip
    assert report.findings[0].value_ns == 16 * US
    assert [block.title for block in report.tables] == ["Operators", "Kernels"]
    assert report.quality == ()


def test_advice_that_no_cost_gives_stands_behind_the_costs(rows) -> None:
    training(rows)
    full = [{"ts_ns": 0, "device_id": 1, "bytes": 79 << 30, "address": 1}]
    report = overview(rows.trace(allocations=full))
    assert report.findings[-1].title == "Tensors hold up to 99 % of the memory of cuda:0"
    assert texts(report.bars[0])[:2] == ("device busy 80 %", "tensor cores 75 %")


def test_a_slow_step_stands_out(rows) -> None:
    report = overview(training(rows, slow=2).trace())
    assert "Step 2 took 400 µs, 4.0 × the median" in [finding.title for finding in report.findings]


def test_a_training_run_on_the_host_alone(rows) -> None:
    for number in range(4):
        rows.step(number, number * 100 * US, 100 * US)
        rows.op(number * 100 * US, 90 * US)
    report = overview(rows.trace())
    assert "CPU only" in report.headline
    assert [part.name for part in report.bars[0].parts] == ["operators", "Python and other"]
    assert report.findings[0].title == "Operator aten::mm"
    assert [block.title for block in report.tables] == ["Operators"]


def test_memory_that_grows_with_every_step_is_a_finding(rows) -> None:
    training(rows)
    levels = [{"ts_ns": i * 100 * US + 50, "device_id": 1, "bytes": 64 << 20, "address": i,
               "total_allocated_bytes": (i + 1) * 64 << 20} for i in range(5)]  # fmt: skip
    report = overview(rows.trace(allocations=levels))
    assert report.findings[-1].title == "Memory held by tensors grows by 64 MiB with every step (20 % of the peak)"
    assert report.findings[-1].value_ns is None
    assert "peak memory 320 MiB of 80 GiB" in texts(report.bars[0])


def test_memory_that_is_freed_every_few_steps_does_not_grow(rows) -> None:
    training(rows)
    levels = [{"ts_ns": i * 100 * US + 50, "device_id": 1, "bytes": 64 << 20, "address": i,
               "total_allocated_bytes": mib << 20} for i, mib in enumerate((64, 128, 64, 128, 64))]  # fmt: skip
    titles = [finding.title for finding in overview(rows.trace(allocations=levels)).findings]
    assert not any("grows" in title for title in titles)


def test_memory_of_the_host_is_told_as_such_and_steady_memory_is_no_finding(rows) -> None:
    rows.step(0, 0, 10)
    rows.op(0, 5)
    level = [{"ts_ns": 1, "device_id": 0, "bytes": 1 << 20, "address": 1}]
    report = overview(rows.trace(allocations=level, devices=[{"device_id": 0, "type": "cpu"}]))
    assert texts(report.bars[0]) == ("peak memory 1 MiB on the host",)
    nothing = [{"ts_ns": 1, "device_id": 0, "bytes": -8, "address": 1}]
    assert summarise(rows.trace(allocations=nothing, devices=[{"device_id": 0, "type": "cpu"}])).memory is None


def test_a_recording_of_a_device_alone(rows) -> None:
    rows.kernel(0, 60, "gemm")
    rows.kernel(80, 20, "gemm")
    report = overview(rows.trace())
    assert report.bars[0].label == "Device"
    assert [finding.value_label for finding in report.findings] == ["in all", "in all"]
    assert "unknown" in report.quality[0]
    assert [block.title for block in report.tables] == ["Kernels"]


def test_copies_alone_have_no_table_of_kernels(rows) -> None:
    rows.kernel(0, 60, "Memcpy HtoD (Pageable -> Device)")
    report = overview(rows.trace())
    assert [block.title for block in report.tables] == [
        "Tracks, by time in which something is open",
        "Names, by their own time",
    ]
    assert report.findings[0].title.startswith("Copies while no kernel runs")


def test_a_lone_step_says_how_much_later_the_device_was_done(rows) -> None:
    rows.step(3, 0, 100)
    rows.kernel(50, 55, launch=rows.launch(10))
    assert "device done 5 ns after the step's end on the host" in texts(overview(rows.trace()).bars[0])


def test_a_lone_step_that_the_device_needs_much_longer_for_is_on_its_clock(rows) -> None:
    rows.step(3, 0, 100)
    rows.kernel(50, 100, launch=rows.launch(10))
    notes = texts(overview(rows.trace()).bars[0])
    assert notes[0] == "step on the device's clock: the host queues one in 100 ns"
    assert not any(note.startswith("device done") for note in notes)


def test_any_other_trace_shows_its_tracks_and_names(rows) -> None:
    rows.add(0, 0, 100, "load", "other")
    report = overview(rows.trace())
    assert report.bars == report.findings == ()
    assert [block.command for block in report.tables] == ["show tracks", "show spans --sort dur"]


def test_a_trace_without_spans_says_so(rows) -> None:
    report = overview(rows.trace())
    assert report.quality == ("The trace holds no spans with times: there is nothing to report.",)
    assert report.bars == report.findings == report.tables == ()


def test_spans_without_length_break_nothing(rows) -> None:
    rows.step(1, 0, 0)
    rows.op(0, 0)
    rows.kernel(0, 0, launch=rows.launch(0, 0))
    report = overview(rows.trace())
    assert report.findings == ()
    assert report.bars[0].value == "0"


@pytest.mark.slow
def test_a_run_reads_one_trace_at_a_time_and_reports_them_together(rows, new_rows) -> None:
    traces = {f"rank{i}.json": training(r).trace(rank=i, world_size=2) for i, r in enumerate((rows, new_rows()))}
    report = overview(Run(tuple(traces), traces.__getitem__))
    assert "2 × NVIDIA H100 · ranks 0–1 ·" in report.headline
    assert report.tables[0].note == "Sums over 2 traces."


def test_files_of_a_run_that_cannot_be_read_are_left_out_and_named(rows) -> None:
    good = training(rows).trace(rank=0)

    def read(path: str) -> Trace:
        if path == "good.json":
            return good
        raise CorruptInput("not JSON", path=path)

    report = overview(Run(("good.json", *(f"run/bad{i}.json" for i in range(4))), read))
    assert report.quality == ("4 files left out: bad0.json, bad1.json, bad2.json … (run/bad0.json: not JSON).",)
    with pytest.raises(StepscopeError, match="not JSON"):
        overview(Run(("bad.json",), read))


def test_a_device_without_a_name_is_called_by_its_kind(rows) -> None:
    rows.kernel(0, 10)
    assert summarise(rows.trace(devices=[{"device_id": 1, "type": "npu", "index": 0}])).devices == ("NPU",)
    assert summarise(rows.trace(devices=[{"device_id": 9, "type": "cpu"}])).devices == ("UNKNOWN DEVICE",)


def test_a_trace_with_nothing_but_metadata_has_a_report() -> None:
    assert overview(Trace(Meta("x.json", "kineto"), {})).headline == "Chrome trace · 0 recorded · 0 events read"


NAMES = (
    "aten::mm", "cudaLaunchKernel", "cudaStreamSynchronize", "ncclDevKernel_AllReduce_Sum", "gloo:all_reduce", "gemm",
    "Memcpy HtoD (Pageable -> Device)", "train.py(3): step", "",
)  # fmt: skip
HOST = ("operator", "runtime", "python", "module", "user_range", "dataloader", "other")
row_values = st.tuples(
    st.integers(0, 4), st.integers(0, 60), st.integers(0, 40), st.sampled_from(NAMES), st.integers(0, 6),
    st.none() | st.integers(0, 20), st.none() | st.integers(0, 20),
)  # fmt: skip


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(row_values, min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), max_size=6),
)
def test_whatever_a_trace_holds_there_is_a_report_whose_parts_make_a_whole(new_rows, values, steps) -> None:
    made = new_rows()
    for number, (at, length) in enumerate(sorted(steps)):
        made.step(number, at, length)
    for track, ts, dur, name, kind, launch, op in values:
        links = {"launch": f"row {launch}", "op": f"row {op}"}
        if track < 2:
            made.add(track, ts, dur, name, HOST[kind])
        else:
            category = ("kernel", "memcpy", "memset", "sync", "device_range")[kind % 5]
            made.add((10, 11, 20)[track - 2], ts, dur, name, category, **links)
    report = overview(made.trace())
    for bar in report.bars:
        assert sum(part.ratio for part in bar.parts) == pytest.approx(1) or not bar.parts
    assert all(finding.share_ratio is None or finding.share_ratio >= 0.01 for finding in report.findings)


def scope_of(*lengths: int) -> Scope:
    ends = np.cumsum(lengths)
    return Scope(ends - lengths, ends, tuple(range(10, 10 + len(lengths))))


def test_a_step_far_slower_than_the_median_costs_what_it_took_more() -> None:
    scope = scope_of(100, 100, 300, 100, 140)
    parts = {"computation": np.array([80, 80, 90, 80, 80]), "idle": np.array([20, 20, 210, 20, 60])}
    (cost,) = outlier_costs(parts, scope)
    assert (cost.kind, cost.ns) == ("outlier", 240)
    assert cost.title == "Step 12 took 300 ns, 3.0 × the median"
    assert cost.details == (
        "190 ns of the difference is idle, which other costs include; 1 other step took more than 1.3 × the median",
    )


def test_the_first_step_may_be_warm_up() -> None:
    (cost,) = outlier_costs({"idle": np.array([200, 0, 0, 0])}, scope_of(300, 100, 100, 100))
    assert "warm-up" in cost.details[0]


def test_even_or_few_steps_cost_nothing() -> None:
    assert outlier_costs({"idle": np.zeros(4)}, scope_of(100, 110, 90, 100)) == []
    assert outlier_costs({"idle": np.zeros(3)}, scope_of(100, 900, 100)) == []
    assert outlier_costs({"idle": np.zeros(4)}, scope_of(0, 0, 0, 0)) == []


@pytest.fixture
def run(tmp_path, examples, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(examples / "demo-cpu-2ranks", tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    return stepscope.load_run(tmp_path / "run")


def settled(run):
    """Wait until a change of the files would show in their times."""
    for path in run.paths:
        while not is_settled(path, time.time_ns()):
            pass
    return run


def text(run):
    return str(stepscope.report(run, workers=0))


def formats():
    store.wait_until_written()
    return sorted(entry.format for entry in store.entries(store.cache_folder()))


@pytest.mark.slow
def test_a_report_of_the_same_ranks_is_made_of_kept_summaries(run, monkeypatch):
    first = text(settled(run))
    assert formats() == ["kineto", "kineto", "kineto, summary", "kineto, summary"]
    monkeypatch.setattr(overview_home, "summarise", lambda _: pytest.fail("read again"))
    assert text(run) == first


@pytest.mark.slow
def test_so_is_the_report_of_one_file(run, monkeypatch):
    one = stepscope.load_run(settled(run).paths[0])
    first = text(one)
    assert formats() == ["kineto", "kineto, summary"]
    monkeypatch.setattr(overview_home, "summarise", lambda _: pytest.fail("read again"))
    assert text(one) == first


@pytest.mark.slow
def test_a_file_that_changed_is_read_again(run):
    text(settled(run))
    path = run.paths[0]
    shutil.copy(run.paths[1], path)
    assert "2 files" in text(run) or "another file has rank 1" in " ".join(text(run).split())


def test_a_side_file_that_appears_counts_as_a_change(run, tmp_path):
    before = [store.value_key(WHAT, path, run.open_trace.depends(path)).key for path in run.paths]
    (tmp_path / "run" / "counters.csv").write_text("ts_ns,metric,unit,device,value\n1,host_cpu_usage,%,host,5\n")
    after = [store.value_key(WHAT, path, run.open_trace.depends(path)).key for path in run.paths]
    assert not set(before) & set(after)


@pytest.mark.slow
def test_of_many_files_only_summaries_are_kept(run, monkeypatch):
    monkeypatch.setattr(overview_home, "_MOST_CACHED", 1)
    text(settled(run))
    assert formats() == ["kineto, summary", "kineto, summary"]


@pytest.mark.slow
def test_what_is_opened_otherwise_is_not_kept(run):
    settled(run)
    path = run.paths[0]
    summary = summarise_file(stepscope.load, path, most_calls=100)
    assert summary.calls is not None
    assert "kineto, summary" not in formats()


@pytest.mark.slow
def test_summaries_of_formats_that_are_several_files_are_not_kept(run):
    key = store.value_key(WHAT, settled(run).paths[0], ())
    summary = summarise(run.open_trace(run.paths[0]))
    store.cache_value(key, summary, replace(summary.meta, format="rocprof"), what=WHAT)
    assert store.cached_value(key, Summary) is None
    store.cache_value(key, summary, summary.meta, what=WHAT)
    assert store.cached_value(key, Summary).meta == summary.meta


@pytest.mark.slow
def test_kept_summaries_are_shown_in_the_cache_by_their_file(run):
    text(settled(run))
    store.wait_until_written()
    shown = {entry.source for entry in store.entries(store.cache_folder()) if "summary" in entry.format}
    assert shown == {files.absolute(path) for path in run.paths}
