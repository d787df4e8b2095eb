"""The comparison that LatencyPrism published: its report and its table, for those who must compare with old ones.

Its arithmetic is kept with its defects, of which docs/coming-from-latencyprism.md has a list. To learn whether two runs
differ, and why, use `stepscope compare`.

Source: the LatencyPrism artifact (report and CSV of the comparison of a pair).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from stepscope.comparison.cases import cases
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.trace import Results
from stepscope.exports.export import Export
from stepscope.exports.latencyprism._comparison import compared
from stepscope.exports.latencyprism._processes import chosen_pair, pairs_of
from stepscope.exports.latencyprism._recording import results_of
from stepscope.exports.latencyprism._report import csv_text, report_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Run, Trace
    from stepscope.exports.export import Context
    from stepscope.exports.latencyprism._processes import Pair

__all__ = ["EXPORT", "latencyprism"]


def latencyprism(
    run: Run,
    context: Context,
    *,
    part: Literal["report", "csv"] = "report",
    pid: int | None = None,
    other_pid: int | None = None,
) -> str:
    """The report in markdown, or its table as CSV, on the two runs of a case: folders normal… and abnormal….

    `pid` and `other_pid` choose the processes; without them it is the lowest id that both runs have, or else the lowest
    of each. Other processes are told to the context.

    Units: those of the published tool: percent, µs, and 100 times each metric.
    Raises StepscopeError (no pair of runs, or several; no such process), MissingTable (not results of LatencyPrism).
    """
    found = cases(run.paths)
    if len(found) > 1:
        labels = ", ".join(case.label for case in found)
        raise StepscopeError(f"{len(found)} pairs of runs, and a report is on one: {labels}", "name one case's folder")
    case = found[0]
    runs = [_results(run.open_trace(path), context) for path in (case.base, case.other)]
    attributions = [results.result("attribution") for results in runs]
    pids = [rows["pid"].unique().to_list() for rows in attributions]
    pair = chosen_pair(pids[0], pids[1], pid, other_pid)
    _tell(context, pair, pids, asked=pid is not None or other_pid is not None)
    first, second = (rows.filter(pl.col("pid") == one) for rows, one in zip(attributions, _ids(pair), strict=True))
    table = compared(first, second)
    if table.is_empty():
        context.tell("no function has a metric, and the published comparison is of metrics: record counters too")
    if part == "csv":
        return csv_text(table, pair.labels)
    cycles = [
        results.result("cycles").filter(pl.col("pid") == one) for results, one in zip(runs, _ids(pair), strict=True)
    ]
    _tell_anchors(context, cycles)
    durations = (durations_us(cycles[0]), durations_us(cycles[1]))
    return report_text(pair.title(case.label), pair.labels, durations, table)


def durations_us(cycles: pl.DataFrame) -> list[float]:
    """Durations of the cycles of a process in µs, each cycle once even if several hosts report it."""
    return (cycles.unique(["cycle", "dur_ns"], maintain_order=True)["dur_ns"] / 1000).to_list()


def _ids(pair: Pair) -> tuple[int, int]:
    return pair.first, pair.second


def _results(trace: Trace, context: Context) -> Results:
    """What a file of results holds, or is made of a recording."""
    if not isinstance(trace, Results):
        context.tell(f"{trace.meta.path}: cycles and shares come from the recording; the published tool's may differ")
        return results_of(trace)
    if {"attribution", "cycles"} <= set(trace.results):
        return trace
    hint = f"{trace.meta.path} is no perf_data.csv of LatencyPrism"
    raise MissingTable("attribution of cycles to functions", needed_by="latencyprism", hint=hint)


def _tell(context: Context, pair: Pair, pids: Sequence[Sequence[int]], *, asked: bool) -> None:
    others = [other for other in pairs_of(*pids) if other != pair]
    if others and not asked:
        names = ", ".join(
            f"--pid {other.first}" + ("" if other.is_strict else f" --other-pid {other.second}") for other in others[:3]
        )
        more = ", …" if len(others) > 3 else ""
        context.tell(f"this is on process {pair.first}; for the others ask with {names}{more}")


def _tell_anchors(context: Context, cycles: Sequence[pl.DataFrame]) -> None:
    """The published tool compares cycles of any kind without a word."""
    anchors = [", ".join(map(str, frame["anchor"].unique().sort().to_list())) for frame in cycles]
    if anchors[0] != anchors[1]:
        context.tell(
            f"the cycles are not of the same kind, and their times cannot be compared: {' and '.join(anchors)}"
        )


EXPORT = Export("latencyprism", "LatencyPrism's published report on a normal and an abnormal run", latencyprism)
