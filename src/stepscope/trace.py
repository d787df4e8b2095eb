"""The value in the middle: a Trace (one process: frozen tables and metadata) and a Run (many Traces of one job)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from stepscope.errors import MissingTable, UnknownName
from stepscope.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import polars as pl


#: How to get a table that is missing.
_HINTS = {
    "allocations": "record with profile_memory=True",
    "counters": "put counters.csv beside the trace or name it with --counters; see docs/counters.md",
    "kernels": "record with the device's activity on, as in activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    "ops": "record with ProfilerActivity.CPU; shapes need record_shapes=True",
    "stacks": "record with with_stack=True",
    "steps": "call profiler.step() after each iteration",
}


@dataclass(frozen=True, slots=True)
class Meta:
    """What the file says of itself. Every field is null where the format has no such fact."""

    path: str
    format: str
    n_events: int = 0
    size_bytes: int = 0
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    origin_unix_ns: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def extent_ns(spans: pl.DataFrame) -> tuple[int, int]:
    """First start and last end of some (not no) spans. Units: ns from the trace's origin."""
    starts = spans["ts_ns"].to_numpy()
    return int(starts.min()), int((starts + spans["dur_ns"].to_numpy()).max())


@dataclass(frozen=True, slots=True)
class Trace:
    """One process' recording: read-only tables (see `stepscope.schema`) and metadata.

    A table that the file does not provide reads as an empty frame; analyses use `require`, which names what is
    missing instead.
    """

    meta: Meta
    tables: Mapping[str, pl.DataFrame]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", MappingProxyType(dict(self.tables)))

    def table(self, name: str) -> pl.DataFrame:
        """The table of that name, empty if the file holds none. Raises UnknownName."""
        if name not in TABLES:
            raise UnknownName("table", name, TABLES)
        frame = self.tables.get(name)
        return TABLES[name].empty() if frame is None else frame

    def require(self, name: str, *, needed_by: str = "") -> pl.DataFrame:
        """The table of that name. Raises MissingTable if it has no rows, UnknownName if there is no such table."""
        frame = self.table(name)
        if frame.is_empty():
            raise MissingTable(f"{name} ({TABLES[name].doc})", needed_by=needed_by, hint=_HINTS.get(name, ""))
        return frame

    def with_tables(self, **tables: pl.DataFrame) -> Trace:
        """A copy with some tables replaced."""
        return replace(self, tables={**self.tables, **tables})

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {frame.height:,}" for name, frame in self.tables.items())
        return f"Trace({self.meta.path!r}, {self.meta.format}, {rows})"

    @property
    def rank(self) -> int | None:
        """Rank of the process in its job."""
        return self.meta.rank

    @property
    def devices(self) -> pl.DataFrame:
        """Accelerators and hosts."""
        return self.table("devices")

    @property
    def tracks(self) -> pl.DataFrame:
        """Threads, streams, lanes."""
        return self.table("tracks")

    @property
    def spans(self) -> pl.DataFrame:
        """Everything with a start and an end, sorted by track, start, longest first."""
        return self.table("spans")

    @property
    def ops(self) -> pl.DataFrame:
        """Arguments of operators."""
        return self.table("ops")

    @property
    def kernels(self) -> pl.DataFrame:
        """Launch configuration of kernels."""
        return self.table("kernels")

    @property
    def transfers(self) -> pl.DataFrame:
        """Copies and fills."""
        return self.table("transfers")

    @property
    def collectives(self) -> pl.DataFrame:
        """Communication among ranks."""
        return self.table("collectives")

    @property
    def kernel_metrics(self) -> pl.DataFrame:
        """Hardware counters of single kernels."""
        return self.table("kernel_metrics")

    @property
    def allocations(self) -> pl.DataFrame:
        """Allocates and frees."""
        return self.table("allocations")

    @property
    def reservations(self) -> pl.DataFrame:
        """Memory that the allocator took and gave back."""
        return self.table("reservations")

    @property
    def counters(self) -> pl.DataFrame:
        """Samples of resources."""
        return self.table("counters")

    @property
    def stacks(self) -> pl.DataFrame:
        """Interned call stacks."""
        return self.table("stacks")

    @property
    def steps(self) -> pl.DataFrame:
        """Iterations."""
        return self.table("steps")

    @property
    def step_costs(self) -> pl.DataFrame:
        """What the training loop's own timer measured."""
        return self.table("step_costs")

    @property
    def issues(self) -> pl.DataFrame:
        """What was dropped, guessed or repaired."""
        return self.table("issues")


@dataclass(frozen=True, slots=True)
class Run:
    """Many traces of one job, read one at a time: iterating opens each, and holds none."""

    paths: tuple[str, ...]
    open_trace: Callable[[str], Trace] = field(repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Trace]:
        return (self.open_trace(path) for path in self.paths)
