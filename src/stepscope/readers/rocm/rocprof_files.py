"""How rocprofv3's CSV files are recognised, and which of them one run wrote: their names begin alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Collection

#: Columns by which the first line of each kind of file is known. The first kind that fits is taken.
_HEADERS = {
    "kernel_trace": ("Kernel_Name", "Dispatch_Id", "Start_Timestamp", "Grid_Size_X"),
    "counter_collection": ("Kernel_Name", "Counter_Name", "Counter_Value"),
    "memory_copy_trace": ("Direction", "Start_Timestamp"),
    "api_trace": ("Domain", "Function", "Start_Timestamp"),
    "agent_info": ("Node_Id", "Agent_Type", "Name"),
    "stats": ("Name", "Calls", "TotalDurationNs"),
    "pmc_perf": ("Dispatch_ID", "Kernel_Name", "GPU_ID", "Grid_Size"),
}
_FILE = regex(
    r"^(?:(?P<prefix>.*)_)?(?P<kind>kernel_trace|counter_collection|memory_copy_trace|agent_info"
    r"|(?:hip_api|hip_runtime_api|hip_compiler_api|hsa_api|hsa_core_api|marker_api|rccl_api)_trace)\.csv$"
)


def has_header(kind: str, columns: Collection[str]) -> bool:
    """Whether a file of this kind has the columns by which it is known."""
    return set(_HEADERS[kind]) <= set(columns)


def kind_of(head: bytes) -> str | None:
    """Which kind of file begins like this, by its first line; None if none does."""
    columns = {field.strip().strip('"') for field in head.split(b"\n", 1)[0].decode("utf-8", "replace").split(",")}
    return next((kind for kind, header in _HEADERS.items() if columns.issuperset(header)), None)


def is_csv(head: bytes) -> bool:
    """Whether a file that begins like this is one of them."""
    return kind_of(head) is not None


def family(path: str) -> list[str]:
    """The files of the same folder that the same run wrote, and this one; the kernels' own comes first."""
    match = _FILE.match(Path(path).name)
    if match is None:
        return [path]
    try:
        names = os.listdir(Path(path).parent)  # noqa: PTH208  a folder may be listed and its files not searched
    except OSError:
        return [path]
    by_kind = {m["kind"]: name for name in names if (m := _FILE.match(name)) and m["prefix"] == match["prefix"]}
    kinds = sorted(by_kind, key=lambda kind: (kind != "kernel_trace", kind))
    return [str(Path(path).parent / by_kind[kind]) for kind in kinds] or [path]


def is_superseded(path: str) -> bool:
    """Whether another file of the run comes first, so that reading it reads this one too."""
    return Path(family(path)[0]).name != Path(path).name
