"""The published report of a pair of processes, as markdown, and its table as CSV.

The layout and the words are the published tool's. Rows with the same score stand in order of their names: there their
order hangs on the machine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.exports.latencyprism import _words as words
from stepscope.exports.latencyprism._comparison import COMPARED
from stepscope.exports.latencyprism._pipes import pipe_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from stepscope.exports.latencyprism._pipes import Cell

#: A finding needs a greater score.
SIGNIFICANT_SCORE = 10
_MOST_FINDINGS, _MOST_METRICS = 3, 3
_LEAST_CHANGE = 1e-6
_LEVEL = 0.05
_ABSENT = "-"
#: How the numbers of each column of the detail table are written, after the three keys.
_FORMATS = (
    ".4f", ".2f", ".2f", "+.2f", "+.2f", ".3f", ".3f", ",.2f", ",.2f", "+.2f", "+.2f", "+.2f", ".3f", ".3f",
)  # fmt: skip


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
        words.SUMMARY,
        summary_table(labels, durations),
        words.DURATIONS,
        durations_table(labels, durations),
        words.CORE,
        *paragraphs,
        f"{last}\n{words.DETAILS}\n{words.TABLE_IS}",
        details_table(compared, labels),
        words.LEGEND,
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
        return [words.OVERVIEW, words.NO_DIFFERENCE.format(*labels, SIGNIFICANT_SCORE)]
    heads = suspicious.unique(["function", "device"], keep="first", maintain_order=True).head(_MOST_FINDINGS)
    found = heads.to_dicts()
    direction = "increase" if found[0]["beta_delta"] > 0 else "decrease"
    lines = [words.FINDINGS]
    for head in found:
        lines += _finding(head, suspicious)
    over = any(max(head["beta_1"], head["beta_2"]) > 100 for head in found)
    return [
        words.OVERVIEW,
        words.DRIVEN_BY.format(*labels, found[0]["function"], direction),
        "\n".join(lines),
        *([words.OVER_ALL] if over else []),
        words.RECOMMENDATION,
    ]


def _finding(head: dict[str, Any], suspicious: pl.DataFrame) -> list[str]:
    """A function on a device: its share of the cycle, and the resources that changed with it."""
    sure = words.SIGNIFICANT if head["beta_p"] < _LEVEL else words.NOT_SIGNIFICANT
    numbers = (head["beta_1"], head["beta_2"], head["beta_delta"], sure.format(head["beta_p"]))
    lines = [
        words.FINDING.format(head["function"], head["device"]),
        words.CONTRIBUTION.format(_went(head["beta_delta"]), *numbers),
    ]
    same = (pl.col("function") == head["function"]) & (pl.col("device") == head["device"])
    metrics = suspicious.filter(same & (pl.col("mu_delta").abs() > _LEAST_CHANGE)).head(_MOST_METRICS)
    if metrics.height:
        lines.append(words.CORRELATES)
    changes = [(row["metric"], _went(row["mu_delta"]), row["mu_1"], row["mu_2"]) for row in metrics.to_dicts()]
    return [*lines, *(words.METRIC.format(*change) for change in changes)]


def _went(delta: float) -> str:
    return "increased" if delta > 0 else "decreased"
