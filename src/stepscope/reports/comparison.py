"""The report of a comparison: one screen, its tables, and one JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import asdict, replace

from stepscope.analyses.memory.growth import MEMORY_GROWTH
from stepscope.analyses.resources.counters import CORE, FEW_CORES
from stepscope.comparison.diagnosis.change import span
from stepscope.comparison.effects import DELTAS, FUNCTION_DELTAS, UNNAMED, function_deltas
from stepscope.comparison.model import EFFECTS, KINDS
from stepscope.comparison.serving import BATCH_CHANGES, at_equal_work
from stepscope.core import units
from stepscope.core.report import Bar, Block, Finding, Note, Part, Report
from stepscope.core.table import Column, Table
from stepscope.reports._summary import gain_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison import Cause, Comparison, Effect, Evidence, Observation

SCHEMA = "stepscope.comparison/1"
RESOURCES_SHOWN = Table(
    "resources",
    "how each resource differs between the two sides, during whole cycles",
    tuple(c for c in EFFECTS.columns if c.name not in ("name", "measure", "category")),
)
_AS_TEXT = Table(
    "resources",
    "the same with values in their units",
    tuple(Column(c.name, pl.String(), c.doc) if c.name in ("base", "other") else c for c in RESOURCES_SHOWN.columns),
)
RULED_OUT = Table(
    "ruled-out",
    "causes that were considered, and why they do not apply or cannot be judged",
    (
        Column("category", pl.String(), "the cause", key=True),
        Column("reason", pl.String(), "why it does not apply, or why the recordings cannot tell"),
        Column("is_judged", pl.Boolean(), "false if the data does not allow a judgement"),
    ),
)
MEMORY_PEAKS = Table(
    "memory-levels",
    "how the levels of memory in two memory snapshots differ",
    (
        Column("device", pl.String(), "device, as the framework calls it", key=True),
        Column("level", pl.String(), "which level", key=True),
        Column("base_bytes", pl.Int64(), "in the base", "bytes"),
        Column("other_bytes", pl.Int64(), "in the other", "bytes"),
        Column("delta_bytes", pl.Int64(), "how much more in the other", "bytes"),
        Column("ratio", pl.Float64(), "other over base"),
        Column("is_different", pl.Boolean(), "more than healthy runs differ"),
    ),
)
_LEVELS = {
    "peak_allocated_bytes": "most in use",
    "peak_reserved_bytes": "most reserved",
    "before_bytes": "in use before the history",
    "allocated_bytes": "in use at the end",
}
_ROWS = 8
#: Share of the cycle below which a part or a change has no row on the first screen.
_LEAST_SHARE = 0.001
#: Part of the change of the whole run that profiled steps must have, for shares of it to say anything.
_SHOWS = 0.5
_VERDICTS = {
    "different": "Different",
    "no_difference": "No difference",
    "inconclusive": "Inconclusive",
}


def comparison(result: Comparison) -> Report:
    """The report: verdict, what differs in kind, bars, causes, and the parts, functions and resources that changed."""
    meanings = "; ".join(result.kinds["meaning"].unique(maintain_order=True))
    note = f"{meanings[:1].upper()}{meanings[1:]}." if meanings else ""
    kinds = Block("What differs in kind", KINDS, result.kinds.drop("meaning"), note=note)
    return Report(
        headline=headline(result),
        first=kinds if result.kinds.height else None,
        bars=_bars(result),
        findings=tuple(_finding(cause, result) for cause in result.causes),
        tables=tuple(_blocks(result)),
        quality=tuple(_quality(result)),
        meta=dict(result.facts),
        title="compare",
        findings_title="What caused it" if _is_explained(result) else "What is different",
        quality_command="compare --table ruled-out" if result.ruled_out else "",
        arguments=result.arguments,
        document=document(result),
    )


def _is_explained(result: Comparison) -> bool:
    """Whether causes, if there are some, explain a change of the step time: a state of a resource may explain none."""
    return result.step_verdict == "different" and (not result.causes or any(c.explained_ns for c in result.causes))


def with_verdict(report: Report, result: Comparison) -> Report:
    """The report of both runs of a case, with the verdict of their comparison and its causes as the first findings."""
    verdict = Finding(title=headline(result), command="compare")
    causes = tuple(_finding(cause, result) for cause in result.causes)
    return replace(report, findings=(verdict, *causes, *report.findings), findings_title="The two runs of this case")


def tables(result: Comparison) -> dict[str, Block]:
    """All tables of the comparison in full, by the names that `compare --table` takes."""
    parts = {
        "kinds": (KINDS, result.kinds),
        "parts": (DELTAS, result.parts),
        "attribution": (FUNCTION_DELTAS, function_deltas(result.effects)),
        "resources": (RESOURCES_SHOWN, resources(result.effects)),
        "effects": (EFFECTS, result.effects),
        "memory-growth": (MEMORY_GROWTH, result.memory),
        "batch-changes": (BATCH_CHANGES, BATCH_CHANGES.empty() if result.batches is None else result.batches),
        "ruled-out": (RULED_OUT, pl.DataFrame([asdict(row) for row in result.ruled_out], schema=RULED_OUT.dtypes)),
    }
    return {name: Block(name, table, frame) for name, (table, frame) in parts.items()}


def resources(effects: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES_SHOWN: the effects on resources of whole cycles, real changes first, then by ratio."""
    rows = effects.filter((pl.col("measure") == "mu") & pl.col("name").is_null())
    far = pl.col("ratio").fill_null(float("inf")).clip(1e-12).log().abs()
    rows = rows.sort("is_different", far, descending=True, nulls_last=True, maintain_order=True)
    return RESOURCES_SHOWN.conform(rows)


