"""The gymnasium: six kinds of job with faults of three severities, recorded as a user would, and what compare says.

    python lab/gym.py plan OUT
    python lab/gym.py record OUT [--python PYTHON_WITH_TORCH] [--minutes 30] [--severities 2 1]
    python lab/gym.py score [OUT] [--write]

`record` makes the recordings that OUT does not have yet, so that the first so many have all jobs and faults alike. It
can be stopped and goes on where it was. `plan` says what is missing and how long that takes on this machine.
`score` (see `gym_scores.py`) compares each faulty run with two healthy ones of its job, and the healthy ones with each
other, and prints tables; without OUT it takes the recordings that are packed beside this file (`gym_pack.py`).
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PACKED = Path(__file__).with_name("recordings")
JOB = Path(__file__).with_name("gym_jobs.py")
PAGE = Path(__file__).parents[1] / "docs" / "fault-lab.md"
BEGIN, END = "<!-- gymnasium -->", "<!-- end of gymnasium -->"
#: Steps of a run of each job: a few seconds on an idle core.
STEPS = {"image": 110, "transformer": 200, "recurrent": 110, "server": 150, "pool": 150, "jax": 200,
         "gpu": 160, "graphs": 400}  # fmt: skip
#: They are recorded only where a GPU is: with `--only`.
ON_GPU = ("gpu", "graphs")
#: How long a recording takes, from start to end, on an idle machine of two cores: guesses until there are some.
USUAL_S = {"image": 25.0, "transformer": 20.0, "recurrent": 30.0, "server": 15.0, "pool": 12.0, "jax": 20.0,
           "gpu": 16.0, "graphs": 12.0}  # fmt: skip
#: Steps that are profiled: fewer of the job whose steps have most operators, so that recordings stay small.
PROFILED = {"recurrent": "5:11"}
#: Runs without a fault of each job: while nothing else runs, and while a neighbour computes now and then.
HEALTHY, LOADED = 20, 2
#: Starts a command as two ranks, without the agent of torchrun, which takes as long to start as they.
_TWO_RANKS = """
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29517
RANK=1 LOCAL_RANK=1 "$@" &
RANK=0 LOCAL_RANK=0 "$@" && wait $!
"""
#: So many calm ones of each job are recorded before runs with faults.
N_FIRST = 3


@dataclass(frozen=True)
class Fault:
    """The categories that name a fault, the best first, and the jobs that can have it."""

    causes: tuple[str, ...]
    jobs: tuple[str, ...]


_ALL = tuple(STEPS)
_HOST = tuple(job for job in STEPS if job not in ON_GPU)
_TORCH = ("image", "transformer", "recurrent", "server")
FAULTS = {
    "core_hogs": Fault(("cpu_contention",), _HOST),
    "gil_hog": Fault(("gil_contention",), _ALL),
    "fsync": Fault(("disk_io",), _ALL),
    "garbage": Fault(("python_gc",), ("transformer", "recurrent", "pool", "jax", "gpu")),
    "memory_growth": Fault(("memory_growth",), _ALL),
    "checkpoint": Fault(("periodic_work",), ("image", "transformer", "recurrent", "pool", "jax", "gpu")),
    "slow_tail": Fault(("slow_tail",), ("image", "transformer", "pool", "jax", "gpu", "graphs")),
    "growing": Fault(("growing_steps",), ("image", "recurrent", "pool", "jax", "gpu")),
    "lock": Fault(("lock_contention",), ("image", "transformer", "server", "pool", "gpu", "graphs")),
    "bandwidth": Fault(("memory_bandwidth", "cpu_contention"), ("image", "transformer", "jax")),
    "logging": Fault(("host_overhead",), ("transformer", "recurrent", "jax", "gpu")),
    "sleep": Fault(("host_overhead",), ("image", "jax", "pool", "gpu", "graphs")),
    "slow_data": Fault(("data_loading", "host_overhead"), ("image", "transformer", "recurrent", "jax", "gpu")),
    "slow_decode": Fault(("data_loading",), ("image", "gpu")),
    "tiny_syncs": Fault(("host_overhead",), ("image", "transformer", "server", "jax", "gpu", "graphs")),
    "float64": Fault(("slow_operator",), ("image", "transformer", "recurrent")),
    "larger_batch": Fault(("workload_change",), ("image", "transformer", "recurrent", "pool", "gpu", "graphs")),
    "longer_input": Fault(("workload_change",), ("image", "transformer", "recurrent", "server", "gpu", "graphs")),
    "many_threads": Fault(("thread_oversubscription",), ("image", "transformer", "server")),
    "layout": Fault(("layout_copies",), ("image", "transformer", "server", "gpu", "graphs")),
    "recompile": Fault(("compilation",), ("transformer", "jax", "gpu")),
    "slow_rank": Fault(("straggler_rank",), ("recurrent",)),
    "no_cache": Fault(("workload_change",), ("server",)),
    "more_requests": Fault(("queueing", "workload_change"), ("server",)),
    "large_messages": Fault(("workload_change", "host_overhead"), ("pool",)),
    "float32": Fault(("slow_operator", "slow_kernel"), ON_GPU),
    "gpu_neighbour": Fault(("gpu_contention",), ON_GPU),
    "copies_back": Fault(("device_copies",), ("gpu",)),
    "empty_cache": Fault(("host_overhead", "memory_pressure"), ("gpu",)),
    "no_graph": Fault(("host_overhead",), ("graphs",)),
    "slow_optimizer": Fault(("workload_change", "host_overhead"), ("transformer", "gpu")),
}


#: Faults that one of the two ranks of the recurrent job has, which makes it late.
OF_ONE_RANK = {"fsync", "checkpoint", "slow_tail"}

#: Two faults at once, of the second severity, which cost different time.
MIXED = {
    "image": (
        "fsync+checkpoint", "layout+fsync", "tiny_syncs+slow_tail", "lock+layout", "sleep+checkpoint", "lock+slow_tail",
    ),
    "transformer": (
        "garbage+fsync", "tiny_syncs+checkpoint", "slow_data+garbage", "layout+fsync", "logging+slow_tail",
        "lock+garbage", "logging+fsync", "slow_data+checkpoint",
    ),
    "recurrent": ("garbage+fsync", "logging+checkpoint", "float64+garbage", "slow_data+garbage", "logging+fsync"),
    "server": ("layout+fsync", "tiny_syncs+lock", "lock+fsync"),
    "pool": ("garbage+fsync", "sleep+checkpoint", "garbage+slow_tail", "sleep+fsync", "lock+checkpoint"),
    "jax": (
        "garbage+fsync", "sleep+garbage", "tiny_syncs+checkpoint", "logging+fsync", "sleep+checkpoint",
        "logging+garbage",
    ),
    "gpu": ("layout+fsync", "gpu_neighbour+sleep", "garbage+layout"),
}  # fmt: skip
MIXED_SEVERITY = 2


@dataclass(frozen=True)
class Run:
    """One recording: a job, its fault ("none", "load" while a neighbour computes, "a+b"), a severity or a number."""

    job: str
    fault: str
    number: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.job}.{self.fault}.{self.number}"

    @property
    def faults(self) -> tuple[str, ...]:
        """Its faults: one, or two that are mixed."""
        return () if self.is_healthy else tuple(self.fault.split("+"))

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


def mixed() -> list[Run]:
    """Runs with two faults."""
    return [Run(job, both, MIXED_SEVERITY) for job, rows in MIXED.items() for both in rows]


def in_order(severities: list[int], seed: int) -> list[Run]:
    """All runs, so that the first so many have all jobs and faults alike.

    The last healthy runs come between those with faults of the first severity, so that a machine whose speed drifts is
    as slow for them.
    """
    chance = random.Random(seed)
    first: list[Run] = []
    later: list[Run] = []
    for run in healthy():
        (first if run.number < (N_FIRST if run.fault == "none" else 1) else later).append(run)
    order = [*first]
    for severity in severities:
        rest = faulty([severity])
        chance.shuffle(rest)
        every = max(len(rest) // max(len(later), 1), 1)
        for i, run in enumerate(rest):
            order += [run, *(later[:1] if i % every == 0 else [])]
            later = later[1:] if i % every == 0 else later
        order += mixed() if severity == severities[0] else []
    return [*order, *later]


def is_there(out: Path, run: Run) -> bool:
    """Whether it was recorded to its end."""
    meta = out / run.name / "meta.json"
    return meta.exists() and json.loads(meta.read_text(encoding="utf-8")).get("exit_code") == 0


def costs_of(out: Path, name: str) -> Path:
    """What each fault of a recording took of a step, by the job's own clock: a file beside it, which no rule reads."""
    return out / f"{name}.costs"


