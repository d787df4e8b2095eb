"""XPlane profiles (`.xplane.pb`) of JAX, TensorFlow and PyTorch/XLA, with neither of them: GPU, TPU and CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.errors import CorruptInput
from stepscope.core.files import rank_in
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.common.source import IssueLog, give_back
from stepscope.readers.xplane._decode import Space, decode
from stepscope.readers.xplane._tables import build_tables

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source

_YEAR_2001_NS = 10**18
#: How names begin that only this framework's events have.
_FRAMEWORKS = {
    "JAX/XLA": (b"PjitFunction", b"jit(", b"jit_", b"$jax"),
    "PyTorch/XLA": (b"torch_xla", b"XLAGraphExecutor", b"XLATensor"),
    "TensorFlow": (b"ExecutorState::Process", b"FunctionRun", b"EagerExecute", b"EagerLocalExecute"),
}


def read(source: Source) -> Trace:
    """The whole file as tables. Memory: the unpacked file and the columns.

    Raises CorruptInput (no event can be read of a file that is damaged), StepscopeError (size limit); lesser damage is
    counted in `issues`.
    """
    issues = IssueLog()
    wire = Wire(source.chunks())
    space = decode(wire)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    rank, host = rank_in(source.path), next(iter(space.hosts), None)
    tables, origin_ns = build_tables(space, wire, issues, rank=rank, host=host)
    wire.damage.note(issues)
    issues.add("no_metadata", "warning", space.n_without_metadata, "events whose name is missing in their plane")
    issues.add("recorder_errors", "warning", space.n_errors, space.first_error)
    if not space.ts.size and issues.has("error"):
        msg = "not one of its events can be read"
        raise CorruptInput(msg, "copy or record the profile again", path=source.label, offset=source.n_bytes)
    give_back()
    if "spans" not in tables:
        issues.add("no_spans", "warning", 1, "the profile holds nothing with a start and an end")
    table = issues.table()
    if not table.is_empty():
        tables["issues"] = table
    return Trace(meta_of(space, source, rank, host, origin_ns), tables)


def meta_of(space: Space, source: Source, rank: int | None, host: str | None, origin_ns: int) -> Meta:
    """What a profile says of itself."""
    facts = {key: value for plane in space.planes for key, value in plane.facts.items()}
    start = facts.get("profile_start_time")
    since = start if isinstance(start, int) and origin_ns < _YEAR_2001_NS else 0
    unix = since + origin_ns
    version = facts.get("jax_version")
    named = ("jax_version", "jaxlib_version", "device_type_string")
    return Meta(
        path=source.label,
        format="xplane",
        n_events=space.ts.size,
        size_bytes=source.n_bytes,
        rank=rank,
        host=host,
        framework="JAX/XLA" if version else _framework(space),
        framework_version=version if isinstance(version, str) else None,
        origin_unix_ns=unix if unix > _YEAR_2001_NS else None,
        origin_recorded_ns=origin_ns,
        facts={key: str(facts[key]) for key in named if key in facts},
    )


def _framework(space: Space) -> str | None:
    """The framework that the texts of the file name; None if none does, or XLA's own devices do not say."""
    return next((name for name, marks in _FRAMEWORKS.items() if any(t.startswith(marks) for t in space.texts)), None)
