from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.nsight.ncu_numbers import Notation, is_unknown, notation, numbers


def told(*values: str | None, percent: tuple[str, ...] = ()) -> Notation:
    every = pl.Series([*values, *percent], dtype=pl.String)
    return notation(every, pl.Series([False] * len(values) + [True] * len(percent)))


@pytest.mark.parametrize(
    "values",
    [("1,234.5",), ("1,234,567",), ("65.77",), ("0.125",), ("1234.567",), ("53.326040",), ("12,345", "0.5")],
    ids=" ".join,
)
def test_english_and_plain_numbers_are_told(values):
    assert told(*values) == Notation(".")


@pytest.mark.parametrize(
    "values",
    [("1.234,5",), ("1.234.567",), ("65,77",), ("0,125",), ("1234,567",), ("53,326040",), ("117.344", "65,77")],
    ids=" ".join,
)
def test_european_numbers_are_told(values):
    assert told(*values) == Notation(",")


def test_whole_numbers_need_no_notation():
    assert told("1", "999", "3995313115", None) == Notation(".")


def test_without_certainty_percentages_do_not_reach_the_thousands():
    assert told("117,344", percent=("12,345",)) == Notation(",", assumed=True)
    assert told("117.344", percent=("12.345",)) == Notation(".", assumed=True)


def test_without_any_sign_three_digits_are_a_group():
    assert told("117,344") == Notation(".")
    assert told("117.344") == Notation(",", assumed=True)
    assert told("117.344", "117,344") == Notation(".", assumed=True)


def test_values_that_contradict_one_another_are_shown():
    assert told("1,234.5", "65,77").against == ("1,234.5", "65,77")


def test_the_evidence_may_stand_far_below():
    assert told(*["117.344"] * 5000, "65,77") == Notation(",")


def test_numbers_are_read_by_the_notation():
    english = pl.Series(["376,704", "1,234.50", "12", "-3", "1e3", "n/a", "nan", "inf", "0,1,2", "PolicySpread", None])
    assert numbers(english, Notation(".")).to_list() == [376704, 1234.5, 12, -3, 1000, *[None] * 6]
    european = pl.Series(["376.704", "1.234,50", "65,77", "12"])
    assert numbers(european, Notation(",")).to_list() == [376704, 1234.5, 65.77, 12]


def test_groups_may_be_set_apart_by_blanks_and_apostrophes():
    values = pl.Series(["1 234 567,5", "1\u202f234,5", "1\u00a0234,5"])
    assert numbers(values, Notation(",")).to_list() == [1234567.5, 1234.5, 1234.5]
    assert numbers(pl.Series(["1'234'567.5", "1\u2019234"]), Notation(".")).to_list() == [1234567.5, 1234]


def test_what_stands_for_unknown_is_told_from_words():
    values = pl.Series(["n/a", "NaN", "(!) nan", "", None, "all", "12"])
    assert is_unknown(values).to_list() == [True, True, True, True, True, False, False]


@given(st.lists(st.floats(0, 1e12), min_size=1), st.sampled_from([",", "."]))
def test_what_was_printed_comes_back(values, decimal):
    texts = [f"{value:,.2f}" for value in values]
    if decimal == ",":
        texts = [text.translate(str.maketrans(",.", ".,")) for text in texts]
    series = pl.Series(texts)
    found = notation(series, pl.Series([False] * len(texts)))
    assert found == Notation(decimal)
    assert numbers(series, found).to_list() == [float(f"{value:.2f}") for value in values]
