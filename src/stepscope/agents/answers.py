"""Answers for agents: one shape for every tool, never longer than 8 kB, with what to ask next."""

from __future__ import annotations

import json
import math
import shlex
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict  # pydantic refuses the one of `typing` before Python 3.12

from stepscope.core.report import printable
from stepscope.query import tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from stepscope.core.report import Finding, Report
    from stepscope.core.table import Table

SCHEMA = "stepscope.answer/1"
#: Bytes of a whole answer as it is sent. It holds the JSON twice: as text for clients that read nothing else.
MOST_BYTES = 8_000
_LONGEST_TEXT = 600
_ENVELOPE = 200
#: What an answer is shortened by, in this order: the last are the most useful.
_LISTS = ("rows", "evidence", "bars", "quality", "findings", "next", "columns")


class Answer(TypedDict, total=False):
    """What every tool answers. Times are ns, sizes bytes, ratios 0 to 1; `columns` have the units of `rows`."""

    schema: str
    run: str
    headline: str
    bars: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    rows: list[list[Any]]
    n_rows: int
    evidence: dict[str, Any]
    quality: list[str]
    next: list[dict[str, Any]]
    narrow: str


def fitted(answer: Mapping[str, Any], narrow: str) -> Answer:
    """The answer with at most MOST_BYTES; if something had to go, `narrow` says how to ask for less."""
    whole = {"schema": SCHEMA} | {key: _plain(value) for key, value in answer.items() if value not in (None, [], "")}
    while size(whole) > MOST_BYTES:
        whole["narrow"] = f"This answer is cut. {narrow}"
        _shorten(whole)
    return whole  # type: ignore[return-value]  # its keys are those of the callers in this folder


def size(answer: Mapping[str, Any]) -> int:
    """Bytes of the answer as it is sent, with the text of it beside the object."""
    text = json.dumps(answer, ensure_ascii=False)
    return len(text.encode()) + len(json.dumps(text, ensure_ascii=False).encode()) + _ENVELOPE


def _shorten(whole: dict[str, Any]) -> None:
    for name in _LISTS:
        if name == "evidence" and whole.pop(name, None):
            return
        rows = whole.get(name, [])
        if len(rows) > (1 if name in ("rows", "findings") else 0):
            whole[name] = rows[: len(rows) * 3 // 4]
            if name == "columns":
                whole["rows"] = [row[: len(whole[name])] for row in whole.get("rows", [])]
            return
    details = [one["details"] for one in whole.get("findings", []) if one.get("details")]
    if details:
        details[0].pop()
        return
    for name in ("rows", "findings"):
        whole.pop(name, None)
    whole["headline"] = str(whole.get("headline", ""))[:_LONGEST_TEXT]


def _plain(value: Any) -> Any:
    """The value for JSON: floats with six digits, texts in one line and of bounded length."""
    match value:
        case bool() | int() | None:
            return value
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    text = printable(str(value)).encode("utf-8", "backslashreplace").decode()
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}…{text[-half:]}"


def of_table(frame: pl.DataFrame, table: Table, limit: int) -> dict[str, Any]:
    """The first rows of a table with its columns' units."""
    units = {column.name: column.unit for column in table.columns}
    shown = [{"name": name, "unit": unit} if (unit := units.get(name)) else {"name": name} for name in frame.columns]
    return {"columns": shown, "rows": [list(row) for row in frame.head(limit).iter_rows()], "n_rows": frame.height}


def of_report(report: Report) -> dict[str, Any]:
    """The headline, bars and findings of a report. Findings are numbered from 1, as `explain` takes them."""
    bars = [
        {
            "label": bar.label,
            "value": bar.value,
            "parts": {part.name: part.ratio for part in bar.parts},
            "notes": [note.text for note in bar.notes],
        }
        for bar in report.bars
    ]
    findings = [_finding(number, one) for number, one in enumerate(report.findings, 1)]
    return {"headline": report.headline, "bars": bars, "findings": findings, "quality": list(report.quality)}


def _finding(number: int, finding: Finding) -> dict[str, Any]:
    of_all = {
        "finding": number,
        "title": finding.title,
        "details": list(finding.details),
        "value_ns": finding.value_ns,
        "value_label": finding.value_label,
        "share_ratio": finding.share_ratio,
        "predict": finding.gain.question.split("\n") if finding.gain else None,
    }
    return {key: value for key, value in of_all.items() if value not in (None, "", [])}


def call_of(command: str) -> dict[str, Any] | None:
    """The arguments of the tool `show` for a command of a report, 'show idle --by gap'; None for other verbs."""
    verb, *rest = shlex.split(command) or [""]
    if verb != "show" or not rest:
        return None
    table, *rest = rest
    options = {option.flag: option for option in tables.find(table).options().values()}
    call: dict[str, Any] = {"table": table}
    while rest:
        flag, has_value, value = rest.pop(0).partition("=")
        option = options.get(flag)
        if option is not None and option.kind is bool:
            call.setdefault("options", {})[option.name] = True
            continue
        value = value if has_value or not rest else rest.pop(0)
        if option is not None:
            call.setdefault("options", {})[option.name] = option.decode(value)
        elif flag in ("--where", "--sort", "--group-by", "--columns"):
            call[flag.removeprefix("--").replace("-", "_")] = value
    return call


def ask(tool: str, why: str, **arguments: Any) -> dict[str, Any]:
    """One next question, as a call that can be made as it is."""
    return {"tool": tool, "arguments": arguments, "why": why}


def calls_of(report: Report, run: str) -> Sequence[dict[str, Any]]:
    """What to ask after a report: the tables that its findings name."""
    calls = [(call, one.title) for one in report.findings if (call := call_of(one.command)) is not None]
    return [ask("show", title[:80], run=run, **call) for call, title in calls[:3]]
