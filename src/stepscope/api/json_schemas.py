"""JSON Schemas of what the verbs print with `--format json`, made from the types that they print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import polars as pl

from stepscope.comparison.effects import DELTAS, FUNCTION_DELTAS
from stepscope.comparison.model import KINDS, Cause, RuledOut
from stepscope.comparison.serving import BATCH_CHANGES
from stepscope.core.errors import UnknownName
from stepscope.core.report import Finding, Part
from stepscope.query import tables
from stepscope.renderers import json
from stepscope.reports import comparison
from stepscope.timing import BENCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.core.table import Column, Table

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Bar(TypedDict):
    label: str
    value: str
    parts: list[Part]
    notes: list[str]
    commands: list[str]
    length: float


class _Column(TypedDict):
    name: str
    unit: str | None
    key: bool
    doc: str


class _Table(TypedDict):
    title: str
    name: str
    command: str
    note: str
    columns: list[_Column]
    rows: list[dict[str, Any]]


class _Issue(TypedDict):
    code: str
    severity: str
    count: int
    example: str | None


class _Report(TypedDict):
    schema: str
    headline: str
    bars: list[_Bar]
    findings: list[Finding]
    tables: list[_Table]
    quality: list[str]
    issues: list[_Issue]
    meta: dict[str, Any]


class _Process(TypedDict):
    path: str
    rank: int | None
    pid: int | None
    host: str | None
    anchor: str
    source: str
    n_cycles: int


class _Pair(TypedDict):
    label: str
    matched_by: str
    base: list[_Process]
    other: list[_Process]


class _Comparison(TypedDict):
    schema: str
    verdict: str
    reason: str
    step_time: dict[str, Any] | None
    whole_run: dict[str, Any] | None
    kinds: list[Any]
    parts: list[Any]
    causes: list[Cause]
    ruled_out: list[RuledOut]
    attribution: list[Any]
    resources: list[Any]
    processes: list[_Pair]
    notes: list[str]
    memory: dict[str, Any]
    batches: list[Any]


class _Grouped(TypedDict):
    """Of three and more runs, or of one folder."""

    schema: str
    groups: list[dict[str, Any]]


class _Change(TypedDict):
    run: int
    kind: str
    before_ns: float
    after_ns: float
    change_ratio: float
    p_value: float | None
    reason: str


class _History(TypedDict):
    schema: str
    store: str
    headline: str
    changes: list[_Change]
    runs: list[dict[str, Any]]


class _Listed(TypedDict):
    name: str
    kind: str
    doc: str


def schema(verb: str, table: str | None = None) -> dict[str, Any]:
    """The JSON Schema of `stepscope VERB --format json`; of `show` with the columns of the table, if one is named.

    Objects may have further members. Raises UnknownName (no such verb, or it prints no JSON; table).
    """
    if verb not in _VERBS:
        raise UnknownName("verb with --format json", verb, _VERBS)
    made = _rows(tables.find(table).output) if verb == "show" and table else _VERBS[verb]()
    return {"$schema": DIALECT, "title": f"stepscope {verb}" + (f" {table}" if table else ""), **made}


def _report() -> dict[str, Any]:
    made = _of(_Report)
    made["$defs"]["_Report"]["properties"]["schema"] = {"const": json.SCHEMA}
    return made


def _comparison() -> dict[str, Any]:
    either, defined = msgspec.json.schema_components((_Comparison, _Grouped), ref_template="#/$defs/{name}")
    made: dict[str, Any] = {"anyOf": list(either), "$defs": defined}
    own = made["$defs"]["_Comparison"]["properties"]
    own["schema"] = {"const": comparison.SCHEMA}
    own["kinds"], own["parts"], own["batches"] = _rows(KINDS), _rows(DELTAS), _rows(BATCH_CHANGES)
    own["attribution"], own["resources"] = _rows(FUNCTION_DELTAS), _rows(comparison.RESOURCES_SHOWN)
    return made


def _any_rows() -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object"}}


def _of(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(kind)


def _rows(table: Table) -> dict[str, Any]:
    """A list of row objects. Several traces add `rank` or `trace`, and options of a table may leave columns out."""
    own = {column.name: _value(column) for column in table.columns}
    return {"type": "array", "description": table.doc, "items": {"type": "object", "properties": own}}


def _value(column: Column) -> dict[str, Any]:
    about = {"description": f"{column.doc} [{column.unit}]" if column.unit else column.doc}
    kind = _json_type(column.dtype)
    return about if kind is None else {**about, "type": [kind, "null"]}


def _json_type(dtype: pl.DataType) -> str | None:
    if dtype.is_integer():
        return "integer"
    if dtype.is_numeric():
        return "number"
    if isinstance(dtype, pl.Boolean):
        return "boolean"
    if isinstance(dtype, pl.List):
        return "array"
    return "string" if isinstance(dtype, (pl.String, pl.Categorical, pl.Enum)) else None


_VERBS: dict[str, Callable[[], dict[str, Any]]] = {
    "report": _report,
    "hang": _report,
    "history": lambda: _of(_History),
    "compare": _comparison,
    "predict": lambda: _rows(tables.find("predictions").output),
    "bench": lambda: _rows(BENCH),
    "tables": lambda: _of(list[_Listed]),
    "show": _any_rows,
    "sql": _any_rows,
}
