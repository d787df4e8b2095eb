from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from stepscope.record import job as _job


def test_a_program_is_found_or_it_is_said_why_not(tmp_path):
    assert _job.find_program(["sh"]).endswith("/sh")
    with pytest.raises(_job.CannotStart) as error:
        _job.find_program(["no-such-program"])
    assert error.value.exit_code == 127
    (tmp_path / "script").write_text("true")
    with pytest.raises(_job.CannotStart) as error:
        _job.find_program([str(tmp_path / "script")])
    assert error.value.exit_code == 126


def test_a_program_that_the_system_refuses_is_a_clear_error(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(_job.CannotStart, match="No such file") as error:
        _job.start([str(script)], {}, set())
    assert error.value.exit_code == 126


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7 << 8, 7), (9, 137), (15, 143)])
def test_exit_codes_are_those_of_a_shell(status, code):
    assert _job.exit_code_of(status) == code


def test_a_terminals_signal_is_not_sent_twice(monkeypatch):
    sent = []
    answers = iter([(0, 0), (0, 0), (0, 0), (5, 256)])
    signals = iter([(signal.SIGINT, 128), (signal.SIGINT, 0), (signal.SIGCHLD, 1)])
    monkeypatch.setattr(_job.os, "waitpid", lambda *_: next(answers))
    monkeypatch.setattr(_job.os, "kill", lambda pid, number: sent.append((pid, number)))

    def next_signal(_):
        number, code = next(signals)
        return type("Info", (), {"si_signo": number, "si_code": code})

    monkeypatch.setattr(_job.signal, "sigwaitinfo", next_signal)
    assert _job.wait(5) == 256
    assert sent == [(5, signal.SIGINT)]


#: Prints the signals that it gets, and ends after the fourth.
COUNTS = """
import signal, sys, time
got = []
def handle(number, _):
    got.append(number)
    print(f"got {number}", flush=True)
    if len(got) == 4:
        sys.exit(5)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, handle)
print("up", flush=True)
while True:
    time.sleep(60)
"""


def test_signals_are_handed_on_and_the_job_decides(start, tmp_path):
    process = start("--no-profiler", "--", sys.executable, "-c", COUNTS)
    assert process.stdout.readline() == "up\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        process.send_signal(number)
        assert process.stdout.readline() == f"got {int(number)}\n"
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("", "", 5)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"meta.json", "counters.csv.gz"}


@pytest.fixture
def mask():
    """Blocks signals as a recording does."""
    before = _job.forwarding()
    yield before
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_job_gets_signals_as_the_system_has_them(mask, capfd):
    ask = ["sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status"]
    _job.wait(_job.start(ask, os.environ, mask))
    asked = capfd.readouterr().out
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert masks(asked) == masks(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)


def masks(text: str) -> list[int]:
    """Of signals 1 to 31; those of the C library are its own affair."""
    return [int(line.split()[1], 16) & 0x7FFFFFFF for line in text.splitlines()]


def test_waiting_ends_when_the_job_does(mask):
    start = time.monotonic()
    pid = _job.start(["sh", "-c", "sleep 0.1; exit 3"], os.environ, mask)
    assert _job.exit_code_of(_job.wait(pid)) == 3
    assert time.monotonic() - start < 30
