"""Profiles in the Chrome trace format: PyTorch, JAX and other tools that write it."""

from __future__ import annotations

from stepscope.core import files
from stepscope.core.patterns import regex
from stepscope.readers.formats import LIST, OBJECT, Format, Sign

_LIST_OF_OBJECTS = regex(LIST.pattern + rb"\s*\{")
_ASCEND_PART = regex(r"(?P<what>task_time|hccl|step_trace)_(?P<of>\d+_\d+)_(?P<iteration>\d+)(?P<suffix>\.json.*)")


def _is_in_another(path: str) -> bool:
    """Whether another file of Ascend's profiler has all that this one has, of an iteration (msprof) or of all steps."""
    folder, name = files.split(path)
    part = _ASCEND_PART.fullmatch(name)
    if part is None:
        return False
    names = [f"msprof_{part['of']}_{part['iteration']}"]
    if part["what"] == "step_trace":
        names = [f"step_trace_{part['of']}_{i}" for i in range(min(int(part["iteration"]), 100))]
    return any(files.exists(files.joined(folder, name + part["suffix"])) for name in names)


FORMATS = (
    Format(
        name="kineto",
        doc="PyTorch profiler (Kineto) and other Chrome traces: .json, also gzip, zstd, xz, bz2 or zip",
        module="chrome.kineto",
        signs=(
            # Other recorders write such objects too, and their readers are surer.
            Sign(0.98, OBJECT, (b'"traceEvents"',), superseded=0.3),
            Sign(0.4, OBJECT, pattern=regex(rb'"schemaVersion"|"deviceProperties"')),
            Sign(0.9, _LIST_OF_OBJECTS, (b'"ph"',), superseded=0.3),
            Sign(0.1, regex(OBJECT.pattern + b"|" + LIST.pattern)),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "kernel_metrics", "event_waits",
            "allocations", "counters", "stacks", "steps", "issues",
        ),
        is_superseded=_is_in_another,
        cacheable=True,
        endings=(".json",),
    ),
)  # fmt: skip
