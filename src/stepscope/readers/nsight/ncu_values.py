"""Metrics of launches, from the texts that ncu prints to numbers in base units: ns, hz, byte, cycle.

Units: old versions write nsecond, usecond, Gbyte/second, cycle/nsecond, newer ones ns, us, Gbyte/s, Ghz. CSV has base
units by default, text has scaled ones; `--print-units` turns both round.

Numbers are in the locale of the profiled machine: `376,704.5`, `376704.5`, or `376.704,5`. A lone `117.344` may be
either, a thousand times apart. So one notation is chosen for a whole report, from all of its values; where they
contradict one another nothing is guessed. Metrics of a launch that share a label get different names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput
from stepscope.core.names import map_names
from stepscope.core.schema import Name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.common.issues import IssueLog


_SIGN, _EXPONENT = r"^[-+]?", r"(?:[eE][-+]?\d+)?$"
#: What only a number whose fraction begins at D, with groups set apart by G, looks like: a fraction behind groups, two
#: groups or more, a fraction not of three digits, or one behind a zero or more digits than a group has.
_CERTAIN = r"(?:\d{1,3}(?:G\d{3})+D\d+|\d{1,3}(?:G\d{3}){2,}|\d+D(?:\d{1,2}|\d{4,})|(?:0\d*|\d{4,})D\d+)" + _EXPONENT
_GROUPED = r"\d{1,3}(?:G\d{3})+(?:D\d*)?" + _EXPONENT
_OPEN = r"\d{1,3}D\d{3}$"
_SAMPLE = 1000
_SPACES = r"(\d)[ '\u2019\u00a0\u202f](\d)"
#: Words that stand for a value that is not known.
UNKNOWN_WORDS = ("", "n/a", "na", "nan", "-nan", "inf", "-inf", "(!) n/a", "(!) nan")


@dataclass(frozen=True, slots=True)
class Notation:
    """Which sign a fraction begins with, `.` or `,`; whether that was told by the values or assumed.

    `against` is an example of a value in the other notation, if the values contradict one another.
    """

    decimal: str
    assumed: bool = False
    against: tuple[str, str] | None = None

    @property
    def group(self) -> str:
        """Which sign sets groups of digits apart."""
        return "," if self.decimal == "." else "."


def notation(values: pl.Series, is_percent: pl.Series) -> Notation:
    """The notation that all values (texts) agree on. `is_percent` says which are percentages.

    Where no value tells for certain: percentages do not reach the thousands; then a sign before three digits sets a
    group apart, as ncu prints two digits of a fraction, or six.
    """
    with_comma = values.filter(values.str.contains(",", literal=True).fill_null(value=False))
    with_points = values.filter(values.str.contains(r"\.\d+\.").fill_null(value=False))
    point = _first_like(values, _pattern(_CERTAIN, "."))
    comma = _first_like(with_comma, _pattern(_CERTAIN, ",")) or _first_like(with_points, _pattern(_CERTAIN, ","))
    if point and comma:
        return Notation(".", against=(point, comma))
    if point or comma:
        return Notation("." if point else ",")
    is_open = {sign: values.str.contains(_pattern(_OPEN, sign)).fill_null(value=False) for sign in ".,"}
    for sign in ".,":
        if (is_open[sign] & is_percent).any():
            return Notation(sign, assumed=True)
    return Notation("," if is_open["."].any() and not is_open[","].any() else ".", assumed=bool(is_open["."].any()))


def numbers(values: pl.Series, found: Notation) -> pl.Series:
    """The values as doubles; null for what is no number of that notation, and for nan and inf."""
    text = values
    if text.str.contains(_SPACES).any():
        # Twice, as groups of one digit share neighbours.
        text = text.str.replace_all(_SPACES, "${1}${2}").str.replace_all(_SPACES, "${1}${2}")
    has_group = text.str.contains(found.group, literal=True)
    if has_group.any():
        grouped = text.str.contains(_pattern(_GROUPED, found.decimal))
        text = text.set(has_group & ~grouped, None).str.replace_all(found.group, "", literal=True)
    if found.decimal == ",":
        text = text.str.replace(",", ".", literal=True)
    number = text.cast(pl.Float64, strict=False)
    return number.set(~number.is_finite(), None)


def is_unknown(values: pl.Series) -> pl.Series:
    """Whether a text says that the value is not known."""
    return values.str.to_lowercase().is_in(list(UNKNOWN_WORDS)).fill_null(value=True)


def _first_like(values: pl.Series, pattern: str) -> str | None:
    """The first value that a pattern matches: most often it is among the first."""
    for part in (values.head(_SAMPLE), values[_SAMPLE:]):
        found = part.filter(part.str.contains(pattern).fill_null(value=False))
        if len(found):
            return str(found[0])
    return None


def _pattern(shape: str, decimal: str) -> str:
    group = "," if decimal == "." else "."
    return _SIGN + re.sub("[DG]", lambda sign: re.escape(decimal if sign.group() == "D" else group), shape)


_TIME = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
_PREFIX = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALED = re.compile(r"([KMGTP])([a-z]{2,})$")


def base_unit(unit: str) -> tuple[str, float]:
    """The base unit, and what a value in `unit` is multiplied by to be in it. Words that are not known stay.

    >>> base_unit("msecond"), base_unit("Gbyte/second"), base_unit("cycle/nsecond"), base_unit("%")
    (('ns', 1000000.0), ('byte/s', 1000000000.0), ('hz', 1000000000.0), ('%', 1.0))
    """
    above, slash, below = unit.strip().partition("/")
    word, factor = _base_word(above)
    if not slash:
        return word, factor
    if below in _TIME:
        factor *= 1e9 / _TIME[below]
        return ("hz" if word == "cycle" else f"{word}/s"), factor
    other, per = _base_word(below)
    return f"{word}/{other}", factor / per


def _base_word(word: str) -> tuple[str, float]:
    if word in _TIME:
        return "ns", _TIME[word]
    scaled = _SCALED.match(word)
    return (scaled.group(2), _PREFIX[scaled.group(1)]) if scaled else (word, 1.0)


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
    values, texts = pl.concat([v for v, _ in parts]), pl.concat([w for _, w in parts])
    text_metrics = texts.filter(texts["metric"] != DEVICE_NAME)["metric"]
    if len(text_metrics):
        what = f"metrics that are words, as {text_metrics[0]}, are not kept"
        issues.add("metrics_in_words", "info", text_metrics.n_unique(), what)
    return values, texts


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
    texts = report.select("launch", "metric", text="value").filter(is_word)
    return frame.filter(~is_word) if is_word.any() else frame, texts


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
