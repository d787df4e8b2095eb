"""What recording costs the job, and what the sampler takes itself.

python record_cost.py [--pairs N] [--phase SECONDS] [--write]     by default 600 pairs of twice 0.1 s: 7 minutes

A machine's speed changes by more than what is to be measured, from one second to the next where others use it too. So a
job that repeats the same work runs once, recorded, and all that records it is stopped and continued (SIGSTOP, SIGCONT)
in turn: each pair is a phase with and one without, side by side, whose order is drawn by chance. What runs inside the
job, the start-up hook, takes itself out of the job for one phase of each pair in the same way. What counts is the
median of the pairs' ratios, with the interval that holds it with a probability of at least 95 % whatever the noise is
like (order statistics of a sign test): it tells whether the machine was quiet enough. `--write` puts the table into
docs/record.md, between its marks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "record.md"
BEGIN, END = "<!-- cost of recording: begin -->", "<!-- cost of recording: end -->"
CONFIDENCE = 0.95
SAMPLER_S, N_THREADS = 20, 10
#: Of one core; of a file's minute.
SAMPLER_LIMIT, BYTES_LIMIT = 0.01, 1_000_000

#: Allocates and computes, as Python does in a training loop: the collector of garbage runs, and so does the hook. Tells
#: of each piece of work when it began and ended (CLOCK_MONOTONIC) and what CPU time it took, all in ns. With "hook" it
#: takes what listens to the collector out, phase by phase, and tells the phases.
JOB = """
import gc, json, os, random, sys, time
try:
    from stepscope import step
except ImportError:
    step = int
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
def work():
    total = 0
    step()
    for i in range(1_000):
        rows = [{"i": i + j, "half": j / 2} for j in range(20)]
        total += sum(row["i"] for row in rows)
    return total
path, pairs, phase_s, toggles = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "hook"
pieces, phases, hooks, chance = [], [], list(gc.callbacks), random.Random(1)
def run(seconds):
    until = time.monotonic_ns() + int(seconds * 1e9)
    while (now := time.monotonic_ns()) < until:
        cpu = time.process_time_ns()
        work()
        pieces.append((now, time.monotonic_ns(), time.process_time_ns() - cpu))
run(1)
open(path + ".ready", "w").write(str(os.getpid()))
if toggles:
    assert hooks, "no hook listens"
    for _ in range(pairs):
        for is_on in chance.sample([True, False], 2):
            gc.callbacks[:] = hooks if is_on else []
            began = time.monotonic_ns()
            run(phase_s)
            phases.append((began, time.monotonic_ns(), is_on))
else:
    while not os.path.exists(path + ".enough"):
        run(phase_s)
json.dump({"pieces": pieces, "phases": phases}, open(path, "w"))
"""
#: Sleeps and computes on several threads.
THREADS = """
import sys, threading, time
until = time.monotonic() + float(sys.argv[1])
def run(pause):
    while time.monotonic() < until:
        sum(range(500)); time.sleep(pause)
threads = [threading.Thread(target=run, args=(0.01,)) for _ in range(int(sys.argv[2]) - 1)]
for thread in threads: thread.start()
run(0.01)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A way to record, what of it is taken away in turn (the hook, else all other processes), the limit of its cost.

    A phase takes at least `least_s`.
    """

    name: str
    words: tuple[str, ...]
    limit: float
    hook: bool = False
    verb: str = "record"
    least_s: float = 0.0


CASES = (
    Case("counters, 20 Hz", (), 0.005),
    Case("the hook, which tells of garbage collections", (), 0.005, hook=True),
    # A watch works once a second, which each phase must hold.
    Case("a watch, and its counters", (), 0.005, verb="watch", least_s=1.0),
    Case("counters and stacks, 100 Hz", ("--stacks", "--stacks-hz", "100"), 0.03),
)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Median of the pairs' ratios less 1, and its interval. Ratios, not percent."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.2%} ({self.low:+.2%} to {self.high:+.2%})"


def stepscope() -> list[str]:
    """The command, of the Python that runs this."""
    return [sys.executable, "-m", "stepscope"]


def ratios(case: Case, pairs: int, phase_s: float, chance: random.Random) -> dict[str, list[float]]:
    """A piece of work's time with to that without, of each pair of phases: wall time, and CPU time of the job."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.json"
        job = [sys.executable, "-c", JOB, str(path), str(pairs), str(phase_s), "hook" if case.hook else "others"]
        words = case.words if case.verb == "watch" else ("--no-profiler", *case.words)
        command = [*stepscope(), case.verb, *words, "-o", f"{folder}/run", "--", *job]
        with subprocess.Popen(command) as process:
            while not (ready := path.with_name(f"{path.name}.ready")).exists() or not ready.read_text():
                assert process.poll() is None, "the job ended"
                time.sleep(0.05)
            try:
                turns = 0 if case.hook else pairs
                phases = stopped_in_turn(process.pid, int(ready.read_text()), turns, phase_s, chance)
            finally:
                path.with_name(f"{path.name}.enough").touch()
            assert process.wait() == 0, "the recording failed"
        told = json.loads(path.read_text(encoding="utf-8"))
    return of_pairs(told["pieces"], phases or told["phases"])


def switch(recorder: int, job: int, *, is_on: bool) -> None:
    """Let all processes that the recorder has started run, or stand; but for the job."""
    others = [child for child in psutil.Process(recorder).children(recursive=True) if child.pid != job]
    assert others, "nothing records beside the job"
    for other in others:
        with suppress(psutil.NoSuchProcess):  # some last a moment
            other.resume() if is_on else other.suspend()


