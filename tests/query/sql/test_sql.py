from __future__ import annotations

import polars as pl
import pytest

import stepscope
from stepscope import store
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.schema import ISSUES
from stepscope.core.trace import Results
from stepscope.query import sql


def ask(source, text, **options):
    told = []
    found = sql.run(source, text, on_missing=lambda *note: told.append(note), **options)
    return found, told


def rows(source, text, **options):
    found, told = ask(source, text, **options)
    assert told == []
    return found.rows()


def test_tables_of_all_ranks_are_one(ranks):
    assert rows(ranks, "SELECT rank, trace, sum(dur_ns) FROM spans GROUP BY ALL ORDER BY rank") == [
        (0, "rank0", 140), (1, "rank1", 280), (2, "rank2", 420)
    ]  # fmt: skip


def test_one_trace_has_the_same_columns(make_trace):
    assert make_trace(5).sql("SELECT rank, trace, name FROM spans WHERE dur_ns > 500").rows() == [
        (5, "rank5", "aten::mm")
    ]


def test_a_table_keeps_its_own_rank_where_it_has_one(ranks):
    assert rows(ranks, "SELECT DISTINCT rank FROM tracks ORDER BY rank") == [(0,), (1,), (2,)]
    frame, _ = ask(ranks, "SELECT * FROM trace.steps")
    assert frame.columns == ["rank", "trace", "step", "ts_ns", "dur_ns", "source"]


def test_analyses_are_computed_and_stacked(ranks, make_trace):
    found = rows(ranks, "SELECT rank, trace, step, window_ns FROM steps ORDER BY rank")
    assert found == [(0, "rank0", 3, 500), (1, "rank1", 3, 500), (2, "rank2", 3, 500)]
    direct = stepscope.show(make_trace(1), "kernels")
    (mine,) = rows(ranks, "SELECT name, total_ns FROM kernels WHERE rank = 1")
    assert mine == direct.select("name", "total_ns").row(0)


def test_analyses_and_tables_may_be_joined(ranks):
    text = """
        WITH busiest AS (SELECT rank, name FROM kernels)
        SELECT s.rank, count(*) FROM spans s JOIN busiest b ON b.rank = s.rank AND b.name = s.name
        GROUP BY ALL ORDER BY 1
    """
    assert rows(ranks, text) == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.slow
def test_analyses_of_all_ranks_together_are_tables_too(examples):
    run = stepscope.load_run(examples / "demo-cpu-2ranks")
    direct = stepscope.show(run, "clock-offsets")
    frame, _ = ask(run, "SELECT * FROM clock_offsets")
    assert frame.columns == direct.columns
    assert frame.height == direct.height > 0
    with pytest.raises(MissingTable, match="no collectives"):  # recorded without the backend's own records
        ask(run, "SELECT * FROM trace.collectives")


def test_the_traces_themselves_are_a_table(ranks):
    frame, _ = ask(ranks, "SELECT * FROM traces")
    assert frame.select("rank", "trace", "path", "format", "world_size").row(1) == (
        1, "rank1", "run/rank1.json", "kineto", 3
    )  # fmt: skip
    assert frame["origin_unix_ns"].to_list() == [None] * 3


def test_a_part_may_have_the_name_of_a_table(ranks):
    text = "WITH spans AS (SELECT * FROM spans WHERE rank = 2) SELECT sum(dur_ns) FROM spans"
    assert rows(ranks, text) == [(420,)]
    assert rows(ranks, "WITH kernel_metrics AS (SELECT 7 AS n) SELECT n FROM kernel_metrics") == [(7,)]


def test_without_ranks_the_trace_tells_them_apart(make_job, make_trace):
    run = make_job(make_trace(None, path="x/one.json"), make_trace(None, path="x/it's.json"))
    assert rows(run, "SELECT rank, trace, count(*) FROM spans GROUP BY ALL ORDER BY trace") == [
        (None, "it's", 3), (None, "one", 3)
    ]  # fmt: skip


def test_a_table_that_some_ranks_lack_has_no_rows_of_theirs(make_job, make_trace):
    metrics = {"span_id": [0], "metric": ["m"], "value": [1.0]}
    kernel_metrics = sql.views.TABLES["kernel_metrics"].conform(pl.DataFrame(metrics))
    run = make_job(make_trace(0), make_trace(1, kernel_metrics=kernel_metrics))
    assert rows(run, "SELECT rank, metric FROM kernel_metrics") == [(1, "m")]


def test_a_table_that_all_lack_is_an_error_that_says_how_to_get_it(ranks):
    with pytest.raises(MissingTable) as caught:
        ask(ranks, "SELECT * FROM stacks")
    assert caught.value.hint == "with_stack=True in the profiler records them (modules from PyTorch 1.12 on)"
    assert rows(ranks, "SELECT * FROM issues") == []


def test_a_rank_that_an_analysis_cannot_do_is_left_out_and_told(make_job, make_trace):
    empty = make_trace(1).with_tables(steps=make_trace(1).steps.clear())
    found, told = ask(make_job(make_trace(0), empty), "SELECT rank FROM steps")
    assert found.rows() == [(0,)]
    ((label, error),) = told
    assert label == "rank1"
    assert "steps" in error.message
    with pytest.raises(MissingTable):
        ask(make_job(empty), "SELECT rank FROM steps")


def test_files_that_cannot_be_read_are_left_out_and_told(make_job, make_trace):
    found, told = ask(make_job("run/broken.json", make_trace(4)), "SELECT DISTINCT rank FROM spans")
    assert found.rows() == [(4,)]
    assert [(label, error.message) for label, error in told] == [("broken", "cannot read run/broken.json")]
    with pytest.raises(StepscopeError, match="cannot read"):
        ask(make_job("broken.json"), "SELECT 1")
    with pytest.raises(StepscopeError, match="no traces given"):
        ask(make_job(), "SELECT 1")


