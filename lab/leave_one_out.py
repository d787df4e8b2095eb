"""Leave-one-job-out: thresholds are chosen on all jobs of the gymnasium but one, and scored on that one.

    python lab/leave_one_out.py [OUT] [--jobs 2] [--write]

`OUT` holds recordings of the gymnasium; without it the packed ones are taken. Each of the `THRESHOLDS` is tried at 0.7
and at 1.4 times its value, with everything else as it is. For each job, each threshold gets the value with which most
answers on the other jobs are right; a healthy run that is accused costs as much as five misses, and a tie changes
nothing. Then the job is scored with the chosen values together. How rules are built is not chosen anew: they were
written while all jobs were known.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
from gym import PACKED, STEPS, unpacked, write
from gym_scores import MATTERS, SMALL, Answer, compared, lines, questions, share

from stepscope.comparison import verdict
from stepscope.comparison.diagnosis import diagnose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.comparison.diagnosis.case import Case, View
    from stepscope.comparison.diagnosis.causes import Diagnosis

DIAGNOSIS = "stepscope.comparison.diagnosis."
#: Module, name, and the value that means that nothing is asked for: what is scaled is the distance from it.
THRESHOLDS: tuple[tuple[str, str, float], ...] = (
    (DIAGNOSIS + "case", "MATERIAL", 0),
    (DIAGNOSIS + "compiled", "_HALF_ON_LOCK", 0),
    (DIAGNOSIS + "compiled", "_OF_SMALL_CALLS", 0),
    (DIAGNOSIS + "compiled", "_WAS_THERE", 0),
    (DIAGNOSIS + "compiled", "_AT_WORK", 0),
    (DIAGNOSIS + "change", "_APART", 0),
    (DIAGNOSIS + "causes", "_LEAST_SHARE", 0),
    (DIAGNOSIS + "cores", "MOSTLY_WAITS", 0),
    (DIAGNOSIS + "cpu", "STRETCHED", 1),
    (DIAGNOSIS + "cores", "HALF_CORE", 0),
    (DIAGNOSIS + "cores", "WAITING", 0),
    (DIAGNOSIS + "threads", "_SWITCH_NS", 0),
    (DIAGNOSIS + "threads", "_MUCH_HELD", 0),
    (DIAGNOSIS + "threads", "_MEET_OFTEN", 0),
    (DIAGNOSIS + "memory", "_FASTER", 0),
    (DIAGNOSIS + "operators", "_SLOWER", 1),
    (DIAGNOSIS + "operators", "_UNEXPLAINED", 0),
    (DIAGNOSIS + "over_time", "_STEADY", 1),
    (DIAGNOSIS + "over_time", "_LEAST_PART", 0),
    (DIAGNOSIS + "over_time", "_LEAST_KNOWN", 0),
    (DIAGNOSIS + "python", "SMALL_NS", 0),
    (DIAGNOSIS + "sampled", "_SIGMAS", 0),
    (DIAGNOSIS + "sampled", "_RISE_SIGMAS", 0),
    (DIAGNOSIS + "sampled", "_LIKELY_TAIL", 0),
    (DIAGNOSIS + "sampled", "_PART_OF_TAIL", 0),
    (DIAGNOSIS + "sampled", "_NEARLY_ALL", 0),
    (DIAGNOSIS + "sizes", "_REPLACED", 0),
    (DIAGNOSIS + "workload", "_RESIZED", 0),
    (DIAGNOSIS + "workload", "_MOST_USED", 0),
    ("stepscope.comparison.whole_run", "_SLOW", 0),
)
FACTORS = (0.7, 1.4)
#: Thresholds that matter before causes are judged, when runs are reduced to what rules read.
_OF_VIEWS = {DIAGNOSIS + "case.MATERIAL", DIAGNOSIS + "change._APART", "stepscope.comparison.whole_run._SLOW"}
#: What an accused healthy run costs, in misses: at 2 % accused and 90 % right an accusation is five times as rare.
_ACCUSED = 5
AS_IS = "as it is"
_NOTHING = "–"
BEGIN, END = "<!-- leave one job out -->", "<!-- end of leave one job out -->"


def settings() -> dict[str, dict[str, float]]:
    """Each threshold changed alone, by a name, and none changed."""
    names = [f"{module}.{name}" for module, name, _ in THRESHOLDS]
    return {AS_IS: {}, **{f"{name} × {factor}": {name: factor} for name in names for factor in FACTORS}}


@contextmanager
def changed(setting: Mapping[str, float]) -> Iterator[None]:
    """While the block runs, thresholds have other values, wherever they were imported."""
    before: list[tuple[object, str, float]] = []
    modules = [module for name, module in sys.modules.items() if name.startswith("stepscope.comparison")]
    for module_name, name, nothing in THRESHOLDS:
        factor = setting.get(f"{module_name}.{name}", 1.0)
        value = getattr(sys.modules[module_name], name)
        if factor == 1.0:
            continue
        # A name with an underscore is of one module; others are imported where they are needed.
        for module in [sys.modules[module_name]] if name.startswith("_") else modules:
            if getattr(module, name, None) == value:
                before.append((module, name, value))
                setattr(module, name, nothing + factor * (value - nothing))
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def answers(out: Path, wanted: Mapping[str, Mapping[str, float]], job: str) -> dict[str, list[Answer]]:
    """What compare says of each run of a job with each of the settings."""
    found: dict[str, list[Answer]] = {name: [] for name in wanted}
    for run, bases in questions(out, [job], ()):
        if len(run.faults) > 1 or (run.is_healthy and len(bases) == 1):
            continue
        asked: list[tuple[Case, Sequence[View]]] = []
        with _noted(asked):
            plain = compared(out, run, bases)
        if not run.is_healthy and plain.effect < SMALL:
            continue
        for name, setting in wanted.items():
            with changed(setting):
                if not asked or setting.keys() & _OF_VIEWS:
                    found[name].append(compared(out, run, bases))
                else:  # what was measured is the same, and takes most of the time
                    causes = diagnose(*asked[-1]).causes
                    named = tuple((cause.category, cause.explained_ns) for cause in causes)
                    found[name].append(replace(plain, causes=named))
    return found


@contextmanager
def _noted(asked: list[tuple[Case, Sequence[View]]]) -> Iterator[None]:
    """While the block runs, what is diagnosed goes to the list."""

    def noted(case: Case, views: Sequence[View]) -> Diagnosis:
        asked.append((case, views))
        return diagnose(case, views)

    verdict.diagnose = noted  # type: ignore[assignment]
    try:
        yield
    finally:
        verdict.diagnose = diagnose


def _counts(found: list[Answer]) -> tuple[int, int]:
    """Right answers on faults that matter, and healthy runs that are accused."""
    faults = [a for a in found if len(a.run.faults) == 1 and a.effect >= SMALL]
    return sum(a.is_named() for a in faults), sum(a.is_accused for a in found if a.run.is_healthy)


def value_of(found: list[Answer]) -> int:
    """What answers are worth: those that are right, less what accusations cost."""
    right, accused = _counts(found)
    return right - _ACCUSED * accused


def chosen(values: Mapping[str, int]) -> dict[str, float]:
    """The factor of each threshold that is better than 1, from what each setting is worth."""
    picked: dict[str, float] = {}
    for module, name, _ in THRESHOLDS:
        best = max(FACTORS, key=lambda factor: values[f"{module}.{name} × {factor}"])
        if values[f"{module}.{name} × {best}"] > values[AS_IS]:
            picked[f"{module}.{name}"] = best
    return picked


def _row(name: str, found: list[Answer], picked: Mapping[str, float]) -> tuple[str, ...]:
    bad = [a for a in found if len(a.run.faults) == 1]
    large, small = [a for a in bad if a.effect >= MATTERS], [a for a in bad if SMALL <= a.effect < MATTERS]
    accused = [a.is_accused for a in found if a.run.is_healthy]
    columns = ([a.is_named() for a in large], [a.is_named(2) for a in large], [a.is_named() for a in small], accused)
    values = ", ".join(f"`{key.rpartition('.')[2]}` × {factor}" for key, factor in picked.items())
    return (name, *map(share, columns), values or "–")


def page(out: Path, workers: int) -> str:
    """Both tables: each job left out, and what changes with each threshold."""
    jobs = [job for job in STEPS if questions(out, [job], ())]
    with ProcessPoolExecutor(workers) as pool:
        tried = dict(zip(jobs, pool.map(partial(answers, out, settings()), jobs), strict=True))
        worth = {job: {name: value_of(rows) for name, rows in tried[job].items()} for job in jobs}
        picked = {
            job: chosen({name: sum(worth[other][name] for other in jobs if other != job) for name in settings()})
            for job in jobs
        }
        alone = [pool.submit(answers, out, {AS_IS: picked[job]}, job) for job in jobs]
        scored = {job: done.result()[AS_IS] for job, done in zip(jobs, alone, strict=True)}
    rows = [_row(job, scored[job], picked[job]) for job in jobs]
    rows.append(_row("all", [a for job in jobs for a in scored[job]], {}))
    heads = ("left out", f"≥ {MATTERS:.0%}: first", "among two", f"{SMALL:.0%} to {MATTERS:.0%}: first",
             "healthy accused", "chosen on the others")  # fmt: skip
    every = {name: [a for job in jobs for a in tried[job][name]] for name in settings()}
    moved = [
        (f"`{name.rpartition('.')[2]}`", *(_difference(every[AS_IS], every[f"{module}.{name} × {f}"]) for f in FACTORS))
        for module, name, _ in THRESHOLDS
    ]
    some = [row for row in moved if set(row[1:]) != {_NOTHING}]
    rest = f"The other {len(moved) - len(some)} of {len(moved)} thresholds change nothing."
    return "\n".join([*lines(heads, rows), "", *lines(("threshold", *(f"× {f}" for f in FACTORS)), some), "", rest])


def _difference(before: list[Answer], after: list[Answer]) -> str:
    """How many more or fewer answers are right, and how many healthy runs more are accused."""
    (right, accused), (now_right, now_accused) = map(_counts, (before, after))
    said = f"{now_right - right:+d}" if now_right != right else _NOTHING
    return said + (f", {now_accused - accused:+d} accused" if now_accused != accused else "")


def main() -> None:
    """Try, choose, score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=PACKED)
    parser.add_argument("--jobs", type=int, default=1, help="jobs at a time")
    parser.add_argument("--write", action="store_true", help="the tables into docs/fault-lab.md")
    given = parser.parse_args()
    text = page(unpacked(given.out.resolve()), given.jobs)
    print(text)
    if given.write:
        write(text, BEGIN, END)


if __name__ == "__main__":
    main()
