from __future__ import annotations

import pytest
from rocprof_files import AGENTS, CALLS, COPIES, COUNTERS, KERNELS, PMC, STATS, folder

from stepscope.readers.rocm.rocprof_files import family, is_superseded, kind_of


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (KERNELS, "kernel_trace"), (CALLS, "api_trace"), (COPIES, "memory_copy_trace"), (AGENTS, "agent_info"),
        (COUNTERS, "counter_collection"), (STATS, "stats"), (PMC, "pmc_perf"), ("a,b\n1,2\n", None), ("", None),
    ],
)  # fmt: skip
def test_the_first_line_shows_the_kind(text, kind):
    assert kind_of(text.encode()) == kind


def test_a_family_is_the_files_of_one_run_kernels_first(tmp_path):
    folder(tmp_path)
    (tmp_path / "77_kernel_stats.csv").write_text(STATS)
    names = ["77_kernel_trace.csv", "77_agent_info.csv", "77_hip_api_trace.csv", "77_memory_copy_trace.csv"]
    assert family(str(tmp_path / "77_hip_api_trace.csv")) == [str(tmp_path / name) for name in names]
    assert family(str(tmp_path / "77-kernel_trace.csv")) == [str(tmp_path / "77-kernel_trace.csv")]
    assert family("/nowhere/77_kernel_trace.csv") == ["/nowhere/77_kernel_trace.csv"]
    assert family(str(tmp_path / "1_kernel_trace.csv")) == [str(tmp_path / "1_kernel_trace.csv")]
    assert [is_superseded(str(tmp_path / name)) for name in names[:2]] == [False, True]
