"""Times the analyses of ranks on simulated jobs: rank-collectives a second, from tables and from trace files.

python ranks.py [--ranks 1024] [--steps 80] [--files 64] [--seeds 0]

A rank-collective is one rank's call of one collective. `matched` puts them together, `clock offsets` solves the clocks,
`stragglers` does all that a straggler's report needs: matching, clocks, lateness, tests, replay, cause. With `--seeds`
it also counts how often a healthy job has a rank named, and a late rank is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from job_simulator import Fault, Layout, Plan, simulate, tables
from make_ranks import write
from msgspec.structs import replace

from stepscope import load
from stepscope.analyses.ranks.calls import rank_calls
from stepscope.analyses.ranks.clocks import clocks_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.stragglers import stragglers

if TYPE_CHECKING:
    from collections.abc import Callable

LATE_NS = 400_000.0


def timed(function: Callable[[], Any], runs: int = 3) -> tuple[Any, float, float]:
    """The result, and the least wall and CPU seconds of several runs."""
    walls, cpus = [], []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        result = function()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return result, min(walls), min(cpus)


def speed(layout: Layout, steps: int) -> None:
    """Rank-collectives a second, healthy and with a late rank."""
    for name, faults in (("healthy", ()), ("a late rank", (Fault("late", 16, LATE_NS),))):
        parts = tables(simulate(Plan(layout, steps=steps, faults=faults, offset_sd_ns=1e6, drift_sd=1e-5)))
        n = sum(part.calls.height for part in parts)
        job, matching, matching_cpu = timed(lambda parts=parts: job_of(parts))
        _, clocks, clocks_cpu = timed(lambda job=job: clocks_of(job))
        found, everything, cpu = timed(lambda parts=parts: stragglers(parts))
        print(f"{layout.n_ranks} ranks, {n:,} rank-collectives, {name}; named: {found['rank'].to_list()}")
        for what, wall, used in (
            ("matched", matching, matching_cpu),
            ("clock offsets", clocks, clocks_cpu),
            ("stragglers", everything, cpu),
        ):
            print(f"  {what:14} {n / wall:12,.0f} /s   ({wall:.2f} s, {used:.2f} s of CPU)")


def from_files(n: int) -> None:
    """How long it takes to make the small tables of trace files."""
    with tempfile.TemporaryDirectory() as folder:
        job = simulate(Plan(Layout(tp=8, dp=max(n // 8, 2)), steps=10))
        paths = write(job, Path(folder), ranks=range(n), filler=80)
        size = sum(path.stat().st_size for path in paths)
        rows, wall, cpu = timed(lambda: sum(rank_calls(load(path)).calls.height for path in paths), runs=1)
        print(
            f"{n} files of {size / n / 1e6:.2f} MB packed: {rows / wall:,.0f} rank-collectives/s ({cpu:.1f} s of CPU)"
        )


def accuracy(n_seeds: int) -> None:
    """False alarms of healthy jobs, and what is found of a late rank."""
    for ranks, more in ((32, {}), (1024, {"layers": 2, "buckets": 2})):
        wrong, missed, ratios, offsets = 0, 0, [], []
        for seed in range(n_seeds):
            plan = Plan(Layout(dp=ranks), steps=20, offset_sd_ns=1e6, drift_sd=1e-5, seed=seed, **more)
            wrong += not stragglers(tables(simulate(plan))).is_empty()
            late = simulate(replace(plan, faults=(Fault("late", 16, LATE_NS),)))
            parts = tables(late)
            found = stragglers(parts)
            missed += found["rank"].to_list()[:1] != [16]
            if found.height:
                ratios.append(found["lateness_ns"][0] / late.injected_ns[16])
            clocks = clocks_of(job_of(parts))
            off = clocks.offset - late.offset_ns - late.drift * clocks.mid_ns
            offsets.append(np.abs(off - np.median(off)).max())
        print(f"{ranks} ranks, {n_seeds} seeds: healthy jobs with a rank named {wrong}, late rank not first {missed},")
        print(
            f"  lateness {min(ratios):.3f} to {max(ratios):.3f} of the truth, clocks off by {max(offsets) / 1e3:.1f} µs"
        )


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ranks", 1024), ("steps", 80), ("files", 64), ("seeds", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    speed(Layout(tp=8, dp=max(args.ranks // 8, 2)), args.steps)
    if args.files:
        from_files(args.files)
    if args.seeds:
        accuracy(args.seeds)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
