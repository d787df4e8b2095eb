from __future__ import annotations

import bz2
import ctypes
import gc
import gzip
import io
import json
import lzma
import os
import struct
import sys
import zipfile
import zlib
from functools import cache, partial
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.schema import ISSUES
from stepscope.readers.common import source as _source
from stepscope.readers.common.source import (
    DEFAULT_LIMIT,
    IssueLog,
    Source,
    give_back,
    head_of,
    members,
    no_collection,
    packing_of,
)

DATA = b"".join(b"%x," % zlib.crc32(b"%d" % i) for i in range(300_000))  # packs to a half or so
PACK = {
    "gzip": cache(gzip.compress),
    "zstd": cache(zstandard.compress),
    "bz2": cache(bz2.compress),
    "xz": cache(partial(lzma.compress, preset=0)),
}


@pytest.fixture
def written(tmp_path):
    def write(data: bytes, name: str = "file") -> str:
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return write


def zipped(*parts: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in parts:
            archive.writestr(name, data)
    return file.getvalue()


def unpacked(path: str, member: str | None = None, **options) -> tuple[bytes, Source]:
    source = Source(path, member, **options)
    return b"".join(source.chunks()), source


@pytest.mark.slow
@pytest.mark.parametrize("packing", [None, *PACK])
def test_content_is_unpacked_whatever_the_name(written, packing):
    data, source = unpacked(written(PACK[packing](DATA) if packing else DATA))
    assert data == DATA
    assert (source.n_bytes, source.damage) == (len(DATA), None)


@pytest.mark.slow
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_gives_its_first_json_document_or_the_one_asked_for(written, method):
    path = written(
        zipped(
            ("a/", b""),
            ("README.txt", b"hi"),
            ("a/b.json", DATA),
            ("a/c.json", b"[2]"),
            ("__MACOSX/b.json", b""),
            method=method,
        )
    )
    assert unpacked(path)[0] == DATA
    assert unpacked(path, "a/c.json")[0] == b"[2]"
    assert members(path) == ["a/b.json", "a/c.json"]
    assert Source(path, "a/c.json").label == f"{path}!a/c.json"


def test_zip_without_json_gives_what_it_has(written):
    path = written(zipped(("trace", b"[1]")))
    assert members(path) == ["trace"]
    assert unpacked(path)[0] == b"[1]"


def test_other_files_have_no_members(written):
    assert members(written(b"[]")) == []
    assert members(written(gzip.compress(b"[]"))) == []


@pytest.mark.parametrize(
    ("data", "member"),
    [
        (b"PK\x03\x04rest", None),
        (zipped(), None),
        (zipped(("a.json", DATA))[:-30], None),
        (zipped(("a.json", b"1")), "b.json"),
    ],
    ids=["no directory", "empty", "cut off", "no such member"],
)
def test_a_zip_that_cannot_be_opened_is_corrupt(written, data, member):
    path = written(b"PK\x03\x04" + data[4:] if data.startswith(b"PK\x05") else data)
    with pytest.raises(CorruptInput, match="zip archive damaged") as caught:
        unpacked(path, member)
    assert path in caught.value.message
    assert caught.value.hint
    if member is None:
        with pytest.raises(CorruptInput):
            members(path)


def with_directory(archive: bytes, entries: list[bytes]) -> bytes:
    """The archive with another central directory."""
    start = archive.index(b"PK\x01\x02")
    inside = b"".join(entries)
    return (
        archive[:start]
        + inside
        + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, len(entries), len(entries), len(inside), start, 0)
    )


def test_a_zip_whose_members_share_their_data_is_refused_before_any_is_read(written):
    archive = zipped(("rank0000.json", DATA))
    entry = archive[archive.index(b"PK\x01\x02") : archive.index(b"PK\x05\x06")]
    shared = with_directory(archive, [entry.replace(b"rank0000", b"rank%04d" % i) for i in range(1000)])
    for read in (members, head_of):
        with pytest.raises(CorruptInput, match="its members overlap"):
            read(written(shared))


@pytest.mark.slow
def test_a_zip_whose_members_overlap_in_part_is_refused(written):
    archive = bytearray(zipped(("a.json", DATA), ("b.json", DATA)))
    at = archive.rindex(b"PK\x01\x02") + 42  # where the second member begins
    archive[at : at + 4] = struct.pack("<L", 40)
    with pytest.raises(CorruptInput, match="its members overlap"):
        members(written(bytes(archive)))


