from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from cycle_traces import (
    BACKWARD,
    GPU,
    MAIN,
    NO_STEPS,
    PID,
    STREAM,
    TRACKS_4,
    spans_of,
    steps_of,
    trace_of,
    training,
)  # fmt: skip
from hypothesis import given
from hypothesis import strategies as st

from stepscope import analyses
from stepscope.analyses.cycles import cycles as _cycles
from stepscope.analyses.cycles.cycles import STEP, cycles, find_cycles, sequence_period, split_sequence, time_period
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.result_tables import CYCLES
from stepscope.core.schema import SPANS


def cycles_in(spans, *, anchor="auto", steps=NO_STEPS):
    return find_cycles(spans, TRACKS_4, steps, GPU, anchor)


def test_marked_steps_are_the_cycles_from_start_to_start():
    spans = spans_of(*((MAIN, 100 * i, 90, "work", "operator") for i in range(4)))
    got = cycles_in(spans, steps=steps_of((0, 95), (100, 95), (200, 95), (300, 95)))
    assert (got.anchor, got.source, got.how) == (STEP, "annotation", "4 marked steps")
    assert got.frame.rows() == CYCLES.conform(
        pl.DataFrame({"cycle": [0, 1, 2, 3], "ts_ns": [0, 100, 200, 300], "dur_ns": [100, 100, 100, 95]}).with_columns(
            host_ts_ns="ts_ns", host_dur_ns="dur_ns", host=pl.lit("box"), pid=pl.lit(PID), anchor=pl.lit(STEP),
            is_complete=True, found_by=pl.lit("annotation"),
        )
    ).rows()  # fmt: skip


def test_a_first_step_of_which_only_the_end_was_recorded_is_not_complete():
    rows = [(MAIN, 100 * i + k, 9, f"op{k}", "operator") for i in range(5) for k in range(10, 60, 10)]
    late = [row for row in rows if row[1] > 45]
    got = cycles_in(spans_of(*late), steps=steps_of(*((100 * i, 100) for i in range(5))))
    assert got.frame["is_complete"].to_list() == [False, True, True, True, True]


def test_without_marked_steps_the_turn_of_the_loop_is_found():
    got = cycles_in(spans_of(*training(8)))
    frame = got.frame
    assert got.anchor == "optimize"  # called once in each turn; linear is called four times
    assert got.how == "8 calls of optimize; 100% of all names occur equally often in each"
    assert frame["dur_ns"].to_list()[:-1] == [1000] * 7
    assert frame["is_complete"].to_list() == [True] * 7 + [False]
    assert frame.select("found_by", "agreement_ratio", "pid").unique().rows() == [("function", 1.0, PID)]


@pytest.mark.slow
@given(st.integers(4, 12), st.integers(2, 6), st.integers(0, 5))
def test_layers_are_never_taken_for_turns(n, layers, seed):
    rng = np.random.default_rng(seed)
    rows = [(t, s + int(rng.integers(0, 3)), d, *rest) for t, s, d, *rest in training(n, layers=layers)]
    assert cycles_in(spans_of(*rows)).frame.height == n


def test_a_rare_job_in_the_loop_does_not_make_turns_longer():
    rows = training(24)
    rows += [(MAIN, 6000 * i + 950, 20, "save", "user_range") for i in range(4)]
    assert cycles_in(spans_of(*rows)).frame.height == 24


def test_device_work_alone_is_enough():
    rows = [(STREAM, 1000 * i + 100 * k, 50, name, "kernel") for i in range(6) for k, name in enumerate("abbbc")]
    got = cycles_in(spans_of(*rows))
    assert (got.frame.height, got.frame["found_by"][0]) == (6, "kernel")
    assert got.anchor in "ac"


def test_a_sequence_of_kernels_without_any_that_stands_alone():
    turn = [*"aabbab", *"babbaabba"]
    rows = [(STREAM, 2000 * i + 100 * k, 50, name, "kernel") for i in range(9) for k, name in enumerate(turn)]
    got = cycles_in(spans_of(*rows))
    assert got.how == "a sequence of 15 pieces of device work; 100% of them are equal from turn to turn"
    assert got.frame["found_by"][0] == "sequence"
    assert got.frame["dur_ns"].to_list()[:-1] == [2000] * 8
    assert got.frame["ts_ns"][0] == 0


