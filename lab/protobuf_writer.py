"""Writes protobuf's wire format field by field: for files of tests and of benchmarks, without the package."""

from __future__ import annotations

import struct


def varint(number: int) -> bytes:
    """A number as protobuf writes it; negative ones as 64 bits."""
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field that is a varint."""
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes | str) -> bytes:
    """A field that is a text or a message."""
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def single(field: int, value: float) -> bytes:
    """A field that is a float."""
    return varint(field << 3 | 5) + struct.pack("<f", value)


def double(field: int, value: float) -> bytes:
    """A field that is a double."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def fixed(field: int, value: int) -> bytes:
    """A field that is a number of 64 bits."""
    return varint(field << 3 | 1) + struct.pack("<Q", value)
