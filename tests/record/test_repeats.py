"""Recordings in turns with those of an earlier command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record.recording import Recorded
from stepscope.record.repeats import Earlier, repeated, turns


def recording(folder, command, cwd):
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps({"command": command, "cwd": str(cwd)}))
    return folder


def test_sides_take_turns_in_being_first():
    assert list(turns(3, is_against=True)) == [
        "normal1", "abnormal1", "abnormal2", "normal2", "normal3", "abnormal3",
    ]  # fmt: skip
    assert list(turns(2, is_against=False)) == ["run1", "run2"]


def made(tmp_path, monkeypatch, n, *, against=True, exit_codes=()):
    """What is recorded: command, folder in which it runs, folder of the recording; and the exit codes."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    base = recording(tmp_path / "base", ["python", "a.py"], tmp_path / "old")
    codes, calls = list(exit_codes), []

    def record(command, folder):
        calls.append((tuple(command), Path.cwd().name, str(folder.relative_to(tmp_path / "new"))))
        return Recorded(folder, codes.pop(0) if codes else 0, 1.0)

    earlier = Earlier.of(base, ["python", "a.py"]) if against else None
    done = list(repeated(record, ["python", "a.py"], Path("out"), n, earlier))
    assert Path.cwd() == tmp_path / "new"
    return calls, [one.exit_code for _, one in done]


def test_each_command_runs_in_its_own_folder_and_all_are_recorded_into_one(tmp_path, monkeypatch):
    calls, _ = made(tmp_path, monkeypatch, 2)
    command = ("python", "a.py")
    assert calls == [
        (command, "old", "out/normal1"),
        (command, "new", "out/abnormal1"),
        (command, "new", "out/abnormal2"),
        (command, "old", "out/normal2"),
    ]


def test_a_job_that_fails_ends_the_turns(tmp_path, monkeypatch):
    calls, codes = made(tmp_path, monkeypatch, 3, exit_codes=[0, 3])
    assert len(calls) == 2
    assert codes == [0, 3]


def test_without_a_base_the_command_alone_is_repeated(tmp_path, monkeypatch):
    calls, _ = made(tmp_path, monkeypatch, 2, against=False)
    assert [folder for *_, folder in calls] == ["out/run1", "out/run2"]


def test_the_same_command_in_the_same_folder_is_no_base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = recording(tmp_path / "base", ["python", "a.py"], tmp_path)
    with pytest.raises(StepscopeError, match="same program"):
        Earlier.of(base, ["python", "a.py"])
    assert Earlier.of(base, ["python", "a.py", "--fast"]).cwd == tmp_path


@pytest.mark.parametrize(
    "meta", [None, "{", "[]", "{}", '{"command": [], "cwd": "/"}', '{"command": ["x"], "cwd": "/nowhere/at/all"}']
)
def test_what_is_no_recording_of_a_command_is_an_error(tmp_path, meta):
    if meta is not None:
        (tmp_path / "meta.json").write_text(meta)
    with pytest.raises(StepscopeError):
        Earlier.of(tmp_path, ["python"])
