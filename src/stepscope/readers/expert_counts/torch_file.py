"""Numbers out of a file of `torch.save`, without PyTorch and without running what the file says.

Such a file is a zip: a pickle that describes values, and a member of raw numbers for each storage of a tensor. The
pickle is taken as a list of operations that say what to build. A call in it is noted as a call, and none is made.
"""

from __future__ import annotations

import lzma
import math
import pickletools
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.core import files
from stepscope.core.errors import CorruptInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PICKLE = "data.pkl"
_TYPES = {
    "LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1",
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2",
}  # fmt: skip
_MOST_PICKLE, _MOST_NUMBERS = 1 << 20, 1 << 28
#: What a member may unpack to, beyond so many times its size.
_MOST_RATIO, _MOST_UNPACKED = 200, 1 << 27
_AGAIN = "copy the file again, or write its counts as CSV"


class Call(NamedTuple):
    """A call that a pickle describes."""

    function: Any
    arguments: Any


class _Stored(NamedTuple):
    """The numbers of a tensor, by what the pickle says of their storage."""

    of: Any


def described(data: bytes) -> Any:
    """The value that a pickle describes: dicts, lists, tuples, texts, numbers and `Call`. Raises ValueError."""
    if len(data) > _MOST_PICKLE:
        raise ValueError("its description is too long")
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    try:
        for operation, argument, _ in pickletools.genops(data):
            name = operation.name
            if name in _BUILDS:
                _BUILDS[name](stack)
            elif name == "MARK":
                marks.append(len(stack))
            elif name in _CLOSES:
                at = marks.pop()
                parts = stack[at:]
                del stack[at:]
                _CLOSES[name](stack, parts)
            elif name in _PUTS:
                memo[len(memo) if argument is None else int(argument)] = stack[-1]
            elif name in _GETS:
                stack.append(memo[int(argument or 0)])
            elif argument is not None and name not in ("PROTO", "FRAME"):
                stack.append(argument)  # a number, a text or the name of a function
        return stack[-1]
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"its description is damaged: {error}") from None


def _taken(n: int) -> Callable[[list[Any]], None]:
    def take(stack: list[Any]) -> None:
        stack[len(stack) - n :] = [tuple(stack[len(stack) - n :])]

    return take


def _pair(make: Callable[[Any, Any], Any]) -> Callable[[list[Any]], None]:
    def build(stack: list[Any]) -> None:
        last = stack.pop()
        stack[-1] = make(stack[-1], last)

    return build


def _set(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    _update(stack, [key, value])


def _update(stack: list[Any], parts: list[Any]) -> None:
    """Keys that are tuples of tuples of the same tuples would take for ever to hash."""
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        stack[-1][key if isinstance(key, str | int) else str(type(key))] = value


def _append(stack: list[Any]) -> None:
    one = stack.pop()
    stack[-1].append(one)


_BUILDS: dict[str, Callable[[list[Any]], None]] = {
    "NONE": lambda stack: stack.append(None), "NEWTRUE": lambda stack: stack.append(True),
    "NEWFALSE": lambda stack: stack.append(False), "EMPTY_DICT": lambda stack: stack.append({}),
    "EMPTY_LIST": lambda stack: stack.append([]), "EMPTY_TUPLE": lambda stack: stack.append(()),
    "TUPLE1": _taken(1), "TUPLE2": _taken(2), "TUPLE3": _taken(3), "REDUCE": _pair(Call),
    "BUILD": _pair(lambda value, _: value), "STACK_GLOBAL": _pair(lambda module, name: f"{module} {name}"),
    "BINPERSID": lambda stack: stack.append(_Stored(stack.pop())), "SETITEM": _set,
    "APPEND": _append,
}  # fmt: skip
_CLOSES: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "TUPLE": lambda stack, parts: stack.append(tuple(parts)), "LIST": lambda stack, parts: stack.append(parts),
    "APPENDS": lambda stack, parts: stack[-1].extend(parts),
    "SETITEMS": _update,
}  # fmt: skip
_PUTS, _GETS = ("BINPUT", "LONG_BINPUT", "MEMOIZE", "PUT"), ("BINGET", "LONG_BINGET", "GET")


def tensor_of(path: str, name: str) -> NDArray[Any]:
    """The tensor that a file's dictionary holds by this name. Raises CorruptInput (none, or damaged)."""
    try:
        with files.opened(path) as file, zipfile.ZipFile(file) as archive:
            (inside,) = (one for one in archive.namelist() if one.rpartition("/")[2] == PICKLE)
            value = described(_bytes(archive, inside, _MOST_PICKLE))
            tensor = value.get(name) if isinstance(value, dict) else None
            return _numbers(tensor, archive, inside.removesuffix(PICKLE))
    except (
        ArithmeticError, AttributeError, EOFError, IndexError, KeyError, MemoryError, NotImplementedError, OSError,
        RuntimeError, TypeError, ValueError, lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise CorruptInput(f"no tensor {name} can be read: {error}", _AGAIN, path=path) from None


def _numbers(tensor: Any, archive: zipfile.ZipFile, folder: str) -> NDArray[Any]:
    if not isinstance(tensor, Call):
        raise KeyError("it holds none")
    stored, offset, shape, steps, *_ = tensor.arguments
    _, kind, key, _, n = stored.of
    if not all(isinstance(one, int) for one in (n, offset, *shape, *steps)) or not isinstance(key, str):
        raise TypeError("its shape or its storage has another type")
    if max(math.prod(shape), n) > _MOST_NUMBERS or len(shape) != len(steps) or min(n, offset, *shape, *steps) < 0:
        raise ValueError("its shape cannot be")
    dtype = np.dtype("<" + _TYPES[kind.rpartition(" ")[2]])
    order = f"{folder}byteorder"
    if order in archive.namelist() and _bytes(archive, order, 8) == b"big":
        dtype = dtype.newbyteorder(">")
    data = np.frombuffer(_bytes(archive, f"{folder}data/{key}", n * dtype.itemsize), dtype)
    last = offset + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    if math.prod(shape) > data.size or (math.prod(shape) and last >= data.size):
        raise ValueError("its storage is shorter than its shape")
    strides = tuple(step * dtype.itemsize for step in steps)
    return np.lib.stride_tricks.as_strided(data[offset:], shape, strides, writeable=False)


def _bytes(archive: zipfile.ZipFile, member: str, most: int) -> bytes:
    """The first bytes of a member: it may claim to be larger."""
    if most > _MOST_RATIO * archive.getinfo(member).compress_size + _MOST_UNPACKED:
        raise ValueError(f"{member} would unpack to more than {_MOST_RATIO} times its size")
    with archive.open(member) as opened:
        return opened.read(most)
