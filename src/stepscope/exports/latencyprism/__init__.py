"""The comparison that LatencyPrism published: its report and its table, to compare with old ones.

It repeats the published arithmetic with its defects, which docs/coming-from-latencyprism.md lists. To learn whether two
runs differ, and why, use `stepscope compare`.

Source: the LatencyPrism artifact (report and CSV of the comparison of a pair).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import polars as pl

from stepscope.core.cases import cases
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.trace import Result, Results
from stepscope.exports import Export
from stepscope.exports.latencyprism._comparison import compared
from stepscope.exports.latencyprism._cycles import PREFILL, cycles_of
from stepscope.exports.latencyprism._metrics import instanced, metrics
from stepscope.exports.latencyprism._report import csv_text, report_text
from stepscope.exports.latencyprism._shares import events_in_cycles, merged_runs, shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Run, Trace
    from stepscope.exports import Context


def latencyprism(
    run: Run,
    context: Context,
    *,
    part: Literal["report", "csv"] = "report",
    pid: int | None = None,
    other_pid: int | None = None,
) -> str:
    """The report in markdown, or its table as CSV, on the two runs of a case: folders normal… and abnormal….

    `pid` and `other_pid` choose the processes. Without them it is the lowest id that both runs have, or else the lowest
    of each run. The context gets a note about the other processes.

    Units: those of the published tool: percent, µs, and 100 times each metric.
    Raises StepscopeError (no pair of runs, or several; no such process), MissingTable (not results of LatencyPrism).
    """
    pairs_of_runs = cases(run.paths)
    if len(pairs_of_runs) > 1:
        labels = ", ".join(case.label for case in pairs_of_runs)
        raise StepscopeError(
            f"{len(pairs_of_runs)} pairs of runs, but a report covers one: {labels}", "name one case's folder"
        )
    case = pairs_of_runs[0]
    runs = [_results(run.open_trace(path), context) for path in (case.base, case.other)]
    attributions = [results.result("attribution") for results in runs]
    pids = [rows["pid"].unique().to_list() for rows in attributions]
    pair = chosen_pair(pids[0], pids[1], pid, other_pid)
    _tell(context, pair, pids, asked=pid is not None or other_pid is not None)
    first, second = (rows.filter(pl.col("pid") == one) for rows, one in zip(attributions, _ids(pair), strict=True))
    table = compared(first, second)
    if table.is_empty():
        context.tell("no function has a metric, which the published comparison needs: record counters too")
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
    """The results that a file holds, or that are computed from a recording."""
    if not isinstance(trace, Results):
        context.tell(
            f"{trace.meta.path}: cycles and shares are computed from the recording; the published tool's may differ"
        )
        return results_of(trace)
    if {"attribution", "cycles"} <= set(trace.results):
        return trace
    hint = f"{trace.meta.path} is not a perf_data.csv of LatencyPrism"
    raise MissingTable("attribution of cycles to functions", needed_by="latencyprism", hint=hint)


def _tell(context: Context, pair: Pair, pids: Sequence[Sequence[int]], *, asked: bool) -> None:
    other_pairs = [other for other in pairs_of(*pids) if other != pair]
    if other_pairs and not asked:
        names = ", ".join(
            f"--pid {other.first}" + ("" if other.is_strict else f" --other-pid {other.second}")
            for other in other_pairs[:3]
        )
        more = ", …" if len(other_pairs) > 3 else ""
        context.tell(f"this report is about process {pair.first}; choose another with {names}{more}")


def _tell_anchors(context: Context, cycles: Sequence[pl.DataFrame]) -> None:
    """A warning if the cycles differ in kind, because the published tool compares them without one."""
    anchors = [", ".join(map(str, frame["anchor"].unique().sort().to_list())) for frame in cycles]
    if anchors[0] != anchors[1]:
        context.tell(f"the cycles are of different kinds, so their times cannot be compared: {' and '.join(anchors)}")


EXPORT = Export("latencyprism", "LatencyPrism's published report on a normal and an abnormal run", latencyprism)


class Pair(msgspec.Struct, frozen=True):
    """A process of each run, by their ids. A comparison is called strict if they are the same, else cross."""

    first: int
    second: int

    @property
    def is_strict(self) -> bool:
        """Whether both runs have the process under the same id."""
        return self.first == self.second

    @property
    def labels(self) -> tuple[str, str]:
        """The names of the two groups of cycles."""
        return ("normal", "abnormal") if self.is_strict else (f"normal_pid_{self.first}", f"abnormal_pid_{self.second}")

    def title(self, case: str) -> str:
        """Heading of the report on a case."""
        if self.is_strict:
            return f"# Strict Performance Comparison: {case} (PID: {self.first})"
        return f"# Cross Performance Comparison: {case} (Normal PID:{self.first} vs Abnormal PID:{self.second})"


def pairs_of(first: Sequence[int], second: Sequence[int]) -> list[Pair]:
    """All pairs that the published tool reports on: ids in both runs, then each of one run's own with the other's."""
    both = sorted(set(first) & set(second))
    first_only = sorted(set(first) - set(second))
    second_only = sorted(set(second) - set(first))
    return [*(Pair(pid, pid) for pid in both), *(Pair(a, b) for a in first_only for b in second_only)]


def chosen_pair(first: Sequence[int], second: Sequence[int], pid: int | None, other_pid: int | None) -> Pair:
    """The first of those pairs, or the requested one. Raises StepscopeError if there is no such pair."""
    for runs, asked, flag in ((first, pid, "--pid"), (second, other_pid, "--other-pid")):
        if asked is not None and asked not in runs:
            known = ", ".join(map(str, sorted(runs)))
            raise StepscopeError(f"the run has no process {asked} ({flag})", f"it has {known}")
    if pid is not None and other_pid is not None:
        return Pair(pid, other_pid)
    for pair in pairs_of(first, second):
        if pid in (None, pair.first) and other_pid in (None, pair.second):
            return pair
    hint = "name both with --pid and --other-pid"
    raise StepscopeError("no pair of processes of the two runs has the requested one", hint)


#: The published files have so many decimals.
_DECIMALS = 4
_KEYS = ("cycle", "pid", "device", "name")


def results_of(trace: Trace) -> Results:
    """Cycles of a recording (without prefills if there are others), and the share of functions in them.

    Raises MissingTable if there are no cycles, or nothing in them that has a share: device work, time on a core, waits
    for one, disk access.
    """
    cycles_of_trace = cycles_of(trace)
    if not cycles_of_trace["phase"].eq(PREFILL).all():
        cycles_of_trace = cycles_of_trace.filter(pl.col("phase") != PREFILL)
    events = events_in_cycles(trace, cycles_of_trace)
    if events.is_empty():
        raise MissingTable("device work, or samples of what ran on a core, in its cycles", needed_by="latencyprism")
    events = events.with_columns(pl.col("pid").fill_null(-1))
    extents = events.group_by("cycle").agg(pl.col("start").min(), pl.col("end").max())
    windows = cycles_of_trace.join(extents, on="cycle", how="left").select(
        "cycle",
        low=pl.min_horizontal("ts_ns", "start"),
        high=pl.max_horizontal(pl.col("ts_ns") + pl.col("dur_ns"), "end"),
    )
    of_metrics = metrics(merged_runs(events), instanced(trace.counters), windows)
    rows = shares(events, cycles_of_trace).join(of_metrics, on=_KEYS, how="left", maintain_order="left")
    attribution = rows.with_columns(
        recorded_category="type",
        recorded_beta=(100 * pl.col("beta_ratio")).round(_DECIMALS),
        recorded_mu=pl.col("recorded_mu").round(_DECIMALS),
    )
    cycles = cycles_of_trace.join(events.select("cycle", "pid").unique(), on="cycle").sort("cycle", "pid")
    tables = ((CYCLES, cycles), (ATTRIBUTION, attribution))
    results = {table.name: Result(table, table.conform(frame)) for table, frame in tables}
    return Results(trace.meta, {}, results)
