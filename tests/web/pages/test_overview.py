from __future__ import annotations

import shutil
import time

import pytest
from starlette.testclient import TestClient
from web_traces import training, written

from stepscope import store
from stepscope.reports import overview as report_home
from stepscope.store.cache_keys import settled
from stepscope.web.app import create_app
from stepscope.web.pages import overview
from stepscope.web.pages.overview import Glance, cache_keys, store_glance
from stepscope.web.pages.site import links_of
from stepscope.web.session import Session


@pytest.mark.slow
def test_what_was_begun_ahead_is_what_the_first_visitor_gets(session, client):
    overview.begin(session)
    asked = list(session._answers.values())
    for task in asked:
        task.answer.result(30)
    assert client.get("/").status_code == 200
    assert list(session._answers.values()) == asked


@pytest.mark.slow
def test_of_ranks_that_are_not_known_yet_the_files_are_read_once(folder):
    written(folder / "rank1.json", training(rank=0))  # two of one rank: links go by file
    session = Session([str(folder)])
    client = TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    text = client.get("/").text
    assert "Slowest step" in text
    assert session.of_rank((0, 1)) == {}
    session.close()


def test_a_trace_without_steps_has_an_overview_without_their_chart(tmp_path):
    path = written(tmp_path / "t.json", {"traceEvents": [
        {"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]})  # fmt: skip
    session = Session([str(path)])
    client = TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    text = client.get("/").text
    assert "data-figure" not in text
    session.close()


@pytest.fixture
def files(tmp_path, examples, monkeypatch):
    """Two ranks, written long enough ago, and a cache of our own."""
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(examples / "demo-cpu-2ranks", tmp_path / "run")
    found = sorted(str(path) for path in (tmp_path / "run").glob("*.gz"))
    while not all(settled(path, time.time_ns()) for path in found):
        pass
    return found


@pytest.fixture
def started():
    """Makes sessions, and ends them."""
    made = []

    def start(paths):
        made.append(Session(paths))
        return made[-1]

    yield start
    for session in made:
        session.close()


def page(session):
    client = TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
    return client.get("/").text


def keys_of(session):
    return cache_keys(session, links_of(session, tuple(one.index for one in session.inputs())))


@pytest.mark.slow
@pytest.mark.parametrize("n_files", [1, 2])
def test_the_next_server_shows_the_same_page_without_opening_a_trace(files, started, monkeypatch, n_files):
    first = page(started(files[:n_files]))
    store.wait_until_written()
    monkeypatch.setattr(Session, "open_path", lambda *_: pytest.fail("opened"))
    monkeypatch.setattr(report_home, "summarise", lambda _: pytest.fail("summarised"))
    monkeypatch.setattr(overview, "_read_ahead", lambda *_: None)
    later = started(files[:n_files])
    assert page(later) == first
    assert "Slowest step" in first
    assert later.of_rank(range(n_files)) == dict(zip(range(n_files), range(n_files), strict=True))


@pytest.mark.slow
def test_once_the_page_is_shown_the_trace_is_opened_for_what_comes_next(files, started):
    page(started(files))
    session = started(files)
    page(session)
    (ahead,) = [task for key, task in session._answers.items() if key[0] == "ahead"]
    ahead.answer.result(30)
    assert list(session._traces) == files[:1]


def test_what_changes_the_page_changes_its_ticket(files, started):
    both, one, other_way = (keys_of(started(paths)) for paths in (files, files[:1], files[::-1]))
    assert [len(found) for found in (both, one, other_way)] == [2, 1, 2]
    assert len({found[0].key for found in (both, one, other_way)}) == 3
    shutil.copy(files[0], files[1])
    assert keys_of(started(files))[0].key != both[0].key


@pytest.mark.slow
def test_the_page_of_a_file_that_changes_meanwhile_is_not_kept(files, started):
    session = started(files)
    before, meta = keys_of(session), session.trace(0).meta
    shutil.copy(files[0], files[1])
    store_glance(before, Glance((), None, False, (0, 1)), meta)
    assert store.cached_value(before[0], Glance) is None


def test_inputs_that_nothing_is_kept_of_have_no_ticket(started, tmp_path):
    (tmp_path / "small.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    session = started([str(tmp_path / "small.json")])
    assert keys_of(session) == ()
    (tmp_path / "small.json").unlink()
    assert keys_of(session) == ()