def record(out: Path, run: Run, python: str) -> None:
    """Record a run. A neighbour of a loaded run computes for 0.3 s of each second."""
    seed = random.Random(run.name).randrange(1 << 16)
    words = [sys.executable, "-m", "stepscope", "record", "-o", str(out / run.name), "--force", "--stacks"]
    words += ["--steps", PROFILED[run.job]] if run.job in PROFILED else []
    job = [python, str(JOB), run.job, "--steps", str(STEPS[run.job]), "--seed", str(seed)]
    if not run.is_healthy:
        job += ["--fault", *run.faults, "--severity", str(run.number)]
    job += ["--costs", str(costs_of(out, run.name))]
    if run.job == "recurrent":
        job = ["sh", "-c", _TWO_RANKS, "sh", *job]
    environment = {**os.environ, "OMP_NUM_THREADS": "1" if run.job == "recurrent" else "2"}
    import gym_faults

    neighbours = gym_faults.neighbours(run.faults, run.number) if run.faults else []
    if run.fault == "load":
        text = "import time\nwhile True:\n t = time.time()\n while time.time() < t + 0.3: pass\n time.sleep(0.7)"
        neighbours.append(subprocess.Popen([sys.executable, "-S", "-c", text]))
    try:
        command = [*words, "--", *job]
        ended = subprocess.run(
            command, env=environment, cwd=out, check=False, capture_output=True, timeout=180, text=True
        )
        if ended.returncode:
            print(f"{run.name}: {ended.stderr.strip()[-300:]}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"{run.name}: stopped after 180 s", flush=True)
    finally:
        for process in neighbours:
            process.kill()
            process.wait()


def missing(given: argparse.Namespace) -> list[Run]:
    """The runs that are wanted and not there, in the order in which they are recorded."""
    wanted = [run for run in in_order(given.severities, given.seed) if run.job not in ON_GPU or given.only]
    if given.only:
        wanted = [run for run in wanted if run.job in given.only or run.fault in given.only]
    return [run for run in wanted if not is_there(given.out, run)]


def seconds_of(out: Path, runs: list[Run]) -> float:
    """How long these runs take to record: as long as those of their job that are there, else `USUAL_S`."""
    took = {job: [float(path.read_text(encoding="utf-8")) for path in out.glob(f"{job}.*.took_s")] for job in STEPS}
    each = {job: statistics.median(lengths) if lengths else USUAL_S[job] for job, lengths in took.items()}
    return sum(each[run.job] for run in runs)


def plan(given: argparse.Namespace) -> None:
    """Print what is missing, by kind, and how long it takes."""
    left = missing(given)
    alone = {hard: [run for run in left if len(run.faults) == 1 and run.number == hard] for hard in (1, 2, 3)}
    kinds = {
        "healthy": [run for run in left if run.fault == "none"],
        "healthy beside a neighbour": [run for run in left if run.fault == "load"],
        **{f"faults of severity {hard}": runs for hard, runs in alone.items()},
        "two faults at once": [run for run in left if len(run.faults) > 1],
    }
    for kind, runs in kinds.items():
        print(f"{kind:28} {len(runs):4} missing, {seconds_of(given.out, runs) / 60:6.0f} minutes")
    print(f"{'all':28} {len(left):4} missing, {seconds_of(given.out, left) / 60:6.0f} minutes")


def make(given: argparse.Namespace) -> None:
    """Record what is missing, until the time is over."""
    plan(given)
    end = time.monotonic() + 60 * given.minutes
    left = missing(given)
    for i, run in enumerate(left):
        if time.monotonic() > end:
            break
        began = time.monotonic()
        record(given.out, run, given.python)
        took = time.monotonic() - began
        state = "ok" if is_there(given.out, run) else "failed"
        if state == "ok":
            (given.out / f"{run.name}.took_s").write_text(f"{took:.1f}", encoding="utf-8")
        rest = seconds_of(given.out, left[i + 1 :]) / 60
        print(f"{run.name}: {state}, {took:.0f} s; {len(left) - i - 1} to go, {rest:.0f} minutes", flush=True)


def unpacked(out: Path) -> Path:
    """The folder of the recordings: that of the packed ones if it has packed files, which are unpacked first."""
    import gym_pack

    files = sorted(out.glob("*.tar.xz"))
    if not files:
        return out
    folder = Path(tempfile.mkdtemp(prefix="gymnasium-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for file in files:
        gym_pack.unpack(file, folder)
    return folder


def write(text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put a table into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    """Record, or score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plan", "record", "score"))
    parser.add_argument("out", type=Path, nargs="?", default=PACKED)
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
    if given.what != "score":
        (make if given.what == "record" else plan)(given)
        return
    import gym_scores

    found = gym_scores.answers(unpacked(given.out), given.only or STEPS, given.faults or (), given.jobs)
    for a in found:
        names = ", ".join(a.names)
        print(f"{' ' if a.is_right else '✗'} {a.run.name:34} {a.base:6} {a.change:+7.1%} {a.verdict:14} {names}")
    text = gym_scores.page(found)
    print(text)
    if given.write:
        write(text)


if __name__ == "__main__":
    main()
