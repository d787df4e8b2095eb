"""Snapshots of PyTorch's caching allocator: segments, their blocks, and a history of what was allocated and freed.

A snapshot is a pickle of plain data (see `common.unpickle`). The layout has changed over the years: files of 2023 have
a block's stack in `history` and no addresses of blocks; times are missing where the clock was not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.files import rank_in
from stepscope.core.schema import MEMORY_BLOCKS, MEMORY_EVENTS, MEMORY_SEGMENTS, STACKS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.columns import device_table
from stepscope.readers.common.record_columns import Records, Rows, integers
from stepscope.readers.common.source import IssueLog, Source, no_collection
from stepscope.readers.common.unpickle import unpickled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stepscope.core.table import Table

Fields = dict[str, Any]

_MICROSECOND = 1000
_MOST_FRAMES = 256
_MOST_DEVICES = 4096
_SMALL = 2**62
_HOST = -1
_EMPTY_HINT = "the process held no memory of a device; torch.cuda.memory._record_memory_history() begins a history"
_STOP = b"."
_HINT = "write it again with torch.cuda.memory._dump_snapshot"


def read(source: Source) -> Trace:
    """The allocators of all devices of a process. Raises CorruptInput (damaged, or not plain data).

    Raises StepscopeError if the snapshot is empty, or the file too large.
    """
    with no_collection():
        data = b"".join(source.chunks())
        if not source.damage and not data.rstrip().endswith(_STOP):  # at once, before it takes memory
            raise CorruptInput("pickle ends early", "copy the file again", path=source.label, offset=source.n_bytes)
        try:
            document, torn = unpickled(data)
        except CorruptInput as error:
            raise CorruptInput(error.reason, error.hint, path=source.label, offset=error.offset) from None
        del data
        if source.damage or torn:
            raise CorruptInput(source.damage or torn, "copy the file again", path=source.label, offset=source.n_bytes)
        if isinstance(document, list) and all(isinstance(one, dict) for one in document):
            document = {"segments": document}  # what memory_snapshot() returns has the segments alone
        if not isinstance(document, dict) or not isinstance(document.get("segments"), list):
            raise CorruptInput("it holds no memory snapshot", _HINT, path=source.label)
        trace = _trace(document, source)
    if trace.memory_events.is_empty() and trace.memory_segments.is_empty():
        raise StepscopeError(f"{source.label}: the memory snapshot is empty: no segments and no events", _EMPTY_HINT)
    return trace


def _trace(document: Fields, source: Source) -> Trace:
    issues, stacks = IssueLog(), _Stacks()
    segments = [(_number(one.get("device")) or 0, one) for one in _records(document.get("segments"))]
    segments += [(_HOST, one) for one in _records(document.get("host_segments"))]
    histories = {n: Records(_list(one)) for n, one in enumerate(_list(document.get("device_traces"))[:_MOST_DEVICES])}
    host = (one for part in _list(document.get("host_traces")) for one in _list(part) or [part])
    histories[_HOST] = Records(list(host))
    used = {n for n, events in histories.items() if len(events)} | {n for n, _ in segments}
    indexes = sorted(used, key=lambda n: (n == _HOST, n))[:_MOST_DEVICES]
    ids = {n: i for i, n in enumerate(indexes)}
    segments = [(ids[n], one) for n, one in segments if n in ids]
    events = [_events(ids[n], histories[n], stacks) for n in indexes if n in histories and len(histories[n])]
    table = pl.concat(events) if events else MEMORY_EVENTS.empty()
    first = table["ts_ns"].min()
    origin = first if isinstance(first, int) else 0
    tables = {
        "memory_events": MEMORY_EVENTS.conform(table.with_columns(pl.col("ts_ns") - origin)),
        "memory_segments": _table(MEMORY_SEGMENTS, (_segment(n, one, stacks) for n, one in segments)),
        "memory_blocks": _table(MEMORY_BLOCKS, (row for n, one in segments for row in _blocks(n, one, stacks))),
    }
    n_lost = sum(len(_list(part)) for part in _list(document.get("device_traces"))) - table.height
    issues.add("unknown_events", "warning", max(n_lost, 0), "events of a snapshot that are no records of fields")
    settings = document.get("allocator_settings")
    kind = stacks.kind_of_device or ("cuda" if isinstance(settings, dict) else "accelerator")
    tables["devices"] = device_table([(ids[n], *(("cpu", None) if n == _HOST else (kind, n))) for n in indexes])
    tables["stacks"] = stacks.table()
    tables["issues"] = issues.table()
    facts = {str(k): str(v) for k, v in _map(settings).items() if isinstance(v, str | int | float)}
    meta = Meta(
        source.label,
        "memory-snapshot",
        n_events=table.height,
        size_bytes=source.n_bytes,
        rank=rank_in(source.path),
        framework="PyTorch",
        origin_unix_ns=origin or None,
        facts=facts,
    )
    return Trace(meta, tables)


def _events(device_id: int, events: Records, stacks: _Stacks) -> pl.DataFrame:
    """The rows of `memory_events` of one device, with times as they were recorded."""
    n = len(events)

    def numbers(*names: str) -> pl.Series:
        first, *more = (integers(*events.numbers(name)) for name in names)
        for column in more:
            first = first.fill_null(column)
        return pl.select(pl.when(first.is_between(1 - _SMALL, _SMALL - 1)).then(first)).to_series()

    def texts(text: Callable[[Any], str | None], *names: str) -> pl.Series:
        known: dict[str, int] = {}

        def code(value: object) -> int | None:
            made = text(value)
            return None if made is None else known.setdefault(made, len(known))

        codes, *more = (events.mapped(code, name) for name in names)
        for other in more:
            codes = np.where(codes < 0, other, codes)
        return pl.Series([*known, None], dtype=pl.Categorical()).gather(np.where(codes < 0, len(known), codes))

    stack_ids = events.mapped(stacks.number_of, "frames")
    columns = {
        "device_id": pl.repeat(device_id, n, dtype=pl.UInt32, eager=True),
        "event": pl.int_range(n, dtype=pl.Int64, eager=True),
        "ts_ns": numbers("time_us") * _MICROSECOND,
        "action": texts(lambda value: _text(value) or "unknown", "action"),
        "address": numbers("addr", "address"),
        "bytes": numbers("size"),
        "stream": numbers("stream"),
        "stack_id": integers(stack_ids, stack_ids >= 0).cast(pl.UInt32),
        "context": texts(_context, "user_metadata", "compile_context"),
        "pool": texts(_pool, "pool_id"),
        "device_free_bytes": numbers("device_free"),
    }
    return pl.DataFrame(columns)


def _segment(device_id: int, segment: Fields, stacks: _Stacks) -> Fields:
    return {
        "device_id": device_id,
        "address": _number(segment.get("address")),
        "bytes": _number(segment.get("total_size")),
        "active_bytes": _number(segment.get("active_size")),
        "requested_bytes": _number(segment.get("requested_size")),
        "stream": _number(segment.get("stream")),
        "pool": _text(segment.get("segment_type")),
        "private_pool": _pool(segment.get("segment_pool_id")),
        "is_expandable": segment.get("is_expandable") is True,
        "stack_id": stacks.number_of(segment.get("frames")),
    }


def _blocks(device_id: int, segment: Fields, stacks: _Stacks) -> Iterator[Fields]:
    """The blocks of a segment, which lie one after the other."""
    begin = at = _number(segment.get("address")) or 0
    for block in _records(segment.get("blocks")):
        size = _number(block.get("size")) or 0
        last = next(iter(_records(block.get("history"))), {})
        at = _number(block.get("address")) or at
        asked = _number(block.get("requested_size"))
        yield {
            "device_id": device_id,
            "address": at,
            "segment_address": begin,
            "bytes": size,
            "requested_bytes": _number(last.get("real_size")) if asked is None else asked,
            "state": _text(block.get("state")) or "unknown",
            "stack_id": stacks.number_of(block.get("frames") or last.get("frames")),
        }
        at += size


def _table(table: Table, rows: Iterable[Fields]) -> pl.DataFrame:
    plain = {name: pl.String() if dtype == pl.Categorical else dtype for name, dtype in table.dtypes.items()}
    return table.conform(pl.DataFrame(list(rows), schema=plain, infer_schema_length=None))


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _map(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _records(value: object) -> list[Fields]:
    expanded = (one for item in _list(value) for one in (item if isinstance(item, Rows) else (item,)))
    return [one for one in expanded if isinstance(one, dict)]


def _number(value: object) -> int | None:
    return value if type(value) is int and -_SMALL < value < _SMALL else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _context(value: object) -> str | None:
    return None if value == "N/A" else _text(value)


def _pool(value: object) -> str | None:
    """The id of a private pool, as in 0:1; None for the usual one."""
    ids = [_number(one) for one in _list(value)[:2]]
    return ":".join(map(str, ids)) if any(ids) else None


class _Stacks:
    """Distinct stacks, in the order in which they were met."""

    def __init__(self) -> None:
        self.kind_of_device = ""
        self._frames: list[list[str]] = []
        self._numbers: dict[tuple[str, ...], int] = {}
        self._by_list: dict[int, int | None] = {}
        self._by_frames: dict[tuple[int, ...], int | None] = {}
        self._texts: dict[int, str] = {}

    def number_of(self, stack: object) -> int | None:
        """The number of a stack of frames, innermost first; None without frames.

        The value must stay in memory: what a pickle refers to many times is one object.
        """
        number = self._by_list.get(id(stack), -1)
        if number == -1:
            frames = _list(stack)[:_MOST_FRAMES]
            key = tuple(map(id, frames))
            if key not in self._by_frames:
                self._by_frames[key] = self._number_of(frames)
            number = self._by_list[id(stack)] = self._by_frames[key]
        return number

    def _number_of(self, frames: Sequence[Any]) -> int | None:
        texts = tuple(self._text_of(frame) for frame in frames if isinstance(frame, dict))
        if not texts:
            return None
        number = self._numbers.setdefault(texts, len(self._frames))
        if number == len(self._frames):
            self._frames.append(list(reversed(texts)))
        return number

    def _text_of(self, frame: Fields) -> str:
        text = self._texts.get(id(frame))
        if text is None:
            name, file = (_text(frame.get(key)) or "" for key in ("name", "filename"))
            if "torch_npu" in file:
                self.kind_of_device = "npu"
            line = _number(frame.get("line"))
            place = f"{file}:{line}" if line else file
            text = self._texts[id(frame)] = f"{name} ({place})" if place not in ("", "??") else name
        return text

    def table(self) -> pl.DataFrame:
        """The table `stacks`."""
        frames = pl.DataFrame({"frames": self._frames}, schema={"frames": pl.List(pl.String)})
        return STACKS.conform(frames.with_row_index("stack_id"))
