from __future__ import annotations

import weakref

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import part

import stepscope
import stepscope.analyses.ranks.calls as rank_calls_home
from stepscope import analyses
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.result_tables import CYCLES
from stepscope.core.schema import SPANS, TABLES
from stepscope.core.table import Column, Table
from stepscope.core.trace import Meta, Result, Results, Run, Trace
from stepscope.query import tables as views
from stepscope.query.map_files import calls_of_ranks

WORK = Table(
    "work",
    "work",
    (
        Column("name", pl.String(), "what", key=True),
        Column("calls", pl.Int64(), "how often"),
        Column("ts_ns", pl.Int64(), "when", "ns"),
        Column("total_ns", pl.Int64(), "how long", "ns"),
        Column("mean_ns", pl.Float64(), "mean", "ns"),
        Column("min_ns", pl.Int64(), "shortest", "ns"),
        Column("max_ns", pl.Int64(), "longest", "ns"),
        Column("busy_ratio", pl.Float64(), "share", "ratio"),
    ),
)
FRAME = WORK.conform(
    pl.DataFrame(
        {
            "name": ["a", "b", "a", None],
            "calls": [1, 2, 3, 4],
            "ts_ns": [40, 30, 20, 10],
            "total_ns": [5, 50, None, 7],
            "mean_ns": [5.0, 25.0, None, 1.75],
            "min_ns": [5, 1, 9, 1],
            "max_ns": [5, 49, 2, 3],
            "busy_ratio": [0.1, 0.2, 0.3, 0.4],
        }
    )
)


def never(label, error):
    raise AssertionError((label, error))


def trace(path="x.json", rank=None, durations=(1,)):
    rows = {"span_id": range(len(durations)), "dur_ns": durations, "ts_ns": [0] * len(durations)}
    tables = {"spans": SPANS.conform(pl.DataFrame(rows))} if durations else {}
    return Trace(Meta(path=path, format="literal", rank=rank), tables)


def total(spans, *, scale=1):
    return pl.DataFrame({"dur_ns": [spans["dur_ns"].sum() * scale]})


def ranked(spans):
    return pl.DataFrame({"dur_ns": [spans["dur_ns"].sum()], "rank": pl.Series([5], dtype=pl.Int32)})


TOTAL = analyses.Analysis("total", "sum", (SPANS,), Table("total", "sum", (SPANS.column("dur_ns"),)), total)
RANKED = analyses.Analysis(
    "ranked", "sum", (SPANS,), Table("ranked", "sum", (SPANS.column("dur_ns"), views.RANK)), ranked
)


def run_of(*traces):
    found = {str(i): each for i, each in enumerate(traces)}
    return Run(tuple(found), found.__getitem__)


def test_every_name_is_found_and_raw_tables_have_two():
    for name, kind in views.names():
        if kind == "result":
            continue
        raw = kind not in ("analysis", "ranks", "comparison")
        assert not raw or views.find(name).output is TABLES[name.removeprefix("trace.")]
    assert views.find("spans").output is views.find("trace.spans").output
    assert views.find("trace.kernels").output is not views.find("kernels").output


def test_a_table_of_results_is_handed_out_as_it_is():
    assert ("cycles", "analysis") in views.names()
    found = views.find("cycles")
    assert found.output is CYCLES
    frame = CYCLES.conform(pl.DataFrame({"cycle": [1, 2]}))
    held = Results(Meta("a.csv", "prism"), {}, {"cycles": Result(CYCLES, frame)})
    assert views.collect(held, found, on_missing=never)[0] is frame
    assert views.collect(held, found, where="cycle > 1", on_missing=never)[0]["cycle"].to_list() == [2]
    stacked, _ = views.collect(run_of(held, held), found, on_missing=never)
    assert stacked["trace"].to_list() == ["0", "0", "1", "1"]
    with pytest.raises(MissingTable, match="cycles needs"):
        views.collect(trace(), found, on_missing=never)


def test_what_another_program_computed_is_not_computed_again():
    frame = TOTAL.output.conform(pl.DataFrame({"dur_ns": [77]}))
    held = Results(Meta("a.csv", "prism"), trace().tables, {"total": Result(TOTAL.output, frame)})
    assert views.collect(held, TOTAL, on_missing=never)[0]["dur_ns"].to_list() == [77]
    assert views.collect(held, RANKED, on_missing=never)[0]["dur_ns"].to_list() == [1]
    with pytest.raises(StepscopeError, match=r"another program computed total of a\.csv: it takes no options"):
        views.collect(held, TOTAL, on_missing=never, scale=10)


