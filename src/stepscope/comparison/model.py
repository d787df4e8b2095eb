"""The values of a comparison: what was observed of each process, how two runs differ, and what caused it.

An `Observation` reduces one process of a recording to small tables by cycle. Everything after it reads these tables
and never the recording. `Effect` is a difference with its certainty, `Cause` an explanation with its evidence, and
`Comparison` the whole result of `stepscope compare`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import polars as pl

from stepscope.analyses.memory.growth import MEMORY_GROWTH
from stepscope.core.report import Gain
from stepscope.core.schema import Category
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.core.trace import Meta

Verdict = Literal["different", "no_difference", "inconclusive"]
#: Device of the observed process' own counters, because its process id changes from run to run.
PROCESS = "process"
#: Device of the counters of all other processes of the job that are not observed by themselves: loaders, pools.
WORKERS = "workers"
#: Device of the counters of all processes that are not the job's, and what a recorder knows of them: their share of the
#: time in which accelerators worked.
NEIGHBOURS, ON_DEVICE = "neighbours", "process_gpu_usage"
#: What marks the cycles where nothing repeats: windows of time.
WINDOWS = "windows of time"
#: Prefix of a device that is another process, which had the core while this one waited for it.
BLOCKER = "behind "
#: The names of all causes.
CATEGORIES = (
    "cpu_contention", "cpu_frequency", "gpu_frequency", "gpu_contention", "interconnect_nvlink", "interconnect_pcie",
    "network", "device_copies", "disk_io", "data_loading", "host_overhead", "slow_operator", "slow_kernel",
    "python_gc", "gil_contention", "memory_growth", "memory_pressure", "straggler_rank", "workload_change",
    "periodic_work", "slow_tail", "growing_steps", "thread_oversubscription", "lock_contention", "compilation",
    "layout_copies", "memory_bandwidth", "queueing", "none",
)  # fmt: skip
#: Operators that multiply matrices: a linear layer may be addmm, or mm and add.
MATRIX_PRODUCTS = r"^aten::(?:_?mm|addmm|_addmm_activation|bmm|baddbmm|matmul|linear|mv|addmv|dot|einsum)$"
#: Operators that bring a tensor into another order in memory, and with the copy that they make inside.
LAYOUT_CALLS = ("aten::contiguous", "aten::clone")
LAYOUT_COPIES = (*LAYOUT_CALLS, "aten::copy_")
#: The parts of a cycle. Each moment belongs to the first part that is active then, so the parts sum to the cycle.
#: `PYTHON` is the rest of the host's time, `IDLE` the rest if no host was recorded, `OTHER` the rest of results.
COMPUTATION, COMMUNICATION, MEMCPY = "computation", "exposed communication", "exposed memcpy"
LOADING, SYNC, LAUNCH, OPERATORS, PYTHON = (
    "data loading", "synchronisation", "launch and runtime calls", "operators", "python and other",
)  # fmt: skip
IDLE, OTHER = "idle", "other"

OBSERVED_CYCLES = Table(
    "cycles",
    "the cycles of one process",
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
    "the mean of each resource in each cycle",
    (
        Column("cycle", pl.Int64(), "number of the cycle", key=True),
        Column(
            "device",
            Name,
            "host, cpu1, gpu7, process (the observed one), neighbours, pid:123, behind NAME, a disk",
            key=True,
        ),
        Column("metric", Name, "metric, in the names of stepscope's counters", key=True),
        Column("name", Name, "function during which it was observed; null: the whole cycle", key=True),
        Column("unit", Name, "unit of mu, where known"),
        Column("mu", pl.Float64(), "its time-weighted mean"),
        Column("n_samples", pl.Int64(), "samples within the cycle; 0: taken from the nearest sample"),
    ),
)
OBSERVED_COUNTERS = Table(
    "counters",
    "the samples of the resources, from the first cycle to the last",
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
    "the sizes and types of the inputs of operators and kernels",
    (
        Column("device", Name, "where it ran", key=True),
        Column("name", Name, "operator or kernel", key=True),
        Column(
            "shapes",
            pl.String(),
            "its inputs' shapes or grid and block; null: unknown, or an inner call counts",
            key=True,
        ),
        Column("types", pl.String(), "element types of its inputs; null if unknown", key=True),
        Column("calls_per_cycle", pl.Float64(), "its calls, per complete cycle"),
        Column("total_ns_per_cycle", pl.Float64(), "their summed duration, per complete cycle", "ns"),
        Column("self_ns_per_cycle", pl.Float64(), "without what ran inside, per complete cycle", "ns"),
    ),
)
EFFECTS = Table(
    "effects",
    "how one quantity differs between the two runs",
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
        Column("q_value", pl.Float64(), "the same, corrected for the number of quantities"),
        Column("drift", pl.Float64(), "difference that healthy runs may show: from repeats, or from a prior"),
        Column("n_base", pl.Int64(), "cycles of the base that have it"),
        Column("n_other", pl.Int64(), "cycles of the other that have it"),
        Column("is_different", pl.Boolean(), "both significant (q_value) and larger than the drift"),
    ),
)  # fmt: skip
SETUP = Table(
    "setup",
    "the facts about one recording that do not come from measured times",
    (
        Column("kind", pl.String(), "hardware, driver, framework, recorder, job", key=True),
        Column("fact", pl.String(), "what it is: accelerator, CUDA driver, input shapes …", key=True),
        Column("value", pl.String(), "its value as text"),
    ),
)
KINDS = Table(
    "kinds",
    "what differs in kind between the two runs; a fact that one of them does not state is left out",
    (
        Column("kind", pl.String(), "hardware, driver, framework, recorder, job, program, shapes", key=True),
        Column("fact", pl.String(), "what differs: accelerator, CUDA driver, input shapes …", key=True),
        Column("base", pl.String(), "in the base"),
        Column("other", pl.String(), "in the other run"),
        Column("meaning", pl.String(), "what that means for the comparison of times"),
    ),
)

TIMED_STEPS = Table(
    "timed_steps",
    "the steps of one process that no profiler made slower, without those at the start of the run",
    (
        Column("step", pl.Int64(), "its number in the run, from 0; of several in a row, that of the first", key=True),
        Column("ts_ns", pl.Int64(), "start of the first, from the trace's origin", "ns"),
        Column("dur_ns", pl.Float64(), "duration, of each", "ns"),
        Column("n_steps", pl.Int64(), "how many steps the row stands for"),
        Column("source", Name, "what marks steps: module calls, optimizer steps, named ranges"),
        Column("inside_ns", pl.Float64(), "time inside the calls that mark them, of each; null if unknown", "ns"),
    ),
)

RUN_RESOURCES = Table(
    "run_resources",
    "resources during the steps of the whole run: the mean in each stretch of it",
    (
        Column("stretch", pl.Int64(), "its number, in order of time", key=True),
        Column("device", Name, "host, process, gpu0 …", key=True),
        Column("metric", Name, "what was measured", key=True),
        Column("unit", Name, "its unit"),
        Column("mu", pl.Float64(), "mean over the stretch"),
        Column("n_samples", pl.Int64(), "samples in it; with none, the last one before it counts"),
        Column("step_ns", pl.Float64(), "mean step of the stretch", "ns"),
    ),
)


class LockHeld(msgspec.Struct, frozen=True):
    """How long a thread held Python's lock: share of the run, and in how many looks at it.

    `is_in_pool` says that it is one of a pool, or answers a request.
    """

    share_ratio: float
    n_samples: int
    is_in_pool: bool = False


class Answers(msgspec.Struct, frozen=True):
    """What samples say of the threads of a server that answer its requests.

    `functions` has each function's share of their time, `lines` that of lines, `worked` the steps without the time in
    which they wait. `n_at_work` visits found them at work, and `n_waits` is how often each of them was found to wait,
    on average. `is_marked_there` says that the job marks its steps in these threads, and `idle_ratios` has the part of
    the time in which each of them waits.
    """

    functions: pl.DataFrame
    lines: pl.DataFrame
    worked: pl.DataFrame
    n_at_work: int
    n_waits: float
    is_marked_there: bool = False
    idle_ratios: tuple[float, ...] = ()


class Observation(msgspec.Struct, frozen=True, dict=True):
    """One process in one recording, by cycle. Tables are those declared above; empty where the source has none.

    `anchor` names what marks the cycles: an annotation, a function, a kernel or a period. `remarks` say what was
    guessed, left out or is missing. `setup` has the machine, versions and options of the recording. If stacks were
    recorded, `python_functions` has each Python function's share of the main thread's time, `python_lines` that of
    lines, and `lock_held` how long threads held Python's lock, by their names (with `#` for a number). `steps` are
    those of the whole run, if they were timed, and `run_resources` the resources meanwhile. `worked` are these steps
    without the time in which, by samples of its stack, the main thread waits and nothing works for it. `answers` is
    what samples say of threads that make the calls of a model which mark steps, in place of the main thread.
    """

    label: str
    meta: Meta
    pid: int | None
    anchor: str
    source: Literal["annotation", "detected", "recorded"]
    cycles: pl.DataFrame
    functions: pl.DataFrame
    parts: pl.DataFrame
    resources: pl.DataFrame
    counters: pl.DataFrame
    workload: pl.DataFrame
    remarks: tuple[str, ...] = ()
    python_functions: pl.DataFrame | None = None
    python_lines: pl.DataFrame | None = None
    lock_held: Mapping[str, LockHeld] | None = None
    setup: pl.DataFrame = msgspec.field(default_factory=SETUP.empty)
    steps: pl.DataFrame = msgspec.field(default_factory=TIMED_STEPS.empty)
    run_resources: pl.DataFrame = msgspec.field(default_factory=RUN_RESOURCES.empty)
    worked: pl.DataFrame = msgspec.field(default_factory=TIMED_STEPS.empty)
    answers: Answers | None = None

    @property
    def rank(self) -> int | None:
        """Rank of the process in its job."""
        return self.meta.rank

    @cached_property
    def complete_cycles(self) -> pl.DataFrame:
        """The complete cycles in order of time, or all if none is complete; `at` is the position among them."""
        complete = self.cycles.filter(pl.col("is_complete").fill_null(value=True))
        return (complete if complete.height else self.cycles).sort("ts_ns", "cycle").with_row_index("at")


class Waits(msgspec.Struct, frozen=True):
    """How a job waits for requests: about how many came, the part of the time, and how often a step comes (ns)."""

    n_requests: float
    waiting_ratio: float
    step_ns: float


class Pair(msgspec.Struct, frozen=True, dict=True):
    """A process of the base and its counterpart in the other run, each in every repeat.

    `matched_by` says why they belong together: rank, device, only process, similarity. `waits` are
    those for requests, of both runs, if the process answers some: steps that end with such a wait are left out.
    """

    label: str
    base: tuple[Observation, ...]
    other: tuple[Observation, ...]
    matched_by: str
    waits: tuple[Waits, Waits] | None = None

    @property
    def answers_requests(self) -> bool:
        """Whether the process waits for requests most of the time, in the base."""
        return self.waits is not None

    @cached_property
    def workloads(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """WORKLOAD of the base and of the other run, as means over repeats: its keys as text, calls, time (own, ns)."""
        return _mean_workload(self.base), _mean_workload(self.other)


def _mean_workload(runs: tuple[Observation, ...]) -> pl.DataFrame:
    keys = ["device", "name", "shapes", "types"]
    time = pl.coalesce("self_ns_per_cycle", "total_ns_per_cycle")
    rows = [run.workload.select(pl.col(keys).cast(pl.String), calls="calls_per_cycle", time=time) for run in runs]
    summed = pl.concat(rows).group_by(keys, maintain_order=True).agg(pl.col("calls", "time").sum())
    return summed.with_columns(pl.col("calls", "time") / max(len(runs), 1))


class Effect(msgspec.Struct, frozen=True):
    """How one quantity differs, as a value with the fields of EFFECTS. Times are in ns per cycle.

    `detectable` is the smallest change that these recordings would have shown in 8 of 10 cases. The interval (`low`,
    `high`), `p_value` and `detectable` are None with one cycle on a side, whose scatter is unknown. `is_different` is
    true only if the interval excludes zero.
    """

    base: float
    other: float
    delta: float
    low: float | None
    high: float | None
    p_value: float | None
    drift: float
    detectable: float | None
    n_base: int
    n_other: int
    is_different: bool

    @property
    def ratio(self) -> float | None:
        """Other over base."""
        return self.other / self.base if self.base else None

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and zero lies outside of it."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class Evidence(msgspec.Struct, frozen=True):
    """One quantity that supports a cause: its values in both runs (in `unit`) and its row in the tables.

    `role` is `necessary`, `supporting`, or `consequence` (follows from the cause).
    """

    text: str
    device: str | None = None
    name: str | None = None
    metric: str | None = None
    unit: str | None = None
    base: float | None = None
    other: float | None = None
    role: str = "supporting"


class Cause(msgspec.Struct, frozen=True):
    """An explanation of the difference, with its evidence.

    `explained_ns` is the time that it accounts for, per step of the whole run if that was timed, else per cycle.
    `confidence` is between 0 and 1, and `magnitude` is the resource's value in the other run over that in the base
    (None if unknown). `gain` is how long a cycle of the other run would take with the base's value, by a replay of the
    recording; None where that cannot be replayed.
    """

    category: str
    statement: str
    resource: str | None
    device: str | None
    process: str | None
    rank: int | None
    magnitude: float | None
    explained_ns: float
    confidence: float
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Evidence, ...] = ()
    advice: str | None = None
    gain: Gain | None = None

    @property
    def certainty(self) -> str:
        """The confidence as a word: certain, likely, possible."""
        return "certain" if self.confidence >= 0.9 else "likely" if self.confidence >= 0.6 else "possible"


class RuledOut(msgspec.Struct, frozen=True):
    """A cause that was considered, and the reason why it does not apply.

    With `is_judged` false it may apply: the reason says why the recordings cannot tell, or what they lack.
    """

    category: str
    reason: str
    is_judged: bool = True


class Comparison(msgspec.Struct, frozen=True, eq=False):
    """The result of comparing two runs, as `stepscope.compare` returns it. Print it, plot it, or read its fields.

    Times are in ns per cycle; a cycle is one step of the job, or what repeats in its place.

    Attributes:
        verdict: `different`, `no_difference` or `inconclusive`.
        reason: why, in a few words: `slower`, `within what healthy runs differ` …
        step_time: the duration of a cycle (ns) in both runs and the certainty of its change; None if there are no
            cycles to compare. With one cycle on a side it has no interval.
        pairs: the processes of the base and their counterparts in the other run.
        parts: one row per part of the cycle, with its time in both runs (ns); the changes add up to that of the cycle.
        effects: one row per function and measure, part of the cycle, and resource, with its change and certainty.
        causes: what explains the difference, the most important first.
        ruled_out: the causes that were considered and rejected, each with the reason.
        notes: what the reader should know about the data: cycles left out, counters that are missing …
        facts: the paths of both runs.
        arguments: the same as words of a command line.
        kinds: what differs in kind, and must be known before times are compared: hardware, versions, options of the
            recorder, ranks, program, shapes. One row per fact.
        step_verdict: the verdict on the step time alone. It is `different` only if the interval of `step_time`, or of
            `typical_step`, excludes zero. `verdict` is `different` too if a cause was found whose cost the step hides.
        memory: of memory snapshots, one row per stack with what it holds at both peaks (bytes), largest change first.
        batches: of engines that serve a model, how long batches of equal work take: a row per kind, then per kind and
            size. None if a run has no batches.
        whole_run: as `step_time`, of the steps of the whole run, which were timed besides the profile; None without
            them. It decides where it is known, since it rests on many more steps. The parts, effects and causes are
            those of the profiled steps.
        typical_step: as `step_time`, without the longest and shortest tenth of the cycles; None if there are under ten.
            Of whole runs it may be the faster half of their stretches, if nothing else proves a change.
    """

    verdict: Verdict
    reason: str
    step_time: Effect | None
    pairs: tuple[Pair, ...]
    parts: pl.DataFrame
    effects: pl.DataFrame
    causes: tuple[Cause, ...]
    ruled_out: tuple[RuledOut, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = msgspec.field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    kinds: pl.DataFrame = msgspec.field(default_factory=KINDS.empty)
    step_verdict: Verdict = "inconclusive"
    typical_step: Effect | None = None
    whole_run: Effect | None = None
    memory: pl.DataFrame = msgspec.field(default_factory=MEMORY_GROWTH.empty)
    batches: pl.DataFrame | None = None
    to_text: Callable[[Comparison], str] | None = None
    to_html: Callable[[Comparison], str] | None = None
    to_figure: Callable[[Comparison], Any] | None = None

    @property
    def proof(self) -> Effect | None:
        """The change of the step time that is proven: of the mean, else of the typical step; None if neither is.

        Where steps of the whole run are known, theirs is the mean.
        """
        effects = (self.whole_run or self.step_time, self.typical_step)
        return next((effect for effect in effects if effect is not None and effect.is_different), None)

    @property
    def added_ns(self) -> float:
        """How much longer a step takes in the other run, which causes explain: of the whole run if timed. Units: ns."""
        step = self.whole_run or self.step_time
        return 0.0 if step is None else step.delta

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.to_text is None else self.to_text(self).rstrip("\n")

    def __repr__(self) -> str:
        return f"Comparison({self.verdict!r}, {[cause.category for cause in self.causes]})"

    def plot(self) -> Any:
        """A Plotly figure that leads from the base's step to the other's, part by part.

        None if `stepscope.compare` did not make this value. Raises StepscopeError if the step has no parts to draw.
        """
        return None if self.to_figure is None else self.to_figure(self)

    def _repr_html_(self) -> str | None:
        return None if self.to_html is None else self.to_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001, ARG002  IPython's own signature
        printer.text(str(self))
