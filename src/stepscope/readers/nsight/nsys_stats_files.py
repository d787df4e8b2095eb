"""How files of `nsys stats` are recognised: the names of its reports in file names, and the headers of its tables.

Reports had other names until 2023.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import msgspec

from stepscope.core.patterns import regex

#: Names of reports until 2023, and those since.
RENAMED = {
    "gpukernsum": "cuda_gpu_kern_sum", "gpukerngbsum": "cuda_gpu_kern_gb_sum", "gpumemtimesum": "cuda_gpu_mem_time_sum",
    "gpumemsizesum": "cuda_gpu_mem_size_sum", "gpusum": "cuda_gpu_sum", "gputrace": "cuda_gpu_trace",
    "cudaapisum": "cuda_api_sum", "cudaapitrace": "cuda_api_trace", "apigpusum": "cuda_api_gpu_sum",
    "kernexecsum": "cuda_kern_exec_sum", "kernexectrace": "cuda_kern_exec_trace", "osrtsum": "osrt_sum",
    "nvtxsum": "nvtx_sum", "nvtxppsum": "nvtx_pushpop_sum", "nvtxpptrace": "nvtx_pushpop_trace",
    "nvtxsssum": "nvtx_startend_sum", "nvtxkernsum": "nvtx_kern_sum", "nvtxgpuproj": "nvtx_gpu_proj_trace",
}  # fmt: skip
_REPORTS = frozenset({
    *RENAMED, *RENAMED.values(), "cuda_api_trace", "nvtx_gpu_proj_sum", "nvtx_startend_trace", "mpi_event_sum",
    "mpi_event_trace", "openacc_sum", "openmp_sum", "vulkan_api_sum", "um_sum", "um_total_sum", "syscall_sum",
})  # fmt: skip
_FILE = (
    r"^(?P<prefix>.*?)(?P<mark>[_.-]?)(?P<report>" + "|".join(sorted(_REPORTS, key=len, reverse=True))
    + r")(?:_(?:base|mangled|nvtx[-_]name))*\.csv(?:\.(?:gz|zst|xz|bz2))?$"
)  # fmt: skip
#: What the first two columns of a table may be called.
HEADER = regex(
    rb'\n"?(?:Time ?\(%\)"?,"?Total Time|Total(?: ?\(\w+\))?"?,"?(?:Count|Operations)|Start ?\(\S+?\)"?,"?(?:Dur|End)'
    rb'|(?:Name"?,"?)?(?:Projected Start|Start ?\()|Range"?,"?(?:Style|Total)|NVTX Range"?,"?Style'
    rb'|PID"?,"?TID"?,"?DevId|API Start ?\()[^\n]*'
)
#: The same tables in columns for people, as they are printed without --format.
FOR_PEOPLE = regex(rb"^ *(?:Time ?\(%\) {2,}Total Time|Total \(\w+\) {2,}\w|Start \(\w+\) {2,}\w)", re.MULTILINE)
#: Kernels queried from the database itself, without the join that gives them names.
NUMBERED_KERNELS = regex(rb'^"?(?:short|demangled|mangled)Name"?,[^\n]*\n"?\d+"?,', re.IGNORECASE)
_LABEL = regex(r"^\s*(?P<label>.*?)\s*(?:\((?P<unit>[^()]*)\))?\s*$")
_NUMBER = regex(r"^-?[\d.,]+$")
_LONGEST_LABEL = 200


class Column(msgspec.Struct, frozen=True):
    """A column as printed: its label in small letters, and the unit in brackets after it."""

    label: str
    unit: str


def columns_of(line: bytes) -> tuple[Column, ...]:
    """The columns of a header; empty if the line is not a header: it holds a number, or is too short."""
    fields = next(csv.reader([line.decode("utf-8", "replace").strip()]), [])
    while fields and not fields[-1].strip():  # a comma at the end
        fields.pop()
    is_label = (0 < len(field.strip()) < _LONGEST_LABEL and not _NUMBER.match(field.strip()) for field in fields)
    if len(fields) < 4 or not all(is_label):
        return ()
    parts = [match.groupdict(default="") for field in fields if (match := _LABEL.match(field))]
    return tuple(Column(part["label"].lower(), part["unit"]) for part in parts)


def has_table(head: bytes) -> bool:
    """Whether the beginning of a file holds the header of such a table."""
    return any(columns_of(match.group()) for match in HEADER.finditer(b"\n" + head))


def named_by_file(name: str) -> tuple[str, str] | None:
    """Of the name of a file that `nsys stats --output` wrote: what comes before the report's name, and that name.

    >>> named_by_file("run_gpukernsum.csv"), named_by_file("notes.csv")
    (('run_', 'cuda_gpu_kern_sum'), None)
    """
    match = re.match(_FILE, name)
    if match is None or (match["prefix"] and not match["mark"]):
        return None
    return match["prefix"] + match["mark"], RENAMED.get(match["report"], match["report"])


def family(path: str) -> list[str]:
    """The files of the same folder that were written with this one, and itself, in the order of their names."""
    this = named_by_file(Path(path).name)
    if this is None:
        return [path]
    try:
        names = os.listdir(Path(path).parent)  # noqa: PTH208  a folder may be listed and its files not searched
    except OSError:
        return [path]
    members = [name for name in names if (other := named_by_file(name)) and other[0] == this[0]]
    return [str(Path(path).parent / name) for name in sorted(members)] or [path]


def is_superseded(path: str) -> bool:
    """Whether another file of the folder is read in place of this one.

    That is the first of its family, or an export to SQLite of the same recording, which holds more: nsys makes one to
    compute summaries from.
    """
    name = Path(path).name
    if Path(family(path)[0]).name != name:
        return True
    report = named_by_file(name)
    stem = report[0].rstrip("_.-") if report else name.split(".")[0]
    return bool(stem) and Path(path).with_name(f"{stem}.sqlite").exists()
