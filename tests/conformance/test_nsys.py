"""Real nsys exports, schemas 2.7 to 3.25: kernels, copies, calls and ranges as plain SQL counts them."""

from __future__ import annotations

import csv
import sqlite3
from typing import TYPE_CHECKING

import polars as pl
import pytest

from stepscope.core.errors import UnknownFormat
from stepscope.core.trace import Results, extent_ns
from stepscope.readers import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

#: Kernels, their summed duration and span in ms, and how many were launched from within a named range.
EXPORTS = {
    "nsight/nsys-sqlite/a100-tf-nerf-casio.2021.5.sqlite": (1_106, 67.790, 321.716, 143),
    "nsight/nsys-sqlite/a100-saxpy-mpi-2022.2.sqlite": (5, 88.573, 1_040.574, 5),
    "nsight/nsys-sqlite/rtx3090-tensorrt-2023.1.sqlite": (36, 6.415, 6.458, 36),
    "nsight/nsys-sqlite/t4-power-iteration-nvtx-2025.3.sqlite": (3_689, 1_131.743, 1_790.608, 3_682),
    "nsight/nsys-sqlite/a100-vllm-nokernels-2025.3.sqlite": (0, 0.0, 0.0, 0),
    "nsight/nsys-sqlite/rtx5060ti-nokernels-2025.1.sqlite": (0, 0.0, 0.0, 0),
    "traces/more/nsys-multigpu/h100_2gpu_1s.sqlite": (3_442, 44.830, 960.485, 1_632),
    "traces/more/nsys-multigpu/mfu_2gpu_before.sqlite": (4_010, 535.201, 299.877, 3_986),
}
WITH_KERNELS = [path for path, numbers in EXPORTS.items() if numbers[0]]
PREFIX = "CUPTI_ACTIVITY_KIND_"


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)


def one(db: sqlite3.Connection, sql: str) -> int:
    try:
        return db.execute(sql).fetchone()[0] or 0
    except sqlite3.OperationalError:  # the table is not there: it holds nothing
        return 0


def within_ranges(trace: Trace) -> int:
    """Kernels whose launch lies in a range or operator, seen by walking up from each."""
    parents, categories = trace.spans["parent_id"].to_list(), trace.spans["category"].to_list()
    n = 0
    for launch in trace.spans.filter(pl.col("category") == "kernel")["launch_id"].to_list():
        at = launch
        while at is not None and categories[at] not in ("user_range", "operator"):
            at = parents[at]
        n += at is not None
    return n


@pytest.mark.parametrize("path", EXPORTS)
def test_kernels_are_those_that_were_counted_by_hand(shared: Path, path: str) -> None:
    trace = open_trace(str(shared / path))
    n, total_ms, span_ms, in_ranges = EXPORTS[path]
    kernels = trace.spans.filter(pl.col("category") == "kernel")
    assert (trace.kernels.height, kernels.height) == (n, n)
    assert kernels["dur_ns"].sum() / 1e6 == pytest.approx(total_ms, abs=5e-4)
    if n:
        first, last = extent_ns(kernels)
        assert (last - first) / 1e6 == pytest.approx(span_ms, abs=5e-4)
    assert within_ranges(trace) == in_ranges
    assert ("no_device_work" in trace.issues["code"].to_list()) == (n == 0)


