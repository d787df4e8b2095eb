"""Messages of Paddle's protobuf export: their fields that are read, and the small ones, which are decoded whole.

Fields are given by their number: (name, kind), see `Wire.columns`. What is not here is skipped.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.protobuf import BYTES, FLOAT, INT, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.readers.common.protobuf import Contents

MANY = BYTES + "*"
DOCUMENT = {
    1: ("version", BYTES), 2: ("span_index", INT), 3: ("threads", MANY), 4: ("extra", MANY), 5: ("devices", MANY),
}  # fmt: skip
THREAD = {1: ("tid", INT), 2: ("nodes", MANY)}
HOST_NODE = {
    1: ("id", INT), 2: ("parent", INT), 3: ("event", BYTES), 4: ("runtime", MANY), 5: ("memory", MANY),
    6: ("arguments", MANY),
}  # fmt: skip
HOST_EVENT = {
    1: ("name", BYTES), 2: ("type", INT), 3: ("start", INT), 4: ("end", INT), 5: ("pid", INT), 6: ("tid", INT),
}  # fmt: skip
RUNTIME_NODE = {1: ("event", BYTES), 2: ("device", MANY)}
RUNTIME_EVENT = {
    1: ("name", BYTES), 2: ("start", INT), 3: ("end", INT), 4: ("pid", INT), 5: ("tid", INT), 6: ("correlation", INT),
}  # fmt: skip
WRAPPER = {1: ("event", BYTES)}
DEVICE_EVENT = {
    1: ("name", BYTES), 2: ("type", INT), 3: ("start", INT), 4: ("end", INT), 5: ("device", INT), 7: ("stream", INT),
    8: ("correlation", INT), 9: ("kernel", BYTES), 10: ("memcpy", BYTES), 11: ("memset", BYTES),
}  # fmt: skip
KERNEL = {
    1: ("block_x", INT), 2: ("block_y", INT), 3: ("block_z", INT), 4: ("grid_x", INT), 5: ("grid_y", INT),
    6: ("grid_z", INT), 7: ("dynamic", INT), 8: ("static", INT), 9: ("registers", INT), 15: ("blocks_per_sm", FLOAT),
    16: ("warps_per_sm", FLOAT), 17: ("est_occupancy_ratio", FLOAT),
}  # fmt: skip
MEMCPY = {1: ("bytes", INT), 3: ("src", BYTES), 4: ("dst", BYTES)}
MEMSET = {1: ("bytes", INT), 2: ("dst", BYTES)}
MEMORY = {
    1: ("ts", INT), 2: ("type", INT), 3: ("address", INT), 4: ("pid", INT), 5: ("tid", INT), 6: ("bytes", INT),
    7: ("place", BYTES), 8: ("allocated", INT), 9: ("reserved", INT), 10: ("peak_allocated", INT),
    11: ("peak_reserved", INT),
}  # fmt: skip
ARGUMENTS = {5: ("shapes", BYTES), 6: ("types", BYTES), 7: ("stack", BYTES)}
PAIR = {1: ("key", BYTES), 2: ("value", BYTES)}
DEVICE_PROPERTY = {
    1: ("id", INT), 2: ("name", BYTES), 3: ("totalGlobalMem", INT), 4: ("computeMajor", INT),
    5: ("computeMinor", INT), 13: ("smCount", INT),
}  # fmt: skip
KEYED = {1: ("keys", MANY), 2: ("values", MANY)}


def pairs(wire: Wire, messages: Contents) -> dict[str, str]:
    """Messages of a key and a value."""
    found = wire.columns(messages, PAIR)
    keys, values = (wire.slices(found[name]) for name in ("key", "value"))
    return {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in zip(keys, values, strict=True)}


def device_properties(wire: Wire, messages: Contents) -> list[dict[str, Any]]:
    """What each device is, by the names that JSON has for it."""
    found = wire.columns(messages, DEVICE_PROPERTY)
    names = [name.decode("utf-8", "replace") for name in wire.slices(found.pop("name"))]
    columns = {key: [None if v == ABSENT else v for v in values.tolist()] for key, values in found.items()}
    return [{"name": name, **{key: values[i] for key, values in columns.items()}} for i, name in enumerate(names)]


def keyed(message: bytes, values: Callable[[bytes], Any]) -> bytes:
    """A message of keys and values as compact JSON, empty if there are no keys."""
    wire = Wire([message])
    found = wire.columns(wire.whole(), KEYED)
    keys, raw = (wire.slices(found[name][1:]) for name in ("keys", "values"))
    if not keys:
        return b""
    told = {key.decode("utf-8", "replace"): values(text) for key, text in zip(keys, raw, strict=False)}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def shapes_of(message: bytes) -> list[list[int]]:
    """The shapes of one argument: a message of messages of numbers."""
    wire = Wire([message])
    _, starts, ends = wire.columns(wire.whole(), {1: ("shapes", MANY)})["shapes"]
    shapes: list[list[int]] = [[] for _ in range(starts.size)]
    owners, sizes = wire.columns((starts, ends), {1: ("sizes", INT + "*")})["sizes"]
    for owner, size in zip(owners.tolist(), sizes.tolist(), strict=True):
        shapes[owner].append(size)
    return shapes


def words_of(message: bytes) -> list[str]:
    """The element types of one argument."""
    wire = Wire([message])
    _, starts, ends = wire.columns(wire.whole(), {1: ("words", MANY)})["words"]
    return [word.decode("utf-8", "replace") for word in wire.slices((starts, ends))]
