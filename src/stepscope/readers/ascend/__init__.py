"""How files of Ascend's profilers are recognised, and which of a folder are read together.

torch_npu and MindSpore write a folder `*_ascend_pt` (`*_ascend_ms`) for each rank. Its ASCEND_PROFILER_OUTPUT has the
timeline as `trace_view.json` or as a database, next to it tables as CSV and JSON; `profiler_info_N.json` is above it,
or with them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from stepscope.core.patterns import regex
from stepscope.core.result_tables import ASCEND
from stepscope.readers.formats import LIST, OBJECT, PACKING, SQLITE, Format, Sign

#: The databases of a rank; others in the folder hold results.
DATABASE = regex(r"(?:^|[/\\])(?:ascend_\w+_profiler|msprof)_?[\w-]*\.db\Z")
TIMELINE_PATH = regex(r"(?:^|[/\\])trace_view\.json" + PACKING)
TIMELINE, KERNELS, RESULTS_DB = "trace_view.json", "kernel_details.csv", "analysis.db"
COMMUNICATION, MATRIX = "communication.json", "communication_matrix.json"
#: Columns by which the first line of each table is known, by its file.
HEADERS = {
    KERNELS: ("Name", "Type", "Accelerator Core", "Start Time(us)"),
    "step_trace_time.csv": ("Step", "Computing", "Communication(Not Overlapped)", "Free"),
    "op_statistic.csv": ("OP Type", "Core Type", "Count", "Total Time(us)"),
    "api_statistic.csv": ("Level", "API Name", "Time(us)", "Count"),
    "operator_memory.csv": ("Name", "Size(KB)", "Allocation Time(us)"),
    "memory_record.csv": ("Component", "Timestamp(us)", "Total Allocated(MB)"),
    "npu_module_mem.csv": ("Component", "Timestamp(us)", "Total Reserved(MB)"),
    "operator_details.csv": ("Name", "Host Self Duration(us)", "Device Self Duration With AICore(us)"),
    "l2_cache.csv": ("Stream Id", "Task Id", "Hit Rate", "Op Name"),
}
#: What is read, after databases; the first that a folder has stands for the folder.
_FILES = (TIMELINE, KERNELS, RESULTS_DB, COMMUNICATION, MATRIX, *list(HEADERS)[1:])
_INFO = regex(r"profiler_(?:info_\d+|metadata)\.json" + PACKING)


def plain_name(path: str) -> str:
    """The file's name as the profiler wrote it, before somebody packed it.

    >>> plain_name("out/trace_view.json.gz")
    'trace_view.json'
    """
    return re.sub(PACKING, "", Path(path).name)


def family(path: str) -> list[str]:
    """The files of a rank's folder that are read with this one, and itself; reading the first reads all."""
    if plain_name(path) not in _FILES and DATABASE.search(path) is None:
        return [path]
    folder = Path(path).parent
    databases = sorted(name for name in _listed(folder) if DATABASE.search(name))
    as_written = {plain_name(name): name for name in sorted(_listed(folder), reverse=True)}  # packed ones count last
    names = [as_written[name] for name in _FILES if name in as_written]
    if len(databases) > 1:  # of several ranks, or of several runs: the tables are of none of them
        return [path] if DATABASE.search(path) else [str(folder / name) for name in names]
    settings = [
        str(place / name) for place in (folder, folder.parent) for name in sorted(_listed(place)) if _INFO.match(name)
    ]
    return [*(str(folder / name) for name in (*databases, *names)), *settings] or [path]


def is_superseded(path: str) -> bool:
    """Whether another file of the folder comes first, so that reading it reads this one too."""
    return Path(family(path)[0]).name != Path(path).name


def _listed(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208  a folder may be listed and its files not searched
    except OSError:
        return frozenset()


FORMATS = (
    Format(
        name="ascend",
        doc="Ascend's profilers: a rank's folder as text or as SQLite (ascend_pytorch_profiler_*.db, msprof_*.db)",
        module="ascend.folder",
        signs=(
            # The tables of these databases are listed anywhere in the file.
            Sign(1.0, SQLITE, path=DATABASE),
            Sign(1.0, SQLITE, (b"COMPUTE_TASK_INFO", b"STRING_IDS")),
            Sign(1.0, SQLITE, path=regex(r"(?:^|[/\\])analysis\.db\Z"), superseded=0.35),
            Sign(1.0, regex(OBJECT.pattern + b"|" + LIST.pattern), (b'"ph"',), path=TIMELINE_PATH),
            Sign(1.0, OBJECT, (b'"Communication Time Info"',), superseded=0.35),
            Sign(1.0, OBJECT, (b'"Transport Type"', b'"Transit Size(MB)"'), superseded=0.35),
            *(Sign(1.0, columns=columns, superseded=0.35) for columns in HEADERS.values()),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "kernel_metrics", "allocations",
            "counters", "stacks", "arrows", "steps", "issues", *ASCEND,
        ),
        companion_files=family,
        is_superseded=is_superseded,
        endings=(".json", ".db", ".csv"),
    ),
)  # fmt: skip
