"""Dumps of PyTorch's flight recorder: what each rank enqueued, started and completed in its process groups.

A folder of dumps is one trace: why a job hangs is only visible in all ranks together. A dump that is missing, empty or
torn is a fact about its rank, so it is counted and never ends the reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.schema import COLLECTIVE_RECORDS, GROUP_STATUS, STACKS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.record_columns import Records, integers
from stepscope.readers.common.source import IssueLog, Source, family_of_dump, no_collection
from stepscope.readers.common.unpickle import unpickled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

Fields = dict[str, Any]

FORMAT = "flight-recorder"
_LIBRARIES = re.compile(r"(?:^|/)(?:site|dist)-packages/|(?:^|/)lib/python3[^/]*/|^<frozen|/torch/")
_LAST_NUMBER = re.compile(r"(\d{1,9})\D*\Z")
_INTEGER = re.compile(r"\d{1,9}")
#: Times before this one (2001) count from some start of the machine and not from 1970.
_UNIX_NS = 10**18
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_TORN_BYTES, _MOST_TRIED = 1 << 16, 80
_STATUS = {
    "enqueued": "last_enqueued_collective",
    "started": "last_started_collective",
    "completed": "last_completed_collective",
}
_NUMBERS = {
    "record_id": "record_id",
    "seq": "collective_seq_id",
    "p2p_seq": "p2p_seq_id",
    "timeout_ns": "timeout_ms",
    "created_ns": "time_created_ns",
    "started_ns": "time_discovered_started_ns",
    "completed_ns": "time_discovered_completed_ns",
}
_MOST_FRAMES, _MOST_TENSORS, _MOST_AXES = 64, 64, 16
_SMALL = 2**62
_MILLISECOND = 1_000_000


def read(source: Source) -> Trace:
    """The dumps of all ranks in the folder of one. Raises CorruptInput (no dump can be read), StepscopeError."""
    paths = [source.path] if source.member else family_of_dump(source.path)
    issues, records = IssueLog(), _Records()
    best: dict[int, _Dump] = {}
    with no_collection():
        for number, path in enumerate(paths):
            dump = _dump_of(number, Source(path, source.member, source.max_bytes), issues, records)
            source.n_bytes += dump.n_bytes
            known = best.get(dump.rank)
            if known is not None:
                both = " and ".join(files.split(one.path)[1] for one in (known, dump))
                issues.add("doubled_dumps", "warning", 1, f"{both} are both of rank {dump.rank}: the newer one counts")
            if known is None or dump.newness > known.newness:
                best[dump.rank] = dump
    dumps = [best[rank] for rank in sorted(best)]
    if not any(dump.is_sound for dump in dumps):
        raise CorruptInput("no dump can be read", "copy the dumps again", path=source.label)
    status = GROUP_STATUS.conform(
        pl.DataFrame([row for dump in dumps for row in dump.status], schema=dict(GROUP_STATUS.dtypes))
    )
    _missing(status, issues)
    table = records.table([dump.number for dump in dumps] if len(dumps) < len(paths) else None)
    first = table["created_ns"].min()
    origin = first if isinstance(first, int) else 0
    meta = Meta(
        source.label,
        FORMAT,
        n_events=table.height,
        size_bytes=source.n_bytes,
        framework="PyTorch",
        origin_unix_ns=origin if origin > _UNIX_NS else None,
        facts={"versions": ", ".join(sorted({dump.version for dump in dumps if dump.version}))},
    )
    tables = {
        "collective_records": table.with_columns(pl.col("created_ns", "started_ns", "completed_ns") - origin),
        "group_status": status.with_columns(pl.col("dumped_ns") - origin),
        "stacks": records.stacks.table(),
        "issues": issues.table(),
    }
    return Trace(meta, tables)


@dataclass(frozen=True, slots=True)
class _Dump:
    """What the dump of one rank says of its groups. `newness` orders several dumps of a rank."""

    number: int
    path: str
    rank: int
    n_bytes: int
    version: str
    is_sound: bool
    newness: tuple[bool, int, int]
    status: list[Fields]


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _map(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _dump_of(number: int, source: Source, issues: IssueLog, records: _Records) -> _Dump:
    """The dump in a file. What is wrong with it goes to `issues`, and what can be read of it counts."""
    name = files.split(source.path)[1]
    document: Fields = {}
    torn = ""
    try:
        data = b"".join(source.chunks())
        if data.strip(b"\0 \r\n"):
            document, torn = _document(data, name)
        else:
            issues.add("empty_dumps", "warning", 1, name)
    except StepscopeError as error:
        issues.add("unreadable_dumps", "warning", 1, f"{name}: {error.message}")
    torn = source.damage or torn
    issues.add("torn_dumps", "warning", bool(torn), f"{name}: {torn}")
    rank = _rank_of(source.path, document)
    is_whole, written_ns = bool(document) and not torn, _written_ns(source.path)
    newest, groups = records.add(number, rank, Records(_list(document.get("entries"))))
    about = {"rank": rank, "dumped_ns": written_ns, "is_whole": is_whole, "source": source.path}
    status = [{**row, **about} for row in _status(document, groups)]
    newness = (is_whole, newest, written_ns or 0)
    version = _text(document.get("version"))
    return _Dump(number, source.path, rank, source.n_bytes, version, bool(document), newness, status)


def _document(data: bytes, name: str) -> tuple[Fields, str]:
    """The object that a dump holds, up to where it is torn, and what is wrong there. Raises CorruptInput."""
    value, torn = unpickled(data) if data[:1] == b"\x80" else _from_json(data)
    if not isinstance(value, dict):
        raise CorruptInput("it holds no dump of a flight recorder", path=name)
    return value, torn


def _from_json(data: bytes) -> tuple[object, str]:
    try:
        return msgspec.json.decode(data), ""
    except (msgspec.DecodeError, RecursionError) as error:
        problem = str(error)
    # Of a file that ends early, the whole records count. Frames within a record are separated as records are.
    for match in reversed([*_BETWEEN.finditer(data, max(len(data) - _TORN_BYTES, 0))][-_MOST_TRIED:]):
        try:
            return msgspec.json.decode(data[: match.start() + 1] + b"]}"), problem
        except (msgspec.DecodeError, RecursionError):
            continue
    raise CorruptInput(f"not JSON: {problem}")


def _rank_of(path: str, document: Fields) -> int:
    """The rank of a dump: by its name, unless its groups are of other ranks; without either, -1."""
    name = files.split(path)[1]
    number = files.rank_of_dump(path)
    if number is None:
        match = _LAST_NUMBER.search(name)
        number = files.rank_in(path) if match is None else int(match[1])
    members = [set(ranks) for one in _map(document.get("pg_config")).values() if (ranks := _ranks(_map(one)))]
    shared = set.intersection(*members) if members else set()
    if number is None or (shared and number not in shared):
        return min(shared) if len(shared) == 1 else -1 if number is None else number
    return number


def _ranks(config: Mapping[str, Any]) -> list[int]:
    ranks = config.get("ranks")
    if isinstance(ranks, str):
        return [int(text) for text in _INTEGER.findall(ranks)]
    return [rank for rank in _list(ranks) if type(rank) is int and 0 <= rank < 10**9]


def _written_ns(path: str) -> int | None:
    state = None if files.is_url(path) else files.state_of(path)
    return int(str(state[3])) if state is not None and len(state) > 3 else None


class _Names:
    """Texts as numbers, in the order in which they were met."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._texts: list[str | None] = []

    def number(self, text_of: Callable[[Any], str | None], value: object) -> int:
        """The number of the text of a value."""
        text = text_of(value)
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return number

    def text(self, number: int) -> str:
        """The text of a number."""
        return self._texts[number] or ""

    def named(self, numbers: pl.Series) -> pl.Series:
        """The texts of numbers."""
        return pl.Series(self._texts, dtype=pl.Categorical()).gather(numbers)


