"""What a comparison says, as one screen and as one document for machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.comparison.effects import DELTAS, FUNCTION_DELTAS, function_deltas
from stepscope.comparison.model import EFFECTS
from stepscope.core import units
from stepscope.core.report import Bar, Block, Finding, Part, Report
from stepscope.core.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison import Cause, Comparison, Effect, Evidence, Observation

__all__ = ["RESOURCES_SHOWN", "RULED_OUT", "SCHEMA", "bounded_parts", "comparison", "document", "resources", "tables"]

SCHEMA = "stepscope.comparison/1"
RESOURCES_SHOWN = Table(
    "resources",
    "how each resource differs between the two sides, during whole cycles",
    tuple(c for c in EFFECTS.columns if c.name not in ("name", "measure", "category")),
)
_IN_WORDS = Table(
    "resources",
    "the same in words",
    tuple(Column(c.name, pl.String(), c.doc) if c.name in ("base", "other") else c for c in RESOURCES_SHOWN.columns),
)
RULED_OUT = Table(
    "ruled-out",
    "causes that were considered, and why they are not it",
    (
        Column("category", pl.String(), "the cause", key=True),
        Column("reason", pl.String(), "what speaks against it"),
    ),
)
_ROWS = 8
#: A part of the cycle that moved less than this share of it is not worth a row of the first screen.
_LEAST_SHARE = 0.001
_VERDICTS = {
    "different": "Different",
    "no_difference": "No difference",
    "inconclusive": "Inconclusive",
}


def comparison(outcome: Comparison) -> Report:
    """The comparison as a report: verdict, both sides' bars, causes, parts, functions and resources that changed."""
    return Report(
        headline=_headline(outcome),
        bars=_bars(outcome),
        findings=tuple(_finding(cause, outcome.step_time) for cause in outcome.causes),
        tables=tuple(_blocks(outcome)),
        quality=tuple(_quality(outcome)),
        meta=dict(outcome.facts),
        title="compare",
        findings_title="What caused it",
        document=document(outcome),
    )


def tables(outcome: Comparison) -> dict[str, Block]:
    """Every table of the comparison by name, whole: parts, attribution, resources, effects, ruled-out."""
    found = {
        "parts": (DELTAS, outcome.parts),
        "attribution": (FUNCTION_DELTAS, function_deltas(outcome.effects)),
        "resources": (RESOURCES_SHOWN, resources(outcome.effects)),
        "effects": (EFFECTS, outcome.effects),
        "ruled-out": (RULED_OUT, pl.DataFrame([asdict(row) for row in outcome.ruled_out], schema=RULED_OUT.dtypes)),
    }
    return {name: Block(name, table, frame) for name, (table, frame) in found.items()}


