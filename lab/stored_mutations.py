"""Stored folders that no program of ours wrote: tables and descriptions changed, each from one random.Random.

Most changes keep a folder consistent: the lengths and numbers of rows in meta.json are those of the changed files. So
they pass everything but a look at the values.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import mutations
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Change = Callable[[pl.DataFrame, str, Random], pl.DataFrame]
    Document = dict[str, Any]

_HUGE = (2**31 - 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1)


def is_stored(path: Path) -> bool:
    """Whether a stored trace is there."""
    return path.is_dir() and any(path.glob("*.parquet")) and (path / "meta.json").is_file()


def write_mutated(seed: Path, folder: Path, random: Random) -> Path:
    """A copy of a stored folder, changed in one to three ways."""
    target = folder / "stored"
    shutil.copytree(seed, target)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choices((_in_table, _in_document, _in_folder), (20, 3, 3))[0](target, random)
    return target


def _in_table(folder: Path, random: Random) -> str:
    """One change of one column of one table that has rows."""
    files = sorted(folder.glob("*.parquet"))
    frames = {path: frame for path in files if path.is_file() and (frame := _frame(path)) is not None and frame.height}
    if not frames:
        return "nothing"
    path = random.choice(list(frames))
    frame = frames[path]
    column = random.choice(frame.columns) if frame.columns else ""
    name = random.choice(list(CHANGES))
    try:
        frame = CHANGES[name](frame, column, random)
    except (pl.exceptions.PolarsError, TypeError, OverflowError):
        return "nothing"  # a change that no such column can have
    frame.write_parquet(path)
    _describe(folder, path.stem, frame.height)
    return f"{name} in {path.stem}.{column}"


def _frame(path: Path) -> pl.DataFrame | None:
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError):
        return None


def _describe(folder: Path, table: str, n_rows: int) -> None:
    """Let meta.json say what is in the file."""
    path = folder / "meta.json"
    if not path.is_file():
        return
    try:
        document = json.loads(path.read_text())
        entries = document["tables"] if table in document["tables"] else document["results"]
        content = (folder / f"{table}.parquet").read_bytes()
        entries[table] |= {"n_rows": n_rows, "size_bytes": len(content), "crc32": crc32(content)}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return  # another change was there
    path.write_text(json.dumps(document))


def _some(frame: pl.DataFrame, random: Random) -> pl.Series:
    """Which rows a change is about: one, about a tenth, or all."""
    kind, height = random.randrange(3), frame.height
    if kind == 0:
        at = random.randrange(height)
        return pl.int_range(height, eager=True) == at
    share = (0, 0.1, 1.1)[kind]
    return pl.Series([random.random() < share for _ in range(height)], dtype=pl.Boolean)


def _set(frame: pl.DataFrame, column: str, random: Random, value: Any) -> pl.DataFrame:
    """Some rows of the column become the value: a number, a text, an expression."""
    new = value if isinstance(value, pl.Expr) else pl.lit(value)
    dtype = frame.schema[column]
    wanted = pl.when(_some(frame, random)).then(new.cast(dtype)).otherwise(pl.col(column))
    return frame.with_columns(wanted.cast(dtype).alias(column))


def _retyped(frame: pl.DataFrame, column: str, random: Random) -> pl.DataFrame:
    dtype = random.choice((pl.String(), pl.Float64(), pl.Int64(), pl.UInt8(), pl.Boolean(), pl.Null()))
    return frame.with_columns(pl.col(column).cast(dtype, strict=False))


def _scaled(frame: pl.DataFrame, column: str, random: Random) -> pl.DataFrame:
    """In another unit."""
    by = random.choice((-1, 0, 1000, 10**6, 10**9))
    return frame.with_columns((pl.col(column) * by).cast(frame.schema[column]))


def _other_word(frame: pl.DataFrame, column: str, random: Random) -> pl.DataFrame:
    """Another value of a closed list, or an unknown word, in a closed list too."""
    dtype = frame.schema[column]
    if isinstance(dtype, pl.Enum):
        if random.random() < 0.5:
            return _set(frame, column, random, random.choice(dtype.categories.to_list()))
        wider = pl.Enum([*dtype.categories, "novel"])
        return _set(frame.with_columns(pl.col(column).cast(wider)), column, random, "novel")
    words = ("", "novel", "x" * 100_000, "a\0b", "\u202e<b>", "ProfilerStep#99999999999", "nccl:all_reduce", "[[1, 2")
    return _set(frame, column, random, random.choice(words))


CHANGES: dict[str, Change] = {
    "null": lambda f, c, r: _set(f, c, r, None),
    "itself": lambda f, c, r: _set(f, c, r, pl.int_range(f.height)),
    "the next": lambda f, c, r: _set(f, c, r, (pl.int_range(f.height) + 1) % f.height),
    "the other of two": lambda f, c, r: _set(f, c, r, pl.int_range(f.height).xor(1).clip(0, f.height - 1)),
    "one too many": lambda f, c, r: _set(f, c, r, f.height),
    "huge": lambda f, c, r: _set(f, c, r, r.choice(_HUGE)),
    "negative": lambda f, c, r: _set(f, c, r, -r.choice((1, *_HUGE))),
    "zero": lambda f, c, r: _set(f, c, r, 0),
    "no number": lambda f, c, r: _set(f, c, r, r.choice((float("nan"), float("inf"), -1e300))),
    "another type": _retyped,
    "another unit": _scaled,
    "another word": _other_word,
    "shuffled column": lambda f, c, r: f.with_columns(pl.col(c).shuffle(seed=r.randrange(99))),
    "shuffled rows": lambda f, _, r: f.sample(fraction=1, shuffle=True, seed=r.randrange(99)),
    "reversed rows": lambda f, *_: f.reverse(),
    "repeated rows": lambda f, _, r: pl.concat([f, f.slice(r.randrange(f.height), 20)]),
    "doubled": lambda f, *_: pl.concat([f, f]),
    "one row": lambda f, _, r: f.slice(r.randrange(f.height), 1),
    "half of the rows": lambda f, _, r: f.filter(_some(f, r)),
    "no rows": lambda f, *_: f.clear(),
    "a column too many": lambda f, *_: f.with_columns(novel=pl.lit(1)),
    "a column missing": lambda f, c, _: f.drop(c),
    "columns in another order": lambda f, *_: f.select(reversed(f.columns)),
    "one value": lambda f, c, _: f.with_columns(pl.col(c).first()),
}


_ODD: tuple[Any, ...] = (
    *mutations.ODD_VALUES[:24], "", "../..", "/etc/passwd", "x" * 10_000, [], {}, [[]], {"a": 1}, [2**70], {"x": None},
)  # fmt: skip


def _in_document(folder: Path, random: Random) -> str:
    """One value of meta.json."""
    path = folder / "meta.json"
    if not path.is_file():
        return "nothing"
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return "nothing"
    part, where = document, "meta.json"
    while isinstance(part, dict) and part:
        key = random.choice(list(part))
        where = f"{where}.{key}"
        if not isinstance(part[key], dict) or random.random() < 0.2:
            _change(part, key, random)
            break
        part = part[key]
    text = json.dumps(document)
    if random.random() < 0.05:
        text, where = f'{{"stepscope": "trace", "x": {"[" * 100_000}', "nested meta.json"
    path.write_text(text)
    return where


def _change(part: Document, key: str, random: Random) -> None:
    way = random.randrange(5)
    if way == 0:
        del part[key]
    elif way == 1:
        part[random.choice(("../spans", "/etc/passwd", "novel", "issues", "cycles", ""))] = part[key]
    elif way == 2 and isinstance(part[key], int):
        part[key] = part[key] * random.choice((-1, 2, 10**6, 10**12)) + 1
    else:
        part[key] = random.choice(_ODD)


def _in_folder(folder: Path, random: Random) -> str:
    """One file: gone, damaged, another's, a folder, a link."""
    path = random.choice(sorted(p for p in folder.iterdir() if p.is_file() and not p.is_symlink()))
    way = random.choice(list(_FILE_CHANGES))
    _FILE_CHANGES[way](path, random)
    if way != "damaged" and random.random() < 0.8 and path.is_file() and path.stat().st_size < 10**9:
        _describe(folder, path.stem, _height(folder, path.stem))
    return f"{way} {path.name}"


