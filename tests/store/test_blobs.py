from __future__ import annotations

import pickle
import shutil
import time
import zlib
from collections.abc import Mapping  # noqa: TC003  a value's annotations are read
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
import pytest

import stepscope
from stepscope import store
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.report import Block
from stepscope.core.schema import TABLES
from stepscope.store._key import settled


@pytest.fixture
def path(tmp_path, examples, monkeypatch):
    """A trace that is worth keeping, written long enough ago."""
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    target = str(tmp_path / "rank0.pt.trace.json.gz")
    shutil.copy(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz", target)
    while not settled(target, time.time_ns()):
        pass
    return target


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A field of every kind that summaries have."""

    label: str
    size: int | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    pairs: tuple[tuple[int, ...], ...] = ()
    raw: bytes = b""
    block: Block | None = None


def note(path, *words):
    return store.value_key("test", path, words)


def test_a_value_is_what_it_was_after_packing(full):
    blocks = [Block("A", table, full.table(table.name), "show", drawn=table.empty()) for table in TABLES.values()]
    for block in blocks:
        value = Value("odd \udcff", 2**62, MappingProxyType({"a": 0.1, "b": 5.0}), ((1,), (2, 3)), b"\0\xff", block)
        again = store.unpacked(store.packed(value), Value)
        assert (again.label, again.size, again.shares) == ("odd \udcff", 2**62, {"a": 0.1, "b": 5.0})
        assert (again.pairs, again.raw) == (value.pairs, value.raw)
        assert again.block.table == block.table
        assert again.block.table.dtypes == block.table.dtypes
        assert again.block.frame.equals(block.frame)
        assert again.block.frame.schema == block.frame.schema == again.block.drawn.schema


def test_what_a_value_cannot_hold_is_not_packed():
    with pytest.raises(NotImplementedError, match="object"):
        store.packed(Value("x", raw=object()))


def test_a_note_is_found_again_by_what_it_says_and_follows_from(path):
    meta = stepscope.load(path).meta
    store.cache_value(note(path, 1), Value("of one"), meta, what="test")
    assert store.cached_value(note(path, 1), Value).label == "of one"
    assert store.cached_value(note(path, 2), Value) is None
    assert store.cached_value(store.value_key("other", path, (1,)), Value) is None


class Evil:
    def __reduce__(self):
        return pytest.fail, ("code ran",)


@pytest.mark.parametrize(
    "content",
    [
        b"not packed",
        pickle.dumps(Evil()),
        zlib.compress(b"no parts"),
        zlib.compress(pickle.dumps(Evil())),
        store.packed(Block("A", TABLES["steps"], TABLES["steps"].empty())),
        store.packed(Value(label=5)),
        zlib.compress(msgspec.msgpack.encode([b"{}"])),
        zlib.compress(msgspec.msgpack.encode([b"{}", b"no frame"])),
    ],
    ids=["not packed", "pickle", "no parts", "packed pickle", "another class", "another type", "no types", "no frame"],
)
def test_what_is_no_such_value_is_removed_with_a_warning_and_runs_nothing(path, content):
    key = note(path)
    store.blobs.put_value(key.where, key.key, content, source=path, kind="kineto, test", source_bytes=1)
    with pytest.warns(store.CacheWarning, match="it is no Value"):
        assert store.cached_value(key, Value) is None
    assert store.entries(key.where) == []


def test_what_follows_from_more_than_a_file_has_no_note(path):
    assert store.value_key("test", path, None) is None
    assert store.value_key("test", f"{path}!member", ()) is None
    assert store.value_key("test", files.split(path)[0], ()) is None


def test_a_file_that_is_read_at_once_has_no_note(path, monkeypatch):
    monkeypatch.setattr(store.blobs, "LEAST_PACKED", 10**9)
    assert note(path) is None


def test_a_note_of_a_file_that_changed_meanwhile_is_not_kept(path, examples):
    key, meta = note(path), stepscope.load(path).meta
    assert store.unchanged(key)
    shutil.copy(examples / "demo-cpu-2ranks" / "rank1.pt.trace.json.gz", path)
    assert not store.unchanged(key)
    store.cache_value(key, Value("of the file before"), meta, what="test")
    assert store.cached_value(key, Value) is None
    assert store.cached_value(note(path), Value) is None


def test_a_file_that_is_gone_has_no_ticket(path):
    with pytest.raises(StepscopeError):
        note(f"{path}.gone")
