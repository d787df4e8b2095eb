from __future__ import annotations

import pytest
from observations import observation

import stepscope
from stepscope.comparison import Cause, Comparison, Effect


def test_incomplete_cycles_do_not_count_unless_there_are_no_others():
    cycles = observation([5, 7, 9]).complete_cycles
    assert cycles.select("at", "dur_ns").rows() == [(0, 5), (1, 7), (2, 9)]
    partial = observation([5, 7, 9], complete=[False, True, True])
    assert partial.complete_cycles.select("at", "dur_ns").rows() == [(0, 7), (1, 9)]
    assert observation([5, 7], complete=[False, False]).complete_cycles.height == 2


@pytest.mark.parametrize(("confidence", "word"), [(0.9, "certain"), (0.6, "likely"), (0.59, "possible")])
def test_a_confidence_has_a_word(confidence, word):
    cause = Cause("python_gc", "It collects.", None, None, None, None, None, 1.0, confidence)
    assert cause.certainty == word


def test_a_ratio_needs_a_base():
    effect = Effect(2.0, 3.0, 1.0, 0.0, 2.0, 0.01, 0.1, 0.2, 5, 5, is_different=True)
    assert effect.ratio == 1.5
    assert Effect(0.0, 3.0, 3.0, 0.0, 2.0, 0.01, 0.1, 0.2, 5, 5, is_different=True).ratio is None


def test_a_comparison_is_public_and_shows_itself_without_the_verbs():
    frame = observation([5]).parts
    comparison = Comparison("no_difference", "within what healthy runs differ", None, (), frame, frame, ())
    assert str(comparison) == "no_difference: within what healthy runs differ"
    assert repr(comparison) == "Comparison('no_difference', [])"
    assert comparison.plot() is None
    assert stepscope.Comparison is Comparison
