from __future__ import annotations

import pytest

from stepscope.comparison.diagnosis.change import Change
from stepscope.comparison.diagnosis.words import change_of, evidence, fold, moved, span


@pytest.mark.parametrize(
    ("base", "other", "text"),
    [(100, 103, "+3 %"), (100, 18, "−82 %"), (1, 2, "2×"), (1, 3.44, "3.4×"), (2e6, 7.5e9, "3,750×"), (0, 3, ""),
     (None, 3, ""), (3, None, "")],
)  # fmt: skip
def test_relative_changes(base, other, text):
    assert change_of(base, other) == text


def test_times_have_two_digits():
    assert (fold(0.934), fold(1.05), fold(12.4), fold(353.2)) == ("0.93×", "1.1×", "12×", "353×")


@pytest.mark.parametrize(
    ("base", "other", "unit", "text"),
    [
        (1187.0, 210.0, "MHz", "from 1,187 to 210 MHz"),
        (45e6, 105e6, "ns", "from 45 ms to 105 ms"),
        (2e6, 7.4e9, "bytes/s", "from 2 MB/s to 7.4 GB/s"),
        (1024, 2048, "kB", "from 1 MiB to 2 MiB"),
        (None, 2048, "kB", "from – to 2 MiB"),
        (1.0, 2.5, None, "from 1 to 2.5"),
        (5.2e9, 7.8e9, "count", "from 5.2 G to 7.8 G"),
    ],
)
def test_both_values_in_units_that_people_know(base, other, unit, text):
    assert span(base, other, unit) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change(1187.0, 210.0, True, "MHz"), "fell from 1,187 to 210 MHz (−82 %)"),
        (Change(1e6, 3.4e6, True, "ns"), "rose from 1 ms to 3.4 ms (3.4×)"),
        (Change(5.0, 5.0, False, "MHz"), "stayed from 5 to 5 MHz"),
        (Change(0.0, 2e6, True, "ns"), "rose from 0 to 2 ms"),
        (Change(None, 2e6, True, "ns"), "is new (2 ms)"),
    ],
)
def test_changes_are_sentences(change, text):
    assert moved(change) == text


def test_evidence_carries_the_values_of_its_change():
    row = evidence("clock", Change(2.0, 1.0, True, "MHz"), role="necessary", device="gpu0", metric="gpu_sm_frequency")
    assert (row.base, row.other, row.unit, row.role, row.device) == (2.0, 1.0, "MHz", "necessary", "gpu0")
    assert evidence("no number").base is None