def test_a_comparison_takes_two_traces_in_the_order_given():
    def run(base, other):
        return pl.DataFrame({"dur_ns": [base.spans["dur_ns"].sum(), other.spans["dur_ns"].sum()]})

    pair = analyses.Analysis("pair", "two sums", (), TOTAL.output, run, scope="pair")
    frame, schema = views.collect(run_of(trace("a", 1, (9,)), trace("b", 0, (4,))), pair, on_missing=never)
    assert frame["dur_ns"].to_list() == [9, 4]
    assert schema is TOTAL.output
    frame, _ = views.collect(
        run_of(trace("a", 1, (9,)), trace("b", 0, (4,))), pair, where="dur_ns > 5", on_missing=never
    )
    assert frame.height == 1
    for wrong in (trace(), run_of(trace()), run_of(trace(), trace(), trace())):
        with pytest.raises(StepscopeError, match="pair compares two traces"):
            views.collect(wrong, pair, on_missing=never)


@pytest.mark.parametrize("name", ["trace.bogus", "bogus", "trace.", ""])
def test_unknown_names_are_refused_with_the_known_ones(name):
    with pytest.raises(UnknownName) as caught:
        views.find(name)
    known, _, rest = caught.value.hint.partition(" and ")
    assert len(known.split(", ")) == 10
    assert rest.endswith("more, which `stepscope tables` lists")


def test_one_trace_keeps_the_columns_of_its_result():
    frame, table = views.collect(trace(rank=3, durations=(1, 2)), TOTAL, on_missing=never, scale=10)
    assert frame.to_dict(as_series=False) == {"dur_ns": [30]}
    assert table is TOTAL.output
    assert views.collect(run_of(trace(rank=3)), TOTAL, on_missing=never)[0].columns == ["dur_ns"]


def test_ranks_come_first_and_in_order():
    frame, table = views.collect(run_of(trace(rank=10), trace(rank=2)), TOTAL, on_missing=never)
    assert frame.to_dict(as_series=False) == {"rank": [2, 10], "dur_ns": [1, 1]}
    assert [column.name for column in table.columns] == ["rank", "dur_ns"]
    assert frame.schema["rank"] == pl.Int32


def test_a_rank_that_the_analysis_gives_moves_to_the_front():
    frame, _ = views.collect(run_of(trace(rank=10), trace(rank=2)), RANKED, on_missing=never)
    assert frame.to_dict(as_series=False) == {"rank": [5, 5], "dur_ns": [1, 1]}


@pytest.mark.parametrize("ranks", [(None, 1), (1, 1), (None, None)])
def test_files_stand_in_for_ranks_that_do_not_tell(ranks):
    frame, table = views.collect(run_of(*(trace(rank=rank) for rank in ranks)), TOTAL, on_missing=never)
    assert frame.to_dict(as_series=False) == {"trace": ["0", "1"], "dur_ns": [1, 1]}
    assert table.columns[0] is views.TRACE


def test_where_may_name_rank_and_trace_of_each():
    run = run_of(trace(rank=0), trace(rank=1, durations=(7,)))
    for where in ("rank = 1", "trace = '1'", "dur_ns > 1"):
        frame, _ = views.collect(run, TOTAL, where=where, on_missing=never)
        assert frame.to_dict(as_series=False) == {"rank": [1], "dur_ns": [7]}


def test_a_trace_that_lacks_the_data_is_reported():
    missing = []
    run = run_of(trace(rank=0), trace(rank=1, durations=()), trace(rank=2))
    frame, _ = views.collect(run, TOTAL, on_missing=lambda label, error: missing.append((label, error.what)))
    assert frame["rank"].to_list() == [0, 2]
    assert [(label, what.split()[0]) for label, what in missing] == [("1", "spans")]


def test_if_all_lack_the_data_that_is_an_error():
    with pytest.raises(MissingTable, match="total needs spans"):
        views.collect(run_of(trace(durations=()), trace(durations=())), TOTAL, on_missing=never)
    with pytest.raises(StepscopeError, match="no traces"):
        views.collect(Run((), trace), TOTAL, on_missing=never)


