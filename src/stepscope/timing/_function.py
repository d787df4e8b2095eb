"""A callable by its name, the framework it works with, its arguments, and which of its failures are its own."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.errors import FunctionFailed, StepscopeError, nearest
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_NAME = regex(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
#: Libraries whose arrays can be made, NumPy aside; each is also the name of its package.
FRAMEWORKS = ("torch", "paddle")


class Function(msgspec.Struct, frozen=True):
    """A callable, what it is called in tables ('module:function'), and the module that holds it."""

    label: str
    call: Callable[..., object]
    module: str


def is_a_name(text: str) -> bool:
    """Whether the text has the form MODULE:FUNCTION."""
    return _NAME.fullmatch(text) is not None


def resolve(named: Callable[..., object] | str) -> Function:
    """The function itself, or the one named 'module:function' (or 'module:Class.method').

    Raises StepscopeError: not of that form, no such module, no such function, not callable; FunctionFailed: the module
    raised when it was imported.
    """
    if not isinstance(named, str):
        if not callable(named):
            raise StepscopeError(
                f"what is of type {type(named).__name__} cannot be called", "give a function or 'module:function'"
            )
        module = getattr(named, "__module__", None) or ""
        name = getattr(named, "__qualname__", None) or getattr(named, "__name__", None) or type(named).__qualname__
        return Function(f"{module}:{name}" if module else name, named, module)
    if not is_a_name(named):
        hint = "write it as the import does: kernels.attention:forward is forward of kernels/attention.py"
        raise StepscopeError(f"{named!r} is not of the form MODULE:FUNCTION", hint)
    module_name, _, path = named.partition(":")
    target: Any = _imported(module_name)
    for word in path.split("."):
        target = _attribute(target, word, module_name)
    if not callable(target):
        raise StepscopeError(f"{named} is of type {type(target).__name__} and cannot be called", "name a function")
    return Function(named, target, module_name)


def _imported(name: str) -> ModuleType:
    # The missing module may be this one, or one that it imports, which is the module's own error.
    try:
        with blamed(f"importing {name}"):
            return importlib.import_module(name)
    except StepscopeError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise
        hint = "modules are searched for in the current folder and among the installed packages"
        if name.endswith(".py"):
            hint = f"write {name.removesuffix('.py')}, as the import does"
        raise StepscopeError(f"no module named {missing!r}", hint) from None


def _attribute(owner: Any, word: str, module: str) -> Any:
    try:
        return getattr(owner, word)
    except AttributeError:
        functions = [name for name in dir(owner) if not name.startswith("_") and callable(getattr(owner, name, None))]
        offered, n_more = nearest(word, functions)
        more = f" and {n_more} more" if n_more else ""
        where = module if isinstance(owner, ModuleType) else getattr(owner, "__qualname__", module)
        hint = f"it has {', '.join(offered)}{more}" if offered else "it has none"
        raise StepscopeError(f"{where} has no function {word!r}", hint) from None


def framework_of(function: Function) -> str:
    """The library whose arrays the function takes: 'torch', 'paddle', or 'numpy' if neither is in its module.

    A function of the library itself, or of a module that has imported it at its top, works with it. Raises
    StepscopeError if the module has imported both.
    """
    for name in (function.module, getattr(function.call, "__module__", None) or ""):
        if name.partition(".")[0] in FRAMEWORKS:
            return name.partition(".")[0]
    inner = inspect.unwrap(function.call)
    space = getattr(inner, "__globals__", None) or vars(sys.modules.get(function.module, ModuleType("none")))
    modules = {value.__name__.partition(".")[0] for value in space.values() if isinstance(value, ModuleType)}
    frameworks = [name for name in FRAMEWORKS if name in modules]
    if len(frameworks) > 1:
        hint = 'say which: {"shape": [16, 32], "library": "torch"}'
        raise StepscopeError(f"{function.label} may take arrays of {' or '.join(frameworks)}", hint)
    return frameworks[0] if frameworks else "numpy"


def bound(function: Function, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call. Names that are numbers are positions: 0 is the first.

    Positional-only parameters may be given by name too. Raises StepscopeError for arguments that the
    function does not take or that it lacks, as far as its signature is known.
    """
    numbered = {int(name): value for name, value in arguments.items() if name.isdecimal()}
    if sorted(numbered) != list(range(len(numbered))):
        raise StepscopeError(
            f"arguments of {function.label} stand at positions {', '.join(map(str, sorted(numbered)))}",
            "positions begin with 0 and have no gaps",
        )
    positional = [numbered[at] for at in sorted(numbered)]
    named = {name: value for name, value in arguments.items() if not name.isdecimal()}
    signature = _signature(function.call)
    if signature is None:
        return tuple(positional), named
    only = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    for name in only[len(positional) :]:
        if name not in named:
            break
        positional.append(named.pop(name))
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        given = ", ".join(arguments) or "no arguments"
        short = function.label.rpartition(":")[2]
        raise StepscopeError(
            f"{function.label} cannot be called with {given}: {error}", f"it takes {short}{signature}"
        ) from None
    return tuple(positional), named


def _signature(call: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):  # of many builtins there is none
        return None


#: Frames of these files stand between our call and the user's code.
_OURS = (str(Path(__file__).parent), contextlib.__file__, str(importlib.__file__), "<frozen importlib")


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn every exception raised inside into a FunctionFailed that begins with `what` and has the exception as cause.

    This includes SystemExit: a function that ends the process would leave no result and perhaps exit code 0.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        said = str(error).strip().split("\n", 1)[0]
        raise FunctionFailed(
            f"{what} raised {type(error).__name__}" + (f": {said}" if said else ""),
            "the error is in that code; this error's cause is what it raised, with its traceback",
        ) from error


def own_traceback(error: FunctionFailed) -> str:
    """The traceback of what was raised, without our own frames above it; empty if there is no cause."""
    cause = error.__cause__
    if cause is None:
        return ""
    frames = cause.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(cause), cause, frames))