def resources(effects: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES_SHOWN: the effects on resources of whole cycles; those that changed first, then by how far."""
    rows = effects.filter((pl.col("measure") == "mu") & pl.col("name").is_null())
    far = pl.col("ratio").fill_null(float("inf")).clip(1e-12).log().abs()
    rows = rows.sort("is_different", far, descending=True, nulls_last=True, maintain_order=True)
    return RESOURCES_SHOWN.conform(rows)


def bounded_parts(outcome: Comparison) -> pl.DataFrame:
    """DELTAS with `low_ns` and `high_ns`, between which each change lies in 95 % of cases; null where not known.

    Of several processes, whose steps are not independent, the bounds are as far off as theirs are on average.
    """
    of_parts = outcome.effects.filter(pl.col("measure") == "part_ns")
    off = of_parts.group_by(part=pl.col("name").cast(pl.String)).agg(
        below=(pl.col("delta") - pl.col("low")).mean(), above=(pl.col("high") - pl.col("delta")).mean()
    )
    parts = outcome.parts.with_columns(pl.col("part").cast(pl.String))
    found = parts.join(off, on="part", how="left", maintain_order="left")
    bounds = {"low_ns": pl.col("delta_ns") - pl.col("below"), "high_ns": pl.col("delta_ns") + pl.col("above")}
    return found.with_columns(**bounds).drop("below", "above")


def document(outcome: Comparison) -> dict[str, Any]:
    """The comparison for machines; its shape only grows within a version of `schema`. See docs/compare.md."""
    step = outcome.step_time
    of_step = None
    if step is not None:
        names = ("delta", "low", "high", "drift", "detectable")
        of_step = {f"{name}_ns": getattr(step, name) for name in ("base", "other", *names)}
        of_step |= {f"{name}_ratio": getattr(step, name) / step.base if step.base else None for name in names}
        of_step |= {name: getattr(step, name) for name in ("p_value", "n_base", "n_other", "is_different")}
    return {
        "schema": SCHEMA,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "step_time": of_step,
        "parts": outcome.parts.to_dicts(),
        "causes": [asdict(cause) | {"certainty": cause.certainty} for cause in outcome.causes],
        "ruled_out": [asdict(row) for row in outcome.ruled_out],
        "attribution": function_deltas(outcome.effects).to_dicts(),
        "resources": resources(outcome.effects).to_dicts(),
        "processes": [
            {
                "label": pair.label,
                "matched_by": pair.matched_by,
                "base": [_process(run) for run in pair.base],
                "other": [_process(run) for run in pair.other],
            }
            for pair in outcome.pairs
        ],
        "notes": list(outcome.notes),
    }


def _process(run: Observation) -> dict[str, Any]:
    facts = {"path": run.meta.path, "rank": run.rank, "pid": run.pid, "host": run.meta.host}
    return {**facts, "anchor": run.anchor, "source": run.source, "n_cycles": run.cycles.height}


def _headline(outcome: Comparison) -> str:
    step, word = outcome.step_time, _VERDICTS[outcome.verdict]
    if step is None or not step.base:
        return f"{word}: {outcome.reason}"
    times = f"step {units.duration(step.base)} → {units.duration(step.other)}"
    interval = f"95 % interval {_signed(step.low / step.base)} to {_signed(step.high / step.base)}"
    cycles = f"{step.n_base} and {step.n_other} cycles"
    text = f"{word}: {outcome.reason} · {times}, {_signed(step.delta / step.base)} ({interval}) · {cycles}"
    if outcome.verdict != "different":
        text += f" · a change of {units.percent(step.detectable / step.base)} would have shown"
    return text


def _signed(ratio: float) -> str:
    return f"{'+' if ratio >= 0 else '−'}{units.percent(abs(ratio))}"


def _bars(outcome: Comparison) -> tuple[Bar, ...]:
    """Both sides' cycles on one scale."""
    parts, step = outcome.parts, outcome.step_time
    if step is None or parts.is_empty():
        return ()
    whole = max(float(parts["base_ns"].sum()), float(parts["other_ns"].sum()))
    if whole <= 0:
        return ()
    bars = []
    for label, column, value in (("Base", "base_ns", step.base), ("Other", "other_ns", step.other)):
        shown = [
            Part(str(name), max(ns, 0.0) / whole)
            for name, ns in parts.select(pl.col("part").cast(pl.String), column).iter_rows()
            if ns > _LEAST_SHARE * whole
        ]
        bars.append(Bar(label, units.duration(value), tuple(shown)))
    return tuple(bars)


def _finding(cause: Cause, step: Effect | None) -> Finding:
    share = cause.explained_ns / step.base if step is not None and step.base else None
    details = [_evidence(evidence) for evidence in cause.evidence]
    details += [f"follows from it: {_evidence(evidence)}" for evidence in cause.consequences]
    if cause.advice:
        details.append(f"→ {cause.advice}")
    return Finding(
        title=f"{cause.category} ({cause.certainty}): {cause.statement}",
        details=tuple(details),
        value_ns=cause.explained_ns or None,
        value_label="per step",
        share_ratio=share or None,
    )


def _evidence(evidence: Evidence) -> str:
    """The fact with its values: 'time in the data loader, per cycle: 482 µs → 30.8 ms'."""
    if evidence.base is None and evidence.other is None:
        return evidence.text
    return f"{evidence.text}: {_value(evidence.base, evidence.unit)} → {_value(evidence.other, evidence.unit)}"


def _value(value: float | None, unit: str | None) -> str:
    """A value in its unit; time per time is a share."""
    if value is None:
        return "none"
    if unit == "ns/s":
        return units.percent(value / 1e9)
    return units.render(value, unit)


def _blocks(outcome: Comparison) -> list[Block]:
    found = []
    whole = outcome.step_time.base if outcome.step_time is not None else 0.0
    parts = outcome.parts.filter(pl.max_horizontal("base_ns", "other_ns") > _LEAST_SHARE * whole)
    if parts.height:
        found.append(Block("Where the difference went, per step", DELTAS, parts, drawn=bounded_parts(outcome)))
    functions = function_deltas(outcome.effects)
    changed = functions.filter(pl.col("is_different") & (pl.col("delta_ns").abs() > _LEAST_SHARE * whole))
    if changed.height:
        several = changed["process"].n_unique() > 1
        keep = ["process"] * several + [
            "device",
            "name",
            "base_calls",
            "other_calls",
            "base_ns",
            "other_ns",
            "delta_ns",
        ]
        note = "" if changed.height <= _ROWS else f"{changed.height - _ROWS} more: --table attribution"
        found.append(_block("Functions that changed, own time per step", FUNCTION_DELTAS, changed, keep, note))
    moved = resources(outcome.effects).filter("is_different")
    if moved.height:
        several = moved["process"].n_unique() > 1
        keep = ["process"] * several + ["device", "metric", "base", "other", "ratio"]
        note = "" if moved.height <= _ROWS else f"{moved.height - _ROWS} more: --table resources"
        found.append(_block("Resources that changed", _IN_WORDS, _in_words(moved.head(_ROWS)), keep, note))
    return found


def _in_words(rows: pl.DataFrame) -> pl.DataFrame:
    """The same with values in their units, which differ from row to row."""
    units_ = rows["unit"].cast(pl.String).to_list()
    texts = {
        name: [_value(value, unit) for value, unit in zip(rows[name].to_list(), units_, strict=True)]
        for name in ("base", "other")
    }
    return rows.with_columns(pl.Series(name, values, dtype=pl.String) for name, values in texts.items())


def _block(title: str, table: Table, frame: pl.DataFrame, keep: Sequence[str], note: str) -> Block:
    return Block(title, table, frame.head(_ROWS).select(keep), note=note)


def _quality(outcome: Comparison) -> list[str]:
    ruled = ", ".join(row.category for row in outcome.ruled_out)
    notes = [note if note.endswith(".") else f"{note}." for note in outcome.notes]
    return [*notes, *([f"Ruled out, with reasons in --table ruled-out: {ruled}."] if ruled else [])]
