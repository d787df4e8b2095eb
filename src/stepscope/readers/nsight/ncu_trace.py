"""Kernel launches of Nsight Compute as a Trace without a clock; and printed metrics as numbers in base units.

Units become ns, hz, byte, cycle: old versions write nsecond, usecond, Gbyte/second, cycle/nsecond, newer ones ns, us,
Gbyte/s, Ghz. CSV has base units by default, text has scaled ones; `--print-units` reverses both.

Numbers are in the locale of the profiled machine: `376,704.5`, `376704.5`, or `376.704,5`. A single `117.344` may mean
either, a thousand times apart. So one notation is chosen for a whole report, from all of its values; if they
contradict each other, the reader raises. Metrics of a launch that share a label get different names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.core import counter_roles as roles
from stepscope.core.errors import CorruptInput
from stepscope.core.names import map_names
from stepscope.core.patterns import regex
from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, SPANS, TRACKS
from stepscope.core.table import Name
from stepscope.core.trace import Meta, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.common.source import IssueLog, Source


_SIGN, _EXPONENT = r"^[-+]?", r"(?:[eE][-+]?\d+)?$"
#: What only a number whose fraction begins at D, with groups set apart by G, looks like: a fraction behind groups, two
#: groups or more, a fraction not of three digits, or one behind a zero or more digits than a group has.
_CERTAIN = r"(?:\d{1,3}(?:G\d{3})+D\d+|\d{1,3}(?:G\d{3}){2,}|\d+D(?:\d{1,2}|\d{4,})|(?:0\d*|\d{4,})D\d+)" + _EXPONENT
_GROUPED = r"\d{1,3}(?:G\d{3})+(?:D\d*)?" + _EXPONENT
_OPEN = r"\d{1,3}D\d{3}$"
_SAMPLE = 1000
_SPACES = r"(\d)[ '\u2019\u00a0\u202f](\d)"
#: What ncu prints for a value that is not known.
UNKNOWN_VALUES = ("", "n/a", "na", "nan", "-nan", "inf", "-inf", "(!) n/a", "(!) nan")
_TIME = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
_PREFIX = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALED = regex(r"([KMGTP])([a-z]{2,})$")
#: What a reader hands over for each report: a row per metric of a launch, as printed. `section` may be null.
PRINTED = {"launch": pl.UInt32(), "section": Name, "metric": Name, "unit": Name, "value": pl.String()}
#: The same as numbers; and metrics that are words.
MEASURED = {"launch": pl.UInt32(), "metric": Name, "unit": Name, "value": pl.Float64()}
TEXTS = {"launch": pl.UInt32(), "metric": Name, "text": pl.String()}
_AMBIGUOUS = r"^[-+]?\d{1,3}[.,]\d{3}$"
#: A list of unit numbers (`0,1`), which looks like a number with a fraction.
_LISTS = ("launch__tpc_enabled", "Enabled TPC IDs")
#: The product, which `devices` takes; other words have no place in a table of numbers.
DEVICE_NAME = "device__attribute_display_name"
#: What a reader hands over for each launch, as printed: null where it does not say.
LAUNCHES = (
    "name", "pid", "process", "host", "context", "stream", "device", "cc", "block", "grid",
)  # fmt: skip
_AXES = "xyz"
#: Facts of a launch among its metrics: the counter's own name, then its label on the details page.
_SM_COUNT = ("launch__sm_count", "device__attribute_multiprocessor_count", "# SMs")
_REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
_STATIC = ("launch__shared_mem_per_block_static", "Static Shared Memory Per Block")
_DYNAMIC = ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block")
_MEMORY = ("device__attribute_total_memory",)
_NO_DURATION = "launches have no duration; ask ncu for it: --metrics gpu__time_duration.sum,…"


class Notation(msgspec.Struct, frozen=True):
    """Which sign a fraction begins with, `.` or `,`; whether the values show it or it is assumed.

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

    Where no value is conclusive: percentages do not reach the thousands; then a sign before three digits sets a
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


def numbers(values: pl.Series, written: Notation) -> pl.Series:
    """The values as doubles; null for nan, inf and anything that is not a number in that notation."""
    text = values
    if text.str.contains(_SPACES).any():
        # Twice, as groups of one digit share neighbours.
        text = text.str.replace_all(_SPACES, "${1}${2}").str.replace_all(_SPACES, "${1}${2}")
    has_group = text.str.contains(written.group, literal=True)
    if has_group.any():
        grouped = text.str.contains(_pattern(_GROUPED, written.decimal))
        text = text.set(has_group & ~grouped, None).str.replace_all(written.group, "", literal=True)
    if written.decimal == ",":
        text = text.str.replace(",", ".", literal=True)
    number = text.cast(pl.Float64, strict=False)
    return number.set(~number.is_finite(), None)


def is_unknown(values: pl.Series) -> pl.Series:
    """Whether a text says that the value is not known."""
    return values.str.to_lowercase().is_in(list(UNKNOWN_VALUES)).fill_null(value=True)