def test_where_nothing_else_tells_the_rhythm_of_activity_does():
    rng = np.random.default_rng(3)
    rows = []
    for i in range(40):
        at = np.sort(rng.choice(400, 40, replace=False)) + 1000 * i
        rows += [(MAIN, int(t), 1, f"op{rng.integers(6)}", "operator") for t in at]
    got = cycles_in(spans_of(*rows))
    assert got.anchor == "period"
    assert got.frame["dur_ns"][0] == pytest.approx(1000, rel=0.03)
    assert "where a turn begins is unknown" in got.how


@pytest.mark.parametrize(
    "rows",
    [
        [(MAIN, 10 * i, 9, f"op{i}", "operator") for i in range(30)],
        [(STREAM, 10 * i, 9, f"k{i}", "kernel") for i in range(30)],
        [(MAIN, 0, 9, "once", "operator")],
    ],
    ids=["all different on the host", "all different on the device", "a single event"],
)
def test_if_nothing_comes_again_there_are_no_cycles(rows):
    with pytest.raises(StepscopeError, match="nothing repeats") as caught:
        cycles_in(spans_of(*rows))
    assert "mark the steps" in caught.value.hint


def test_no_spans_is_another_matter():
    with pytest.raises(MissingTable, match="spans"):
        cycles_in(SPANS.empty())


def test_the_user_may_name_what_marks_the_cycles():
    got = cycles_in(spans_of(*training(3)), anchor="aten::linear", steps=steps_of((0, 3000)))
    assert (got.frame.height, got.anchor, got.source) == (12, "aten::linear", "detected")
    assert got.how == "12 calls of aten::linear, as asked"
    assert cycles_in(spans_of(*training(3)), anchor="gemm").frame["found_by"][0] == "kernel"
    assert cycles_in(spans_of(*training(3)), anchor=STEP, steps=steps_of((0, 3000))).source == "annotation"


@pytest.mark.parametrize("name", ["nowhere", STEP])
def test_a_name_that_is_not_there_is_refused(name):
    with pytest.raises(StepscopeError, match=f"no two calls of '{name}'"):
        cycles_in(spans_of(*training(3)), anchor=name)


def test_a_turn_that_waits_for_work_ends_with_its_call():
    rows = [(MAIN, at, 90, "serve.py(1): run_batch", "python") for at in (0, 100, 200, 300, 5000, 5100)]
    rows += [(MAIN, row[1] + 5, 20, "aten::mm", "operator") for row in rows]
    frame = cycles_in(spans_of(*rows)).frame
    assert frame["dur_ns"].to_list()[:5] == [100, 100, 100, 90, 100]


def test_where_calls_fill_little_of_their_turns_a_pause_belongs_to_the_turn():
    rows = [(MAIN, at, 9, "tick", "operator") for at in (0, 100, 200, 300, 900, 1000)]
    frame = cycles_in(spans_of(*rows)).frame
    assert frame["dur_ns"].to_list()[:5] == [100, 100, 100, 600, 100]
    assert not frame["is_complete"][5]


def test_prefill_and_decode_are_told_apart():
    rows = []
    for i in range(8):
        kind = "EXTEND" if i in (0, 4) else "DECODE"
        rows += [(MAIN, 100 * i, 90, f"step[{kind} bs={i}]", "user_range")]
        rows += [(MAIN, 100 * i + 9, 50, "aten::mm", "operator")]
    got = cycles_in(spans_of(*rows))
    assert got.anchor == "step[* bs=#]"
    assert got.frame["phase"].to_list() == ["prefill", *["decode"] * 3, "prefill", *["decode"] * 3]


def test_the_process_is_that_of_the_busiest_host_track():
    tracks = TRACKS_4.with_columns(pid=pl.Series([PID, 99, 0, None], dtype=pl.Int64))
    spans = spans_of(*training(4), *((BACKWARD, 4000 + i, 1, "x", "operator") for i in range(300)))
    assert find_cycles(spans, tracks, NO_STEPS, GPU).frame["pid"][0] == 99


def test_the_analysis_takes_the_tables_of_a_trace():
    analysis = analyses.find("cycles")
    assert list(analysis.options()) == ["anchor"]
    trace = trace_of(spans_of(*training(5)))
    assert analysis(trace).height == 5
    assert analysis(trace, anchor="aten::linear").height == 20
    assert cycles(trace.spans, trace.tracks).height == 5


