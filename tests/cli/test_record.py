from __future__ import annotations

import pytest

import stepscope
from stepscope.cli import record


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["record", "--", "true"], "-o DIR"),
        (["record", "-o", "x"], "COMMAND"),
        (["record", "-o", "x", "--pid", "1", "--", "true"], "COMMAND"),
        (["record", "-o", "x", "--duration", "3s", "--", "true"], "--duration"),
        (["record", "-o", "x", "--pid", "1", "--duration", "soon"], "--duration"),
        (["record", "-o", "x", "--pid", "1", "--duration", "0s"], "--duration"),
        (["record", "-o", "x", "--steps", "5", "--", "true"], "--steps"),
        (["record", "-o", "x", "--steps", "0:3", "--", "true"], "--steps"),
        (["record", "-o", "x", "--steps", "7:7", "--", "true"], "--steps"),
        (["record", "-o", "x", "--keep", "long", "--", "true"], "--keep"),
        (["record", "-o", "x", "--trigger", "slow", "--", "true"], "--trigger"),
        (["record", "-o", "x", "--trigger", "1x", "--", "true"], "--trigger"),
        (["record", "-o", "x", "--trigger", "2x", "--pid", "1"], "--trigger"),
        (["record", "-o", "x", "--memory", "--pid", "1"], "--memory"),
        (["record", "-o", "x", "--memory", "--no-profiler", "--", "true"], "--memory"),
        (["record", "--dump", "x", "--", "true"], "--dump"),
        (["record", "--dump", "x", "-o", "y"], "--dump"),
        (["record", "-o", "x", "--window", "20s", "--", "true"], "--window"),
        (["record", "-o", "x", "--window", "20s:soon", "--", "true"], "--window"),
        (["record", "-o", "x", "--window", "20s:5s", "--", "true"], "--window"),
        (["record", "-o", "x", "--window", "1s:2s:3s", "--", "true"], "--window"),
    ],
)
def test_words_that_make_no_sense_are_a_matter_of_usage(run, words, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.code == 2
    assert what in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("2", 2), ("250ms", 0.25), ("1.5 h", 5400), ("1 h 30 m", 5400)]
)
def test_times_are_read_with_their_unit(text, seconds):
    assert record._seconds(text, "--keep") == seconds


def test_a_time_is_two_times():
    assert record._window("0s:1.5m") == (0, 90)


def test_what_is_to_be_profiled_is_handed_on(run, tmp_path, monkeypatch):
    from stepscope.record import Recorded

    asked = []
    done = Recorded(tmp_path, 0, 1.0)
    monkeypatch.setattr("stepscope.record.run", lambda *_, **words: (asked.append(words), done)[1])
    for words in (["--window", "20s:30s"], ["--no-profiler", "--window", "20s:30s"], []):
        assert run("record", "-o", "x", *words, "--", "true").code == 0
    assert [(words["steps"], words["window"]) for words in asked] == [
        ((5, 15), (20, 30)),
        (None, None),
        ((5, 15), None),
    ]


@pytest.mark.slow
def test_a_command_is_run_and_its_recording_read(run, tmp_path):
    folder = tmp_path / "run"
    # Options of the command are its own, with -- and without.
    assert run("record", "-o", str(folder), "sh", "-c", "sleep 0.2; exit 9").code == 9
    assert "process_mem_rss" in run("report", str(folder)).out
    assert "process_oncpu_time" in run("show", "counters", str(folder)).out
    shown = run("show", "trace.counters", str(folder), "--format", "csv", "--limit", "0").out
    assert shown.count("\n") - 1 == next(iter(stepscope.load_run(folder))).counters.height


def test_at_a_terminal_it_says_where_the_recording_is(run, tmp_path, monkeypatch):
    monkeypatch.setattr(record.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    result = run("record", "-o", str(tmp_path / "run"), "--no-profiler", "--", "true")
    assert result.code == 0
    assert "read it with: stepscope report" in result.err


def test_problems_are_told_and_are_our_exit_code_where_there_is_no_other(run, tmp_path, monkeypatch):
    from stepscope.record import Recorded

    done = Recorded(tmp_path, None, 1.0, ("the disk is full",), ("rank0.pt.trace.json.gz",))
    monkeypatch.setattr("stepscope.record.attach", lambda *_, **__: done)
    result = run("record", "-o", "x", "--pid", "1")
    assert (result.code, result.err) == (1, "error: the disk is full\n")


@pytest.mark.parametrize(
    ("keep", "trigger", "ring"),
    [
        (None, None, None),
        ("5m", None, (300, None, 7)),
        (None, "2x", (60, 2, 7)),
        ("90s", "1.5", (90, 1.5, 7)),
        (None, "3×", (60, 3, 7)),
    ],
)
def test_what_is_kept_and_when_it_is_dumped(keep, trigger, ring):
    found = record._ring(keep, trigger, 7)
    assert ring == (None if found is None else (found.keep_s, found.trigger, found.max_dumps))


@pytest.mark.slow
def test_a_dump_of_what_is_not_recorded_is_refused(run, tmp_path):
    result = run("record", "--dump", str(tmp_path))
    assert (result.code, result.out) == (1, "")
    assert "no recording with --keep is running there" in result.err


def test_the_folder_of_a_dump_is_printed(run, monkeypatch):
    monkeypatch.setattr("stepscope.record.dump", lambda folder: folder / "dump-0001-request")
    result = run("record", "--dump", "x")
    assert (result.code, result.out) == (0, "x/dump-0001-request\n")
