"""Profiles that NVIDIA Nsight Systems and Nsight Compute write."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.core.patterns import regex
from stepscope.core.result_tables import NSYS
from stepscope.readers.formats import KERNEL_METRICS, SQLITE, Format, Sign, is_text
from stepscope.readers.nsight import nsys_stats_files

#: Formats that only their own tools can open, by suffix, and the suffix of what those tools make of them.
UNSUPPORTED = {".nsys-rep": ".sqlite", ".qdrep": ".sqlite", ".qdstrm": None}
_NSYS_TABLES = regex(rb"CUPTI_ACTIVITY_KIND_|EXPORT_META_DATA|META_DATA_EXPORT|TARGET_INFO_|ENUM_NSYS_")


def unsupported_suffix(path: str) -> str | None:
    """The suffix by which a path is one of them."""
    return next((suffix for suffix in UNSUPPORTED if path.lower().endswith(suffix)), None)


def _is_converted(path: str) -> bool:
    """Whether the file that can be read was already made of one that cannot, and is in the same folder."""
    made = UNSUPPORTED.get(unsupported_suffix(path) or "")
    return made is not None and Path(path).with_suffix(made).exists()


FORMATS = (
    Format(
        name="nsys",
        doc="NVIDIA Nsight Systems, exported to SQLite (`nsys export --type sqlite`)",
        module="nsight.nsys",
        signs=(
            # The first bytes of a database list its tables.
            Sign(1.0, SQLITE, pattern=_NSYS_TABLES),
            Sign(0.1, SQLITE),
        ),
        provides=("devices", "tracks", "spans", "ops", "kernels", "transfers", "counters", "steps", "issues"),
        cacheable=True,
        endings=(".sqlite", ".db"),
    ),
    Format(
        name="nsys-stats",
        doc="Nsight Systems: what `nsys stats --format csv` writes, summaries as results, cuda_gpu_trace as a trace",
        module="nsight.nsys_stats",
        signs=(
            Sign(0.5, nsys_stats_files.NUMBERED_KERNELS),
            Sign(1.0, test=nsys_stats_files.has_table, superseded=0.35),
            Sign(
                1.0,
                pattern=regex(
                    rb"^(?:Generating SQLite file |Processing \[|Running \[.*\.py|SKIPPED: .* does not contain)",
                    re.MULTILINE,
                ),
                superseded=0.35,
            ),
            Sign(0.3, pattern=nsys_stats_files.FOR_PEOPLE),
        ),
        provides=("devices", "tracks", "spans", "kernels", "transfers", "steps", "issues", *NSYS),
        companion_files=nsys_stats_files.family,
        is_superseded=nsys_stats_files.is_superseded,
        utf16=True,
        endings=(".csv",),
    ),
    Format(
        name="unsupported",
        doc="Nsight Systems reports: recognised, and refused with the command that converts them",
        module="nsight.unsupported",
        signs=(
            Sign(
                0.9,
                regex(rb"(?!SQLite|\{|\[)"),
                path=regex("(?:" + "|".join(map(re.escape, UNSUPPORTED)) + r")\Z", re.IGNORECASE),
                superseded=0.3,
            ),
        ),
        provides=(),
        is_superseded=_is_converted,
        endings=(".nsys-rep", ".qdrep"),
    ),
    Format(
        name="ncu-csv",
        doc="Nsight Compute: output of `ncu --csv`, details, chosen metrics or --page raw, among other printed lines",
        module="nsight.ncu_csv",
        signs=(
            # The texts are found in no time, the pattern takes a millisecond to say no.
            Sign(
                1.0,
                holds=(b"Process ID", b"Kernel Name"),
                pattern=regex(rb'"?ID"?,"?Process ID"?,[^\n]*Kernel Name'),
            ),
            # The header may be far below the messages of the program.
            Sign(0.6, pattern=regex(rb"^==(?:PROF|ERROR|WARNING)== ", re.MULTILINE)),
            Sign(0.05, test=is_text, path=regex(r"\.(?:csv|txt|log|out)(?:\.\w+)?$", re.IGNORECASE)),
        ),
        provides=KERNEL_METRICS,
        cacheable=True,
        utf16=True,
        endings=(".csv",),
    ),
    Format(
        name="ncu-text",
        doc="Nsight Compute: the text that `ncu` prints, details or chosen metrics",
        module="nsight.ncu_csv",
        function="read_text",
        signs=(
            # The title of a launch.
            Sign(
                0.9,
                pattern=regex(
                    rb"^ {1,4}\S.*, Context \d+, Stream \d+(?:, Device \d+)?(?:, CC [\d.]+)?\s*$", re.MULTILINE
                ),
            ),
        ),
        provides=KERNEL_METRICS,
        cacheable=True,
        utf16=True,
    ),
    Format(
        name="ncu-rep",
        doc="Nsight Compute reports: .ncu-rep (needs the extra `ncu`)",
        module="nsight.ncu_rep",
        signs=(Sign(1.0, regex(rb"NVR\0")),),
        provides=KERNEL_METRICS,
        endings=(".ncu-rep",),
    ),
)  # fmt: skip
