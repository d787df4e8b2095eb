"""Stored folders that were changed: every question gives an answer or a StepscopeError."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

pytestmark = pytest.mark.exhaustive

LAB = Path(__file__).parents[2] / "lab"


def test_some_changed_folders_are_answered_or_refused():
    command = [sys.executable, LAB / "stored_mutations.py", "--cases", "20", "--share", "0.03", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no failures" in done.stdout


def test_a_case_follows_from_its_number_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(LAB))
    lab = importlib.import_module("stored_mutations")
    (tmp_path / "seeds").mkdir()
    seeds = lab.seeds(tmp_path / "seeds")
    for number in range(8):
        made = []
        for again in "ab":
            folder = tmp_path / again / str(number)
            folder.mkdir(parents=True)
            path, changes = lab.write_mutated(seeds[number], folder, Random(number))
            made.append((changes, {p.name: p.read_bytes() for p in path.iterdir() if p.is_file() and p.stat().st_size}))
        assert made[0] == made[1]
