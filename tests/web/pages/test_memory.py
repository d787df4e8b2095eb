"""The page of memory over time, and what its script asks for."""

from __future__ import annotations

import json
import pickle

import pytest
from snapshots import MIB, snapshot
from starlette.testclient import TestClient

from stepscope.web.app import create_app
from stepscope.web.session import Session


@pytest.fixture
def client(tmp_path):
    """A folder with a snapshot, and a trace of one step that begins a millisecond after the snapshot's first event."""
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot(every_us=1_000)))
    events = [
        {"ph": "X", "name": "ProfilerStep#3", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 1_000, "dur": 1_500},
        {"ph": "X", "name": "aten::add", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1_001, "dur": 5},
    ]
    document = {"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": events}
    (tmp_path / "rank0.pt.trace.json").write_text(json.dumps(document))
    session = Session([str(tmp_path)])
    yield TestClient(create_app(session), base_url="http://127.0.0.1:8000", headers={"x-stepscope-wait": "1"})
    session.close()


def test_the_page_draws_snapshots_and_lists_what_held_the_peak(client):
    text = client.get("/memory?t=0").text
    assert 'id="levels"' in text
    assert "What held the peak" in text
    assert 'id="levels"' not in client.get("/memory?t=1").text


def test_a_moment_is_an_event_or_a_time(client):
    address = "/api/trace/0/memory/moment?axis=time"
    assert client.get(f"{address}&place=2").json()["allocated"] == 22 * MIB
    assert client.get(f"{address}&x=1500000").json()["place"] == 2
    assert client.get("/api/trace/0/memory/moment?by=colour").status_code == 400


def test_windows_and_stacks_are_served(client):
    answer = client.get("/api/trace/0/memory/window?from=0&to=100&px=20")
    assert answer.headers["content-type"] == "application/octet-stream"
    stacks = [one["stack"] for one in client.get("/api/trace/0/memory/moment?place=2").json()["holders"]]
    frames = [client.get(f"/api/trace/0/memory/stack/{number}").json()["frames"] for number in stacks]
    assert ["__init__ (/home/me/model.py:2)"] in frames
    assert client.get("/api/trace/0/memory/stack/99").status_code == 400


def test_the_steps_of_the_trace_are_on_the_clock_of_the_snapshot(client):
    layout = client.get("/api/trace/0/memory/layout").json()
    assert (layout["steps"], layout["trace"]) == ([[3, 1_000_000, 1_500_000]], 1)
    assert client.get("/api/trace/1/layout").json()["memory"] == 0
    assert client.get("/api/trace/0/layout").json() == {"snapshot": True}
