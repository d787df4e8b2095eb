"""Paddle's protobuf export, decoded without Paddle and without protobuf: exact times, explicit trees.

Format: one NodeTrees message of paddle/fluid/platform/profiler (proto2, schema 1.0.2). Event types are plain numbers
here: Paddle 3.x itself writes two that its own schema does not know, and therefore cannot load what it wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.readers.common.columns import ABSENT, Interned, columns_of
from stepscope.readers.paddle import _messages
from stepscope.readers.paddle._recording import MEMORY_TYPES, TYPES, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.readers.common.columns import Column
    from stepscope.readers.common.issues import Notes
    from stepscope.readers.common.protobuf import Damage, Wire

    Ints = NDArray[np.int64]
    Table = dict[str, NDArray[Any]]
    Children = tuple[Ints, Ints, Ints]  # owner, start, end

_BLOCK = 1 << 16  # messages whose fields are in memory at a time
_CHILDREN = ("runtime", "memory", "arguments")


def decode(wire: Wire, notes: Notes) -> Recording:
    """The whole document. What is damaged is left out, and counted in `notes`."""
    top = wire.columns(wire.whole(), _messages.DOCUMENT, clip=True)
    trees = wire.columns(top["threads"][1:], _messages.THREAD, clip=True)
    decoder = _Decoder(wire, notes)
    tree, starts, ends = trees["nodes"]
    host, children = decoder.host(tree, starts, ends, trees["tid"])
    runtime, of_runtime = decoder.runtime(children["runtime"])
    device, kernels, transfers = decoder.device(of_runtime)
    memory = decoder.memory(children["memory"])
    arguments = decoder.arguments(children["arguments"])
    version = wire.slices(top["version"])[0].decode("utf-8", "replace")
    span_index = int(top["span_index"][0])
    _note(wire.damage, notes)
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
        extra=_messages.pairs(wire, top["extra"][1:]),
        devices=_messages.device_properties(wire, top["devices"][1:]),
    )


class _Decoder:
    """The numbers given to names, types and texts so far, and a function for each kind of message."""

    def __init__(self, wire: Wire, notes: Notes) -> None:
        self.wire = wire
        self.notes = notes
        self.names, self.texts = Interned(), Interned({b"": 0})
        self.types = Interned((name, i) for i, name in enumerate(TYPES))

    def host(self, tree: Ints, starts: Ints, ends: Ints, tid: Ints) -> tuple[Table, dict[str, Children]]:
        """Host events, and their children by kind, whose owners are rows of them."""
        cols = _growing("name", "type", "start", "end", "pid", "tid", "id", "parent")
        found: dict[str, list[Children]] = {kind: [] for kind in _CHILDREN}
        for low, high in _blocks(starts.size):
            node = self.wire.columns((starts[low:high], ends[low:high]), _messages.HOST_NODE)
            event = self.wire.columns(node["event"], _messages.HOST_EVENT)
            self._extend(cols, {**event, "id": node["id"], "parent": node["parent"]}, TYPES)
            for kind, parts in found.items():
                owner, first, last = node[kind]
                parts.append((owner + low, first, last))
        whole = _joined(cols)
        whole["tid"] = np.where(tid[tree] == ABSENT, whole["tid"], tid[tree])
        is_root = whole["parent"] == -1
        up = self._parents(tree, whole.pop("id"), whole["parent"], is_root)
        kept, place = self._usable(whole, ~is_root)
        whole["parent"] = np.where(up >= 0, place[up], -1)
        self._name_mlu_runtime(whole)
        host = {name: column[kept] for name, column in whole.items()}
        children = {kind: _concatenated(parts) for kind, parts in found.items()}
        return host, {kind: (place[owner], first, last) for kind, (owner, first, last) in children.items()}

    def runtime(self, nodes: Children) -> tuple[Table, Children]:
        """Calls of the runtime under host events, and the device events under them."""
        owner, starts, ends = nodes
        cols = _growing("name", "type", "start", "end", "pid", "tid", "correlation")
        found: list[Children] = []
        for low, high in _blocks(starts.size):
            node = self.wire.columns((starts[low:high], ends[low:high]), _messages.RUNTIME_NODE)
            event = self.wire.columns(node["event"], _messages.RUNTIME_EVENT)
            self._extend(cols, {**event, "type": np.full(high - low, TYPES.index("CudaRuntime"))}, TYPES)
            of, first, last = node["device"]
            found.append((of + low, first, last))
        whole = _joined(cols)
        whole["host"] = owner
        kept, place = self._usable(whole)
        of, first, last = _concatenated(found)
        return {name: column[kept] for name, column in whole.items()}, (place[of], first, last)

    def device(self, nodes: Children) -> tuple[Table, Table, Table]:
        """Kernels, copies and fills; then the details of kernels, and of copies and fills."""
        owner, starts, ends = nodes
        cols = _growing("name", "type", "start", "end", "device", "stream", "correlation")
        details: dict[str, list[Children]] = {"kernel": [], "memcpy": [], "memset": []}
        for low, high in _blocks(starts.size):
            node = self.wire.columns((starts[low:high], ends[low:high]), _messages.WRAPPER)
            event = self.wire.columns(node["event"], _messages.DEVICE_EVENT)
            self._extend(cols, event, TYPES)
            for kind, parts in details.items():
                first, last = event[kind]
                have = np.flatnonzero(first >= 0)
                parts.append((have + low, first[have], last[have]))
        whole = _joined(cols)
        whole["runtime"] = owner
        kept, place = self._usable(whole)
        kernels = self._kernels(_concatenated(details["kernel"]), place)
        moved = [self._moved(_concatenated(details[k]), place, schema) for k, schema in _MOVED.items()]
        transfers = {name: np.concatenate([part[name] for part in moved]) for name in moved[0]}
        return {name: column[kept] for name, column in whole.items()}, kernels, transfers

    def _kernels(self, messages: Children, place: Ints) -> Table:
        owner, starts, ends = messages
        found = self.wire.columns((starts, ends), _messages.KERNEL)
        dynamic, static = found.pop("dynamic"), found.pop("static")
        known = (dynamic != ABSENT) | (static != ABSENT)
        total = np.where(dynamic == ABSENT, 0, dynamic) + np.where(static == ABSENT, 0, static)
        return _of_kept({**found, "shared_bytes": np.where(known, total, ABSENT), "device": place[owner]})

    def _moved(self, messages: Children, place: Ints, schema: dict[int, tuple[str, str]]) -> Table:
        owner, starts, ends = messages
        found = self.wire.columns((starts, ends), schema)
        nothing = np.full(owner.size, -1, np.int64)
        for end in ("src", "dst"):
            found[end] = self.texts.codes(self.wire.slices(found.get(end, (nothing, nothing))))
        return _of_kept({**found, "device": place[owner], "bytes_per_s": np.full(owner.size, np.nan)})

    def memory(self, nodes: Children) -> Table:
        """Memory taken and given back, by tensors and by the allocator."""
        owner, starts, ends = nodes
        node = self.wire.columns((starts, ends), _messages.WRAPPER)
        found = self.wire.columns(node["event"], _messages.MEMORY)
        found["type"] = self._codes(found["type"], MEMORY_TYPES)
        found["place"] = self.texts.codes(self.wire.slices(found["place"]))
        found["host"] = owner
        return found

    def arguments(self, nodes: Children) -> Table:
        """What operators were called with; shapes and types as compact JSON."""
        owner, starts, ends = nodes
        node = self.wire.columns((starts, ends), _messages.WRAPPER)
        found = self.wire.columns(node["event"], _messages.ARGUMENTS)
        for name, values in (("shapes", _messages.shapes_of), ("types", _messages.words_of)):
            raw = self.wire.slices(found[name])
            told = {message: _messages.keyed(message, values) for message in set(raw)}
            found[name] = self.texts.codes([told[message] for message in raw])
        found["stack"] = self.texts.codes(self.wire.slices(found["stack"]))
        found["host"] = owner
        return _of_kept(found, "host")

    def _extend(self, cols: dict[str, Column], found: dict[str, Any], types: Sequence[str]) -> None:
        """Append a block; of names and types their numbers."""
        for name, column in cols.items():
            if name == "name":
                column.extend(self.names.codes(self.wire.slices(found[name])))
            else:
                column.extend(self._codes(found[name], types) if name == "type" else found[name])

    def _codes(self, numbers: Ints, known: Sequence[str]) -> NDArray[np.uint32]:
        """Numbers of types' names, from numbers in the file. Those that we do not know are called by their number."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        words = ["" if n == ABSENT else known[n] if 0 <= n < len(known) else str(n) for n in distinct.tolist()]
        return self.types.codes(words)[inverse]

    def _usable(self, whole: Table, wanted: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.bool_], Ints]:
        """Which rows have times, and what number each gets among them (−1: none)."""
        sound = (whole["start"] >= 0) & (whole["end"] >= 0)
        if wanted is not None:
            sound |= ~wanted
        self.notes.add(
            "incomplete_events", "warning", int((~sound).sum()), "events without a start or an end were dropped"
        )
        kept = sound if wanted is None else sound & wanted
        return kept, np.where(kept, np.cumsum(kept) - 1, -1)

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
        self.notes.add("odd_parents", "warning", int(lost.sum()), "events inside one that is not there or comes later")
        return np.where(is_root | lost, -1, up)

    def _name_mlu_runtime(self, host: Table) -> None:
        """Number 15 was that of calls to Cambricon's runtime in Paddle 2.x."""
        code = TYPES.index("DygraphKernelLaunch")
        rows = np.flatnonzero(host["type"] == code)
        if rows.size:
            of_mlu = np.array([name.startswith((b"cn", b"cnrt")) for name in self.names])
            host["type"][rows[of_mlu[host["name"][rows]]]] = self.types["MluRuntime"]


_MOVED = {"memcpy": _messages.MEMCPY, "memset": _messages.MEMSET}


def _growing(*names: str) -> dict[str, Column]:
    return columns_of({name: np.uint32 if name in ("name", "type") else np.int64 for name in names})


def _joined(cols: dict[str, Column]) -> Table:
    return {name: column.join() for name, column in cols.items()}


def _concatenated(parts: list[Children]) -> Children:
    owner, start, end = (np.concatenate([_NONE, *(part[i] for part in parts)]) for i in range(3))
    return owner, start, end


_NONE = np.empty(0, np.int64)


def _of_kept(table: Table, link: str = "device") -> Table:
    """Without the rows whose event was dropped."""
    return {name: column[table[link] >= 0] for name, column in table.items()}


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    return ((low, min(low + _BLOCK, n)) for low in range(0, n, _BLOCK))


def _note(damage: Damage, notes: Notes) -> None:
    at = damage.first_at
    example = "" if at is None else f"messages that break off, first at byte {at:,}"
    notes.add("damaged_messages", "error", damage.n_messages, example)
    notes.add("wrong_wire_types", "warning", damage.n_wire_types, "fields of another type than they have were left out")