def bounded_parts(result: Comparison) -> pl.DataFrame:
    """DELTAS with the 95 % interval of each change in `low_ns` and `high_ns`; null if unknown.

    With several processes, whose steps are not independent, the interval has the mean width of theirs.
    """
    of_parts = result.effects.filter(pl.col("measure") == "part_ns")
    off = of_parts.group_by(part=pl.col("name").cast(pl.String)).agg(
        below=(pl.col("delta") - pl.col("low")).mean(), above=(pl.col("high") - pl.col("delta")).mean()
    )
    parts = result.parts.with_columns(pl.col("part").cast(pl.String))
    rows = parts.join(off, on="part", how="left", maintain_order="left")
    bounds = {"low_ns": pl.col("delta_ns") - pl.col("below"), "high_ns": pl.col("delta_ns") + pl.col("above")}
    return rows.with_columns(**bounds).drop("below", "above")


def document(result: Comparison) -> dict[str, Any]:
    """The comparison as JSON. Within a version of `schema`, keys are only added. See docs/compare.md."""
    of_step = _effect(result.step_time)
    return {
        "schema": SCHEMA,
        "verdict": result.verdict,
        "reason": result.reason,
        "step_time": None if of_step is None else of_step | {"verdict": result.step_verdict},
        "whole_run": _effect(result.whole_run),
        "kinds": result.kinds.to_dicts(),
        "parts": result.parts.to_dicts(),
        "causes": [asdict(cause) | {"certainty": cause.certainty} for cause in result.causes],
        "ruled_out": [asdict(row) for row in result.ruled_out],
        "attribution": function_deltas(result.effects).to_dicts(),
        "resources": resources(result.effects).to_dicts(),
        "processes": [
            {
                "label": pair.label,
                "matched_by": pair.matched_by,
                "base": [_process(run) for run in pair.base],
                "other": [_process(run) for run in pair.other],
            }
            for pair in result.pairs
        ],
        "notes": list(result.notes),
        "memory": {"peaks": _peaks(result.effects).to_dicts(), "growth": result.memory.to_dicts()},
        "batches": [] if result.batches is None else result.batches.to_dicts(),
    }


