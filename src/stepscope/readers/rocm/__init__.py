"""Profiles that AMD's tools write."""

from __future__ import annotations

from stepscope.core.patterns import regex
from stepscope.readers.formats import SQLITE, Format, Sign
from stepscope.readers.rocm import rocprof_files

FORMATS = (
    Format(
        name="rocprof",
        doc="AMD rocprofv3 (CSV folder, JSON, rocpd database), rocmProfileData (.rpd), rocprof-compute (pmc_perf.csv)",
        module="rocm.rocprof",
        signs=(
            Sign(1.0, SQLITE, (b"rocpd_",)),
            Sign(1.0, regex(rb"\s*\{"), (b'"rocprofiler-sdk-tool"',)),
            Sign(1.0, regex(rb"(?!\s*\{)"), test=rocprof_files.is_csv, superseded=0.3),
        ),
        provides=("devices", "tracks", "spans", "ops", "kernels", "transfers", "kernel_metrics", "issues"),
        companion_files=rocprof_files.family,
        is_superseded=rocprof_files.is_superseded,
        endings=(".csv", ".json", ".db", ".rpd"),
    ),
)  # fmt: skip
