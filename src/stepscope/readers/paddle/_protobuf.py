"""Paddle's protobuf export, decoded without Paddle and without protobuf: exact times, explicit trees.

Format: one NodeTrees message of paddle/fluid/platform/profiler (proto2, schema 1.0.2). Event types are plain numbers
here: Paddle 3.x itself writes two that its own schema does not know, and therefore cannot load what it wrote.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.readers.common.columns import ABSENT, Interned, columns_of
from stepscope.readers.common.protobuf import BYTES, FLOAT, INT, MANY, Wire
from stepscope.readers.paddle._columns import MEMORY_TYPES, TYPES, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.readers.common.columns import Column
    from stepscope.readers.common.source import IssueLog

    Ints = NDArray[np.int64]
    Table = dict[str, NDArray[Any]]
    Children = tuple[Ints, Ints, Ints]  # owner, start, end
    from collections.abc import Callable

    from stepscope.readers.common.protobuf import Contents


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
_BLOCK = 1 << 16  # messages whose fields are in memory at a time
_CHILDREN = ("runtime", "memory", "arguments")
_MOVED = {"memcpy": MEMCPY, "memset": MEMSET}
_NONE = np.empty(0, np.int64)


def pairs(wire: Wire, messages: Contents) -> dict[str, str]:
    """Messages of a key and a value."""
    pairs = wire.columns(messages, PAIR)
    keys, values = (wire.slices(pairs[name]) for name in ("key", "value"))
    return {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in zip(keys, values, strict=True)}


def device_properties(wire: Wire, messages: Contents) -> list[dict[str, Any]]:
    """What each device is, by the names that JSON has for it."""
    properties = wire.columns(messages, DEVICE_PROPERTY)
    names = [name.decode("utf-8", "replace") for name in wire.slices(properties.pop("name"))]
    columns = {key: [None if v == ABSENT else v for v in values.tolist()] for key, values in properties.items()}
    return [{"name": name, **{key: values[i] for key, values in columns.items()}} for i, name in enumerate(names)]


def keyed(message: bytes, values: Callable[[bytes], Any]) -> bytes:
    """A message of keys and values as compact JSON, empty if there are no keys."""
    wire = Wire([message])
    fields = wire.columns(wire.whole(), KEYED)
    keys, raw = (wire.slices(fields[name][1:]) for name in ("keys", "values"))
    if not keys:
        return b""
    by_key = {key.decode("utf-8", "replace"): values(text) for key, text in zip(keys, raw, strict=False)}
    return json.dumps(by_key, separators=(",", ":"), ensure_ascii=False).encode()


def shapes_of(message: bytes) -> list[list[int]]:
    """The shapes of one argument: a message of messages of numbers."""
    wire = Wire([message])
    _, starts, ends = wire.columns(wire.whole(), {1: ("shapes", MANY)})["shapes"]
    shapes: list[list[int]] = [[] for _ in range(starts.size)]
    owners, sizes = wire.columns((starts, ends), {1: ("sizes", INT + "*")})["sizes"]
    for owner, size in zip(owners.tolist(), sizes.tolist(), strict=True):
        shapes[owner].append(size)
    return shapes


def texts_of(message: bytes) -> list[str]:
    """The element types of one argument."""
    wire = Wire([message])
    _, starts, ends = wire.columns(wire.whole(), {1: ("words", MANY)})["words"]
    return [word.decode("utf-8", "replace") for word in wire.slices((starts, ends))]


def decode(wire: Wire, issues: IssueLog) -> Recording:
    """The whole document. What is damaged is left out, and counted in `issues`."""
    top = wire.columns(wire.whole(), DOCUMENT, clip=True)
    trees = wire.columns(top["threads"][1:], THREAD, clip=True)
    decoder = _Decoder(wire, issues)
    tree, starts, ends = trees["nodes"]
    host, children = decoder.host(tree, starts, ends, trees["tid"])
    runtime, of_runtime = decoder.runtime(children["runtime"])
    device, kernels, transfers = decoder.device(of_runtime)
    memory = decoder.memory(children["memory"])
    arguments = decoder.arguments(children["arguments"])
    version = wire.slices(top["version"])[0].decode("utf-8", "replace")
    span_index = int(top["span_index"][0])
    wire.damage.note(issues)
    return Recording(
        host,
        runtime,
        device,
        kernels,
        transfers,
        memory,
        arguments,
        names=[name.decode("utf-8", "replace") for name in decoder.names],
        types=list(decoder.types),
        texts=[text.decode("utf-8", "replace") for text in decoder.texts],
        version=version or None,
        span_index=None if span_index == ABSENT else span_index,
        extra=pairs(wire, top["extra"][1:]),
        devices=device_properties(wire, top["devices"][1:]),
    )


class _Decoder:
    """The numbers given to names, types and texts so far, and a function for each kind of message."""

    def __init__(self, wire: Wire, issues: IssueLog) -> None:
        self.wire = wire
        self.issues = issues
        self.names, self.texts = Interned(), Interned({b"": 0})
        self.types = Interned((name, i) for i, name in enumerate(TYPES))

    def host(self, tree: Ints, starts: Ints, ends: Ints, tid: Ints) -> tuple[Table, dict[str, Children]]:
        """Host events, and their children by kind; the owners of children are rows of the events."""
        cols = _growing("name", "type", "start", "end", "pid", "tid", "id", "parent")
        columns: dict[str, list[Children]] = {kind: [] for kind in _CHILDREN}
        for low, high in _blocks(starts.size):
            node = self.wire.columns((starts[low:high], ends[low:high]), HOST_NODE)
            event = self.wire.columns(node["event"], HOST_EVENT)
            self._extend(cols, {**event, "id": node["id"], "parent": node["parent"]}, TYPES)
            for kind, parts in columns.items():
                owner, first, last = node[kind]
                parts.append((owner + low, first, last))
        whole = _joined(cols)
        whole["tid"] = np.where(tid[tree] == ABSENT, whole["tid"], tid[tree])
        is_root = whole["parent"] == -1
        up = self._parents(tree, whole.pop("id"), whole["parent"], is_root)
        chosen, place = self._usable(whole, ~is_root)
        whole["parent"] = np.where(up >= 0, place[up], -1)
        self._name_mlu_runtime(whole)
        host = {name: column[chosen] for name, column in whole.items()}
        children = {kind: _concatenated(parts) for kind, parts in columns.items()}
        return host, {kind: (place[owner], first, last) for kind, (owner, first, last) in children.items()}

    def runtime(self, nodes: Children) -> tuple[Table, Children]:
        """Calls of the runtime under host events, and the device events under them."""
        owner, starts, ends = nodes
        cols = _growing("name", "type", "start", "end", "pid", "tid", "correlation")
        columns: list[Children] = []
        for low, high in _blocks(starts.size):
            node = self.wire.columns((starts[low:high], ends[low:high]), RUNTIME_NODE)
            event = self.wire.columns(node["event"], RUNTIME_EVENT)
            self._extend(cols, {**event, "type": np.full(high - low, TYPES.index("CudaRuntime"))}, TYPES)
            of, first, last = node["device"]
            columns.append((of + low, first, last))
        whole = _joined(cols)
        whole["host"] = owner
        chosen, place = self._usable(whole)
        of, first, last = _concatenated(columns)
        return {name: column[chosen] for name, column in whole.items()}, (place[of], first, last)

    def device(self, nodes: Children) -> tuple[Table, Table, Table]:
        """Kernels, copies and fills; then the details of kernels, and of copies and fills."""
        owner, starts, ends = nodes
        cols = _growing("name", "type", "start", "end", "device", "stream", "correlation")
        details: dict[str, list[Children]] = {"kernel": [], "memcpy": [], "memset": []}
        for low, high in _blocks(starts.size):
            node = self.wire.columns((starts[low:high], ends[low:high]), WRAPPER)
            event = self.wire.columns(node["event"], DEVICE_EVENT)
            self._extend(cols, event, TYPES)
            for kind, parts in details.items():
                first, last = event[kind]
                have = np.flatnonzero(first >= 0)
                parts.append((have + low, first[have], last[have]))
        whole = _joined(cols)
        whole["runtime"] = owner
        chosen, place = self._usable(whole)
        kernels = self._kernels(_concatenated(details["kernel"]), place)
        moved = [self._moved(_concatenated(details[k]), place, schema) for k, schema in _MOVED.items()]
        transfers = {name: np.concatenate([part[name] for part in moved]) for name in moved[0]}
        return {name: column[chosen] for name, column in whole.items()}, kernels, transfers

    def _kernels(self, messages: Children, place: Ints) -> Table:
        owner, starts, ends = messages
        columns = self.wire.columns((starts, ends), KERNEL)
        dynamic, static = columns.pop("dynamic"), columns.pop("static")
        known = (dynamic != ABSENT) | (static != ABSENT)
        total = np.where(dynamic == ABSENT, 0, dynamic) + np.where(static == ABSENT, 0, static)
        return _linked({**columns, "shared_bytes": np.where(known, total, ABSENT), "device": place[owner]})

    def _moved(self, messages: Children, place: Ints, schema: dict[int, tuple[str, str]]) -> Table:
        owner, starts, ends = messages
        columns = self.wire.columns((starts, ends), schema)
        nothing = np.full(owner.size, -1, np.int64)
        for end in ("src", "dst"):
            columns[end] = self.texts.codes(self.wire.slices(columns.get(end, (nothing, nothing))))
        return _linked({**columns, "device": place[owner], "bytes_per_s": np.full(owner.size, np.nan)})

    def memory(self, nodes: Children) -> Table:
        """Memory taken and given back, by tensors and by the allocator."""
        owner, starts, ends = nodes
        node = self.wire.columns((starts, ends), WRAPPER)
        columns = self.wire.columns(node["event"], MEMORY)
        columns["type"] = self._codes(columns["type"], MEMORY_TYPES)
        columns["place"] = self.texts.codes(self.wire.slices(columns["place"]))
        columns["host"] = owner
        return columns

    def arguments(self, nodes: Children) -> Table:
        """What operators were called with; shapes and types as compact JSON."""
        owner, starts, ends = nodes
        node = self.wire.columns((starts, ends), WRAPPER)
        pairs = self.wire.columns(node["event"], ARGUMENTS)
        for name, values in (("shapes", shapes_of), ("types", texts_of)):
            raw = self.wire.slices(pairs[name])
            by_message = {message: keyed(message, values) for message in set(raw)}
            pairs[name] = self.texts.codes([by_message[message] for message in raw])
        pairs["stack"] = self.texts.codes(self.wire.slices(pairs["stack"]))
        pairs["host"] = owner
        return _linked(pairs, "host")

    def _extend(self, cols: dict[str, Column], columns: dict[str, Any], types: Sequence[str]) -> None:
        """Append a block; of names and types their numbers."""
        for name, column in cols.items():
            if name == "name":
                column.extend(self.names.codes(self.wire.slices(columns[name])))
            else:
                column.extend(self._codes(columns[name], types) if name == "type" else columns[name])

    def _codes(self, numbers: Ints, known: Sequence[str]) -> NDArray[np.uint32]:
        """Numbers of types' names, from numbers in the file. Those that we do not know are called by their number."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        contents = ["" if n == ABSENT else known[n] if 0 <= n < len(known) else str(n) for n in distinct.tolist()]
        return self.types.codes(contents)[inverse]

    def _usable(self, whole: Table, wanted: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.bool_], Ints]:
        """Which rows have times, and what number each gets among them (−1: none)."""
        sound = (whole["start"] >= 0) & (whole["end"] >= 0)
        if wanted is not None:
            sound |= ~wanted
        self.issues.add(
            "incomplete_events", "warning", int((~sound).sum()), "events without a start or an end were dropped"
        )
        chosen = sound if wanted is None else sound & wanted
        return chosen, np.where(chosen, np.cumsum(chosen) - 1, -1)

    def _parents(self, tree: Ints, ids: Ints, parents: Ints, is_root: NDArray[np.bool_]) -> Ints:
        """Row of each node's parent, −1 for the root and where there is none that was written before the node."""
        rows = np.arange(ids.size)
        first = np.searchsorted(tree, tree)
        size = np.searchsorted(tree, tree, "right") - first
        inside = (ids >= 0) & (ids < size)
        row_of = np.full(ids.size, -1, np.int64)
        row_of[first[inside] + ids[inside]] = rows[inside]
        known = (parents >= 0) & (parents < size)
        up = np.where(known, row_of[np.where(known, first + parents, 0)], -1) if ids.size else row_of
        lost = ~is_root & ((up < 0) | (up >= rows))
        self.issues.add("odd_parents", "warning", int(lost.sum()), "events inside one that is missing or comes later")
        return np.where(is_root | lost, -1, up)

    def _name_mlu_runtime(self, host: Table) -> None:
        """Number 15 was that of calls to Cambricon's runtime in Paddle 2.x."""
        code = TYPES.index("DygraphKernelLaunch")
        rows = np.flatnonzero(host["type"] == code)
        if rows.size:
            of_mlu = np.array([name.startswith((b"cn", b"cnrt")) for name in self.names])
            host["type"][rows[of_mlu[host["name"][rows]]]] = self.types["MluRuntime"]


def _growing(*names: str) -> dict[str, Column]:
    return columns_of({name: np.uint32 if name in ("name", "type") else np.int64 for name in names})


def _joined(cols: dict[str, Column]) -> Table:
    return {name: column.join() for name, column in cols.items()}


def _concatenated(parts: list[Children]) -> Children:
    owner, start, end = (np.concatenate([_NONE, *(part[i] for part in parts)]) for i in range(3))
    return owner, start, end


def _linked(table: Table, link: str = "device") -> Table:
    """Without the rows whose event was dropped."""
    return {name: column[table[link] >= 0] for name, column in table.items()}


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    return ((low, min(low + _BLOCK, n)) for low in range(0, n, _BLOCK))
