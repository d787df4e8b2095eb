"""What a function is called with: every combination of a sweep's values, and the cases that are written out.

A sweep is a table (of a TOML or JSON file, or a mapping) with up to four parts, which are tables but for the last:

    arguments   passed in every case
    sweep       argument = list of values: every combination is a case, the last varies fastest
    variables   not passed, only named by the shapes and dtypes of arrays; a list of values is part of the sweep
    cases       list of tables: additional cases, in which arguments and variables have these values
"""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.errors import StepscopeError
from stepscope.timing._arrays import array_spec

PARTS = ("arguments", "sweep", "variables", "cases")
#: More cases are a mistake: even at a tenth of a second each, these take a quarter of an hour.
MAX_CASES = 10_000
_HINT = "a sweep holds the tables arguments, sweep and variables, and the list of tables cases"


class Case(msgspec.Struct, frozen=True):
    """Arguments of one call, arrays as specs; and the variables that gave them their shapes."""

    arguments: Mapping[str, Any]
    variables: Mapping[str, Any]


class _Always(msgspec.Struct, frozen=True):
    """What holds in every case: arguments, variables of one value, and the names of all variables."""

    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    variables: frozenset[str]


def read_sweep(path: str) -> Mapping[str, Any]:
    """The content of a .toml or .json file. Raises StepscopeError: unreadable, of another kind, malformed."""
    suffix = Path(path).suffix.lower()
    if suffix not in {".toml", ".json"}:
        raise StepscopeError(f"{path} is not a sweep file", "its name ends in .toml or .json")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        content = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise StepscopeError(f"cannot read {path}: {error.strerror or error}", "check the path") from None
    except (ValueError, RecursionError) as error:
        raise StepscopeError(f"{path} is not valid {suffix[1:].upper()}: {error}", _HINT) from None
    if not isinstance(content, dict):
        raise StepscopeError(f"{path} holds a {type(content).__name__}, not a table", _HINT)
    return content


def cases_of(document: Mapping[str, Any], fixed: Mapping[str, Any], *, where: str = "sweep") -> tuple[Case, ...]:
    """The cases in order: combinations first, then those written out; one without arguments if there is nothing.

    `fixed` are arguments that have this value in every case, whatever the document says; `where` names the document in
    errors. Raises StepscopeError.
    """
    for part in document:
        if part not in PARTS:
            raise StepscopeError(f"{where}: unknown part {part!r}", _HINT)
    arguments, sweep, variables = (_table(document, part, where) for part in PARTS[:-1])
    written = document.get("cases", [])
    if not isinstance(written, list | tuple) or not all(isinstance(case, Mapping) for case in written):
        raise StepscopeError(f"{where}: cases are a list of tables", _HINT)
    for name, value in fixed.items():
        if name in variables:
            variables[name] = value
        else:
            sweep.pop(name, None)
            arguments[name] = value
    _check_names(arguments, sweep, variables, where)
    axes = {name: value for name, value in variables.items() if isinstance(value, list)} | sweep
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise StepscopeError(f"{where}: {name} of the sweep is {values!r}", "give a list of one value or more")
    constants = {name: value for name, value in variables.items() if name not in axes}
    n_cases = math.prod(map(len, axes.values())) + len(written)
    if n_cases > MAX_CASES:
        raise StepscopeError(f"{where} has {n_cases:,} cases", f"{MAX_CASES:,} are the most")
    chosen: list[Mapping[str, Any]] = []
    if axes or not written:
        chosen += [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    # A list that is fixed for a variable takes the place of its list in the sweep, which written cases have no part in.
    replaced = set(fixed) - set(axes)
    chosen += [{name: value for name, value in case.items() if name not in replaced} for case in written]
    always = _Always(arguments, constants, frozenset(variables))
    return tuple(_case(always, one, f"{where}, case {at}") for at, one in enumerate(chosen, 1))


def _table(document: Mapping[str, Any], part: str, where: str) -> dict[str, Any]:
    table = document.get(part, {})
    if not isinstance(table, Mapping):
        raise StepscopeError(f"{where}: {part} is a {type(table).__name__}, not a table", _HINT)
    return dict(table)


def _check_names(
    arguments: Mapping[str, Any], sweep: Mapping[str, Any], variables: Mapping[str, Any], where: str
) -> None:
    twice = sorted((set(arguments) & set(sweep)) | (set(variables) & {*arguments, *sweep}))
    if twice:
        raise StepscopeError(
            f"{where}: {', '.join(twice)} stands in two parts", "a name is an argument, swept, or a variable"
        )


def _case(always: _Always, chosen: Mapping[str, Any], where: str) -> Case:
    given = {**always.arguments, **{name: value for name, value in chosen.items() if name not in always.variables}}
    inner = {**always.constants, **{name: value for name, value in chosen.items() if name in always.variables}}
    missing = sorted(always.variables - set(inner))
    if missing:
        raise StepscopeError(f"{where} lacks a value for {', '.join(missing)}", "a written case gives each variable")
    names = {name: value for name, value in {**given, **inner}.items() if isinstance(value, int | str)}
    return Case({name: _value(value, names, f"{where}, {name}") for name, value in given.items()}, inner)


def _value(value: Any, names: Mapping[str, Any], where: str) -> Any:
    if isinstance(value, Mapping):
        return array_spec(value, names, where)
    return [_value(inner, names, where) for inner in value] if isinstance(value, list) else value
