"""Parses the options of an analysis or export from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from stepscope.core.errors import StepscopeError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.options import HasOptions, Option


def flags_of(owner: HasOptions) -> dict[str, Option]:
    """The options of an analysis or export by flag, with `--no-…` for each switch."""
    flags = {}
    for option in owner.options().values():
        flags[option.flag] = option
        if option.kind is bool:
            flags["--no-" + option.flag.removeprefix("--")] = option
    return flags


def parsed(owner: HasOptions, arguments: Sequence[str], help_with: str) -> tuple[list[str], dict[str, Any]]:
    """The paths and options in the arguments after the table's name; `help_with` is the command that lists options.

    Raises typer.BadParameter, which ends with exit code 2, for an unknown option or a value that does not fit.
    """
    known = flags_of(owner)
    paths: list[str] = []
    options: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            paths.append(word)
            continue
        flag, has_value, value = word.partition("=")
        option = known.get(flag)
        if option is None:
            raise typer.BadParameter(_unknown(owner, flag, help_with))
        if option.kind is bool:
            if has_value:
                raise typer.BadParameter(f"{flag} takes no value")
            options[option.name] = flag == option.flag
            continue
        if not has_value:
            if not rest:
                raise typer.BadParameter(f"{flag} needs a value: {option.values}")
            value = rest.pop(0)
        options[option.name] = _decoded(option, value)
    return paths, options


def _unknown(owner: HasOptions, flag: str, help_with: str) -> str:
    own, n_more = nearest(flag, (option.flag for option in owner.options().values()))
    more = f" and {n_more} more" if n_more else ""
    has = f"it has {', '.join(own)}{more}" if own else "it has no options of its own"
    return f"{owner.name} has no option {flag}: {has}, and see '{help_with}'"


def _decoded(option: Option, text: str) -> Any:
    try:
        return option.decode(text, called=option.flag)
    except StepscopeError as error:
        raise typer.BadParameter(error.message) from None
