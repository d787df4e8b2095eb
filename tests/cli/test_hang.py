from __future__ import annotations

import json

from stepscope.record import hang


def asked(_pids, folder, *, ranks=None):  # noqa: ARG001  as the function that it replaces
    """What a job of one process gives."""
    folder.mkdir()
    process = {"pid": 7, "rank": 0, "state": "S", "threads": [], "problem": "py-spy failed"}
    document = {"schema": "stepscope.processes/1", "host": "a", "processes": [process]}
    (folder / "processes.json").write_text(json.dumps(document))
    return folder, 1, 0


def test_the_report_comes_first_and_then_where_the_stacks_are(run, monkeypatch, tmp_path):
    monkeypatch.setattr(hang, "ask_job", asked)
    result = run("hang", "--pid", "7", "-o", str(tmp_path / "out"))
    assert result.out.startswith("Nobody to blame: no process stands in a collective · 1 process asked")
    assert "has the stacks of 1 process and no dumps of a flight recorder" in result.err
    assert run("report", str(tmp_path / "out")).out == result.out


def test_json_has_the_verdict(run, monkeypatch, tmp_path):
    monkeypatch.setattr(hang, "ask_job", asked)
    out = run("hang", "--pid", "7", "-o", str(tmp_path / "out"), "--format", "json").out
    assert json.loads(out)["hang"]["verdict"] == "healthy"


def test_a_folder_is_never_overwritten(run, tmp_path):
    result = run("hang", "--pid", "7", "-o", str(tmp_path))
    assert result.code == 1
    assert "is there already" in result.err


def test_no_such_process_is_one_error(run, tmp_path):
    result = run("hang", "--pid", "4194305", "-o", str(tmp_path / "out"))
    assert (result.code, result.out) == (1, "")
    assert "error: there is no process 4194305" in result.err


def test_a_running_process_is_asked_with_hang_and_not_by_a_trigger(run, tmp_path):
    result = run("record", "--pid", "7", "--trigger-hang", "60s", "-o", str(tmp_path / "out"))
    assert result.code == 2
    assert "stepscope hang --pid 7" in result.err


def test_ranks_are_a_list_or_all(run, monkeypatch, tmp_path):
    wanted = []
    monkeypatch.setattr(hang, "ask_job", lambda pids, folder, *, ranks: wanted.append(ranks) or asked(pids, folder))
    for i, text in enumerate(("all", "0-2,9", "3")):
        assert run("hang", "--ranks", text, "-o", str(tmp_path / str(i))).code == 0
    assert wanted == [None, {0, 1, 2, 9}, {3}]
    for words in (("--ranks", "a-b"), ("--ranks", ""), ()):
        assert run("hang", *words, "-o", str(tmp_path / "none")).code == 2
