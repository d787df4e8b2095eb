"""What a new function does in slow steps alone, told from the rest of it."""

from __future__ import annotations

import polars as pl
import pytest
from faulty_jobs import sampled_functions
from msgspec.structs import replace
from observations import observation

from stepscope.comparison.function_lines import by_line
from stepscope.comparison.model import Pair

RUN = observation([1_000_000] * 6)
#: A new function pauses in line 9, in slow steps alone, and computes in two others.
LINES = {"after (t.py:9)": 0.2, "after (t.py:12)": 0.2, "after (t.py)": 0.1}
SLOW = {"after (t.py:9)": 0.19, "after (t.py:12)": 0.02}


def sampled(functions, lines=None, **options):
    rows = sampled_functions(lines or {}, 1000, **options)
    return replace(RUN, python_functions=sampled_functions(functions, 1000), python_lines=rows)


def shares(before, other):
    pair = by_line(Pair("", (sampled(before),), (other,), "only process"))
    return dict(pair.other[0].python_functions.select("function", "share_ratio").rows())


def test_what_a_new_function_does_in_slow_steps_alone_has_a_row_of_its_own():
    other = sampled({"step (t.py)": 0.5, "after (t.py)": 0.5}, LINES, slow=SLOW, on_lock={"after (t.py:12)": 0.9})
    assert shares({"step (t.py)": 1.0}, other) == {
        "step (t.py)": 0.5,
        "after (t.py)": pytest.approx(0.3),
        "after (t.py:9)": 0.2,
    }
    split = by_line(Pair("", (sampled({"step (t.py)": 1.0}),), (other,), "only process")).other[0].python_functions
    rest = split.filter(pl.col("function") == "after (t.py)").row(0, named=True)
    assert rest["on_lock_ratio"] == pytest.approx(0.6)  # 0.9 of two thirds
    assert rest["slow_ratio"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        ({"step (t.py)": 0.8, "after (t.py)": 0.2}, {}),  # the base has the function
        ({"step (t.py)": 1.0}, {"slow": {}}),  # no line is in slow steps alone
        ({"step (t.py)": 1.0}, {"thirds": {"after (t.py:9)": (0.1, 0.3)}}),  # late steps are slow, as all grow
        ({"step (t.py)": 1.0}, {"lines": {"after (t.py:9)": 0.49, "after (t.py)": 0.01}}),  # nearly all of it is
    ],
)
def test_other_functions_stay_whole(before, changes):
    options = {"lines": LINES, "slow": SLOW, **changes}
    other = sampled({"step (t.py)": 0.5, "after (t.py)": 0.5}, **options)
    assert shares(before, other) == {"step (t.py)": 0.5, "after (t.py)": 0.5}


def test_where_nobody_asked_for_the_lock_nothing_is_known_of_it():
    other = sampled({"step (t.py)": 0.5, "after (t.py)": 0.5}, LINES, slow=SLOW)
    unknown = {"on_lock_ratio": pl.lit(None, pl.Float64), "n_expected": pl.lit(None, pl.Float64)}
    functions, lines = (each.with_columns(**unknown) for each in (other.python_functions, other.python_lines))
    other = replace(other, python_functions=functions, python_lines=lines)
    split = by_line(Pair("", (sampled({"step (t.py)": 1.0}),), (other,), "only process")).other[0].python_functions
    assert split["on_lock_ratio"].to_list() == [None, None, None]


def test_runs_without_samples_stay_as_they_are():
    pair = Pair("", (RUN,), (RUN,), "only process")
    assert by_line(pair) is pair
    of_base = Pair("", (sampled({"step (t.py)": 1.0}),), (RUN,), "only process")
    assert by_line(of_base) is of_base