def _effect(effect: Effect | None) -> dict[str, Any] | None:
    if effect is None:
        return None
    names = ("delta", "low", "high", "drift", "detectable")
    return {
        **{f"{name}_ns": getattr(effect, name) for name in ("base", "other", *names)},
        **{f"{name}_ratio": _over(getattr(effect, name), effect.base) for name in names},
        **{name: getattr(effect, name) for name in ("p_value", "n_base", "n_other", "is_different")},
    }


def _process(run: Observation) -> dict[str, Any]:
    facts = {"path": run.meta.path, "rank": run.rank, "pid": run.pid, "host": run.meta.host}
    return {**facts, "anchor": run.anchor, "source": run.source, "n_cycles": run.cycles.height}


def headline(result: Comparison) -> str:
    """The verdict in one line: what differs in kind, the reason, the step time with its interval, the cycles."""
    kinds = result.kinds["kind"].unique(maintain_order=True).to_list()
    word = _VERDICTS[result.verdict]
    start = f"Runs that differ in {', '.join(kinds)} · {word}" if kinds else word
    if result.batches is not None and result.pairs:
        sentence = at_equal_work(result.batches)
        start = f"{sentence[:1].upper()}{sentence[1:]} · {start}"
    if result.step_time is None or not result.step_time.base:
        return f"{start}: {result.reason}"
    mean = result.whole_run or result.step_time
    step = result.proof or mean
    is_typical = step is not mean
    times = f"{'typical ' * is_typical}step {units.duration(step.base)} → {units.duration(step.other)}"
    change = f"{_signed(step.delta / step.base)} ({_interval(result, step)})"
    text = f"{start}: {result.reason} · {times}, {change} · {_counted(result, step)}"
    # A change as large as that was observed and did not show, and one of a whole step tells nothing.
    least = step.detectable or 0.0
    if result.step_verdict != "different" and abs(step.delta) < least < step.base:
        text += f" · a change of {units.percent(least / step.base)} would show in 8 of 10 cases"
    return text


def _counted(result: Comparison, step: Effect) -> str:
    if result.whole_run is None:
        return f"{step.n_base} and {step.n_other} cycles"
    return f"{result.whole_run.n_base:,} and {result.whole_run.n_other:,} steps of the whole run"


def _interval(result: Comparison, step: Effect) -> str:
    if step.low is None or step.high is None:
        return "no interval"
    text = f"95 % interval {_signed(step.low / step.base)} to {_signed(step.high / step.base)}"
    return f"not proven: {text}" if result.verdict == "different" != result.step_verdict else text


def _over(value: float | None, base: float) -> float | None:
    return value / base if base and value is not None else None


def _signed(ratio: float) -> str:
    return f"{'+' if ratio >= 0 else '−'}{units.percent(abs(ratio))}"


def _bars(result: Comparison) -> tuple[Bar, ...]:
    """The cycles of both runs: lengths on one scale, shares of each run's own cycle."""
    parts, step = result.parts, result.step_time
    sums = {column: float(parts[column].sum()) for column in ("base_ns", "other_ns")}
    longest = max(sums.values())
    if step is None or longest <= 0 or not _knows_parts(result):
        return ()
    bars = []
    for label, column, value in (("Base", "base_ns", step.base), ("Other", "other_ns", step.other)):
        whole = sums[column]
        shown = [
            Part(str(name), max(ns, 0.0) / whole)
            for name, ns in parts.select(pl.col("part").cast(pl.String), column).iter_rows()
            if ns > _LEAST_SHARE * whole
        ]
        bars.append(Bar(label, units.duration(value), tuple(shown), _whole_run(result, label), whole / longest))
    return tuple(bars)


def _knows_parts(result: Comparison) -> bool:
    """Whether a profile or a trace says where the time of a cycle went."""
    return bool((result.parts["part"].cast(pl.String) != UNNAMED).any())


def _whole_run(result: Comparison, label: str) -> tuple[Note, ...]:
    """That the bar is of the profiled steps, while the verdict rests on those of the whole run."""
    whole, profiled = result.whole_run, result.step_time
    if whole is None or profiled is None:
        return ()
    of_base, of_other = (profiled.n_base, whole.n_base, whole.base), (profiled.n_other, whole.n_other, whole.other)
    n, of_run, mean = of_base if label == "Base" else of_other
    text = f"{units.counted(n, 'profiled step')}; the {of_run:,} of the whole run take {units.duration(mean)} each"
    return (Note(text, "steps"),)


