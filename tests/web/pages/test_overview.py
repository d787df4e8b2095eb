from __future__ import annotations

from starlette.testclient import TestClient
from web_traces import training, written

from stepscope.web.app import create_app
from stepscope.web.pages import overview
from stepscope.web.session.session import Session


def test_what_was_begun_ahead_is_what_the_first_visitor_gets(session, client):
    overview.begin(session)
    asked = list(session._answers.values())
    for task in asked:
        task.answer.result(30)
    assert client.get("/").status_code == 200
    assert list(session._answers.values()) == asked


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
