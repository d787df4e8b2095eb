from __future__ import annotations

import polars as pl
import pytest
from perf_files import perf_row, write_case

import stepscope
from stepscope import exports
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.trace import Meta, Results, Run
from stepscope.exports.latencyprism import Pair, chosen_pair, durations_us, pairs_of, results_of

SLOW = {"beta_pct": "30.0000", "anchor_dur_us": "1500.0000"}


def cycles_of(n, **values):
    return [perf_row(i + 1, **({"beta_pct": f"{10 + 0.1 * i:.4f}"} | values)) for i in range(n)]


@pytest.fixture
def case(tmp_path):
    return write_case(tmp_path / "clock", cycles_of(4), cycles_of(3, **SLOW))


def titles(text):
    return [line for line in text.split("\n") if line.startswith("# ")]


def test_a_case_gives_the_report_and_its_table(case):
    text = stepscope.export(case, "latencyprism")
    assert titles(text) == ["# Strict Performance Comparison: clock (PID: 7)"]
    assert "| Total Cycles        | 4        | 3          |" in text
    assert "**increased** from **10.15%** to **30.00%** (+19.85 ppt)" in text
    head, row = stepscope.export(case, "latencyprism", part="csv").splitlines()
    assert "β_normal(%),β_abnormal(%)" in head
    assert row.startswith('"void gemm<float, 2>(float*)",gpu_usage,GPU 3,')
    assert ",10.150000,30.000000,19.850000," in row


def test_the_command_line_writes_it(case, tmp_path, capsys):
    from stepscope.cli import main

    assert main(["export", str(case), "--to", "latencyprism", "--part", "csv", "-o", str(tmp_path / "x.csv")]) == 0
    assert (tmp_path / "x.csv").read_text(encoding="utf-8") == stepscope.export(case, "latencyprism", part="csv")
    assert main(["export", str(case), "--to", "latencyprism", "--part", "html"]) == 2
    assert "choose from report, csv" in capsys.readouterr().err


def test_the_lowest_common_process_is_taken_and_the_others_are_told(tmp_path):
    rows = [row | {"pid": pid} for pid in (9, 7, 8) for row in cycles_of(2)]
    case = write_case(tmp_path / "x", rows, rows)
    with pytest.warns(UserWarning, match=r"about process 7; choose another with --pid 8, --pid 9$"):
        assert "(PID: 7)" in stepscope.export(case, "latencyprism")
    assert "(PID: 9)" in stepscope.export(case, "latencyprism", pid=9)


def test_processes_of_different_numbers_are_compared_across(tmp_path):
    case = write_case(tmp_path / "x", cycles_of(2), cycles_of(2, pid=8) + cycles_of(2, pid=9))
    with pytest.warns(UserWarning, match="--pid 7 --other-pid 9"):
        text = stepscope.export(case, "latencyprism")
    assert titles(text) == ["# Cross Performance Comparison: x (Normal PID:7 vs Abnormal PID:8)"]
    assert "β_abnormal_pid_9(%)" in stepscope.export(case, "latencyprism", part="csv", other_pid=9)
    with pytest.raises(StepscopeError, match="no process 7"):
        stepscope.export(case, "latencyprism", other_pid=7)


def test_cycles_of_different_kinds_are_told(tmp_path):
    case = write_case(tmp_path / "x", cycles_of(2), cycles_of(2, anchor_name="Layer.forward"))
    with pytest.warns(UserWarning, match=r"of different kinds.*Scheduler.run_batch and Layer.forward"):
        stepscope.export(case, "latencyprism")


def test_two_files_are_compared_in_the_order_given(case):
    files = [case / f"{side}_perf_data" / "result_perf_data.csv" for side in ("normal", "abnormal")]
    moved = [file.rename(case / f"{i}.csv") for i, file in enumerate(files)]
    text = stepscope.export(stepscope.load_run(reversed(moved)), "latencyprism")
    assert titles(text) == ["# Strict Performance Comparison: 1.csv and 0.csv (PID: 7)"]
    assert "| Total Cycles        | 3        | 4          |" in text


def test_several_cases_and_none_are_refused(case, tmp_path):
    write_case(tmp_path / "other", cycles_of(2), cycles_of(2))
    with pytest.raises(StepscopeError, match="2 pairs of runs, but a report covers one: clock, other"):
        stepscope.export(tmp_path, "latencyprism")
    with pytest.raises(StepscopeError, match="no pair"):
        stepscope.export(case / "normal_perf_data", "latencyprism")


def test_results_of_another_kind_are_refused():
    run = Run(("a", "b"), lambda path: Results(Meta(path, "table"), {}))
    with pytest.raises(MissingTable, match="latencyprism needs attribution"):
        exports.find("latencyprism")(run, exports.Context(lambda _: run, print))


def test_recordings_are_compared_by_what_is_made_of_them(rows, new_rows, recorded):
    traces = {}
    for side, other, length in (("normal", rows, 100), ("abnormal", new_rows(), 300)):
        for step in range(4):
            other.step(step, 1000 * step, 1000)
            other.kernel(1000 * step + 10, length + step)
        samples = [(1000 * i + 5, "gpu0", "gpu_frequency", 1980 - length + i) for i in range(4)]
        traces[f"x/{side}/rank0.json"] = recorded(other, samples)
    run = Run(tuple(traces), traces.__getitem__)
    with pytest.warns(UserWarning, match="computed from the recording"):
        text = stepscope.export(run, "latencyprism")
    assert "**`gemm`**. The analysis indicates a notable increase" in text
    assert "**`gpu_frequency`**: decreased from 188,150.00 to 168,150.00" in text


