"""On every screen of every trace, parts sum to their whole, and sums that two tables share are equal."""

from __future__ import annotations

import identity_checks
import pytest
from test_surfaces import EVERYTHING, TRACES

import stepscope


@pytest.mark.parametrize("path", TRACES if EVERYTHING else TRACES[1::2])
def test_the_numbers_of_every_screen_close(shared, path):
    trace = stepscope.load(shared / path)
    report = stepscope.report(trace)
    wrong = [*identity_checks.tables(trace), *identity_checks.report(report), *identity_checks.lengths(trace, report)]
    assert wrong == []
