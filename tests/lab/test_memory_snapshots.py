from __future__ import annotations

import json
import sys

import memory_snapshots
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", memory_snapshots.KINDS)
def test_events_and_segments_agree(kind):
    """What is active at the end is what was allocated and not freed; likewise segments."""
    case = memory_snapshots.make(kind, 3)
    case.n_events = None
    memory_snapshots.run(case)
    active, reserved = {}, 0
    for event in case.snapshot["device_traces"][0]:
        action = event["action"]
        if action == "alloc":
            active[event["addr"]] = event["size"]
        elif action == "free_completed":
            assert active.pop(event["addr"]) == event["size"]
        elif action in ("segment_alloc", "segment_map"):
            reserved += event["size"]
        elif action in ("segment_free", "segment_unmap"):
            reserved -= event["size"]
    segments = case.snapshot["segments"]
    assert sum(segment["total_size"] for segment in segments) == reserved
    assert sum(segment["requested_size"] for segment in segments) == sum(active.values())
    (oom,) = [e for e in case.snapshot["device_traces"][0] if e["action"] == "oom"] or [None]
    assert (oom is None) == (kind == "healthy")
    assert oom is None or oom["device_free"] < case.device.total


@pytest.mark.slow
def test_the_command_writes_cases_and_what_is_true_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["memory_snapshots.py", str(tmp_path), "--cases", "3"])
    memory_snapshots.main()
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert [truth[f"case-{n}"]["kind"] for n in range(3)] == ["leak", "growth", "held"]
    assert all((tmp_path / f"{name}.pickle").stat().st_size > 10_000 for name in truth)
