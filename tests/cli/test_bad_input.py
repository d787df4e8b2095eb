"""Files that hold nothing to read: the command line says so in one line, and in another what to do."""

from __future__ import annotations

import gzip
import sqlite3

import ncu_files
import nsys_files
import nsys_stats_files
import pytest
import rocprof_files

NO_PERMISSION = (
    "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n"
)
ENGLISH, EUROPEAN = ncu_files.rows(0, "1,234,567", "65.77"), ncu_files.rows(1, "1.234.567", "65,77")


def header_of(table: str) -> str:
    return table.partition("\n")[0] + "\n"


def export(folder) -> bytes:
    path = nsys_files.write(folder / "whole.sqlite", NVTX_EVENTS=(nsys_files.NVTX, [nsys_files.nvtx(1, 2, "a")] * 3000))
    return path.read_bytes()


def songs(folder) -> bytes:
    with sqlite3.connect(folder / "songs.sqlite") as db:
        db.execute("CREATE TABLE songs (title)")
    db.close()
    return (folder / "songs.sqlite").read_bytes()


CASES = {
    "permission.csv": (NO_PERMISSION, "was not allowed to read the device's performance counters (ERR_NVGPUCTRPERM)"),
    "empty.csv": ("", "is empty"),
    "blank.csv": ("\n\n", "is a text without a table of a known format"),
    "ncu_header.csv": (ncu_files.LONG, "a header and no rows"),
    "nsys_header.csv": (nsys_stats_files.KERN_HEADER, "a header and no rows"),
    "rocprof_header.csv": (header_of(rocprof_files.KERNELS), "a header and no rows"),
    "table_header.txt": ("Kernel                          Latency Tensor   DRAM\n", "a header and no rows"),
    "two_locales.csv": (
        ncu_files.LONG + ENGLISH + EUROPEAN,
        "its numbers have two notations: ",
    ),
    "binary.csv": (bytes(range(256)) * 4, "begins with b'\\x00\\x01"),
    "binary.sqlite": (bytes(range(256)) * 4, "begins with b'\\x00\\x01"),
    "cut.sqlite": (lambda folder: export(folder)[:20_000], "the database ends after 20,000 of "),
    "header.sqlite": (lambda folder: export(folder)[:50], "the database ends within its header"),
    "cut.sqlite.gz": (lambda folder: gzip.compress(export(folder))[:300], "gzip data ends early"),
    "torn.sqlite": (lambda folder: export(folder)[:8192] + b"\xff" * 200_000, "malformed"),
    "songs.sqlite": (songs, "is an SQLite database of an unknown recorder: it holds songs"),
    "nsys_text.txt": (" Time (%)  Total Time (ns)  Instances\n --------\n  7.0  12  3\n", "in its text form"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_file_that_holds_nothing_is_refused_in_one_line_and_a_hint(run, tmp_path, name):
    content, words = CASES[name]
    path = tmp_path / "in" / name
    path.parent.mkdir()
    made = content(tmp_path) if callable(content) else content
    path.write_bytes(made.encode() if isinstance(made, str) else made)
    for verb in (["report"], ["show", "kernels"]):
        result = run(*verb, path)
        assert (result.code, result.out) == (1, "")
        error, hint = result.err.splitlines()
        assert error.startswith(f"error: {path}")
        assert words in error
        assert hint.startswith("hint: ")


@pytest.mark.parametrize("name", ["empty", "empty.csv", "notes"])
def test_a_folder_without_a_trace(run, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    if name == "notes":
        (folder / "notes.txt").write_text("x")
    result = run("report", folder)
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[0] == f"error: no trace in {folder}"


def test_two_reports_in_one_file_are_read_as_one_and_that_is_told(run, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(ncu_files.LONG + ncu_files.rows(0) + "==PROF== again\n" + ncu_files.DETAILS + ncu_files.rows(0))
    assert "2 launches read" in run("report", path).out
    assert "reports_joined" in run("show", "issues", path).out


def test_a_file_that_may_not_be_read(run, tmp_path, monkeypatch):
    path = tmp_path / "mine.csv"
    path.write_text(ncu_files.LONG)

    def refused(*_args, **_rest):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stepscope.core.files.open", refused, raising=False)
    result = run("report", path)
    assert result.code == 1
    assert result.err.splitlines() == [
        f"error: cannot read {path}: Permission denied",
        "hint: you are not allowed to read this file: check its owner and mode",
    ]


def test_counters_to_join_are_refused_alike(run, tmp_path):
    trace = tmp_path / "whole.sqlite"
    nsys_files.write(trace, CUPTI_ACTIVITY_KIND_KERNEL=(nsys_files.KERNEL, [nsys_files.kernel(1, 5)]))
    (tmp_path / "ncu.csv").write_text(NO_PERMISSION)
    result = run("show", "kernels", trace, "--with", tmp_path / "ncu.csv")
    assert result.code == 1
    assert result.err.startswith(f"error: {tmp_path / 'ncu.csv'}: ncu was not allowed")
    result = run("show", "kernels", trace, "--with", tmp_path)
    assert (result.code, result.err.splitlines()[0]) == (1, f"error: {tmp_path} holds 2 traces")
