from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.result_tables import CYCLES
from stepscope.core.schema import SPANS, STEPS, TABLES
from stepscope.core.trace import Meta, Result, Results, Run, Trace, extent_ns

STEP = STEPS.conform(pl.DataFrame({"step": [3], "ts_ns": [0], "dur_ns": [10]}))
TRACE = Trace(Meta("a.json", "kineto", rank=2), {"steps": STEP})


def test_a_table_that_the_file_lacks_is_empty_and_typed():
    assert TRACE.ops.is_empty()
    assert TRACE.ops.schema == dict(TABLES["ops"].dtypes)


def test_an_unknown_table_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UnknownName, match="no table named 'step'") as caught:
        TRACE.table("step")
    assert caught.value.hint.startswith("known: steps")


def test_require_gives_the_table_or_says_who_misses_it():
    assert TRACE.require("steps") is STEP
    with pytest.raises(MissingTable, match=r"^idle needs spans"):
        TRACE.require("spans", needed_by="idle")


def test_spans_may_have_an_order_and_no_clock():
    untimed = SPANS.conform(pl.DataFrame({"span_id": [0], "dur_ns": [5]}))
    trace = TRACE.with_tables(spans=untimed)
    assert not trace.has_clock
    with pytest.raises(MissingTable, match=r"^idle needs start times") as caught:
        trace.require_clock(needed_by="idle")
    assert "no timeline: record one too" in caught.value.hint
    for spans in (SPANS.empty(), untimed.with_columns(ts_ns=pl.lit(0, pl.Int64))):
        assert TRACE.with_tables(spans=spans).has_clock


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_an_attribute(name):
    assert getattr(TRACE, name).equals(TRACE.table(name))


def test_tables_cannot_be_replaced_in_place():
    with pytest.raises(TypeError):
        TRACE.tables["steps"] = STEP
    given = {"steps": STEP}
    trace = Trace(Meta("a.json", "kineto"), given)
    given.clear()
    assert trace.steps.height == 1


def test_with_tables_gives_a_copy():
    changed = TRACE.with_tables(steps=STEPS.empty())
    assert (changed.steps.height, TRACE.steps.height, changed.rank) == (0, 1, 2)


def test_repr_counts_rows():
    assert repr(TRACE) == "Trace('a.json', kineto, steps 1)"


def test_results_are_read_like_a_trace_that_lacks_what_was_not_recorded():
    frame = CYCLES.conform(pl.DataFrame({"cycle": [1, 2]}))
    given = {"cycles": Result(CYCLES, frame)}
    results = Results(Meta("a.csv", "prism", rank=2), {"steps": STEP}, given)
    given.clear()
    assert (results.rank, results.steps.height, results.spans.is_empty()) == (2, 1, True)
    assert results.require("steps") is STEP
    assert results.result("cycles") is frame
    assert repr(results) == "Results('a.csv', prism, cycles 2, steps 1)"
    assert results.with_tables(steps=STEPS.empty()).result("cycles") is frame
    with pytest.raises(TypeError):
        results.results["cycles"] = None
    with pytest.raises(UnknownName, match="no result named 'cycle'"):
        results.result("cycle")


def test_what_results_lack_is_not_to_be_recorded_again():
    results = Results(Meta("a.csv", "prism"), {}, {"cycles": Result(CYCLES, CYCLES.empty())})
    with pytest.raises(MissingTable, match=r"^idle needs spans") as caught:
        results.require("spans", needed_by="idle")
    assert caught.value.hint == "a.csv holds results, not a recording: show cycles"
    with pytest.raises(UnknownName):
        results.require("bogus")


def test_a_run_opens_traces_one_at_a_time():
    opened = []

    def open_trace(path):
        opened.append(path)
        return Trace(Meta(path, "kineto"), {})

    run = Run(("a", "b"), open_trace)
    traces = iter(run)
    assert (len(run), opened) == (2, [])
    assert next(traces).meta.path == "a"
    assert opened == ["a"]
    assert [trace.meta.path for trace in run] == ["a", "b"]


def test_the_extent_of_spans_goes_from_the_first_start_to_the_last_end():
    spans = pl.DataFrame({"ts_ns": [30, 10, 20], "dur_ns": [1, 50, 0]})
    assert extent_ns(spans) == (10, 60)