def stopped_in_turn(
    recorder: int, job: int, pairs: int, phase_s: float, chance: random.Random
) -> list[tuple[int, int, bool]]:
    """One phase of each pair with what records, one without: start and end of each, and which it was."""
    phases = []
    try:
        for _ in range(pairs):
            for is_on in chance.sample([True, False], 2):
                switch(recorder, job, is_on=is_on)
                began = time.monotonic_ns()
                time.sleep(phase_s)
                phases.append((began, time.monotonic_ns(), is_on))
    finally:
        switch(recorder, job, is_on=True)
    return phases


def of_pairs(pieces: Sequence[Sequence[int]], phases: Sequence[tuple[int, int, bool]]) -> dict[str, list[float]]:
    """Mean time of the pieces that began in a phase with, to that of those in the phase without, of each pair.

    `pieces` are (start, end, CPU time) in ns, in order; `phases` (start, end, with), two and two a pair. A pair is left
    out if one of its phases saw no piece.
    """
    starts = [start for start, _, _ in pieces]
    found: dict[str, list[float]] = {"wall": [], "cpu": []}
    for pair in zip(phases[::2], phases[1::2], strict=True):
        means = {}
        for began, ended, is_on in pair:
            mine = pieces[bisect_left(starts, began) : bisect_left(starts, ended)]
            if mine:
                means[is_on] = [statistics.mean(p[1] - p[0] for p in mine), statistics.mean(p[2] for p in mine)]
        if len(means) == 2:
            for values, on, off in zip(found.values(), means[True], means[False], strict=True):
                values.append(on / off)
    return found


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Slowdown:
    """Median less 1 and an interval that holds the true one: the k-th smallest to the k-th largest value.

    k is the largest number for which 2 P(fewer than k heads in n throws of a coin) stays within what is left of 1.
    Raises ValueError with fewer than six values, of which no interval holds it with 95 %.
    """
    ordered, n = sorted(values), len(values)
    k, below = 0, 0.0
    while 2 * (below + comb(n, k) / 2**n) <= 1 - confidence:
        below += comb(n, k) / 2**n
        k += 1
    if k == 0:
        msg = f"{n} pairs are too few for an interval"
        raise ValueError(msg)
    return Slowdown(statistics.median(ordered) - 1, ordered[k - 1] - 1, ordered[n - k] - 1)


def verdict(found: Slowdown, limit: float) -> str:
    """Whether the limit holds, as far as the interval tells."""
    if found.high <= limit:
        return "holds"
    return "broken" if found.low > limit else "undecided: the interval is too wide"


def sampler() -> tuple[float, float]:
    """Share of a core that the sampler takes of a job of ten threads, and bytes a minute of its file."""
    with tempfile.TemporaryDirectory() as folder:
        job = [sys.executable, "-c", THREADS, str(SAMPLER_S), str(N_THREADS)]
        subprocess.run([*stepscope(), "record", "--no-profiler", "-o", f"{folder}/run", "--", *job], check=True)
        meta = json.loads(Path(folder, "run", "meta.json").read_text(encoding="utf-8"))
        seconds = (meta["end_unix_ns"] - meta["start_unix_ns"]) / 1e9
        size = Path(folder, "run", "counters.csv.gz").stat().st_size
        return meta["sampler_cpu_seconds"]["sampling"] / seconds, size / seconds * 60


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """As Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def write(text: str, path: Path = DOC) -> None:
    """Replace what stands between the marks. Raises ValueError if they are not there."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        msg = f"{path} has no marks {BEGIN} … {END}"
        raise ValueError(msg)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Measure, print, and write if asked to. 1 if a limit is broken for certain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--phase", type=float, default=0.1, help="seconds of each phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"into {DOC.relative_to(ROOT)}")
    wanted = parser.parse_args()
    chance, rows, verdicts = random.Random(wanted.seed), [], []
    for case in CASES:
        phase_s = max(wanted.phase, case.least_s)
        measured = ratios(case, round(wanted.pairs * wanted.phase / phase_s), phase_s, chance)
        wall, cpu = median_interval(measured["wall"]), median_interval(measured["cpu"])
        verdicts.append(verdict(wall, case.limit))
        rows.append([f"job slower, {case.name}", str(wall), str(cpu), f"{case.limit:.1%}", verdicts[-1]])
        print(" | ".join(rows[-1]), flush=True)
    share, bytes_per_minute = sampler()
    for name, value, limit, is_kept in (
        (f"sampler, of one core ({N_THREADS} threads)", f"{share:.2%}", f"{SAMPLER_LIMIT:.0%}", share <= SAMPLER_LIMIT),
        ("file, a minute", f"{bytes_per_minute / 1000:.0f} kB", "1 MB", bytes_per_minute <= BYTES_LIMIT),
    ):
        verdicts.append("holds" if is_kept else "broken")
        rows.append([name, value, "", limit, verdicts[-1]])
    header = ["what", "wall time, median (95 % interval)", "CPU time of the job", "limit", "verdict"]
    about = (
        f"A job on one of {os.cpu_count()} cores, {wanted.pairs} pairs of {wanted.phase:g} s with "
        f"and {wanted.phase:g} s without what records it; of a watch {CASES[2].least_s:g} s, and as many fewer."
    )
    text = f"{about}\n\n{table(rows, header)}"
    print(text)
    if wanted.write:
        write(text)
    return 1 if "broken" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