@pytest.mark.slow
def test_a_zip_whose_members_claim_too_much_is_refused(written):
    archive = bytearray(zipped(("a.json", DATA), ("b.json", DATA)))
    for start in (archive.index(b"PK\x01\x02"), archive.rindex(b"PK\x01\x02")):
        archive[start + 24 : start + 28] = struct.pack("<L", 2**31)
    with pytest.raises(CorruptInput, match="claim to unpack to more than 200 times its size"):
        members(written(bytes(archive)))


def test_a_damaged_zip_member_gives_what_comes_before(written):
    data = bytearray(zipped(("a.json", DATA)))
    data[len(data) // 2] ^= 0xFF
    got, source = unpacked(written(bytes(data)))
    assert DATA.startswith(got[: 1 << 20])
    assert source.damage


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_cut_off_file_gives_what_comes_before_the_cut(written, packing, share):
    packed = PACK[packing](DATA)
    got, source = unpacked(written(packed[: int(len(packed) * share)]))
    assert DATA.startswith(got)
    assert len(got) >= len(DATA) * share - (1 << 20)
    assert source.damage or packing == "zstd"  # whose decoder takes the end of the file for the end of the data


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["gzip", "bz2", "xz"])
def test_a_flipped_byte_costs_at_most_what_follows(written, packing):
    packed = bytearray(PACK[packing](DATA))
    packed[len(packed) // 2] ^= 0x10
    got, source = unpacked(written(bytes(packed)))
    assert source.damage
    assert got[:800_000] == DATA[:800_000]


def test_gzip_gives_all_up_to_the_very_byte_that_is_wrong(written):
    packed = bytearray(gzip.compress(DATA))
    packed[-5] ^= 1  # of the checksum
    got, source = unpacked(written(bytes(packed)))
    assert got == DATA
    assert "gzip data damaged" in source.damage


def test_gzip_members_follow_each_other_and_zeros_may_follow_them(written):
    parts = [DATA[i : i + 10_000] for i in range(0, len(DATA), 10_000)]
    got, source = unpacked(written(b"".join(map(gzip.compress, parts)) + b"\0" * 1000))
    assert got == DATA
    assert source.damage is None


def test_garbage_after_gzip_is_noted_and_costs_nothing(written):
    got, source = unpacked(written(gzip.compress(DATA) + b"garbage"))
    assert got == DATA
    assert source.damage


@pytest.mark.slow
@pytest.mark.parametrize("packing", [None, *PACK])
def test_more_than_max_bytes_is_refused_and_that_much_is_not(written, packing):
    path = written(PACK[packing](DATA) if packing else DATA)
    assert len(unpacked(path, max_bytes=len(DATA))[0]) == len(DATA)
    source = Source(path, max_bytes=len(DATA) - 1)
    with pytest.raises(StepscopeError, match=f"unpacks to more than {len(DATA) - 1:,} bytes") as caught:
        list(source.chunks())
    assert "--max-bytes" in caught.value.hint


def test_without_max_bytes_what_packs_beyond_belief_is_refused(written, monkeypatch):
    path = written(gzip.compress(bytes(10 << 20)))
    assert len(unpacked(path)[0]) == 10 << 20 < DEFAULT_LIMIT
    monkeypatch.setattr(_source, "DEFAULT_LIMIT", 1 << 20)
    with pytest.raises(StepscopeError, match="unpacks to more than"):
        unpacked(path)
    monkeypatch.setattr(_source, "DEFAULT_RATIO", 2000)
    assert len(unpacked(path)[0]) == 10 << 20


def test_plain_files_have_no_limit_of_their_own(written, monkeypatch):
    monkeypatch.setattr(_source, "DEFAULT_LIMIT", 10)
    assert unpacked(written(DATA))[0] == DATA


@pytest.mark.parametrize("packing", [None, *PACK])
def test_progress_counts_packed_bytes_up_to_the_size_of_the_file(written, packing):
    packed = PACK[packing](DATA) if packing else DATA
    seen: list[int] = []
    unpacked(written(packed), progress=seen.append)
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= len(packed)
    assert len(seen) > 1


def test_a_head_is_no_more_than_asked_for(written):
    path = written(gzip.compress(DATA))
    assert head_of(path, n_bytes=7) == DATA[:7]
    assert head_of(written(b"ab")) == b"ab"
    assert head_of(written(b"")) == b""


def test_a_head_of_nothing_but_damage_is_corrupt(written):
    with pytest.raises(CorruptInput, match="gzip"):
        head_of(written(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 9))


def test_what_cannot_be_opened_says_why(tmp_path):
    for path, what, hint in (
        (str(tmp_path / "none.json"), "No such file", "check the path"),
        (str(tmp_path), "Is a directory", "folder"),
        ("nul\0byte", "null", "check the path"),
    ):
        for ask in (lambda p: list(Source(p).chunks()), head_of, members):
            with pytest.raises(StepscopeError, match=what) as caught:
                ask(path)
            assert hint in caught.value.hint
            assert path in caught.value.message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for ask in (head_of, members):
        with pytest.raises(StepscopeError, match="pipe") as caught:
            ask(str(tmp_path / "pipe"))
        assert "file first" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(written):
    path = written(b"[]")
    Path(path).chmod(0)
    with pytest.raises(StepscopeError, match="Permission denied") as caught:
        head_of(path)
    assert "owner and mode" in caught.value.hint


@given(st.sampled_from([*PACK]), st.binary(max_size=300), st.data())
def test_no_damage_raises_anything_else(tmp_path_factory, packing, data, draw):
    packed = bytearray(PACK[packing](data))  # a copy
    for _ in range(3):
        at = draw.draw(st.integers(0, len(packed) - 1))
        packed[at] = draw.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "file"
    path.write_bytes(bytes(packed))
    got, source = unpacked(str(path))
    assert source.n_bytes == len(got)


@pytest.mark.parametrize(
    ("head", "packing"), [(b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"), (b"BZh9", "bz2"), (b"{", None), (b"", None)]
)
def test_packing_is_known_by_the_first_bytes(head, packing):
    assert packing_of(head) == packing


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_members_of_a_zip_may_be_packed_themselves(tmp_path, pack):
    path = tmp_path / "job.zip"
    text = b'{"traceEvents": []}' * 50_000
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rank0.json.gz", pack(text))
    source = Source(str(path), "rank0.json.gz")
    assert b"".join(source.chunks()) == text
    assert source.damage is None


def test_a_packed_member_of_a_zip_that_is_cut_gives_what_it_has(tmp_path):
    path = tmp_path / "job.zip"
    text = json.dumps(list(range(100_000))).encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rank0.json.gz", gzip.compress(text)[:-2000])
    source = Source(str(path), "rank0.json.gz")
    found = b"".join(source.chunks())
    assert text.startswith(found)
    assert len(found) > 0.9 * len(text)
    assert source.damage == "gzip data ends early"


class Library:
    def __init__(self) -> None:
        self.calls: list[int] = []

    def malloc_trim(self, pad: int) -> None:
        self.calls.append(pad)


def test_freed_memory_goes_back_where_the_library_can_do_it(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    give_back()
    assert library.calls == [0]
    give_back(10**9)
    assert library.calls == [0, 0]
    give_back(5_000_000)  # it would be fetched again for the next small file
    assert library.calls == [0, 0]


def test_a_library_without_the_call_and_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    monkeypatch.setattr(sys, "platform", "linux")
    give_back()
    monkeypatch.setattr(ctypes, "CDLL", None)
    monkeypatch.setattr(sys, "platform", "win32")
    give_back()


def fail():
    assert not gc.isenabled()
    raise ValueError("x")


def test_the_collector_rests_and_comes_back():
    gc.enable()  # whatever ran before in this process
    with pytest.raises(ValueError, match="x"), no_collection():
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_counts_add_up_under_one_code_and_the_first_example_stays():
    log = IssueLog()
    log.add("lost", "warning", 2, "first")
    log.add("lost", "warning", 3, "second")
    assert log.table().rows() == [("lost", "warning", 5, "first")]


def test_nothing_counted_is_nothing_noted():
    log = IssueLog()
    log.add("lost", "warning", 0, "none")
    assert log.table().is_empty()
    assert dict(log.table().schema) == dict(ISSUES.dtypes)


def test_the_worst_come_first_then_the_most_frequent():
    log = IssueLog()
    for code, severity, n in (("a", "info", 9), ("b", "error", 1), ("c", "warning", 3), ("d", "warning", 4)):
        log.add(code, severity, n, "")
    assert log.table()["code"].to_list() == ["b", "d", "c", "a"]
