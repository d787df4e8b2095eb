"""How well causes are named: a table of labelled cases, and of healthy runs set against each other and themselves.

    python lab/diagnosis.py CASE_DIR… [--across]

A case is a folder with runs normal… and abnormal…, the latter with the fault; folders of cases are searched. What was
injected is read from the `expected_category` of a labels.json in it, else from the folder's name (`NAMED`). Healthy
runs are compared with each other, and each with itself, cut in halves and into odd and even cycles: no cause may be
found there. With `--across` only healthy runs are compared: all ordered pairs of runs with equally many processes, of
whatever case, and each run with its parts. The machine's speed may have changed between cases, so a difference is no
error there, but a named cause is.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

import stepscope
from stepscope.comparison import compare_runs, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.comparison import Comparison, Observation

    Processes = tuple[Observation, ...]

#: What was injected into the cases that LatencyPrism's authors published, by the folder's name.
NAMED = {
    "cpu_compute_squeeze_out": "cpu_contention",
    "cpu_frequency_reduction": "cpu_frequency",
    "gpu_instability": "gpu_frequency",
    "gpu_memory_squeeze_out_PCIe": "interconnect_pcie",
}
NONE = "none"
_RECORDING = re.compile(r"(trace\.json|perf_data\.csv)(\.gz|\.zst)?$")


@dataclass(frozen=True, slots=True)
class Trial:
    """Two sides to compare, each of one run or of several repeats of it, and the right answers."""

    label: str
    base: tuple[Processes, ...]
    other: tuple[Processes, ...]
    accepted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What was said of a trial."""

    trial: Trial
    outcome: Comparison
    wall_s: float

    @property
    def first(self) -> str:
        """Category of the first cause, or none."""
        causes = self.outcome.causes
        return causes[0].category if causes else NONE

    @property
    def is_right(self) -> bool:
        """Whether that is an accepted answer, and nothing is called different where nothing is."""
        if self.first not in self.trial.accepted:
            return False
        return self.trial.accepted != (NONE,) or self.outcome.verdict == "no_difference"


def processes(run: Path) -> Processes:
    """The processes of a run: of the one recording in the folder, or of those in folders of its, one for each rank."""
    files = sorted(p for p in run.rglob("*") if _RECORDING.search(p.name) and "counters" not in p.name)
    return tuple(process for file in files for process in observe(stepscope.load(file)))


def cases(folder: Path) -> list[Path]:
    """Folders with runs normal… and abnormal… in them, at or below this one."""
    found = {p.parent for p in folder.rglob("abnormal*") if p.is_dir()}
    return sorted(case for case in found if any(case.glob("normal*")))


def accepted(case: Path) -> tuple[str, ...]:
    """The right answers. Raises KeyError if neither a labels.json nor the folder's name tells."""
    labels = case / "labels.json"
    if labels.exists():
        told = json.loads(labels.read_text(encoding="utf-8"))
        return tuple(dict.fromkeys([told["expected_category"], *told.get("accepted_categories", [])]))
    return (NAMED[case.name],)


def trials_of(case: Path) -> Iterator[Trial]:
    """The case with all its healthy runs and with each; healthy runs with each other; each split in two."""
    answers, label = accepted(case), case.name
    normal = [processes(run) for run in sorted(case.glob("normal*"))]
    abnormal = [processes(run) for run in sorted(case.glob("abnormal*"))]
    yield Trial(label, tuple(normal), tuple(abnormal), answers)
    if len(normal) > 1:
        for i, run in enumerate(normal):
            yield Trial(f"{label}, base {i}", (run,), tuple(abnormal), answers)
    healthy = [*normal, *(abnormal if answers == (NONE,) else [])]
    for i, run in enumerate(healthy):
        for k in range(i + 1, len(healthy)):
            yield Trial(f"{label}, healthy {i} and {k}", (run,), (healthy[k],), (NONE,))
            yield Trial(f"{label}, healthy {k} and {i}", (healthy[k],), (run,), (NONE,))
        for how, (one, two) in splits(run).items():
            yield Trial(f"{label}, healthy {i} {how}", (one,), (two,), (NONE,))


