"""Keyword options of a function: the command line and the docs are made from them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def keyword_options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function by name, their annotations as types.

    Only those are evaluated: other annotations may name what is imported for type checking alone.
    """
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kind = parameter.annotation
            if isinstance(kind, str):
                kind = eval(kind, inspect.unwrap(function).__globals__)  # noqa: S307  text of our own source
            found[name] = parameter.replace(annotation=kind)
    return found
