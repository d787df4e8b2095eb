"""What it costs to set two runs side by side: a markdown page on stdout.

python compare.py [BASE OTHER] [--runs N]     by default two of 120 MB, made from the collection if it is here

Whole processes with imports included: both runs observed one after the other, and the command. Then, in a process of
their own and without imports, a million rows of attribution: those of results observed, those of a trace computed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import inputs
import measure
from page import grid
from run import of_command, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from measure import Cost

#: CPU seconds and bytes of memory that each may take.
OBSERVED, COMPARED = inputs.Target(4, 700 * inputs.MB), inputs.Target(5, 700 * inputs.MB)
MILLION_CPU_S = 3.0

_OBSERVE = """
import sys, stepscope
from stepscope.comparison import observe
seen = [observe(stepscope.load(path)) for path in sys.argv[1:]]
"""
_PREPARE = """
import time
import numpy as np, polars as pl
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.schema import COUNTERS, DEVICES, SPANS, STEPS, TRACKS
rng = np.random.default_rng(0)
n_cycles, n_names, n_metrics = 500, 200, 10
"""
_RESULTS = """
from stepscope.comparison import observe
from stepscope.core.trace import Meta, Result, Results
cycles = pl.DataFrame({"cycle": np.arange(n_cycles), "ts_ns": np.arange(n_cycles) * 10**9}).with_columns(
    dur_ns=10**9, pid=7, anchor=pl.lit("step")
)
rows = cycles.select("cycle", "pid").join(pl.DataFrame({"name": [f"kernel_{i}" for i in range(n_names)]}), how="cross")
rows = rows.join(pl.DataFrame({"metric": [f"gpu_m{i}" for i in range(n_metrics)]}), how="cross").with_columns(
    device=pl.lit("gpu0"), category=pl.lit("kernel"), calls=64, total_ns=10**6, mu=pl.Series(rng.normal(100, 1, 10**6))
)
held = {"cycles": Result(CYCLES, CYCLES.conform(cycles)), "attribution": Result(ATTRIBUTION, ATTRIBUTION.conform(rows))}
results = Results(Meta("made", "made"), {}, held)
began = time.process_time()
(seen,) = observe(results)
assert seen.resources.height > 10**6
"""
_TRACE = """
from stepscope.analyses.cycles.attribution import attribution
n = n_cycles * n_names
starts = np.arange(n) * 5_000_000
spans = pl.DataFrame({"span_id": np.arange(n), "track_id": 0, "ts_ns": starts, "dur_ns": 4_000_000}).with_columns(
    name=pl.format("op_{}", pl.col("span_id") % n_names), category=pl.lit("operator")
)
tracks = pl.DataFrame({"track_id": [0], "pid": [7], "kind": ["thread"]})
times = np.arange(0, n * 5_000_000, 10**9)
samples = pl.concat([
    pl.DataFrame({"ts_ns": times, "value": rng.normal(50, 5, times.size)}).with_columns(
        device=pl.lit("host"), metric=pl.lit(f"m{i}"), unit=pl.lit("%")
    )
    for i in range(n_metrics)
])
tables = SPANS.conform(spans), TRACKS.conform(tracks), STEPS.empty(), DEVICES.empty(), COUNTERS.conform(samples)
began = time.process_time()
assert attribution(*tables, anchor="op_0").height == 10**6
"""
_TOLD = "print(time.process_time() - began)"


def main() -> int:
    """Measure two traces. Exit code 1 if one of our commands failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("traces", nargs="*", type=Path, help="base and other")
    parser.add_argument("--runs", type=int, default=3, help="the best of so many")
    given = parser.parse_args()
    if len(given.traces) not in (0, 2):
        parser.error("name two traces, or none")
    pair = given.traces or list(made())
    rows = list(measured(pair, given.runs))
    print(grid(("what", "CPU s", "at most", "wall s", "peak MB", "at most"), [cells for cells, _ in rows]))
    return int(not all(fine for _, fine in rows))


def made() -> Iterator[Path]:
    """Two traces of the same program, 4 times repeated; without the collection, the repository's own as 100 MB."""
    folder = inputs.COLLECTION / "kineto/resnet50_num_workers_0"
    wanted = [inputs.Input(f"resnet-{i}-x4", path, 4) for i, path in enumerate(sorted(folder.glob("*.json.gz")))]
    if len(wanted) != 2:
        own = next(one for one in inputs.from_examples() if one.copies)
        wanted = [own, own]
    for one in wanted:
        say(f"making {one.title}")
        yield inputs.make(one, inputs.cache_folder()).path


def measured(pair: Sequence[Path], runs: int) -> Iterator[tuple[Sequence[str], bool]]:
    """A row for each thing measured, and whether it stayed within what it may cost."""
    words = [str(path) for path in pair]
    say("observing both")
    cost = measure.best([sys.executable, "-c", _OBSERVE, *words], runs=runs, timeout_s=600)
    yield row("both runs observed", cost, OBSERVED)
    yield row("stepscope compare", of_command(("compare", *words), 0, runs), COMPARED)
    for title, code in (("10⁶ rows of results observed", _RESULTS), ("10⁶ rows of attribution computed", _TRACE)):
        say(title)
        cpu_s = min(timed(_PREPARE + code + _TOLD) for _ in range(runs))
        yield (title, f"{cpu_s:.2f}", f"{MILLION_CPU_S:g}", "", "", ""), cpu_s <= MILLION_CPU_S


def row(what: str, cost: Cost, target: inputs.Target) -> tuple[Sequence[str], bool]:
    """The cells of one process' cost beside its target."""
    if cost.failure:
        return (what, f"failed: {cost.failure}", "", "", "", ""), False
    limit = target.peak_bytes or 0
    cells = (f"{cost.cpu_s:.2f}", f"{target.cpu_s:g}", f"{cost.wall_s:.2f}")
    memory = (f"{cost.peak_bytes / inputs.MB:,.0f}", f"{limit / inputs.MB:,.0f}")
    return (what, *cells, *memory), cost.cpu_s <= target.cpu_s and cost.peak_bytes <= limit


def timed(code: str) -> float:
    """CPU seconds that the code says it took, run in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
