from __future__ import annotations

from stepscope.core.schema import ISSUES
from stepscope.readers.common.issues import IssueLog


def test_counts_add_up_under_one_code_and_the_first_example_stays():
    log = IssueLog()
    log.add("lost", "warning", 2, "first")
    log.add("lost", "warning", 3, "second")
    assert log.table().rows() == [("lost", "warning", 5, "first")]


def test_nothing_counted_is_nothing_noted():
    log = IssueLog()
    log.add("lost", "warning", 0, "none")
    assert log.table().is_empty()
    assert dict(log.table().schema) == dict(ISSUES.dtypes)


def test_the_worst_come_first_then_the_most_frequent():
    log = IssueLog()
    for code, severity, n in (("a", "info", 9), ("b", "error", 1), ("c", "warning", 3), ("d", "warning", 4)):
        log.add(code, severity, n, "")
    assert log.table()["code"].to_list() == ["b", "d", "c", "a"]
