from __future__ import annotations

import ctypes
import io
import signal
import sys
from typing import Literal

import pytest
import typer

from stepscope.analyses import Analysis
from stepscope.cli import _run
from stepscope.cli._run import flags_of, keep_freed_memory, opened, parsed, progress, ranks_done, size_of
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import SPANS


@pytest.mark.parametrize(("text", "n_bytes"), [("4096", 4096), ("20GB", 20 * 10**9), ("2GiB", 2 << 30)])
def test_sizes_are_read_in_the_usual_words(text, n_bytes):
    assert size_of(text) == n_bytes


@pytest.mark.parametrize("text", ["lots", "-1", ""])
def test_a_wrong_size_is_a_usage_error_that_shows_a_right_one(text):
    with pytest.raises(typer.BadParameter, match="is not a size; write a size as"):
        size_of(text)


def test_a_run_is_opened_as_files_are_asked_for(job, paths):
    with opened([str(path) for path in paths], max_bytes="10", no_progress=True) as run:
        assert job.opened == []
        assert [trace.rank for trace in run] == [0, 1, 10]
    assert {limit for _, limit in job.opened} == {10}


def test_nothing_there_is_refused():
    with pytest.raises(StepscopeError), opened(["no-such-file"], max_bytes=None, no_progress=True) as run:
        list(run)


def test_interrupts_end_blocked_reads_on_systems_without_the_switch_too(job, paths, monkeypatch):
    monkeypatch.delattr(signal, "siginterrupt", raising=False)
    with opened([str(paths[0])], max_bytes=None, no_progress=True) as run:
        assert len(run) == len(job.traces) - 2


class Library:
    def __init__(self) -> None:
        self.set: dict[int, int] = {}

    def mallopt(self, parameter: int, value: int) -> None:
        self.set[parameter] = value


