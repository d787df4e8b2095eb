"""The published report of a pair of processes, as markdown, and its table as CSV.

The layout and the words are the published tool's. Rows with the same score are in order of their names; in the
published tool their order depends on the machine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.exports.latencyprism._comparison import COMPARED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Cell = str | int | float


#: A finding needs a higher score than this.
SIGNIFICANT_SCORE = 10
_MOST_FINDINGS, _MOST_METRICS = 3, 3
_LEAST_CHANGE = 1e-6
_LEVEL = 0.05
_ABSENT = "-"
#: How the numbers of each column of the detail table are written, after the three keys.
_FORMATS = (
    ".4f", ".2f", ".2f", "+.2f", "+.2f", ".3f", ".3f", ",.2f", ",.2f", "+.2f", "+.2f", "+.2f", ".3f", ".3f",
)  # fmt: skip

#: The sentences of the published report.
SUMMARY = "## 1. High-Level Performance Summary"
DURATIONS = "## 2. Cycle Duration Distribution Comparison"
CORE = "## 3. In-depth Core Metric Comparison"
OVERVIEW = "### Overview"
FINDINGS = "### Key Findings:"
DETAILS = "### Detailed comparison table"

DRIVEN_BY = (
    "The primary performance difference between `{}` and `{}` appears to be driven by changes in **`{}`**. The "
    "analysis indicates a notable {} in its contribution to total cycle time."
)
NO_DIFFERENCE = "No significant performance difference between `{}` and `{}` (Suspicion Score > {})."
FINDING = "- **`{}` on device `{}`:**"
CONTRIBUTION = "  - Its contribution to total cycle time (β) **{}** from **{:.2f}%** to **{:.2f}%** ({:+.2f} ppt), {}."
SIGNIFICANT = "which is statistically significant (p-value: {:.3f})"
NOT_SIGNIFICANT = "though this change may not be statistically significant (p-value: {:.3f})"
CORRELATES = "  - This change in cycle time contribution correlates with changes in the following resource metrics (μ):"
METRIC = "    - **`{}`**: {} from {:,.2f} to {:,.2f}."
OVER_ALL = (
    "*Note: A β value greater than 100% suggests that the function was called multiple times within a single analysis "
    "cycle, and the value represents the sum of its time contributions.*"
)
RECOMMENDATION = (
    "**Recommendation:** Focus investigation on the functions listed above, starting with the one with the highest "
    "**Suspicion Score**. Examine the interplay between its relative execution time (β) and the associated resource "
    "usage (μ) changes to understand the root cause."
)
TABLE_IS = (
    "This table aggregates the performance of each (function, metric, device) triplet across both runs, sorted by "
    "**Suspicion Score** in descending order."
)
LEGEND = """\
## 5. Legend
- **β (Beta)**: The percentage of total cycle time consumed by this function.
- **μ (Mu)**: The average utilization or counter value of an associated resource during the function's execution.
- **Device**: The device associated with the metric (e.g., GPU ID, CPU core).
- **Z-Score(β/log_μ)**: A measure of the statistical significance of a change. A higher absolute value indicates a \
more unusual change.
- **p-value/U-test p**: The p-value from a statistical test. Lower values (e.g., < 0.05) suggest the difference is \
statistically significant.
- **Suspicion Score**: A composite score `|Δβ| * (|Z-Score(β)| + |Z-Score(log_μ)|)` to rank potential issues. **Focus \
on items with the highest score first.**
"""


def headings(labels: tuple[str, str]) -> list[str]:
    """The published names of the columns of COMPARED, in order."""
    first, second = labels
    return [
        "Function Name", "Metric Name", "Device", "Suspicion Score",
        f"β_{first}(%)", f"β_{second}(%)", "Δβ(%)", "Z-Score(β)", "p-value(β)", "U-test p(β)",
        f"μ_{first}", f"μ_{second}", "Δμ", "Z-Score(μ)", "Z-Score(log_μ)", "p-value(μ)", "U-test p(μ)",
    ]  # fmt: skip


def csv_text(compared: pl.DataFrame, labels: tuple[str, str]) -> str:
    """The comparison as the published CSV: six decimals, what is not a number empty."""
    named = compared.rename(dict(zip(COMPARED.dtypes, headings(labels), strict=True)))
    return named.fill_nan(None).write_csv(float_precision=6)


def report_text(
    title: str, labels: tuple[str, str], durations: tuple[Sequence[float], Sequence[float]], compared: pl.DataFrame
) -> str:
    """The report of a comparison, from the durations of both groups' cycles in µs and the frame COMPARED."""
    *paragraphs, last = conclusion(compared, labels)
    parts = [
        title,
        SUMMARY,
        summary_table(labels, durations),
        DURATIONS,
        durations_table(labels, durations),
        CORE,
        *paragraphs,
        f"{last}\n{DETAILS}\n{TABLE_IS}",
        details_table(compared, labels),
        LEGEND,
    ]
    return "\n\n".join(parts) + "\n"


def summary_table(labels: tuple[str, str], durations: tuple[Sequence[float], Sequence[float]]) -> str:
    """Section 1: how many cycles, and their mean duration in µs."""
    (n_1, n_2), (mean_1, mean_2) = map(len, durations), (float(np.mean(group)) for group in durations)
    change = (mean_2 - mean_1) / mean_1 * 100 if mean_1 else math.inf
    rows = [
        ["Total Cycles", str(n_1), str(n_2), str(n_2 - n_1), _ABSENT],
        ["Avg Cycle Time (us)", f"{mean_1:,.2f}", f"{mean_2:,.2f}", f"{mean_2 - mean_1:,.2f}", f"{change:+.2f}%"],
    ]
    return pipe_table(["Metric", *labels, f"Δ ({labels[1]} - {labels[0]})", "Change (%)"], rows)


