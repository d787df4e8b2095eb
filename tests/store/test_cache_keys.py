from __future__ import annotations

import mmap
import os
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
from stepscope.store import cache_keys
from stepscope.store.cache_keys import code_fingerprint, key_of, program_fingerprint, settled


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


@pytest.mark.slow
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
    store.cache_keys.put_value(key.where, key.key, content, source=path, kind="kineto, test", source_bytes=1)
    with pytest.warns(store.CacheWarning, match="it is no Value"):
        assert store.cached_value(key, Value) is None
    assert store.entries(key.where) == []


def test_what_follows_from_more_than_a_file_has_no_note(path):
    assert store.value_key("test", path, None) is None
    assert store.value_key("test", f"{path}!member", ()) is None
    assert store.value_key("test", files.split(path)[0], ()) is None


def test_a_file_that_is_read_at_once_has_no_note(path, monkeypatch):
    monkeypatch.setattr(store.cache_keys, "LEAST_PACKED", 10**9)
    assert note(path) is None


@pytest.mark.slow
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


SECOND = 1_000_000_000


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(os.urandom(400_000))
    return path


def test_a_file_that_nobody_touches_keeps_its_key(file):
    assert key_of(str(file), []) == key_of(str(file), [])


def test_whatever_else_the_reading_depends_on_is_part_of_the_key(file):
    keys = {key_of(str(file), extra) for extra in ([], [None], ["member"], ["member", 5])}
    assert len(keys) == 4


def test_the_same_content_elsewhere_has_another_key(file, tmp_path):
    # What a reader makes of a file may depend on its name: the rank.
    other = tmp_path / "rank3.json"
    os.link(file, other)
    assert key_of(str(file), []) != key_of(str(other), [])


def test_a_change_that_keeps_size_and_time_of_change_has_another_key(file):
    before, status = key_of(str(file), []), file.stat()
    content = bytearray(file.read_bytes())
    content[200_003] ^= 1
    time.sleep(0.02)
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert key_of(str(file), []) != before


def write_through_a_mapping(file, at):
    """Change a byte in place, as a program does that maps the file, and set back the time of change."""
    status = file.stat()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[at] ^= 1
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def without_ctime(monkeypatch):
    """A file system on which a change through a mapping leaves all times as they are, as tmpfs is."""
    real = files.state_of
    monkeypatch.setattr(files, "state_of", lambda path: real(path)[:-1])


@pytest.mark.parametrize("at", [0, 65_536, 200_003, 399_999])
@pytest.mark.usefixtures("without_ctime")
def test_a_change_through_a_mapping_that_leaves_all_times_shows_in_the_content(file, at):
    before = key_of(str(file), [])
    write_through_a_mapping(file, at)
    assert key_of(str(file), []) != before


@pytest.mark.usefixtures("without_ctime")
def test_of_large_files_such_a_change_shows_in_the_samples(tmp_path):
    large = tmp_path / "large.json"
    large.write_bytes(bytes(5_000_000))
    step = (5_000_000 - 2 * (1 << 16)) // 31
    for at in (0, 65_535, 65_536 + step, 65_536 + 30 * step + 4095, 5_000_000 - 65_536, 4_999_999):
        before = key_of(str(large), [])
        write_through_a_mapping(large, at)
        assert key_of(str(large), []) != before
    before = key_of(str(large), [])
    write_through_a_mapping(large, 65_536)  # docs/store.md says that such a change does not show
    assert key_of(str(large), []) == before


@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 22, (1 << 22) + 1])
def test_files_of_any_size_have_a_key(tmp_path, size):
    path = tmp_path / "x.json"
    path.write_bytes(b"x" * size)
    assert key_of(str(path), [])


def test_code_that_changed_makes_other_keys(file, monkeypatch):
    before = key_of(str(file), [])
    assert code_fingerprint() == code_fingerprint()
    monkeypatch.setattr(cache_keys, "code_fingerprint", lambda: "newer")
    assert key_of(str(file), []) != before


def test_the_program_is_what_its_file_system_says_of_code_and_data(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_keys, "_PACKAGE", str(tmp_path))
    (tmp_path / "core" / "deep" / "__pycache__").mkdir(parents=True)
    code = [tmp_path / name for name in ("core/deep/x.py", "core/data.json", "__init__.py")]
    for path in code:
        path.write_text("1")

    def fingerprint():
        cache_keys._code_of.cache_clear()
        program_fingerprint.cache_clear()
        return program_fingerprint()

    same = fingerprint()
    (tmp_path / "core" / "deep" / "__pycache__" / "x.py").write_text("not code of ours")
    (tmp_path / "core" / "notes.txt").write_text("neither")
    assert fingerprint() == same
    seen = {same}
    for path in (*code, tmp_path / "core" / "deep" / "new.py"):
        path.write_text("longer")
        seen.add(fingerprint())
    times = code[0].stat()
    time.sleep(0.05)  # ticks of the kernel's clock
    code[0].write_text("others")
    os.utime(code[0], ns=(times.st_atime_ns, times.st_mtime_ns))  # the time of change stays that of the write
    seen.add(fingerprint())
    assert len(seen) == 6
    cache_keys._code_of.cache_clear()
    program_fingerprint.cache_clear()


def test_an_object_without_a_tag_has_no_key():
    files.write("memory://key-test/plain.json", b"{}")
    assert key_of("memory://key-test/plain.json", []) is None
    assert not settled("memory://key-test/plain.json", 0)


def test_the_key_of_an_object_is_that_of_its_tag(monkeypatch):
    states = [("s3", 1, "tag"), ("s3", 1, "tag"), ("s3", 1, "other")]
    monkeypatch.setattr(files, "state_of", lambda _: states.pop(0))
    first, second, third = (key_of("s3://bucket/x.json", []) for _ in range(3))
    assert first == second != third
    monkeypatch.setattr(files, "state_of", lambda _: (1, "tag"))
    assert settled("s3://bucket/x.json", 0)


def test_a_file_is_settled_when_a_change_would_show(file):
    changed = 5 * SECOND + 123
    os.utime(file, ns=(changed, changed))
    moved = file.stat().st_ctime_ns  # no program can set it
    assert settled(str(file), moved + SECOND)
    assert not settled(str(file), moved + 1000)


def test_file_systems_that_know_whole_seconds_need_longer(file, monkeypatch):
    times = (1, 2, 400_000, 100 * SECOND, 100 * SECOND)
    monkeypatch.setattr(files, "state_of", lambda _: times)
    assert not settled(str(file), 101 * SECOND)
    assert settled(str(file), 103 * SECOND)
