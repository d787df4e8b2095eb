"""Numbers to text and text to numbers: the only place that rounds, and the only one that knows unit prefixes.

Shown values have three significant digits and no trailing zeros. Memory is shown in binary units under their own names
(GiB = 2³⁰ B), rates and FLOP in decimal ones (GB/s = 10⁹ B/s). Null and NaN are shown as `UNKNOWN`, never as 0.
"""

from __future__ import annotations

import math
import time
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

UNKNOWN = "–"

_SECOND_NS = 1_000_000_000
_TIME_NS = (("ns", 1), ("µs", 1_000), ("ms", 1_000_000), ("s", _SECOND_NS))
_LONG_TIME_S = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_BINARY = tuple((f"{prefix}B", 1024**i) for i, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")))
_DECIMAL = tuple((prefix, 1000**i) for i, prefix in enumerate(("", "k", "M", "G", "T", "P", "E")))
_INT64_MAX = 2**63 - 1


def duration(ns: float | None) -> str:
    """Nanoseconds as '850 ns', '64 µs', '431 ms', '1.21 s', '3 m 20 s', '2 h 5 m', '1 d 3 h'.

    >>> duration(431_000_000), duration(None), duration(200_000_000_000)
    ('431 ms', '–', '3 m 20 s')
    """
    if ns is None or not math.isfinite(ns):
        return _special(ns)
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if _significant(ns / _SECOND_NS) < 60:
        return sign + _scaled(ns, _TIME_NS)
    seconds = ns / _SECOND_NS
    steps = pairwise(_LONG_TIME_S)
    (big, big_s), (small, small_s) = next(s for s in steps if round(seconds / s[1][1]) * s[1][1] >= s[0][1])
    whole, rest = divmod(round(seconds / small_s), big_s // small_s)
    return f"{sign}{whole:,} {big} {rest} {small}"


def instant(unix_ns: int) -> str:
    """A point in time, from 1970, as '2026-11-22 12:42:17 UTC'.

    >>> instant(1_795_351_337_812_117_567)
    '2026-11-22 12:42:17 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_ns // _SECOND_NS))


def size(n_bytes: float | None) -> str:
    """Bytes of memory or of a file as '512 B', '3.2 MiB', '61 GiB'."""
    return _prefixed(n_bytes, _BINARY)


def rate(bytes_per_s: float | None) -> str:
    """Bytes a second as '12.5 GB/s', '3.35 TB/s'."""
    return _prefixed(bytes_per_s, _decimal("B/s"))


def count(n: float | None) -> str:
    """How many: exact below a million ('1,212'), then '1.9 M', '3.93 G'."""
    return number(n) if n is None or abs(n) < 1_000_000 else _prefixed(n, _DECIMAL[2:])


def percent(ratio: float | None) -> str:
    """A ratio 0..1 as '61 %', '5.2 %', '0.3 %'. Only 0 is shown as 0 and only 1 as 100: what is near gets < or >."""
    if ratio is None or not math.isfinite(ratio):
        return _special(ratio)
    value = abs(ratio) * 100
    text = _trimmed(f"{value:.1f}") if value < 9.95 or 99.5 <= value < 100 else f"{value:,.0f}"
    if text == "0" and value > 0:
        return "<0.1 %" if ratio > 0 else ">-0.1 %"
    if text == "100" and value < 100:
        return ">99.9 %" if ratio > 0 else "<-99.9 %"
    return f"{'-' if ratio < 0 else ''}{text} %"


def number(value: float | None) -> str:
    """A number without unit: integers exactly with separators, others to three significant digits."""
    if value is None or not math.isfinite(value):
        return _special(value)
    if isinstance(value, int) or abs(value) >= 999.5:
        return f"{round(value):,}"
    rounded = _significant(value) + 0.0  # -0.0 becomes 0.0
    return f"{rounded:.3g}" if 0 < abs(rounded) < 0.001 else _trimmed(f"{rounded:.5f}")


def is_scaled(unit: str | None) -> bool:
    """Whether `render` gives a value of this unit a prefix, as in 22.7 GiB, or else another form of its own."""
    return unit in _WRITTEN


def render(value: Any, unit: str | None = None) -> str:
    """Any value in its column's unit: ns (µs, ms, s), ns/s, bytes, ratio, bytes/s, FLOP, FLOP/s, count, None.

    A unit that is not known follows the number as it stands, 1/s as in '8.9/s'; what is not a number is shown as text.
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if unit in _WRITTEN:
        return _WRITTEN[unit](value)
    if unit and unit.startswith("1/"):
        return number(value) + unit[1:]
    return f"{number(value)} {unit}" if unit else number(value)


_QUANTITY = regex(r"\s*(\d{1,40}(?:\.\d{0,40})?(?:[eE][+-]?\d{1,3})?|\.\d{1,40})\s*([a-zA-Zµμ]*)\s*")
_SIZE_FACTOR = {
    **{unit: factor for prefix, factor in _DECIMAL for unit in (prefix.lower(), f"{prefix.lower()}b")},
    **{unit: factor for name, factor in _BINARY for unit in (name.lower(), name.lower().removesuffix("b"))},
}
_TIME_FACTOR = {
    **dict(_TIME_NS), "us": 1_000, "μs": 1_000, "sec": _SECOND_NS, "min": 60 * _SECOND_NS,
    **{unit: factor * _SECOND_NS for unit, factor in _LONG_TIME_S},
}  # fmt: skip


def parse_size(text: str | int) -> int:
    """Bytes of '2GiB' (2 · 2³⁰), '500MB' (500 · 10⁶), '1.5 G' (decimal), '1e9' or 4096. Raises StepscopeError.

    >>> parse_size("2GiB"), parse_size("500MB")
    (2147483648, 500000000)
    """
    match = _QUANTITY.fullmatch(str(text))
    factor = _SIZE_FACTOR.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise _unreadable("size", text, "write a size as 500MB, 2GiB or a number of bytes")
    return _whole(Decimal(match.group(1)) * factor, "size", text)


def parse_duration(text: str, *, default_unit: str = "") -> int:
    """Nanoseconds of '250ms', '1.5 s', '2m', '1h30m', '1 h 30 m'. Raises StepscopeError.

    A number without a unit is in `default_unit`, if one is given; else it must be 0.

    >>> parse_duration("1 h 30 m") // 10**9, parse_duration("30", default_unit="s") // 10**9
    (5400, 30)
    """
    parts = _parts(text)
    if len(parts) == 1 and not parts[0][1] and (default_unit or not parts[0][0]):
        parts = [(parts[0][0], default_unit or "s")]
    if not parts or any(unit not in _TIME_FACTOR for _, unit in parts):
        raise _unreadable("duration", text, "write a duration with its unit, as 250us, 3ms, 1.5s, 2m or 1h30m")
    return _whole(sum((amount * _TIME_FACTOR[unit] for amount, unit in parts), Decimal(0)), "duration", text)


def _parts(text: str) -> list[tuple[Decimal, str]]:
    """Amounts and their units, as written; empty if the text is not made of these."""
    parts, end = [], 0
    while match := _QUANTITY.match(text, end):
        parts.append((Decimal(match.group(1)), match.group(2)))
        end = match.end()
    return parts if end == len(text) else []


def _whole(value: Decimal, what: str, text: str | int) -> int:
    if value > _INT64_MAX:
        raise _unreadable(what, text, f"the largest {what} is 2**63 - 1 {'ns' if what == 'duration' else 'bytes'}")
    return round(value)


def _unreadable(what: str, text: str | int, hint: str) -> StepscopeError:
    return StepscopeError(f"{text!r} is not a {what}", hint)


def _special(value: float | None) -> str:
    """The text of a value without digits."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return "∞" if value > 0 else "-∞"


def _decimal(unit: str) -> tuple[tuple[str, int], ...]:
    return tuple((prefix + unit, factor) for prefix, factor in _DECIMAL)


def _prefixed(value: float | None, steps: tuple[tuple[str, int], ...]) -> str:
    if value is None or not math.isfinite(value):
        return _special(value)
    return f"{'-' if value < 0 else ''}{_scaled(abs(value), steps)}"


def _scaled(value: float, steps: tuple[tuple[str, int], ...]) -> str:
    """The value in the largest unit in which it is at least 1 once rounded: 999.9 µs is 1 ms."""
    if value == 0:
        return "0"
    unit, factor = next(((u, f) for u, f in reversed(steps) if _significant(value / f) >= 1), steps[0])
    return f"{number(_significant(value / factor))} {unit}"


def _significant(value: float) -> float:
    return float(f"{value:.3g}") if value < 1000 else float(round(value))


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


_WRITTEN: dict[str | None, Callable[[float], str]] = {
    "ns": duration,
    "us": lambda value: duration(value * 1_000),
    "µs": lambda value: duration(value * 1_000),
    "ms": lambda value: duration(value * 1_000_000),
    "s": lambda value: duration(value * _SECOND_NS),
    "ns/s": lambda value: f"{duration(value)}/s",
    "bytes": size,
    "bytes/s": rate,
    "ratio": percent,
    "count": count,
    "FLOP": lambda value: _prefixed(value, _decimal("FLOP")),
    "FLOP/s": lambda value: _prefixed(value, _decimal("FLOP/s")),
}


def sum_of(series: pl.Series) -> int:
    """Sum of a series of whole numbers, 0 if it has none."""
    return int(series.sum())


def counted(n: float, noun: str, plural: str = "") -> str:
    """'1 kernel', '1,212 kernels', '2.5 kernels'."""
    n = round(n) if n >= 10 or abs(n - round(n)) < 0.05 else round(n, 1)
    return f"{count(n)} {noun if n == 1 else plural or noun + 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """'0–7', '3', '0–3, 6': whole numbers in ascending order, with at most four runs spelt out."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = [str(a) if a == b else f"{a}–{b}" for a, b in runs]
    return ", ".join(text) if len(text) <= 4 else f"{runs[0][0]} … {runs[-1][1]}"


def shares(parts: Sequence[tuple[str, float]], *, at_least: float = 0.05, most: int = 3) -> str:
    """'aten::mm 62 %, aten::addmm 30 %': the largest parts of a whole; only the first if it is nearly all."""
    if parts and parts[0][1] > 0.95:
        return parts[0][0]
    return ", ".join(f"{name} {percent(ratio)}" for name, ratio in parts[:most] if ratio >= at_least)