def _height(folder: Path, table: str) -> int:
    frame = _frame(folder / f"{table}.parquet")
    return 0 if frame is None else frame.height


def _flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 3, 30))):
        if data:
            data[random.randrange(len(data))] ^= random.randrange(1, 256)
    path.write_bytes(data)


def _swap(path: Path, random: Random) -> None:
    others = sorted(one for one in path.parent.glob("*.parquet") if one.is_file())
    if others and path.is_file():
        path.write_bytes(random.choice(others).read_bytes())


def _into_folder(path: Path, _: Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "part.parquet").write_bytes(b"PAR1")


def _link(path: Path, random: Random) -> None:
    target = random.choice((path.parent, Path("/etc/passwd"), Path("/dev/zero"), path, path.parent / "tracks.parquet"))
    path.unlink()
    path.symlink_to(target)


def _pipe(path: Path, _: Random) -> None:
    path.unlink()
    os.mkfifo(path)


_FILE_CHANGES: dict[str, Callable[[Path, Random], object]] = {
    "no": lambda path, _: path.unlink(),
    "empty": lambda path, _: path.write_bytes(b""),
    "damaged": _flip,
    "short": lambda path, r: os.truncate(path, r.randrange(path.stat().st_size + 1)),
    "another's": _swap,
    "a folder as": _into_folder,
    "a link as": _link,
    "a pipe as": _pipe,
}
