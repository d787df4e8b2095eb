"""LatencyPrism's published comparisons of five cases: every number of its tables, every line of its reports.

Rows of equal score stand in an order that hangs on the machine which wrote them, so tables are compared by key and
lines as a multiset. The reports' titles hold the path of the case on that machine.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections import Counter
from typing import TYPE_CHECKING

import polars as pl
import pytest

import stepscope
from stepscope import cli
from stepscope.reports.comparison import comparison

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHED = {
    "SGLang/cpu_compute_squeeze_out": "pid4013652_strict",
    "SGLang/cpu_frequency_reduction": "n_pid805580_vs_a_pid842126_cross",
    "SGLang/gpu_instability": "pid944615_strict",
    "SGLang/gpu_memory_squeeze_out_PCIe": "pid90816_strict",
    "vLLM/gpu_instability": "pid1571875_strict",
}
N_ROWS = {
    "SGLang/cpu_compute_squeeze_out": 264,
    "SGLang/cpu_frequency_reduction": 264,
    "SGLang/gpu_instability": 264,
    "SGLang/gpu_memory_squeeze_out_PCIe": 288,
    "vLLM/gpu_instability": 303,
}
KEYS = ("Function Name", "Metric Name", "Device")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
each_case = pytest.mark.parametrize("case", PUBLISHED)


def published(shared: Path, case: str, suffix: str) -> str:
    name = f"Processed_{case.replace('/', '_')}_{PUBLISHED[case]}_comparison.{suffix}.gz"
    packed = (shared / "latencyprism" / "DeepDive" / "Results" / name).read_bytes()
    return gzip.decompress(packed).decode("utf-8").replace("\r\n", "\n")


def folder(shared: Path, case: str) -> Path:
    return shared / "latencyprism" / "DeepDive" / "Data" / "Processed" / case


def by_key(text: str) -> dict[tuple[str, ...], dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO(text)))
    found = {tuple(row[key] for key in KEYS): row for row in rows}
    assert len(found) == len(rows)
    return found


def equal(expected: str, found: str) -> bool:
    if "" in (expected, found):
        return expected == found
    return math.isclose(float(expected), float(found), rel_tol=1e-6, abs_tol=1e-6)


@each_case
def test_every_value_of_the_table_is_equal(shared: Path, case: str):
    expected = by_key(published(shared, case, "csv"))
    found = by_key(stepscope.export(folder(shared, case), "latencyprism", part="csv"))
    assert len(expected) == N_ROWS[case]
    assert expected.keys() == found.keys()
    columns = list(next(iter(expected.values())))
    assert columns == list(next(iter(found.values())))
    assert len(columns) == 17
    wrong = [
        (key, name, row[name], found[key][name])
        for key, row in expected.items()
        for name in columns[len(KEYS) :]
        if not equal(row[name], found[key][name])
    ]
    assert wrong == []


@each_case
def test_the_most_suspicious_come_first(shared: Path, case: str):
    text = stepscope.export(folder(shared, case), "latencyprism", part="csv")
    scores = [float(row["Suspicion Score"]) for row in csv.DictReader(io.StringIO(text))]
    assert scores == sorted(scores, reverse=True)


@each_case
def test_every_line_of_the_report_is_equal(shared: Path, case: str):
    expected = published(shared, case, "md").split("\n")
    found = stepscope.export(folder(shared, case), "latencyprism").split("\n")
    assert len(expected) == len(found)
    path = "Processed\\" + case.replace("/", "\\")
    assert expected[0].replace(path, case.rpartition("/")[2]) == found[0]
    assert Counter(expected[1:]) == Counter(found[1:])
    # Only rows of the table, and metrics of a finding, stand elsewhere than in the original.
    moved = [line for line, other in zip(expected[1:], found[1:], strict=True) if line != other]
    assert {line[:6] for line in moved if not line.startswith("| ")} <= {"    - "}


def test_the_reference_report_is_that_of_its_case(shared: Path):
    reference = (shared / "reference" / "latencyprism_comparison_sglang_gpu_instability.md").read_text(encoding="utf-8")
    found = stepscope.export(folder(shared, "SGLang/gpu_instability"), "latencyprism")
    assert Counter(reference.split("\n")[1:]) == Counter(found.split("\n")[1:])


@each_case
@pytest.mark.parametrize("words", [("counters",), ("attribution",), ("cycles",), ("issues",), ("trace.counters",)])
def test_what_the_files_hold_can_be_shown(shared: Path, case: str, words: tuple[str, ...], capsys):
    assert cli.main(["show", *words, str(folder(shared, case))]) == 0
    assert capsys.readouterr().out


@each_case
def test_what_they_do_not_hold_is_refused_and_a_report_can_be_made(shared: Path, case: str, capsys):
    for name in ("spans", "kernels", "timeline", "diff"):
        assert cli.main(["show", name, str(folder(shared, case))]) == 1
        assert "holds results, not a recording" in capsys.readouterr().err
    assert cli.main(["report", str(folder(shared, case))]) == 0
    assert "LatencyPrism" in capsys.readouterr().out


@each_case
def test_the_report_of_a_case_gives_the_verdict_and_the_causes_of_its_comparison(shared: Path, case: str):
    report = stepscope.report(folder(shared, case))
    compared = comparison(stepscope.compare(folder(shared, case)))
    assert report.findings[0].title == compared.headline
    assert report.findings[1:] == compared.findings


@each_case
def test_kernels_and_states_of_threads_are_not_one_table(shared: Path, case: str):
    for block in stepscope.report(folder(shared, case) / "normal_perf_data").tables:
        names = block.frame["name"].cast(pl.String).to_list()
        assert not {"oncpu", "runq"} & set(names) or set(names) <= {"oncpu", "runq"}
        if "share_ratio" in block.frame.columns:
            assert block.frame["share_ratio"].sum() <= 1


@each_case
def test_shares_and_samples_agree_with_the_files(shared: Path, case: str):
    """A second count with csv: rows, summed durations, samples of each counter."""
    for side in ("normal", "abnormal"):
        path = folder(shared, case) / f"{side}_perf_data" / "result_perf_data.csv.gz"
        results = stepscope.load(path)
        assert isinstance(results, stepscope.Results)
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = results.result("attribution")
        assert found.height == len(rows)
        assert found["recorded_beta"].to_list() == [float(row["beta_pct"]) for row in rows]
        assert found["total_ns"].sum() == pytest.approx(1000 * sum(float(row["duration"]) for row in rows))
        assert found["metric"].null_count() == sum(row["metric_name"] == "N/A" for row in rows)
        side_path = path.with_name("result_counters_data.csv.gz")
        with gzip.open(side_path, "rt", encoding="utf-8", newline="") as file:
            assert results.counters.height == sum(1 for _ in csv.DictReader(file))
