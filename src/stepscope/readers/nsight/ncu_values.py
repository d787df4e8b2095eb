"""Metrics of launches from texts to numbers in base units, with labels that occur twice told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput
from stepscope.core.names import map_names
from stepscope.core.schema import Name
from stepscope.readers.nsight.ncu_numbers import is_unknown, notation, numbers
from stepscope.readers.nsight.ncu_units import base_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.common.issues import IssueLog

#: What a reader hands over for each report: a row per metric of a launch, as printed. `section` may be null.
PRINTED = {"launch": pl.UInt32(), "section": Name, "metric": Name, "unit": Name, "value": pl.String()}
#: The same as numbers; and metrics that are words.
MEASURED = {"launch": pl.UInt32(), "metric": Name, "unit": Name, "value": pl.Float64()}
WORDS = {"launch": pl.UInt32(), "metric": Name, "text": pl.String()}

_AMBIGUOUS = r"^[-+]?\d{1,3}[.,]\d{3}$"
#: A list of unit numbers (`0,1`), which looks like a number with a fraction.
_LISTS = ("launch__tpc_enabled", "Enabled TPC IDs")
#: The product, which `devices` takes; other words have no place in a table of numbers.
DEVICE_NAME = "device__attribute_display_name"


def measured(reports: Sequence[pl.DataFrame], path: str, issues: IssueLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Metrics as numbers (columns MEASURED) and those that are words (WORDS) of all reports of a file.

    What is not available is null. Raises CorruptInput if a report writes numbers in two ways.
    """
    parts = [_one_report(report, path, issues) for report in reports]
    if not parts:
        return pl.DataFrame(schema=MEASURED), pl.DataFrame(schema=WORDS)
    values, words = pl.concat([v for v, _ in parts]), pl.concat([w for _, w in parts])
    others = words.filter(words["metric"] != DEVICE_NAME)["metric"]
    if len(others):
        what = f"metrics that are words, as {others[0]}, are not kept"
        issues.add("metrics_in_words", "info", others.n_unique(), what)
    return values, words


def _one_report(report: pl.DataFrame, path: str, issues: IssueLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    report = _told_apart(report)
    text, unit = report["value"], report["unit"]
    has_unit = (unit != "").fill_null(value=False)
    tells = has_unit if has_unit.any() else ~report["metric"].is_in(list(_LISTS))
    is_percent = (unit == "%").fill_null(value=False)
    found = notation(text, is_percent) if tells.all() else notation(text.filter(tells), is_percent.filter(tells))
    if found.against is not None:
        one, other = found.against
        msg = f"its numbers are written in two ways: {one} and {other}"
        raise CorruptInput(msg, "profile again in one locale, as in LC_ALL=C ncu …", path=path)
    if found.assumed:
        example = text.filter(text.str.contains(_AMBIGUOUS).fill_null(value=False))[0]
        what = f"nothing tells what {example} means for certain: fractions are taken to begin with {found.decimal!r}"
        issues.add("number_notation_assumed", "warning", 1, what)
    value = numbers(text, found)
    is_word = value.is_null()
    if is_word.any():
        is_word &= ~is_unknown(text)
    frame = report.select("launch", "metric", "unit", value=value)
    if any(base_unit(word) != (word, 1.0) for word in unit.unique().drop_nulls().cast(pl.String)):
        frame = frame.with_columns(
            unit=map_names(unit, lambda word: base_unit(word)[0], pl.String()).cast(Name),
            value=value * map_names(unit, lambda word: base_unit(word)[1], pl.Float64()).fill_null(1.0),
        )
    words = report.select("launch", "metric", text="value").filter(is_word)
    return frame.filter(~is_word) if is_word.any() else frame, words


def _told_apart(report: pl.DataFrame) -> pl.DataFrame:
    """The details page may give one label in several sections: repeats go, other quantities get the section's name."""
    sections = report["section"]
    if sections.null_count() == report.height or sections.n_unique() < 2:
        return report
    keys = ["launch", "metric"]
    again = report.filter(report.select(keys).is_duplicated())["metric"].unique()
    if again.is_empty():
        return report
    may_repeat = report["metric"].is_in(again.implode())
    rows = report.with_row_index("row").filter(may_repeat)
    rows = rows.with_columns(
        first=pl.int_range(pl.len()).over(keys) == 0,
        same=(pl.col("value") == pl.col("value").first().over(keys))
        & pl.col("unit").eq_missing(pl.col("unit").first().over(keys)),
    )
    label = pl.format("{}: {}", pl.col("section").cast(pl.String), pl.col("metric").cast(pl.String)).cast(Name)
    rows = rows.filter(pl.col("first") | ~pl.col("same")).with_columns(
        metric=pl.when(pl.col("first")).then("metric").otherwise(label)
    )
    rest = report.with_row_index("row").filter(~may_repeat)
    return pl.concat([rest, rows.select(rest.columns)]).sort("row").drop("row")