class _Records:
    """The columns of the records of all ranks."""

    def __init__(self) -> None:
        self.stacks = _Stacks()
        self._names: dict[str, _Names] = {name: _Names() for name in _NAMED}
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def add(self, number: int, rank: int, entries: Records) -> tuple[int, dict[int, tuple[str, str]]]:
        """Take the records in a file. Gives the time of the newest, and its groups by their numbers on this rank."""
        n = len(entries)
        columns: dict[str, NDArray[Any]] = {
            "rank": np.full(n, rank, np.int32),
            "file": np.full(n, number, np.uint32),
            "place": np.arange(n, dtype=np.int32),
            "stack_id": entries.mapped(self.stacks.number_of, "frames").astype(np.int32),
        }
        for name, field in _NUMBERS.items():
            columns[name], columns[f"has {name}"] = entries.numbers(field)
        for name in ("is_p2p", "retired"):
            columns[name] = entries.flags(name)
        for name, (field, text) in _NAMED.items():
            columns[name] = entries.mapped(partial(self._names[name].number, text), field).astype(np.uint32)
        for name, part in columns.items():
            self._parts.setdefault(name, []).append(part)
        ids, is_known = entries.numbers("pg_id")
        ids, first = np.unique(ids[is_known], return_index=True)
        group, desc = (columns[name][is_known][first].tolist() for name in ("group", "group_desc"))
        text, desc_text = self._names["group"].text, self._names["group_desc"].text
        groups = {i: (text(g), desc_text(d)) for i, g, d in zip(ids.tolist(), group, desc, strict=True)}
        newest = columns["created_ns"][columns["has created_ns"]].max(initial=-1)
        return int(newest), groups

    def table(self, numbers: list[int] | None) -> pl.DataFrame:
        """The table `collective_records`, of these files only, with times as they were recorded."""
        arrays = {name: np.concatenate(self._parts.pop(name)) for name in list(self._parts)}
        columns = {name: integers(arrays.pop(name), arrays.pop(f"has {name}")) for name in _NUMBERS}
        stacks = arrays.pop("stack_id")
        columns["stack_id"] = integers(stacks, stacks >= 0)
        whole = pl.DataFrame({**columns, **arrays})
        if numbers is not None:
            whole = whole.filter(pl.col("file").is_in(numbers))
        whole = whole.with_columns(self._names[name].named(whole[name]).alias(name) for name in _NAMED)
        line = pl.Series(self.stacks.line_of, dtype=pl.Categorical())
        # Some versions write 0 for a time that is not known.
        times = pl.col("created_ns", "started_ns", "completed_ns").replace(0, None)
        whole = whole.with_columns(
            times,
            pl.col("record_id").fill_null(pl.col("place")),
            pl.col("timeout_ns") * _MILLISECOND,
            line=line.gather(whole["stack_id"]) if line.len() else pl.lit(None, pl.Categorical()),
        )
        return COLLECTIVE_RECORDS.conform(whole.sort("rank", "record_id"))


