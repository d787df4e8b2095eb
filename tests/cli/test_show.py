from __future__ import annotations

import io
import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stepscope
from stepscope.api import verbs
from stepscope.core.schema import KERNEL_METRICS

RAW = "spans"
KERNEL_OF_EVIL = "[bold]evil\x1b[31m\nname|`x`"


def rows(result):
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_raw_table_is_shown_as_the_reader_made_it(run, paths):
    shown = rows(run("show", RAW, paths[0], "--format", "json"))
    assert [(row["name"], row["dur_ns"]) for row in shown] == [
        ("gemm<float>", 40), ("[bold]evil\x1b[31m\nname|`x`", 5), ("copy", 10)
    ]  # fmt: skip


def test_an_analysis_wins_over_a_raw_table_of_the_same_name(run, paths):
    analysed = rows(run("show", "kernels", paths[0], "--format", "json"))
    assert "total_ns" in analysed[0]
    raw = run("show", "trace.kernels", paths[0])
    assert raw.code == 1
    assert raw.err.startswith(
        "error: kernels needs kernels (side table of spans: launch configuration of a device kernel)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("n_traces", [1, 3])
@pytest.mark.parametrize(("words", "options"), [([], {}), (["--include", "device"], {"include": "device"})])
def test_the_command_line_and_python_give_equal_tables(run, paths, n_traces, words, options):
    used = [str(path) for path in paths[:n_traces]]
    python = stepscope.show(verbs.load_run(used), "kernels", **options)
    from_json = pl.DataFrame(rows(run("show", "kernels", *used, *words, "--format", "json")), schema=python.schema)
    assert_frame_equal(from_json, python)
    result = run("show", "kernels", *used, *words, "--format", "csv-raw")
    from_csv = pl.read_csv(io.StringIO(result.out), schema_overrides={"name": pl.String})
    assert from_csv["total_ns"].to_list() == python["total_ns"].to_list()
    assert from_csv["name"].to_list() == python["name"].cast(pl.String).to_list()


def test_a_single_trace_gets_no_rank_column(run, paths):
    assert "rank" not in rows(run("show", RAW, paths[0], "--format", "json"))[0]


def test_several_traces_are_stacked_in_order_of_rank(run, paths):
    shown = rows(run("show", RAW, paths[2], paths[0], "--format", "json"))
    assert [row["rank"] for row in shown] == [0, 0, 0, 10, 10, 10]
    assert next(iter(shown[0])) == "rank"


def test_traces_without_unique_ranks_are_told_apart_by_file(run, job, paths, make_trace):
    job.traces[str(paths[1])] = make_trace(str(paths[1]), 0)
    shown = rows(run("show", RAW, *paths[:2], "--format", "json"))
    assert [row["trace"] for row in shown] == ["a", "a", "a", "b", "b", "b"]
    assert "rank" not in shown[0]


def test_a_trace_that_lacks_the_table_is_named_and_left_out(run, job, paths, make_trace):
    job.traces[str(paths[1])] = make_trace(str(paths[1]), 1).with_tables(spans=pl.DataFrame(schema={}))
    result = run("show", RAW, *paths, "--format", "json")
    assert {row["rank"] for row in rows(result)} == {0, 10}
    assert result.err.startswith("note: b is left out: spans needs spans")


def test_no_issues_is_an_answer(run, paths):
    result = run("show", "issues", paths[0])
    assert (result.code, result.out.splitlines()[-1]) == (0, "no rows")


def test_options_take_dashes_and_equal_signs(run, paths):
    assert run("show", "kernels", "--include=device", paths[0], "--linked-only").code == 1  # nothing is linked here
    assert run("show", "kernels", "--include=device", paths[0], "--no-linked-only").code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bogus", "1"], "kernels has no option --bogus: it has --by, "),
        (["--include", "bogus"], "--include bogus: choose from kernel, device"),
        (["--linked-only=yes"], "--linked-only takes no value"),
        (["--limit", "few"], "for '--limit'"),
        (["--format", "terminal", "--limit", "-1"], "for '--limit'"),
    ],
)
def test_wrong_options_are_usage_errors(run, paths, words, says):
    result = run("show", "kernels", paths[0], *words)
    assert result.code == 2
    assert says in " ".join(result.err.split())


def test_nothing_to_show_is_a_usage_error(run):
    assert run("show").code == 2
    assert run("show", "spans").code == 2
    assert run("show", "spans", "--limit", "3").code == 2


def test_an_unknown_table_names_the_nearest(run, paths):
    result = run("show", "kernel", paths[0])
    assert (result.code, result.err.splitlines()[0]) == (2, "error: no table named 'kernel'")
    assert result.err.splitlines()[1].startswith("hint: known: kernels, ")


