"""Files that are valid and absurd: changes of meaning, for every format, all from one random.Random.

A file is a few lists of rows: objects in JSON, rows of CSV, lines of JSON, tables of a database, messages of protobuf.
A change takes the rows of one list and one or more columns by what they hold: times, links, sizes, names. The file
stays one that its format allows, and what it says cannot be. Changes compose.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import pickle
import re
import shutil
import sqlite3
import struct
import zlib
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import stored_mutations
from absurd_changes import (
    FIRST_OF_EVENTS,
    FIRST_ROWS,
    FIRST_VALUES,
    OF_EVENTS,
    OF_ROWS,
    OF_VALUES,
    number,
    reshaped,
)  # fmt: skip
from protobuf_writer import content, varint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    Row = dict[str, Any]
    Rows = list[Row]

LARGEST = 1_000_000  # bytes of a seed, unpacked
ROLES = {
    "times": r"^(ts|dur|start|end|begin|timestamp|time|.*(_ns|time|start|end|duration|timestamp|cycle|cost).*)$",
    "links": r"corr(elation|id)|parent|(^|_)id$|Id$|link|external|global[TP]id|^.?pid$|^tid$|stream|device|rank",
    "sizes": r"bytes|size|grid|bl(oc)?k|grd|dims|shape|nelem|regis|shared|count|addr|memory|capac|sms|world|value|pct",
    "names": r"name|label|cat|ph$|kind|op$|text|value|stack|function|metric",
}
_ROLE = {role: re.compile(pattern, re.IGNORECASE) for role, pattern in ROLES.items()}
#: A column whose name says nothing may hold anything.
_ANY = "time_id_size_count"
#: The head of a frame in a recording of the scheduler, and the kind of frames that hold facts.
_FRAME, _FACTS = struct.Struct("<HHIIq"), 1
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?![\w.])")


@dataclass(slots=True)
class Lists:
    """The lists of rows of one file, by name, and what writes the file from them."""

    rows: dict[str, Rows]
    write: Callable[[Path], None]
    document: Row | None = None  # of a Chrome trace
    inner: list[list[Any]] = field(default_factory=list)  # lists within a document, which may change their shape
    statements: list[str] | None = None  # that change the schema of a database in the end


def seeds_in(folder: Path) -> list[Path]:
    """Files below a folder that rows can be taken from and that are small enough."""
    return [
        path for path in sorted(folder.rglob("*")) if path.is_file() and _decoder_of(path) and _size(path) <= LARGEST
    ]


def write_mutated(seed: Path, folder: Path, random: Random, *, further: bool = False) -> list[str]:
    """Writes the seed, a file or a folder of files, with some changes of meaning; gives the files to open.

    With `further` there are more kinds of changes.
    """
    if stored_mutations.is_stored(seed):
        return [str(stored_mutations.write_mutated(seed, folder, random))]
    if seed.is_dir():
        shutil.copytree(seed, folder, dirs_exist_ok=True)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in random.sample(files, min(len(files), random.choice((1, 1, 2, 9)))):
            _mutate(path, path, random, further=further)
        return [str(folder)]
    path = folder / seed.name.removesuffix(".gz")
    _mutate(seed, path, random, further=further)
    return [str(path)]


def _mutate(seed: Path, target: Path, random: Random, *, further: bool) -> None:
    decoder = _decoder_of(seed)
    lists = decoder(seed)
    for _ in range(min(1 + int(random.expovariate(0.7)), 5)):
        if lists.document is not None and random.random() < 0.25:
            events = lists.rows["traceEvents"]
            change = random.choice(OF_EVENTS if further else FIRST_OF_EVENTS)
            events[:] = change(lists.document, [e for e in events if isinstance(e, dict)], random)
        elif further and lists.inner and random.random() < 0.2:
            reshaped(
                [one for some in lists.rows.values() for one in some if isinstance(one, dict)], lists.inner, random
            )
        elif further and lists.statements is not None and lists.rows and random.random() < 0.15:
            table = random.choice(list(lists.rows))
            lists.statements += _schema_change(table, random.choice(list(lists.rows[table][0] or [""])), random)
        elif lists.rows:
            rows = random.choice(list(lists.rows.values()))
            rows[:] = _changed([row for row in rows if isinstance(row, dict)], random, further=further)
    lists.write(target)
    if further and lists.inner and target.suffix in (".json", ".jsonl") and random.random() < 0.1:
        _twice(target)


def _size(path: Path) -> int:
    return path.stat().st_size * (8 if path.suffix == ".gz" else 1)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _decoder_of(path: Path) -> Callable[[Path], Lists] | None:
    name = re.sub(r"trace_rank_\w+$", ".dump", path.name.removesuffix(".gz"))
    return next((decoder for ending, decoder in _DECODERS.items() if name.endswith(ending)), None)


def _json(path: Path, magic: bytes = b"") -> Lists:
    """Every list of objects, and every object inside those, by where they are."""
    return _objects(
        json.loads(_read(path)[len(magic) :], strict=False),
        lambda document: magic + json.dumps(document).encode("utf-8", "surrogatepass"),
    )


def _twice(target: Path) -> None:
    """Each name of an object is there twice, at first without a value."""
    text = target.read_text(encoding="utf-8", errors="surrogateescape")
    again = re.sub(r'"(\w+)": (-?\d+|"[^"\\]*"|null)', r'"\1": null, "\1": \2', text)
    target.write_text(again, encoding="utf-8", errors="surrogateescape")


def _json_lines(path: Path) -> Lists:
    """The objects of lines."""
    return _objects(
        [json.loads(line) for line in _read(path).splitlines()],
        lambda rows: "\n".join(map(json.dumps, rows)).encode("utf-8", "surrogatepass"),
    )


def _pickle(path: Path) -> Lists:
    """The same of a pickle. Seeds are files of our own, or of recorders that we ran."""
    document = pickle.loads(_read(path))
    return _objects(document, lambda changed: pickle.dumps(changed, protocol=2))


def _objects(document: Any, pack: Callable[[Any], bytes]) -> Lists:
    if isinstance(document, list) and all(isinstance(event, dict) and "ph" in event for event in document):
        document = {"traceEvents": document}
    is_chrome = isinstance(document, dict) and isinstance(document.get("traceEvents"), list)
    if is_chrome:
        events = [event for event in document["traceEvents"] if isinstance(event, dict)]
        stride = max(len(events) // 400, 1)
        document["traceEvents"] = [e for i, e in enumerate(events) if i % (10 * stride) < 10 or e.get("ph") == "M"]
    rows: dict[str, Rows] = {"": [document]} if isinstance(document, dict) else {}
    inner: list[list[Any]] = [document] if isinstance(document, list) else []
    _walk(document, "", rows, inner)
    if is_chrome:
        rows["traceEvents"] = document["traceEvents"]  # the very list, so that rows can come and go

    return Lists(
        {name: some for name, some in rows.items() if some},
        lambda target: target.write_bytes(pack(document)) and None,
        document if is_chrome else None,
        inner,
    )


def _walk(value: Any, at: str, rows: dict[str, Rows], lists: list[list[Any]]) -> None:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        where = at if isinstance(value, list) else f"{at}.{key}".strip(".")
        if isinstance(inner, dict):
            rows.setdefault(where, []).append(inner)
        if isinstance(inner, list):
            lists.append(inner)
        if isinstance(inner, dict | list):
            _walk(inner, where, rows, lists)


def _csv(path: Path) -> Lists:
    """The table in a text: its header is the first line with as many fields as most lines have."""
    comma = "\t" if ".tsv" in path.name else ","
    lines = list(csv.reader(io.StringIO(_read(path).decode("utf-8", "replace")), delimiter=comma))
    lengths = [len(line) for line in lines]
    wide = max(set(lengths) - {0, 1}, key=lengths.count, default=0)
    head = lengths.index(wide) if wide else 0
    rows = [
        dict(zip(lines[head], line, strict=True)) for line in lines[head + 1 : head + 2000] if len(line) == wide > 0
    ]

    columns = [*lines[head]] if lines else []
    cells: list[list[Any]] = [lines[head]] if rows else []  # the header

    def write(target: Path) -> None:
        with target.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
            for line in lines[:head]:
                file.write(comma.join(line) + "\n")
            quoting = csv.QUOTE_ALL if "ncu" in target.name else csv.QUOTE_MINIMAL
            writer = csv.writer(file, quoting=quoting, lineterminator="\n", delimiter=comma)
            writer.writerow(map(_cell, lines[head]) if lines else [])
            writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)

    return Lists({"rows": rows} if rows else {}, write, None, cells)


def _cell(value: Any) -> Any:
    return str(value)[:1_000_000] if isinstance(value, list | dict) else value


def _text(path: Path) -> Lists:
    """A row for each line: its numbers, and the text before the first."""
    lines = _read(path).decode("utf-8", "replace").splitlines()[:5000]
    rows = [
        {"text": _NUMBER.split(line)[0], **{f"{_ANY}{i}": number for i, number in enumerate(_NUMBER.findall(line))}}
        for line in lines
    ]
    pieces = [_NUMBER.split(line)[1:] for line in lines]

    def write(target: Path) -> None:
        whole = []
        for n, row in enumerate(rows):
            text, *numbers = row.values()
            between = pieces[n % len(pieces)] + [""] * len(numbers)
            whole.append(f"{text}{''.join(f'{a}{b}' for a, b in zip(numbers, between, strict=False))}\n")
        target.write_text("".join(whole), encoding="utf-8", errors="surrogatepass")

    return Lists({"lines": rows} if rows else {}, write)


def _database(path: Path) -> Lists:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        names = [r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        rows = {name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}" LIMIT 5000')] for name in names}

    def write(target: Path) -> None:
        if target != path:
            shutil.copyfile(path, target)
        with closing(sqlite3.connect(target)) as connection, connection:
            for name, some in rows.items():
                connection.execute(f'DELETE FROM "{name}"')
                columns = ", ".join(f'"{column}"' for column in (some[0] if some else ()))
                marks = ", ".join("?" * len(some[0])) if some else ""
                connection.executemany(
                    f'INSERT OR IGNORE INTO "{name}" ({columns}) VALUES ({marks})',
                    [tuple(map(_storable, row.values())) for row in some],
                ) if some else None
            for statement in statements:
                with suppress(sqlite3.Error):  # of a table or column that is gone
                    connection.execute(statement)

    statements: list[str] = []
    return Lists({name: some for name, some in rows.items() if some}, write, statements=statements)


def _schema_change(table: str, column: str, random: Random) -> list[str]:
    """A table that is gone, lacks a column, holds nothing, or is a view of more rows than anyone can read."""
    held = [f'ALTER TABLE "{table}" RENAME TO "held"', f'CREATE VIEW "{table}" AS ']
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT held.* FROM n, held"
    return random.choice((
        [f'DROP TABLE "{table}"'], [f'DELETE FROM "{table}"'],
        [f'ALTER TABLE "{table}" DROP COLUMN "{column}"'],
        [f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column} "'],
        [held[0], held[1] + "SELECT * FROM held"],
        [held[0], held[1] + "SELECT a.* FROM held a, held b, held c, held d, held e, held f, held g, held h"],
        [held[0], held[1] + endless],
        [f'UPDATE "{table}" SET "{column}" = CAST("{column}" AS BLOB)'],
        [f'UPDATE "{table}" SET "{column}" = zeroblob(1000000) WHERE rowid = 1'],
    ))  # fmt: skip


def _storable(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else float(value)


def _protobuf(path: Path) -> Lists:
    """Messages by the numbers of the fields that they are in. A text that reads as a message counts as a text."""
    rows: dict[str, Rows] = {}
    whole = _message(_read(path), "", rows)
    if whole is None:
        raise ValueError(path)
    return Lists(rows, lambda target: target.write_bytes(_packed(whole)) and None)


def _message(data: bytes, at: str, rows: dict[str, Rows]) -> Row | None:
    """A message as a row whose columns say how a field is packed; None if the bytes are none."""
    row: Row = {}
    place = 0
    while place < len(data):
        try:
            key, place = _varint(data, place)
            number, wire = key >> 3, key & 7
            if wire == 0:
                value, place = _varint(data, place)
            elif wire in (1, 5):
                size, code = (8, "<d") if wire == 1 else (4, "<f")
                (value,) = struct.unpack(code, data[place : place + size])
                place += size
            elif wire == 2:
                length, place = _varint(data, place)
                raw = data[place : place + length]
                if len(raw) != length:
                    return None
                place += length
                inner: dict[str, Rows] = {}
                is_text = raw.isascii() and raw.decode("ascii").isprintable()
                value = raw.decode() if is_text else _message(raw, f"{at}.{number}", inner)
                value = raw if value is None else value
                for name, some in inner.items() if isinstance(value, dict) else ():
                    rows.setdefault(name, []).extend(some)
            else:
                return None
        except (IndexError, struct.error):
            return None
        if not number:
            return None
        role = "name" if wire == 2 else "time" if wire == 0 and value > 2**40 else "id_size_count"
        row[f"{role}:{number}:{wire}:{len(row)}"] = value
    rows.setdefault(at, []).append(row)
    return row


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[place] & 127) << shift
        if data[place] < 128:
            return value, place + 1
        place, shift = place + 1, shift + 7


def _packed(row: Row) -> bytes:
    out = bytearray()
    for column, value in row.items():
        _, field_number, wire, _ = column.split(":")
        if wire == "2" or isinstance(value, str | list | dict):
            wire = "2"
            raw = (
                _packed(value)
                if isinstance(value, dict) and all(":" in key for key in value)
                else value
                if isinstance(value, bytes)
                else str(value).encode("utf-8", "replace")
            )
            out += content(int(field_number), raw)
        elif value is not None and wire == "0":
            out += varint(int(field_number) << 3) + varint(_whole(value))
        elif value is not None:
            code = "<d" if wire == "1" else "<f"
            out += varint(int(field_number) << 3 | int(wire)) + struct.pack(code, min(max(float(value), -3e38), 3e38))
    return bytes(out)


def _whole(value: float) -> int:
    if isinstance(value, int):
        return value
    return 0 if math.isnan(value) else int(max(min(value, 1.8e19), -9e18))


def _ring(path: Path) -> Lists:
    """A recording of the scheduler: facts, frames, and in these the records of perf or the words of ring pages."""
    data = _read(path)
    place = data.index(b"\n") + 1
    frames: list[tuple[int, Row, Any]] = []
    rows: dict[str, Rows] = {"frames": [], "facts": [], "records": []}
    while place < len(data):
        kind, core, size, _, time = _FRAME.unpack_from(data, place)
        place += _FRAME.size + size
        content: Any = zlib.decompress(data[place - size : place])
        if kind == _FACTS:
            content = json.loads(content)
            rows["facts"].append(content)
            _walk(content, "facts", rows, [])
        else:
            count = len(content) // 4
            word = {f"{_ANY}{i}": value for i, value in enumerate(struct.unpack(f"<{count}I", content[: 4 * count]))}
            rows["records"].append(word)
            content = word
        rows["frames"].append({"core_id": core, "time": time})
        frames.append((kind, rows["frames"][-1], content))

    def write(target: Path) -> None:
        whole = [data[: data.index(b"\n") + 1]]
        for kind, head, content in frames:
            if kind == _FACTS:
                raw = json.dumps(content).encode("utf-8", "surrogatepass")
            else:
                raw = b"".join(struct.pack("<I", _bits(value, 32)) for value in content.values())
            packed = zlib.compress(raw)
            time = _bits(head["time"], 63) * (-1 if number(head["time"]) < 0 else 1)
            whole += [_FRAME.pack(kind, _bits(head["core_id"], 16), len(packed), len(raw), time), packed]
        target.write_bytes(b"".join(whole))

    return Lists(rows, write)


def _bits(value: Any, n: int) -> int:
    """The last n bits of the whole number that a value is, or comes near to."""
    found = number(value)
    return abs(value if isinstance(value, int) else int(found) if math.isfinite(found) else 0) & (2**n - 1)


_DECODERS: dict[str, Callable[[Path], Lists]] = {
    ".json": _json, ".jsonl": _json_lines, ".prom": _text,
    ".hatchet": _json, ".csv": _csv, ".tsv": _csv, ".txt": _text, ".log": _text,
    ".sqlite": _database, ".db": _database, ".rpd": _database, ".pb": _protobuf, ".ring": _ring,
    ".pftrace": _protobuf, ".pickle": _pickle, ".dump": _pickle, ".ncu-rep": partial(_json, magic=b"NVR\0"),
}  # fmt: skip


def _changed(rows: Rows, random: Random, *, further: bool) -> Rows:
    """One change of one list of rows."""
    if not rows:
        return rows
    if random.random() < 0.15:
        return random.choice(OF_ROWS if further else OF_ROWS[:FIRST_ROWS])(rows, random)
    role = random.choice(list(_ROLE))
    keys = {key for row in rows[:200] for key in row if isinstance(key, str)}
    columns = [key for key in sorted(keys) if _ROLE[role].search(key) or (further and random.random() < 0.1)]
    if not columns:
        return rows
    change = random.choice(OF_VALUES[role] if further else OF_VALUES[role][: FIRST_VALUES[role]])
    chosen = set(random.sample(columns, min(len(columns), random.choice((1, 1, 2, 9)))))
    share = random.choice((1.0, 1.0, 0.5, 0.02))
    for n, row in enumerate(rows):
        if random.random() <= share:
            for column in sorted(key for key in chosen & row.keys() if not isinstance(row[key], dict)):
                row[column] = change(row[column], n, random)
    return rows
