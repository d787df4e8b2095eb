"""Predictions of one trace, or of the ranks of a job: replayed together, and without those that others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.critical_path import joint_replay, predictions
from stepscope.analyses.critical_path.changes import change_of
from stepscope.analyses.ranks.calls import rank_calls
from stepscope.analyses.ranks.stragglers import without_stragglers
from stepscope.core import files, units
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Run, Trace
from stepscope.query import tables
from stepscope.query.map_files import calls_of_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def predictions_of(
    source: Trace | Run,
    texts: Sequence[str],
    measured_step: str | None,
    on_missing: Callable[[str, StepscopeError], None],
) -> pl.DataFrame:
    """What the changes are worth together; without any, the answers to the standard questions."""
    together = replayed_together(source, texts, measured_step) if texts else None
    if together is not None:
        return together
    if len(texts) == 1 and texts[0].split(":")[0].strip() == "ranks":
        return of_ranks(source, texts[0], measured_step, on_missing)
    frame, _ = tables.collect(
        source,
        tables.find("predictions"),
        on_missing=on_missing,
        changes="\n".join(texts) or None,
        measured_step=measured_step,
    )
    return frame if texts else with_stragglers(source, frame, measured_step)


def with_stragglers(source: Trace | Run, frame: pl.DataFrame, measured_step: str | None) -> pl.DataFrame:
    """The answers to the standard questions, after the one that concerns all ranks together, if they can be matched."""
    if isinstance(source, Trace) or len(source.paths) < 2:
        return frame
    try:
        row = of_ranks(source, "ranks: no stragglers", measured_step, lambda *_: None)
    except StepscopeError:  # no ranks of one job, or nothing that they share
        return frame
    return pl.concat((frame.clear(), row, frame), how="diagonal_relaxed")


#: Ranks with more spans in all are replayed one by one, as each would take some 300 bytes.
_MOST_TOGETHER = 8_000_000


def replayed_together(source: Trace | Run, texts: Sequence[str], measured_step: str | None) -> pl.DataFrame | None:
    """The prediction of ranks that share collectives on devices; None if they do not, or cannot all be read."""
    if isinstance(source, Trace) or len(source.paths) < 2:
        return None
    programs, parts, ranks, n_spans = [], [], [], 0
    for path in source.paths:
        try:
            trace = source.open_trace(path)
            n_spans += trace.spans.height
            if n_spans > _MOST_TOGETHER:
                return None
            parts.append(rank_calls(trace))
            programs.append(predictions.recorded_program(*predictions.tables_of(trace)))
        except StepscopeError:
            return None  # the ranks are then read one by one, and this one is reported
        ranks.append(trace.rank)
    graph = joint_replay.joint_graph(programs, parts)
    if graph is None or not joint_replay.answers(graph, texts):
        return None
    measured_ns = None if measured_step is None else units.parse_duration(measured_step)
    rows = [predictions.scaled(row, measured_ns) for row in joint_replay.job_predictions(graph, texts)]
    labels = files.labels_of(source.paths)
    frame, _ = tables.stacked(list(zip(ranks, labels, rows, strict=True)), predictions.PREDICTIONS)
    return frame


def of_ranks(
    source: Trace | Run, text: str, measured_step: str | None, on_missing: Callable[[str, StepscopeError], None]
) -> pl.DataFrame:
    """The prediction of a change that concerns all ranks together."""
    change = change_of(text)
    labels = files.labels_of(source.paths) if isinstance(source, Run) else [source.meta.path]
    ratio = without_stragglers(calls_of_ranks(source, labels, on_missing=on_missing))
    steps, _ = tables.collect(source, tables.find("steps"), on_missing=on_missing)
    row = predictions.of_ratio(change, float(steps.select(pl.col("window_ns").mean()).item()), ratio)
    frame = predictions.PREDICTIONS.conform(pl.DataFrame([row]))
    return predictions.scaled(frame, None if measured_step is None else units.parse_duration(measured_step))
