from __future__ import annotations

import pytest

from stepscope.comparison.history.digest import Head
from stepscope.comparison.history.series import Change, Series
from stepscope.reports.history import history_block, history_report


def head(number: int, **more: object) -> Head:
    facts = {
        "key": f"{number:024x}", "recorded_unix_ns": number * 10**9, "added_unix_ns": 0, "label": f"night {number}",
        "commit": "0123456789abcdef", "paths": (f"run{number}",), "n_ranks": 2, "n_cycles": 20, "anchor": "step",
        "step_ns": 1e7, "error_ns": 1e4, "spread_ratio": 0.01,
    }  # fmt: skip
    return Head(**(facts | more))


def series(n_runs: int, *changes: Change) -> Series:
    return Series(tuple(head(i) for i in range(n_runs)), (1e7,) * n_runs, changes)


REGRESSION = Change(3, "regression", 1e7, 1.2e7, 1e-4, "operators +2 ms per step")


def test_a_change_names_its_first_run_its_size_and_the_command_that_shows_more() -> None:
    report = history_report(series(6, REGRESSION), "store")
    (finding,) = report.findings
    assert finding.title == "20 % slower since run 4 (night 3, commit 0123456789ab)"
    assert finding.details == (
        "step 10 ms → 12 ms", "operators +2 ms per step", "→ stepscope compare run2 run3",
    )  # fmt: skip
    assert finding.value_ns == pytest.approx(2e6)
    assert "1 change, the last: 20 % slower since run 4" in report.headline


@pytest.mark.parametrize(
    ("kind", "after", "title"),
    [
        ("improvement", 8e6, "20 % faster since run 4"),
        ("workload", 8e6, "Other work since run 4"),
        ("hardware", 1.1e7, "Another machine since run 4"),
        ("version", 1.1e7, "Other versions since run 4"),
        ("outlier", 1.5e7, "Run 4 (night 3, commit 0123456789ab) alone is 50 % slower"),
        ("open", 1.5e7, "The last run, run 4"),
    ],
)
def test_each_kind_of_change_has_a_sentence(kind, after, title) -> None:
    (finding,) = history_report(series(6, Change(3, kind, 1e7, after, None)), "store").findings
    assert finding.title.startswith(title)


def test_a_series_without_changes_says_so() -> None:
    assert history_report(series(5), "store").headline == "5 runs, 1970-01-01 · step 10 ms · no change"
    few = "4 runs, 1970-01-01 · step 10 ms · too few runs to tell a change, which takes 5"
    assert history_report(series(4), "store").headline == few


def test_single_runs_of_long_ago_are_no_findings_and_the_last_twenty_are_shown() -> None:
    report = history_report(series(50, Change(3, "outlier", 1e7, 2e7, None)), "store")
    assert report.findings == ()
    assert report.tables[0].frame.height == 20
    assert report.tables[0].note == "The last 20 of 50 runs."
    assert history_block(series(50)).frame.height == 50
