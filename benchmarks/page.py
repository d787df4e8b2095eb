"""Measurements as a markdown page."""

from __future__ import annotations

import datetime as dt
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inputs import MB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from inputs import Made, Target
    from measure import Cost
    from peers import Peer

INTRODUCTION = """\
# Benchmarks

`benchmarks/run.py --write` writes this page; `make bench` repeats the measurements and prints it. Every number is that
of a whole process, as the kernel counted it, including the start of the interpreter and imports. CPU is the user and
system time of all threads, and peak is the largest resident memory. Times are the best of several runs, memory is the
largest. Traces over 500 MB are measured once. 1 MB is 10⁶ bytes. Large traces are real ones repeated one after another
in time, with new ids in every copy (`benchmarks/repeat_trace.py`). `benchmarks/analyses.py` times each reader and
analysis separately.
"""

#: The tool that only decodes.
FLOOR = "orjson.loads"


@dataclass(frozen=True, slots=True)
class Row:
    """A command on a trace (None: on none), what it cost and what it may cost."""

    made: Made | None
    what: str
    cost: Cost
    target: Target | None = None

    @property
    def missed(self) -> list[str]:
        """By how much each target is missed."""
        if not self.target or self.cost.failure:
            return []
        pairs = ((self.cost.cpu_s, self.target.cpu_s, "CPU"), (self.cost.peak_bytes, self.target.peak_bytes, "memory"))
        return [f"{name} +{got / most - 1:.0%}" for got, most, name in pairs if most is not None and got > most]


@dataclass(frozen=True, slots=True)
class Beside:
    """A trace, what our report of it cost, and what each of the other tools did (None: not tried)."""

    made: Made
    ours: Cost
    theirs: Sequence[Cost | None]


@dataclass(frozen=True, slots=True)
class OnCores:
    """A trace, and what our report of it cost on one core and on two."""

    made: Made
    one: Cost
    two: Cost


def head(*, python: str, packages: Mapping[str, str]) -> str:
    """What the page is about, and on what it was measured."""
    bundled = ", ".join(f"{name} {version}" for name, version in packages.items())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = (
        f"Measured on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}",
        f"{processor()}, {usable_cores()} cores, {memory:.0f} GiB",
        f"{platform.system()} {platform.machine()}",
        f"Python {python}, {bundled}",
    )
    return INTRODUCTION + "\n" + "; ".join(facts) + ".\n"


def processor() -> str:
    """Name of the processor as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stepscope(rows: Iterable[Row]) -> str:
    """What our commands cost, beside their targets."""
    header = ("trace", "events", "MB", "`stepscope …`", "CPU s", "wall s", "peak MB", "MB / CPU s", "target", "")
    return "\n## stepscope\n\n" + grid(header, map(stepscope_cells, rows))


def stepscope_cells(row: Row) -> list[str]:
    """One command on one trace."""
    made, cost, target = row.made, row.cost, row.target
    cells = [made.input.title, count(made.n_events), f"{made.n_bytes / MB:,.0f}"] if made else ["–", "", ""]
    cells.append(f"`{row.what}`")
    if cost.failure:
        return [*cells, *[""] * 5, f"failed: {cost.failure}"]
    cells += [f"{cost.cpu_s:.2f}", f"{cost.wall_s:.2f}", f"{cost.peak_bytes / MB:,.0f}"]
    cells.append(f"{made.n_bytes / MB / cost.cpu_s:,.0f}" if made else "")
    if not target:
        return [*cells, "", ""]
    memory = f", {target.peak_bytes / MB:,.0f} MB" if target.peak_bytes is not None else ""
    verdict = "missed: " + ", ".join(row.missed) if row.missed else "met"
    return [*cells, f"≤ {target.cpu_s:g} s{memory}", verdict]


def cores(rows: Sequence[OnCores]) -> str:
    """How the report's wall time falls with cores: measured on one and two, and what follows for more."""
    header = ("trace", "MB", "1 core", "2 cores", "serial", "8 cores", "16 cores")
    body = []
    for row in rows:
        one_s, two_s = row.one.wall_s, row.two.wall_s
        serial_s = min(max(2 * two_s - one_s, 0.0), one_s)
        modelled = [f"{serial_s + (one_s - serial_s) / n:.2f}" for n in (8, 16)]
        measured = [f"{seconds:.2f}" for seconds in (one_s, two_s, serial_s)]
        body.append([row.made.input.title, f"{row.made.n_bytes / MB:,.0f}", *measured, *modelled])
    return (
        "\n## Cores\n\nWall s of `stepscope report`. Those on 1 and 2 cores are measured. The others are a model: the "
        "serial part is what two cores do not shorten (twice the time on two, less that on one), and the rest is "
        "divided by the cores. It leaves out that a text is decoded by at most one process for each 15 MB.\n\n"
        + grid(header, body)
    )


def peers(tools: Sequence[Peer], rows: Sequence[Beside]) -> str:
    """Our report beside other tools on the same traces, and its CPU time as a multiple of plain decoding's."""
    header = ("trace", "MB", "stepscope report", f"of {FLOOR}'s CPU", *(tool.name for tool in tools))
    failures: list[str] = []
    body = []
    for row in rows:
        ours, *theirs = (peer_cell(cost, failures) for cost in (row.ours, *row.theirs))
        floor = next((c for t, c in zip(tools, row.theirs, strict=True) if t.name == FLOOR), None)
        is_known = floor is not None and not floor.failure and not row.ours.failure
        ratio = f"× {row.ours.cpu_s / floor.cpu_s:.2f}" if is_known and floor is not None else "–"
        body.append([row.made.input.title, f"{row.made.n_bytes / MB:,.0f}", ours, ratio, *theirs])
    notes = [f"- {tool.name}: {tool.does}." for tool in tools]
    notes += [f"- [{number}] {reason}" for number, reason in enumerate(failures, 1)]
    return (
        "\n## Compared with other tools\n\nCPU s / wall s / peak MB. “–” was not measured, because it would "
        "take minutes (`BENCH_ALL=1` measures it).\n\n" + grid(header, body) + "\n" + "\n".join(notes) + "\n"
    )


def peer_cell(cost: Cost | None, failures: list[str]) -> str:
    """One tool on one trace; the reason of a failure is put into `failures`."""
    if cost is None:
        return "–"
    if cost.failure:
        failures.append(cost.failure)
        return f"failed [{len(failures)}]" + (f" after {cost.cpu_s:.1f} s" if cost.cpu_s else "")
    return f"{cost.cpu_s:.2f} / {cost.wall_s:.2f} / {cost.peak_bytes / MB:,.0f}"


def count(number: int | None) -> str:
    """A count with its thousands apart."""
    return "" if number is None else f"{number:,}"


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [list(header), ["---"] * len(header), *rows]
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
