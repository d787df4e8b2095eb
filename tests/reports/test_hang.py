"""The report of dumps: who is to blame on one screen, and the same as data."""

from __future__ import annotations

import json

import pytest
from dumps import call, dump, write

from stepscope import load, report
from stepscope.cli import main
from stepscope.core.errors import StepscopeError


def folder_of(tmp_path):
    done, waiting = [call(i) for i in range(1, 9)], [call(9, ended=False)]
    dumps = {rank: dump(done + waiting * (rank != 2), {"0": [0, 1, 2, 3]}) for rank in range(3)}
    return write(tmp_path, dumps)


def test_the_headline_names_the_verdict_the_culprit_and_the_time(tmp_path):
    made = report(folder_of(tmp_path))
    assert made.headline.startswith("Hung: rank 2 to blame · dumps of 3 of 4 ranks · since 2023-11-14 22:13:29 UTC")
    assert made.findings[0].title == "Rank 2 never arrived (95 % sure)"
    assert "Innocent: ranks 0–1." in made.quality
    assert "The dump of rank 3 is missing; rank 3 cannot be excluded." in made.quality
    assert report(load(str(tmp_path))).headline == made.headline


def test_json_has_the_verdict_as_data(tmp_path, capsys):
    assert main(["report", folder_of(tmp_path), "--format", "json"]) == 0
    hang = json.loads(capsys.readouterr().out)["hang"]
    assert hang["verdict"] == "hung"
    assert [(one["rank"], one["reason"], one["operation"]) for one in hang["culprits"]] == [
        (2, "never arrived", "all_reduce")
    ]
    assert [(one["rank"], one["waits_for"]) for one in hang["waiting"]] == [(0, 2), (1, 2)]
    assert hang["innocent"] == [0, 1]


def test_a_recording_says_who_was_to_blame_when_no_step_ended(tmp_path):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9}
    (tmp_path / "rank0.pt.trace.json").write_text(json.dumps({"traceEvents": [event]}))
    issue = {"code": "hang", "severity": "warning", "count": 1, "example": "no step ended for 8 s: see stepscope report"
             " hang-0001"}  # fmt: skip
    (tmp_path / "meta.json").write_text(json.dumps({"recorder": "stepscope", "issues": [issue]}))
    (tmp_path / "counters.csv").write_text("ts_ns,metric,unit,device,value\n1,host_cpu_usage,%,host,5\n")
    before = report(str(tmp_path)).findings
    (tmp_path / "hang-0001").mkdir()
    frame = {"name": "wait", "filename": "/x/torch/distributed/c10d.py", "line": 2}
    own = {"name": "load", "filename": "/x/job.py", "line": 8}
    processes = [
        {"pid": rank, "rank": rank, "world_size": 2, "state": "S", "cores_used": 0.0,
         "threads": [{"pid": rank, "thread_id": 1, "os_thread_id": rank, "active": False, "owns_gil": False,
                      "thread_name": "MainThread", "frames": [own] if rank else [frame, own]}]}
        for rank in range(2)
    ]  # fmt: skip
    asked = {"schema": "stepscope.processes/1", "host": "a", "taken_unix_ns": 1, "processes": processes}
    (tmp_path / "hang-0001" / "processes.json").write_text(json.dumps(asked))
    first, *rest = report(str(tmp_path)).findings
    assert first.title.startswith("Hung: Rank 1 never arrived")
    assert first.details[-1] == f"asked then: stepscope report {tmp_path / 'hang-0001'}"
    assert rest == list(before)


def test_a_folder_of_two_jobs_is_refused_by_their_names(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        folder_of(tmp_path / name)
    with pytest.raises(StepscopeError, match="dumps of 2 jobs") as caught:
        report(str(tmp_path))
    assert "one" in caught.value.message
    assert "two" in caught.value.message
