"""What compare says of the gymnasium's recordings, and how often it is right: by job, by fault, miss by miss."""

from __future__ import annotations

import itertools
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
import polars as pl
from gym import FAULTS, MIXED, OF_ONE_RANK, STEPS, Run, costs_of, faulty, healthy, is_there, mixed

import stepscope
from stepscope.comparison import compare_runs, observe
from stepscope.comparison.matching import has_no_profile, with_profiles
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.comparison import Observation

#: A faulty run is compared with so many healthy ones, those recorded next to it.
N_BASE = 3
#: Jobs whose recordings were looked at when rules were written or mended.
SEEN: tuple[str, ...] = ("image", "transformer", "recurrent", "server", "pool", "jax", "gpu")
#: The kernel's own account of the time in which some task waited for a core, which no rule reads. A healthy run whose
#: share of that time is higher by so much than the base's was recorded under load.
_PRESSURE, _PRESSED = "host_pressure_cpu_some", 0.1
#: Runs are of one machine if it had started at the same time, but for what setting a clock moves it.
_ONE_START_NS = 60 * 10**9
#: What begins the verdict on recordings that compare refuses.
FAILED = "failed"
#: Asks for the timed steps of a recording alone.
BY_STEPS = "steps"
#: A fault counts as one that matters from this effect on a step on, and as a small one from this.
MATTERS, SMALL = 0.10, 0.03
#: The part of a mixed fault is right if it is within this share of what the fault took.
_PART = 1 / 3


@dataclass(frozen=True)
class Answer:
    """What compare said of a run against others: the change of a step, and each cause with the time it explains.

    `costs` are what the faults took of a step (ns) by the job's own clock, of those that it can tell from its work.
    """

    run: Run
    base: str
    verdict: str
    change: float
    base_ns: float
    causes: tuple[tuple[str, float], ...]
    pressure: float = 0.0
    costs: tuple[tuple[str, float], ...] = ()

    @property
    def is_loaded(self) -> bool:
        """Whether a healthy run was recorded beside a neighbour, that of `load` or others that came by themselves."""
        return self.run.fault == "load" or (self.run.is_healthy and self.pressure >= _PRESSED)

    @property
    def effect(self) -> float:
        """By how much the fault makes steps longer: the change, or what it took by the job's clock if that is less.

        A machine that is slower meanwhile is no effect of the fault, and a fault beside other waits may have none.
        """
        took = dict(self.costs)
        known = self.base_ns and all(fault in took for fault in self.run.faults)
        return min(self.change, sum(took[f] for f in self.run.faults) / self.base_ns) if known else self.change

    @property
    def is_compared(self) -> bool:
        """Whether the recordings could be compared at all."""
        return not self.verdict.startswith(FAILED)

    @property
    def names(self) -> tuple[str, ...]:
        """The causes' categories, the best first."""
        return tuple(name for name, _ in self.causes)

    def is_named(self, most: int = 1) -> bool:
        """Whether one of the first causes is right."""
        right = {cause for fault in self.run.faults for cause in FAULTS[fault].causes}
        if self.run.job == "recurrent" and OF_ONE_RANK & set(self.run.faults):
            right.add("straggler_rank")  # whose statement says why it is late
        return any(name in right for name in self.names[:most])

    @property
    def is_accused(self) -> bool:
        """Whether a healthy run is said to have a cause; under load, another one than contention."""
        return any(name != "cpu_contention" or not self.is_loaded for name in self.names)

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong with the answer; of mixed faults both must be named, in whatever order."""
        if len(self.run.faults) > 1:
            return all(self.part_of(fault) is not None for fault in self.run.faults)
        return not self.is_accused if self.run.is_healthy else self.is_named()

    def part_of(self, fault: str) -> float | None:
        """The time per step (ns) of the first cause that is right for this fault; None if there is none."""
        return next((ns for name, ns in self.causes if name in FAULTS[fault].causes), None)


@lru_cache(maxsize=32)
def observed(folder: Path, anchor: str) -> tuple[Observation, ...]:
    """What a recording shows of its processes; with "steps" as anchor, without its profile."""
    profile = anchor != BY_STEPS
    traces = stepscope.load_run(folder)
    return tuple(process for trace in traces for process in observe(trace, anchor=anchor, profile=profile))


def both(
    out: Path, run: Run, bases: tuple[Run, ...]
) -> tuple[list[tuple[Observation, ...]], list[tuple[Observation, ...]]]:
    """What is compared of the bases and of a run: by one kind of cycle, as `stepscope compare` does it."""
    first = observed(out / bases[0].name, "auto")
    anchor = first[0].anchor if first and first[0].source == "detected" else "auto"
    left = [observed(out / base.name, "auto") for base in bases]
    right = [observed(out / run.name, anchor)]
    every = [*left, *right]
    if not 0 < sum(map(has_no_profile, every)) < len(every):
        return left, right
    by_steps = [observed(out / base.name, BY_STEPS) for base in bases], [observed(out / run.name, BY_STEPS)]
    return with_profiles(left, right) or by_steps


def compared(out: Path, run: Run, bases: tuple[Run, ...]) -> Answer:
    """Compare a run with others of its job, as `stepscope compare --base … --other …` does."""
    label = " ".join(f"{base.fault[:1]}{base.number}" for base in bases)
    try:
        found = compare_runs(*both(out, run, bases))
    except StepscopeError as error:
        return Answer(run, label, f"{FAILED}: {error.message[:60]}", 0.0, 0.0, ())
    step = found.whole_run or found.step_time
    change = (step.ratio or 1.0) - 1 if step is not None else 0.0
    causes = tuple((cause.category, cause.explained_ns) for cause in found.causes)
    base_ns = step.base if step is not None else 0.0
    pressure = _pressure(found.pairs[0].other) - _pressure(found.pairs[0].base)
    costs = costs_of(out, run.name)
    took = tuple(json.loads(costs.read_text(encoding="utf-8")).items()) if costs.exists() else ()
    return Answer(run, label, found.verdict, change, base_ns, causes, pressure, took)


def _pressure(runs: tuple[Observation, ...]) -> float:
    """The share of the time in which some task of the machine waited for a core, 0..1; 0 if unknown."""
    metric = pl.col("metric").cast(pl.String)
    rows = pl.concat([run.run_resources.filter(metric == _PRESSURE).select("mu") for run in runs])
    return float(rows["mu"].mean() or 0.0) / 1e9 if rows.height else 0.0


def began(out: Path, run: Run) -> tuple[int, int]:
    """When it was recorded, and when the machine had started. Units: ns."""
    known = json.loads((out / run.name / "meta.json").read_text(encoding="utf-8"))
    return int(known["start_unix_ns"]), int(known["clocks"]["unix_ns"] - known["clocks"]["boottime_ns"])


def is_on_one(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two runs, of which `began` is known, were recorded on one machine."""
    return abs(one[1] - other[1]) < _ONE_START_NS


