"""Dumps of PyTorch's flight recorder: what each rank enqueued, started and completed in its process groups.

A folder of dumps is one trace: why a job hangs is only visible in all ranks together. A dump that is missing, empty or
torn is a fact about its rank, so it is counted and never ends the reading.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.schema import COLLECTIVE_RECORDS, GROUP_STATUS, STACKS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.record_columns import Column, Records, Rows, integers
from stepscope.readers.common.source import IssueLog, Source, family_of_dump, no_collection
from stepscope.readers.common.unpickle import unpickled
from stepscope.readers.flight_recorder.processes import processes_of_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

Fields = dict[str, Any]

FORMAT = "flight-recorder"
_LIBRARIES = regex(
    r"(?:^|/)(?:site|dist)-packages/|(?:^|/)lib/python3[^/]*/|^<frozen|/torch/|(?:^|/)_stepscope_\w+\.py$"
)
_LAST_NUMBER = regex(r"(\d{1,9})\D*\Z")
_INTEGER = regex(r"\d{1,9}")
#: Times before this one (2001) count from some start of the machine and not from 1970.
_UNIX_NS = 10**18
_BETWEEN = regex(rb"\}\s*,\s*\{")
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
_TIMES = ("created_ns", "started_ns", "completed_ns")
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
        example = next(iter(issues.table()["example"]), "")
        raise CorruptInput(f"no dump can be read ({example})", "copy the dumps again", path=source.label)
    status = GROUP_STATUS.conform(
        pl.DataFrame([row for dump in dumps for row in dump.status], schema=dict(GROUP_STATUS.dtypes))
    )
    _missing(status, issues)
    numbers = [dump.number for dump in dumps]
    first_ns = records.first_ns(numbers)
    origin = first_ns or 0
    table = records.table(numbers, origin)
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
        "collective_records": table,
        "group_status": status.with_columns(pl.col("dumped_ns") - origin),
        "stacks": (stacks := records.stacks.table()),
        **processes_of_folder(source.path, stacks, issues),
        "issues": issues.table(),
    }
    return Trace(meta, tables)


class _Dump(msgspec.Struct, frozen=True):
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
            issues.add("empty_dumps", "warning", 1, f"{name} is empty")
    except StepscopeError as error:
        reason = error.reason if isinstance(error, CorruptInput) else error.message
        issues.add("unreadable_dumps", "warning", 1, f"{name}: {reason}")
    torn = source.damage or torn
    issues.add("torn_dumps", "warning", bool(torn), f"{name}: {torn}")
    rank = _rank_of(source.path, document)
    is_whole, written_ns = bool(document) and not torn, _written_ns(source.path)
    newest, groups = records.add(rank, Records(_list(document.get("entries"))))
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
        return _decoded(data), ""
    except (ValueError, RecursionError) as error:
        problem = str(error)
    try:
        data.decode()  # versions of msgspec differ in the error that they raise of it
    except UnicodeDecodeError as error:
        problem = f"bytes that are no text: {error.reason}"
        data = data.decode("utf-8", "replace").encode()
        with suppress(ValueError, RecursionError):
            return _decoded(data), problem
    # Of a file that ends early, the whole records count. Frames within a record are separated as records are.
    for match in reversed([*_BETWEEN.finditer(data, max(len(data) - _TORN_BYTES, 0))][-_MOST_TRIED:]):
        try:
            return _decoded(data[: match.start() + 1] + b"]}"), problem
        except (ValueError, RecursionError):
            continue
    raise CorruptInput(f"not JSON: {problem}")


def _decoded(data: bytes) -> object:
    """The value of a JSON text, its records by column. Raises ValueError, RecursionError."""
    try:
        document: Any = _DOCUMENT.decode(data)
    except msgspec.ValidationError:  # not the usual kinds of values
        return msgspec.json.decode(data)
    columns = {}
    for name, kind in _FIELDS.items():
        values = [getattr(entry, name) for entry in document.entries]
        columns[name] = Column.of(values) if kind is Any else _decoded_once(values)
    whole = {name: getattr(document, name) for name in ("version", "pg_config", "pg_status")}
    return {**whole, "entries": [Rows(columns, len(document.entries))]}


def _decoded_once(texts: list[msgspec.Raw]) -> Column:
    """The values of JSON texts, each distinct one decoded once."""
    return Column.of_parts(list(map(bytes, texts)), lambda i: msgspec.json.decode(texts[i]))


def _rank_of(path: str, document: Fields) -> int:
    """The rank of a dump: by its name, unless its groups are of other ranks; without either, -1."""
    name = files.split(path)[1]
    number = files.rank_of_dump(path)
    if number is None:
        match = _LAST_NUMBER.search(name)
        number = files.rank_in(path) if match is None else int(match[1])
    # gloo writes the last group that was made, whether the rank is a member or not, under an empty name.
    named = (one for name, one in _map(document.get("pg_config")).items() if _text(name))
    members = [set(ranks) for one in named if (ranks := _ranks(_map(one)))]
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

    def named(self, numbers: NDArray[np.int32]) -> pl.Series:
        """The texts of numbers."""
        return pl.Series(self._texts, dtype=pl.Categorical()).gather(numbers)


class _Records:
    """The columns of the records of all ranks."""

    def __init__(self) -> None:
        self.stacks = _Stacks()
        self._names: dict[str, _Names] = {name: _Names() for name in _NAMED}
        self._parts: list[dict[str, NDArray[Any]]] = []

    def add(self, rank: int, entries: Records) -> tuple[int, dict[int, tuple[str, str]]]:
        """Take the records in a file. Gives the time of the newest, and its groups by their numbers on this rank."""
        n = len(entries)
        columns: dict[str, NDArray[Any]] = {
            "rank": np.full(n, rank, np.int32),
            "stack_id": entries.mapped(self.stacks.number_of, "frames").astype(np.int32),
        }
        for name, field in _NUMBERS.items():
            values, is_known = entries.numbers(field)
            # Some versions write 0 for a time that is not known.
            columns[name], columns[f"has {name}"] = values, is_known & (values != 0) if name in _TIMES else is_known
        for name in ("is_p2p", "retired"):
            columns[name] = entries.flags(name)
        for name, (field, text) in _NAMED.items():
            columns[name] = entries.mapped(partial(self._names[name].number, text), field).astype(np.int32)
        own, is_known = entries.numbers("pg_id")
        own, first = np.unique(own[is_known], return_index=True)
        names = zip(*(columns[name][is_known][first].tolist() for name in ("group", "group_desc")), strict=True)
        text, desc = self._names["group"].text, self._names["group_desc"].text
        groups = {i: (text(a), desc(b)) for i, (a, b) in zip(own.tolist(), names, strict=True)}
        ids = columns["record_id"] = np.where(columns.pop("has record_id"), columns["record_id"], np.arange(n))
        if (np.diff(ids) < 0).any():
            order = np.argsort(ids, kind="stable")
            columns = {name: part[order] for name, part in columns.items()}
        self._parts.append(columns)
        newest = columns["created_ns"][columns["has created_ns"]].max(initial=-1)
        return int(newest), groups

    def table(self, numbers: list[int], origin_ns: int) -> pl.DataFrame:
        """The table `collective_records` of the files with these numbers, with times from the origin on."""
        parts, self._parts = [self._parts[number] for number in numbers], []

        def column(name: str) -> pl.Series:
            joined = np.concatenate([part.pop(name) for part in parts])
            if name in _NAMED:
                return self._names[name].named(joined)
            if name == "stack_id":
                return integers(joined, joined >= 0).cast(pl.UInt32)
            if f"has {name}" not in parts[0]:
                return pl.Series(joined)
            if name in _TIMES:
                joined -= origin_ns
            if name == "timeout_ns":
                joined *= _MILLISECOND
            return integers(joined, np.concatenate([part.pop(f"has {name}") for part in parts]))

        names = [name for name in COLLECTIVE_RECORDS.dtypes if name in parts[0]]
        table = pl.DataFrame({name: column(name) for name in names})
        line = pl.Series([*self.stacks.line_of, None], dtype=pl.Categorical())
        lines = line.gather(table["stack_id"].fill_null(len(self.stacks.line_of)))
        return COLLECTIVE_RECORDS.conform(table.with_columns(line=lines))

    def first_ns(self, numbers: list[int]) -> int | None:
        """The time of the first record in the files with these numbers."""
        times = (self._parts[number]["created_ns"][self._parts[number]["has created_ns"]] for number in numbers)
        return min((int(own.min()) for own in times if own.size), default=None)


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


#: What is read of each record in JSON; texts and lists, which many records share, are decoded once for each of them.
_FIELDS: dict[str, Any] = {
    **dict.fromkeys((*_NUMBERS.values(), "pg_id", "is_p2p", "retired"), Any),
    **dict.fromkeys((field for field, _ in _NAMED.values()), msgspec.Raw),
    "frames": msgspec.Raw,
}
_ENTRY = msgspec.defstruct(
    "_ENTRY", [(name, kind, None if kind is Any else msgspec.Raw(b"null")) for name, kind in _FIELDS.items()], gc=False
)
_DOCUMENT = msgspec.json.Decoder(
    msgspec.defstruct(
        "_DUMP",
        [("entries", list[_ENTRY]), *((name, Any, None) for name in ("version", "pg_config", "pg_status"))],  # type: ignore[valid-type]
    )
)


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
