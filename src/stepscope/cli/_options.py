"""An analysis' own options on the command line, made from the signature of its function."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import typer

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence
    from typing import Protocol

    class Optioned(Protocol):
        """What has options of its own: an analysis, an export."""

        @property
        def name(self) -> str:
            """Its name."""

        def options(self) -> dict[str, inspect.Parameter]:
            """Its options by name."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its Python name, what its value may be, and its default."""

    name: str
    kind: type
    choices: tuple[Any, ...]
    default: Any

    @property
    def flag(self) -> str:
        """As typed: --min-gap-ns."""
        return "--" + self.name.replace("_", "-")

    @property
    def values(self) -> str:
        """What may follow it, in words; nothing for a switch."""
        if self.kind is bool:
            return ""
        words = [str(choice) for choice in self.choices]
        return "|".join(words) or ("text" if self.kind is str else self.kind.__name__)

    def usage(self) -> tuple[str, str]:
        """The flag with its value, and the default, in words."""
        default = "on" if self.default is True else self.default
        shown = "" if self.default is None or self.default is False else f"[default: {default}]"
        return f"{self.flag} {self.values}".rstrip(), shown


def options_of(analysis: Optioned) -> dict[str, Option]:
    """The options of an analysis (or export) by flag, `--no-…` for switches that are on by default included."""
    found = {}
    for name, parameter in analysis.options().items():
        option = Option(name, *_kind(parameter), parameter.default)
        found[option.flag] = option
        if option.kind is bool:
            found["--no-" + option.flag.removeprefix("--")] = option
    return found


def parsed(analysis: Optioned, words: Sequence[str], help_with: str) -> tuple[list[str], dict[str, Any]]:
    """Paths and options among the words that follow the table's name; `help_with` is the command that lists them.

    Raises typer.BadParameter, which ends with exit code 2, for an unknown option or a value that does not fit.
    """
    known = options_of(analysis)
    paths: list[str] = []
    options: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            paths.append(word)
            continue
        flag, has_value, value = word.partition("=")
        option = known.get(flag)
        if option is None:
            raise typer.BadParameter(_unknown(analysis, flag, known, help_with))
        if option.kind is bool:
            if has_value:
                raise typer.BadParameter(f"{flag} takes no value")
            options[option.name] = flag == option.flag
            continue
        if not has_value:
            if not rest:
                raise typer.BadParameter(f"{flag} needs a value: {option.values}")
            value = rest.pop(0)
        options[option.name] = _value(option, value)
    return paths, options


def _unknown(analysis: Optioned, flag: str, known: dict[str, Option], help_with: str) -> str:
    own = ", ".join(sorted({option.flag for option in known.values()}))
    has = f"it has {own}" if own else "it has no options of its own"
    return f"{analysis.name} has no option {flag}: {has}, and see '{help_with}'"


def _kind(parameter: inspect.Parameter) -> tuple[type, tuple[Any, ...]]:
    annotation: Any = parameter.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not types.NoneType)
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        return type(choices[0]), choices
    if annotation in (bool, int, float, str):
        return annotation, ()
    msg = f"option {parameter.name}: the command line cannot fill in {annotation!r}"
    raise TypeError(msg)


def _value(option: Option, text: str) -> Any:
    try:
        value = option.kind(text)
    except ValueError:
        raise typer.BadParameter(f"{option.flag} {text}: not {_a(option.kind)}") from None
    if option.choices and value not in option.choices:
        raise typer.BadParameter(f"{option.flag} {text}: choose from {', '.join(map(str, option.choices))}")
    return value


def _a(kind: type) -> str:
    return {int: "a whole number", float: "a number"}.get(kind, "a text")