def test_results_of_other_programs_are_tables_too(make_trace):
    from stepscope.core.result_tables import CYCLES
    from stepscope.core.trace import Result

    plain = make_trace(0)
    cycles = CYCLES.conform(pl.DataFrame({"cycle": [1, 2], "dur_ns": [10, 20]}))
    results = Results(plain.meta, {"issues": ISSUES.empty()}, {"cycles": Result(CYCLES, cycles)})
    assert rows(results, "SELECT sum(dur_ns) FROM cycles") == [(30,)]


def test_unknown_names_bring_the_nearest(ranks):
    with pytest.raises(UnknownName, match="no table named 'spanz'") as caught:
        ask(ranks, "SELECT * FROM spanz")
    assert caught.value.hint.startswith("known: spans")
    with pytest.raises(UnknownName, match="no column named 'categry'") as caught:
        ask(ranks, "SELECT categry FROM spans")
    assert caught.value.hint.startswith("known: category")


def test_where_an_analysis_has_the_name_of_a_table_the_hint_leads_to_it(ranks):
    with pytest.raises(UnknownName) as caught:
        ask(ranks, "SELECT span_id FROM kernels")
    assert caught.value.hint.startswith("kernels is the analysis here; the table trace.kernels has span_id. known: ")


@pytest.mark.slow
def test_a_stored_table_is_linked_and_cannot_be_written_to(make_trace, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    target = tmp_path / "kept"
    store.write_run([(f"rank{i}", make_trace(i)) for i in range(2)], str(target))
    before = {path: path.read_bytes() for path in target.rglob("*.parquet")}
    run = stepscope.load_run(target)
    assert run.sql("SELECT rank, sum(dur_ns) FROM spans GROUP BY 1 ORDER BY 1").rows() == [(0, 140), (1, 280)]
    for text in (
        "WITH x AS (COPY (SELECT 1) TO '{file}' (USE_TMP_FILE false)) SELECT 1 FROM spans",
        "COPY (SELECT 1) TO '{file}'",
    ):
        for file in before:
            with pytest.raises(StepscopeError):
                run.sql(text.format(file=file))
    assert {path: path.read_bytes() for path in target.rglob("*.parquet")} == before
    assert list((tmp_path / "cache").iterdir()) == []


def test_tables_in_memory_win_over_those_in_files(make_trace, tmp_path):
    store.write_run([("rank0", make_trace(0))], str(tmp_path / "kept"))
    trace = stepscope.load(tmp_path / "kept" / "rank0")
    assert trace.sql("SELECT count(*) FROM spans").item() == 3
    assert trace.with_tables(spans=trace.spans.head(1)).sql("SELECT count(*) FROM spans").item() == 1


def test_stored_tables_in_an_object_store_are_read(make_trace):
    store.write_run([("rank0", make_trace(0))], "memory://query-test/kept")
    assert stepscope.load_run("memory://query-test/kept").sql("SELECT count(*) FROM spans").item() == 3


def test_a_disk_without_links_gets_copies(make_trace, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    store.write_run([("rank0", make_trace(0))], str(tmp_path / "kept"))
    assert stepscope.load_run(tmp_path / "kept").sql("SELECT count(*) FROM spans").item() == 3


def test_a_cache_that_cannot_be_written_to_is_done_without(ranks, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "file" / "x"))
    assert rows(ranks, "SELECT count(*) FROM spans") == [(9,)]


def test_time_and_memory_can_be_bounded_from_python(ranks):
    with pytest.raises(StepscopeError, match="no answer within"):
        ranks.sql(
            "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range <> b.range * 2", timeout_s=0.1
        )
    with pytest.raises(StepscopeError, match="too much memory"):
        stepscope.sql(ranks, "SELECT repeat('x', 1000) AS x FROM range(1000000) ORDER BY x", memory_limit="20MB")


def test_traces_left_out_are_warned_of_in_python(make_job, make_trace):
    with pytest.warns(UserWarning, match="broken is left out: cannot read run/broken.json"):
        stepscope.sql(make_job("run/broken.json", make_trace(4)), "SELECT 1")


def test_all_tables_and_their_columns_are_listed_without_reading_a_trace(ranks):
    names = {name for (name,) in rows(ranks, "SELECT table_name FROM information_schema.tables")}
    assert {"kernels", "spans", "step_breakdown", "traces"} <= names
    both = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'steps' ORDER BY 1"
    assert rows(ranks, both) == [("main",), ("trace",)]
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'kernels'"
    assert rows(ranks, columns)[:3] == [("rank", "INTEGER"), ("trace", "VARCHAR"), ("name", "VARCHAR")]


def test_a_list_may_stand_beside_tables_that_are_read(ranks):
    text = (
        "SELECT count(DISTINCT k.rank), count(DISTINCT c.table_name) > 50 FROM kernels k, information_schema.columns c"
    )
    assert rows(ranks, text) == [(3, True)]


@pytest.mark.parametrize("name", ["information_schema.schemata", "information_schema.key_column_usage"])
def test_other_lists_of_the_database_are_refused(ranks, name):
    with pytest.raises(UnknownName):
        ask(ranks, f"SELECT * FROM {name}")


def test_a_wrong_column_names_what_lists_all(ranks):
    with pytest.raises(UnknownName) as caught:
        ask(ranks, "SELECT dur_ns FROM kernels")
    assert "DESCRIBE kernels lists all" in str(caught.value.hint)
