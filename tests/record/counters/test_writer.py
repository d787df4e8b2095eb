from __future__ import annotations

import gzip
import os
import resource
import signal

import pytest

from stepscope.record.counters import writer
from stepscope.record.counters.writer import HEADER, CounterFile, Tail

ROW = ("m", "1/s", "host", 0.123456789)


def test_every_flush_is_a_whole_file(tmp_path):
    path = tmp_path / "counters.csv.gz"
    file = CounterFile(path)
    assert gzip.decompress(path.read_bytes()).decode() == HEADER
    file.add(1, [ROW, ("rss", "bytes", "pid:7", 12_345_678_901.0)])
    file.flush()
    file.flush()
    assert (
        gzip.decompress(path.read_bytes()).decode() == HEADER + "1,m,1/s,host,0.123457\n1,rss,bytes,pid:7,12345678901\n"
    )
    file.add(2, [ROW])
    file.close()
    assert gzip.decompress(path.read_bytes()).decode().count("\n") == 4
    assert file.n_samples == 3


def test_a_file_is_continued_where_it_ends(tmp_path):
    path = tmp_path / "counters.csv.gz"
    for _ in range(2):
        file = CounterFile(path)
        file.add(1, [ROW])
        file.close()
    assert gzip.decompress(path.read_bytes()).decode().count(HEADER) == 1


def test_what_does_not_fit_is_taken_back(tmp_path):
    path = tmp_path / "counters.csv.gz"
    file = CounterFile(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        file.add(1, [("m", "1/s", os.urandom(200).hex(), 1.0)])
        with pytest.raises(OSError, match="too large"):
            file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert gzip.decompress(path.read_bytes()).decode() == HEADER
    file.add(2, [ROW])
    file.close()
    assert gzip.decompress(path.read_bytes()).decode().endswith("2,m,1/s,host,0.123457\n")


def test_the_tail_holds_what_began_in_the_last_seconds():
    tail = Tail(2.5)
    second = 10**9
    assert (tail.start_ns, tail.packed()) == (None, b"")
    for i in range(10):
        tail.add(i * second, (i + 1) * second, b"%d" % i)
    # At 10 s, all from 7.5 s on is there: the member from 7 s to 8 s and what follows.
    assert (tail.start_ns, tail.packed(), tail.size) == (7 * second, b"789", 3)


def test_what_is_pinned_stays_in_the_file_and_out_of_dumps():
    tail = Tail(1.5)
    second = 10**9
    for i in range(4):
        tail.add(i * second, (i + 1) * second, b"%d" % i)
    tail.pin(4 * second)
    for i in range(4, 9):
        tail.add(i * second, (i + 1) * second, b"%d" % i)
    assert (tail.packed(), tail.packed(with_pinned=True), tail.size) == (b"78", b"2378", 4)


def test_a_ring_stays_small_and_whole_at_every_moment(tmp_path, monkeypatch):
    path = tmp_path / "counters.csv.gz"
    now = [0]
    monkeypatch.setattr(writer.time, "time_ns", lambda: now[0])
    file = CounterFile(path, keep_s=10)
    sizes = []
    for second in range(100):
        now[0] += 10**9
        file.add(second, [("m", "1/s", os.urandom(300).hex(), 1.0)])
        file.flush()
        sizes.append(path.stat().st_size)
        text = gzip.decompress(path.read_bytes()).decode()
        assert text.startswith(HEADER)
        assert text.count(HEADER) == 1
        times = [int(line.split(",")[0]) for line in text.splitlines()[1:]]
        assert times == list(range(times[0], second + 1))
        assert len(times) >= min(10, second + 1)
    assert max(sizes) < 1.5 * sizes[12] + (1 << 12)
    file.close()
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(89, 100))
    assert [p.name for p in tmp_path.iterdir()] == ["counters.csv.gz"]


def test_a_ring_that_cannot_be_replaced_stays_as_it_is(tmp_path):
    path = tmp_path / "counters.csv.gz"
    file = CounterFile(path, keep_s=1)
    file.add(1, [ROW])
    file.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert gzip.decompress(path.read_bytes()).decode().endswith("1,m,1/s,host,0.123457\n")
    assert [p.name for p in tmp_path.iterdir()] == ["counters.csv.gz"]
