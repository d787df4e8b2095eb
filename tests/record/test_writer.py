from __future__ import annotations

import gzip
import os
import resource
import signal

import pytest

from stepscope.record._writer import HEADER, CounterFile

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
