"""From the parameters of an address to a table: which one, its options, its filter, its groups, its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import polars.selectors as cs

from stepscope.core.errors import StepscopeError
from stepscope.query import tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.table import Table
    from stepscope.query.map_files import Each
    from stepscope.web.session import Session


_OPTION = "o."
_LONGEST_TEXT = 500


class Choice(msgspec.Struct, frozen=True):
    """An option of a table as a form shows it: its name, what it may be (none: anything), its value now."""

    name: str
    kind: str
    values: tuple[str, ...]
    value: str


class Question(msgspec.Struct, frozen=True):
    """A request for a table: its inputs, its options, and how its rows are arranged."""

    name: str
    inputs: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()
    where: str = ""
    search: str = ""
    group: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, eq=False):
    """The rows, the schema of their columns, and a sentence about each trace that was left out."""

    frame: pl.DataFrame
    table: Table
    remarks: tuple[str, ...] = msgspec.field(default=())


def question_of(name: str, inputs: Sequence[int], parameters: Mapping[str, str]) -> Question:
    """The question in an address' parameters. Raises UnknownName (table), StepscopeError (an option's value)."""
    analysis = tables.find(name)
    known = analysis.options()
    options = []
    for option in known.values():
        text = parameters.get(_OPTION + option.name, "")
        if text:
            options.append((option.name, option.decode(text)))
    return Question(
        name,
        tuple(inputs),
        tuple(options),
        _text(parameters, "where"),
        _text(parameters, "search"),
        _listed(parameters, "group"),
        _listed(parameters, "sort"),
        _listed(parameters, "columns"),
    )


def _text(parameters: Mapping[str, str], name: str) -> str:
    text = parameters.get(name, "").strip()
    if len(text) > _LONGEST_TEXT:
        raise StepscopeError(f"{name} is too long", f"at most {_LONGEST_TEXT} letters")
    return text


def _listed(parameters: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in _text(parameters, name).split(",") if word.strip("+- "))


def choices(name: str, chosen: Mapping[str, Any]) -> list[Choice]:
    """The options of a table, for a form."""
    fields = []
    for option in tables.find(name).options().values():
        values, value = option.choices, chosen.get(option.name, option.default)
        if option.kind is bool:
            values, value = ("true", "false"), str(bool(value)).lower()
        shown = "" if value is None else str(value)
        fields.append(Choice(option.name, option.kind.__name__, tuple(map(str, values)), shown))
    return fields


def answered(session: Session, question: Question, *, each: Each | None = None) -> Answer:
    """The table as its analysis gives it, all rows; `each` is that of `tables.collect`. Raises StepscopeError."""
    analysis = tables.find(question.name)
    inputs = question.inputs
    if analysis.scope == "pair" and len(inputs) != 2:
        raise StepscopeError(f"{question.name} compares two traces", "choose two on the page Compare")
    remarks: list[str] = []
    source = session.run(inputs)
    frame, table = tables.collect(
        source,
        analysis,
        where=question.where or None,
        each=each,
        on_missing=lambda label, error: remarks.append(f"{label} is left out: {error.message}"),
        **dict(question.options),
    )
    return Answer(frame, table, tuple(remarks))


def arranged(answer: Answer, question: Question) -> Answer:
    """The rows searched, grouped, sorted, with the columns asked for. Raises UnknownName (column)."""
    frame, table = answer.frame, answer.table
    if question.search:
        texts = frame.select(cs.string() | cs.categorical() | cs.enum()).columns
        sought = question.search.lower()
        hits = [pl.col(c).cast(pl.String).str.to_lowercase().str.contains(sought, literal=True) for c in texts]
        frame = frame.filter(pl.any_horizontal(hits)) if hits else frame.clear()
    if question.group:
        frame, table = tables.grouped(frame, table, question.group)
    frame = tables.ordered(frame, table, question.sort)
    return Answer(tables.chosen(frame, question.columns), table, answer.remarks)
