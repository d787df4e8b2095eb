from __future__ import annotations

import gzip
import os
import sqlite3

import numpy as np
import pytest

from stepscope.core import files
from stepscope.core.errors import CorruptInput
from stepscope.readers.common import sqlite
from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.source import IssueLog, Source
from stepscope.readers.common.sqlite import WIDE, opened


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "with space#.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE t (small INTEGER, other INTEGER, big INTEGER, word TEXT)")
        db.execute("CREATE TABLE words (id INTEGER PRIMARY KEY, value TEXT)")
        rows = [(1, 2, 10**12, "a"), (None, 3, -5, "b"), (300, 4, None, None), (5, -1, 7, "d")]
        db.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
        db.executemany("INSERT INTO words VALUES (?, ?)", [(i, f"word {i}") for i in range(100)])
    db.close()
    return file


def columns(path, bits, where="1"):
    with opened(Source(str(path)), IssueLog()) as db:
        found = db.columns("t", bits, where)
        return {name: found[name].tolist() for name in bits}


def test_columns_that_share_a_number_are_taken_apart_again(path):
    assert columns(path, {"small": 8, "other": 8, "big": WIDE}) == {
        "small": [1, ABSENT, 300, 5],
        "other": [2, 3, 4, -1],
        "big": [10**12, -5, ABSENT, 7],
    }


def test_what_does_not_fit_its_bits_or_is_null_is_not_lost(path):
    wide = columns(path, {"small": WIDE, "other": WIDE})
    for bits in (1, 2, 8, 16, 31):
        assert columns(path, {"small": bits, "other": bits}) == wide


def test_rows_may_be_chosen_and_columns_may_be_missing(path):
    assert columns(path, {"small": 8, "other": 8, "none": 4}, "other > 0 AND small > 1") == {
        "small": [300], "other": [4], "none": [ABSENT],
    }  # fmt: skip


def test_columns_can_be_taken_once_and_cut(path):
    with opened(Source(str(path)), IssueLog()) as db:
        found = db.columns("t", {"small": 9, "other": 9, "big": WIDE})
        kept = found.filtered(np.array([True, False, False, True]))
        assert [kept[c].tolist() for c in ("small", "other", "big")] == [[1, 5], [2, -1], [10**12, 7]]
        assert found.take("other").tolist() == [2, 3, 4, -1]
        assert found.take("other") is None
        assert found.take("big").size == 4
        assert found.take("none") is None


def test_texts_are_looked_up_by_id(path):
    with opened(Source(str(path)), IssueLog()) as db:
        assert db.texts("words", [3, 99, 100, 3]) == {3: "word 3", 99: "word 99"}
        assert db.texts("none", [3]) == {}
        assert db.column("t", "word", "other > 2") == ["b", None]


def test_tables_that_are_not_there_are_empty(path):
    with opened(Source(str(path)), IssueLog()) as db:
        assert "none" not in db
        assert db.columns_of("none") == ()
        assert db.tables == ["t", "words"]


def test_a_packed_database_is_unpacked(path, tmp_path):
    packed = tmp_path / "packed.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert columns(packed, {"other": 4})["other"] == [2, 3, 4, -1]
    packed.write_bytes(packed.read_bytes()[:-30])
    with pytest.raises(CorruptInput, match=r"packed\.sqlite\.gz"):
        columns(packed, {"other": 4})


def test_a_database_in_an_object_store_is_fetched(path):
    files.write("memory://sqlite-test/x.sqlite", path.read_bytes())
    assert columns("memory://sqlite-test/x.sqlite", {"other": 4})["other"] == [2, 3, 4, -1]


def test_progress_is_told(path):
    seen = []
    with opened(Source(str(path), progress=seen.append), IssueLog()) as db:
        db.rows("SELECT * FROM t")
    assert seen == [path.stat().st_size]


@pytest.mark.parametrize("n_bytes", [50, 120, 5000])
def test_a_cut_database_is_corrupt_with_its_path(path, tmp_path, n_bytes):
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(CorruptInput, match=r"cut\.sqlite") as caught:
        columns(cut, {"small": 8})
    assert caught.value.hint


def test_damage_inside_is_corrupt_too(path, tmp_path):
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(data)
    with pytest.raises(CorruptInput, match=r"broken\.sqlite"):
        columns(broken, {"small": 8})


def test_what_is_no_number_is_left_out_and_counted(tmp_path):
    file, issues = tmp_path / "odd.sqlite", IssueLog()
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE t (small)")
        values = ["soon", "", b"1", None, 7, 2.5, "41", float("inf"), "9" * 30]
        db.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    db.close()
    with opened(Source(str(file)), issues) as db:
        small = db.columns("t", {"small": WIDE})["small"].tolist()
    assert small == [ABSENT, ABSENT, ABSENT, ABSENT, 7, 2, 41, ABSENT, ABSENT]
    assert issues.table().select("code", "count").rows() == [("not_numbers", 4)]


