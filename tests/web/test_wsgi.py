from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepscope.web.app import create_app
from stepscope.web.guard import Rules
from stepscope.web.wsgi import as_wsgi

PREFIX = "/data/plugin/x"


@pytest.fixture
def ask(session):
    app = as_wsgi(create_app(session, Rules(any_host=True, framed=True)), prefix=PREFIX)

    def asked(path, query="", **more):
        told = {}

        def start_response(status, headers):
            told.update(status=int(status.split()[0]), headers=dict(headers))

        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_HOST": "somewhere:6006",
            "HTTP_X_STEPSCOPE_WAIT": "1",
            "SERVER_NAME": "x",
            "SERVER_PORT": "6006",
            "wsgi.url_scheme": "http",
            **more,
        }
        body = b"".join(app(environ, start_response))
        return told["status"], told["headers"], body.decode("utf-8", "replace")

    return asked


def test_pages_are_found_below_the_prefix_and_link_there(ask):
    status, headers, text = ask(PREFIX + "/")
    assert status == 200
    assert f'href="{PREFIX}/static/page.css"' in text
    assert f'href="{PREFIX}/timeline"' in text
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert ask(PREFIX + "/tables/steps", "t=0")[0] == 200
    assert ask(PREFIX + "/static/page.js")[0] == 200


def test_a_server_below_a_path_of_its_own_is_taken_into_account(ask):
    _, _, text = ask(PREFIX + "/", SCRIPT_NAME="/tb")
    assert f'href="/tb{PREFIX}/timeline"' in text


def test_what_is_refused_stays_refused(ask):
    assert ask(PREFIX + "/", REQUEST_METHOD="POST")[0] == 405
    assert ask(PREFIX + "/", CONTENT_LENGTH="5")[0] == 413
    assert ask(PREFIX + "/", HTTP_ORIGIN="http://evil.example")[0] == 403
    assert ask(PREFIX + "/nothing\xff")[0] == 404


def test_a_server_s_own_event_loop_is_not_in_the_way(ask):
    async def served():
        return ask(PREFIX + "/")[0]

    with ThreadPoolExecutor(1) as fresh:  # this thread may have a loop already
        assert fresh.submit(lambda: asyncio.run(served())).result() == 200
