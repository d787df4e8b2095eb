"""The tab in TensorBoard: found when there are traces, served below its route."""

from __future__ import annotations

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