def _profiled_part(result: Comparison) -> float:
    """The part of the change of the whole run that the profiled steps show; 1 if only these are known."""
    profiled, whole = result.step_time, result.whole_run
    changes = [effect.delta / effect.base for effect in (profiled, whole) if effect is not None and effect.base]
    return changes[0] / changes[1] if len(changes) > 1 and changes[1] else 1.0


def _finding(cause: Cause, result: Comparison) -> Finding:
    step = result.step_time
    is_proven = step is not None and result.step_verdict == "different"
    share = _over(cause.explained_ns, result.added_ns) if is_proven else None
    value = cause.explained_ns
    if share is not None and result.whole_run is not None:
        share = min(share, 1.0)
        value = share * result.added_ns
    title = f"{cause.category} ({cause.certainty}): {cause.statement}"
    whole = headline(result)
    rows = [row for row in cause.evidence if not _is_in(row, title)]
    details = [row.text if _is_in(row, whole) else _evidence(row) for row in rows]
    details += [f"follows from it: {_evidence(row)}" for row in cause.consequences]
    if cause.gain is not None:
        base = "" if step is None else f"; the base takes {units.duration(step.base)}"
        details.append(gain_text(cause.gain, "Without it") + base)
    if cause.advice:
        details.append(f"→ {cause.advice}")
    return Finding(
        title=title,
        details=tuple(dict.fromkeys(details)),
        value_ns=(value or None) if result.step_verdict == "different" else None,
        value_label="of the change" if share is not None else "per step",
        share_ratio=share if share is not None and 0 < share <= 1 else None,
        gain=cause.gain,
    )


def _is_in(evidence: Evidence, statement: str) -> bool:
    """Whether the statement has both values of the evidence already."""
    if evidence.base is None or evidence.other is None:
        return False
    values = (_value(evidence.base, evidence.unit), _value(evidence.other, evidence.unit))
    return span(evidence.base, evidence.other, evidence.unit) in statement or all(text in statement for text in values)


def _evidence(evidence: Evidence) -> str:
    """The evidence with its values: 'time in the data loader, per cycle: 482 µs → 30.8 ms'."""
    if evidence.base is None and evidence.other is None:
        return evidence.text
    return f"{evidence.text}: {_value(evidence.base, evidence.unit)} → {_value(evidence.other, evidence.unit)}"


def _value(value: float | None, unit: str | None) -> str:
    """A value in its unit; ns/s becomes a percentage."""
    if value is None:
        return "none"
    if unit == "ns/s":
        return units.percent(value / 1e9)
    return units.render(value, unit)


def _blocks(result: Comparison) -> list[Block]:
    blocks = _memory_blocks(result)
    if result.batches is not None and result.batches.height:
        columns = result.batches.columns
        blocks.append(_block("Batches at equal work", BATCH_CHANGES, result.batches, columns, "batch-changes"))
    whole = result.step_time.base if result.step_time is not None else 0.0
    parts = result.parts.filter(pl.max_horizontal("base_ns", "other_ns") > _LEAST_SHARE * whole)
    if parts.height and _knows_parts(result):
        drawn, note = bounded_parts(result), _on_shares(parts)
        if result.step_verdict != "different":  # shares of a change that is not proven say nothing
            parts, note = parts.drop("share_ratio"), ""
        elif result.step_time is not None and _profiled_part(result) < _SHOWS:
            note = "These are the profiled steps, which hardly show the change of the whole run."
            parts = parts.drop("share_ratio")
        blocks.append(Block("Where the difference went, per step", DELTAS, parts, note=note, drawn=drawn))
    functions = function_deltas(result.effects)
    changed = functions.filter(pl.col("is_different") & (pl.col("delta_ns").abs() > _LEAST_SHARE * whole))
    if changed.height:
        several = changed["process"].n_unique() > 1
        columns = ["device", "name", "base_calls", "other_calls", "base_ns", "other_ns", "delta_ns"]
        keep = ["process"] * several + columns
        title = "Functions that changed, own time per step"
        blocks.append(_block(title, FUNCTION_DELTAS, changed, keep, "attribution"))
    # Recorders write some resources under two names.
    known = resources(result.effects)
    is_core = pl.col("device").cast(pl.String).str.contains(CORE)
    if known.filter(is_core)["device"].n_unique() > FEW_CORES:  # a thread that runs on another one is no change
        known = known.filter(~(is_core & (pl.col("metric").cast(pl.String) == "host_cpu_usage")))
    moved = known.filter("is_different")
    moved = moved.unique(["process", "device", "base", "other"], keep="first", maintain_order=True)
    if moved.height:
        several = moved["process"].n_unique() > 1
        keep = ["process"] * several + ["device", "metric", "base", "other", "ratio"]
        blocks.append(_block("Resources that changed", _AS_TEXT, _as_text(moved), keep, "resources"))
    return blocks


