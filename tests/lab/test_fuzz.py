from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

LAB = Path(__file__).parents[2] / "lab"


@pytest.fixture
def mutations(monkeypatch):
    monkeypatch.syspath_prepend(str(LAB))
    return importlib.import_module("mutations")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, LAB / "fuzz.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_case_follows_from_its_number_alone(mutations):
    seeds = mutations.seeds()
    made = [[mutations.mutated(seeds[case % len(seeds)], Random(case)) for case in range(40)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) == 40


@pytest.mark.slow
def test_some_cases_go_through_everything(tmp_path):
    done = run("--cases", "4", "--first", "77", "--jobs", "2", "--keep", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("4 cases in ")
    assert "no failures" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"case{n}.json" for n in range(77, 81)]


@pytest.mark.usefixtures("mutations")
def test_a_failure_is_told_with_its_case(monkeypatch, tmp_path, capsys):
    fuzz = importlib.import_module("fuzz")

    def broken(_path):
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(fuzz.stepscope, "load", broken)
    tally = fuzz.Tally()
    for case in (5, 6):
        fuzz._one(tally, case, tmp_path / "t.json", Random(case))
    fuzz._summary(tally, 1.0)
    said = capsys.readouterr().out
    assert "2 cases in 1 s" in said
    assert "FAILED 2 × read: ZeroDivisionError at ?: made up" in said
    assert "cases 5, 6" in said
