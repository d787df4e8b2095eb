from __future__ import annotations

import polars as pl
import pytest

from stepscope.comparison._remarks import elsewhere, left_out, without_counters
from stepscope.core.schema import ISSUES

HOUR = 3_600_000_000_000


def cycles(*complete):
    n = len(complete)
    return pl.DataFrame(
        {"cycle": range(n), "ts_ns": range(n), "dur_ns": [1] * n, "is_complete": complete},
        schema_overrides={"is_complete": pl.Boolean},
    )


@pytest.mark.parametrize(
    ("complete", "notes"),
    [
        ([True] * 3, []),
        ([None, None], []),
        ([False, True, True], ["recorded in part and left out: cycle 0"]),
        ([False, True, True, False], ["recorded in part and left out: cycles 0, 3"]),
        ([True], ["one complete cycle: how much cycles vary is not known"]),
        ([False] * 9 + [True] * 2, ["recorded in part and left out: cycles 0, 1, 2, 3, 4, 5, 6, 7 … 8"]),
        ([], ["no complete cycles: how much cycles vary is not known"]),
    ],
)
def test_what_does_not_count_is_said(complete, notes):
    assert left_out(cycles(*complete)) == notes


def issues(*rows):
    return ISSUES.conform(pl.DataFrame(list(rows), schema=["code", "example"], orient="row"))


def test_without_counters_some_causes_cannot_be_seen():
    assert without_counters(ISSUES.empty()).startswith("no counters were recorded: ")
    said = without_counters(issues(("other", "x"), ("counters_unplaced", "the trace does not say when it began")))
    assert said.startswith("counters are not used (the trace does not say when it began): ")


def samples(*times):
    return pl.DataFrame({"ts_ns": times})


def placed(low, high):
    return pl.DataFrame({"ts_ns": [low], "dur_ns": [high - low]})


@pytest.mark.parametrize(
    ("times", "where"),
    [
        ([12 * 10**9, 13 * 10**9], "all are at least 2.0 s after them"),
        ([-9 * 10**9, -3 * 10**9], "all are at least 3.0 s before them"),
        ([2 * HOUR, 2 * HOUR + 10**10], "all are at least 7,190.0 s after them, perhaps a time zone of 2 h"),
        ([-(10**9), 20 * 10**9], "they pause while the cycles run"),
    ],
)
def test_samples_elsewhere_are_located(times, where):
    said = elsewhere(samples(*times), placed(0, 10**10))
    assert said == f"no sample of the counters lies within the cycles ({where}): counters are not used"
