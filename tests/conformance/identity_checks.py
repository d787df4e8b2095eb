"""Whether the numbers of a screen close: parts sum to the whole that is named with them, shares have a whole.

Each check returns a list of sentences, one for each number that does not close; an empty list is good.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl
from surface_checks import WIDTHS

import stepscope
from stepscope.core import units
from stepscope.renderers import Screen, find

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.core.report import Report

#: Ratios that are no part of a whole, so they may exceed 1: the step by the median step, threads that add up.
NO_PARTS = {"of_median_ratio", "beta_ratio", "recorded_beta", "threshold_ratio", "value_ratio", "running_ratio"}
#: Times that may be negative: differences and moments.
SIGNED = {"late_ns", "offset_ns", "ts_ns", "delta_ns", "growth_ns", "peak_ts_ns", "start_ns", "end_ns"}


@dataclass(frozen=True)
class Identity:
    """Two expressions of one table that are equal in every row, up to `ratio` of the right one and `extra`."""

    table: str
    left: pl.Expr
    right: pl.Expr
    options: Mapping[str, Any] = field(default_factory=dict)
    ratio: float = 1e-9
    extra: float = 1.0
    at_most: bool = False  # the left one may be less

    def failures(self, frame: pl.DataFrame) -> list[str]:
        """What the table says instead, for the first row that breaks the identity."""
        pair = frame.select(left=self.left.cast(pl.Float64), right=self.right.cast(pl.Float64)).drop_nulls()
        apart = pl.col("left") - pl.col("right")
        wrong = pair.filter((apart if self.at_most else apart.abs()) > self.ratio * pl.col("right").abs() + self.extra)
        if wrong.is_empty():
            return []
        sign = "≤" if self.at_most else "="
        first = wrong.row(0)
        return [
            f"{self.table} {dict(self.options)}: {self.left} {sign} {self.right} fails in {wrong.height} rows: {first}"
        ]


def _c(*names: str) -> pl.Expr:
    """The sum of columns, null if one of them is."""
    return pl.sum_horizontal((pl.col(name) for name in names), ignore_nulls=False)


_DEVICE_PARTS = ("computation_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
_HOST_PARTS = ("dataloader_ns", "operator_ns", "other_host_ns")
#: Without a device, collectives on the host are a part of the host's time.
_APART = pl.when(pl.col("computation_ns").is_null()).then(pl.col("exposed_communication_ns").fill_null(0)).otherwise(0)
_BREAKDOWN = (
    "kernel_ns", "memcpy_ns", "memset_ns", "communication_ns", "runtime_ns", "dataloader_ns", "cpu_exec_ns", "other_ns",
)  # fmt: skip


def _of_one_table() -> list[Identity]:
    timelines: list[Mapping[str, Any]] = [{"by": by} for by in ("rank", "device", "stream", "step", "time")]
    rows = [
        Identity("steps", _c(*_DEVICE_PARTS), pl.col("window_ns")),
        Identity("steps", pl.col("busy_ratio"), 1 - pl.col("idle_ns") / pl.col("window_ns"), extra=1e-9),
        Identity("steps", _c(*_HOST_PARTS) + _APART, pl.col("host_window_ns")),
        Identity("step-breakdown", _c(*_BREAKDOWN), pl.col("total_ns"), {"by": "step"}),
        Identity("step-breakdown", pl.col("share_ratio").sum(), pl.lit(1.0), {"by": "part"}, extra=1e-9),
        *(Identity("timeline", _c(*_DEVICE_PARTS), pl.col("total_ns"), options) for options in timelines),
        *(Identity("timeline", _c(*_DEVICE_PARTS[:3]), pl.col("busy_ns"), options) for options in timelines),
        Identity("timeline", pl.col("exposed_communication_ns"), pl.col("communication_ns"), at_most=True),
        Identity("timeline", pl.col("exposed_memcpy_ns"), pl.col("memcpy_ns"), at_most=True),
        Identity("overlap", _c("overlapped_ns", "exposed_ns"), pl.col("communication_ns")),
        Identity("communication", _c("hidden_ns", "exposed_ns"), pl.col("merged_ns")),
        Identity("communication", pl.col("merged_ns"), pl.col("total_ns"), at_most=True),
        Identity("kernels", pl.col("mean_ns") * pl.col("calls"), pl.col("total_ns"), extra=2.0),
        Identity("kernels", pl.col("share_ratio"), pl.col("total_ns") / pl.col("total_ns").sum(), extra=1e-9),
        Identity("kernel-classes", pl.col("share_ratio").sum(), pl.lit(1.0), extra=1e-9),
        Identity("kernel-mix", pl.col("share_ratio").sum(), pl.lit(1.0), extra=1e-9),
        Identity("transfers", pl.col("share_ratio").sum(), pl.lit(1.0), extra=1e-9),
        Identity("idle", pl.col("total_ns") / pl.col("n_gaps"), pl.col("mean_ns")),
        Identity("launches", pl.col("host_mean_ns") * pl.col("calls"), pl.col("host_total_ns"), extra=2.0),
        Identity("operators", pl.col("host_self_ns"), pl.col("host_total_ns"), at_most=True),
        Identity("operators", pl.col("device_self_ns"), pl.col("device_total_ns"), at_most=True),
        Identity("operators", pl.col("share_ratio").sum(), pl.lit(1.0), at_most=True, extra=1e-9),
        Identity("modules", pl.col("device_self_ns"), pl.col("device_total_ns"), at_most=True),
        Identity("user-ranges", pl.col("mean_ns") * pl.col("count"), pl.col("total_ns"), extra=2.0),
        Identity("critical-path", pl.col("on_path_ns").sum().over("step", "rank"), pl.col("step_dur_ns")),
        Identity("scheduling", _c("oncpu_ns", "runq_ns", "asleep_ns"), pl.col("seen_ns")),
    ]
    ordered = {"kernels": ("min_ns", "p50_ns", "p95_ns", "max_ns"), "idle": ("p50_ns", "max_ns")}
    for table, columns in ordered.items():
        rows += [Identity(table, pl.col(a), pl.col(b), at_most=True) for a, b in pairwise(columns)]
    return rows


IDENTITIES = _of_one_table()


@dataclass(frozen=True)
class Total:
    """A number that a table has in all: an expression that gives one value."""

    table: str
    expression: pl.Expr
    options: Mapping[str, Any] = field(default_factory=dict)

    def value(self, asked: Asked) -> float | None:
        """The number, None if the trace or the table lacks it."""
        frame = asked(self.table, self.options)
        if frame is None or frame.is_empty() or not set(self.expression.meta.root_names()) <= set(frame.columns):
            return None
        return frame.select(self.expression).item()

    def __str__(self) -> str:
        return f"{self.expression} of {self.table} {dict(self.options)}"


def _sum(table: str, column: str, **options: Any) -> Total:
    return Total(table, pl.col(column).sum(), options)


_COMMUNICATES = Total("kernels", pl.col("total_ns").filter(pl.col("communication").fill_null(value=False)).sum())
_COLLECTIVES = Total("kernel-classes", pl.col("total_ns").filter(pl.col("kernel_class") == "collective").sum())

_BETWEEN_WORK = Total("idle", pl.col("dur_ns").filter(pl.col("before").is_not_null()).sum(), {"by": "gap"})

#: Totals that two tables share. The third says that the first one may be less.
TOTALS: tuple[tuple[Total, Total, bool], ...] = (
    (_sum("kernels", "total_ns"), _sum("kernel-classes", "total_ns"), False),
    (_sum("kernels", "total_ns"), _sum("kernel-mix", "total_ns"), False),
    (_sum("kernels", "total_ns"), _sum("kernels", "total_ns", by="stream"), False),
    (_sum("kernels", "calls"), _sum("kernel-classes", "calls"), False),
    (_sum("kernels", "calls"), _sum("kernel-mix", "calls"), False),
    (_COMMUNICATES, _COLLECTIVES, False),
    (_COMMUNICATES, _sum("overlap", "communication_ns", by="name"), False),
    *(
        (_sum("overlap", mine, by="device"), _sum("timeline", theirs, by="device"), False)
        for mine, theirs in (
            ("communication_ns", "communication_ns"),
            ("exposed_ns", "exposed_communication_ns"),
            ("computation_ns", "computation_ns"),
        )
    ),
    # The time before a device's first piece of work in a step is a gap, which the timeline of the device does not have.
    (_BETWEEN_WORK, _sum("timeline", "idle_ns", by="device"), True),
    (_sum("idle", "dur_ns", by="gap"), _sum("idle", "total_ns"), False),
    *((_sum("steps", part), _sum("timeline", part, by="step"), False) for part in _DEVICE_PARTS),
)


class Asked:
    """The tables of a trace, each asked once; None where the trace lacks the data."""

    def __init__(self, trace: stepscope.Trace) -> None:
        self._trace = trace
        self._frames: dict[str, pl.DataFrame | None] = {}

    def __call__(self, table: str, options: Mapping[str, Any]) -> pl.DataFrame | None:
        key = f"{table} {sorted(options.items())}"
        if key not in self._frames:
            try:
                self._frames[key] = self._trace.show(table, **options)
            except stepscope.StepscopeError:
                self._frames[key] = None
        return self._frames[key]


def tables(trace: stepscope.Trace) -> list[str]:
    """Identities within each table, and sums that two tables share."""
    asked = Asked(trace)
    wrong = []
    for identity in IDENTITIES:
        frame = asked(identity.table, identity.options)
        if frame is not None and not frame.is_empty():
            columns = set(identity.left.meta.root_names()) | set(identity.right.meta.root_names())
            if columns <= set(frame.columns):
                wrong += identity.failures(frame)
    for left, right, at_most in TOTALS:
        mine, theirs = left.value(asked), right.value(asked)
        if mine is not None and theirs is not None:
            apart = mine - theirs
            if (apart if at_most else abs(apart)) > 1 + 1e-9 * abs(theirs):
                wrong.append(f"{left} is {mine}, {right} is {theirs}")
    for name in {identity.table for identity in IDENTITIES}:
        frame = asked(name, {})
        if frame is not None:
            wrong += _ranges(name, frame)
    return wrong


def _ranges(name: str, frame: pl.DataFrame) -> Iterable[str]:
    """Ratios between 0 and 1, times not negative."""
    for column, dtype in frame.schema.items():
        if not dtype.is_numeric() or column in NO_PARTS | SIGNED:
            continue
        low, high = frame[column].min(), frame[column].max()
        if low is None or high is None:
            continue
        if column.endswith("_ratio") and not (low >= -1e-9 and high <= 1 + 1e-9):
            yield f"{name}.{column} runs from {low} to {high}"
        if column.endswith("_ns") and low < 0:
            yield f"{name}.{column} is negative: {low}"


def report(report: Report) -> list[str]:
    """Parts, findings, notes and tables of a report, and every percentage in its text at every width."""
    return [*_bars(report), *_findings(report), *_blocks(report), *_percentages(report)]


def comparison(report: Report) -> list[str]:
    """Parts and percentages of a comparison. Each bar is of its own run; parts under 0.1 % are not drawn."""
    return [*_bars(report, drawn=0.99), *_percentages(report)]


def _bars(report: Report, drawn: float = 1 - 1e-6) -> list[str]:
    wrong = []
    for bar in report.bars:
        parts = {part.name: part.ratio for part in bar.parts}
        whole = sum(parts.values())
        if len(parts) != len(bar.parts):
            wrong.append(f"{bar.label} names a part twice")
        if any(not 0 < ratio <= 1 + 1e-9 for ratio in parts.values()):
            wrong.append(f"{bar.label} has parts {parts}")
        closes = {"idle", "Python and other", "python and other"} & set(parts)
        if whole > 1 + 1e-6 or (closes and whole < drawn):
            wrong.append(f"the parts of {bar.label} sum to {whole:.6f}: {parts}")
        for note in bar.notes:
            idle = re.search(r"host during the .* idle: (.*)", note.text)
            shares = [float(n) / 100 for n in re.findall(r"([\d.]+) %", idle.group(1))] if idle else []
            if shares and sum(shares) > parts.get("idle", 0.0) + 0.01 * len(shares):
                wrong.append(f"{note.text!r}, but the bar is idle for {parts.get('idle', 0.0):.4f}")
    return wrong


def _findings(report: Report) -> list[str]:
    wrong = [f"{f.title!r} is {f.share_ratio:.4f} of the whole" for f in report.findings if (f.share_ratio or 0) > 1]
    wholes = {
        round(f.value_ns / f.share_ratio)
        for f in report.findings
        if f.value_ns and f.share_ratio and f.share_ratio > 0 and f.value_label in ("per step", "in all")
    }
    if wholes and max(wholes) > 1.001 * min(wholes) + 2:
        wrong.append(f"findings are shares of different wholes: {sorted(wholes)} ns")
    return wrong


def _blocks(report: Report) -> list[str]:
    return [
        f"the shares in {block.title} sum to {block.frame['share_ratio'].sum():.4f}"
        for block in report.tables
        if "share_ratio" in block.frame.columns and (block.frame["share_ratio"].sum() or 0) > 1 + 1e-6
    ] + [text for block in report.tables for text in _ranges(block.title, block.frame)]


#: A share above 100 % is a growth, and a word says so.
_GROWTH = re.compile(
    r"longer|slower|faster|more|higher|larger|grew|of the median|±|\+|to do|busier|of a core|would have|shown|cycles ·"
)


#: What a comparison says of parts that changed by more than the whole did.
_SAID = "above 100 % because other parts changed the other way"


def _percentages(report: Report) -> list[str]:
    wrong = []
    render = find("terminal").report
    assert render is not None
    for width in WIDTHS:
        text = render(report, Screen(width=width))
        for line in text.splitlines():
            over = [n for n in re.findall(r"([\d,]+(?:\.\d+)?) %", line) if float(n.replace(",", "")) > 100]
            if over and not _GROWTH.search(line) and _SAID not in text:
                wrong.append(f"at {width} columns: {over[0]} % in {line.strip()!r}")
    return wrong


def lengths(report: Report) -> list[str]:
    """Findings are shares of the length that the bar names."""
    step = next((bar for bar in report.bars if bar.label in ("Step", "Device", "Recording")), None)
    if step is None:
        return []
    written = step.value.split(" ±")[0]
    wholes = {f.value_ns / f.share_ratio for f in report.findings if f.value_ns and f.share_ratio}
    return [
        f"the bar is {written}, but a finding is a share of {units.duration(whole)}"
        for whole in wholes
        if not written.startswith(units.duration(whole))
    ]
