"""The page SQL: rows or the reason why there are none, links that share the query, files to keep."""

from __future__ import annotations

import io
import re
import threading
import time

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from web_traces import HOSTILE, training, written

from stepscope import load_run
from stepscope.core.schema import TABLES
from stepscope.web.app import create_app
from stepscope.web.pages import site, sql
from stepscope.web.pages.sql import EXAMPLES, FIRST
from stepscope.web.session import Session

SLOW = "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range <> b.range * 2"


def asked(client, text, **more):
    answer = client.get("/sql", params={"q": text, **more})
    assert answer.status_code == 200
    return answer.text


def reason(page):
    match = re.search(r'role="alert">\s*<p class="lack"><span>(.*?)</p>', page, re.DOTALL)
    return match and match[1]


def count(page):
    match = re.search(r'id="count">([^<]*)<', page)
    return match and match[1]


def test_without_a_query_there_is_one_to_begin_with_and_all_tables(client):
    page = client.get("/sql").text
    assert "FROM spans" in page
    assert count(page) is None
    assert reason(page) is None
    for name in ("traces", "spans", "trace.steps", "step_breakdown", "collectives"):
        assert f'data-insert="{name}"' in page
    assert ">diff<" not in page


def test_rows_come_with_units_links_and_downloads(client):
    page = asked(client, "SELECT rank, span_id, name, dur_ns FROM spans ORDER BY dur_ns DESC LIMIT 3")
    assert count(page) == "3 rows"
    assert re.search(r'href="/timeline\?t=[01]&amp;span=\d+"', page)
    assert re.search(r"\d+ µs</a></td>", page)
    assert page.count("/download/sql/rows.") == 3
    assert count(asked(client, "SELECT 1")) == "1 row"


@pytest.mark.slow
def test_the_traces_chosen_are_those_asked(client):
    text = "SELECT DISTINCT trace FROM spans"
    assert count(asked(client, text)) == "2 rows"
    assert count(asked(client, text, t="1")) == "1 row"
    assert 'name="t" value="1"' in asked(client, text, t="1")


def test_long_answers_are_cut_and_say_so(client, monkeypatch):
    monkeypatch.setattr(sql, "_ROWS_SHOWN", 10)
    page = asked(client, "SELECT range FROM range(2000)")
    assert count(page) == "2,000 rows, the first 10 of them shown"
    assert "Download all" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELEC 1", "not SQL"),
        ("SELECT * FROM read_csv('/etc/passwd')", "nothing else: no read_csv"),
        ("COPY spans TO '/tmp/x'", "a query may only read"),
        ("SELECT nam FROM spans", "no column named &#39;nam&#39;"),
        ("SELECT 1; SELECT 2", "a query is one statement"),
        ("SELECT * FROM nothing", "no table named"),
        ("SELECT name FROM memory_of_others", "no table named"),
        ("x" * 6_001, "6,001 letters"),
        ("SELECT range::VARCHAR || repeat('x', 99) AS x FROM range(3000000) ORDER BY x", "too much memory"),
    ],
)
def test_what_is_refused_is_said_with_a_hint(client, text, words, monkeypatch):
    monkeypatch.setattr(sql, "_MEMORY", "50MB")
    page = asked(client, text)
    assert words in reason(page)
    assert "Hint:" in page


@pytest.mark.slow
def test_a_query_is_stopped_after_its_time(client, monkeypatch):
    monkeypatch.setattr(sql, "LIMIT_S", 0.2)
    began = time.monotonic()
    assert "no answer within 200 ms" in reason(asked(client, SLOW))
    assert time.monotonic() - began < 15
    assert count(asked(client, "SELECT 2")) == "1 row"


def test_while_a_query_runs_the_page_says_so_and_keeps_it(client, monkeypatch):
    monkeypatch.setattr(sql, "LIMIT_S", 2)
    monkeypatch.setattr(site, "_PAGE_PATIENCE_S", 0.01)
    answer = client.get("/sql", params={"q": SLOW}, headers={"x-stepscope-wait": ""})
    assert answer.status_code == 202
    assert "data-waiting" in answer.text
    assert "range(100000000)" in answer.text


@pytest.mark.slow
def test_one_that_nobody_waits_for_is_interrupted(session, monkeypatch):
    from stepscope.web import workers

    monkeypatch.setattr(workers, "_UNWANTED_S", 0.05)
    began = threading.Event()
    real = sql.on_stop
    monkeypatch.setattr(sql, "on_stop", lambda stop: (real(stop), began.set()))
    answer = session.ask(*sql._question(session, SLOW, (0,)))
    assert began.wait(20)
    time.sleep(0.3)
    session._workers.tend()
    assert answer.cancelled()
    end = time.monotonic() + 15
    while session._workers.pending():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_link_on_another_site_fills_the_editor_and_runs_nothing(client):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = client.get("/sql", params={"q": "SELECT 77 AS n"}, headers=headers)
    assert answer.status_code == 200
    assert "SELECT 77 AS n" in answer.text
    assert count(answer.text) is None
    assert "Run it to see its answer" in answer.text
    assert client.get("/download/sql/rows.csv", params={"q": "SELECT 1"}, headers=headers).status_code == 400
    assert count(asked(client, "SELECT 77 AS n")) == "1 row"