@pytest.mark.parametrize(
    ("words", "durations"),
    [
        (["--sort", "dur_ns"], [40, 10, 5]),
        (["--sort", "dur"], [40, 10, 5]),
        (["--sort", "+dur_ns"], [5, 10, 40]),
        (["--sort", "-ts_ns"], [10, 5, 40]),
        (["--sort", "ts_ns"], [40, 5, 10]),
        (["--sort", "name"], [5, 10, 40]),
        (["--sort", "category,dur_ns"], [40, 5, 10]),
        (["--where", "dur_ns >= 10"], [40, 10]),
        (["--where", "name LIKE '%gemm%' AND category = 'kernel'"], [40]),
        (["--where", "1 = 1"], [40, 5, 10]),
        (["--where", "rank = 0"], [40, 5, 10]),
        (["--where", "dur_ns = 5 OR dur_ns = 10"], [5, 10]),
        (["--where", "trace = 'b'"], []),
        (["--where", "dur_ns < 0"], []),
        (["--limit", "2"], [40, 5]),
        (["--limit", "0"], [40, 5, 10]),
    ],
)
def test_rows_are_chosen_and_sorted(run, paths, words, durations):
    assert [row["dur_ns"] for row in rows(run("show", RAW, paths[0], "--format", "json", *words))] == durations


