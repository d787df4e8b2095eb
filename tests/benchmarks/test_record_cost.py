from __future__ import annotations

import random
import signal
from math import comb

import pytest
import record_cost
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(6, 80))
def test_the_interval_is_the_narrowest_that_holds_the_median_with_95_percent(n):
    values = [1 + i / 1000 for i in range(n)]
    found = record_cost.median_interval(values)
    k = round(found.low * 1000) + 1  # the k-th smallest
    assert round(found.high * 1000) == n - k
    tail = sum(comb(n, i) for i in range(k)) / 2**n
    assert 2 * tail <= 0.05
    assert 2 * (tail + comb(n, k) / 2**n) > 0.05
    assert found.low < found.median < found.high


def test_too_few_pairs_are_no_measurement():
    with pytest.raises(ValueError, match="5 pairs"):
        record_cost.median_interval([1.0] * 5)


@pytest.mark.parametrize(
    ("low", "high", "word"), [(-0.01, 0.004, "holds"), (0.006, 0.01, "broken"), (0.001, 0.01, "undecided")]
)
def test_a_limit_holds_or_is_broken_for_certain_or_is_left_open(low, high, word):
    assert record_cost.verdict(record_cost.Slowdown((low + high) / 2, low, high), 0.005).startswith(word)


def test_the_table_goes_between_the_marks(tmp_path):
    path = tmp_path / "record.md"
    path.write_text(f"before\n{record_cost.BEGIN}\nold\n{record_cost.END}\nafter\n")
    record_cost.write(record_cost.table([["a", "b"]], ["x", "y"]), path)
    assert path.read_text() == (
        f"before\n{record_cost.BEGIN}\n| x | y |\n| --- | --- |\n| a | b |\n{record_cost.END}\nafter\n"
    )
    path.write_text("no marks")
    with pytest.raises(ValueError, match="no marks"):
        record_cost.write("text", path)


def test_the_docs_have_the_marks():
    text = record_cost.DOC.read_text(encoding="utf-8")
    assert text.index(record_cost.BEGIN) < text.index(record_cost.END)


def test_pieces_of_work_are_compared_phase_by_phase():
    pieces = [(at, at + 12, 6) if at < 100 else (at, at + 10, 5) for at in range(0, 200, 20)]
    phases = [(0, 100, True), (100, 200, False)]
    assert record_cost.of_pairs(pieces, phases) == {"wall": [1.2], "cpu": [1.2]}
    assert record_cost.of_pairs(pieces, [(0, 100, True), (300, 400, False)]) == {"wall": [], "cpu": []}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
@pytest.mark.parametrize("case", record_cost.CASES[:2], ids=["what records beside it", "its hook"])
def test_a_job_is_measured_with_and_without(case):
    found = record_cost.ratios(case, 3, 0.05, random.Random(1))
    assert 1 <= len(found["wall"]) <= 3
    assert all(0.05 < ratio < 20 for ratio in found["wall"])
