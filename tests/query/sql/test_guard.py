from __future__ import annotations

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.query.sql.guard import names_in


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT 1", []),
        ("select * from spans;", [("", "spans")]),
        ("FROM spans", [("", "spans")]),
        ("TABLE spans", [("", "spans")]),
        ("DESCRIBE spans", [("", "spans")]),
        ("SUMMARIZE trace.steps", [("trace", "steps")]),
        ('SELECT * FROM "step-breakdown" -- a remark', [("", "step-breakdown")]),
        ("SELECT * FROM a JOIN trace.b USING (x), LATERAL (SELECT * FROM c)", [("", "a"), ("trace", "b"), ("", "c")]),
        ("SELECT (SELECT max(x) FROM a) FROM b WHERE y IN (SELECT z FROM c)", [("", "c"), ("", "a"), ("", "b")]),
        ("SELECT * FROM a UNION ALL (SELECT * FROM b INTERSECT SELECT * FROM a)", [("", "a"), ("", "b")]),
        ("SELECT * FROM range(3), generate_series(1, 2), unnest([1])", []),
        ("VALUES (1), (2)", []),
    ],
)
def test_tables_that_a_query_names_are_found(connection, text, tables):
    found = names_in(text, connection)
    assert sorted(found.tables) == sorted(tables)
    assert found.shadowed == frozenset()


def test_parts_that_have_names_of_their_own_are_told(connection):
    text = (
        "WITH Busy AS (SELECT * FROM spans), r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) FROM busy, r"
    )
    found = names_in(f"WITH RECURSIVE {text.removeprefix('WITH ')}", connection)
    assert found.shadowed == {"busy", "r"}
    assert ("", "spans") in found.tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("COPY spans TO '/tmp/x.csv'", "this is not a SELECT"),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", "this is not a SELECT"),
        ("ATTACH '/tmp/x.db'", "this is not a SELECT"),
        ("INSTALL httpfs", "this is not a SELECT"),
        ("LOAD httpfs", "this is not a SELECT"),
        ("PRAGMA database_list", "this is not a SELECT"),
        ("SET threads = 1", "this is not a SELECT"),
        ("RESET threads", "this is not a SELECT"),
        ("CALL pragma_version()", "this is not a SELECT"),
        ("CREATE TABLE x AS SELECT 1", "this is not a SELECT"),
        ("DROP VIEW spans", "this is not a SELECT"),
        ("INSERT INTO spans SELECT 1", "this is not a SELECT"),
        ("EXPORT DATABASE '/tmp/x'", "this is not a SELECT"),
        ("PREPARE x AS SELECT 1", "this is not a SELECT"),
        ("EXPLAIN ANALYZE SELECT 1", "this is not a SELECT"),
        ("PIVOT spans ON category USING count(*)", "this is not a SELECT"),
        ("WITH x AS (COPY (SELECT 1) TO '/tmp/x.csv') SELECT 1", "COPY is not allowed"),
        ("WITH x AS (INSERT INTO t VALUES (1) RETURNING *) FROM x", "INSERT is not allowed"),
        ("WITH x AS (DELETE FROM t RETURNING *) FROM x", "DELETE is not allowed"),
        ("WITH x AS (UPDATE t SET a = 1 RETURNING *) FROM x", "UPDATE is not allowed"),
        ("SELECT 1 WHERE EXISTS (WITH x AS (COPY (SELECT 1) TO 'x') FROM x)", "COPY is not allowed"),
        ("SELECT * FROM read_csv('/etc/passwd')", "no read_csv(…)"),
        ("SELECT (SELECT content FROM Read_Text('/etc/passwd'))", "no read_text(…)"),
        ("FROM glob('/etc/*')", "no glob(…)"),
        ("FROM query('SELECT 1')", "no query(…)"),
        ("FROM query_table('spans')", "no query_table(…)"),
        ("FROM duckdb_settings()", "no duckdb_settings(…)"),
        ("FROM json_execute_serialized_sql('{}')", "no json_execute_serialized_sql(…)"),
        ("SHOW TABLES", "can use only the tables that it names"),
        ("SHOW ALL TABLES", "can use only the tables that it names"),
        ("SELECT 1; SELECT 2", "these are 2"),
        ("SELECT 1; DROP VIEW spans", "this is not a SELECT"),
        ("", "these are 0"),
        ("-- nothing", "these are 0"),
        ("SELEC 1", "not SQL: syntax error"),
        ("SELECT * FROM spans WHERE", "not SQL: syntax error"),
    ],
)
def test_whatever_does_more_than_read_tables_is_refused(connection, text, reason):
    with pytest.raises(StepscopeError) as caught:
        names_in(text, connection)
    assert reason in caught.value.message
    assert caught.value.hint


@pytest.mark.slow
def test_a_deeply_nested_query_is_no_crash(connection):
    assert names_in("SELECT " + "(" * 150 + "1" + ")" * 150, connection).tables == ()
    with pytest.raises(StepscopeError):
        names_in("SELECT " + "(" * 20_000 + "1" + ")" * 20_000, connection)
