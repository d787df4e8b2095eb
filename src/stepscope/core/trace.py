"""Trace, Results and Run: the values between readers and everything else.

A Trace is the recording of one process: frozen tables and metadata. Results are tables that another program computed. A
Run is all traces or results of one job.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  stored traces are read by these types
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from stepscope.core.analysis_methods import AnalysisMethods
from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.hooks import verb
from stepscope.core.schema import TABLES
from stepscope.core.table import StoredTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

    from stepscope.core.report import Report
    from stepscope.core.table import Table

#: The topics of remedies that say how to get a missing table.
_TOPICS = {name: name for name in ("allocations", "counters", "kernel_metrics", "kernels", "sched", "stack_samples")}
_TOPICS |= {"ops": "operators", "stacks": "stacks", "steps": "steps"}
_TOPICS |= dict.fromkeys(("memory_events", "memory_segments", "memory_blocks"), "memory_events")
_TOPICS |= dict.fromkeys(("collective_records", "group_status"), "group_status")
#: Tables that describe what others are about.
_NO_SUBJECTS = ("devices", "tracks", "stacks", "issues")
_MOST_PATHS = 20
_NO_CLOCK = "a profile of counters has no timeline: record one too (nsys, or the framework's profiler)"


class Meta(msgspec.Struct, frozen=True):
    """The metadata of a file. A field is None if the format has no such fact."""

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
    #: The origin of the tables' times, on the clock of the file.
    origin_recorded_ns: int = 0
    #: Whether the file writes durations as 12.0 or 12.345 and not as 12; the first duration decides.
    decimal_times: bool = False
    facts: Mapping[str, str] = msgspec.field(default_factory=dict)


def extent_ns(spans: pl.DataFrame) -> tuple[int, int]:
    """First start and last end of spans, of which there is at least one. Units: ns from the trace's origin."""
    starts = spans["ts_ns"].to_numpy()
    return int(starts.min()), int((starts + spans["dur_ns"].to_numpy()).max())