def test_only_one_trace_is_in_memory_at_a_time():
    alive: list[weakref.ref[pl.DataFrame]] = []

    def open_trace(path):
        assert [ref for ref in alive if ref() is not None] == []
        made = trace(path, rank=int(path), durations=() if path == "1" else (1, 2))
        alive.append(weakref.ref(made.table("spans")) if made.tables else (lambda: None))
        return made

    missing = []
    frame, _ = views.collect(
        Run(("0", "1", "2", "3"), open_trace), TOTAL, on_missing=lambda label, _: missing.append(label)
    )
    assert frame["rank"].to_list() == [0, 2, 3]
    assert (missing, len(alive)) == (["1"], 4)


@pytest.mark.parametrize(
    ("where", "calls"),
    [
        (None, [1, 2, 3, 4]),
        ("calls > 1 AND total_ns IS NOT NULL", [2, 4]),
        ("name IN ('b', 'c')", [2]),
        ("UPPER(name) = 'A'", [1, 3]),
        ("2 > 1", [1, 2, 3, 4]),
        ("2 < 1", []),
        ("total_ns > 6", [2, 4]),
        ("MAX(calls) = 4", [1, 2, 3, 4]),
        ("name <> 'aten::select' AND name <> 'it''s from \"read_csv(1)\"'", [1, 2, 3]),
    ],
)
def test_conditions_choose_rows(where, calls):
    assert views.filtered(FRAME, where)["calls"].to_list() == calls
    assert views.filtered(FRAME.with_columns(pl.col("name").cast(pl.Categorical)), where)["calls"].to_list() == calls


@pytest.mark.parametrize(
    "where", ["", "calls", "calls >", "name + 1 > 2", "1", "NOSUCHFUNCTION(calls)", "calls = (SELECT 1)"]
)
def test_what_is_no_condition_is_refused(where):
    with pytest.raises(StepscopeError, match="not a condition"):
        views.filtered(FRAME, where)


@pytest.mark.parametrize(
    "where",
    [
        "name IN (SELECT {column} FROM read_csv('{file}'))",
        "name IN (SELECT \"{column}\" FROM READ_CSV ('{file}'))",
        "name IN (FROM read_csv('{file}'))",
        "EXISTS (WITH t AS (FROM read_csv('{file}')) FROM t)",
        "name = 'it''s' OR name IN (FROM read_csv('{file}'))",
        "name = E'\\'' OR name IN (FROM read_csv('{file}')) --'",
        "`calls'` = 1 OR name IN (FROM read_csv('{file}'))",
        "\"it's\" = 1 OR name IN (FROM read_csv('{file}'))",
        "name = $$'$$ OR name IN (FROM read_csv('{file}')) OR name = $$'$$",
        "1 = 1 /* ' */ OR name IN (FROM read_csv('{file}')) /* ' */",
    ],
)
def test_no_condition_reads_a_file(where, tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text("password\na\n")
    with pytest.raises(StepscopeError, match="reads its own table"):
        views.filtered(FRAME, where.format(column="password", file=path))


def test_groups_add_up_what_adds_up_and_drop_the_rest():
    frame, table = views.grouped(FRAME, WORK, ["name"])
    assert frame.to_dicts() == [
        {"name": "b", "n_rows": 1, "calls": 2, "total_ns": 50, "min_ns": 1, "max_ns": 49},
        {"name": None, "n_rows": 1, "calls": 4, "total_ns": 7, "min_ns": 1, "max_ns": 3},
        {"name": "a", "n_rows": 2, "calls": 4, "total_ns": 5, "min_ns": 5, "max_ns": 5},
    ]
    assert [column.name for column in table.columns] == frame.columns


def test_groups_without_measures_count_rows():
    frame, _ = views.grouped(FRAME.select("name", "busy_ratio"), WORK, ["name"])
    assert frame.to_dict(as_series=False) == {"name": ["a", "b", None], "n_rows": [2, 1, 1]}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100)), min_size=1))
def test_groups_keep_the_sum(rows):
    frame = pl.DataFrame(rows, schema={"name": pl.String, "total_ns": pl.Int64}, orient="row")
    found, _ = views.grouped(frame, WORK, ["name"])
    assert found["total_ns"].sum() == frame["total_ns"].sum()
    assert found["n_rows"].sum() == len(rows)


