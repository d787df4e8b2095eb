"""The gymnasium: six kinds of job with faults of three severities, recorded as a user would, and what compare says.

    python lab/gym.py record OUT [--python PYTHON_WITH_TORCH] [--minutes 30] [--severities 2 1]
    python lab/gym.py score OUT [--write]

`record` makes the recordings that OUT does not have yet, in an order drawn by chance. `score` compares each faulty run
with two healthy ones of its job, and the healthy ones with each other, and prints a table. Rules have no thresholds
that are fitted to recordings, but some were written while runs of the jobs in `SEEN` were looked at: these are scored
apart from those that no rule has seen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

JOB = Path(__file__).with_name("gym_jobs.py")
PAGE = Path(__file__).parents[1] / "docs" / "fault-lab.md"
BEGIN, END = "<!-- gymnasium -->", "<!-- end of gymnasium -->"
#: Steps of a run of each job: a few seconds on an idle core.
STEPS = {"image": 110, "transformer": 110, "recurrent": 110, "server": 150, "pool": 150, "jax": 200}
#: Runs without a fault of each job: while nothing else runs, and while a neighbour computes now and then.
HEALTHY, LOADED = 5, 2
N_BASE = 2
#: Jobs whose recordings were looked at when rules were written or mended.
SEEN = ("jax",)
#: What begins the verdict on recordings that compare refuses.
FAILED = "failed"
#: A fault counts as one that matters from this change of the step on, and as a small one from this.
MATTERS, SMALL = 0.10, 0.03


@dataclass(frozen=True)
class Fault:
    """The categories that name a fault, the best first, and the jobs that can have it."""

    causes: tuple[str, ...]
    jobs: tuple[str, ...]


_ALL = tuple(STEPS)
_TORCH = ("image", "transformer", "recurrent", "server")
FAULTS = {
    "core_hogs": Fault(("cpu_contention",), _ALL),
    "gil_hog": Fault(("gil_contention",), _ALL),
    "fsync": Fault(("disk_io",), _ALL),
    "garbage": Fault(("python_gc",), ("transformer", "recurrent", "pool", "jax")),
    "memory_growth": Fault(("memory_growth",), _ALL),
    "checkpoint": Fault(("periodic_work",), ("image", "transformer", "recurrent", "pool", "jax")),
    "slow_tail": Fault(("slow_tail",), ("image", "transformer", "pool", "jax")),
    "growing": Fault(("growing_steps",), ("image", "recurrent", "pool", "jax")),
    "lock": Fault(("lock_contention",), ("image", "transformer", "server", "pool")),
    "bandwidth": Fault(("memory_bandwidth", "cpu_contention"), ("image", "transformer", "jax")),
    "logging": Fault(("host_overhead",), ("transformer", "recurrent", "jax")),
    "sleep": Fault(("host_overhead",), ("image", "jax", "pool")),
    "slow_data": Fault(("data_loading", "host_overhead"), ("image", "transformer", "recurrent", "jax")),
    "slow_decode": Fault(("data_loading",), ("image",)),
    "tiny_syncs": Fault(("host_overhead",), ("image", "transformer", "server", "jax")),
    "float64": Fault(("slow_operator",), ("image", "transformer", "recurrent")),
    "larger_batch": Fault(("workload_change",), ("image", "transformer", "recurrent", "pool")),
    "longer_input": Fault(("workload_change",), ("image", "transformer", "recurrent", "server")),
    "many_threads": Fault(("thread_oversubscription",), ("image", "transformer", "server")),
    "layout": Fault(("layout_copies",), ("image", "transformer", "server")),
    "recompile": Fault(("compilation",), ("transformer", "jax")),
    "slow_rank": Fault(("straggler_rank",), ("recurrent",)),
    "no_cache": Fault(("workload_change",), ("server",)),
    "more_requests": Fault(("queueing", "workload_change"), ("server",)),
    "large_messages": Fault(("workload_change", "host_overhead"), ("pool",)),
    "slow_optimizer": Fault(("workload_change", "host_overhead"), ("transformer",)),
}


@dataclass(frozen=True)
class Run:
    """One recording: a job, its fault ("none", or "load" while a neighbour computes), a severity or a number."""

    job: str
    fault: str
    number: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.job}.{self.fault}.{self.number}"

    @property
    def is_healthy(self) -> bool:
        """Whether the job itself has no fault."""
        return self.fault in ("none", "load")


def healthy() -> list[Run]:
    """Runs without a fault."""
    kinds = {"none": HEALTHY, "load": LOADED}
    return [Run(job, kind, i) for kind, n in kinds.items() for i in range(n) for job in STEPS]


def faulty(severities: list[int]) -> list[Run]:
    """Runs with one, the first of these severities first."""
    return [Run(job, name, hard) for hard in severities for name, fault in FAULTS.items() for job in fault.jobs]


def is_there(out: Path, run: Run) -> bool:
    """Whether it was recorded to its end."""
    meta = out / run.name / "meta.json"
    return meta.exists() and json.loads(meta.read_text(encoding="utf-8")).get("exit_code") == 0


def record(out: Path, run: Run, python: str) -> None:
    """Record a run. A neighbour of a loaded run computes for 0.3 s of each second."""
    seed = random.Random(run.name).randrange(1 << 16)
    words = [sys.executable, "-m", "stepscope", "record", "-o", str(out / run.name), "--force", "--stacks"]
    job = [python, str(JOB), run.job, "--steps", str(STEPS[run.job]), "--seed", str(seed)]
    if not run.is_healthy:
        job += ["--fault", run.fault, "--severity", str(run.number)]
    if run.job == "recurrent":
        job = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", *job]
    environment = {**os.environ, "OMP_NUM_THREADS": "1" if run.job == "recurrent" else "2"}
    neighbour = None
    if run.fault == "load":
        text = "import time\nwhile True:\n t = time.time()\n while time.time() < t + 0.3: pass\n time.sleep(0.7)"
        neighbour = subprocess.Popen([sys.executable, "-S", "-c", text])
    try:
        subprocess.run([*words, "--", *job], env=environment, cwd=out, check=False, capture_output=True, timeout=180)
    except subprocess.TimeoutExpired:
        print(f"{run.name}: stopped after 180 s", flush=True)
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()


def make(given: argparse.Namespace) -> None:
    """Record what is missing, until the time is over."""
    end = time.monotonic() + 60 * given.minutes
    first, rest = healthy(), faulty(given.severities)
    random.Random(given.seed).shuffle(rest)
    # Healthy runs come between the others, so that a machine whose speed drifts is as slow for them.
    every = max(len(rest) // len(first), 1)
    order = [*first[: 3 * len(STEPS)]]
    later = first[3 * len(STEPS) :]
    for i, run in enumerate(rest):
        order.append(run)
        if i % every == 0 and later:
            order.append(later.pop(0))
    for run in [*order, *later]:
        if time.monotonic() > end:
            break
        if (not given.only or run.job in given.only or run.fault in given.only) and not is_there(given.out, run):
            began = time.monotonic()
            record(given.out, run, given.python)
            state = "ok" if is_there(given.out, run) else "failed"
            print(f"{run.name}: {state}, {time.monotonic() - began:.0f} s", flush=True)


@dataclass(frozen=True)
class Answer:
    """What compare said of a run against others."""

    run: Run
    base: str
    verdict: str
    change: float
    causes: tuple[str, ...]

    @property
    def is_compared(self) -> bool:
        """Whether the recordings could be compared at all."""
        return not self.verdict.startswith(FAILED)

    @property
    def is_named(self) -> bool:
        """Whether the first cause is right."""
        return self.causes[:1] != () and self.causes[0] in FAULTS[self.run.fault].causes

    @property
    def is_among_two(self) -> bool:
        """Whether one of the first two is."""
        return any(cause in FAULTS[self.run.fault].causes for cause in self.causes[:2])

    @property
    def is_accused(self) -> bool:
        """Whether a healthy run is said to have a cause; under load, another one than contention."""
        return (
            any(cause != "cpu_contention" for cause in self.causes) if self.run.fault == "load" else self.causes != ()
        )


def compared(out: Path, run: Run, bases: list[Run]) -> Answer:
    """Compare a run with others of its job."""
    words = ["--base", *(str(out / base.name) for base in bases), "--other", str(out / run.name), "--format", "json"]
    command = [sys.executable, "-m", "stepscope", "compare", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    label = " ".join(str(base.number) for base in bases)
    if done.returncode not in {0, 3}:
        return Answer(run, label, f"{FAILED}: " + (done.stderr.strip().splitlines() or ["?"])[0][:60], 0.0, ())
    document = json.loads(done.stdout)
    ratio = (document.get("step_time") or {}).get("delta_ratio") or 0.0
    return Answer(run, label, document["verdict"], ratio, tuple(cause["category"] for cause in document["causes"]))


def answers(given: argparse.Namespace) -> list[Answer]:
    """Of all recordings: healthy ones with each other, one way, and faulty ones with two healthy ones."""
    out, wanted = given.out, []
    every = [run for run in [*healthy(), *faulty([1, 2, 3])] if is_there(out, run)]
    for job in given.only or STEPS:
        mine = [run for run in every if run.job == job]
        calm = [run for run in mine if run.fault == "none"]
        if len(calm) > N_BASE:
            wanted += [(run, calm[:N_BASE]) for run in mine if not run.is_healthy]
        wanted += [(other, [one]) for one, other in itertools.combinations(calm, 2)]
        wanted += [(run, [one]) for run in mine if run.fault == "load" for one in calm]
    wanted = [row for row in wanted if not given.faults or row[0].fault in given.faults]
    with ThreadPoolExecutor(given.jobs) as pool:
        return list(pool.map(lambda row: compared(out, *row), wanted))


def share(rows: list[bool]) -> str:
    """How many are true."""
    return f"{sum(rows)} of {len(rows)}" + (f" ({100 * sum(rows) / len(rows):.0f} %)" if rows else "")


def table(found: list[Answer]) -> str:
    """A row for each job, and the misses."""
    heads = (
        "job",
        "faults recorded",
        f"≥ {MATTERS:.0%}: first",
        "among two",
        f"{SMALL:.0%} to {MATTERS:.0%}: first",
        "healthy accused",
        "loaded accused",
    )
    lines = [f"| {' | '.join(line)} |" for line in (heads, ("---",) * len(heads))]
    groups = {job: (job,) for job in STEPS}
    groups |= {"not looked at": tuple(job for job in STEPS if job not in SEEN), "all": tuple(STEPS)}
    for name, jobs in groups.items():
        mine = [a for a in found if a.run.job in jobs and a.is_compared]
        bad = [a for a in mine if not a.run.is_healthy]
        n_bad = sum(a.run.job in jobs and not a.run.is_healthy for a in found)
        large, small = [a for a in bad if a.change >= MATTERS], [a for a in bad if SMALL <= a.change < MATTERS]
        kinds = [[a.is_accused for a in mine if a.run.fault == kind] for kind in ("none", "load")]
        first, two = [a.is_named for a in large], [a.is_among_two for a in large]
        shares = [share(rows) for rows in (first, two, [a.is_named for a in small], *kinds)]
        lines.append(f"| {' | '.join((name, f'{n_bad}, {len(bad)} compared', *shares))} |")
    misses = [a for a in found if (a.is_accused if a.run.is_healthy else not a.is_named)]
    lines += ["", "| not right | severity or number | change | wanted | said |", "| --- | --- | --- | --- | --- |"]
    for a in misses:
        wanted = "nothing" if a.run.is_healthy else FAULTS[a.run.fault].causes[0]
        said = ", ".join(a.causes) or a.verdict
        lines.append(f"| {a.run.job}: {a.run.fault} | {a.run.number} | {a.change:+.0%} | {wanted} | {said} |")
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the table into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Record, or score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "score"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch, JAX and stepscope")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--severities", nargs="*", type=int, default=[2, 1, 3])
    parser.add_argument("--only", nargs="*", help="only these jobs; of record also faults")
    parser.add_argument("--faults", nargs="*", help="score only these faults")
    parser.add_argument("--jobs", type=int, default=1, help="comparisons at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "record":
        make(given)
        return
    found = answers(given)
    for a in found:
        good = not a.is_accused if a.run.is_healthy else a.is_named
        print(
            f"{' ' if good else '✗'} {a.run.name:28} {a.base:4} {a.change:+7.1%} {a.verdict:14} {', '.join(a.causes)}"
        )
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}."
    text = f"{table(found)}\n\n{machine}"
    print(text)
    if given.write:
        write(text)


if __name__ == "__main__":
    main()
