"""What recording costs the job, and what the sampler takes itself.

python record_cost.py [--pairs N] [--seconds S] [--write]     by default 30 pairs of a job of 1 s: about 4 minutes

A job of fixed work, on one core alone, is run bare and recorded, in pairs whose order is drawn by chance. It measures
itself: wall time and CPU time of the work. The recorder and its sampler may run on every core. What counts is the
median of the pairs' ratios, with the interval that holds it with a probability of at least 95 % whatever the noise is
like (order statistics of a sign test). Run it on a machine that does nothing else: the interval tells whether it was.
`--write` puts the table into docs/record.md, between its marks.
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
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "record.md"
BEGIN, END = "<!-- cost of recording: begin -->", "<!-- cost of recording: end -->"
CONFIDENCE = 0.95
SAMPLER_S, N_THREADS = 20, 10
#: Of one core; of a file's minute.
SAMPLER_LIMIT, BYTES_LIMIT = 0.01, 1_000_000

#: Allocates and computes, as Python does in a training loop: the collector of garbage runs, and so does the hook.
JOB = """
import json, os, sys, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
def work(n):
    total = 0
    for i in range(n):
        rows = [{"i": i + j, "half": j / 2} for j in range(20)]
        total += sum(row["i"] for row in rows)
    return total
n, path = int(sys.argv[1]), sys.argv[2]
work(n // 10)
wall, cpu = time.perf_counter(), time.process_time()
work(n)
json.dump({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}, open(path, "w"))
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
    """A way to record, and by what share it may slow the job."""

    name: str
    words: tuple[str, ...]
    limit: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Median of the pairs' ratios less 1, and its interval. Ratios, not percent."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.2%} ({self.low:+.2%} to {self.high:+.2%})"


def cases() -> list[Case]:
    """Counters, and Python stacks where the command can record them."""
    text = subprocess.run([*stepscope(), "record", "--help"], capture_output=True, text=True, check=True).stdout
    found = [Case("counters, 20 Hz", (), 0.005)]
    if "--stacks-hz" in text:
        found.append(Case("counters and stacks, 100 Hz", ("--stacks", "--stacks-hz", "100"), 0.03))
    elif "--stacks" in text:
        found.append(Case("counters and stacks, 100 Hz", ("--stacks", "100"), 0.03))
    return found


def stepscope() -> list[str]:
    """The command, of the Python that runs this."""
    return [sys.executable, "-m", "stepscope"]


def run(n: int, words: Sequence[str] | None) -> dict[str, float]:
    """One run of the job, recorded with those options, or bare (None): what it measured of itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.json"
        command = [sys.executable, "-c", JOB, str(n), str(path)]
        if words is not None:
            command = [*stepscope(), "record", "--no-profiler", *words, "-o", f"{folder}/run", "--", *command]
        subprocess.run(command, check=True)
        return json.loads(path.read_text(encoding="utf-8"))


def work_for(seconds: float) -> int:
    """How much work takes about that long here."""
    n = 2_000
    while (took := run(n, None)["wall_s"]) < seconds / 4:
        n *= 2
    return int(n * seconds / took)


def ratios(n: int, case: Case, pairs: int, chance: random.Random) -> dict[str, list[float]]:
    """Recorded to bare, of each pair; the first pair warms up and does not count."""
    found: dict[str, list[float]] = {"wall_s": [], "cpu_s": []}
    for i in range(pairs + 1):
        order = [None, case.words]
        chance.shuffle(order)
        measured = {words is not None: run(n, words) for words in order}
        if i:
            for name, values in found.items():
                values.append(measured[True][name] / measured[False][name])
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
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"into {DOC.relative_to(ROOT)}")
    wanted = parser.parse_args()
    chance, n, rows, verdicts = random.Random(wanted.seed), work_for(wanted.seconds), [], []
    for case in cases():
        measured = ratios(n, case, wanted.pairs, chance)
        wall, cpu = median_interval(measured["wall_s"]), median_interval(measured["cpu_s"])
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
    about = f"{wanted.pairs} pairs of a job of {wanted.seconds:g} s on one of {os.cpu_count()} cores."
    text = f"{about}\n\n{table(rows, header)}"
    print(text)
    if wanted.write:
        write(text)
    return 1 if "broken" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
