from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import stepscope
from stepscope.cli import VERBS, hold_little, show


def spawn(*words, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "stepscope", *words], capture_output=True, text=True, check=False, **kwargs
    )


def test_help_needs_nothing_heavy():
    code = (
        "import sys; from stepscope.cli import main; main(['--help']); "
        "print([m for m in ('polars', 'numpy', 'rich', 'msgspec', 'scipy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Say where the time went" in out
    assert out.splitlines()[-1] == "[]"


def test_the_version_is_shown(run):
    assert run("--version").out == f"stepscope {stepscope.__version__}\n"


def test_without_a_verb_it_helps(run):
    result = run()
    assert result.code == 2
    assert "Commands:" in result.err + result.out
    assert run("bogus").code == 2


@pytest.mark.slow
def test_a_missing_file_is_one_clear_error():
    result = spawn("show", "spans", "no-such-file.json")
    assert (result.returncode, result.stdout) == (1, "")
    first, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert "no-such-file.json" in first
    assert second.startswith("hint: ")


def test_a_bug_shows_its_traceback(run, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(show, "_help", broken)
    with pytest.raises(ZeroDivisionError):
        run("show", "--help")


def test_an_interrupt_ends_without_a_traceback(run, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "_help", interrupted)
    result = run("show", "--help")
    assert result.code == 130
    assert "Traceback" not in result.err


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals and head(1) are POSIX")
def test_an_interrupt_from_outside_ends_at_once(tmp_path):
    endless = tmp_path / "endless.json.gz"  # 13 GB of blanks: long enough to be interrupted in the middle
    blanks = gzip.compress(b" " * (64 << 20), 9)
    with endless.open("wb") as file:
        file.write(gzip.compress(b'{"traceEvents": ['))
        file.writelines([blanks] * 200)
    words = ["show", "spans", str(endless), "--max-bytes", "100GB"]
    with subprocess.Popen([sys.executable, "-m", "stepscope", *words], stderr=subprocess.PIPE, text=True) as process:
        try:
            time.sleep(2.0)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals and head(1) are POSIX")
def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m stepscope tables --format csv | head -c 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("n", "")


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is full")  # noqa: PTH110
def test_a_full_disk_is_one_clear_error():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        result = subprocess.run(
            [sys.executable, "-m", "stepscope", "formats"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr.startswith("error: cannot write to standard output: No space left on device\nhint: ")
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.slow
def test_what_others_do_at_the_end_is_done():
    code = (
        "import atexit, sys; atexit.register(print, 'the end'); sys.argv = ['stepscope', 'formats', *sys.argv[1:]]; "
        "from stepscope.__main__ import run; run(); print('never')"
    )
    fine = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert fine.stdout.startswith("name ")
    assert fine.stdout.endswith("\nthe end\n")
    wrong = subprocess.run([sys.executable, "-c", code, "--bogus"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "the end\n")


@pytest.mark.slow
def test_a_profiler_has_its_say():
    words = [sys.executable, "-m", "cProfile", "-m", "stepscope", "formats"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "function calls" in out


@pytest.mark.slow
def test_a_thread_of_others_is_waited_for():
    code = (
        "import sys, threading, time; sys.argv = ['stepscope', '--version']\n"
        "threading.Thread(target=lambda: (time.sleep(0.5), print('done'))).start()\n"
        "from stepscope.__main__ import run; run()"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == f"stepscope {stepscope.__version__}\ndone\n"


def test_files_and_folders_hold_little_if_they_are_small_when_unpacked(tmp_path):
    def of(name, size):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
        return str(tmp_path / name)

    few, many = of("few.json", 150_000_000), of("many.json", 250_000_000)
    packed, more = of("ranks/rank0.json.gz", 10_000_000), of("more/rank0.json.gz", 20_000_000)
    assert hold_little(["report", few])
    assert hold_little(["report", "--format", "json", packed])
    assert not hold_little(["report", many])
    assert not hold_little(["report", more])
    assert not hold_little(["compare", few, packed])
    assert hold_little([str(tmp_path / "ranks")])
    assert not hold_little([str(tmp_path)])
    assert not hold_little(["s3://bucket/rank0.json", "nowhere.json"])
    for number in range(1_001):
        of(f"folder/{number}.json", 1)
    assert not hold_little([str(tmp_path / "folder")])


def test_output_survives_an_ascii_locale():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    result = spawn("tables", env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()


def flags(text):
    """The flags at the beginning of the lines that list options."""
    lines = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    return [flag for line in lines for flag in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line)]


@pytest.mark.parametrize("verb", VERBS)
def test_help_lists_each_switch_once(run, verb):
    listed = flags(run(verb, "--help").out.partition("\nKind ")[0])
    assert listed
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("table", ["kernels", "idle", "overlap", "memory"])
def test_help_of_a_table_lists_each_switch_once(run, table):
    listed = flags(run("show", table, "--help").out)
    assert len(listed) == len(set(listed))
