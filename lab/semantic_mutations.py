"""Files that are valid and absurd: changes of meaning, for every format, all from one random.Random.

A file is a few lists of rows: objects in JSON, rows of CSV, lines of JSON, tables of a database, messages of protobuf.
A change takes the rows of one list and one or more columns by what they hold: times, links, sizes, names. The file
stays one that its format allows, and what it says cannot be. Changes compose.
"""

from __future__ import annotations

import copy
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
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import mutations
import stored_mutations
from protobuf_writer import content, varint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    Row = dict[str, Any]
    Rows = list[Row]
    Change = Callable[[Any, int, Random], Any]

LARGEST = 1_000_000  # bytes of a seed, unpacked
MANY = 20_000
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


def seeds_in(folder: Path) -> list[Path]:
    """Files below a folder that rows can be taken from and that are small enough."""
    return [
        path for path in sorted(folder.rglob("*")) if path.is_file() and _decoder_of(path) and _size(path) <= LARGEST
    ]


def write_mutated(seed: Path, folder: Path, random: Random) -> list[str]:
    """Writes the seed, a file or a folder of files, with some changes of meaning; gives the files to open."""
    if stored_mutations.is_stored(seed):
        return [str(stored_mutations.write_mutated(seed, folder, random))]
    if seed.is_dir():
        shutil.copytree(seed, folder, dirs_exist_ok=True)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in random.sample(files, min(len(files), random.choice((1, 1, 2, 9)))):
            _mutate(path, path, random)
        return [str(folder)]
    path = folder / seed.name.removesuffix(".gz")
    _mutate(seed, path, random)
    return [str(path)]


def _mutate(seed: Path, target: Path, random: Random) -> None:
    decoder = _decoder_of(seed)
    lists = decoder(seed)
    for _ in range(min(1 + int(random.expovariate(0.7)), 5)):
        if lists.document is not None and random.random() < 0.25:
            lists.rows["traceEvents"][:] = random.choice(_OF_EVENTS)(lists.document, lists.rows["traceEvents"], random)
        elif lists.rows:
            rows = random.choice(list(lists.rows.values()))
            rows[:] = _changed(rows, random)
    lists.write(target)


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
    _walk(document, "", rows)
    if is_chrome:
        rows["traceEvents"] = document["traceEvents"]  # the very list, so that rows can come and go

    return Lists(
        {name: some for name, some in rows.items() if some},
        lambda target: target.write_bytes(pack(document)) and None,
        document if is_chrome else None,
    )


def _walk(value: Any, at: str, rows: dict[str, Rows]) -> None:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        where = at if isinstance(value, list) else f"{at}.{key}".strip(".")
        if isinstance(inner, dict):
            rows.setdefault(where, []).append(inner)
        if isinstance(inner, dict | list):
            _walk(inner, where, rows)


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

    def write(target: Path) -> None:
        with target.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
            for line in lines[:head]:
                file.write(comma.join(line) + "\n")
            quoting = csv.QUOTE_ALL if "ncu" in target.name else csv.QUOTE_MINIMAL
            writer = csv.writer(file, quoting=quoting, lineterminator="\n", delimiter=comma)
            writer.writerow(lines[head] if lines else [])
            writer.writerows([row.get(column) for column in lines[head]] for row in rows)

    return Lists({"rows": rows} if rows else {}, write)


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
        for number, row in enumerate(rows):
            text, *numbers = row.values()
            between = pieces[number % len(pieces)] + [""] * len(numbers)
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

    return Lists({name: some for name, some in rows.items() if some}, write)


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
        _, number, wire, _ = column.split(":")
        if wire == "2" or isinstance(value, str | list | dict):
            wire = "2"
            raw = (
                _packed(value)
                if isinstance(value, dict) and all(":" in key for key in value)
                else value
                if isinstance(value, bytes)
                else str(value).encode("utf-8", "replace")
            )
            out += content(int(number), raw)
        elif value is not None and wire == "0":
            out += varint(int(number) << 3) + varint(
                int(max(min(float(value), 1.8e19), -9e18)) if isinstance(value, float) else value
            )
        elif value is not None:
            code = "<d" if wire == "1" else "<f"
            out += varint(int(number) << 3 | int(wire)) + struct.pack(code, min(max(float(value), -3e38), 3e38))
    return bytes(out)


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
            _walk(content, "facts", rows)
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
            time = _bits(head["time"], 63) * (-1 if _number(head["time"]) < 0 else 1)
            whole += [_FRAME.pack(kind, _bits(head["core_id"], 16), len(packed), len(raw), time), packed]
        target.write_bytes(b"".join(whole))

    return Lists(rows, write)


