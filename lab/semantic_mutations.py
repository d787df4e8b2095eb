"""Files that are valid and absurd: changes of meaning, for every format, all from one random.Random.

A file is a few lists of rows: the events of a Chrome trace and their arguments, tables of a database, of a CSV file or
of a stored folder. A change takes the rows of one list and one or more of their columns by what they hold: times, links,
sizes, counts, names. The file stays one that its format allows; what it says cannot be. Changes compose.
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import re
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import mutations
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from random import Random

    Row = dict[str, Any]
    Rows = list[Row]

LARGEST = 2_000_000  # bytes of a file to begin with
MANY = 20_000
ROLES = {
    "times": re.compile(r"^(ts|dur|start|end|begin|timestamp|time|.*(_ns|time|start|end|duration|timestamp).*)$", re.IGNORECASE),
    "links": re.compile(r"correlation|parent|(^|_)id$|Id$|^id$|link|external|globalTid|globalPid|^pid$|^tid$|stream|device|rank", re.IGNORECASE),
    "sizes": re.compile(r"bytes|size|grid|block|dims|shape|nelems|regist|shared|count|addr|memory|capacity|sms|world", re.IGNORECASE),
    "names": re.compile(r"name|label|cat|ph$|kind|op$|text|value|stack|function", re.IGNORECASE),
}  # fmt: skip


def paths(also: Path | None = None) -> list[Path]:
    """Files to begin with: the examples, and what lies below `also` in formats that rows can be taken from."""
    folders = [mutations.EXAMPLES, *([also] if also else [])]
    endings = (".json.gz", ".json", ".csv", ".csv.gz", ".sqlite", ".db", ".rpd")
    found = sorted(path for folder in folders for path in folder.rglob("*") if path.name.endswith(endings))
    return [path for path in found if path.stat().st_size < (LARGEST if path.suffix != ".gz" else LARGEST // 8)]


def write_mutated(seed: Path | Row, folder: Path, random: Random) -> Path:
    """The file to begin with, or a Chrome document, with some changes of meaning, in that folder."""
    if isinstance(seed, dict):
        return _of_document(copy.deepcopy(seed), folder / "case.json", random)
    plain = seed.name.removesuffix(".gz")
    if plain.endswith(".json"):
        data = seed.read_bytes()
        document = json.loads(gzip.decompress(data) if seed.suffix == ".gz" else data, strict=False)
        if isinstance(document, list):
            document = {"traceEvents": document}
        return _of_document(document, folder / "case.json", random)
    if plain.endswith(".csv"):
        return _of_csv(seed, folder / f"case-{plain}", random)
    if seed.is_dir():
        return _of_stored(seed, folder / "case", random)
    return _of_database(seed, folder / f"case{seed.suffix}", random)


def _few(random: Random) -> int:
    return min(1 + int(random.expovariate(0.7)), 5)


def _of_document(document: Row, path: Path, random: Random) -> Path:
    events: Rows = [event for event in document.get("traceEvents", ()) if isinstance(event, dict)]
    stride = max(len(events) // 400, 1)
    events = [event for i, event in enumerate(events) if i % (10 * stride) < 10 or event.get("ph") == "M"]
    for _ in range(_few(random)):
        if random.random() < 0.3:
            events = random.choice(_OF_EVENTS)(document, events, random)
        else:
            arguments = [args for event in events if isinstance(args := event.get("args"), dict) and args]
            changed = _changed(arguments if arguments and random.random() < 0.4 else events, random)
            events = changed if changed and changed[0].keys() & {"ph", "ts"} else events
    document["traceEvents"] = events
    path.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")
    return path


def _of_csv(seed: Path, path: Path, random: Random) -> Path:
    data = seed.read_bytes()
    text = (gzip.decompress(data) if seed.suffix == ".gz" else data).decode("utf-8", "replace")
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = [column for column in (rows[0] if rows else {}) if column is not None]
    rows = [{column: row.get(column) for column in columns} for row in rows[:2000]]
    for _ in range(_few(random)):
        rows = _changed(rows, random)
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _of_database(seed: Path, path: Path, random: Random) -> Path:
    shutil.copyfile(seed, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.row_factory = sqlite3.Row
        tables = [r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        tables = [name for name in tables if connection.execute(f'SELECT 1 FROM "{name}"').fetchone()]  # noqa: S608
        for name in random.choices(tables, k=_few(random)) if tables else ():
            rows = [dict(row) for row in connection.execute(f'SELECT * FROM "{name}" LIMIT 20000')]  # noqa: S608
            rows = _changed(rows, random)
            connection.execute(f'DELETE FROM "{name}"')  # noqa: S608
            marks = ", ".join("?" * len(rows[0])) if rows else ""
            connection.executemany(
                f'INSERT OR IGNORE INTO "{name}" VALUES ({marks})', [tuple(map(_storable, row.values())) for row in rows]  # noqa: S608
            )
    return path


def _storable(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value)
    return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else float(value)


def _of_stored(seed: Path, path: Path, random: Random) -> Path:
    shutil.copytree(seed, path, dirs_exist_ok=True)
    tables = sorted(path.rglob("*.parquet"))
    for table in random.choices(tables, k=_few(random)):
        frame = pl.read_parquet(table)
        rows = _changed(frame.to_dicts(), random)
        keep = frame.schema if random.random() < 0.7 else None
        try:
            changed = pl.DataFrame(rows, schema=keep, strict=False, infer_schema_length=None)
        except (pl.exceptions.PolarsError, TypeError, OverflowError):
            continue  # values that no such table can hold
        changed.write_parquet(table)
    return path


def _changed(rows: Rows, random: Random) -> Rows:
    """One change of one list of rows."""
    if not rows:
        return rows
    if random.random() < 0.15:
        return random.choice(_OF_ROWS)(rows, random)
    role = random.choice(list(ROLES))
    columns = sorted({key for row in rows[:200] for key in row if isinstance(key, str) and ROLES[role].search(key)})
    if not columns:
        return rows
    change = random.choice(_OF_VALUES[role])
    chosen = set(random.sample(columns, min(len(columns), random.choice((1, 1, 2, 9)))))
    share = random.choice((1.0, 1.0, 0.5, 0.02))
    for number, row in enumerate(rows):
        if random.random() <= share:
            for column in sorted(chosen & row.keys()):
                row[column] = change(row[column], number, random)
    return rows


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


_OF_VALUES: dict[str, tuple[Callable[[Any, int, Random], Any], ...]] = {
    "times": (
        lambda _v, _n, _r: 0,
        lambda v, _n, _r: -_number(v),
        lambda _v, _n, _r: 1000,
        lambda v, _n, _r: 1e12 - _number(v),
        lambda v, _n, _r: _number(v) * 1e9,
        lambda _v, n, _r: 9_223_372_036_854_775 - n,
        lambda v, _n, r: _number(v) + r.choice((-1e15, 1e15, -1, 1)),
        lambda _v, n, _r: n * 1e-4,
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
}


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


def _nested(_document: Row, events: Rows, random: Random) -> Rows:
    depth = random.choice((100, 2_000, MANY))
    base = {"ph": "X", "cat": random.choice(("cpu_op", "python_function", "user_annotation", None)), "pid": 1, "tid": 1}
    same = random.random() < 0.5
    deep = ({**base, "name": "same" if same else f"n{i}", "ts": i, "dur": 2 * depth - 2 * i} for i in range(depth))
    return [*events, *deep]


def _steps(_document: Row, events: Rows, random: Random) -> Rows:
    base = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": random.choice((0, 0.5, 3))}
    return [*events, *({**base, "name": f"ProfilerStep#{i}", "ts": i} for i in range(random.choice((1, 10, MANY))))]


def _processes(_document: Row, events: Rows, _random: Random) -> Rows:
    return [{**event, "pid": number, "tid": number} for number, event in enumerate(events)]


def _world(document: Row, events: Rows, random: Random) -> Rows:
    claim = random.choice((0, -1, 10**9, 2**62, "8", [8], None))
    document["distributedInfo"] = {
        "rank": random.choice((0, -1, 10**9, "x")), "world_size": claim, "backend": "nccl",
        "pg_config": [{"pg_name": "0", "ranks": list(range(random.choice((0, 1, 5000)))), "pg_size": claim}],
    }  # fmt: skip
    return events


def _properties(document: Row, events: Rows, random: Random) -> Rows:
    odd: Iterable[Any] = (0, -1, 10**18, "x", [1], {"a": 1}, None, 1e300, True)
    keys = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock", "numSms", "warpSize")
    document["deviceProperties"] = [{key: random.choice(list(odd)) for key in keys} for _ in range(random.choice((1, 3)))]
    return events


def _circle(_document: Row, events: Rows, _random: Random) -> Rows:
    """Arrows from each event to the one before it, and Python frames that are each other's parents."""
    ends = [event for event in events if "ts" in event][:200]
    arrows = [
        {"ph": ph, "id": number, "cat": "ac2g", "name": "ac2g", **{k: event.get(k) for k in ("pid", "tid", "ts")}}
        for number in range(1, len(ends))
        for ph, event in (("s", ends[number]), ("f", ends[number - 1]))
    ]
    for number, event in enumerate(ends):
        event["args"] = {**(event.get("args") or {}), "Python id": number, "Python parent id": (number + 1) % len(ends)}
    return [*events, *arrows]


_OF_EVENTS: tuple[Callable[[Row, Rows, Random], Rows], ...] = (
    _nested, _steps, _processes, _world, _properties, _circle,
)  # fmt: skip