def test_texts_that_are_no_utf8_are_replaced(tmp_path):
    file = tmp_path / "odd.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE words (id, value)")
        db.execute("INSERT INTO words VALUES (1, CAST(x'41ff42' AS TEXT))")
    db.close()
    with opened(Source(str(file)), IssueLog()) as db:
        assert db.texts("words", [1]) == {1: "A\ufffdB"}


def test_a_damaged_schema_whose_names_are_no_text_is_corrupt(path, tmp_path):
    damaged = tmp_path / "damaged.sqlite"
    data = path.read_bytes().replace(b"CREATE TABLE words", b"CREATE TABXE words").replace(b"words", b"w\xd0rds")
    damaged.write_bytes(data)
    with pytest.raises(CorruptInput), opened(Source(str(damaged)), IssueLog()):
        pass


@pytest.mark.parametrize("more", [
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT held.* FROM n, held",
    "SELECT a.* FROM held a, words b, words c, words d, words e, words f",
    "SELECT small, other, big, printf('%.*c', 900000000, 'x') AS word FROM held",
])  # fmt: skip
def test_a_view_of_more_than_the_file_can_hold_is_refused_soon(path, more):
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE t RENAME TO held")
        db.execute(f"CREATE VIEW t AS {more}")
    db.close()
    with pytest.raises(CorruptInput), opened(Source(str(path)), IssueLog()) as db:
        db.frame("t", {"small": "small", "word": "word"}, ["word"])


def test_a_view_of_as_much_as_a_table_is_read(path):
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE t RENAME TO held")
        db.execute("CREATE VIEW t AS SELECT held.*, value FROM held JOIN words ON id = other")
    db.close()
    assert sorted(columns(path, {"small": 8})["small"]) == [ABSENT, 1, 300]


@pytest.fixture
def forks(monkeypatch):
    """Tables of four rows are read by two processes, and the processes that were started."""
    monkeypatch.setattr(sqlite, "_LEAST_ROWS", 2)
    monkeypatch.setattr(sqlite, "_PIECE", 1)
    monkeypatch.setattr(sqlite, "cores_for_threads", lambda: 2)
    pids, fork = [], os.fork

    def noted():
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(os, "fork", noted)
    return pids


BITS = {"small": 9, "other": 9, "big": WIDE}
VALUES = {"small": [1, ABSENT, 300, 5], "other": [2, 3, 4, -1], "big": [10**12, -5, ABSENT, 7]}


@pytest.mark.parametrize(
    "change",
    [
        "SELECT 1",
        "UPDATE t SET rowid = rowid * 1000 - 7",
        "UPDATE t SET rowid = rowid + 1000000 WHERE small = 5",  # the second process has no rows of some parts
        "UPDATE t SET rowid = -9223372036854775808 WHERE small = 1",
    ],
)
@pytest.mark.parametrize("n_processes", [2, 3])
def test_several_processes_give_the_rows_of_a_big_table_in_its_order(path, forks, monkeypatch, change, n_processes):
    monkeypatch.setattr(sqlite, "_LEAST_ROWS", 1)
    monkeypatch.setattr(sqlite, "cores_for_threads", lambda: n_processes)
    with sqlite3.connect(path) as db:
        db.execute(change)
    db.close()
    assert columns(path, BITS) == VALUES
    assert len(forks) >= n_processes - 1


def test_several_processes_give_the_rows_of_either_condition_once(path, forks):
    assert columns(path, BITS, "small = 1 OR other > 2 OR other < 0") == VALUES
    assert forks


def test_values_that_are_not_numbers_are_counted_once_whoever_reads_them(path, forks):
    with sqlite3.connect(path) as db:
        db.execute("UPDATE t SET big = 'many' WHERE other >= 3")
    db.close()
    issues = IssueLog()
    with opened(Source(str(path)), issues) as db:
        assert db.columns("t", {"big": WIDE})["big"].tolist() == [10**12, ABSENT, ABSENT, 7]
    assert [(code, n) for code, _, n, _ in issues.rows()] == [("not_numbers", 2)]
    assert forks


@pytest.mark.parametrize(
    "change",
    [
        "CREATE VIEW u AS SELECT * FROM t",
        "CREATE TABLE u (small, other, big, PRIMARY KEY (big, other)) WITHOUT ROWID",
        "CREATE TABLE u (small, other, big, RowId)",
        "CREATE TABLE u (small, other, big); CREATE INDEX i ON u (other)",
    ],
)
def test_tables_whose_rows_have_no_numbers_in_their_order_are_read_by_one_process(path, forks, change):
    with sqlite3.connect(path) as db:
        db.executescript(change)
        if "VIEW" not in change:
            db.execute("INSERT INTO u (small, other, big) SELECT small, other, ifnull(big, 0) FROM t")
    db.close()
    with opened(Source(str(path)), IssueLog()) as db:
        assert sorted(db.columns("u", {"other": 9})["other"].tolist()) == [-1, 2, 3, 4]
    assert not forks


def test_a_process_that_fails_costs_nothing_but_time(path, forks, monkeypatch):
    monkeypatch.setattr(sqlite, "put", lambda *_: os._exit(9))
    assert columns(path, BITS) == VALUES
    assert forks