def _bits(value: Any, n: int) -> int:
    """The last n bits of the whole number that a value is, or comes near to."""
    number = _number(value)
    return abs(value if isinstance(value, int) else int(number) if math.isfinite(number) else 0) & (2**n - 1)


_DECODERS: dict[str, Callable[[Path], Lists]] = {
    ".json": _json, ".jsonl": _json_lines, ".prom": _text,
    ".hatchet": _json, ".csv": _csv, ".tsv": _csv, ".txt": _text, ".log": _text,
    ".sqlite": _database, ".db": _database, ".rpd": _database, ".pb": _protobuf, ".ring": _ring,
    ".pftrace": _protobuf, ".pickle": _pickle, ".dump": _pickle, ".ncu-rep": partial(_json, magic=b"NVR\0"),
}  # fmt: skip


def _changed(rows: Rows, random: Random) -> Rows:
    """One change of one list of rows."""
    if not rows:
        return rows
    if random.random() < 0.15:
        return random.choice(_OF_ROWS)(rows, random)
    role = random.choice(list(_ROLE))
    columns = sorted({key for row in rows[:200] for key in row if isinstance(key, str) and _ROLE[role].search(key)})
    if not columns:
        return rows
    change = random.choice(_OF_VALUES[role])
    chosen = set(random.sample(columns, min(len(columns), random.choice((1, 1, 2, 9)))))
    share = random.choice((1.0, 1.0, 0.5, 0.02))
    for number, row in enumerate(rows):
        if random.random() <= share:
            for column in sorted(key for key in chosen & row.keys() if not isinstance(row[key], dict)):
                row[column] = change(row[column], number, random)
    return rows


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0


_OF_VALUES: dict[str, tuple[Change, ...]] = {
    "times": (
        lambda _v, _n, _r: 0,
        lambda v, _n, _r: -_number(v),
        lambda _v, _n, _r: 1000,
        lambda v, _n, _r: 1e12 - _number(v),
        lambda v, _n, _r: _number(v) * 1e9,
        lambda _v, n, _r: 9_223_372_036_854_775 - n,
        lambda v, _n, r: _number(v) + r.choice((-1e15, 1e15, -1, 1)),
        lambda _v, n, _r: n * 1e-4,
        lambda v, _n, _r: str(v),
        lambda _v, _n, r: r.choice(("NaN", "", None, "x", 2**63, -(2**63))),
    ),
    "links": (
        lambda _v, _n, _r: None,
        lambda _v, _n, _r: 1,
        lambda _v, n, _r: n,
        lambda _v, n, _r: n + 1,
        lambda _v, n, _r: 10**9 + n,
        lambda _v, _n, _r: -1,
        lambda _v, n, _r: 2**63 - 1 - n,
        lambda v, _n, _r: str(v),
        lambda _v, n, r: r.randrange(n + 2),
    ),
    "sizes": (
        lambda _v, _n, _r: 0,
        lambda _v, _n, _r: -1,
        lambda _v, _n, _r: 10**18,
        lambda _v, _n, _r: 2**63 - 1,
        lambda _v, _n, _r: [10**18, 10**18],
        lambda _v, _n, _r: [[10**18, 3], [3, 10**18]],
        lambda _v, _n, _r: [0, 0, 0],
        lambda _v, _n, _r: "x",
        lambda _v, n, _r: 1e300 * (n + 1),
        lambda _v, _n, r: r.choice((True, {"a": 1}, [], "-1.-1", 1e-300)),
    ),
    "names": (
        lambda _v, n, _r: f"{n:x}" * 200,
        lambda _v, _n, _r: "",
        lambda _v, n, _r: f"\u202e\x1b[2J\x07\u200b{n}",
        lambda _v, n, _r: "a::" * (n % 500) + "b<" * (n % 500),
        lambda _v, _n, _r: "ncclDevKernel_AllReduce",
        lambda _v, n, _r: f"ProfilerStep#{n * 10**6}",
        lambda _v, _n, _r: "=cmd|' /C calc'!A0",
        lambda _v, _n, r: r.choice(mutations.NAMES),
        lambda _v, _n, _r: None,
    ),
}  # fmt: skip


