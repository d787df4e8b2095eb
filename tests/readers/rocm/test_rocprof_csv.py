from __future__ import annotations

import pytest
from rocprof_files import COPIES, KERNELS, PMC

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.source import IssueLog, Source
from stepscope.readers.rocm.rocprof_csv import read_csv


def records_of(tmp_path, text, log=None, name="a.csv"):
    (tmp_path / name).write_text(text)
    return read_csv(Source(str(tmp_path / name)), log or IssueLog())


def test_rows_without_times_are_dropped_and_counted_and_blank_lines_are_not(tmp_path):
    log = IssueLog()
    found = records_of(tmp_path, KERNELS.replace('"1300"', '"soon"') + "\n", log)
    assert found.dispatches["dispatch"].to_list() == [1]
    assert log.table().select("code", "count").rows() == [("incomplete_rows", 1)]


def test_a_wide_table_of_counters_has_a_row_for_each(tmp_path):
    found = records_of(tmp_path, PMC + '0,"copy(int, int)",2,1024,256,64,16,5,100,150\n')
    assert found.metrics.rows() == [(0, "SQ_WAVES", 16.0), (0, "TCC_HIT[0]", 5.0)]
    row = found.dispatches.row(0, named=True)
    assert (row["name"], row["start"], row["grid_x"], row["group_x"], row["agent"]) == (
        "copy(int, int)",
        100,
        1024,
        256,
        "2",
    )


def test_copies_are_work_of_the_device_at_their_end(tmp_path):
    assert records_of(tmp_path, COPIES).copies["agent"].to_list() == ["4", "4"]


def test_what_is_no_csv_of_that_kind_is_corrupt(tmp_path):
    with pytest.raises(CorruptInput, match="first line"):
        records_of(tmp_path, "a,b\n")
    with pytest.raises(CorruptInput, match="header is damaged"):  # a quote that ends elsewhere
        records_of(tmp_path, KERNELS.replace('"Stream_Id","', '"Stream_Id"', 1))
