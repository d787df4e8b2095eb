from __future__ import annotations

import polars as pl
from cycle_traces import spans_of, trace_of, training

from stepscope.comparison.observe import observe
from stepscope.core.schema import ATTRIBUTION, CYCLES
from stepscope.core.trace import Meta, Result, Results


def test_recordings_and_results_are_observed_alike():
    (recorded,) = observe(trace_of(spans_of(*training(5))), anchor="load")
    cycles = CYCLES.conform(recorded.cycles.with_columns(pid=41, anchor=pl.lit("load")))
    functions = ATTRIBUTION.conform(recorded.functions.with_columns(pid=41))
    held = {"cycles": Result(CYCLES, cycles), "attribution": Result(ATTRIBUTION, functions)}
    (told,) = observe(Results(Meta("a.csv", "x"), {}, held), anchor="ignored: results have cycles of their own")
    assert (recorded.source, told.source) == ("detected", "recorded")
    assert (recorded.pid, recorded.anchor) == (told.pid, told.anchor) == (41, "load")
    columns = ("cycle", "device", "name", "calls", "total_ns")
    assert told.functions.select(columns).equals(recorded.functions.select(columns))
