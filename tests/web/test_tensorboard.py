"""The tab in TensorBoard: found when there are traces, served below its route."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
from web_traces import training, written

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