@pytest.mark.parametrize(
    ("by", "calls"),
    [
        ([], [1, 2, 3, 4]),
        (["calls"], [4, 3, 2, 1]),
        (["+calls"], [1, 2, 3, 4]),
        (["name"], [1, 3, 2, 4]),
        (["-name"], [2, 1, 3, 4]),
        (["ts"], [4, 3, 2, 1]),
        (["total"], [2, 4, 1, 3]),
        (["+total_ns"], [1, 4, 2, 3]),
        (["name", "calls"], [3, 1, 2, 4]),
    ],
)
def test_measures_sort_from_the_largest_and_all_else_from_the_smallest(by, calls):
    assert views.ordered(FRAME, WORK, by)["calls"].to_list() == calls


def test_categories_sort_by_their_text():
    frame = pl.DataFrame({"name": ["b", "a"]}, schema={"name": pl.Categorical})
    assert views.ordered(frame, WORK, ["name"])["name"].to_list() == ["a", "b"]


def test_columns_are_named_with_or_without_unit():
    columns = ["dur_ns", "n_calls", "idle_ns", "idle_ratio", "total_bytes", "a.b"]
    assert [views.column_named(name, columns) for name in ("dur", "calls", "total", "a.b")] == [
        "dur_ns", "n_calls", "total_bytes", "a.b"
    ]  # fmt: skip
    for name in ("idle", "a?b", "ns"):
        with pytest.raises(UnknownName):
            views.column_named(name, columns)


def test_groups_know_averages_extremes_and_points_wherever_their_names_say_so():
    frame = pl.DataFrame(
        {
            "name": ["a", "a"],
            "host_mean_ns": [2.0, 4.0],
            "delay_p50_ns": [2, 4],
            "host_max_ns": [5, 9],
            "peak_ts_ns": [1, 2],
            "first_ts_ns": [1, 2],
            "late_ns": [-3, 1],
            "host_total_ns": [2, 4],
        }
    )
    schema = Table("t", "t", tuple(Column(c, t, c, key=c == "name") for c, t in frame.schema.items()))
    found, _ = views.grouped(frame, schema, ["name"])
    assert found.to_dicts() == [{"name": "a", "n_rows": 2, "host_max_ns": 9, "host_total_ns": 6}]


def test_the_sum_of_nothing_known_is_unknown():
    frame = FRAME.with_columns(total_ns=pl.lit(None, pl.Int64))
    found, _ = views.grouped(frame, WORK, ["name"])
    assert found["total_ns"].to_list() == [None, None, None]


def test_a_file_that_cannot_be_read_is_left_out_unless_it_is_the_only_one():
    def open_trace(path):
        if path == "broken.json":
            raise StepscopeError("broken")
        return trace(path)

    reported = []
    run = Run(("a.json", "broken.json"), open_trace)
    frame, _ = views.collect(run, TOTAL, on_missing=lambda label, error: reported.append((label, error.message)))
    assert (frame["trace"].to_list(), reported) == (["a"], [("broken", "broken")])
    with pytest.raises(StepscopeError, match="broken"):
        views.collect(Run(("broken.json",), open_trace), TOTAL, on_missing=never)


def test_a_raw_table_needs_no_clock():
    spans = SPANS.conform(pl.DataFrame({"span_id": [0, 1], "dur_ns": [5, 6]}))
    frame, _ = views.collect(Trace(Meta("a", "ncu-csv"), {"spans": spans}), views.find("spans"), on_missing=never)
    assert frame["dur_ns"].to_list() == [5, 6]


def test_a_figure_is_drawn_from_the_rows_that_it_needs():
    spans = SPANS.conform(
        pl.DataFrame(
            {"span_id": [0], "track_id": [0], "ts_ns": [0], "dur_ns": [5], "name": ["a"], "category": ["kernel"]}
        )
    )
    tracks = TABLES["tracks"].conform(pl.DataFrame({"track_id": [0], "device_id": [0]}))
    trace = Trace(Meta("x", "fake"), {"spans": spans, "tracks": tracks})
    timeline, tracks_of = views.find("timeline"), views.find("tracks")
    frame = timeline(trace)
    assert "ts_ns" not in frame.columns
    drawn = views.drawn(trace, timeline, frame, linked_only=False)
    assert drawn["ts_ns"].to_list() == [0]
    assert views.drawn(trace, timeline, drawn) is drawn
    assert views.drawn(trace, tracks_of, tracks_of(trace)) is None
    roofline = views.find("roofline")
    assert views.drawn(trace, roofline, pl.DataFrame({"name": ["a"]})) is None