class Trace(msgspec.Struct, frozen=True):
    """One process' recording: read-only tables (see `stepscope.core.schema`) and metadata.

    A table that the file does not provide reads as an empty frame; `require` names what is missing instead.
    """

    meta: Meta
    tables: Mapping[str, pl.DataFrame]

    def __post_init__(self) -> None:
        if not isinstance(self.tables, StoredTables):
            msgspec.structs.force_setattr(self, "tables", MappingProxyType(dict(self.tables)))

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
            what, topic = f"{name} ({TABLES[name].doc})", _TOPICS.get(name, "")
            held = [other for other, n_rows in self.heights().items() if n_rows and other not in _NO_SUBJECTS]
            hint = f"it holds {', '.join(held)}, and no timeline: stepscope report shows what they say"
            raise MissingTable(
                what,
                needed_by=needed_by,
                topic=topic,
                hint=hint if held and not topic and self.spans.is_empty() else "",
            )
        return frame

    def require_clock(self, *, needed_by: str) -> None:
        """Raises MissingTable if spans have an order but no start times."""
        if not self.has_clock:
            raise MissingTable("start times", needed_by=needed_by, hint=_NO_CLOCK)

    @property
    def has_clock(self) -> bool:
        """Whether spans have start times. A report of kernels' counters has none: it knows only their order."""
        times = self.spans["ts_ns"]
        return times.is_empty() or times.null_count() < len(times)

    @property
    def is_memory_snapshot(self) -> bool:
        """Whether this is a memory snapshot, which has no timeline."""
        return self.spans.is_empty() and not (self.memory_segments.is_empty() and self.memory_events.is_empty())

    @property
    def analyses(self) -> AnalysisMethods:
        """Every analysis as a method, as in `trace.analyses.idle(by="gap")`."""
        return AnalysisMethods(self)

    def show(self, name: str, **options: Any) -> pl.DataFrame:
        """The result of an analysis, or a table, as a frame: see `stepscope.show`."""
        frame: pl.DataFrame = verb("show")(self, name, **options)
        return frame

    def report(self) -> Report:
        """Where the time went and what to do about it: see `stepscope.report`."""
        report: Report = verb("report")(self)
        return report

    def sql(self, query: str, *, timeout_s: float | None = None) -> pl.DataFrame:
        """What a SELECT gives over the tables of this trace and the results of analyses: see `stepscope.sql`."""
        frame: pl.DataFrame = verb("sql")(self, query, timeout_s=timeout_s)
        return frame

    def with_tables(self, **tables: pl.DataFrame) -> Trace:
        """A copy with some tables replaced."""
        held = self.tables
        return replace(self, tables=held.with_made(tables) if isinstance(held, StoredTables) else {**held, **tables})

    def heights(self) -> dict[str, int]:
        """Rows of each table that the trace holds; reads none."""
        if isinstance(self.tables, StoredTables):
            return {name: self.tables.height(name) for name in self.tables}
        return {name: frame.height for name, frame in self.tables.items()}

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {n_rows:,}" for name, n_rows in self.heights().items())
        return f"Trace({self.meta.path!r}, {self.meta.format}, {rows})"

    def _repr_html_(self) -> str:
        """For a notebook: what the file is, and how many rows each table has. Reads no table, runs no script."""
        rows = [(name, f"{n_rows:,}", TABLES[name].doc) for name, n_rows in self.heights().items() if n_rows]
        return _element(self.meta.path, _about(self.meta), ("table", "rows", "a row is"), rows)

    def plot(self, table: str = "steps", **options: Any) -> Any:
        """The figure of a table as a Plotly figure: see `stepscope.plot`."""
        return verb("plot")(self, table, **options)

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
    def frames(self) -> pl.DataFrame:
        """Python calls with the recorder's ids."""
        return self.table("frames")

    @property
    def arrows(self) -> pl.DataFrame:
        """Arrows between host threads."""
        return self.table("arrows")

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
    def hlo_ops(self) -> pl.DataFrame:
        """Operations of XLA that kernels and host spans execute."""
        return self.table("hlo_ops")

    @property
    def kernel_metrics(self) -> pl.DataFrame:
        """Hardware counters of single kernels."""
        return self.table("kernel_metrics")

    @property
    def captured_launches(self) -> pl.DataFrame:
        """Launches that were recorded into a graph and ran nothing."""
        return self.table("captured_launches")

    @property
    def event_waits(self) -> pl.DataFrame:
        """Which call recorded the event that a stream or a thread waits for."""
        return self.table("event_waits")

    @property
    def sched(self) -> pl.DataFrame:
        """Threads' time on cores and their waits for cores."""
        return self.table("sched")

    @property
    def allocations(self) -> pl.DataFrame:
        """Allocates and frees."""
        return self.table("allocations")

    @property
    def reservations(self) -> pl.DataFrame:
        """Memory that the allocator reserved and released."""
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
    def step_times(self) -> pl.DataFrame:
        """How long the steps of the whole run took, profiled or not."""
        return self.table("step_times")

    @property
    def stack_samples(self) -> pl.DataFrame:
        """Samples of the threads' Python stacks, taken from outside the process."""
        return self.table("stack_samples")

    @property
    def steps(self) -> pl.DataFrame:
        """Iterations."""
        return self.table("steps")

    @property
    def step_costs(self) -> pl.DataFrame:
        """Measurements of the training loop's own timer."""
        return self.table("step_costs")

    @property
    def collective_records(self) -> pl.DataFrame:
        """Collectives and messages as the flight recorders of all ranks noted them."""
        return self.table("collective_records")

    @property
    def group_status(self) -> pl.DataFrame:
        """How far each rank came in each of its process groups."""
        return self.table("group_status")

    @property
    def processes(self) -> pl.DataFrame:
        """Processes of a job that were asked while it ran."""
        return self.table("processes")

    @property
    def memory_events(self) -> pl.DataFrame:
        """What a caching allocator did, as a memory snapshot has it."""
        return self.table("memory_events")

    @property
    def memory_segments(self) -> pl.DataFrame:
        """Ranges of memory that a caching allocator had when a memory snapshot was taken."""
        return self.table("memory_segments")

    @property
    def memory_blocks(self) -> pl.DataFrame:
        """Pieces of these ranges, in use or free."""
        return self.table("memory_blocks")

    @property
    def requests(self) -> pl.DataFrame:
        """Requests to an engine that serves a model, one by one."""
        return self.table("requests")

    @property
    def histograms(self) -> pl.DataFrame:
        """Histograms of what requests took, as scrapes of an engine's metrics show them."""
        return self.table("histograms")

    @property
    def expert_tokens(self) -> pl.DataFrame:
        """Tokens that experts of a model got, as an engine counted them."""
        return self.table("expert_tokens")

    @property
    def issues(self) -> pl.DataFrame:
        """What was dropped, guessed or repaired."""
        return self.table("issues")


class Result(msgspec.Struct, frozen=True):
    """A table that another program computed, with the schema of its columns."""

    table: Table
    frame: pl.DataFrame


