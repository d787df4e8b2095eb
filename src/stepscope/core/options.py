"""The options of analyses and exports, made from the signatures of their functions.

The command line, the page, the Python API and the docs all read them here.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import msgspec

from stepscope.core.errors import StepscopeError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    class HasOptions(Protocol):
        """Anything with its own options: an analysis, an export."""

        @property
        def name(self) -> str:
            """Its name."""

        def options(self) -> dict[str, Option]:
            """Its options by name."""


_LONGEST_TEXT = 500
_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
_KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false"}


class Option(msgspec.Struct, frozen=True):
    """One keyword option: its Python name, type, allowed values (empty: any) and default."""

    name: str
    kind: type
    choices: tuple[Any, ...]
    default: Any

    @property
    def flag(self) -> str:
        """As typed on a command line: --min-gap-ns."""
        return "--" + self.name.replace("_", "-")

    @property
    def values(self) -> str:
        """What may follow the flag; nothing for a switch."""
        if self.kind is bool:
            return ""
        return "|".join(map(str, self.choices)) or ("text" if self.kind is str else self.kind.__name__)

    def usage(self) -> tuple[str, str]:
        """The flag with its value, and the default as help shows it."""
        default = "on" if self.default is True else self.default
        shown = "" if self.default is None or self.default is False else f"[default: {default}]"
        return f"{self.flag} {self.values}".rstrip(), shown

    def decode(self, text: str, *, called: str = "") -> Any:
        """The value of a text; `called` is the option's name in errors. Raises StepscopeError."""
        given = f"{called or self.name} {text[:40]}"
        try:
            value = _as_bool(text) if self.kind is bool else self.kind(text[:_LONGEST_TEXT])
        except (ValueError, OverflowError):
            wanted = _KIND_NAMES.get(self.kind, "a text")
            raise StepscopeError(f"{given}: not {wanted}", _hint(self)) from None
        if self.choices and value not in self.choices:
            raise StepscopeError(f"{given}: choose from {', '.join(map(str, self.choices))}", _hint(self))
        return value


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only parameters of a function by name. Raises TypeError if a text cannot give a value.

    Only their annotations are evaluated: others may name what is imported for type checking alone.
    """
    options = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            annotation: Any = parameter.annotation
            if annotation is parameter.empty:
                annotation = type(parameter.default)
            if isinstance(annotation, str):
                annotation = eval(annotation, inspect.unwrap(function).__globals__)  # noqa: S307  text of our own source
            options[name] = Option(name, *_kind(name, annotation), parameter.default)
    return options


def check_options(owner: str, given: Mapping[str, Any], known: Mapping[str, Option]) -> None:
    """Raises UnknownName for the first option that `owner` does not have, or whose value is none of its choices."""
    for name, value in given.items():
        if name not in known:
            raise UnknownName(f"option of {owner}", name, known)
        if known[name].choices and value not in known[name].choices:
            raise UnknownName(f"choice of {name} for {owner}", str(value), map(str, known[name].choices))


def _kind(name: str, annotation: Any) -> tuple[type, tuple[Any, ...]]:
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not types.NoneType)
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        return type(choices[0]), choices
    if annotation in (bool, int, float, str):
        return annotation, ()
    msg = f"option {name}: no text can give a {annotation!r}"
    raise TypeError(msg)


def _hint(option: Option) -> str:
    default = "none" if option.default is None else str(option.default)
    return f"without it, {option.name} is {default}"


def _as_bool(text: str) -> bool:
    if text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    raise ValueError
