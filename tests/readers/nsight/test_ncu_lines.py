from __future__ import annotations

import pytest
from ncu_files import COLUMNS, DETAILS, LONG, METRIC, launch, quoted, row, rows

from stepscope.readers.common.source import Source
from stepscope.readers.nsight import ncu_lines
from stepscope.readers.nsight.ncu_lines import Lines


@pytest.fixture
def lines(tmp_path):
    def of(text: str | bytes) -> Lines:
        path = tmp_path / f"ncu{len(list(tmp_path.iterdir()))}.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return Lines(Source(str(path)))

    return of


def blocks(found: Lines) -> list[tuple[int, bytes]]:
    return [(header.report, block) for header, block in found.blocks()]


def segments(found: Lines) -> list[tuple[int, bytes]]:
    """Every block, taken apart line by line."""
    return [(header.report, part) for _, block in found.blocks() for header, part in found.segments(block)]


def test_what_stands_above_the_header_is_left_out(lines):
    found = lines(f"hello\n==PROF== Connected to process 7 (python)\n{LONG}{rows(0)}")
    assert blocks(found) == [(1, rows(0).encode())]
    assert found.header is not None
    assert found.header.columns == (*COLUMNS, *METRIC)
    assert found.header.is_long
    assert (found.errors, found.warnings, found.is_text) == ([], [], False)


def test_the_header_may_stand_behind_what_the_program_printed(lines):
    found = lines(f"100 % done {LONG}{rows(0)}")
    assert blocks(found) == [(1, rows(0).encode())]


def test_lines_that_are_no_rows_are_taken_out(lines):
    text = f'{LONG}{rows(0)}loss 0.25, "good"\n==WARNING== clocks are not locked\n{rows(1)}\n==ERROR== the end\n'
    found = lines(text)
    assert segments(found) == [(1, (rows(0) + rows(1)).encode())]
    assert (found.warnings, found.errors) == (["clocks are not locked"], ["the end"])


def test_a_field_may_run_over_lines(lines):
    advice = quoted(*launch(0), "SpeedOfLight", "", "", "", "Rule", "OPT", "one\ntwo, three\nfour", "", "")
    found = lines(DETAILS + rows(0) + advice + rows(1))
    assert segments(found) == [(1, (rows(0) + advice + rows(1)).encode())]


def test_an_open_quote_does_not_swallow_rows(lines):
    found = lines(f'{LONG}{rows(0)}"0","broken\n{rows(1)}')
    assert segments(found) == [(1, (rows(0) + rows(1)).encode())]


def test_each_header_begins_a_report(lines):
    text = LONG + rows(0) + "==PROF== Connected\n" + DETAILS + rows(0)
    assert segments(lines(text)) == [(1, rows(0).encode()), (2, rows(0).encode())]


def test_blocks_end_where_a_row_begins(lines, monkeypatch):
    monkeypatch.setattr(ncu_lines, "BLOCK", 1)
    monkeypatch.setattr("stepscope.readers.common.source.CHUNK", 200)
    text = "".join(rows(i) for i in range(20))
    found = blocks(lines(LONG + text))
    assert b"".join(block for _, block in found) == text.encode()
    assert len(found) > 5
    assert all(block.startswith(b'"') and block.endswith(b"\n") for _, block in found)


@pytest.mark.parametrize("cut", [1, 8, 30, 120])
def test_a_row_that_was_cut_is_left_out(lines, cut):
    found = lines((LONG + rows(0) + row(1, "x", "", "12"))[:-cut])
    text = b"".join(block for _, block in blocks(found))
    kept = row(1, "x", "", "12").encode()[:-1] if cut == 1 else b""  # only its line end is missing
    assert (text, found.n_truncated) == (rows(0).encode() + kept, int(cut > 1))


def test_a_program_may_have_the_last_word(lines):
    found = lines(LONG + rows(0) + "bye")
    assert segments(found) == [(1, rows(0).encode())]
    assert found.n_truncated == 0


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marks_and_encodings_of_other_shells(lines, encoding):
    text = (LONG + rows(0)).replace("\n", "\r\n")
    assert blocks(lines(text.encode(encoding))) == [(1, rows(0).replace("\n", "\r\n").encode())]


def test_quotes_may_have_been_taken_off(lines):
    plain = '0,7,python,host,gemm,1,7,"(128, 1, 1)","(64, 1, 1)",0,8.0,Chosen,x,ns,12\n'
    found = lines(",".join((*COLUMNS, *METRIC)) + "\n" + plain + "the end\n")
    assert segments(found) == [(1, plain.encode())]


def test_other_outputs_of_ncu_are_told(lines):
    summary = lines(quoted("Process ID", "Kernel Name", "Invocations", "Metric Name") + quoted("7", "gemm", "3", "x"))
    source = lines(quoted("Kernel Name", "gemm") + quoted("Address", "Source"))
    text = lines("  gemm(int) (64, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 8.0\n")
    for found in (summary, source, text):
        assert blocks(found) == []
    assert [f.is_summary for f in (summary, source, text)] == [True, False, False]
    assert [f.is_instructions for f in (summary, source, text)] == [False, True, False]
    assert [f.is_text for f in (summary, source, text)] == [False, False, True]
