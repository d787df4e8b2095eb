"""On every screen of every trace, parts sum to their whole, and totals that two tables share are equal."""

from __future__ import annotations

from itertools import pairwise

import identity_checks
import pytest
from test_surfaces import COLLECTION, EVERYTHING, SMALL_BYTES, TRACES

import stepscope
from stepscope.reports.comparison import comparison

pytestmark = pytest.mark.exhaustive

#: Formats that are not in the list of traces.
MORE = [
    str(path.relative_to(COLLECTION))
    for pattern in ("nsight/*/*", "paddle/**/trace.json.gz", "latencyprism/**/*.csv.gz")
    for path in sorted(COLLECTION.glob(pattern))
    if path.is_file() and (EVERYTHING or path.stat().st_size < SMALL_BYTES)
]


@pytest.mark.parametrize("path", TRACES + MORE if EVERYTHING else [*TRACES[1::2], *MORE[::3]])
def test_the_numbers_of_every_screen_close(shared, path):
    try:
        trace = stepscope.load(shared / path)
    except stepscope.StepscopeError as error:
        pytest.skip(f"refused, so it has no numbers: {error.message}")
    report = stepscope.report(trace)
    wrong = [*identity_checks.tables(trace), *identity_checks.report(report), *identity_checks.lengths(report)]
    assert wrong == []


PAIRS = [(a, b) for a, b in pairwise(TRACES) if a.rpartition("/")[0] == b.rpartition("/")[0]]


@pytest.mark.parametrize(("base", "other"), PAIRS if EVERYTHING else PAIRS[::4])
def test_the_numbers_of_a_comparison_close(shared, base, other):
    try:
        result = stepscope.compare(shared / base, shared / other)
    except stepscope.StepscopeError as error:
        pytest.skip(f"not to be compared: {error.message}")
    assert identity_checks.comparison(comparison(result)) == []
