"""A session and a client of the page on small traces."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient
from web_traces import two_ranks

from stepscope.web.app import create_app
from stepscope.web.session import Session


@pytest.fixture
def folder(tmp_path):
    """A folder of two ranks."""
    return two_ranks(tmp_path / "run")


@pytest.fixture
def session(folder):
    made = Session([str(folder)])
    yield made
    made.close()


@pytest.fixture
def client(session):
    """Asks as a browser on this machine does, and waits for answers."""
    return TestClient(create_app(session), base_url="http://127.0.0.1:8000", headers={"x-stepscope-wait": "1"})


@pytest.fixture
def completed():
    """Runs a coroutine to its end, on a thread of its own: this one may have an event loop that runs."""

    def run(coroutine):
        with ThreadPoolExecutor(1) as fresh:
            return fresh.submit(asyncio.run, coroutine).result()

    return run