def _memory_blocks(result: Comparison) -> list[Block]:
    """The peaks of memory snapshots, and what holds more or less at them, by line."""
    if result.memory.is_empty():
        return []
    by_line = result.memory.group_by("device", "category", "line", maintain_order=True).agg(
        pl.col("base_bytes", "other_bytes", "delta_bytes").sum()
    )
    size_of_change = pl.col("delta_bytes").abs()
    rows = by_line.filter(size_of_change > 0).sort(size_of_change, descending=True, maintain_order=True)
    columns = [name for name in rows.columns if name != "device" or rows["device"].n_unique() > 1]
    blocks = [_block("What holds more or less at the peak", MEMORY_GROWTH, rows, columns, "memory-growth")]
    peaks = _peaks(result.effects)
    return [*blocks, Block("Memory", MEMORY_PEAKS, peaks)] if peaks.height else blocks


def _peaks(effects: pl.DataFrame) -> pl.DataFrame:
    """MEMORY_PEAKS: how the levels of memory of each device differ."""
    rows = effects.filter(pl.col("measure").str.ends_with("_bytes"))
    amounts = [pl.col(f"{name}").cast(pl.Int64).alias(f"{name}_bytes") for name in ("base", "other", "delta")]
    what = pl.col("measure").replace(_LEVELS).alias("level")
    return rows.select(pl.col("device").cast(pl.String), what, *amounts, "ratio", "is_different")


def _as_text(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with values as text in their units, which differ from row to row."""
    units_ = rows["unit"].cast(pl.String).to_list()
    texts = {
        name: [_value(value, unit) for value, unit in zip(rows[name].to_list(), units_, strict=True)]
        for name in ("base", "other")
    }
    return rows.with_columns(pl.Series(name, values, dtype=pl.String) for name, values in texts.items())


def _block(title: str, table: Table, frame: pl.DataFrame, keep: Sequence[str], name: str) -> Block:
    """The first rows, and the command that shows the others, if there are any."""
    n_more = frame.height - _ROWS
    note, command = (f"{n_more} more", f"compare --table {name}") if n_more > 0 else ("", "")
    return Block(title, table, frame.head(_ROWS).select(keep), command, note)


def _on_shares(parts: pl.DataFrame) -> str:
    far = parts.filter(pl.col("share_ratio").abs() >= 1.005)  # 100 % as shown
    return "Shares are of the change: above 100 % because other parts changed the other way." if far.height else ""


def _quality(result: Comparison) -> list[str]:
    remarks = [f"{remark[0].upper()}{remark[1:].rstrip('.')}." for remark in result.notes if remark]
    ruled = ", ".join(row.category for row in result.ruled_out if row.is_judged)
    unknown = ", ".join(row.category for row in result.ruled_out if not row.is_judged)
    remarks += [f"Ruled out, with reasons: {ruled}."] if ruled else []
    return [*remarks, *([f"Not judged, with the reason or what to record: {unknown}."] if unknown else [])]
