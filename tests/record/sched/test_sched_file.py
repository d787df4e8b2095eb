from __future__ import annotations

import os

import pytest

from stepscope.readers.recorded import sched_events as reader
from stepscope.record.sched import sched_file
from stepscope.record.sched.sched_file import SchedFile


def test_writer_and_reader_mean_the_same_form():
    assert (sched_file.NAME, sched_file.MAGIC, sched_file.HEAD.format) == (
        reader.NAME,
        reader.MAGIC,
        reader._HEAD.format,
    )
    assert (sched_file.FACTS, sched_file.EVENTS) == (reader._FACTS, reader._EVENTS)


def test_what_is_added_is_read_again(tmp_path):
    file = SchedFile(tmp_path / "sched.ring")
    file.tell(5, source="tracefs")
    file.add(7, 3, b"pages" * 1000)
    assert file.size == len(sched_file.MAGIC)  # nothing is written before a flush
    file.flush()
    file.flush()
    file.close()
    assert file.size == (tmp_path / "sched.ring").stat().st_size < 200
    with (tmp_path / "sched.ring").open("rb") as opened:
        assert opened.read(len(reader.MAGIC)) == reader.MAGIC
        found = list(reader._frames(opened, "", None))
    assert found == [(1, 0, 5, b'{"source":"tracefs"}'), (2, 3, 7, b"pages" * 1000)]


def test_a_full_disk_leaves_what_was_whole(tmp_path, monkeypatch):
    file = SchedFile(tmp_path / "sched.ring")
    file.tell(5, a=1)
    file.flush()
    whole, write = file.size, os.write
    left = [10]

    def full(handle, content):
        if not left:
            raise OSError(28, "No space left on device")
        return write(handle, content[: left.pop()])

    monkeypatch.setattr(sched_file.os, "write", full)
    file.tell(6, b=2)
    with pytest.raises(OSError, match="No space"):
        file.flush()
    assert (tmp_path / "sched.ring").stat().st_size == whole
    file.close()