def test_group_by_adds_up_what_adds_up(run, paths):
    shown = rows(run("show", RAW, paths[0], "--group-by", "category", "--format", "json"))
    assert shown == [
        {"category": "kernel", "n_rows": 2, "dur_ns": 45},
        {"category": "memcpy", "n_rows": 1, "dur_ns": 10},
    ]
    shown = rows(
        run("show", "kernels", *paths, "--group-by", "name", "--columns", "name,calls,total,max", "--format", "json")
    )
    assert shown[0] == {"name": "gemm<float>", "calls": 3, "total_ns": 240, "max_ns": 120}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--where", "dur_ns >"], "error: not a condition: 'dur_ns >'"),
        (["--where", "dur_ns + 1"], "error: not a condition: 'dur_ns + 1'"),
        (["--where", "nosuch = 1"], "error: no column named 'nosuch'"),
        (["--sort", "dur_n"], "error: no column named 'dur_n'"),
        (["--columns", "x"], "error: no column named 'x'"),
        (["--group-by", "x"], "error: no column named 'x'"),
        (["--format", "yaml"], "error: no format named 'yaml'"),
        (["-o", "out.yaml"], "error: no output format for a file named 'out.yaml'"),
        (["--format", "parquet"], "error: this format is binary and is not written to a terminal"),
        (["-o", "no/such/folder.csv"], "error: cannot write no/such/folder.csv: there is no folder no/such"),
        (["-o", "a.json", "--force"], "error: cannot write a.json: it is one of the inputs"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_a_hint(run, paths, words, says):
    result = run("show", RAW, paths[0], *words)
    unknown_name = says.startswith("error: no ")  # that is a matter of usage
    assert (result.code, result.out) == (2 if unknown_name else 1, "")
    first, second = result.err.splitlines()
    assert first.startswith(says)
    assert second.startswith("hint: ")


def test_people_see_the_first_rows_and_how_many_there_are(run, job, paths):
    path = str(paths[0])
    spans = pl.concat([job.traces[path].spans] * 40)
    job.traces[path] = job.traces[path].with_tables(spans=spans)
    shown = run("show", RAW, path).out
    assert "50 of 120 rows; --limit 0 shows all" in shown
    assert "rows" not in run("show", RAW, path, "--limit", "0", "--columns", "name").out
    assert len(rows(run("show", RAW, path, "--format", "json"))) == 120


def test_a_file_s_suffix_says_how_to_write_it(run, paths, tmp_path):
    for suffix in ("csv", "json", "md", "txt", "parquet"):
        assert run("show", RAW, paths[0], "-o", f"out.{suffix}").out == ""
    assert pl.read_parquet(tmp_path / "out.parquet")["dur_ns"].to_list() == [40, 5, 10]
    assert len(json.loads((tmp_path / "out.json").read_text())) == 3
    assert (tmp_path / "out.md").read_text().startswith("| span id |")


def test_columns_are_chosen_in_order(run, paths):
    result = run("show", RAW, paths[0], "--columns", "name, dur", "--limit", "1", "--format", "csv")
    assert result.out == "name,dur_ns\ngemm<float>,40\n"


def test_counters_of_another_file_are_joined(run, job, paths, make_trace):
    metrics = pl.DataFrame({"span_id": [0], "metric": ["DRAM Throughput"], "unit": ["%"], "value": [12.5]})
    job.traces["ncu.csv"] = make_trace("ncu.csv", None).with_tables(kernel_metrics=KERNEL_METRICS.conform(metrics))
    shown = rows(run("show", "kernels", paths[0], "--with", "ncu.csv", "--format", "json"))
    assert {row["name"]: row["dram_ratio"] for row in shown} == {"gemm<float>": 0.125, KERNEL_OF_EVIL: None}
    assert sorted(path for path, _ in job.opened) == sorted([str(paths[0]), "ncu.csv"])
    refused = run("show", "kernels", paths[0], "--with", paths[1])
    assert (refused.code, refused.err.splitlines()[0]) == (
        1, f"error: {paths[1]} holds no counters of kernels to join to {paths[0]}"
    )  # fmt: skip


def test_max_bytes_reaches_the_reader(run, job, paths):
    run("show", RAW, paths[0], "--max-bytes", "2GB")
    assert job.opened == [(str(paths[0]), 2_000_000_000)]
    assert run("show", RAW, paths[0], "--max-bytes", "lots").code == 2


def test_help_of_a_table_lists_its_options_and_columns(run):
    shown = run("show", "kernels", "--help").out
    assert "--include kernel|device" in shown
    assert "total_ns             summed duration [ns]" in shown
    assert "--group-by" in shown
    assert "--group-by" in run("show", "--help").out
    assert "dur_ns" in run("show", "spans", "--help").out
    assert run("show", "bogus", "--help").code == 2


@pytest.mark.slow
def test_a_page_holds_the_table_and_its_figure(run, job, paths, tmp_path):
    assert run("show", "kernels", paths[0], "-o", "kernels.html").code == 0
    text = (tmp_path / "kernels.html").read_text()
    assert "gemm&lt;float&gt;" in text
    assert 'id="figure-kernels"' in text
    assert run("show", RAW, paths[0], "-o", "raw.html").code == 0
    assert "plotly" not in (tmp_path / "raw.html").read_text()  # what was recorded has no figure
    assert run("show", "timeline", paths[0], "--format", "html", "-o", "timeline.html").code == 0
    page = (tmp_path / "timeline.html").read_text()
    assert 'id="figure-timeline"' in page
    assert page.count("<tr>") == 2  # one row of the table, by rank as ever
    assert len(job.opened) == 3  # each file is read once
    assert run("show", "timeline", *paths, "-o", "all.html").code == 0
    assert "rank 10 device 0" in (tmp_path / "all.html").read_text()


def test_a_page_of_several_files_names_those_that_are_left_out_once(run, job, paths, make_trace):
    empty = make_trace(str(paths[1]), 1)
    job.traces[str(paths[1])] = empty.with_tables(spans=empty.spans.clear())
    result = run("show", "timeline", *paths, "-o", "all.html")
    assert result.code == 0
    assert result.err.count("left out") == 1


def test_a_page_shows_the_first_thousand_rows(run, job, paths, tmp_path):
    path = str(paths[0])
    job.traces[path] = job.traces[path].with_tables(spans=pl.concat([job.traces[path].spans] * 400))
    run("show", RAW, path, "-o", "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "1,000 of 1,200 rows; --limit 0 shows all" in text
    assert text.count("<tr>") == 1_001
    run("show", RAW, path, "-o", "page.html", "--force", "--limit", "0", "--columns", "name")
    assert (tmp_path / "page.html").read_text().count("<tr>") == 1_201


def test_of_a_job_that_is_not_whole_it_is_told_what_is_left_out(run, job, paths, make_trace):
    assert run("show", "timeline", *paths, "--strict").code == 0
    empty = make_trace(str(paths[1]), 1)
    job.traces[str(paths[1])] = empty.with_tables(spans=empty.spans.clear())
    assert run("show", "timeline", *paths).code == 0
    strict = run("show", "timeline", *paths, "--strict", "--format", "json")
    assert strict.code == 1
    assert len(json.loads(strict.out)) == len(paths) - 1
    label = strict.err.splitlines()[0].split(" is left out")[0].removeprefix("note: ")
    assert strict.err.splitlines()[1:] == [
        f"error: the job is not complete: {label} is left out",
        "hint: without --strict, the files that can be read are enough",
    ]


@pytest.mark.slow
def test_files_are_read_by_so_many_processes_as_are_wanted(run, examples):
    words = ("show", "collectives", examples / "demo-cpu-2ranks", "--by", "rank", "--format", "csv")
    here = run(*words, "--workers", "0")
    assert here.code == 0
    assert run(*words, "--workers", "2", "--memory-limit", "8GB").out == here.out
    assert run(*words, "--memory-limit", "much").code == 2
