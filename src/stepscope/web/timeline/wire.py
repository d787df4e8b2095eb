"""Numbers on their way to the browser: a JSON header, then typed arrays as they lie in memory.

Layout, little-endian: 4 bytes length of the header, the header (UTF-8, padded with blanks to a multiple of 8 bytes with
those 4), then the arrays, each padded to 8 bytes. The header's `arrays` says name, type (of JavaScript's typed arrays),
byte offset behind the header, and length.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES = {"u1": "Uint8Array", "u2": "Uint16Array", "u4": "Uint32Array", "i4": "Int32Array", "f4": "Float32Array",
          "f8": "Float64Array"}  # fmt: skip


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The header and arrays as bytes. Arrays are of u1, u2, u4, i4, f4 or f8; others raise KeyError."""
    pieces, described, offset = [], [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        kind = array.dtype.newbyteorder("<").str[1:]
        described.append({"name": name, "type": _TYPES[kind], "offset": offset, "length": int(array.size)})
        data += b"\0" * (-len(data) % 8)
        pieces.append(data)
        offset += len(data)
    text = json.dumps({**header, "arrays": described}, ensure_ascii=False, allow_nan=False).encode(errors="replace")
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join((len(text).to_bytes(4, "little"), text, *pieces))