def test_glibc_is_told_to_keep_what_is_freed(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    keep_freed_memory()
    assert library.set == {-3: 32 << 20, -1: 512 << 20, -2: 16 << 20, -8: 1}


def test_other_libraries_and_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    monkeypatch.setattr(sys, "platform", "linux")
    keep_freed_memory()
    monkeypatch.setattr(ctypes, "CDLL", None)
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed_memory()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    def made():  # within the test, as pytest sets its own stderr after the fixtures
        fake = Terminal()
        monkeypatch.setattr(sys, "stderr", fake)
        monkeypatch.setattr(_run, "_EVERY_S", 0.0)
        return fake

    return made


def test_nothing_is_told_where_nobody_looks(terminal, monkeypatch):
    stream = terminal()
    with progress(["a"], wanted=False) as tell:
        assert tell is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress(["a"], wanted=True) as tell:
        assert tell is None
    assert stream.getvalue() == ""


def test_the_share_of_bytes_read_is_drawn_and_wiped(terminal, tmp_path):
    stream = terminal()
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        (tmp_path / path).write_bytes(b"x" * 100)
    with progress(paths, wanted=True) as tell:
        tell(paths[0], 50)
        tell(paths[0], 90)
        tell(paths[1], 50)
        tell("elsewhere", 500)
    drawn = [frame.split("\x1b")[0] for frame in stream.getvalue().split("\r")[1:]]
    assert [line.split("] ")[1].strip() for line in drawn[:-1]] == [
        "25%  file 1 of 2", "45%  file 1 of 2", "75%  file 2 of 2", "100%  file 3 of 2"
    ]  # fmt: skip
    assert drawn[-1] == ""


def test_files_of_unknown_size_do_not_fail(terminal):
    stream = terminal()
    with progress(["archive.zip!member"], wanted=True) as tell:
        tell("archive.zip!member", 5)
    assert "100%" in stream.getvalue()


def test_files_that_others_have_done_are_counted(terminal):
    stream = terminal()
    with ranks_done(wanted=True) as tell:
        for n_done in (1, 2, 4):
            tell(n_done, 4)
        tell(1, 1)
    drawn = [frame.split("\x1b")[0] for frame in stream.getvalue().split("\r")[1:]]
    assert [line.split("] ")[1].strip() for line in drawn[:-1]] == [
        "25%  file 1 of 4", "50%  file 2 of 4", "100%  file 4 of 4"
    ]  # fmt: skip
    assert drawn[-1] == ""
    with ranks_done(wanted=False) as nobody:
        assert nobody is None


def answer(
    spans,
    *,
    by: Literal["name", "stream"] = "name",
    top: Literal[1, 10] = 10,
    min_gap_ns: int = 0,
    share: float | None = None,
    pattern: str | None = None,
    linked_only: bool = False,
    merge: bool = True,
):
    """Nothing."""


def other(spans, *, kinds: tuple[str, ...] = ()):
    """Nothing."""


ANALYSIS = Analysis("answer", "an answer", (SPANS,), SPANS, answer)

HELP = "stepscope show answer --help"


def test_words_become_typed_options_and_paths():
    words = [
        "a.json",
        "--min-gap-ns",
        "5",
        "--share=0.5",
        "--by",
        "stream",
        "--linked-only",
        "--no-merge",
        "-",
        "b.json",
    ]
    assert parsed(ANALYSIS, words, HELP) == (
        ["a.json", "-", "b.json"],
        {"min_gap_ns": 5, "share": 0.5, "by": "stream", "linked_only": True, "merge": False},
    )


def test_choices_that_are_numbers_are_numbers():
    assert parsed(ANALYSIS, ["--top", "1"], HELP)[1] == {"top": 1}


def test_a_value_may_begin_with_a_dash():
    assert parsed(ANALYSIS, ["--pattern", "-x", "--min-gap-ns", "-3"], HELP)[1] == {"pattern": "-x", "min_gap_ns": -3}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--bogus"],
            "answer has no option --bogus: it has --by, --top, --linked-only, --merge, --min-gap-ns, --pattern, ",
        ),
        (["-x"], "answer has no option -x"),
        (["--by", "x"], "--by x: choose from name, stream"),
        (["--top", "2"], "--top 2: choose from 1, 10"),
        (["--top"], "--top needs a value: 1|10"),
        (["--min-gap-ns", "1.5"], "--min-gap-ns 1.5: not a whole number"),
        (["--share", "half"], "--share half: not a number"),
        (["--linked-only=1"], "--linked-only takes no value"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(words, says):
    with pytest.raises(typer.BadParameter) as caught:
        parsed(ANALYSIS, words, HELP)
    assert str(caught.value).startswith(says)


def test_values_are_named_in_words():
    assert {flag: option.values for flag, option in flags_of(ANALYSIS).items()} == {
        "--by": "name|stream", "--top": "1|10", "--min-gap-ns": "int", "--share": "float", "--pattern": "text",
        "--linked-only": "", "--no-linked-only": "", "--merge": "", "--no-merge": "",
    }  # fmt: skip


def test_the_refusal_says_where_the_options_are_listed():
    with pytest.raises(typer.BadParameter, match="and see 'stepscope show answer --help'"):
        parsed(ANALYSIS, ["--bogus"], HELP)


def test_usage_is_the_flag_with_its_value_and_its_default():
    assert [option.usage() for option in ANALYSIS.options().values()][:3] == [
        ("--by name|stream", "[default: name]"), ("--top 1|10", "[default: 10]"), ("--min-gap-ns int", "[default: 0]"),
    ]  # fmt: skip


def test_an_option_that_the_command_line_cannot_fill_in_is_a_bug():
    with pytest.raises(TypeError, match="option kinds"):
        flags_of(Analysis("other", "", (SPANS,), SPANS, other))


def test_every_analysis_has_options_that_the_command_line_can_fill_in():
    from stepscope import analyses

    own = {"--sort", "--limit", "--where", "--group-by", "--columns", "--format", "--output", "--force", "--help"}
    for name in analyses.names():
        assert not own & set(flags_of(analyses.find(name)))