def _first_like(values: pl.Series, pattern: str) -> str | None:
    """The first value that a pattern matches: most often it is among the first."""
    for part in (values.head(_SAMPLE), values[_SAMPLE:]):
        matches = part.filter(part.str.contains(pattern).fill_null(value=False))
        if len(matches):
            return str(matches[0])
    return None


def _pattern(shape: str, decimal: str) -> str:
    group = "," if decimal == "." else "."
    return _SIGN + re.sub("[DG]", lambda sign: re.escape(decimal if sign.group() == "D" else group), shape)


def base_unit(unit: str) -> tuple[str, float]:
    """The base unit, and the factor from `unit` to it. Unknown units stay.

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


def measured(reports: Sequence[pl.DataFrame], path: str, issues: IssueLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Metrics as numbers (columns MEASURED) and those that are words (WORDS) of all reports of a file.

    What is not available is null. Raises CorruptInput if a report writes numbers in two ways.
    """
    parts = [_one_report(report, path, issues) for report in reports]
    if not parts:
        return pl.DataFrame(schema=MEASURED), pl.DataFrame(schema=TEXTS)
    values, texts = pl.concat([v for v, _ in parts]), pl.concat([w for _, w in parts])
    text_metrics = texts.filter(texts["metric"] != DEVICE_NAME)["metric"]
    if len(text_metrics):
        what = f"metrics whose values are words, as {text_metrics[0]}, are left out"
        issues.add("metrics_in_words", "info", text_metrics.n_unique(), what)
    return values, texts


