"""Reports and tables as JSON with raw numbers (ns, bytes, ratios 0..1); unknown and NaN are null.

A table is a list of row objects. A report is one object, whose shape only grows within a version of its `schema`:

    {"schema": "stepscope.report/1",
     "headline": str,
     "bars":     [{"label": str, "value": str, "parts": [{"name": str, "ratio": number}], "notes": [str],
                   "commands": [str]}],
     "findings": [{"title": str, "details": [str], "value_ns": number|null, "value_label": str,
                   "share_ratio": number|null, "command": str,
                   "gain": {"question": str, "step_ns": number, "predicted_ns": number, "gain_ratio": number,
                            "low_ns": number, "high_ns": number, "basis": str, "reason": str|null,
                            "binds_next": str|null, "slowdown_ns": number}|null}],
     "tables":   [{"title": str, "name": str, "command": str, "note": str,
                   "columns": [{"name": str, "unit": str|null, "key": bool, "doc": str}], "rows": [{column: value}]}],
     "quality":  [str],
     "issues":   [{"code": str, "severity": str, "count": int, "example": str}],
     "meta":     {fact: value}}

The report of dumps of a flight recorder also has "hang": {"verdict": str, "culprits": [object], "waiting": [object]}.

Commands are whole, with `stepscope` and the paths; `commands` of a bar belong to its notes and may be empty.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
import polars.selectors as cs
from msgspec.structs import asdict

from stepscope.core.report import printable_lines
from stepscope.renderers import Renderer, Screen

if TYPE_CHECKING:
    from stepscope.core.report import Bar, Block, Report

SCHEMA = "stepscope.report/1"


def report(report: Report, screen: Screen) -> str:  # noqa: ARG001  exact: nothing of a screen applies
    """The whole report as one indented object: of the shape above, or of its own (`Report.document`)."""
    document = dict(report.document) if report.document is not None else _document(report)
    return printable_lines(json.dumps(_finite(document), ensure_ascii=False, indent=2, allow_nan=False)) + "\n"


def _document(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "headline": report.headline,
        "bars": [_bar(bar, report) for bar in report.bars],
        "findings": [{**asdict(f), "command": report.whole(f.command)} for f in report.findings],
        "tables": [_block(block, report) for block in report.tables],
        "quality": report.quality,
        "issues": [] if report.issues is None else report.issues.to_dicts(),
        "meta": dict(report.meta),
        **report.more,
    }


def table(block: Block, screen: Screen) -> str:  # noqa: ARG001  exact: nothing of a screen applies
    """A list of row objects, a row per line."""
    # The infinite goes where NaN goes: JSON knows neither.
    frame = block.frame.with_columns(cs.float().replace([math.inf, -math.inf, math.nan], None))
    lines = frame.write_ndjson().rstrip("\n").split("\n") if frame.width and frame.height else []
    return printable_lines("[" + ",\n ".join(lines) + "]\n")


def _bar(bar: Bar, report: Report) -> dict[str, Any]:
    notes = {"notes": [note.text for note in bar.notes], "commands": [report.whole(n.command) for n in bar.notes]}
    return {**asdict(bar), **notes}


def _block(block: Block, report: Report) -> dict[str, Any]:
    declared = {column.name: column for column in block.table.columns}
    columns = [declared[name] for name in block.frame.columns if name in declared]
    return {
        "title": block.title,
        "name": block.table.name,
        "command": report.whole(block.command),
        "note": block.note,
        "columns": [{"name": c.name, "unit": c.unit, "key": c.key, "doc": c.doc} for c in columns],
        "rows": block.frame.to_dicts(),
    }


def _finite(value: Any) -> Any:
    """The same with every NaN and infinity null, and with nothing that JSON cannot hold."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(k): _finite(v) for k, v in value.items()}
        case msgspec.Struct():
            return _finite(asdict(value))
        case list() | tuple():
            return [_finite(v) for v in value]
        case str() | int() | None:
            return value
        case _:
            return str(value)


RENDERER = Renderer("json", "JSON with raw numbers", (".json",), report=report, table=table)
