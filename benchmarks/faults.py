"""The fault lab: a real training job under `stepscope record`, healthy twice and once with each fault.

python benchmarks/faults.py OUT [--faults slow_loader fsync] [--python PYTHON_WITH_TORCH] [--steps 5:45]

Then each recording is compared with the healthy ones, and a table says whether the fault's cause is named first.
`--compare "COMMAND …"` names the command that compares, if it is not this one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).with_name("fault_job.py")
#: Fault, and the categories of causes that name it.
FAULTS: dict[str, tuple[str, ...]] = {
    "core_contention": ("cpu_contention",),
    "slow_loader": ("data_loading",),
    "fsync": ("disk_io",),
    "tiny_syncs": ("host_overhead",),
    "float64": ("slow_operator",),
    "garbage": ("python_gc", "host_overhead"),
    "gil_hog": ("gil_contention", "cpu_contention"),
    "memory_growth": ("memory_growth",),
    "larger_batch": ("workload_change",),
}
HEALTHY = ("healthy0", "healthy1")


def record(out: Path, fault: str, seed: int, python: str, steps: str, n_steps: int) -> None:
    """One run of the job on the last core; the sampler is not bound to it."""
    folder = out / fault
    command = [sys.executable, "-m", "stepscope", "record", "-o", str(folder), "--force", "--steps", steps, "--"]
    core = max(os.sched_getaffinity(0))
    job = ["taskset", "-c", str(core), python, str(JOB), "--steps", str(n_steps), "--seed", str(seed)]
    subprocess.run([*command, *job, "--fault", "none" if fault in HEALTHY else fault], check=True)


def compared(command: list[str], base: list[Path], other: Path) -> dict:
    """What comparing two recordings says, as JSON; compare may end with 3, a gate that failed."""
    words = ["--base", *map(str, base), "--other", str(other), "--format", "json"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    if done.returncode not in {0, 3}:
        sys.exit(f"comparing {other} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def first_cause(document: dict) -> str:
    """The category of the first cause; none where nothing was found."""
    causes = document.get("causes") or document.get("findings") or []
    if not causes:
        return "none"
    return str(causes[0].get("category") or causes[0].get("kind") or causes[0].get("name"))


def main() -> None:
    """Record what is missing, compare, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--steps", default="5:30")
    parser.add_argument("--n-steps", type=int, default=35)
    parser.add_argument("--compare", default=f"{sys.executable} -m stepscope compare", help="the command that compares")
    given = parser.parse_args()
    runs = [*HEALTHY, *given.faults]
    given.out.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(runs):
        if not list((given.out / name).glob("*.pt.trace.json.gz")):
            record(given.out, name, seed, given.python, given.steps, given.n_steps)
    print(f"{'fault':18}{'first cause':22}named")
    for name in runs[1:]:
        base = [given.out / healthy for healthy in HEALTHY if healthy != name]
        cause = first_cause(compared(shlex.split(given.compare), base, given.out / name))
        wanted = ("none",) if name in HEALTHY else FAULTS[name]
        print(f"{name:18}{cause:22}{'yes' if cause in wanted else 'no'}")


if __name__ == "__main__":
    main()
