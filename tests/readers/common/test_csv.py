from __future__ import annotations

import gzip

import polars as pl
import pytest

from stepscope.core.errors import CorruptInput
from stepscope.readers import Source
from stepscope.readers.common.csv import header_of, nanoseconds, read_rows
from stepscope.readers.common.issues import IssueLog


@pytest.fixture
def rows_of(tmp_path):
    def read(content: bytes, needed=("a",)):
        path = tmp_path / "x.csv"
        path.write_bytes(content)
        log = IssueLog()
        frame = read_rows(Source(str(path)), needed, log)
        return frame, log.table()["code"].to_list()

    return read


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        (b"a,b\r\n1,2", ["a", "b"]),
        (b'\xef\xbb\xbfa,"b,c"\n', ["a", "b,c"]),
        (b"", []),
        (b"\xff\xfe\n", []),
        (b'"' + b"x" * 200_000 + b"\n", []),
    ],
    ids=["plain", "quoted, with a mark of byte order", "empty", "not text", "endless"],
)
def test_the_fields_of_the_first_line(head, fields):
    assert header_of(head) == fields


def test_rows_are_text_and_empty_fields_null(rows_of):
    frame, codes = rows_of(b'\xef\xbb\xbfa,b\r\n1.50,"x, ""y"""\r\n,z\r\n')
    assert frame.rows() == [("1.50", 'x, "y"'), (None, "z")]
    assert codes == []


@pytest.mark.parametrize("end", [b"3", b'3,"cut', b'3,"cut, he'])
def test_a_last_row_that_breaks_off_is_dropped_and_counted(rows_of, end):
    frame, codes = rows_of(b"a,b\n1,2\n" + end)
    assert frame.rows() == [("1", "2")]
    assert codes == ["truncated"]


def test_a_last_row_that_is_whole_needs_no_newline(rows_of):
    assert rows_of(b"a,b\n1,2\n3,4")[0].height == 2


def test_what_can_be_unpacked_is_read(rows_of):
    packed = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (i * i, i) for i in range(9_999)))
    frame, codes = rows_of(packed[: len(packed) // 2])
    assert frame.height > 100
    assert "damaged_packing" in codes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"b,c\n1,2\n", r"x\.csv at byte 0: no column a"),
        (b"a,b\n", "a header and not one whole row"),
        (b'a,b\n"1,x"y\n', "not one whole row"),
    ],
)
def test_what_is_no_table_is_refused_with_the_reason(rows_of, content, message):
    with pytest.raises(CorruptInput, match=message) as caught:
        rows_of(content)
    assert caught.value.hint


def test_a_stray_quote_costs_no_more_than_its_row(rows_of):
    frame, codes = rows_of(b'a,b\r\n1,x\r\n2,"y" z"\r\n"3,y\r\n\r\n4,\r\n5,6,7\r\n')
    assert frame.rows() == [("1", "x"), ("2", 'y z"'), ("4", None)]
    assert codes == ["rows_dropped"]


def test_signs_that_are_not_utf8_are_replaced(rows_of):
    assert rows_of(b"a,b\n1,\xff\n")[0].rows() == [("1", "\ufffd")]


def test_microseconds_become_nanoseconds_without_a_loss():
    texts = ["1762935807026558.7500", "0.0010", "-3", "1e3", "soon", None, "9" * 16, "9" * 40]
    found = pl.DataFrame({"t": texts}).select(nanoseconds("t")).to_series()
    assert found.to_list() == [1_762_935_807_026_558_750, 1, -3_000, 1_000_000, *[None] * 4]
