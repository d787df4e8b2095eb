from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.nsight.ncu_values import DEVICE_NAME, PRINTED, measured


def report(*rows: tuple[int, str | None, str, str, str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=PRINTED, orient="row")


def values(*reports: pl.DataFrame) -> list[tuple[object, ...]]:
    return measured(reports, "ncu.csv", IssueLog())[0].rows()


def test_values_become_numbers_in_base_units():
    got = values(report((0, None, "a", "us", "1,234.50"), (0, None, "b", "%", "12.5"), (1, None, "c", "", "n/a")))
    assert got == [(0, "a", "ns", 1234500.0), (0, "b", "%", 12.5), (1, "c", "", None)]


def test_each_report_has_its_own_notation():
    english, european = report((0, None, "a", "ns", "117,344"), (0, None, "b", "%", "65.77")), report(
        (1, None, "a", "ns", "117.344"), (1, None, "b", "%", "65,77")
    )  # fmt: skip
    assert [value for *_, value in values(english, european)] == [117344, 65.77, 117344, 65.77]


def test_two_notations_in_one_report_are_refused():
    with pytest.raises(CorruptInput, match=r"ncu\.csv: .*two ways: 1,234\.5 and 65,77"):
        values(report((0, None, "a", "ns", "1,234.5"), (0, None, "b", "%", "65,77")))


def test_lists_of_units_are_no_evidence():
    got = values(report((0, None, "launch__tpc_enabled", "", "0,1"), (0, None, "b", "", "65.77")))
    assert got == [(0, "b", "", 65.77)]


def test_an_assumption_is_noted():
    log = IssueLog()
    got, _ = measured([report((0, None, "a", "ns", "117.344"))], "x", log)
    assert got["value"].to_list() == [117344]
    assert log.table()["code"].to_list() == ["number_notation_assumed"]


def test_words_are_kept_apart():
    log = IssueLog()
    rows = report((0, None, DEVICE_NAME, "", "NVIDIA A100"), (0, None, "policy", "", "Spread"), (0, None, "n", "", "1"))
    numbers, words = measured([rows], "x", log)
    assert numbers["metric"].to_list() == ["n"]
    assert words.rows() == [(0, DEVICE_NAME, "NVIDIA A100"), (0, "policy", "Spread")]
    assert log.table().select("code", "count").rows() == [("metrics_in_words", 1)]


def test_a_label_in_two_sections_is_told_apart_unless_it_says_the_same():
    got = values(
        report(
            (0, "Speed", "Throughput", "%", "61.84"), (0, "Speed", "Duration", "ns", "5"),
            (0, "Memory", "Throughput", "byte/s", "196"), (0, "Sampling", "Duration", "ns", "5"),
            (1, "Memory", "Throughput", "byte/s", "200"),
        )
    )  # fmt: skip
    assert [(launch, metric, value) for launch, metric, _, value in got] == [
        (0, "Throughput", 61.84), (0, "Duration", 5), (0, "Memory: Throughput", 196), (1, "Throughput", 200),
    ]  # fmt: skip


def test_no_reports_give_no_rows():
    assert values() == []
