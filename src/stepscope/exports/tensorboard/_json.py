"""Numbers and lists as the plugin's JSON has them.

Long lists are encoded piece by piece, so that their objects never exist all at once.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray


def rounded(values: NDArray[Any]) -> list[int]:
    """Each to the nearest integer, halves to the even one."""
    return [round(v) for v in values.tolist()]


def shown(value: float) -> float:
    """The value with two decimals; below one hundredth, with the first digit that is not 0."""
    size = abs(value)
    if size >= 0.01 or value == 0:
        return round(value, 2)
    return round(value, abs(math.floor(math.log10(size))))


_PIECE = 1 << 14
_encode = msgspec.json.Encoder().encode


def encoded(value: Any) -> bytes:
    """The value as JSON text, compact, in UTF-8."""
    return _encode(value)


def encoded_list(items: Iterable[Any]) -> msgspec.Raw:
    """A list of the items as JSON text, for use inside another value that will be encoded."""
    rest: Iterator[Any] = iter(items)
    pieces = []
    while piece := list(islice(rest, _PIECE)):
        pieces.append(_encode(piece)[1:-1])
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
