from __future__ import annotations

import errno
import gzip
import os

import pytest

from stepscope.record.stacks import stack_file
from stepscope.record.stacks.stack_file import HEADER, StackFile

FRAMES = (("<module>", "/a.py", 3), ("f\tg\n", "/b.py", 4))


def rows(path) -> list[list[str]]:
    return [line.rstrip("\n").split("\t") for line in gzip.open(path, "rt", encoding="utf-8")]


def test_frames_and_stacks_are_written_once(tmp_path):
    file = StackFile(tmp_path / "s.gz")
    file.process(7, 0, "python a.py")
    for _ in range(2):
        file.thread(7, 7, "MainThread")
        file.add("W", (10, 5), 7, 7, FRAMES, 2)
    file.add("G", (10, 5), 7, 7, FRAMES[:1], 1)
    file.run(10, 20, 100)
    file.on_core(10, 20, 7, 7, 15)
    file.thread(7, 7, "renamed")
    file.flush()
    file.close()
    found = rows(tmp_path / "s.gz")
    assert "\t".join(found[0]) + "\n" == HEADER
    assert {len(row) for row in found} == {9}
    assert [row[0] for row in found[1:]] == ["P", "T", "F", "F", "S", "W", "W", "S", "G", "L", "C", "T"]
    assert found[4] == ["F", "1", "", "", "", "", "4", "f g ", "/b.py"]
    assert found[5][7] == "0 1"
    assert found[6] == ["W", "0", "10", "5", "7", "7", "2", "", ""]
    assert file.n_samples == 5


def test_what_was_not_flushed_is_lost_and_the_rest_is_whole(tmp_path):
    file = StackFile(tmp_path / "s.gz")
    file.add("W", (10, 5), 7, 7, FRAMES, 2)
    file.flush()
    file.add("W", (15, 5), 7, 7, FRAMES, 2)
    file.close()
    assert [row[0] for row in rows(tmp_path / "s.gz")] == ["kind", "F", "F", "S", "W"]


def test_without_a_stack_there_is_no_file(tmp_path):
    file = StackFile(tmp_path / "s.gz")
    assert (tmp_path / "s.gz").exists()  # whole from the start on
    file.close()
    assert not (tmp_path / "s.gz").exists()


def test_stacks_are_forgotten_when_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(stack_file, "_MOST_STACKS", 2)
    file = StackFile(tmp_path / "s.gz")
    for line in (1, 2, 3, 1, 3):
        file.add("W", (line, 1), 7, 7, (("f", "/a.py", line),), 1)
    file.flush()
    found = rows(tmp_path / "s.gz")
    assert [row[1] for row in found if row[0] == "S"] == ["0", "1", "2", "3"]
    assert [row[1] for row in found if row[0] == "W"] == ["0", "1", "2", "3", "2"]


def test_it_tells_when_it_is_full(tmp_path):
    file = StackFile(tmp_path / "s.gz", most_bytes=100)
    assert not file.is_full
    for line in range(50):
        file.add("W", (line, 1), 7, 7, (("f", "/a.py", line),), 1)
    file.flush()
    assert file.is_full


def test_a_full_disk_leaves_whole_members(tmp_path, monkeypatch):
    file = StackFile(tmp_path / "s.gz")
    write, calls = os.write, []

    def half(handle: int, data: bytes) -> int:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    file.add("W", (10, 5), 7, 7, FRAMES, 2)
    with pytest.raises(OSError, match="No space"):
        file.flush()
    assert [row[0] for row in rows(tmp_path / "s.gz")] == ["kind"]


@pytest.mark.parametrize(
    ("line", "is_wait"),
    [
        ("with self._lock:", True),
        ("with guard:", True),
        ("with guard, other.mutex:", True),
        ("with self.locks[3]:", True),
        ("with self.lock_for(key):", True),
        ("ready.acquire(timeout=3)", True),
        ("with torch.no_grad():", False),
        ("with model.block(3):", False),
        ("with clock() as now:", False),
        ("time.sleep(1)  # with lock:", False),
        ("x = lock", False),
    ],
)
def test_a_thread_at_a_line_that_takes_a_lock_waits_for_it(tmp_path, line, is_wait):
    source = tmp_path / "job.py"
    source.write_text(f"import time\n{line}\n")
    file = StackFile(tmp_path / "s.gz")
    file.add("W", (10, 5), 7, 7, (("<module>", str(source), 2),), 2)
    file.flush()
    file.close()
    frames = [row[7] for row in rows(tmp_path / "s.gz") if row[0] == "F"]
    assert frames == (["<module>", f"waits: {line}"] if is_wait else ["<module>"])


def test_only_the_innermost_line_of_the_job_itself_counts(tmp_path):
    source = tmp_path / "lib" / "python3.12" / "queue.py"
    source.parent.mkdir(parents=True)
    source.write_text("with self.mutex:\n    f()\n")
    file = StackFile(tmp_path / "s.gz")
    file.add("W", (10, 5), 7, 7, (("get", str(source), 1),), 2)
    outer = tmp_path / "job.py"
    outer.write_text("with lock:\n")
    file.add("W", (15, 5), 7, 7, (("<module>", str(outer), 1), ("f", str(source), 2)), 2)
    file.flush()
    file.close()
    assert not [row for row in rows(tmp_path / "s.gz") if row[7].startswith("waits")]