def test_rows_are_downloaded_in_each_format(client):
    words = {"q": "SELECT name, dur_ns, [1, 2] AS list FROM spans ORDER BY dur_ns DESC, name, trace LIMIT 4"}
    answer = client.get("/download/sql/rows.csv", params=words)
    assert answer.headers["content-disposition"] == 'attachment; filename="stepscope-sql.csv"'
    assert answer.text.startswith("name,dur_ns,list\n")
    rows = client.get("/download/sql/rows.json", params=words).json()
    frame = pl.read_parquet(io.BytesIO(client.get("/download/sql/rows.parquet", params=words).content))
    assert rows == frame.to_dicts()
    assert len(rows) == 4
    assert client.get("/download/sql/rows.exe", params=words).status_code == 404
    assert client.get("/download/sql/rows.csv").status_code == 400
    assert client.get("/download/sql/rows.csv", params={"q": "SELEC"}).status_code == 400


def test_a_trace_that_cannot_be_read_is_left_out_and_told(folder):
    (folder / "rank2.json").write_text('{"traceEvents": 7}')
    session = Session([str(folder)])
    client = TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    page = asked(client, "SELECT DISTINCT trace FROM spans")
    assert count(page) == "2 rows"
    assert "rank2 is left out" in page
    session.close()


@pytest.mark.slow
def test_examples_are_those_that_the_recording_can_answer(client, tmp_path):
    assert "How long do kernels wait" in client.get("/sql").text
    client.get("/")
    assert "How long do kernels wait" in client.get("/sql").text
    plain = {"traceEvents": [{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}
    session = Session([str(written(tmp_path / "plain.json", plain))])
    other = TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    asked(other, "SELECT * FROM spans")
    page = other.get("/sql").text
    assert "How long do kernels wait" not in page
    assert "Which rank is the slowest" not in page
    assert "none here" in page
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_wherever_they_stand(client, name):
    quoted = name.replace('"', '""')
    value = name.replace("'", "''")
    page = asked(client, f"SELECT '{value}' AS \"{quoted}\", 1 AS n")
    assert count(page) == "1 row" or reason(page)
    for mark in ("<script>window", "<img src=x", "<svg/onload", "<iframe", "<a href='java", "<style>*"):
        assert mark not in page


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    session = Session([str(written(tmp_path_factory.mktemp("sql") / "t.json", training()))])
    yield TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    session.close()


WORDS = st.sampled_from([
    "SELECT", "FROM", "spans", "WHERE", "name", "dur_ns", "(", ")", "*", ",", ";", "'", '"', "--", "/*", "*/", "1", "=",
    "'a'", "<", "WITH", "x", "AS", "UNION", "ALL", "GROUP", "BY", "ORDER", "read_csv", "COPY", "TO", "PIVOT", "ON", "é",
    "DESCRIBE", "SUMMARIZE", "VALUES", "[", "]", "{", "}", "::", "INT", "$1", "?", "\\", "%", "LIKE", "NULL", "range",
])  # fmt: skip


@pytest.mark.slow
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=12).map(" ".join)))
def test_whatever_is_asked_the_page_answers(lasting, text):
    answer = lasting.get("/sql", params={"q": text})
    assert answer.status_code == 200
    if text.strip():
        assert count(answer.text) or reason(answer.text)


EACH = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)


@pytest.mark.slow
@EACH
def test_it_is_answered(example, tmp_path):
    for rank in range(2):
        written(tmp_path / f"rank{rank}.json", training(("aten::mm", "aten::copy_"), steps=8, rank=rank))
    match = load_run(tmp_path).sql(example.text)
    assert match.height or example.text == "SELECT * FROM issues" or "aten::copy_" in example.text


@pytest.mark.slow
@EACH
def test_the_demo_answers_it_too(example, examples):
    match = load_run(examples / "demo-cpu-2ranks").sql(example.text)
    assert match.height or "kernels" in example.needs or "issues" in example.text


@EACH
def test_it_needs_tables_that_there_are(example):
    assert set(example.needs) <= set(TABLES)


def test_the_first_is_the_one_in_the_editor():
    assert EXAMPLES[0].text == FIRST
    assert len({example.text for example in EXAMPLES}) == len(EXAMPLES)
