"""The fault lab: a real training job under `stepscope record`, healthy several times and once with each fault.

python lab/faults.py OUT [--faults slow_loader fsync] [--python PYTHON_WITH_TORCH] [--steps 5:30] [--write]

Each recording that is not in OUT yet is made, in an order drawn by chance. Then each is compared with the first two
healthy ones of its kind, and a table says whether the fault's cause is named first, and whether anything is said of a
healthy one. `--write` puts the table into docs/fault-lab.md. Nothing else should run on the machine; a disturbed
recording is removed and made again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

JOB = Path(__file__).with_name("fault_job.py")
PAGE = Path(__file__).parents[1] / "docs" / "fault-lab.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
RANKS = 4


@dataclass(frozen=True)
class Fault:
    """What is wrong, in words, and the categories of causes that name it."""

    text: str
    causes: tuple[str, ...]
    ranks: int = 1


FAULTS = {
    "core_contention": Fault("two busy processes on the job's only core", ("cpu_contention",)),
    "slow_loader": Fault("the loader's collate takes 30 ms longer", ("data_loading",)),
    "fsync": Fault("16 MiB are written and synced after each step", ("disk_io",)),
    "tiny_syncs": Fault("some 900 single values are read after each step", ("host_overhead",)),
    "float64": Fault("two linear layers compute in double precision", ("slow_operator",)),
    "garbage": Fault("60,000 cyclic lists are made in each step", ("python_gc",)),
    "gil_hog": Fault("a thread of the job counts in Python", ("gil_contention",)),
    "memory_growth": Fault("16 MiB more are kept after each step", ("memory_growth",)),
    "larger_batch": Fault("24 sequences a batch in place of 16", ("workload_change",)),
    "slow_rank": Fault("rank 2 of 4 multiplies more matrices", ("straggler_rank",), RANKS),
}
#: Of one process and of four: the base's two runs, and those that nothing must be said of.
HEALTHY = {**{f"healthy{i}": Fault("nothing", (), 1) for i in range(6)},
           **{f"healthy_ranks{i}": Fault("nothing", (), RANKS) for i in range(3)}}  # fmt: skip
RUNS = {**HEALTHY, **FAULTS}
N_BASE = 2


def record(out: Path, name: str, seed: int, given: argparse.Namespace) -> None:
    """One run of the job: alone on the last core, as ranks on all of them. The sampler is not bound."""
    folder, steps = out / name, str(given.n_steps)
    command = [sys.executable, "-m", "stepscope", "record", "-o", str(folder), "--force", "--memory"]
    command += ["--steps", given.steps, "--"]
    job = [given.python, str(JOB), "--steps", steps, "--seed", str(seed)]
    if RUNS[name].ranks > 1:
        launcher = [given.python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--no-python"]
        job = [*launcher, *job]
    else:
        job = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *job]
    fault = "none" if name in HEALTHY else name
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *job, "--fault", fault], check=True, env=environment, cwd=out)


def bases_of(name: str) -> list[str]:
    """The healthy runs that one is compared with."""
    return [other for other, run in HEALTHY.items() if run.ranks == RUNS[name].ranks][:N_BASE]


def compared(out: Path, name: str) -> dict:
    """What comparing two recordings says, as JSON; compare may end with 3, a gate that failed."""
    words = ["--base", *(str(out / base) for base in bases_of(name)), "--other", str(out / name), "--format", "json"]
    command = [sys.executable, "-m", "stepscope", "compare", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 3}:
        sys.exit(f"comparing {out / name} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def row(name: str, document: dict) -> tuple[str, str, str, str, str]:
    """What a line of the table says."""
    causes = document["causes"]
    found = ", ".join(cause["category"] for cause in causes) or "none"
    first = causes[0]["category"] if causes else None
    verdict, step = document["verdict"], document["step_time"]
    change = f"{100 * step['delta_ratio']:+.0f} %"
    right = first in RUNS[name].causes if name in FAULTS else first is None and verdict != "different"
    return name, RUNS[name].text, f"{verdict}, {change}", found, "yes" if right else "no"


def table(rows: list[tuple[str, str, str, str, str]]) -> str:
    """The rows for a page."""
    heads = ("run", "what is wrong", "verdict", "causes, the first first", "right")
    lines = [f"| {' | '.join(line)} |" for line in (heads, ("---",) * len(heads), *rows)]
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the table into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Record what is missing, compare, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--steps", default="5:30")
    parser.add_argument("--n-steps", type=int, default=35)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    runs = [name for name in RUNS if name in HEALTHY or name in given.faults]
    # By chance, so that a machine whose speed drifts is as slow for the base as for the rest.
    order = list(enumerate(runs, given.seed))
    random.Random(given.seed).shuffle(order)
    for seed, name in order:
        if not list((given.out / name).glob("*.pt.trace.json.gz")):
            record(given.out, name, seed, given)
    rows = [row(name, compared(given.out, name)) for name in runs if name not in bases_of(name)]
    about = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}."
    named = sum(line[-1] == "yes" for line in rows if line[0] in FAULTS)
    told = sum(line[-1] == "no" for line in rows if line[0] in HEALTHY)
    faults, healthy = (sum(line[0] in group for line in rows) for group in (FAULTS, HEALTHY))
    text = f"{table(rows)}\n\n{named} of {faults} faults named first, {told} of {healthy} healthy runs flagged. {about}"
    print(text)
    if given.write:
        write(text)


if __name__ == "__main__":
    main()
