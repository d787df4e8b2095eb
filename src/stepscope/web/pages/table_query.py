"""From the words of an address to a table: which one, with which options, filtered, grouped, sorted, cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import polars.selectors as cs

from stepscope.core.errors import StepscopeError
from stepscope.query import tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.schema import Table
    from stepscope.web.session import Session


_OPTION = "o."
_LONGEST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of a table as a form shows it: its name, what it may be (none: anything), its value now."""

    name: str
    kind: str
    values: tuple[str, ...]
    value: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a table of some inputs with options, and how its rows are arranged."""

    name: str
    inputs: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()
    where: str = ""
    search: str = ""
    group: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An answer: rows, the schema of their columns, and what was left out, in words."""

    frame: pl.DataFrame
    table: Table
    notes: tuple[str, ...] = field(default=())


def question_of(name: str, inputs: Sequence[int], words: Mapping[str, str]) -> Question:
    """The question in an address' parameters. Raises UnknownName (table), StepscopeError (an option's value)."""
    analysis = tables.find(name)
    known = analysis.options()
    options = []
    for option in known.values():
        text = words.get(_OPTION + option.name, "")
        if text:
            options.append((option.name, option.decode(text)))
    return Question(
        name,
        tuple(inputs),
        tuple(options),
        _text(words, "where"),
        _text(words, "search"),
        _listed(words, "group"),
        _listed(words, "sort"),
        _listed(words, "columns"),
    )


def _text(words: Mapping[str, str], name: str) -> str:
    text = words.get(name, "").strip()
    if len(text) > _LONGEST_TEXT:
        raise StepscopeError(f"{name} is too long", f"at most {_LONGEST_TEXT} letters")
    return text


def _listed(words: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in _text(words, name).split(",") if word.strip("+- "))


def choices(name: str, chosen: Mapping[str, Any]) -> list[Choice]:
    """The options of a table, for a form."""
    found = []
    for option in tables.find(name).options().values():
        values, value = option.choices, chosen.get(option.name, option.default)
        if option.kind is bool:
            values, value = ("true", "false"), str(bool(value)).lower()
        shown = "" if value is None else str(value)
        found.append(Choice(option.name, option.kind.__name__, tuple(map(str, values)), shown))
    return found


def answered(session: Session, question: Question) -> Found:
    """The table as its analysis gives it, all rows. Raises StepscopeError."""
    analysis = tables.find(question.name)
    inputs = question.inputs
    if analysis.scope == "pair" and len(inputs) != 2:
        raise StepscopeError(f"{question.name} compares two traces", "pick two under Compare")
    notes: list[str] = []
    source = session.run(inputs)
    frame, table = tables.collect(
        source,
        analysis,
        where=question.where or None,
        on_missing=lambda label, error: notes.append(f"{label} is left out: {error.message}"),
        **dict(question.options),
    )
    return Found(frame, table, tuple(notes))


def arranged(found: Found, question: Question) -> Found:
    """The rows searched, grouped, sorted, with the columns asked for. Raises UnknownName (column)."""
    frame, table = found.frame, found.table
    if question.search:
        texts = frame.select(cs.string() | cs.categorical() | cs.enum()).columns
        sought = question.search.lower()
        hits = [pl.col(c).cast(pl.String).str.to_lowercase().str.contains(sought, literal=True) for c in texts]
        frame = frame.filter(pl.any_horizontal(hits)) if hits else frame.clear()
    if question.group:
        frame, table = tables.grouped(frame, table, question.group)
    frame = tables.ordered(frame, table, question.sort)
    return Found(tables.chosen(frame, question.columns), table, found.notes)
