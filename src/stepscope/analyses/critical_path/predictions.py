"""What a change is worth: how long a step would take, with an interval, and what would hold it up next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.critical_path.changes import Change, change_of, changed
from stepscope.analyses.critical_path.critical_path import recorded_work
from stepscope.analyses.critical_path.replay import Program, binding, program_of
from stepscope.analyses.critical_path.threads import host_threads
from stepscope.analyses.critical_path.windows import RECORDING, path_windows
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.intervals import Ints
from stepscope.core.schema import ARROWS, OPS, STEPS, Column, Name, Table
from stepscope.core.units import parse_duration

BASES = {
    "replayed": "the recorded program was run again with the change",
    "modelled": "the replay, with durations from a model of the changed part",
    "bound": "the recording does not say; the step takes between low_ns and high_ns",
}
PREDICTIONS = Table(
    "predictions",
    "what a change is worth: how long a step would take",
    (
        Column("scenario", Name, "the change, as --if takes it; several are joined by ' + '", key=True),
        Column("step_ns", pl.Float64(), "mean length of the recorded steps", "ns"),
        Column("predicted_ns", pl.Float64(), "mean length of a step with the change; at best, if it is a bound", "ns"),
        Column("gain_ratio", pl.Float64(), "what it saves of a step; at best, if it is a bound", "ratio"),
        Column("low_ns", pl.Float64(), "lower end of the interval in which the step should lie", "ns"),
        Column("high_ns", pl.Float64(), "upper end of that interval", "ns"),
        Column("basis", pl.Enum(list(BASES)), "; ".join(f"{name}: {doc}" for name, doc in BASES.items())),
        Column("binds_next", Name, "what takes most of the changed step's critical path"),
        Column("n_inferred", pl.Int64(), "dependencies that no field of the recording names"),
        Column("reason", Name, "why it is a bound"),
    ),
)


def predictions(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame = STEPS.empty(),
    ops: pl.DataFrame = OPS.empty(),
    arrows: pl.DataFrame = ARROWS.empty(),
    *,
    changes: str | None = None,
    measured_step: str | None = None,
) -> pl.DataFrame:
    """One row per scenario: how long a step would take. Without `changes`, the standard questions, best first.

    `changes` are the changes of one scenario, one a line, as in 'class gemm: 2x'. `measured_step` is the length of
    a step without the profiler, as in 1.9ms: all times are scaled to that clock.

    Units: ns; ratios 0..1.
    Source: a forward pass over the recorded graph of dependencies, as in Daydream (ATC 2020) and Lumos (MLSys 2025).
    Raises MissingTable (no host side), StepscopeError (no such change, or nothing that it changes).
    """
    measured_ns = None if measured_step is None else parse_duration(measured_step, default_unit="ms")
    program = recorded_program(spans, tracks, steps, ops, arrows)
    wanted = [change_of(text) for text in (changes or "").splitlines() if text.strip()]
    rows = [scenario(program, wanted)] if wanted else list(standard(program))
    frame = PREDICTIONS.conform(pl.DataFrame(rows)) if rows else PREDICTIONS.empty()
    return scaled(frame.sort("gain_ratio", descending=True, nulls_last=True), measured_ns)


def recorded_program(
    spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, ops: pl.DataFrame, arrows: pl.DataFrame
) -> Program:
    """The program of a trace's tables; without steps the recording is one. Raises MissingTable (no host side)."""
    threads = host_threads(spans, tracks)
    if not threads.n_active.any():
        raise MissingTable("operators and the calls that queue work", needed_by="predictions", topic="host")
    devices = recorded_work(spans, tracks)
    within = RECORDING if steps.is_empty() else None
    windows, _ = path_windows(spans, tracks, steps, devices, threads, within=within, step=None)
    return program_of(spans, tracks, ops, arrows, devices, threads, windows)


