from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses import find
from stepscope.analyses.program.python_stacks import PYTHON_FUNCTIONS, PYTHON_STACKS, python_functions, python_stacks
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.schema import STACK_SAMPLES, STACKS, STEPS, TRACKS
from stepscope.core.trace import Meta, Trace

FRAMES = [
    ["main (t.py:3)", "load (t.py:9)"],
    ["main (t.py:4)", "step (t.py:12)", "mul (t.py:30)"],
    ["main (t.py:4)", "step (t.py:12)", "step (t.py:13)"],
    ["idle (q.py:1)"],
]


def stacks(frames: list[list[str]] = FRAMES) -> pl.DataFrame:
    return STACKS.conform(pl.DataFrame({"stack_id": range(len(frames)), "frames": frames}))


def samples(*rows: dict) -> pl.DataFrame:
    base = {"ts_ns": 0, "dur_ns": 10, "pid": 7, "tid": 7, "thread": "MainThread", "stack_id": 0, "n_samples": 1}
    whole = [{**base, "on_gil": False, "oncpu_ratio": None, **row} for row in rows]
    return STACK_SAMPLES.conform(pl.DataFrame(whole, schema_overrides={"oncpu_ratio": pl.Float64}))


LOOKS = samples(
    {"ts_ns": 0, "dur_ns": 60, "stack_id": 0, "n_samples": 6},
    {"ts_ns": 60, "dur_ns": 30, "stack_id": 1, "n_samples": 1},  # looked at less often then
    {"ts_ns": 90, "dur_ns": 10, "stack_id": 2, "n_samples": 1},
    {"dur_ns": 40, "n_samples": 4, "on_gil": True, "stack_id": 1},
)


def test_a_row_for_each_stack_with_its_share_of_the_time():
    found = python_stacks(LOOKS, stacks())
    assert found.columns == ["rank", "pid", "thread", "stack", "samples", "share_ratio"]
    assert found.schema == {name: PYTHON_STACKS.dtypes[name] for name in found.columns}
    assert found.rows() == [
        (None, 7, "MainThread", "main (t.py:3);load (t.py:9)", 6, 0.6),
        (None, 7, "MainThread", "main (t.py:4);step (t.py:12);mul (t.py:30)", 1, 0.3),
        (None, 7, "MainThread", "main (t.py:4);step (t.py:12);step (t.py:13)", 1, 0.1),
    ]


def test_by_function_own_and_total_whatever_the_line():
    found = python_stacks(LOOKS, stacks(), by="function")
    rows = {row[1]: row[2:] for row in found.rows()}
    assert found.columns == ["rank", "function", "samples", "share_ratio", "total_samples", "total_ratio"]
    assert rows["load (t.py)"] == (6, 0.6, 6, 0.6)
    assert rows["mul (t.py)"] == (1, 0.3, 1, 0.3)
    assert rows["step (t.py)"] == (1, 0.1, 2, pytest.approx(0.4))  # recursion counts once
    assert rows["main (t.py)"] == (0, 0.0, 8, 1.0)


def test_python_functions_is_the_same_with_columns_for_a_comparison():
    found = python_functions(LOOKS, stacks())
    assert found.schema == dict(PYTHON_FUNCTIONS.dtypes)
    assert found["function"][0] == "load (t.py)"


def test_holders_of_the_gil_are_looked_at_alone():
    assert python_stacks(LOOKS, stacks(), gil=True).select("stack", "samples", "share_ratio").rows() == [
        ("main (t.py:4);step (t.py:12);mul (t.py:30)", 4, 1.0)
    ]


def test_threads_that_hardly_run_are_left_out_but_the_main_thread():
    every = samples(
        {"oncpu_ratio": 0.0, "n_samples": 5},
        {"tid": 8, "thread": "pool", "stack_id": 3, "oncpu_ratio": 0.001},
        {"tid": 9, "thread": "loader", "stack_id": 3, "oncpu_ratio": 0.5, "dur_ns": 5},
        {"tid": 9, "thread": "loader", "stack_id": 3, "oncpu_ratio": 0.0, "dur_ns": 5},
        {"tid": 10, "thread": "unknown", "stack_id": 3},
    )
    assert set(python_stacks(every, stacks())["thread"]) == {"MainThread", "loader", "unknown"}
    assert set(python_stacks(every, stacks(), idle=True)["thread"]) == {"MainThread", "loader", "unknown", "pool"}