def test_of_several_processes_each_has_its_own_cycles():
    tracks = TRACKS_4.with_columns(
        pid=pl.Series([PID, 99, 0, None], dtype=pl.Int64), device_id=pl.Series([None] * 4, dtype=pl.UInt32)
    )
    rows = [row for row in training(5) if row[0] == MAIN]
    rows += [(BACKWARD, *row[1:]) for row in training(4, first=70) if row[0] == MAIN]
    frame = cycles(spans_of(*rows), tracks)
    assert frame.group_by("pid", maintain_order=True).len().rows() == [(PID, 5), (99, 4)]


def test_calls_at_the_same_moment_mark_one_turn():
    rows = [(MAIN, at, 0, "tick", "operator") for at in (0, *range(0, 800, 100))]
    assert cycles_in(spans_of(*rows)).frame["ts_ns"].to_list() == list(range(0, 800, 100))
    assert cycles_in(spans_of(*rows), anchor="tick").frame["ts_ns"].to_list() == list(range(0, 800, 100))


def test_a_sequence_that_says_little_of_the_host_is_none():
    # Two kernels alternate; on the host no name comes twice in the same number of turns.
    rng = np.random.default_rng(0)
    rows = [(STREAM, 100 * i, 50, "ab"[i % 2], "kernel") for i in range(12)]
    rows += [(MAIN, int(t), 1, f"op{k}", "operator") for k in range(9) for t in rng.choice(1200, 3, replace=False)]
    with pytest.raises(StepscopeError, match="nothing repeats"):
        cycles_in(spans_of(*rows))


def test_a_rhythm_of_few_beats_may_be_chance(monkeypatch):
    rng = np.random.default_rng(3)
    rows = []
    for i in range(40):
        at = np.sort(rng.choice(400, 40, replace=False)) + 1000 * i
        rows += [(MAIN, int(t), 1, f"op{rng.integers(6)}", "operator") for t in at]
    assert cycles_in(spans_of(*rows)).anchor == "period"
    monkeypatch.setattr(_cycles, "_FEWEST_PERIODS", 41)
    with pytest.raises(StepscopeError, match="nothing repeats"):
        cycles_in(spans_of(*rows))


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9), st.integers(6, 12))
def test_the_shortest_period_of_a_repeated_sequence_is_found(turn, times):
    shortest = next(p for p in range(1, len(turn) + 1) if len(turn) % p == 0 and turn == turn[:p] * (len(turn) // p))
    period, alike = sequence_period(np.array(turn * times))
    assert (period, alike) == (shortest, 1.0)


def test_a_sequence_that_is_disturbed_now_and_then_still_has_its_period():
    codes = np.array(list(range(20)) * 30)
    codes[[5, 133, 402]] = 19
    period, alike = sequence_period(codes)
    assert period == 20
    assert 0.98 < alike < 1


@pytest.mark.parametrize("codes", [[0, 1, 2], list(range(40))])
def test_what_does_not_repeat_has_no_period(codes):
    period, alike = sequence_period(np.array(codes))
    assert period == 0 or alike < 0.1


def test_turns_begin_after_the_longest_pause():
    starts = np.array([0, 2, 14, 16, 18, 30, 32, 34, 46, 48, 50])
    assert split_sequence(starts, starts + 1, 3).tolist() == [14, 30, 46]


def test_a_rhythm_in_time_is_found():
    rng = np.random.default_rng(1)
    beats = [k * 1000 + np.sort(rng.integers(0, 400, 40)) for k in range(40)]
    period, alike = time_period(np.concatenate(beats), 0, 40_000)
    assert period == pytest.approx(1000, rel=0.03)
    assert alike > 0.5


@pytest.mark.parametrize(
    ("times", "high"), [(np.arange(5), 5), (np.arange(100), 0), (np.full(100, 7), 7)], ids=["few", "no time", "at once"]
)
def test_without_enough_events_or_time_there_is_no_rhythm(times, high):
    assert time_period(times, 0 if high != 7 else 7, high) == (0, 0.0)


def test_even_activity_has_no_rhythm():
    assert time_period(np.arange(0, 25_600, 10), 0, 25_600)[1] < 0.5
    rng = np.random.default_rng(2)
    assert time_period(np.sort(rng.integers(0, 10**6, 3000)), 0, 10**6)[1] < 0.5


def test_events_outside_the_time_looked_at_have_no_rhythm():
    assert time_period(np.arange(100), 1000, 2000) == (0, 0.0)


def test_a_sequence_without_a_repetition_has_no_period():
    assert {sequence_period(np.arange(n))[1] for n in range(9, 30)} == {0.0}
