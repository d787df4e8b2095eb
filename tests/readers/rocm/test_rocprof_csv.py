from __future__ import annotations

import pytest
from rocprof_files import AGENTS, CALLS, COPIES, COUNTERS, KERNELS, folder

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.issues import Notes
from stepscope.readers.common.source import Source
from stepscope.readers.rocm.rocprof_csv import family, kind_of, read_csv

STATS = '"Name","Calls","TotalDurationNs"\n'
PMC = """Dispatch_ID,Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,wave_size,SQ_WAVES,TCC_HIT[0],Start_Timestamp,\
End_Timestamp
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (KERNELS, "kernel_trace"), (CALLS, "api_trace"), (COPIES, "memory_copy_trace"), (AGENTS, "agent_info"),
        (COUNTERS, "counter_collection"), (STATS, "stats"), (PMC, "pmc_perf"), ("a,b\n1,2\n", None), ("", None),
    ],
)  # fmt: skip
def test_the_first_line_tells_the_kind(text, kind):
    assert kind_of(text.encode()) == kind


def test_a_family_is_the_files_of_one_run_kernels_first(tmp_path):
    folder(tmp_path)
    (tmp_path / "77_kernel_stats.csv").write_text(STATS)
    names = ["77_kernel_trace.csv", "77_agent_info.csv", "77_hip_api_trace.csv", "77_memory_copy_trace.csv"]
    assert family(str(tmp_path / "77_hip_api_trace.csv")) == [str(tmp_path / name) for name in names]
    assert family(str(tmp_path / "77-kernel_trace.csv")) == [str(tmp_path / "77-kernel_trace.csv")]
    assert family("/nowhere/77_kernel_trace.csv") == ["/nowhere/77_kernel_trace.csv"]


def records_of(tmp_path, text, notes=None, name="a.csv"):
    (tmp_path / name).write_text(text)
    return read_csv(Source(str(tmp_path / name)), notes or Notes())


def test_rows_without_times_are_dropped_and_counted_and_blank_lines_are_not(tmp_path):
    notes = Notes()
    found = records_of(tmp_path, KERNELS.replace('"1300"', '"soon"') + "\n", notes)
    assert found.dispatches["dispatch"].to_list() == [1]
    assert notes.table().select("code", "count").rows() == [("incomplete_rows", 1)]


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