def test_rows_of_several_traces_are_summed_and_their_means_and_shares_computed_anew():
    columns = {"rank": pl.Int32(), "name": pl.String(), "op": pl.String(), "calls": pl.Int64(), "total_ns": pl.Int64(),
               "mean_ns": pl.Float64(), "max_ns": pl.Int64(), "p95_ns": pl.Float64(), "share_ratio": pl.Float64(),
               "tensor_ratio": pl.Float64(), "dram_ratio": pl.Float64()}  # fmt: skip
    table = Table("kernels", "kernels", tuple(Column(name, kind, name) for name, kind in columns.items()))
    rows = [
        (0, "k", "mm", 1, 10, 10.0, 10, 10.0, 1.0, 0.5, None),
        (1, "k", "mm", 3, 30, 10.0, 20, 10.0, 0.6, None, None),
        (1, "l", "mm", 1, 20, 20.0, 20, 20.0, 0.4, 1.0, None),
        (0, "l", "bmm", 1, 40, 40.0, 40, 40.0, 0.4, 0.25, None),
    ]
    frame, schema = views.over_traces(pl.DataFrame(rows, schema=columns, orient="row"), table, ["name"])
    assert frame.columns == [name for name in columns if name not in ("rank", "p95_ns")]
    assert frame.drop("dram_ratio").rows() == [
        ("l", None, 2, 60, 30.0, 40, 0.6, 0.5),
        ("k", "mm", 4, 40, 10.0, 20, 0.4, 0.5),
    ]
    assert frame["dram_ratio"].null_count() == 2  # not measured is not a number that is none
    assert [column.name for column in schema.columns] == frame.columns


def test_units_of_a_frame_that_nobody_declared_are_told_by_its_names():
    columns = {"dur_ns": 1, "mean_ns": 1.5, "bus_bytes_per_s": 2.0, "bytes": 3, "x_bytes": 3, "of_ratio": 0.5, "n": 4}
    frame = pl.DataFrame({name: [value] for name, value in columns.items()} | {"text_ns": ["x"], "returns": [1]})
    table = views.described("sql", frame)
    assert [c.name for c in table.columns] == frame.columns
    units = {c.name: c.unit for c in table.columns}
    assert units == {
        "dur_ns": "ns", "mean_ns": "ns", "bus_bytes_per_s": "bytes/s", "bytes": "bytes", "x_bytes": "bytes",
        "of_ratio": "ratio", "n": None, "text_ns": None, "returns": None,
    }  # fmt: skip


def rank_parts(read):
    return Run(("a.json", "b.json", "c.json"), read)


def test_an_analysis_of_ranks_takes_all_traces_and_reports_those_left_out(monkeypatch):
    def read(path):
        if path == "b.json":
            raise StepscopeError("broken")
        return path

    seen = []
    numbers = {"a.json": 0, "c.json": 0}
    monkeypatch.setattr(rank_calls_home, "rank_calls", lambda path: part(numbers[path], (0, 5), label=path))
    found, table = views.collect(
        rank_parts(read), views.find("collectives"), where="exchanges = 1", by="rank",
        on_missing=lambda label, error: seen.append((label, error.message)),
    )  # fmt: skip
    assert table is views.find("collectives").output
    assert found["rank"].to_list() == [0]
    assert seen == [("b", "broken"), ("c.json", "it holds rank 0 at the same time as a.json")]


def test_of_ranks_none_of_which_can_be_read_the_first_error_is_raised():
    def read(path):
        raise StepscopeError(path)

    with pytest.raises(StepscopeError, match=r"a\.json"):
        views.collect(rank_parts(read), views.find("collectives"), on_missing=lambda *_: None)
    with pytest.raises(StepscopeError, match="no traces"):
        calls_of_ranks(Run((), read), [], on_missing=lambda *_: None)


def test_a_single_trace_is_one_rank(examples):
    trace = stepscope.load(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz")
    assert stepscope.show(trace, "collectives", by="rank")["rank"].to_list() == [0]


def test_collectives_of_the_trace_have_a_name_of_their_own():
    kinds = dict(views.names())
    assert kinds["collectives"] == "ranks"
    assert kinds["trace.collectives"] == "table"