def across(folders: list[Path]) -> Iterator[Trial]:
    """Healthy runs of all cases with each other and with their own parts."""
    runs = [
        (f"{case.name}/{run.name}", processes(run))
        for case in (case for folder in folders for case in cases(folder))
        for run in sorted([*case.glob("normal*"), *(case.glob("abnormal*") if accepted(case) == (NONE,) else [])])
    ]
    for name, run in runs:
        for other_name, other in runs:
            if other is not run and len(other) == len(run):
                yield Trial(f"{name}, {other_name}", (run,), (other,), (NONE,))
        for how, (one, two) in splits(run).items():
            yield Trial(f"{name} {how}", (one,), (two,), (NONE,))


def splits(run: Processes) -> dict[str, tuple[Processes, Processes]]:
    """A run as two: its first and second half, its odd and even cycles, and either the other way round."""
    halves = _split(run, lambda at, n: at < n // 2)
    turns = _split(run, lambda at, _: at % 2 == 0)
    return {"halves": halves, "halves back": halves[::-1], "odd even": turns, "even odd": turns[::-1]}


def _split(run: Processes, is_first: Callable[[int, int], bool]) -> tuple[Processes, Processes]:
    sides: tuple[list[Observation], list[Observation]] = ([], [])
    for process in run:
        cycles = process.complete_cycles
        chosen = [is_first(at, cycles.height) for at in range(cycles.height)]
        for side, keep in zip(sides, (pl.Series(chosen), ~pl.Series(chosen)), strict=True):
            side.append(only(process, cycles.filter(keep)["cycle"]))
    return tuple(sides[0]), tuple(sides[1])


def only(process: Observation, cycles: pl.Series) -> Observation:
    """The process with these cycles only."""

    def cut(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("cycle").is_in(cycles.implode()))

    return replace(
        process,
        cycles=cut(process.cycles),
        functions=cut(process.functions),
        parts=cut(process.parts),
        resources=cut(process.resources),
    )


def tried(trial: Trial) -> Found:
    """What is said of a trial."""
    start = time.perf_counter()
    outcome = compare_runs(trial.base, trial.other)
    return Found(trial, outcome, time.perf_counter() - start)


def main() -> int:
    """Print a row per trial; 1 if any is wrong."""
    parser = argparse.ArgumentParser(description="How well causes are named.")
    parser.add_argument("folders", nargs="+", type=Path, help="cases, or folders of cases")
    parser.add_argument("--wrong", action="store_true", help="print only what is wrong")
    parser.add_argument("--across", action="store_true", help="compare healthy runs only, also across cases")
    options = parser.parse_args()
    if options.across:
        all_tried = [tried(trial) for trial in across(options.folders)]
        accused = [found for found in all_tried if found.first != NONE]
        for found in accused:
            print(f"✗ {found.trial.label}: {found.first}")
        print(f"{len(accused)} of {len(all_tried)} healthy pairs accused")
        return 1 if accused else 0
    n_wrong = n = 0
    print(f"{'':2}{'case':58}{'expected':20}{'first cause':20}{'conf.':>6}  {'verdict':15}{'s':>5}")
    for case in (case for folder in options.folders for case in cases(folder)):
        for trial in trials_of(case):
            found = tried(trial)
            n, n_wrong = n + 1, n_wrong + (not found.is_right)
            if found.is_right and options.wrong:
                continue
            causes = found.outcome.causes
            sure = f"{causes[0].confidence:.2f}" if causes else ""
            mark = " " if found.is_right else "✗"
            print(f"{mark:2}{trial.label[:57]:58}{trial.accepted[0]:20}{found.first:20}{sure:>6}  "
                  f"{found.outcome.verdict:15}{found.wall_s:5.1f}", flush=True)  # fmt: skip
    print(f"{n - n_wrong} of {n} right")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
