"""The server as a whole under attack: traversal, garbage, then it still answers."""

from __future__ import annotations

import os
import random
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from stepscope.core.errors import StepscopeError
from stepscope.web.app import application
from stepscope.web.pages.site import static_path


def test_scripts_and_styles_are_served(client):
    for file in static_path().iterdir():
        answer = client.get(f"/static/{file.name}")
        assert answer.status_code == 200
        assert answer.content == file.read_bytes()
    assert (
        client.get("/static/page.js").headers["content-type"].startswith(("text/javascript", "application/javascript"))
    )


def test_plotly_comes_from_its_package(client):
    answer = client.get("/static/plotly.min.js")
    assert answer.status_code == 200
    assert b"plotly.js v" in answer.content[:500]


SECRET = "a secret beside the traces"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../secret.txt",
        "/static/..%2fsecret.txt",
        "/static/%2e%2e/%2e%2e/secret.txt",
        "/static//etc/passwd",
        "/../secret.txt",
        "/static/..\\secret.txt",
        "/tables/..%2F..%2Fsecret.txt",
        "/download/..%2Fsecret.txt",
        "/download/..%2F..%2Fsecret.csv",
        "/api/trace/..%2F0/layout",
        "/api/trace/-1/layout",
        "/static/templates/base.html",
        "/static/%00.js",
    ],
)
def test_no_path_leads_out_of_the_inputs(client, folder, path):
    (folder.parent / "secret.txt").write_text(SECRET)
    (folder / "secret.txt").write_text(SECRET)
    answer = client.get("http://127.0.0.1:8000" + path)
    assert answer.status_code >= 400
    assert SECRET not in answer.text
    assert "root:" not in answer.text


def test_another_host_is_refused_before_anything_is_read(client, session):
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert session.of_rank((0,)) == {}


WORDS = [
    "t",
    "a",
    "b",
    "from",
    "to",
    "px",
    "tracks",
    "flat",
    "q",
    "exact",
    "sort",
    "where",
    "group",
    "columns",
    "search",
    "page",
    "all",
    "o.by",
    "o.min_gap_ns",
]
VALUES = st.one_of(
    st.text(max_size=30),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        [
            "name",
            "dur_ns > 1",
            "-dur_ns",
            "0,1",
            "1 OR 1=1",
            "SELECT * FROM read_csv('/etc/passwd')",
            "(((((",
            "a" * 600,
        ]
    ),
)
PATHS = st.one_of(
    st.sampled_from(
        [
            "/",
            "/timeline",
            "/operators",
            "/compare",
            "/tables",
            "/tables/steps",
            "/tables/spans",
            "/tables/diff",
            "/download/steps.csv",
            "/download/issues.json",
            "/api/progress",
            "/api/trace/0/layout",
            "/api/trace/0/window",
            "/api/trace/1/search",
            "/api/trace/0/statistics",
            "/api/trace/0/span/3",
        ]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="?#"), max_size=20).map(
        lambda text: "/" + text.lstrip("/")
    ),
)


#: How many requests of garbage are made: STEPSCOPE_GARBAGE=10000 makes as many as before a release.
REQUESTS = int(os.environ.get("STEPSCOPE_GARBAGE", "500"))


@pytest.mark.slow
@settings(
    max_examples=REQUESTS * 3 // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(
    PATHS,
    st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=4),
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "BREW"]),
)
def test_garbage_is_answered_in_order_and_leaves_the_server_alive(client, path, words, method):
    answer = client.request(method, "http://127.0.0.1:8000" + quote(path, safe="/%") + "?" + urlencode(words))
    assert answer.status_code in (200, 202, 307, 400, 404, 405, 503)
    assert answer.status_code != 503 or "error" in answer.text or "busy" in answer.text


@pytest.mark.slow
def test_after_garbage_of_raw_bytes_a_page_is_still_there(client):
    dice = random.Random(7)
    for _ in range(REQUESTS * 2 // 5):
        raw = "".join(dice.choice("abcXYZ0123./%?&=;:<>'\"\\|{}[]~ é\u2028") for _ in range(dice.randrange(60)))
        assert client.get("http://127.0.0.1:8000/" + quote(raw, safe="/?&=;:")).status_code < 500
    assert client.get("/").status_code == 200


def test_an_application_serves_what_it_was_given(folder):
    app = application([str(folder)])
    assert TestClient(app, base_url="http://localhost").get("/api/progress").json()["inputs"] == ["rank0", "rank1"]
    app.state.session.close()


def test_beyond_loopback_a_token_is_a_must(folder):
    with pytest.raises(StepscopeError, match="needs a token"):
        application([str(folder)], host="0.0.0.0")
    app = application([str(folder)], host="0.0.0.0", token="secret")
    client = TestClient(app, base_url="http://10.0.0.1")
    assert client.get("/api/progress").status_code == 401
    assert client.get("/api/progress?token=secret").status_code == 200  # by way of a cookie
    app.state.session.close()


def test_nothing_to_serve_is_said(tmp_path):
    with pytest.raises(StepscopeError):
        application([str(tmp_path)])