def questions(out: Path, jobs: Iterable[str], faults: Iterable[str]) -> list[tuple[Run, tuple[Run, ...]]]:
    """Each run and what to compare it with: faulty ones with the nearest healthy ones, healthy ones with each other.

    Healthy ones are compared one by one, and as the faulty ones are, with the nearest two or three.
    """
    every = [run for run in [*healthy(), *faulty([1, 2, 3]), *mixed()] if is_there(out, run)]
    times = {run: began(out, run) for run in every}
    wanted: list[tuple[Run, tuple[Run, ...]]] = []
    for job in jobs:
        mine = [run for run in every if run.job == job]
        calm = [run for run in mine if run.fault == "none"]
        if len(calm) >= N_BASE:
            wanted += [(run, _nearest(run, calm, times)) for run in mine if not run.is_healthy]
        pairs = [*itertools.combinations(calm, 2)]
        pairs += [(one, run) for run in mine if run.fault == "load" for one in calm]
        wanted += [(other, (one,)) for one, other in pairs if is_on_one(times[other], times[one])]
        for run in (run for run in mine if run.is_healthy):
            others = [other for other in calm if other is not run and is_on_one(times[other], times[run])]
            wanted += [(run, _nearest(run, others, times))] if len(others) > 1 else []
    chosen = set(faults)
    return [row for row in wanted if not chosen or row[0].fault in chosen]


def _nearest(run: Run, others: list[Run], times: dict[Run, tuple[int, int]]) -> tuple[Run, ...]:
    """Those that were recorded next to a run, on the same machine if there are any."""
    mine = times[run]
    order = sorted(others, key=lambda other: (not is_on_one(times[other], mine), abs(times[other][0] - mine[0])))
    return tuple(order[:N_BASE])


def answers(out: Path, jobs: Iterable[str], faults: Iterable[str], workers: int) -> list[Answer]:
    """The answers to all questions."""
    rows = questions(out, jobs, faults)
    if workers == 1:
        return [compared(out, *row) for row in rows]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(partial(_compared, out), rows, chunksize=8))


def _compared(out: Path, row: tuple[Run, tuple[Run, ...]]) -> Answer:
    return compared(out, *row)


def share(rows: list[bool]) -> str:
    """How many are true."""
    return f"{sum(rows)} of {len(rows)}" + (f" ({100 * sum(rows) / len(rows):.0f} %)" if rows else "")