def durations_table(labels: tuple[str, str], durations: tuple[Sequence[float], Sequence[float]]) -> str:
    """Section 2: the cycles of both groups side by side, the longest first. Units: µs."""
    first, second = (sorted(group, reverse=True) for group in durations)
    rows: list[list[Cell]] = []
    for i in range(max(len(first), len(second))):
        rows.append([i + 1, *(group[i] if i < len(group) else _ABSENT for group in (first, second)), _ABSENT, _ABSENT])
        if i < min(len(first), len(second)):
            delta = second[i] - first[i]
            change = delta / first[i] * 100 if first[i] else math.inf
            rows[-1][3:] = [f"{delta:,.2f}", f"{change:+.2f}%"]
    return pipe_table(["Time Rank", *(f"{label} Time (us)" for label in labels), "Δ (us)", "Δ (%)"], rows, ",.2f")


def details_table(compared: pl.DataFrame, labels: tuple[str, str]) -> str:
    """The whole comparison, with the digits of the published report."""
    columns = [compared[name].to_list() for name in COMPARED.dtypes]
    texts = [[format(value, how) for value in column] for column, how in zip(columns[3:], _FORMATS, strict=True)]
    rows = list(zip(*columns[:3], *texts, strict=True))
    return pipe_table(headings(labels), rows)


def conclusion(compared: pl.DataFrame, labels: tuple[str, str]) -> list[str]:
    """Overview, key findings and recommendation, as paragraphs."""
    suspicious = compared.filter(pl.col("score") > SIGNIFICANT_SCORE)
    if suspicious.is_empty():
        return [OVERVIEW, NO_DIFFERENCE.format(*labels, SIGNIFICANT_SCORE)]
    heads = suspicious.unique(["function", "device"], keep="first", maintain_order=True).head(_MOST_FINDINGS)
    findings = heads.to_dicts()
    direction = "increase" if findings[0]["beta_delta"] > 0 else "decrease"
    lines = [FINDINGS]
    for head in findings:
        lines += _finding(head, suspicious)
    over = any(max(head["beta_1"], head["beta_2"]) > 100 for head in findings)
    return [
        OVERVIEW,
        DRIVEN_BY.format(*labels, findings[0]["function"], direction),
        "\n".join(lines),
        *([OVER_ALL] if over else []),
        RECOMMENDATION,
    ]


def _finding(head: dict[str, Any], suspicious: pl.DataFrame) -> list[str]:
    """A function on a device: its share of the cycle, and the resources that changed with it."""
    sure = SIGNIFICANT if head["beta_p"] < _LEVEL else NOT_SIGNIFICANT
    numbers = (head["beta_1"], head["beta_2"], head["beta_delta"], sure.format(head["beta_p"]))
    lines = [
        FINDING.format(head["function"], head["device"]),
        CONTRIBUTION.format(_went(head["beta_delta"]), *numbers),
    ]
    same = (pl.col("function") == head["function"]) & (pl.col("device") == head["device"])
    metrics = suspicious.filter(same & (pl.col("mu_delta").abs() > _LEAST_CHANGE)).head(_MOST_METRICS)
    if metrics.height:
        lines.append(CORRELATES)
    changes = [(row["metric"], _went(row["mu_delta"]), row["mu_1"], row["mu_2"]) for row in metrics.to_dicts()]
    return [*lines, *(METRIC.format(*change) for change in changes)]


def _went(delta: float) -> str:
    return "increased" if delta > 0 else "decreased"


#: A heading has this many more blanks than its text.
_ROOM = 2
_NOT_FINITE = ("inf", "-inf", "nan")


def pipe_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], number: str = "g") -> str:
    """A table in markdown. Numbers that are not whole are written in the format `number`."""
    columns = [_column([row[i] for row in rows], number) for i in range(len(headings))]
    lines: list[list[str]] = [[] for _ in range(len(rows) + 2)]
    for heading, (cells, numeric) in zip(headings, columns, strict=True):
        width = max([len(heading) + _ROOM, *map(len, cells)])
        set_text = str.rjust if numeric else str.ljust
        lines[0].append(f" {set_text(heading, width)} ")
        lines[1].append("-" * (width + 1) + ":" if numeric else ":" + "-" * (width + 1))
        for line, cell in zip(lines[2:], cells, strict=True):
            line.append(f" {set_text(cell, width)} ")
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def _column(cells: Sequence[Cell], number: str) -> tuple[list[str], bool]:
    """The cells as text, numbers aligned at their decimal points; and whether they are numbers."""
    if not cells or not all(_is_number(cell) for cell in cells):
        return [str(cell).strip() for cell in cells], False
    if all(_is_whole(cell) for cell in cells):
        return [str(cell) for cell in cells], True
    texts = [format(float(cell), number) for cell in cells]
    decimals = [_decimals(text) for text in texts]
    most = max(decimals)
    return [text + " " * (most - n) for text, n in zip(texts, decimals, strict=True)], True


def _is_whole(cell: Cell) -> bool:
    if isinstance(cell, str):
        try:
            int(cell)
        except ValueError:
            return False
        return True
    return isinstance(cell, int)


def _is_number(cell: Cell) -> bool:
    if not isinstance(cell, str):
        return True
    try:
        value = float(cell)
    except ValueError:
        return False
    return math.isfinite(value) or cell.lower() in _NOT_FINITE


def _decimals(text: str) -> int:
    """Characters after the decimal point, or else after the e; −1 if there is neither, as in whole numbers."""
    text = text.replace(",", "").lower()
    if not _is_number(text) or _is_whole(text):
        return -1
    at = text.rfind(".")
    at = text.rfind("e") if at < 0 else at
    return len(text) - at - 1 if at >= 0 else -1
