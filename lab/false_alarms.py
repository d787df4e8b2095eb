"""How often `stragglers` names a rank of a healthy job, and finds one that is late: the table of docs/stragglers.md.

python false_alarms.py [--seeds 100] [--seeds-of-1024 20] [--ranks 2,4,8,32,1024] [--healthy-only]

Simulated jobs of 20 steps, data parallel, clocks off by a millisecond (standard deviation), drifting by 10 ppm. Healthy
ranks differ in speed for good by 0, 0.5 or 1 % (standard deviation), with noise that is normal and exponential, or has
heavy tails. A late rank comes 400 µs late to each all-reduce, which is 10 % of its work or more.
"""

from __future__ import annotations

import argparse

from job_simulator import Fault, Layout, Plan, simulate, tables
from msgspec.structs import replace

from stepscope.analyses.ranks.stragglers import stragglers

LATE_NS = 400_000.0
UNEVEN = (0.0, 0.005, 0.01)
SMALL = {"layers": 2, "buckets": 2}  # of a large job: what is compared is the same, in less time


def plan_of(ranks: int, seed: int, *, uneven: float = 0.0, heavy_tails: bool = False) -> Plan:
    """A healthy job."""
    more = SMALL if ranks >= 1024 else {}
    return Plan(
        Layout(dp=ranks), steps=20, offset_sd_ns=1e6, drift_sd=1e-5, uneven=uneven, heavy_tails=heavy_tails, seed=seed,
        **more,
    )  # fmt: skip


def false_alarms(ranks: int, seeds: int, *, uneven: float, heavy_tails: bool) -> int:
    """In how many healthy jobs a rank or link is named."""
    plans = (plan_of(ranks, seed, uneven=uneven, heavy_tails=heavy_tails) for seed in range(seeds))
    return sum(not stragglers(tables(simulate(plan))).is_empty() for plan in plans)


def found(ranks: int, seeds: int) -> tuple[int, float, float]:
    """In how many jobs the late rank is named first; the least and largest ratio of its lateness to the truth."""
    hits, ratios = 0, []
    rank = min(16, ranks - 1)
    for seed in range(seeds):
        plan = replace(plan_of(ranks, seed), faults=(Fault("late", rank, LATE_NS),))
        job = simulate(plan)
        table = stragglers(tables(job))
        hits += table["rank"].to_list()[:1] == [rank]
        ratios += [float(table["lateness_ns"][0]) / float(job.injected_ns[rank])] if table.height else []
    return hits, min(ratios, default=float("nan")), max(ratios, default=float("nan"))


def main() -> None:
    """Read the command line, measure, print a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--seeds-of-1024", type=int, default=20)
    parser.add_argument("--ranks", default="2,4,8,32,1024")
    parser.add_argument("--healthy-only", action="store_true")
    args = parser.parse_args()
    kinds = [(uneven, heavy) for heavy in (False, True) for uneven in UNEVEN]
    heads = [f"{uneven:.1%}{', heavy tails' if heavy else ''}" for uneven, heavy in kinds]
    print(f"| ranks | jobs | {' | '.join(heads)} | late rank first | its lateness / truth |")
    print("|---" * (len(kinds) + 4) + "|")
    for ranks in map(int, args.ranks.split(",")):
        seeds = args.seeds_of_1024 if ranks >= 1024 else args.seeds
        wrong = [false_alarms(ranks, seeds, uneven=uneven, heavy_tails=heavy) for uneven, heavy in kinds]
        hits = "– | –"
        if not args.healthy_only:
            n, low, high = found(ranks, seeds)
            hits = f"{n} | {low:.3f} to {high:.3f}"
        print(f"| {ranks:,} | {seeds} | {' | '.join(map(str, wrong))} | {hits} |", flush=True)


if __name__ == "__main__":
    main()
