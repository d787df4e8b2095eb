"""The table that docs/coverage.md is made of, against the recorded files."""

from __future__ import annotations

import pytest
from format_coverage import RECORDERS, measure, recorded

TABLE = recorded()


def test_every_recorder_is_in_the_table():
    assert {path: recorder for path, (recorder, _, _) in TABLE.items()} == RECORDERS


@pytest.mark.parametrize("path", RECORDERS)
def test_a_recorded_file_fills_what_the_page_says(shared, path):
    format_, tables = measure(shared / path)
    _, known, filled = TABLE[path]
    again = "run scripts/format_coverage.py ../shared/data"
    assert (format_, {name: set(columns) for name, columns in tables.items()}) == (
        known,
        {name: set(columns) for name, columns in filled.items()},
    ), again
