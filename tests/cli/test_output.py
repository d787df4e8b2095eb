from __future__ import annotations

import io
import os
import stat
import sys

import pytest
import typer

from stepscope.cli import _output
from stepscope.core import files
from stepscope.core.errors import StepscopeError, WouldOverwrite
from stepscope.renderers import RENDERERS, find


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)

    def isatty(self):
        return True

    def text(self):
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture
def terminal(monkeypatch):
    def made(encoding="utf-8", stream="stdout"):
        fake = Terminal(encoding)
        monkeypatch.setattr(sys, stream, fake)
        return fake

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "180")
    return made


def test_a_pipe_is_100_columns_without_colour():
    screen = _output.screen()
    assert (screen.width, screen.colour) == (100, False)


def test_a_terminal_has_its_width_and_colour(terminal):
    terminal()
    screen = _output.screen()
    assert (screen.width, screen.colour, screen.unicode) == (180, True, True)


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_is_left_out_where_it_is_not_wanted(terminal, monkeypatch, variable, value):
    terminal()
    monkeypatch.setenv(variable, value)
    assert not _output.screen().colour


def test_an_encoding_without_blocks_is_noticed_and_never_fails(terminal):
    stream = terminal("latin-1")
    assert not _output.screen().unicode
    _output.emit("naïve → 漢\n", None)
    assert stream.text() == "naïve \\u2192 \\u6f22\n"


@pytest.mark.parametrize("form", [None, *RENDERERS.names()])
def test_text_is_made_harmless_before_it_reaches_a_terminal(terminal, form):
    stream = terminal()
    _output.emit("name\n\x1b[2Jevil\u202e\n", None, renderer=form and find(form))
    assert stream.text() == "name\n\\u001b[2Jevil\\u202e\n"


def test_only_exact_text_reaches_a_pipe_unchanged(capsys):
    for form, text in ((None, "\\u001b[2J"), ("csv", "\\u001b[2J"), ("csv-raw", "\x1b[2J")):
        _output.emit("\x1b[2J", None, renderer=form and find(form))
        assert capsys.readouterr().out == text


def test_a_complaint_is_coloured_at_a_terminal_only(terminal):
    stream = terminal(stream="stderr")
    _output.complain("error: \x1b[2J", colour=typer.colors.RED)
    assert stream.text() == "\x1b[31m\x1b[1merror:\x1b[0m \\x1b[2J\n"


def test_a_file_appears_whole_with_ordinary_permissions(tmp_path):
    target = tmp_path / "out.txt"
    _output.emit("1\n", str(target))
    mask = os.umask(0)
    os.umask(mask)
    assert target.read_text() == "1\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_file_that_came_up_meanwhile_is_kept(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(WouldOverwrite):
        _output.emit("new", str(target))
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "out.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    _output.emit("new", str(link), force=True)
    assert (link.is_symlink(), target.read_text()) == (True, "new")


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_output.Path, "replace", full)
    with pytest.raises(StepscopeError, match="No space left on device"):
        _output.emit("new", str(tmp_path / "out.txt"))
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_or_device_is_written_to_and_not_replaced():
    _output.emit("gone", os.devnull)
    assert not os.path.isfile(os.devnull)  # noqa: PTH113


@pytest.mark.parametrize("target", ["", "none/x.txt"])
def test_a_place_that_cannot_be_written_is_refused_early(tmp_path, target):
    with pytest.raises(StepscopeError, match="cannot write"):
        _output.check_target(str(tmp_path / target), [], force=True)


def test_a_reader_that_has_seen_enough_is_no_error(monkeypatch, tmp_path):
    class Closed(io.StringIO):
        encoding = "utf-8"

        def write(self, _):
            raise BrokenPipeError

        def fileno(self):
            return spare

    spare = os.open(tmp_path / "spare", os.O_CREAT | os.O_WRONLY)
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(typer.Exit) as caught:
        _output.emit("text", None)
    monkeypatch.setattr(sys, "stderr", Closed())
    _output.complain("error: nobody reads this")
    os.close(spare)
    assert caught.value.exit_code == 0


def test_an_object_is_written_to_like_a_file():
    url = "memory://output-test/out.csv"
    _output.check_target(url, (), force=False)
    _output.emit("a,b\n", url)
    with files.opened(url) as file:
        assert file.read() == b"a,b\n"
    for refuse in (lambda: _output.check_target(url, (), force=False), lambda: _output.emit("", url)):
        with pytest.raises(WouldOverwrite):
            refuse()
    _output.check_target(url, (), force=True)
    _output.emit("c\n", url, force=True)
    assert files.size_of(url) == 2
