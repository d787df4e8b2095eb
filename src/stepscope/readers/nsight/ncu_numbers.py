"""Numbers as ncu prints them in the profiled machine's locale: `376,704.5`, `376704.5`, or `376.704,5`.

A lone `117.344` may be either, a thousand times apart. So one notation is told for a whole report, from all of its
values; and where they contradict one another nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

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
