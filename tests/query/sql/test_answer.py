from __future__ import annotations

import datetime as dt
import threading
import time

import polars as pl
import pytest

from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.query.sql.answer import answer, connected, locked


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ours").mkdir()
    pl.DataFrame({"name": ["b", "a"], "dur_ns": [5, 7]}).write_parquet(tmp_path / "ours" / "t.parquet")
    return tmp_path / "ours"


@pytest.fixture
def ask(folder):
    opened = connected(folder, None)
    locked(opened, [f"CREATE VIEW t AS FROM read_parquet('{folder / 't.parquet'}')"])

    def run(text, *, timeout_s=20.0, columns=("name", "dur_ns")):
        return answer(opened, text, timeout_s=timeout_s, columns=columns)

    yield run
    opened.close()


def test_rows_come_in_their_order_and_types(ask):
    found = ask("SELECT name, dur_ns, dur_ns / 2 AS half, dur_ns > 5 AS long FROM t ORDER BY name")
    assert found.rows() == [("a", 7, 3.5, True), ("b", 5, 2.5, False)]
    assert ask("SELECT * FROM t WHERE dur_ns > 100").shape == (0, 2)
    assert ask("SELECT 1", timeout_s=None).rows() == [(1,)]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sum(dur_ns)", 5),
        ("sum(dur_ns)::HUGEINT * -1", -5),
        ("dur_ns::DECIMAL(38, 0)", 5),
        ("1.25::DECIMAL(10, 2)", 1.25),
        ("sum(9000000000000000000::BIGINT) * 2", 1.8e19),
        ("INTERVAL 2 DAY", "2 days"),
        ("'q'::ENUM('q', 'r')", "q"),
        ("MAP {'a': 1}", "{a=1}"),
        ("{'a': 1}", "{'a': 1}"),
        ("[sum(dur_ns)]", "[5]"),
        ("[1, 2]", [1, 2]),
        ("NULL", None),
        ("DATE '2026-01-02'", dt.date(2026, 1, 2)),
        ("TIMESTAMP '2026-01-02 03:04:05'", dt.datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        ("TIME '03:04:05'", "03:04:05"),
        ("'x'::BLOB", b"x"),
        ("'11112222-3333-4444-5555-666677778888'::UUID", "11112222-3333-4444-5555-666677778888"),
        ("1::UTINYINT", 1),
    ],
)
def test_values_of_every_type_come_over(ask, expression, value):
    (row,) = ask(f"SELECT {expression} AS x FROM t WHERE dur_ns = 5 GROUP BY dur_ns").rows()
    assert row == (value,)


def test_columns_of_the_same_name_are_told_apart(ask):
    assert ask('SELECT a.*, b.*, 1 AS "na""me" FROM t a, t b').columns == [
        "name",
        "dur_ns",
        "name_1",
        "dur_ns_1",
        'na"me',
    ]


def test_a_query_that_takes_too_long_is_stopped(ask):
    began = time.monotonic()
    with pytest.raises(StepscopeError, match=r"no answer within 200 ms") as caught:
        ask("SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range <> b.range * 2", timeout_s=0.2)
    assert time.monotonic() - began < 10
    assert "--timeout" in caught.value.hint
    assert ask("SELECT 1").item() == 1
    assert threading.active_count() < 10


def test_an_interrupt_is_not_taken_for_a_timeout(folder):
    opened = connected(folder, None)
    threading.Timer(0.2, opened.interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        answer(opened, "SELECT count(*) FROM range(100000000) a, range(1000000) b", timeout_s=60, columns=())
    opened.close()


def test_a_query_is_stopped_from_another_thread(folder):
    opened = connected(folder, None)
    stops = []

    def begin(stop):
        stops.append(stop)
        threading.Timer(0.2, stop).start()

    text = "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range <> b.range * 2"
    with pytest.raises(StepscopeError, match="the query was stopped"):
        answer(opened, text, timeout_s=60, columns=(), on_start=begin)
    assert answer(opened, "SELECT 1", timeout_s=60, columns=(), on_start=stops.append).item() == 1
    opened.close()
    for stop in stops:  # too late: nothing happens
        stop()


def test_a_query_that_was_stopped_before_does_not_begin(folder):
    opened = connected(folder, None)
    with pytest.raises(StepscopeError, match="the query was stopped"):
        answer(opened, "SELECT 1", timeout_s=60, columns=(), on_start=lambda stop: stop())
    opened.close()


def test_memory_is_bounded_and_nothing_goes_to_the_disk(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    opened = connected(folder, 20_000_000)
    with pytest.raises(StepscopeError, match="needs too much memory") as caught:
        answer(
            opened,
            "SELECT range::VARCHAR || repeat('x', 99) AS x FROM range(3000000) ORDER BY x",
            timeout_s=60,
            columns=(),
        )
    assert "--memory-limit" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    opened.close()


@pytest.mark.slow
def test_rows_that_repeat_are_counted_at_their_full_length(folder):
    opened = connected(folder, 50_000_000)
    with pytest.raises(StepscopeError, match=r"too much memory: its rows take 1(\.\d+)? ?GiB|its rows take 9\d\d MiB"):
        answer(opened, "SELECT a.x, b.range % 2 AS n FROM (SELECT repeat('x', 9999) AS x) AS a, range(100000) AS b"
               , timeout_s=60, columns=())  # fmt: skip
    assert answer(opened, "SELECT 'y' AS x, NULL AS z FROM range(100000)", timeout_s=60, columns=()).height == 100_000
    opened.close()


def test_an_unknown_column_brings_the_nearest(ask):
    for text in ("SELECT nam FROM t", "SELECT x.nam FROM t AS x"):
        with pytest.raises(UnknownName, match="no column named 'nam'") as caught:
            ask(text)
        assert caught.value.hint == "known: name, dur_ns"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT nope(1)", "Scalar Function with name nope does not exist!"),
        ("SELECT 'a'::INT", "Could not convert string 'a' to INT32"),
        ("SELECT name FROM t GROUP BY dur_ns", "must appear in the GROUP BY"),
        ("SELECT getenv('HOME')", "getenv does not exist"),
    ],
)
def test_what_else_duckdb_refuses_is_one_line(ask, text, reason):
    with pytest.raises(StepscopeError, match="the query fails: ") as caught:
        ask(text)
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


# The guard refuses these before they get so far: here is what stops them if it did not.
@pytest.mark.parametrize(
    "text",
    [
        "FROM read_csv('/etc/passwd')",
        "FROM read_text('/etc/passwd')",
        "FROM '/etc/passwd'",
        "FROM glob('/etc/*')",
        "FROM read_parquet('https://example.com/x.parquet')",
        "COPY t TO '/tmp/stepscope-stolen.csv'",
        "ATTACH '/tmp/stepscope-stolen.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 3",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "RESET memory_limit",
        "SELECT * FROM ask",
        "FROM folder",
    ],
)
def test_the_connection_itself_is_locked(ask, text):
    with pytest.raises(StepscopeError):
        ask(text)
