"""The report of a history: where the level of the step changed, what kind of change it was, and the last runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.comparison.history.change_points import LEAST_SERIES
from stepscope.comparison.history.series import HISTORY, OF_THE_PROGRAM, moment, rows_of
from stepscope.core import units
from stepscope.core.report import Block, Finding, Report, whole_command

if TYPE_CHECKING:
    import polars as pl

    from stepscope.comparison import Comparison
    from stepscope.comparison.history.series import Change, Series

SCHEMA = "stepscope.history/1"
_ROWS = 20
_SHOWN = ["run", "recorded", "label", "commit", "step_ns", "error_ns", "level_ns", "change", "change_ratio"]
_SENTENCES = {
    "regression": "{ratio} slower since {run}",
    "improvement": "{ratio} faster since {run}",
    "workload": "other work since {run}: {ratio} {direction}",
    "hardware": "another machine since {run}: {ratio} {direction}",
    "version": "other versions since {run}: {ratio} {direction}",
    "outlier": "{run} alone is {ratio} {direction}",
    "open": "the last run, {run}, is {ratio} {direction}",
}


def history_report(series: Series, store: str, comparison: Comparison | None = None) -> Report:
    """The report of a series of runs; `comparison` is that of the recordings around its last change, if it is known."""
    rows = rows_of(series)
    changes = sorted(series.changes, key=lambda change: -change.at)
    # Single runs are many in a long series, and old news.
    shown = [change for change in changes if change.kind != "outlier" or change.at >= len(series.heads) - _ROWS]
    last = [change.at for change in changes if change.kind in OF_THE_PROGRAM]
    findings = tuple(
        _finding(series, change, comparison if last and change.at == last[0] else None) for change in shown
    )
    note = f"The last {_ROWS} of {len(series.heads)} runs." if len(series.heads) > _ROWS else ""
    columns = [name for name in _SHOWN if rows[name].count() or name in ("run", "recorded", "step_ns", "level_ns")]
    table = Block("Runs", HISTORY, rows.tail(_ROWS).select(columns), note=note, drawn=rows)
    return Report(
        headline=_headline(series),
        findings=findings,
        findings_title="Changes, the last first",
        tables=(table,),
        title="history",
        arguments=(store,),
        document=_document(series, rows, store),
    )


def history_block(series: Series) -> Block:
    """All runs as one table, with the headline as its note."""
    return Block("history", HISTORY, rows_of(series), note=_headline(series))


def _headline(series: Series) -> str:
    levels = [change for change in series.changes if change.kind not in ("outlier", "open")]
    first, last = (units.instant(moment(head)).partition(" ")[0] for head in (series.heads[0], series.heads[-1]))
    days = first if first == last else f"{first} to {last}"
    step = f"step {units.duration(series.levels_ns[-1])}"
    n = units.counted(len(series.heads), "run")
    if not levels:
        few = f"too few runs to tell a change, which takes {LEAST_SERIES}"
        return f"{n}, {days} · {step} · {few if len(series.heads) < LEAST_SERIES else 'no change'}"
    return f"{n}, {days} · {step} · {units.counted(len(levels), 'change')}, the last: {_sentence(series, levels[-1])}"


def _sentence(series: Series, change: Change) -> str:
    head = series.heads[change.at]
    name = ", ".join(text for text in (head.label, head.commit and f"commit {head.commit[:12]}") if text)
    run = f"run {change.at + 1}" + (f" ({name})" if name else "")
    direction = "slower" if change.ratio > 0 else "faster"
    return _SENTENCES[change.kind].format(ratio=units.percent(abs(change.ratio)), run=run, direction=direction)


def _finding(series: Series, change: Change, comparison: Comparison | None) -> Finding:
    text = _sentence(series, change)
    details = [f"step {units.duration(change.before_ns)} → {units.duration(change.after_ns)}"]
    details += [change.reason] if change.reason else []
    command = ""
    if change.at and change.kind in OF_THE_PROGRAM:
        ends = series.heads[change.at - 1], series.heads[change.at]
        if comparison is not None and comparison.causes:
            cause = comparison.causes[0]
            details.append(f"cause, {cause.certainty}: {cause.statement}")
            details += [f"→ {cause.advice}"] if cause.advice else []
        if all(head.paths for head in ends):
            paths = [["--base", *ends[0].paths], ["--other", *ends[1].paths]]
            if all(len(head.paths) == 1 for head in ends):
                paths = [[ends[0].paths[0]], [ends[1].paths[0]]]
            details.append(f"→ {whole_command('compare', [word for side in paths for word in side])}")
    cost = change.after_ns - change.before_ns
    return Finding(text[0].upper() + text[1:], tuple(details), cost if cost > 0 else None, "per step", command=command)


def _document(series: Series, rows: pl.DataFrame, store: str) -> dict[str, Any]:
    changes = [
        {
            "run": change.at + 1,
            "kind": change.kind,
            "before_ns": change.before_ns,
            "after_ns": change.after_ns,
            "change_ratio": change.ratio,
            "p_value": change.p_value,
            "reason": change.reason,
        }
        for change in series.changes
    ]
    return {
        "schema": SCHEMA,
        "store": store,
        "headline": _headline(series),
        "changes": changes,
        "runs": rows.to_dicts(),
    }
