"""The tab in TensorBoard: found when there are traces, served below its route."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
from web_traces import training, written

from stepscope.web.app import create_app
from stepscope.web.guard import Rules
from stepscope.web.tensorboard import as_wsgi

pytest.importorskip("tensorboard", reason="tensorboard is not installed")

from stepscope.web.tensorboard import Plugin


def plugin(folder):
    return Plugin(SimpleNamespace(logdir=str(folder)))


def asked(made, route, path):
    told = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/data/plugin/stepscope" + path,
        "QUERY_STRING": "",
        "HTTP_HOST": "h:6006",
        "HTTP_X_STEPSCOPE_WAIT": "1",
    }
    body = made.get_plugin_apps()[route](environ, lambda status, headers: told.append((status, dict(headers))))
    return int(told[0][0].split()[0]), told[0][1], b"".join(body)


def test_traces_in_the_layout_of_the_handler_make_it_active(tmp_path):
    made = plugin(tmp_path)
    assert not made.is_active()
    assert asked(made, "/*", "/")[0] == 404
    run = tmp_path / "resnet"
    run.mkdir()
    written(run / "host_123.1700000000000.pt.trace.json", training())
    assert made.is_active()
    status, _, body = asked(made, "/*", "/")
    assert status == 200
    assert b"Slowest step" in body


def test_the_script_leads_the_frame_to_the_page(tmp_path):
    status, headers, body = asked(plugin(tmp_path), "/index.js", "/index.js")
    assert status == 200
    assert headers["content-type"] == "text/javascript"
    assert b"export function render()" in body


def test_it_tells_tensorboard_its_name_and_script(tmp_path):
    found = plugin(tmp_path).frontend_metadata()
    assert (found.es_module_path, found.tab_name) == ("/index.js", "stepscope")
    assert Plugin.plugin_name == "stepscope"


def test_the_package_declares_the_plugin():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = project["entry-points"]["tensorboard_plugins"]["stepscope"].split(":")
    assert getattr(importlib.import_module(module), name) is Plugin
    assert any(word.startswith("tensorboard") for word in project["optional-dependencies"]["tensorboard"])


@pytest.fixture
def board(tmp_path):
    """Address of TensorBoard as a user starts it, which finds the plugin by what pip has installed."""
    points = [point for point in entry_points(group="tensorboard_plugins") if point.name == "stepscope"]
    if not points:
        pytest.skip("stepscope is not installed here with its entry points: pip install -e .")
    assert points[0].load() is Plugin
    run = tmp_path / "resnet"
    run.mkdir()
    written(run / "host_123.1700000000000.pt.trace.json", training())
    command = [sys.executable, "-W", "ignore", "-m", "tensorboard.main", "--logdir", str(tmp_path), "--port", "0",
               "--host", "127.0.0.1", "--load_fast", "false"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        found = None
        while not found:
            line = process.stderr.readline()
            assert line, "TensorBoard has ended"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
        yield found.group()
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
@pytest.mark.slow
def test_the_installed_plugin_is_served_by_tensorboard_itself(board):
    def get(path):
        request = urllib.request.Request(board + path, headers={"x-stepscope-wait": "1"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers, answer.read().decode()

    listed = json.loads(get("/data/plugins_listing")[1])["stepscope"]
    assert listed["enabled"]
    assert listed["tab_name"] == "stepscope"
    route = "/data/plugin/stepscope"
    assert "export function render()" in get(listed["loading_mechanism"]["module_path"])[1]
    headers, page = get(route + "/overview")
    assert "Slowest step" in page
    assert f'href="{route}/sql' in page
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert "drawCharts" in get(route + "/static/page.js")[1]
    assert 'id="count">1 row<' in get(route + "/sql?q=SELECT+count(*)+AS+n+FROM+spans")[1]
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(route + "/static/..%2f..%2f..%2f_guard.py")
    refused.value.close()
    assert refused.value.code == 404


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


@pytest.mark.slow
def test_pages_are_found_below_the_prefix_and_link_there(ask):
    status, headers, text = ask(PREFIX + "/")
    assert status == 200
    assert f'href="{PREFIX}/static/page.css"' in text
    assert f'href="{PREFIX}/timeline"' in text
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert ask(PREFIX + "/tables/steps", "t=0")[0] == 200
    assert ask(PREFIX + "/static/page.js")[0] == 200


@pytest.mark.slow
def test_a_server_below_a_path_of_its_own_is_taken_into_account(ask):
    _, _, text = ask(PREFIX + "/", SCRIPT_NAME="/tb")
    assert f'href="/tb{PREFIX}/timeline"' in text


def test_what_is_refused_stays_refused(ask):
    assert ask(PREFIX + "/", REQUEST_METHOD="POST")[0] == 405
    assert ask(PREFIX + "/", CONTENT_LENGTH="5")[0] == 413
    assert ask(PREFIX + "/", HTTP_ORIGIN="http://evil.example")[0] == 403
    assert ask(PREFIX + "/nothing\xff")[0] == 404


@pytest.mark.slow
def test_a_server_s_own_event_loop_is_not_in_the_way(ask):
    async def served():
        return ask(PREFIX + "/")[0]

    with ThreadPoolExecutor(1) as fresh:  # this thread may have a loop already
        assert fresh.submit(lambda: asyncio.run(served())).result() == 200
