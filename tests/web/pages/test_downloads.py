from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.query.tables import described
from stepscope.web.pages import downloads
from stepscope.web.pages.downloads import attachment, known_format

FRAME = pl.DataFrame({"name": ["a", "b"], "n": [1, 2]})


def made(name, suffix, frame=FRAME):
    with ThreadPoolExecutor(1) as fresh:  # this thread may have a loop already
        return fresh.submit(lambda: asyncio.run(attachment(name, suffix, frame, described(name, frame)))).result()


def test_a_file_is_called_after_its_table_and_nothing_else():
    answer = made('../x"y\r\n', "csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="---x-y--.csv"'
    assert answer.body == b"name,n\na,1\nb,2\n"


@pytest.mark.parametrize(
    ("suffix", "kind"), [("csv", "text/csv"), ("json", "application/json"), ("parquet", "application/vnd")]
)
def test_each_format_has_its_type(suffix, kind):
    assert known_format(suffix) == suffix
    assert made("t", suffix).headers["content-type"].startswith(kind)


def test_other_formats_are_unknown():
    with pytest.raises(UnknownName, match="format"):
        known_format("exe")


def test_too_many_rows_are_not_written_as_text(monkeypatch):
    monkeypatch.setattr(downloads, "_MOST_TEXT_ROWS", 1)
    with pytest.raises(StepscopeError, match="2 rows are too many for csv") as caught:
        made("t", "csv")
    assert "Parquet" in caught.value.hint
    assert made("t", "parquet").body[:4] == b"PAR1"
