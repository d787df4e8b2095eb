from __future__ import annotations

import io
import json
import subprocess
import sys

import polars as pl
import pytest


def test_a_query_is_asked_of_all_files(run, paths):
    result = run("sql", *paths, "SELECT rank, sum(dur_ns) AS total_ns FROM spans GROUP BY rank ORDER BY rank")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == ["rank   total", "   0   55 ns", "   1  110 ns", "  10  165 ns"]


def test_numbers_are_exact_where_they_are_for_programs(run, paths, tmp_path):
    text = "SELECT rank, sum(dur_ns) AS total_ns FROM spans GROUP BY rank ORDER BY rank"
    assert json.loads(run("sql", *paths, text, "--format", "json").out)[2] == {"rank": 10, "total_ns": 165}
    assert run("sql", *paths, text, "--format", "csv").out == "rank,total_ns\n0,55\n1,110\n10,165\n"
    assert run("sql", *paths, text, "-o", str(tmp_path / "out.parquet")).code == 0
    assert pl.read_parquet(tmp_path / "out.parquet")["total_ns"].to_list() == [55, 110, 165]


def test_the_query_may_come_from_standard_input(run, paths, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 7 AS seven"))
    assert run("sql", *paths, "-", "--format", "csv").out == "seven\n7\n"


def test_tables_for_people_stop_somewhere(run, paths):
    long = run("sql", paths[0], "SELECT range AS n FROM range(80)")
    assert len(long.out.splitlines()) == 53
    assert long.out.endswith("50 of 80 rows; --limit 0 shows all\n")
    assert len(run("sql", paths[0], "SELECT range AS n FROM range(80)", "--limit", "0").out.splitlines()) == 81
    assert len(run("sql", paths[0], "SELECT range AS n FROM range(80)", "--format", "csv").out.splitlines()) == 81
    assert run("sql", paths[0], "SELECT range AS n FROM range(9)", "--format", "csv", "--limit", "2").out == "n\n0\n1\n"


def test_files_that_cannot_be_read_are_told(run, paths):
    result = run("sql", "nothing.json", paths[0], "SELECT rank FROM traces", "--format", "csv")
    assert result.out == "rank\n0\n"
    assert result.err.startswith("note: nothing is left out: cannot read nothing.json")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["SELECT 1"], 2, "PATH and a query are needed"),
        (["SELECT 1", "nothing.json"], 2, "the query comes last"),
        (["a.json", "SELECT * FROM spanz"], 2, "no table named 'spanz'"),
        (["a.json", "COPY spans TO 'x'"], 1, "a query may only read"),
        (["a.json", "SELECT * FROM kernel_metrics"], 1, "no kernel_metrics"),
        (["a.json", "SELECT 1", "--timeout", "soon"], 2, "'soon' is not a duration"),
        (["a.json", "SELECT 1", "--timeout", "0"], 2, "the time must be above 0"),
        (["a.json", "SELECT 1", "--memory-limit", "much"], 2, "--memory-limit"),
        (["a.json", "SELECT 1", "--format", "xml"], 2, "no format named 'xml'"),
        (
            ["a.json", "SELECT count(*) FROM range(99999999) a, range(99999999)", "--timeout", "100ms"],
            1,
            "no answer within",
        ),
    ],
)
def test_what_is_refused_says_why(run, paths, words, code, reason):
    result = run("sql", *(str(paths[0]) if word == "a.json" else word for word in words))
    assert (result.code, result.out) == (code, "")
    assert reason in result.err


def test_a_report_is_no_form_for_a_table(run, paths, monkeypatch):
    from stepscope import renderers
    from stepscope.renderers import Renderer

    monkeypatch.setattr(renderers, "find", lambda _: Renderer("page", "only reports"))
    assert "a table is not written as page" in run("sql", paths[0], "SELECT 1", "--format", "page").err


@pytest.mark.slow
def test_nothing_but_the_answer_is_printed(examples):
    command = [sys.executable, "-m", "stepscope", "sql", str(examples / "demo-cpu-decode"), "SELECT 1 AS one"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("one\n  1\n", "")
