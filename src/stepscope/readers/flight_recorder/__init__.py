"""Dumps of PyTorch's flight recorder, and what processes of a job that stands still were doing."""

from __future__ import annotations

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.readers.common.source import DUMP_AS_JSON, family_of_dump
from stepscope.readers.formats import OBJECT, PICKLE, Format, Sign


def _dumps_and_processes(path: str) -> list[str]:
    """The dumps in the folder of a processes.json, which are read with it, and the file itself."""
    folder, name = files.split(path)
    if name != "processes.json":
        return [path]
    try:
        listed = files.files_in(folder or ".", deep=False)
    except StepscopeError:  # a folder or bucket whose files may be read and not listed
        return [path]
    dumps = [files.joined(folder, files.split(file)[1]) for file in listed if files.rank_of_dump(file) is not None]
    return [*dumps, path]


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
        provides=("collective_records", "group_status", "processes", "stacks", "counters", "issues"),
        companion_files=family_of_dump,
        endings=(".json", ".pickle", ".pkl"),
    ),
    Format(
        name="processes",
        doc="processes of a job and their stacks (processes.json), as `stepscope hang` writes them; see hangs.md",
        module="flight_recorder.processes",
        signs=(Sign(1.0, OBJECT, pattern=regex(rb'"schema"\s*:\s*"stepscope\.processes/'), within=4096),),
        provides=("processes", "stacks", "counters", "issues"),
        companion_files=_dumps_and_processes,
        endings=(".json",),
    ),
)  # fmt: skip
