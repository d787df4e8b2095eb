"""The values of a comparison: what was observed of a process, how two sides differ, what caused it.

An `Observation` is one process' recording reduced to small tables by cycle, whatever it was read from; from here on
nobody looks at the recording again. `Effects` are the differences with their certainty; a `Cause` is one explanation
with its evidence; an `Outcome` holds all that `stepscope compare` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from stepscope.core.schema import Category, Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.core.trace import Meta

__all__ = [
    "BEHIND", "CATEGORIES", "COUNTERS_SEEN", "CYCLES_SEEN", "EFFECTS", "FUNCTIONS", "OWN_PROCESS", "PARTS", "RESOURCES",
    "WORKLOAD",
    "Cause", "Effect", "Evidence", "Observation", "Outcome", "Pair", "RuledOut", "Verdict",
]  # fmt: skip

Verdict = Literal["different", "no_difference", "inconclusive"]
#: Device under which the observed process' own counters stand: its number differs from run to run.
OWN_PROCESS = "process"
#: What follows is the name of another process, behind which this one's threads waited for a core.
BEHIND = "behind "
#: Every cause there is a name for, in no order.
CATEGORIES = (
    "cpu_contention", "cpu_frequency", "gpu_frequency", "interconnect_nvlink", "interconnect_pcie", "network",
    "disk_io", "data_loading", "host_overhead", "slow_operator", "slow_kernel", "python_gc", "gil_contention",
    "memory_growth", "memory_pressure", "straggler_rank", "workload_change", "none",
)  # fmt: skip

CYCLES_SEEN = Table(
    "cycles",
    "the cycles of one process that a comparison looks at",
    (
        Column("cycle", pl.Int64(), "its number", key=True),
        Column("ts_ns", pl.Int64(), "start, from the origin", "ns"),
        Column("dur_ns", pl.Int64(), "duration", "ns"),
        Column("phase", Name, "prefill or decode in serving; null if there is one kind of cycle"),
        Column("is_complete", pl.Boolean(), "false for a first or last one that was recorded in part"),
    ),
)
FUNCTIONS = Table(
    "functions",
    "what each function took of each cycle; a function that did not run in a cycle has no row",
    (
        Column("cycle", pl.Int64(), "number of the cycle", key=True),
        Column("device", Name, "where it ran: host, gpu0, cpu1 …", key=True),
        Column("name", Name, "operator, kernel, range, runtime call", key=True),
        Column("category", Category, "what it is"),
        Column("calls", pl.Int64(), "its events in the cycle"),
        Column("total_ns", pl.Int64(), "their summed duration (children within included)", "ns"),
        Column("self_ns", pl.Int64(), "without what ran inside it; null where nesting is unknown", "ns"),
        Column("exposed_ns", pl.Int64(), "part of it not hidden by other device work; null where unknown", "ns"),
    ),
)
PARTS = Table(
    "parts",
    "where each cycle's time went: the parts of a cycle sum to its duration exactly",
    (
        Column("cycle", pl.Int64(), "number of the cycle", key=True),
        Column("part", Name, "computation, exposed communication, data loading, idle …", key=True),
        Column("total_ns", pl.Int64(), "time of the cycle that it took", "ns"),
    ),
)
RESOURCES = Table(
    "resources",
    "how each resource fared in each cycle",
    (
        Column("cycle", pl.Int64(), "number of the cycle", key=True),
        Column("device", Name, "host, cpu1, gpu7, process (the observed one), pid:123, behind NAME, a disk", key=True),
        Column("metric", Name, "metric, in the names of stepscope's counters", key=True),
        Column("name", Name, "function during which it was observed; null: the whole cycle", key=True),
        Column("unit", Name, "unit of mu, where known"),
        Column("mu", pl.Float64(), "its time-weighted mean"),
        Column("n_samples", pl.Int64(), "samples within the cycle; 0: carried over from the neighbourhood"),
    ),
)
COUNTERS_SEEN = Table(
    "counters",
    "the samples behind the resources, cut to the cycles looked at",
    (
        Column("ts_ns", pl.Int64(), "time, from the origin", "ns"),
        Column("device", Name, "as in resources; null where samples of several devices are pooled", key=True),
        Column("metric", Name, "metric", key=True),
        Column("unit", Name, "unit, where known"),
        Column("value", pl.Float64(), "sample"),
    ),
)
WORKLOAD = Table(
    "workload",
    "what was worked on: sizes and types of what the operators and kernels were given",
    (
        Column("device", Name, "where it ran", key=True),
        Column("name", Name, "operator or kernel", key=True),
        Column("shapes", pl.String(), "shapes of its inputs, or grid and block of a kernel", key=True),
        Column("types", pl.String(), "element types of its inputs; null if unknown", key=True),
        Column("calls_per_cycle", pl.Float64(), "its calls, per complete cycle"),
        Column("total_ns_per_cycle", pl.Float64(), "their summed duration, per complete cycle", "ns"),
        Column("self_ns_per_cycle", pl.Float64(), "without what ran inside, per complete cycle", "ns"),
    ),
)


@dataclass(frozen=True, slots=True)
class Observation:
    """One process in one recording, by cycle. Tables are those declared above; empty where the source has none."""

    label: str
    meta: Meta
    pid: int | None
    #: What marks the cycles (an annotation, a function, a kernel, a period) and how they were found.
    anchor: str
    source: Literal["annotation", "detected", "recorded"]
    cycles: pl.DataFrame
    functions: pl.DataFrame
    parts: pl.DataFrame
    resources: pl.DataFrame
    counters: pl.DataFrame
    workload: pl.DataFrame
    #: What was guessed, left out or is missing, in words for the reader.
    notes: tuple[str, ...] = ()
    #: Shares of Python's functions in the main thread's time, where stacks were recorded.
    functions_seen: pl.DataFrame | None = None

    @property
    def rank(self) -> int | None:
        """Rank of the process in its job."""
        return self.meta.rank


@dataclass(frozen=True, slots=True)
class Pair:
    """A process of the base (in each repeat) and its counterpart in the other run (in each repeat)."""

    label: str
    base: tuple[Observation, ...]
    other: tuple[Observation, ...]
    #: Why these two belong together: rank, device, only process, similarity.
    matched_by: str


EFFECTS = Table(
    "effects",
    "how one quantity differs between the two sides",
    (
        Column("process", pl.String(), "label of the pair of processes", key=True),
        Column("device", Name, "where", key=True),
        Column("name", Name, "function; null for resources of whole cycles", key=True),
        Column("measure", pl.String(), "calls, total_ns, self_ns, ns_per_call, exposed_ns, part_ns, mu", key=True),
        Column("metric", Name, "resource, for mu", key=True),
        Column("category", Category, "what the function is"),
        Column("unit", Name, "unit of base, other and delta"),
        Column("base", pl.Float64(), "typical value of a cycle in the base; null if absent there"),
        Column("other", pl.Float64(), "typical value of a cycle in the other; null if absent there"),
        Column("delta", pl.Float64(), "other less base; what is absent counts as none for times and calls"),
        Column("ratio", pl.Float64(), "other over base; null unless both are there"),
        Column("low", pl.Float64(), "lower end of the 95 % interval of delta"),
        Column("high", pl.Float64(), "its upper end"),
        Column("p_value", pl.Float64(), "chance of such a difference if there were none"),
        Column("q_value", pl.Float64(), "the same, corrected for all the quantities looked at"),
        Column("drift", pl.Float64(), "difference that healthy runs may show: from repeats, or the stated prior"),
        Column("n_base", pl.Int64(), "cycles of the base that have it"),
        Column("n_other", pl.Int64(), "cycles of the other that have it"),
        Column("is_different", pl.Boolean(), "both significant (q_value) and beyond drift"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of EFFECTS as a value; `relative` quantities are of the base."""

    base: float
    other: float
    delta: float
    low: float
    high: float
    p_value: float
    drift: float
    #: Smallest change that these recordings would have shown in 8 of 10 cases.
    detectable: float
    n_base: int
    n_other: int
    is_different: bool

    @property
    def ratio(self) -> float | None:
        """Other over base."""
        return self.other / self.base if self.base else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One quantity that speaks for a cause: from, to, and where it is found in the tables."""

    text: str
    device: str | None = None
    name: str | None = None
    metric: str | None = None
    unit: str | None = None
    base: float | None = None
    other: float | None = None
    #: `necessary`, `supporting`, or `consequence` (follows from the cause).
    role: str = "supporting"


@dataclass(frozen=True, slots=True)
class Cause:
    """An explanation of the difference. `explained_ns` is per cycle; confidence is 0..1."""

    category: str
    statement: str
    resource: str | None
    device: str | None
    process: str | None
    rank: int | None
    #: How far the resource itself moved: other over base, or null.
    magnitude: float | None
    explained_ns: float
    confidence: float
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Evidence, ...] = ()
    advice: str | None = None

    @property
    def certainty(self) -> str:
        """The confidence in a word: certain, likely, possible."""
        return "certain" if self.confidence >= 0.9 else "likely" if self.confidence >= 0.6 else "possible"


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A cause that was considered and why it is not the one."""

    category: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a comparison says. `step_time` is null only where nothing could be compared."""

    verdict: Verdict
    reason: str
    step_time: Effect | None
    pairs: tuple[Pair, ...]
    parts: pl.DataFrame
    effects: pl.DataFrame
    causes: tuple[Cause, ...]
    ruled_out: tuple[RuledOut, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    to_text: Callable[[Outcome], str] | None = field(default=None, repr=False, compare=False)
    to_html: Callable[[Outcome], str] | None = field(default=None, repr=False, compare=False)
    to_figure: Callable[[Outcome], Any] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.to_text is None else self.to_text(self).rstrip("\n")

    def __repr__(self) -> str:
        return f"Outcome({self.verdict!r}, {[cause.category for cause in self.causes]})"

    def plot(self) -> Any:
        """From the base's step, part by part, to the other's, as a Plotly figure; None if made by other means.

        Raises StepscopeError if no step time could be accounted for.
        """
        return None if self.to_figure is None else self.to_figure(self)

    def _repr_html_(self) -> str | None:
        return None if self.to_html is None else self.to_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001, ARG002  IPython's own signature
        printer.text(str(self))