@pytest.mark.filterwarnings("ignore:.*computed from the recording")
def test_recordings_without_counters_are_told_that_nothing_can_be_compared(rows, recorded):
    rows.step(1, 0, 1000)
    rows.kernel(0, 10)
    run = Run(("a", "b"), lambda _: recorded(rows))
    with pytest.warns(UserWarning, match="record counters too"):
        assert "No significant performance difference" in stepscope.export(run, "latencyprism")


def test_a_cycle_that_several_hosts_report_counts_once():
    frame = CYCLES.conform(pl.DataFrame({"cycle": [1, 1, 2], "host": ["a", "b", "a"], "dur_ns": [1500, 1500, 1500]}))
    assert durations_us(frame) == [1.5, 1.5]


def test_processes_of_both_runs_go_before_those_of_one():
    assert pairs_of([3, 1, 5], [7, 3, 8, 1]) == [Pair(1, 1), Pair(3, 3), Pair(5, 7), Pair(5, 8)]


def test_the_first_pair_is_taken_unless_another_is_asked_for():
    runs = ([3, 1, 5], [7, 3, 8, 1])
    assert chosen_pair(*runs, None, None) == Pair(1, 1)
    assert chosen_pair(*runs, 3, None) == Pair(3, 3)
    assert chosen_pair(*runs, None, 8) == Pair(5, 8)
    assert chosen_pair(*runs, 1, 7) == Pair(1, 7)


@pytest.mark.parametrize(("pid", "other", "message"), [(9, None, r"no process 9 \(--pid"), (None, 5, "--other-pid")])
def test_a_process_that_is_not_there_is_named(pid, other, message):
    with pytest.raises(StepscopeError, match=message) as caught:
        chosen_pair([3], [3, 4], pid, other)
    assert "3" in caught.value.hint


def test_a_process_that_the_published_tool_pairs_with_none_needs_both_named():
    with pytest.raises(StepscopeError, match="no pair of processes") as caught:
        chosen_pair([3], [3, 4], None, 4)
    assert "--other-pid" in caught.value.hint


def test_titles_and_labels_tell_the_processes():
    strict, cross = Pair(3, 3), Pair(3, 4)
    assert strict.labels == ("normal", "abnormal")
    assert strict.title("x") == "# Strict Performance Comparison: x (PID: 3)"
    assert cross.labels == ("normal_pid_3", "abnormal_pid_4")
    assert cross.title("x") == "# Cross Performance Comparison: x (Normal PID:3 vs Abnormal PID:4)"


MS = 1_000_000


def test_a_recording_gives_what_a_file_of_results_has(rows, recorded):
    rows.step(1, 0, 1000)
    rows.step(2, 1000, 1000)
    rows.kernel(100, 300, launch=rows.launch(50))
    rows.kernel(1500, 600, launch=rows.launch(1200))
    rows.add(1, 0, 2000, "write", "io")
    samples = [(600, "gpu0", "gpu_usage", 50), (2050, "gpu0", "gpu_usage", 70), (3000, "gpu0", "gpu_usage", 90)]
    results = results_of(recorded(rows, samples))
    assert results.results["cycles"].table is CYCLES
    assert results.results["attribution"].table is ATTRIBUTION
    assert results.result("cycles").select("cycle", "pid", "ts_ns", "dur_ns", "anchor").rows() == [
        (1, 42, 0, 1000, "ProfilerStep"), (2, 42, 1000, 1000, "ProfilerStep"),
    ]  # fmt: skip
    columns = ("cycle", "device", "name", "metric", "category", "recorded_category", "recorded_beta", "recorded_mu")
    # The second cycle's window reaches to the end of its kernel, and takes in the sample during that.
    assert results.result("attribution").sort("cycle", "device").select(columns).rows() == [
        (1, "gpu0", "gemm", "gpu_usage", "kernel", "gpu_compute", 30.0, 50.0),
        (1, "host", "write", None, "io", "disk_read_and_write", 100.0, None),
        (2, "gpu0", "gemm", "gpu_usage", "kernel", "gpu_compute", 60.0, 70.0),
        (2, "host", "write", None, "io", "disk_read_and_write", 100.0, None),
    ]


def test_prefills_are_left_out_beside_others(rows, recorded):
    for i in range(20):
        rows.add(0, 10 * i * MS, 5 * MS, "run_batch", "python")
        rows.kernel((10 * i + 1) * MS, MS, launch=rows.launch((10 * i + 1) * MS, track=1))
    rows.add(0, 300 * MS, 90 * MS, "prefill", "python")
    rows.kernel(310 * MS, MS)
    results = results_of(recorded(rows))
    assert results.result("cycles").height == 20
    assert results.result("attribution")["cycle"].max() == 20


def test_a_recording_without_a_process_number_is_one_process(rows):
    rows.step(1, 0, 1000)
    rows.kernel(100, 300)
    assert results_of(rows.trace()).result("attribution")["pid"].to_list() == [-1]


def test_shares_have_as_many_decimals_as_the_published_files(rows, recorded):
    rows.step(1, 0, 3_000_000)
    rows.kernel(0, 1_000_000)
    found = results_of(recorded(rows)).result("attribution")
    assert found.select("recorded_beta", pl.col("beta_ratio").round(9)).row(0) == (33.3333, 0.333333333)


def test_a_recording_in_which_nothing_has_a_share_is_refused(rows, recorded):
    rows.step(1, 0, 1000)
    rows.op(10, 20)
    with pytest.raises(MissingTable, match="latencyprism needs device work"):
        results_of(recorded(rows))