def _text(value: object) -> str:
    """The text of a text or a small number; empty for anything else, which may be of any size."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and -_SMALL < value < _SMALL else ""


def _group(pair: object) -> str:
    values = _list(pair)
    return _text(values[0]) if len(values) == 2 else _text(pair)


def _desc(pair: object) -> str:
    values = _list(pair)
    return _text(values[1]) if len(values) == 2 else ""


def _backend(name: object) -> str | None:
    return _text(name).partition(":")[0] if ":" in _text(name) else None


def _operation(name: object) -> str:
    return _text(name).partition(":")[2] or _text(name)


def _shapes(value: object) -> str | None:
    """Shapes as in 2048x16, 16; or element types. Neither is followed beyond what a call has."""
    return None if value is None else ", ".join(map(_shape, _list(value)[:_MOST_TENSORS]))


def _shape(one: object) -> str:
    return "x".join(map(_text, one[:_MOST_AXES])) or "scalar" if isinstance(one, list) else _text(one)


#: The columns of texts: the field, and what makes the text of it.
_NAMED: Mapping[str, tuple[str, Callable[[Any], str | None]]] = {
    "group": ("process_group", _group),
    "group_desc": ("process_group", _desc),
    "backend": ("profiling_name", _backend),
    "operation": ("profiling_name", _operation),
    "state": ("state", _text),
    "input_sizes": ("input_sizes", _shapes),
    "input_dtypes": ("input_dtypes", _shapes),
    "output_sizes": ("output_sizes", _shapes),
    "output_dtypes": ("output_dtypes", _shapes),
}


def _status(document: Fields, of_ids: Mapping[int, tuple[str, str]]) -> list[Fields]:
    """What a dump says of the groups of its rank, with or without records of them; one empty row if it names none."""
    config = {_text(name): _map(one) for name, one in _map(document.get("pg_config")).items()}
    status = {_text(i): _map(one) for i, one in _map(document.get("pg_status")).items()}
    named = {str(i): pair[0] for i, pair in of_ids.items()}
    if len(status) == len(config) and all(text.isdecimal() for text in (*status, *config)):
        # Groups get their numbers on a rank in the order in which they were made, as they get their names.
        in_order = zip(sorted(status, key=int), sorted(config, key=int), strict=True)
        named = {**dict(in_order), **named}
    descs = dict(of_ids.values())
    groups = [(named.get(i), i) for i in (*status, *(i for i in named if i not in status))]
    known = {name for name, _ in groups}
    groups += [(name, "") for name in config if name not in known and _ranks(config[name])]
    return [
        {
            "group": name,
            "pg_id": int(i) if i.isdecimal() and len(i) < 10 else None,
            "group_desc": _text(config.get(name or "", {}).get("desc")) or descs.get(name or "", ""),
            "members": str(sorted(ranks)) if (ranks := _ranks(config.get(name or "", {}))) else None,
            **{key: _count(status.get(i, {}).get(field)) for key, field in _STATUS.items()},
        }
        for name, i in groups
    ] or [{}]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def _missing(status: pl.DataFrame, issues: IssueLog) -> None:
    """Count the ranks that groups name and that have no dump."""
    texts = status["members"].unique().cast(pl.String).drop_nulls().to_list()
    absent = sorted({int(n) for text in texts for n in _INTEGER.findall(text)} - set(status["rank"].to_list()))
    issues.add("missing_dumps", "warning", len(absent), f"rank {absent[0]}" if absent else "")


class _Stacks:
    """Distinct stacks, in the order in which they were met."""

    def __init__(self) -> None:
        self.line_of: list[str] = []
        self._frames: list[list[str]] = []
        self._numbers: dict[tuple[str, ...], int] = {}

    def number_of(self, stack: object) -> int | None:
        """The number of a stack of frames, innermost first; None without frames."""
        frames = [frame for frame in _list(stack)[:_MOST_FRAMES] if isinstance(frame, dict)]
        if not frames:
            return None
        texts = tuple(f"{_text(f.get('name'))} ({_text(f.get('filename'))}:{_text(f.get('line'))})" for f in frames)
        number = self._numbers.setdefault(texts, len(self.line_of))
        if number == len(self.line_of):
            own = [t for t, f in zip(texts, frames, strict=True) if not _LIBRARIES.search(_text(f.get("filename")))]
            self.line_of.append((own or texts)[0])
            self._frames.append(list(reversed(texts)))
        return number

    def table(self) -> pl.DataFrame:
        """The table `stacks`."""
        frames = pl.DataFrame({"frames": self._frames}, schema={"frames": pl.List(pl.String)})
        return STACKS.conform(frames.with_row_index("stack_id"))
