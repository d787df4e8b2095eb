"""`stepscope watch` starts a job, watches it from a process of its own, and ends with the job's exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.cli import main

STEPS = """
import sys, time, stepscope
for i in range(60):
    stepscope.step()
    time.sleep(0.05)
sys.exit(5)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--false-alarms", "never", "--follow", "x"], "no rate"),
        ([], "give a command"),
        (["--pid", "1", "--follow", "x"], "give a command"),
        (["--", "true"], "both are needed"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message, capsys):
    assert main(["watch", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_job_is_watched_and_its_exit_code_handed_on(tmp_path):
    command = [sys.executable, "-m", "stepscope", "watch", "-o", str(tmp_path / "run"), "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", STEPS],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 5, done.stderr
    assert '"process 1"' in (tmp_path / "run.watch.json").read_text()