def _many_times(rows: Rows, random: Random) -> Rows:
    times = MANY // max(len(rows), 1) + 1
    return [dict(row) for row in rows[: random.choice((1, len(rows)))] for _ in range(times)][:MANY]


_OF_ROWS: tuple[Callable[[Rows, Random], Rows], ...] = (
    _many_times,
    lambda rows, random: [random.choice(rows)],
    lambda rows, _random: rows[::-1],
    lambda rows, random: random.sample(rows, len(rows)),
    lambda rows, _random: [copy.deepcopy(row) for row in rows for _ in range(2)],
)


def nested(_document: Row, events: Rows, random: Random) -> Rows:
    """Calls within calls, thousands deep."""
    depth = random.choice((100, 2_000, 10_000))
    base = {"ph": "X", "cat": random.choice(("cpu_op", "python_function", "user_annotation", None)), "pid": 1, "tid": 1}
    same = random.random() < 0.5
    deep = ({**base, "name": "same" if same else f"n{i}", "ts": i, "dur": 2 * depth - 2 * i} for i in range(depth))
    return [*events, *deep]


def steps(_document: Row, events: Rows, random: Random) -> Rows:
    """None to many steps, some without a length."""
    base = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": random.choice((0, 0.5, 3))}
    return [*events, *({**base, "name": f"ProfilerStep#{i}", "ts": i} for i in range(random.choice((1, 10, MANY))))]


def processes(_document: Row, events: Rows, random: Random) -> Rows:
    """A process for each event."""
    first = random.choice((0, 2**31, 10**12))
    return [{**event, "pid": first + number, "tid": number} for number, event in enumerate(events)]


def world(document: Row, events: Rows, random: Random) -> Rows:
    """Claims about the job."""
    claim = random.choice((0, -1, 10**9, 2**62, "8", [8], None))
    document["distributedInfo"] = {
        "rank": random.choice((0, -1, 10**9, "x")), "world_size": claim, "backend": "nccl",
        "pg_config": [{"pg_name": "0", "ranks": list(range(random.choice((0, 1, 5000)))), "pg_size": claim}],
    }  # fmt: skip
    return events


def properties(document: Row, events: Rows, random: Random) -> Rows:
    """Properties of devices that are of any type."""
    odd = (0, -1, 10**18, "x", [1], {"a": 1}, None, 1e300, True)
    keys = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock", "numSms", "warpSize")
    document["deviceProperties"] = [{key: random.choice(odd) for key in keys} for _ in range(random.choice((1, 3)))]
    return events


def circle(_document: Row, events: Rows, _random: Random) -> Rows:
    """Arrows from each event to the one before it, and Python frames that are each other's parents."""
    ends = [event for event in events if "ts" in event][:200]
    arrows = [
        {"ph": ph, "id": number, "cat": "ac2g", "name": "ac2g", **{k: event.get(k) for k in ("pid", "tid", "ts")}}
        for number in range(1, len(ends))
        for ph, event in (("s", ends[number]), ("f", ends[number - 1]))
    ]
    for number, event in enumerate(ends):
        args = event.get("args")
        own = args if isinstance(args, dict) else {}
        event["args"] = {**own, "Python id": number, "Python parent id": (number + 1) % len(ends)}
    return [*events, *arrows]


_OF_EVENTS = (nested, steps, processes, world, properties, circle)