#: Quantiles of the lags of dependencies that held nothing up: the median for the prediction, these for its interval.
_SPARE = (0.1, 0.9)
#: The least half width of an interval, in relation to the step.
_LEAST_WIDTH = 0.01
_PACE_UNKNOWN = "the step never waited for the data loader, so the loader's pace is not known"


def scenario(program: Program, wanted: Sequence[Change]) -> dict[str, object]:
    """The row of one scenario."""
    changes, graph, windows = changed(program, wanted), program.graph, program.windows
    recorded = windows.high - windows.low
    step_ns = float(recorded.mean())
    run = graph.run(changes)
    # What was queued before the recording shortens the first steps of a replay, so the later ones are measured.
    steady = slice(recorded.size // 2, None)
    variants = [replace(graph, spare=spare) for spare in _SPARE]
    lengths = [graph.lengths(run), *(other.lengths(other.run(changes)) for other in variants)]
    whole = max(float(recorded[steady].sum()), 1.0)
    means = [step_ns * float(each[steady].sum()) / whole for each in lengths]
    predicted, width = means[0], _width(recorded[steady]) * means[0]
    low, high, reason = max(min(means) - width, 0.0), max(means) + width, None
    is_gain = predicted < (1 - _LEAST_WIDTH) * step_ns
    if is_gain and not all(program.loader_known.values()) and "loader" not in {change.subject for change in wanted}:
        high, reason = max(high, step_ns), _PACE_UNKNOWN
    spent = binding(graph, run, changes, int(np.argsort(recorded)[recorded.size // 2]))
    return {
        "scenario": " + ".join(map(str, wanted)),
        "step_ns": step_ns,
        "predicted_ns": predicted,
        "gain_ratio": 1 - predicted / step_ns if step_ns else None,
        "low_ns": low,
        "high_ns": high,
        "basis": "bound" if reason else "replayed",
        "binds_next": max(spent, key=lambda part: spent[part]),
        "n_inferred": graph.n_inferred,
        "reason": reason,
    }


def _width(lengths: Ints) -> float:
    """The half width of the interval in which the mean of so many steps lies, in relation to it."""
    if lengths.size < 2 or not lengths.mean():
        return _LEAST_WIDTH
    return max(_LEAST_WIDTH, 2 * float(lengths.std(ddof=1) / lengths.mean()) / float(np.sqrt(lengths.size)))


#: Questions that are asked of every recording, if it has what they are about.
_ALWAYS = (
    "launch: free",
    "loader: hidden",
    "sync: removed",
    "comm: free",
    "comm: overlapped",
    "device: free",
    "host: free",
)
_LARGEST = 5


def standard(program: Program) -> Iterator[dict[str, object]]:
    """The rows of the standard questions, those that do not apply left out."""
    for wanted in questions(program):
        try:
            yield scenario(program, wanted)
        except StepscopeError:  # the recording has nothing of the kind
            continue


def questions(program: Program) -> Iterator[list[Change]]:
    """The changes of each standard question."""
    work, spans = program.work, program.spans
    names = spans["name"].gather(work.row).cast(pl.String)
    spent = pl.DataFrame({"name": names, "ns": work.end - work.start})
    for name in _longest(spent):
        yield [change_of(f"kernel ~ ^{re.escape(name)}$: 2x")]
    for text in _ALWAYS:
        yield [change_of(text)]


def _longest(spent: pl.DataFrame) -> list[str]:
    """The names with the most time."""
    sums = spent.group_by("name").agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    return sums["name"].head(_LARGEST).to_list()


def scaled(rows: pl.DataFrame, measured_ns: int | None) -> pl.DataFrame:
    """The rows with their times on the clock of a step that takes this long; as they are if it is None."""
    if measured_ns is None:
        return rows
    times = [c.name for c in PREDICTIONS.columns if c.unit == "ns"]
    return rows.with_columns(pl.col(times) * (measured_ns / pl.col("step_ns")))


ANALYSIS = analysis_of(predictions, PREDICTIONS, "What a change is worth: how long a step would take.")
