from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from stepscope.cli import main
from stepscope.cli.serve import _address


@contextmanager
def served(*words):
    """The address that `stepscope serve` prints, while it runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "serve", *words, "--no-browser"], stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stderr.readline()
        match = re.match(r"stepscope serves (http://\S+)", line)
        assert match, line
        yield match.group(1), process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_it_serves_on_loopback_until_interrupted(examples):
    with served(str(examples / "demo-cpu-decode")) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address + "api/progress", timeout=20) as answer:
            assert b'"rank0"' in answer.read()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == 0


@pytest.mark.slow
def test_beyond_loopback_a_token_is_demanded(examples):
    with served(str(examples / "demo-cpu-decode"), "--host", "0.0.0.0") as (address, _):
        port = re.search(r":(\d+)/\?token=\S{20,}", address).group(1)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20)
        assert refused.value.code == 401
        refused.value.close()


def test_nothing_to_serve_is_an_error(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none.json"), "--no-browser"]) == 1
    assert "error:" in capsys.readouterr().err


def test_a_port_in_use_is_an_error(examples, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(examples / "demo-cpu-decode"), "--no-browser", "--port", port]) == 1
    assert "cannot listen on 127.0.0.1:" in capsys.readouterr().err


def test_a_host_that_is_none_is_an_error(examples, capsys):
    assert main(["serve", str(examples / "demo-cpu-decode"), "--no-browser", "--host", "no.such.host.invalid"]) == 1
    assert "cannot listen on" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", "http://127.0.0.1:5/"), ("::1", "http://[::1]:5/")])
def test_the_address_can_be_opened(host, expected):
    assert _address(host, 5, None) == expected


def test_the_browser_is_opened_unless_it_is_not_wanted(examples, monkeypatch):
    import uvicorn

    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(uvicorn.Server, "run", lambda _, sockets: [one.close() for one in sockets])
    assert main(["serve", str(examples / "demo-cpu-decode")]) == 0
    assert opened[0].startswith("http://127.0.0.1:")