@pytest.mark.parametrize("path", EXPORTS)
def test_every_table_holds_what_sql_counts(shared: Path, path: str) -> None:
    trace, db = open_trace(str(shared / path)), connect(shared / path)
    found = dict(trace.spans.group_by("recorded_category").len().rows())
    twice = f"SELECT count(*) FROM {PREFIX}RUNTIME AS a JOIN {PREFIX}RUNTIME AS b USING (globalTid, correlationId)"
    calls = one(db, f"SELECT count(*) FROM {PREFIX}RUNTIME")
    calls -= one(db, f"{twice} WHERE a.eventClass = 0 AND b.eventClass = 67")
    expected = {
        "kernel": one(db, f"SELECT count(*) FROM {PREFIX}KERNEL"),
        "memcpy": one(db, f"SELECT count(*) FROM {PREFIX}MEMCPY"),
        "memset": one(db, f"SELECT count(*) FROM {PREFIX}MEMSET"),
        "sync": one(db, f"SELECT count(*) FROM {PREFIX}SYNCHRONIZATION"),
        "cuda_api": calls,
        "nvtx": one(db, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59"),
        "nvtx_start_end": one(db, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 60"),
        "osrt": one(db, "SELECT count(*) FROM OSRT_API"),
        "cudnn": one(db, "SELECT count(*) FROM CUDNN_EVENTS"),
        "overhead": one(db, "SELECT count(*) FROM PROFILER_OVERHEAD")
        + one(db, f"SELECT count(*) FROM {PREFIX}OVERHEAD"),
    }
    assert found == {name: n for name, n in expected.items() if n}
    assert (trace.transfers["bytes"].sum() or 0) == one(db, f"SELECT sum(bytes) FROM {PREFIX}MEMCPY") + one(
        db, f"SELECT sum(bytes) FROM {PREFIX}MEMSET"
    )


@pytest.mark.parametrize("path", WITH_KERNELS)
def test_kernels_are_tied_to_the_calls_that_a_join_finds(shared: Path, path: str) -> None:
    trace, db = open_trace(str(shared / path)), connect(shared / path)
    join = (
        f"SELECT count(DISTINCT k.rowid) FROM {PREFIX}KERNEL AS k JOIN {PREFIX}RUNTIME AS r"
        " ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24"
    )
    kernels = trace.spans.filter(pl.col("category") == "kernel")
    assert kernels["launch_id"].count() == one(db, join)
    side = trace.kernels.join(kernels.select("span_id", "dur_ns"), on="span_id")
    ours = sorted(side.select("grid_x", "grid_y", "grid_z", "block_x", "registers", "shared_bytes", "dur_ns").rows())
    columns = 'gridX, gridY, gridZ, blockX, registersPerThread, staticSharedMemory + dynamicSharedMemory, "end" - start'
    assert ours == sorted(db.execute(f"SELECT {columns} FROM {PREFIX}KERNEL").fetchall())


@pytest.mark.parametrize("path", WITH_KERNELS)
def test_kernels_have_the_names_that_a_join_finds(shared: Path, path: str) -> None:
    trace, db = open_trace(str(shared / path)), connect(shared / path)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    joined = f"{PREFIX}KERNEL JOIN StringIds ON id = demangledName"
    sql = f'SELECT value, count(*), sum("end" - start) FROM {joined} GROUP BY value'
    kernels = trace.spans.filter(pl.col("category") == "kernel").with_columns(pl.col("name").cast(pl.String))
    ours = kernels.group_by("name").agg(pl.len(), pl.col("dur_ns").sum())
    assert sorted(ours.rows()) == sorted(db.execute(sql).fetchall())


def test_a_file_of_two_gpus_keeps_them_and_their_processes_apart(shared: Path) -> None:
    trace = open_trace(str(shared / "traces/more/nsys-multigpu/mfu_2gpu_before.sqlite"))
    kernels = trace.spans.filter(pl.col("category") == "kernel").join(trace.tracks, on="track_id")
    kernels = kernels.join(trace.devices.rename({"name": "device"}), on="device_id")
    assert sorted(kernels.group_by("pid", "index").len().rows()) == [(144, 0, 1993), (145, 1, 2017)]
    assert trace.spans["category"].is_in(["operator"]).sum() == 18_656
    nccl = trace.spans.filter(pl.col("name").cast(pl.String).str.starts_with("ncclDevKernel_SendRecv"))
    assert nccl.height == 66


def test_nothing_of_the_environment_is_kept(shared: Path) -> None:
    """The tables that hold it are there; of what they hold only the name of the host is in the trace."""
    path = shared / "traces/more/nsys-multigpu/mfu_2gpu_before.sqlite"
    trace, db = open_trace(str(path)), connect(path)
    (environment,) = db.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'").fetchone()
    texts = [entry.partition("=")[2] for entry in environment.split(";") if len(entry.partition("=")[2]) > 12]
    assert len(texts) > 20
    columns = [frame[c].cast(pl.String) for frame in trace.tables.values() for c in frame.columns if _is_text(frame[c])]
    kept = repr(trace.meta) + " ".join(text for column in columns for text in column.unique().drop_nulls())
    assert not [text for text in texts if text in kept]


def _is_text(column: pl.Series) -> bool:
    return column.dtype in (pl.String, pl.Categorical)


#: Every file of nsys stats: by result the number of rows, of calls and their summed time, counted from the text.
STATS = {
    "a100-vllm-qwen2.5-7b_cuda_gpu_kern_sum.csv": {"cuda_gpu_kern_sum": (65, 39_002, 2_081_145_534)},
    "a100-vllm-qwen2.5-7b_cuda_gpu_mem_size_sum.csv": {"cuda_gpu_mem_size_sum": (4, 8_161, 15_881_619_000)},
    "mineru-default-reports-concatenated.csv": {"osrt_sum": (61, 520_709, 6_392_504_261_307)},
}
UNNAMED = "a100-vllm-handmade-kernel_summary-unresolved-ids.csv"
RANGES = "nbody_nvtx_pushpop_trace.csv"


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows below the only header of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(("Time (%)", "Total (", "Start (")))
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return list(csv.DictReader(lines[start:end]))


@pytest.mark.parametrize("name", STATS)
def test_summaries_of_nsys_stats_hold_what_their_text_counts(shared: Path, name: str) -> None:
    found = open_trace(str(shared / "nsight/nsys-csv" / name))
    assert isinstance(found, Results)
    (report, expected), rows = next(iter(STATS[name].items())), rows_of(shared / "nsight/nsys-csv" / name)
    frame = found.result(report)
    total = next(c for c in ("Total Time (ns)", "Total (MB)") if c in rows[0])
    calls = next(c for c in ("Instances", "Num Calls", "Count") if c in rows[0])
    scale = 1_000_000 if "MB" in total else 1
    summed = sum(round(float(row[total]) * scale) for row in rows)
    assert (len(rows), sum(int(row[calls]) for row in rows), summed) == expected
    ours = frame.select("name", "calls", frame.columns[2]).rows()
    theirs = [(list(row.values())[-1], int(row[calls]), round(float(row[total]) * scale)) for row in rows]
    assert sorted(ours) == sorted(theirs)
    assert (frame.height, frame["calls"].sum(), frame[frame.columns[2]].sum()) == expected


def test_ranges_of_nsys_stats_are_a_recording(shared: Path) -> None:
    path = shared / "nsight/nsys-csv" / RANGES
    trace, rows = open_trace(str(path)), rows_of(path)
    assert len(rows) == trace.spans.height == 131
    origin = trace.meta.origin_recorded_ns
    names = pl.col("name").cast(pl.String)
    ours = trace.spans.select(names, pl.col("ts_ns") + origin, "dur_ns").rows()
    assert sorted(ours) == sorted((r["Name"], int(r["Start (ns)"]), int(r["Duration (ns)"])) for r in rows)
    parents = trace.spans.select(names, "parent_id")
    of_row = {int(r["RangeId"]): r["Name"] for r in rows}
    theirs = sorted((r["Name"], of_row.get(int(r["ParentId"] or 0)) or "") for r in rows)
    above = [(name, "" if at is None else trace.spans["name"][at]) for name, at in parents.rows()]
    assert sorted(above) == theirs


def test_kernels_whose_names_are_numbers_are_refused_with_the_reason(shared: Path) -> None:
    with pytest.raises(UnknownFormat, match="StringIds") as caught:
        open_trace(str(shared / "nsight/nsys-csv" / UNNAMED))
    assert "nsys export --type sqlite" in caught.value.hint


def test_every_file_of_nsys_stats_is_listed(shared: Path) -> None:
    assert {path.name for path in (shared / "nsight/nsys-csv").iterdir()} == {*STATS, RANGES, UNNAMED}


def test_every_export_is_listed(shared: Path) -> None:
    found = {str(path.relative_to(shared)) for path in shared.glob("**/*.sqlite")}
    assert found == set(EXPORTS)