def _one_report(report: pl.DataFrame, path: str, issues: IssueLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    report = _with_distinct_names(report)
    text, unit = report["value"], report["unit"]
    has_unit = (unit != "").fill_null(value=False)
    tells = has_unit if has_unit.any() else ~report["metric"].is_in(list(_LISTS))
    is_percent = (unit == "%").fill_null(value=False)
    written = notation(text, is_percent) if tells.all() else notation(text.filter(tells), is_percent.filter(tells))
    if written.against is not None:
        one, other = written.against
        msg = f"its numbers have two notations: {one} and {other}"
        raise CorruptInput(msg, "profile again in one locale, as in LC_ALL=C ncu …", path=path)
    if written.assumed:
        example = text.filter(text.str.contains(_AMBIGUOUS).fill_null(value=False))[0]
        what = f"{example} is ambiguous: it is assumed that fractions begin with {written.decimal!r}"
        issues.add("number_notation_assumed", "warning", 1, what)
    value = numbers(text, written)
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


def _with_distinct_names(report: pl.DataFrame) -> pl.DataFrame:
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


def build(
    source: Source, kind: str, launches: pl.DataFrame, metrics: pl.DataFrame, texts: pl.DataFrame, issues: IssueLog
) -> Trace:
    """The trace of all launches (columns LAUNCHES as text, a row each) and their metrics (`launch` is the row).

    Durations are those of `gpu__time_duration`, in ns; `metrics` and `texts` are those of `measured`.
    """
    metrics = metrics.rename({"launch": "span_id"})
    if not metrics["span_id"].is_sorted():
        metrics = metrics.sort("span_id", maintain_order=True)
    n = launches.height
    facts = _Facts(metrics, n)
    duration = _aligned(roles.measured(metrics, "duration"), n).round().clip(0, 2**61).cast(pl.Int64)
    issues.add("no_duration", "warning", duration.null_count(), _NO_DURATION)
    sm_count = facts.of(_SM_COUNT)
    device_id, devices = _devices(launches, sm_count, facts, texts)
    tracks = launches.select("host", "pid", "process", "context", "stream", device_id=device_id)
    track_id, distinct = _numbered(tracks)
    spans = pl.DataFrame({
        "span_id": pl.int_range(n, dtype=pl.UInt32, eager=True),
        "track_id": track_id,
        "dur_ns": duration,
        "name": launches["name"].cast(Name),
    }).with_columns(pl.lit("kernel").alias("category"))  # fmt: skip
    tables = {
        "devices": devices,
        "tracks": _tracks(distinct),
        "spans": SPANS.conform(spans),
        "kernels": _kernels(launches, metrics, facts, sm_count),
        "kernel_metrics": KERNEL_METRICS.conform(metrics),
        "issues": issues.table(),
    }
    meta = Meta(source.label, kind, n_events=n, size_bytes=source.n_bytes, host=_only(launches["host"]))
    return Trace(meta, {name: frame for name, frame in tables.items() if not frame.is_empty()})


def _aligned(values: pl.DataFrame, n: int) -> pl.Series:
    """Values by launch, a row for each of n launches."""
    frame = pl.DataFrame({"span_id": pl.int_range(n, dtype=pl.UInt32, eager=True)})
    return frame.join(values, on="span_id", how="left", maintain_order="left")["value"]


class _Facts:
    """What launches say of themselves among their metrics."""

    def __init__(self, metrics: pl.DataFrame, n: int) -> None:
        self._metrics, self._n = metrics, n
        self._present = set(metrics["metric"].unique().cast(pl.String))

    def of(self, names: Sequence[str]) -> pl.Series:
        """The value of the first of these metrics that a launch has, in order of launch."""
        present = [name for name in names if name in self._present]
        if not present:
            return pl.repeat(None, self._n, dtype=pl.Float64, eager=True)
        rows = self._metrics.filter(pl.col("metric").is_in(present) & pl.col("value").is_not_null())
        rank = pl.col("metric").cast(pl.String).replace_strict(present, range(len(present)), return_dtype=pl.Int32)
        best = rows.select("span_id", "value", rank=rank).sort("span_id", "rank")
        return _aligned(best.group_by("span_id", maintain_order=True).agg(pl.col("value").first()), self._n)


def _numbered(frame: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """For each row the number of its like among the distinct rows, which come in order of first use."""
    distinct = frame.unique(maintain_order=True)
    if distinct.height == 1:
        return pl.repeat(0, frame.height, dtype=pl.UInt32, eager=True), distinct
    keyed = distinct.with_row_index("number")
    rows = frame.join(keyed, on=frame.columns, how="left", nulls_equal=True, maintain_order="left")
    return rows["number"], distinct


def _devices(
    launches: pl.DataFrame, sm_count: pl.Series, facts: _Facts, texts: pl.DataFrame
) -> tuple[pl.Series, pl.DataFrame]:
    """For each launch its device_id, and the `devices` table."""
    number, distinct = _numbered(launches.select("host", "device", "cc"))
    names = texts.filter(texts["metric"] == DEVICE_NAME).select(span_id="launch", value="text").unique("span_id")
    described = pl.DataFrame({
        "number": number,
        "name": _aligned(names, launches.height).cast(pl.String),
        "sm_count": sm_count,
        "memory_bytes": facts.of(_MEMORY),
    }).group_by("number").agg(pl.all().drop_nulls().first())  # fmt: skip
    devices = distinct.with_row_index("number").join(described, on="number", how="left", maintain_order="left")
    devices = devices.select(
        "name", "sm_count", "memory_bytes", device_id="number", type=pl.lit("cuda"),
        index=_whole(pl.col("device")), compute_capability="cc",
    )  # fmt: skip
    return number, DEVICES.conform(devices)


def _tracks(distinct: pl.DataFrame) -> pl.DataFrame:
    frame = distinct.with_row_index("track_id").with_columns(
        _whole(pl.col("pid")),
        _whole(pl.col("stream")),
        pl.col("process").cast(pl.String).replace("", None),
        pl.col("host").cast(pl.String).replace("", None),
        kind=pl.lit("stream"),
        label=pl.format("context {}", pl.col("context").cast(pl.String)),
    )
    return TRACKS.conform(frame)


def _kernels(launches: pl.DataFrame, metrics: pl.DataFrame, facts: _Facts, sm_count: pl.Series) -> pl.DataFrame:
    n = launches.height
    grid, block = (_axes(launches[what], what, facts) for what in ("grid", "block"))
    threads = block[0] * block[1] * block[2]
    blocks = grid[0].cast(pl.Float64) * grid[1] * grid[2]
    shared = facts.of(_STATIC) + facts.of(_DYNAMIC)
    frame = pl.DataFrame({
        "span_id": pl.int_range(n, dtype=pl.UInt32, eager=True),
        **{f"grid_{a}": s for a, s in zip(_AXES, grid, strict=True)},
        **{f"block_{a}": s for a, s in zip(_AXES, block, strict=True)},
        "registers": facts.of(_REGISTERS),
        "shared_bytes": shared,
        "blocks_per_sm": blocks / sm_count,
        "warps_per_sm": blocks * (threads / 32).ceil() / sm_count,
        "est_occupancy_ratio": _aligned(roles.measured(metrics, "occupancy"), n),
    })  # fmt: skip
    return KERNELS.conform(frame)


def _axes(dims: pl.Series, what: str, facts: _Facts) -> list[pl.Series]:
    """The three sizes in `(128, 1, 1)`, or else those among the metrics."""
    distinct = dims.unique().drop_nulls()
    parts = distinct.cast(pl.String).str.strip_chars("() ").str.split(", ")
    axes = []
    for i, axis in enumerate(_AXES):
        sizes = parts.list.get(i, null_on_oob=True).to_frame("text").select(_whole(pl.col("text"))).to_series()
        known = dims.replace_strict(distinct, sizes, return_dtype=pl.Int64) if len(distinct) else None
        if known is None or known.null_count() == len(dims):
            known = facts.of((f"launch__{what}_dim_{axis}",)).cast(pl.Int64, strict=False)
        axes.append(known)
    return axes


def _whole(column: pl.Expr) -> pl.Expr:
    """A text as a whole number, without separators of groups; null if it is none."""
    return column.cast(pl.String).str.replace_all(r"\D", "").cast(pl.Int64, strict=False)


def _only(values: pl.Series) -> str | None:
    """The value that all rows share."""
    distinct = values.cast(pl.String).unique()
    return distinct[0] or None if len(distinct) == 1 else None
