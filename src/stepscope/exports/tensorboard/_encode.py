"""JSON text of views. Long lists are encoded piece by piece, so that their objects never exist all at once."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PIECE = 1 << 14
_encode = msgspec.json.Encoder().encode


def encoded(value: Any) -> bytes:
    """The value as JSON text, compact, in UTF-8."""
    return _encode(value)


def encoded_list(items: Iterable[Any]) -> msgspec.Raw:
    """A list of the items as JSON text, to stand in another value that is to be encoded."""
    rest: Iterator[Any] = iter(items)
    pieces = []
    while piece := list(islice(rest, _PIECE)):
        pieces.append(_encode(piece)[1:-1])
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
