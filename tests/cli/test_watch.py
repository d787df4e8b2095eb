"""`stepscope watch` starts a job, watches it from a process of its own, and ends with the job's exit code."""

from __future__ import annotations

import signal
import socket
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
        (["--least", "0.05", "--follow", "x"], "no share"),
        ([], "give a command"),
        (["--pid", "1", "--follow", "x"], "give a command"),
        (["--metrics", "localhost:1", "--follow", "x"], "give a command"),
        (["--", "true"], "name a folder for the recording"),
        (["-o", "x", "--follow", "y"], "there is none"),
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


def test_a_server_of_another_machine_is_refused(capsys):
    assert main(["watch", "--metrics", "http://192.0.2.1:8000/metrics"]) == 1
    assert "ssh -L 8000:localhost:8000" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_server_is_watched_until_it_is_interrupted(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    command = [sys.executable, "-m", "stepscope", "watch", "--metrics", f"localhost:{port}"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as watch:
        line = watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 0
    assert f"localhost:{port} does not answer: Connection refused; watching goes on" in line
    assert (tmp_path / f"127.0.0.1-{port}.watch.json").exists()
