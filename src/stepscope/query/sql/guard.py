"""Accepts one SELECT over tables by name and nothing else. DuckDB's own parser says what it is.

That a statement begins with SELECT says little: `WITH x AS (COPY … TO 'file')` is one to DuckDB, and so is a call of
`query('…')`. So every node of the parsed statement must be of a sort that only reads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duckdb import DuckDBPyConnection

_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_FUNCTIONS = {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
_HINT = (
    'one SELECT over the tables that `stepscope tables` lists, as in "SELECT name, sum(dur_ns) FROM spans GROUP BY 1"'
)


class Names(msgspec.Struct, frozen=True):
    """Tables that a query names, as (schema, table), the schema empty where it names none.

    `shadowed` are those that it also gives to a part of itself (WITH): it may mean the one or the other.
    """

    tables: tuple[tuple[str, str], ...]
    shadowed: frozenset[str]


def names_in(text: str, connection: DuckDBPyConnection) -> Names:
    """The tables that a query reads. Raises StepscopeError if it is not SQL, or does anything but read them."""
    row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    parsed = json.loads(row[0] if row else "{}")
    if parsed.get("error"):
        reason = str(parsed.get("error_message", "")).splitlines()
        if parsed.get("error_type") == "parser":
            raise StepscopeError(f"not SQL: {reason[0] if reason else 'it cannot be parsed'}", _HINT)
        raise StepscopeError("a query may only read, and this is not a SELECT", _HINT)
    statements = parsed.get("statements", [])
    if len(statements) != 1:
        raise StepscopeError(f"a query is one statement, and these are {len(statements)}", _HINT)
    nodes = list(_nodes(statements[0]))
    for node in nodes:
        _check(node)
    tables = [(node.get("schema_name", ""), node["table_name"]) for node in nodes if node.get("type") == "BASE_TABLE"]
    parts = [entry["key"].lower() for node in nodes if "cte_map" in node for entry in node["cte_map"].get("map", [])]
    return Names(tuple(dict.fromkeys(tables)), frozenset(parts))


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of a parsed statement. It does not recurse, as queries may be nested deeply."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            yield value
            rest += reversed(value.values())
        elif isinstance(value, list):
            rest += reversed(value)


def _check(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _NODES:
        what = kind.removesuffix("_NODE").removesuffix("_QUERY")
        raise StepscopeError(f"a query may only read: {what} is not allowed in it", _HINT)
    if kind == "TABLE_FUNCTION":
        name = str(node["function"]["function_name"]).lower()
        if name not in _FUNCTIONS:
            raise StepscopeError(f"a query reads the tables of its traces, nothing else: no {name}(…)", _HINT)
    if kind == "SHOW_REF" and node.get("show_type") == "SHOW_SPECIAL":
        raise StepscopeError("a query can use only the tables that it names", "`stepscope tables` lists them")
