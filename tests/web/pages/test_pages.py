"""The pages: they answer, show what the recording has, say what it lacks, and escape all of it."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import re
import threading

import polars as pl
import pytest
from page_elements import Elements
from starlette.requests import Request
from starlette.testclient import TestClient
from web_traces import HOSTILE, document, event, training, written

from stepscope import analyses
from stepscope.core.errors import MissingTable
from stepscope.query import tables
from stepscope.web.app import create_app
from stepscope.web.pages import site as _site
from stepscope.web.pages.sections import NAVIGATION, PAGES
from stepscope.web.session import Session

ADDRESSES = [path for path, _ in NAVIGATION]


@pytest.mark.slow
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_of_the_menu_answers(client, address):
    answer = client.get(address)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert 'aria-current="page"' in answer.text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in tables.names()])
def test_every_table_has_a_page_or_says_what_it_lacks(client, name):
    answer = client.get(f"/tables/{name}", params={"t": "0,1"})
    assert answer.status_code in (200, 400)
    assert name in answer.text
    if answer.status_code == 400:
        assert "which this trace does not hold" in answer.text or "no " in answer.text


def test_the_pages_name_only_tables_and_options_that_are_there():
    for page in PAGES.values():
        for section in page.sections:
            known = analyses.find(section.table)
            assert set(section.options) - {"sort"} <= set(known.options())
            assert set(section.columns) - {"rank", "trace"} <= set(known.output.dtypes)


@pytest.mark.slow
def test_the_overview_answers_the_first_questions(client):
    text = client.get("/").text
    for words in (
        "Slowest step",
        "Kernel with most time",
        "Longest gap between device work",
        "Peak memory",
        "launched by aten::mm",
    ):
        assert words in text
    assert re.search(r'href="/timeline\?t=1&amp;from=[^"]*range=', text)
    assert "What costs most" in text


@pytest.mark.slow
def test_a_chart_leads_to_the_timeline(client):
    figures = [json.loads(a["data-figure"]) for tag, a in Elements(client.get("/").text).elements if "data-figure" in a]
    links = [link for figure in figures for trace in figure["data"] for link in trace["customdata"]]
    assert links
    assert all(link.startswith("/timeline?t=") for link in links)


@pytest.mark.slow
def test_a_choice_of_inputs_stays_in_the_links(client):
    text = client.get("/?t=1").text
    assert 'href="/kernels?t=1"' in text
    assert "rank 1 of" in text


def test_tables_are_sorted_filtered_and_cut_into_pages(client):
    text = client.get("/tables/spans?sort=-dur_ns&search=aten&t=0").text
    assert "ProfilerStep" not in text
    assert "12 rows" in text
    assert 'aria-sort="descending"' in text
    first = client.get("/tables/spans?t=0,1").text
    assert re.search(r"\d+ rows", first)
    assert client.get("/tables/spans?t=0&page=99").status_code == 200
    assert client.get("/tables/spans?t=0&page=x").status_code == 200


def test_tables_of_several_traces_are_sums_as_their_charts_are(client):
    text = client.get("/operators").text
    assert "Sums over 2 traces." in text
    assert "group=name" in text
    assert "Sums over" not in client.get("/operators?t=1").text


def test_headers_lead_to_the_other_order(client):
    text = client.get("/tables/operators?t=0").text
    assert "sort=calls" in text
    assert "sort=-calls" in client.get("/tables/operators?t=0&sort=%2Bcalls").text
    assert "sort=%2Bcalls" in client.get("/tables/operators?t=0&sort=calls").text


def test_rows_lead_to_their_events(client):
    links = [a["href"] for tag, a in Elements(client.get("/tables/idle?o.by=gap&t=0").text).elements if tag == "a"]
    assert any(link.startswith("/timeline?t=0&from=") for link in links)


def test_longer_tables_have_pages(folder):
    written(folder / "rank0.json", training(steps=60))
    session = Session([str(folder / "rank0.json")])
    client = TestClient(create_app(session), base_url="http://localhost", headers={"x-stepscope-wait": "1"})
    text = client.get("/tables/spans").text
    assert "page 1 of 5" in text
    assert "page=2" in text
    assert "page=1" in client.get("/tables/spans?page=2").text
    session.close()


@pytest.mark.parametrize(
    ("suffix", "read"),
    [
        ("csv", pl.read_csv),
        ("json", lambda data: pl.DataFrame(json.loads(data.read()))),
        ("parquet", pl.read_parquet),
    ],
)
def test_a_table_is_downloaded_as_it_is_arranged(client, suffix, read):
    answer = client.get(f"/download/operators.{suffix}?t=0&sort=-calls&columns=name,calls")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="operators.{suffix}"'
    frame = read(io.BytesIO(answer.content))
    assert frame.columns == ["name", "calls"]
    assert frame["calls"].to_list() == [3, 3]


@pytest.mark.parametrize("address", ["/download/spans.exe", "/tables/nothing", "/nothing", "/a/b/c", "/api/nothing"])
def test_what_is_not_there_is_said(client, address):
    answer = client.get(address)
    assert answer.status_code == 404
    assert "stepscope" in answer.text


@pytest.mark.parametrize(
    "address", ["/?t=x", "/kernels?t=9", "/tables/idle?o.by=x", "/tables/steps?where=%27", "/tables/steps?t=0,-1"]
)
def test_questions_that_make_no_sense_are_refused_in_words(client, address):
    answer = client.get(address)
    assert answer.status_code == 400
    assert "Hint:" in answer.text


@pytest.mark.slow
def test_two_traces_are_compared(client):
    text = client.get("/compare?a=0&b=1").text
    assert "diff operator" in text.replace("diff by operator", "diff operator")
    assert "align=step" in text
    assert "aten::mm" in text
    lacking = client.get("/compare?a=0&b=7")
    assert lacking.status_code == 400


def test_a_page_that_takes_long_says_so_and_a_call_is_told_to_ask_again(session, monkeypatch):
    monkeypatch.setattr(_site, "_PAGE_PATIENCE_S", 0)
    monkeypatch.setattr(_site, "_CALL_PATIENCE_S", 0)
    client = TestClient(create_app(session), base_url="http://localhost")
    answer = client.get("/")
    assert answer.status_code == 202
    assert "data-waiting" in answer.text
    call = client.get("/api/trace/0/layout")
    assert call.status_code == 503
    assert call.json()["waiting"] is True


def test_a_busy_server_says_so(client, monkeypatch):
    from stepscope.web import session as _session

    monkeypatch.setattr(_session, "_MOST_PENDING", 0)
    assert client.get("/kernels").status_code == 503


@pytest.fixture
def hostile(tmp_path):
    """A trace in which every text is an attack, in a file that is called like one."""
    events = training(HOSTILE, kernel="<img src=x onerror=window.hacked=1>")
    events["traceEvents"] += [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "<script>window.hacked=1</script>"}},
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 1,
            "tid": 1,
            "args": {"name": '"><img src=x onerror=window.hacked=1>'},
        },
        event("args", 1, 2, **{"Input Dims": ["<script>window.hacked=1</script>"], "Call stack": "<b>x</b>;</script>"}),
    ]
    path = written(tmp_path / "<img src=x onerror=window.hacked=1>.json", events)
    session = Session([str(path)])
    yield TestClient(create_app(session), base_url="http://localhost", headers={"x-stepscope-wait": "1"})
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "address",
    [
        *ADDRESSES,
        "/tables/spans",
        "/tables/ops",
        "/tables/tracks",
        "/tables/devices",
        "/tables/operators?o.by=shape",
        "/tables/x%3Cscript%3E",
        "/tables/spans?search=%3Cscript%3E&where=%22%3E%3Cimg%3E",
    ],
)
def test_no_text_of_a_trace_becomes_markup(hostile, address):
    text = hostile.get(address).text
    elements = Elements(text).elements
    assert not [tag for tag, _ in elements if tag in ("img", "iframe", "style", "b") and tag != "b"]
    assert all("onerror" not in a and "onload" not in a and "srcdoc" not in a and "style" not in a for _, a in elements)
    scripts = [a for tag, a in elements if tag == "script"]
    assert scripts
    assert all(a.get("src", "").startswith("/static/") for a in scripts)
    links = [a["href"] for tag, a in elements if tag == "a" and "href" in a]
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in links)


@pytest.mark.slow
def test_a_document_of_results_has_pages_too(tmp_path):
    path = written(tmp_path / "t.json", document([event("aten::mm", 0, 5)]))
    session = Session([str(path)])
    client = TestClient(create_app(session), base_url="http://localhost", headers={"x-stepscope-wait": "1"})
    for address in ADDRESSES:
        assert client.get(address).status_code == 200
    assert "which this trace does not hold" in client.get("/kernels").text
    session.close()


@pytest.mark.slow
def test_an_error_after_the_patience_has_ended_is_kept_for_who_asks_next(session, monkeypatch, completed):
    monkeypatch.setattr(_site, "_PAGE_PATIENCE_S", 0)
    gate, trouble = threading.Event(), []
    site = _site.Site(session, _site.environment())
    request = Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []})

    def work():
        gate.wait()
        raise MissingTable("kernels")

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
        with pytest.raises(_site.Waiting):
            await _site.ask(site, request, "key", work)
        gate.set()
        await asyncio.sleep(0.1)
        gc.collect()
        monkeypatch.setattr(_site, "_PAGE_PATIENCE_S", 5)
        with pytest.raises(MissingTable):
            await _site.ask(site, request, "key", work)

    completed(scenario())
    assert trouble == []


@pytest.mark.slow
def test_two_runs_are_compared_with_verdict_and_parts(client):
    text = client.get("/compare", params={"a": "0", "b": "1"}).text
    assert re.search(r"(Different|No difference|Inconclusive): ", text)
    assert "Where the difference went, per step" in text


def test_runs_that_cannot_be_compared_say_why(client, monkeypatch):
    def refuse(*_):
        raise MissingTable("steps", needed_by="compare")

    monkeypatch.setattr("stepscope.api.verbs.compare_report", refuse)
    answer = client.get("/compare", params={"a": "0", "b": "1"})
    assert answer.status_code == 200
    assert "compare needs steps" in answer.text


def test_one_who_has_left_is_not_waited_for(session, monkeypatch, completed):
    monkeypatch.setattr(_site, "_ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(_site, "_PAGE_PATIENCE_S", 60)
    gate = threading.Event()
    site = _site.Site(session, _site.environment())

    async def left():
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    with pytest.raises(_site.Waiting):
        completed(_site.ask(site, Request(scope, left), "key", gate.wait))
    gate.set()


def test_numbers_are_links_that_do_not_stop_the_tab_key(client):
    found = Elements(client.get("/tables/operators?t=0").text).elements
    at = [i for i, (tag, a) in enumerate(found) if tag == "td" and a.get("class") == "number" and "data-value" in a]
    numbers = [found[i + 1] if found[i + 1][0] == "a" else found[i + 3] for i in at]
    assert numbers
    assert all(tag == "a" and a["tabindex"] == "-1" and a["href"].startswith("/timeline?") for tag, a in numbers)


@pytest.mark.slow
def test_parts_of_the_bar_lead_to_what_they_are_made_of(client):
    found = Elements(client.get("/").text).elements
    drawn = [a["data-events"] for tag, a in found if tag == "rect" and "data-events" in a]
    assert any(target.startswith("/tables/idle?") for target in drawn)
    hrefs = {a.get("href") for tag, a in found if tag == "a"}
    assert set(drawn) <= hrefs
    for target in drawn:
        assert client.get(target).status_code == 200
