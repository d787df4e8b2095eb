from __future__ import annotations

import json
import sys
import types

import pytest

import stepscope
from stepscope.api import verbs
from stepscope.core.report import Finding, Report
from stepscope.query import workers


@pytest.fixture
def overview(monkeypatch):
    """A report that tells only which traces it was given."""

    def made(source, *, each=None):  # noqa: ARG001  as the real one
        ranks = ", ".join(str(trace.rank) for trace in source)
        return Report(headline=f"ranks {ranks}", findings=(Finding("all of it", value_ns=5.0),))

    module = types.ModuleType("stepscope.reports.overview")
    module.overview = made
    monkeypatch.setitem(sys.modules, "stepscope.reports.overview", module)


pytestmark = pytest.mark.usefixtures("overview")


def test_the_report_goes_to_the_terminal_by_default(run, paths):
    result = run("report", *paths)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("ranks 0, 1, 10\n\nWhat costs most")


def test_python_and_the_command_line_print_the_same(run, paths):
    report = stepscope.report(verbs.load_run(paths))
    assert str(report) + "\n" == run("report", *paths).out
    assert repr(report) == "Report('ranks 0, 1, 10', 1 findings, 0 tables)"


@pytest.mark.parametrize(("suffix", "begins"), [("md", "# stepscope report"), ("json", "{"), ("txt", "ranks 0")])
def test_a_file_s_suffix_says_how_to_write_it(run, paths, tmp_path, suffix, begins):
    assert run("report", paths[0], "-o", f"out.{suffix}").out == ""
    assert (tmp_path / f"out.{suffix}").read_text().startswith(begins)
    assert not list(tmp_path.glob(".*"))


def test_format_wins_over_the_suffix(run, paths, tmp_path):
    run("report", paths[0], "--format", "json", "-o", "out.txt")
    assert json.loads((tmp_path / "out.txt").read_text())["headline"] == "ranks 0"
    assert json.loads(run("report", paths[0], "--format", "json", "-o", "-").out)["schema"] == "stepscope.report/1"


def test_a_file_is_only_replaced_by_force(run, job, paths, tmp_path):
    (tmp_path / "out.md").write_text("precious")
    result = run("report", paths[0], "-o", "out.md")
    assert (result.code, result.err.splitlines()) == (
        1, ["error: out.md exists already", "hint: choose another -o FILE, or pass --force to replace it"]
    )  # fmt: skip
    assert job.opened == []  # refused before the work
    assert run("report", paths[0], "-o", "out.md", "--force").code == 0
    assert (tmp_path / "out.md").read_text().startswith("# stepscope report")


def test_formats_for_tables_alone_are_usage_errors(run, paths):
    result = run("report", paths[0], "--format", "csv")
    assert result.code == 2
    assert "a report is not written as csv" in result.err


def test_what_is_missing_fails_only_where_that_is_asked_for(run, paths, monkeypatch):
    facts = {"n_missing_ranks": 2, "left_out": [], "duplicates": [{"path": "x", "rank": 0}]}
    report = Report(headline="ranks 0, 3", meta=facts)
    monkeypatch.setattr(sys.modules["stepscope.reports.overview"], "overview", lambda *_, **__: report)
    assert run("report", *paths).code == 0
    result = run("report", *paths, "--strict")
    assert result.code == 1
    assert result.out.startswith("ranks 0, 3")  # what there is comes all the same
    assert "error: the job is not complete: 2 missing, 1 duplicate" in result.err
    monkeypatch.setattr(sys.modules["stepscope.reports.overview"], "overview", lambda *_, **__: Report("all"))
    assert run("report", *paths, "--strict").code == 0


def test_how_it_is_read_can_be_told(run, paths, monkeypatch):
    asked = []
    real = workers.plan
    monkeypatch.setattr(workers, "plan", lambda *_, **options: asked.append(options) or real([]))
    assert run("report", *paths, "--workers", "0", "--memory-limit", "2GB").code == 0
    assert asked == [{"workers": 0, "memory_limit": 2_000_000_000}]
    result = run("report", *paths, "--memory-limit", "much")
    assert result.code == 2
    assert "--memory-limit" in result.err


def test_no_path_is_a_usage_error(run):
    assert run("report").code == 2


def test_counters_of_another_file_are_joined_before(run, paths):
    result = run("report", paths[0], "--with", paths[1])
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: {paths[1]} holds no counters of kernels")
