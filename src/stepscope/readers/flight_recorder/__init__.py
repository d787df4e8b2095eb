"""Dumps of PyTorch's flight recorder."""

from __future__ import annotations

from stepscope.core import files
from stepscope.readers.common.source import DUMP_AS_JSON, family_of_dump
from stepscope.readers.formats import OBJECT, PICKLE, Format, Sign

FORMATS = (
    Format(
        name="flight-recorder",
        doc="dumps of PyTorch's flight recorder, pickle or JSON: all ranks of a folder together; see hangs.md",
        module="flight_recorder.reader",
        signs=(
            Sign(1.0, PICKLE, (b"pg_config", b"pg_status")),
            Sign(0.95, OBJECT, pattern=DUMP_AS_JSON),  # a profile may hold the same words
            Sign(0.5, path=files.DUMP),  # empty, or torn in its first bytes
        ),
        provides=("collective_records", "group_status", "stacks", "issues"),
        companion_files=family_of_dump,
        endings=(".json", ".pickle", ".pkl"),
    ),
)  # fmt: skip