class Results(Trace, frozen=True):
    """A file of results instead of a recording: computed tables, by the names under which they are shown.

    It behaves like a trace: `tables` has anything recorded as well, such as counters.
    """

    results: Mapping[str, Result] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        Trace.__post_init__(self)
        msgspec.structs.force_setattr(self, "results", MappingProxyType(dict(self.results)))

    def require(self, name: str, *, needed_by: str = "") -> pl.DataFrame:
        """The recorded table of that name. Raises MissingTable if it has no rows, UnknownName if there is none."""
        frame = self.table(name)
        if frame.is_empty():
            hint = f"{self.meta.path} holds results, not a recording: show {' or '.join(self.results)}"
            raise MissingTable(f"{name} ({TABLES[name].doc})", needed_by=needed_by, hint=hint)
        return frame

    def result(self, name: str) -> pl.DataFrame:
        """The computed table of that name. Raises UnknownName."""
        if name not in self.results:
            raise UnknownName("result", name, self.results)
        return self.results[name].frame

    def _repr_html_(self) -> str:
        """For a notebook: what the file is, its results, and any recorded tables."""
        rows = [(name, f"{result.frame.height:,}", result.table.doc) for name, result in self.results.items()]
        rows += [(name, f"{n_rows:,}", TABLES[name].doc) for name, n_rows in self.heights().items() if n_rows]
        return _element(self.meta.path, _about(self.meta), ("table", "rows", "a row is"), rows)

    def __repr__(self) -> str:
        heights = {**{name: result.frame.height for name, result in self.results.items()}, **self.heights()}
        rows = ", ".join(f"{name} {n_rows:,}" for name, n_rows in heights.items())
        return f"Results({self.meta.path!r}, {self.meta.format}, {rows})"


@runtime_checkable
class Opener(Protocol):
    """Opens the files of a run, through the cache."""

    def __call__(self, path: str) -> Trace:
        """The trace in a file."""

    def once(self, path: str) -> Trace:
        """The trace in a file, which is not put into the cache."""

    def depends(self, path: str) -> tuple[object, ...] | None:
        """Everything besides its file that a trace depends on; None if that cannot be listed."""


@dataclass(frozen=True, slots=True)
class Run:
    """The traces of one job. Iterating opens one trace after the other and keeps none.

    `named` are the files, folders and patterns, and the options, as a command line has them.
    """

    paths: tuple[str, ...]
    open_trace: Callable[[str], Trace] = field(repr=False)
    named: tuple[str, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> Trace:
        """The trace of the path at that index, opened now."""
        return self.open_trace(self.paths[place])

    def __iter__(self) -> Iterator[Trace]:
        return (self.open_trace(path) for path in self.paths)

    def _repr_html_(self) -> str:
        """For a notebook: the (first) files. Opens none of them."""
        more = len(self.paths) - _MOST_PATHS
        rows = [(path,) for path in self.paths[:_MOST_PATHS]] + [(f"{more:,} more",)] * (more > 0)
        return _element("Run", f"{len(self.paths):,} file{'s' * (len(self.paths) != 1)}", ("file",), rows)

    @property
    def analyses(self) -> AnalysisMethods:
        """Every analysis as a method, as in `run.analyses.stragglers()`; results of several traces are stacked."""
        return AnalysisMethods(self)

    def show(self, name: str, **options: Any) -> pl.DataFrame:
        """The result of an analysis, or a table, of all traces as a frame: see `stepscope.show`."""
        frame: pl.DataFrame = verb("show")(self, name, **options)
        return frame

    def report(self, **options: Any) -> Report:
        """Where the time of all traces went and what to do about it: see `stepscope.report`."""
        report: Report = verb("report")(self, **options)
        return report

    def plot(self, table: str = "steps", **options: Any) -> Any:
        """The figure of a table of all traces as a Plotly figure: see `stepscope.plot`."""
        return verb("plot")(self, table, **options)

    def sql(self, query: str, *, timeout_s: float | None = None) -> pl.DataFrame:
        """What a SELECT gives over the tables of all traces and the results of analyses: see `stepscope.sql`."""
        frame: pl.DataFrame = verb("sql")(self, query, timeout_s=timeout_s)
        return frame


def _about(meta: Meta) -> str:
    """The metadata of a file in one line."""
    framework = " ".join(fact for fact in (meta.framework, meta.framework_version) if fact)
    rank = "" if meta.rank is None else f"rank {meta.rank}" + (f" of {meta.world_size:,}" if meta.world_size else "")
    facts = (framework, meta.format, rank, meta.host or "", f"{meta.n_events:,} events" if meta.n_events else "")
    return " · ".join(fact for fact in facts if fact)


def _element(title: str, about: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A small table with a heading, as HTML in which all text is escaped."""
    from html import escape

    head = "".join(f"<th>{escape(word)}</th>" for word in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    what = f"<b>{escape(title)}</b><br>{escape(about)}"
    return f"<div>{what}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
