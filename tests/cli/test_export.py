from __future__ import annotations

import gzip

import pytest
import zstandard

import stepscope
from stepscope import exports
from stepscope.api import verbs
from stepscope.core.errors import StepscopeError
from stepscope.exports import Export, Folder, Stream


def listing(run, context, *, other: str | None = None, binary: bool = False, note: str | None = None):
    names = [str(trace.rank) for trace in run]
    if other is not None:
        names += ["|", *(str(trace.rank) for trace in context.open_run(other))]
    if note is not None:
        context.tell(note)
    return " ".join(names).encode() if binary else " ".join(names)


@pytest.fixture(autouse=True)
def kind(monkeypatch):
    made = Export("listing", "ranks, one after the other", listing)
    monkeypatch.setattr(exports, "find", {"listing": made}.__getitem__)
    monkeypatch.setattr(exports, "names", lambda: ["listing"])
    return made


def test_a_run_is_written_in_the_form_asked_for(run, paths, tmp_path):
    assert run("export", *paths, "--to", "listing").out == "0 1 10"
    result = run("export", *paths, "--to", "listing", "-o", "out.txt")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (tmp_path / "out.txt").read_text() == "0 1 10"
    assert run("export", *paths, "--to", "listing", "-o", "out.txt").code == 1


def test_an_option_may_name_another_run(run, paths):
    assert run("export", paths[0], "--to", "listing", "--other", paths[2]).out == "0 | 10"


def test_binary_content_goes_to_a_file_only(run, paths, tmp_path):
    assert "is not written to a terminal" in run("export", paths[0], "--to", "listing", "--binary").err
    assert run("export", paths[0], "--to", "listing", "--binary", "-o", "out.bin").code == 0
    assert (tmp_path / "out.bin").read_bytes() == b"0"


def test_python_and_the_command_line_write_the_same(run, paths):
    assert stepscope.export(verbs.load_run(paths), "listing") == run("export", *paths, "--to", "listing").out
    assert stepscope.export(verbs.load(paths[2]), "listing") == "10"


@pytest.mark.parametrize("words", [[], ["--to", "listing"], ["a.json"], ["--to", "listing", "--binary"]])
def test_a_kind_and_a_path_are_needed(run, words):
    result = run("export", *words)
    assert result.code == 2
    assert "--to" in result.err


def test_an_unknown_option_is_refused_with_the_known_ones(run, paths):
    result = run("export", paths[0], "--to", "listing", "--bogus")
    assert result.code == 2
    assert "listing has no option --bogus: it has --binary, " in result.err
    assert "'stepscope export --to listing --help'" in result.err


def test_notes_go_to_standard_error_and_are_warnings_in_python(run, paths):
    result = run("export", paths[0], "--to", "listing", "--note", "no shapes")
    assert (result.out, result.err) == ("0", "note: no shapes\n")
    with pytest.warns(UserWarning, match="no shapes"):
        stepscope.export(verbs.load(paths[0]), "listing", note="no shapes")


def test_help_lists_the_kinds_with_their_options(run):
    for words in (["--help"], ["--to", "listing", "--help"]):
        text = run("export", *words).out
        assert "Kind listing: ranks, one after the other" in text
        assert "--other text" in text


def test_an_input_is_not_overwritten(run, paths):
    result = run("export", paths[0], "--to", "listing", "-o", paths[0], "--force")
    assert (result.code, result.out) == (1, "")
    assert "it is one of the inputs" in result.err


def test_counters_of_another_file_are_joined_before(run, paths):
    result = run("export", paths[0], "--to", "listing", "--with", paths[1])
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: {paths[1]} holds no counters of kernels")


def test_a_kind_that_is_a_folder_is_written_to_one(run, paths, tmp_path, monkeypatch):
    written = []

    def as_folder(run, context):  # noqa: ARG001
        def write(path, *, force):
            written.append((path, force, [trace.rank for trace in run]))

        return Folder(write)

    made = Export("folder", "a folder", as_folder, folder=True)
    monkeypatch.setattr(exports, "find", lambda _: made)
    assert run("export", *paths, "--to", "folder", "-o", "kept").code == 0
    assert written == [("kept", False, [0, 1, 10])]
    for words in ([], ["-o", "-"]):
        result = run("export", *paths, "--to", "folder", *words)
        assert result.code == 2
        assert "folder is a folder, which -o has to name" in result.err
    (tmp_path / "there").mkdir()
    assert "there exists already" in run("export", *paths, "--to", "folder", "-o", "there").err
    assert run("export", *paths, "--to", "folder", "-o", "there", "--force").code == 0
    assert "it contains one of the inputs" in run("export", *paths, "--to", "folder", "-o", tmp_path, "--force").err
    assert [path for path, _, _ in written] == ["kept", "there"]


def test_a_stream_is_written_as_it_comes_packed_by_its_suffix(run, paths, tmp_path, monkeypatch):
    def pieces(run_, context):
        del context
        return Stream(f"{trace.rank} " for trace in run_)

    made = Export("pieces", "ranks, one after the other", pieces)
    monkeypatch.setattr(exports, "find", {"pieces": made}.__getitem__)
    assert run("export", *paths, "--to", "pieces").out == "0 1 10 "
    for name, opened in (("a.txt", open), ("a.txt.gz", gzip.open), ("a.txt.zst", zstandard.open)):
        assert run("export", *paths, "--to", "pieces", "-o", name).code == 0
        with opened(tmp_path / name, "rt") as file:
            assert file.read() == "0 1 10 "
    assert run("export", *paths, "--to", "pieces", "-o", "a.txt").code == 1
    assert stepscope.export(paths, "pieces") == "0 1 10 "


def test_a_stream_that_fails_leaves_nothing_behind(run, paths, tmp_path, monkeypatch):
    def broken():
        yield "begun"
        raise StepscopeError("no more")

    made = Export("broken", "fails", lambda run_, context: Stream(broken()))  # noqa: ARG005
    monkeypatch.setattr(exports, "find", {"broken": made}.__getitem__)
    before = sorted(tmp_path.iterdir())
    assert run("export", *paths, "--to", "broken", "-o", "b.json.gz").code == 1
    assert sorted(tmp_path.iterdir()) == before