def lines(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table of Markdown."""
    return [f"| {' | '.join(line)} |" for line in (heads, ("---",) * len(heads), *rows)]


def by_job(found: list[Answer]) -> list[str]:
    """A row for each job, for those that no rule has seen, and for all."""
    heads = ("job", "faults", f"≥ {MATTERS:.0%}: first", "among two", f"{SMALL:.0%} to {MATTERS:.0%}: first",
             "healthy accused", "loaded accused")  # fmt: skip
    recorded = {a.run.job for a in found}
    groups: dict[str, tuple[str, ...]] = {job: (job,) for job in STEPS if job in recorded}
    unseen = tuple(job for job in STEPS if job in recorded and job not in SEEN)
    groups |= ({"not looked at": unseen} if unseen else {}) | {"all": tuple(STEPS)}
    return lines(heads, [(name, *_shares([a for a in found if a.run.job in jobs])) for name, jobs in groups.items()])


def by_fault(found: list[Answer]) -> list[str]:
    """A row for each fault."""
    heads = ("fault", "right answer", "recorded", f"≥ {MATTERS:.0%}: first", "among two",
             f"{SMALL:.0%} to {MATTERS:.0%}: first")  # fmt: skip
    rows = []
    for fault, of_fault in FAULTS.items():
        mine = [a for a in found if a.run.fault == fault]
        if mine:
            rows.append((fault, " or ".join(of_fault.causes), *_shares(mine)[:4]))
    return lines(heads, rows)


def _shares(found: list[Answer]) -> tuple[str, ...]:
    compared_ones = [a for a in found if a.is_compared and len(a.run.faults) < 2]
    bad = [a for a in compared_ones if not a.run.is_healthy]
    n_bad = sum(len(a.run.faults) == 1 for a in found)
    large, small = [a for a in bad if a.effect >= MATTERS], [a for a in bad if SMALL <= a.effect < MATTERS]
    well = [a for a in compared_ones if a.run.is_healthy]
    kinds = [[a.is_accused for a in well if a.is_loaded == loaded] for loaded in (False, True)]
    columns = ([a.is_named() for a in large], [a.is_named(2) for a in large], [a.is_named() for a in small], *kinds)
    failed = f" ({n_bad - len(bad)} not compared)" if n_bad > len(bad) else ""
    return (f"{n_bad}{failed}", *(share(rows) for rows in columns))


def of_mixed(found: list[Answer]) -> list[str]:
    """A row for each pair of faults: what was named, and the part of each beside what it took by the job's own clock.

    Of a fault that the job cannot time, what it adds alone is taken. One that takes less than `SMALL` of the base's
    step has nothing to be found by, so pairs with such a one count apart, as do those that make no step longer by that.
    """
    alone = {(a.run.job, a.run.fault): a.change * a.base_ns for a in found if a.run.number == 2}
    rows: list[tuple[str, ...]] = []
    both: dict[bool, list[bool]] = {True: [], False: []}
    parts: dict[bool, list[bool]] = {True: [], False: []}
    for a in (a for a in found if a.run.job in MIXED and len(a.run.faults) == 2):
        timed = dict(a.costs)
        truths = [timed.get(fault, alone.get((a.run.job, fault))) for fault in a.run.faults]
        matter = all(truth is not None and truth >= SMALL * a.base_ns for truth in truths) and a.change >= SMALL
        cells = []
        for fault, truth in zip(a.run.faults, truths, strict=True):
            part = a.part_of(fault)
            said = "–" if part is None else f"{part / 1e6:.1f}"
            cells.append(f"{said} of {truth / 1e6:.1f} ms" if truth is not None else f"{said} ms")
            if truth is not None:
                parts[matter].append(part is not None and abs(part - truth) <= _PART * truth)
        both[matter].append(a.is_right)
        name = f"{a.run.job}: {a.run.fault}" + ("" if matter else " *")
        rows.append((name, f"{a.change:+.0%}", *cells, ", ".join(a.names) or a.verdict))
    heads = ("two faults", "change", "part of the first", "part of the second", "named")
    some, others = share(both[True]), share(both[False])
    named = f"Both named: {some} where each takes {SMALL:.0%} or more, {others} of others (*)."
    summary = f"{named} Parts within a third: {share(parts[True])} and {share(parts[False])}."
    return [*lines(heads, rows), "", summary] if rows else []


def misses(found: list[Answer]) -> list[str]:
    """A row for each wrong answer on a run with one fault that makes steps longer by what is scored, or with none."""
    rows = [
        (
            f"{a.run.job}: {a.run.fault}",
            str(a.run.number),
            f"{a.change:+.0%}" + (f" ({a.effect:+.0%})" if a.effect < a.change else ""),
            "nothing" if a.run.is_healthy else FAULTS[a.run.faults[0]].causes[0],
            ", ".join(a.names) or a.verdict,
        )
        for a in found
        if not a.is_right and len(a.run.faults) < 2 and (a.run.is_healthy or a.effect >= SMALL or not a.is_compared)
    ]
    return lines(("not right", "severity or number", "change (effect)", "wanted", "said"), rows)


def page(found: list[Answer]) -> str:
    """All tables."""
    tables = (by_job(found), by_fault(found), of_mixed(found), misses(found))
    return "\n\n".join("\n".join(table) for table in tables if table)
