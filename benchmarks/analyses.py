"""What each reader and each analysis costs by itself, for those who work on them: a markdown page on stdout.

python analyses.py [TRACE ...] [--runs N]     by default the recordings under examples/

Measured in one process, best of several runs: CPU time of all threads and wall time. Reading is timed for the trace as
it is and packed otherwise; MB are of the unpacked text. Rows are those of the tables that an analysis takes.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import zstandard
from inputs import MB, ROOT
from page import grid

import stepscope
from stepscope import analyses
from stepscope.core.errors import MissingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope import Trace
    from stepscope.analyses import Analysis


class Times(NamedTuple):
    """Seconds that a call took."""

    cpu_s: float
    wall_s: float


def timed(call: Callable[[], Any], runs: int) -> Times:
    """The least of several runs."""
    taken = []
    for _ in range(runs):
        cpu, wall = time.process_time(), time.perf_counter()
        call()
        taken.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpus, walls = zip(*taken, strict=True)
    return Times(min(cpus), min(walls))


def reading(path: Path, runs: int, folder: Path) -> Iterator[Sequence[str]]:
    """A row for each way in which the text of the trace can be packed."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    forms = {"json": text, "json.gz": gzip.compress(text, 6), "json.zst": zstandard.compress(text)}
    for form, packed in forms.items():
        file = folder / f"trace.{form}"
        file.write_bytes(packed)
        trace = stepscope.load(file)
        cpu_s, wall_s = timed(partial(stepscope.load, file), runs)
        n_mb = len(text) / MB
        sizes = (f"{n_mb:,.1f}", f"{len(packed) / MB:,.1f}", f"{trace.spans.height:,}")
        rates = (f"{n_mb / cpu_s:,.0f}", f"{n_mb / wall_s:,.0f}")
        yield trace.meta.format, form, *sizes, f"{cpu_s * 1e3:,.0f}", f"{wall_s * 1e3:,.0f}", *rates
        file.unlink()


def analysing(trace: Trace, runs: int) -> Iterator[Sequence[str]]:
    """A row for each analysis, slowest first; those that the trace cannot answer at the end."""
    timed_rows = [analysis_row(analyses.find(name), trace, runs) for name in analyses.names("trace")]
    yield from (cells for _, cells in sorted(timed_rows, key=lambda row: -row[0]))


def analysis_row(analysis: Analysis, trace: Trace, runs: int) -> tuple[float, Sequence[str]]:
    """What the analysis of this trace took, and its row."""
    n_rows = sum(trace.table(table.name).height for table in (*analysis.inputs, *analysis.optional))
    try:
        result = analysis(trace)
    except MissingTable as error:
        return -1, (analysis.name, f"{n_rows:,}", "", "", "", f"cannot: {error.message}")
    cpu_s, wall_s = timed(partial(analysis, trace), runs)
    times = (f"{cpu_s * 1e3:,.1f}", f"{wall_s * 1e3:,.1f}", f"{n_rows / cpu_s / 1e6:,.1f}")
    return cpu_s, (analysis.name, f"{n_rows:,}", f"{result.height:,}", *times)


def main() -> int:
    """Measure the traces that were named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("traces", nargs="*", type=Path, default=sorted((ROOT / "examples").glob("*/*rank0*.json.gz")))
    parser.add_argument("--runs", type=int, default=3, help="the best of so many")
    given = parser.parse_args()
    os.environ["STEPSCOPE_CACHE"] = "0"  # else reading would be timed of a file that was read before
    for path in given.traces:
        print(f"\n## {path.parent.name}/{path.name}\n")
        columns = ("reader", "form", "MB", "packed MB", "spans", "CPU ms", "wall ms", "MB / CPU s", "MB / wall s")
        with tempfile.TemporaryDirectory() as folder:
            print(grid(columns, reading(path, given.runs, Path(folder))))
        trace = stepscope.load(path)
        header = ("analysis", "rows read", "rows given", "CPU ms", "wall ms", "M rows / CPU s")
        print(grid(header, analysing(trace, given.runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
