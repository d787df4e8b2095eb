"""The page "What if": controls for the standard questions, and the answer that its script draws."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from stepscope.web.app import create_app
from stepscope.web.session import Session


def asked(client, *changes, trace=0):
    return client.get(f"/api/trace/{trace}/what-if", params=[("if", change) for change in changes])


def test_without_changes_both_steps_are_the_recorded_one(client):
    body = asked(client).json()
    assert body["predicted_ns"] == body["step_ns"] > 0
    assert body["between"] is None
    assert sum(part["recorded_ns"] for part in body["parts"]) == pytest.approx(body["step_ns"])
    assert all(part["recorded_ns"] == part["predicted_ns"] for part in body["parts"])


def test_parts_add_up_to_the_predicted_step(client):
    body = asked(client, "host: 2x").json()
    assert 0 < body["predicted_ns"] < body["step_ns"]
    assert sum(part["predicted_ns"] for part in body["parts"]) == pytest.approx(body["predicted_ns"])
    assert body["change"].startswith("−")
    assert len(body["between"]) == 2


@pytest.mark.parametrize("change", ["nonsense", "kernel ~ no_such_kernel: 2x", "gears: 2x"])
def test_what_cannot_be_asked_is_refused(client, change):
    answer = asked(client, change)
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.slow
def test_controls_have_stops_and_the_table_leads_back_to_the_page(client):
    text = client.get("/what-if").text
    assert 'data-subject="host" data-stops="1x,1.25x,1.5x,2x,3x,5x,10x,free"' in text
    assert "/what-if?t=0&amp;if=host%3A+free" in text


@pytest.mark.slow
def test_a_change_without_a_control_of_its_own_gets_one(client):
    assert 'data-stops=",3.5x"' in client.get("/what-if?if=host:+3.5x").text
    assert "From the report" not in client.get("/what-if?if=host:+2x").text


@pytest.mark.slow
def test_ranks_of_a_job_are_told_what_no_late_rank_is_worth(examples):
    session = Session([str(examples / "demo-cpu-2ranks")])
    headers = {"x-stepscope-wait": "1"}
    client = TestClient(create_app(session), base_url="http://127.0.0.1:8000", headers=headers)
    assert "If no rank came late, all ranks together: 161 ms → " in client.get("/what-if").text
    assert "If no rank came late" not in client.get("/what-if?t=0").text
    session.close()