def test_a_step_counts_what_lies_in_its_window():
    steps = STEPS.conform(
        pl.DataFrame(
            {"step": [3, 4], "ts_ns": [50, 70], "dur_ns": [10, 30], "rank": [0, 0], "source": ["annotation"] * 2}
        )
    )
    found = python_stacks(LOOKS, stacks(), steps=steps, step=3)
    assert found.select("stack", "samples", "share_ratio").rows() == [
        ("main (t.py:3);load (t.py:9)", 1, 0.5),
        ("main (t.py:4);step (t.py:12);mul (t.py:30)", 0, 0.5),
    ]
    with pytest.raises(UnknownName, match="step"):
        python_stacks(LOOKS, stacks(), steps=steps, step=9)
    with pytest.raises(UnknownName, match="step"):
        python_stacks(LOOKS, stacks(), step=9)
    with pytest.raises(StepscopeError, match="GIL"):
        python_stacks(LOOKS, stacks(), steps=steps, step=3, gil=True)


def test_ranks_come_from_the_traces_own_tracks():
    def tracks(pids: list[int], ranks: list[int]) -> pl.DataFrame:
        return TRACKS.conform(pl.DataFrame({"track_id": range(len(pids)), "pid": pids, "rank": ranks}))

    both = samples({}, {"pid": 8, "tid": 8})
    assert set(python_stacks(both, stacks(), tracks([7], [3]))["rank"]) == {3}
    found = python_stacks(both, stacks(), tracks([7, 9], [3, 4]))
    assert set(found.select("pid", "rank").rows()) == {(7, 3), (8, None)}


def test_without_looks_it_says_how_to_get_them():
    with pytest.raises(MissingTable, match="hold the GIL") as caught:
        python_stacks(samples({}), stacks(), gil=True)
    assert "--stacks" in caught.value.hint


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 3), st.integers(7, 8), st.integers(1, 9)), min_size=1, max_size=30
    )
)
def test_shares_are_those_of_a_plain_count(rows):
    every = samples(*({"dur_ns": ns, "stack_id": i, "pid": pid, "tid": pid, "n_samples": n} for ns, i, pid, n in rows))
    whole = sum(ns for ns, *_ in rows)
    found = python_stacks(every, stacks())
    assert found["share_ratio"].sum() == pytest.approx(1.0)
    assert found["samples"].sum() == sum(n for *_, n in rows)
    own, total = {}, {}
    for ns, i, _, _ in rows:
        names = [frame.split(" ")[0] for frame in FRAMES[i]]
        own[names[-1]] = own.get(names[-1], 0) + ns / whole
        for name in set(names):
            total[name] = total.get(name, 0) + ns / whole
    by_function = python_stacks(every, stacks(), by="function")
    for name, share, all_of_it in by_function.select("function", "share_ratio", "total_ratio").iter_rows():
        assert share == pytest.approx(own.get(name.split(" ")[0], 0.0))
        assert all_of_it == pytest.approx(total[name.split(" ")[0]])


def test_functions_of_a_trace_have_no_process_or_thread():
    row = {"ts_ns": 0, "dur_ns": 5, "pid": 1, "tid": 1, "stack_id": 0, "n_samples": 2, "on_gil": False}
    tables = {
        "stack_samples": STACK_SAMPLES.conform(pl.DataFrame([row])),
        "stacks": STACKS.conform(pl.DataFrame({"stack_id": [0], "frames": [["a (x.py:1)", "b (x.py:2)"]]})),
    }
    found = find("python-functions")(Trace(Meta("x", "counters"), tables))
    assert found.rows() == [(None, "b (x.py)", 1.0, 1.0, 2, 2), (None, "a (x.py)", 0.0, 1.0, 0, 2)]
