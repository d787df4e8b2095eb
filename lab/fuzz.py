"""Mutated traces through all of stepscope: nothing but a StepscopeError may come of them, soon, in little memory.

python fuzz.py [--cases 20000] [--first 0] [--jobs 2] [--minutes M]
python fuzz.py --first 1234 --cases 1 --keep DIR        one case again, its file kept
python fuzz.py --meaning [--also DIR]                   valid files whose meaning cannot be, asked everything

Every case reads a trace, runs every analysis with options taken at random, and renders the report. Case N follows from
the random seed N alone. Exit code 1 if a case failed: an error that is none of ours, too long, too much memory,
a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import mutations
import semantic_mutations

from starlette.testclient import TestClient

import stepscope
from stepscope import analyses, exports, renderers
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.web.app import create_app
from stepscope.web.pages.single_file import report_page
from stepscope.web.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.options import Option
    from stepscope.core.trace import Run, Trace

SECONDS_PER_CASE = 20
SECONDS_PER_QUESTION = 10  # with --meaning
#: A reader may take some times a block of memory, whatever is in the file; the interpreter and its libraries take 200.
MIB_PER_PROCESS = 800
FORMATS = ("terminal", "markdown", "json")
SHOWN = 12


class TookTooLong(BaseException):
    """No Exception, so that nothing on the way can take it for one of its own."""


@dataclass
class Tally:
    """What became of the cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)
    slowest_s: float = 0.0
    slowest_case: int = -1
    peak_mib: float = 0.0

    def add(self, other: dict[str, Any]) -> None:
        """Count in what a worker says."""
        self.outcomes.update(other["outcomes"])
        self.steps.update(other["steps"])
        for key, numbers in other["failures"].items():
            self.failures.setdefault(key, []).extend(numbers)
        self.traces = {**other["traces"], **self.traces}
        if other["slowest_s"] > self.slowest_s:
            self.slowest_s, self.slowest_case = other["slowest_s"], other["slowest_case"]
        self.peak_mib = max(self.peak_mib, other["peak_mib"])

    def fail(self, case: int, key: str, trace: str = "") -> None:
        """Count a failure; those of one place in the code belong together."""
        self.failures.setdefault(key, []).append(case)
        self.traces.setdefault(key, trace)


def main() -> int:
    """Run what was asked for, print a summary."""
    given = _arguments()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    if given.worker:
        print(json.dumps(vars(_work(given))))
        return 0
    began = time.monotonic()
    tally = _spread(given)
    _summary(tally, time.monotonic() - began)
    return 1 if tally.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000, help="how many (20000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more cases after so long")
    parser.add_argument("--meaning", action="store_true", help="change the meaning of files, not their bytes")
    parser.add_argument("--keep", type=Path, help="folder for the files of the cases")
    parser.add_argument("--also", type=Path, help="folder of more traces to begin with")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mark", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _spread(given: argparse.Namespace) -> Tally:
    """Worker processes over pieces of the cases: a crash costs one case, and memory that one leaks is given back."""
    tally = Tally()
    deadline = time.monotonic() + 60 * given.minutes
    piece = max(1, min(500, -(-given.cases // given.jobs)))
    todo = [
        (start, min(piece, given.first + given.cases - start))
        for start in range(given.first, given.first + given.cases, piece)
    ]
    todo.reverse()
    running: list[tuple[subprocess.Popen[bytes], int, int, Path]] = []
    with tempfile.TemporaryDirectory() as folder:
        while todo or running:
            while todo and len(running) < given.jobs and time.monotonic() < deadline:
                running.append(_start(*todo.pop(), Path(folder), given, deadline))
            if not running:
                break
            time.sleep(0.05)
            for job in [j for j in running if j[0].poll() is not None]:
                running.remove(job)
                todo += _collect(tally, *job)
    return tally


def _start(
    first: int, n: int, folder: Path, given: argparse.Namespace, deadline: float
) -> tuple[subprocess.Popen[bytes], int, int, Path]:
    out = folder / f"{first}.json"
    left = max((deadline - time.monotonic()) / 60, 0)
    command = [
        sys.executable,
        __file__,
        "--worker",
        "--first",
        str(first),
        "--cases",
        str(n),
        "--mark",
        str(folder / f"{first}.mark"),
    ]
    command += ["--minutes", str(left)] if left < float("inf") else []
    command += ["--keep", str(given.keep)] if given.keep else []
    command += ["--also", str(given.also)] if given.also else []
    command += ["--meaning"] if given.meaning else []
    with out.open("wb") as file, (folder / f"{first}.err").open("wb") as errors:
        return subprocess.Popen(command, stdout=file, stderr=errors), first, n, out


def _collect(tally: Tally, process: subprocess.Popen[bytes], first: int, n: int, out: Path) -> list[tuple[int, int]]:
    """Count in what a worker found. If it crashed: what is left to do around the case that it crashed on."""
    if process.returncode == 0:
        tally.add(json.loads(out.read_bytes()))
        return []
    mark = out.with_suffix(".mark")
    at = int(mark.read_text() or first) if mark.exists() else first
    said = out.with_suffix(".err").read_text(errors="replace")[-2000:]
    tally.outcomes["crash"] += 1
    tally.fail(at, f"crash: exit code {process.returncode}", said)
    return [piece for piece in ((at + 1, first + n - at - 1), (first, at - first)) if piece[1] > 0]


def _work(given: argparse.Namespace) -> Tally:
    """Cases in this process."""
    faulthandler.enable()
    signal.signal(signal.SIGALRM, _alarm)
    tally, seeds = Tally(), mutations.seeds(given.also)
    files = semantic_mutations.paths(given.also) if given.meaning else []
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        for case in range(given.first, given.first + given.cases):
            if time.monotonic() > until:
                break
            given.mark.write_text(str(case))
            random = Random(case)
            place = Path(given.keep or folder) / (str(case) if given.keep else "")
            place.mkdir(exist_ok=True)
            if given.meaning:
                seed = random.choice((random.choice(seeds), random.choice(files)))
                path = semantic_mutations.write_mutated(seed, place, random)
            else:
                path = place / "case.json"
                path.write_bytes(mutations.mutated(random.choice(seeds), random))
            _one(tally, case, path, random, everything=given.meaning)
    return tally


def _alarm(_signal: int, _frame: object) -> None:
    raise TookTooLong


def _one(tally: Tally, case: int, path: Path, random: Random, *, everything: bool = False) -> None:
    began, before = time.monotonic(), _peak_mib()
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_CASE)
    step = "read"
    try:
        trace = stepscope.load(path)
        tally.outcomes["read, with issues" if trace.issues.height else "read"] += 1
        questions = _questions(path, trace, random)
        for step, run in (*questions, *_more_questions(path, trace)) if everything else questions:
            if everything:
                signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_QUESTION)
            try:
                run()
                tally.steps[f"{step}: answered"] += 1
            except MissingTable:
                tally.steps[f"{step}: lacks data"] += 1
            except StepscopeError as error:
                tally.steps[f"{step}: {type(error).__name__}"] += 1
            except BaseException as error:  # noqa: BLE001
                if not everything or isinstance(error, KeyboardInterrupt):
                    raise
                tally.fail(case, _place_of(error, step), "".join(traceback.format_exception(error)[-12:]))
    except StepscopeError as error:
        tally.outcomes[f"refused: {type(error).__name__}"] += 1
        if not error.message or not error.hint:
            tally.fail(case, f"{step}: {type(error).__name__} without a hint: {error.message[:60]}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  what a bug raises, a panic in Polars and our alarm among them
        tally.fail(case, _place_of(error, step), "".join(traceback.format_exception(error)[-12:]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took = time.monotonic() - began
    if took > tally.slowest_s:
        tally.slowest_s, tally.slowest_case = took, case
    peak = _peak_mib()
    if before <= MIB_PER_PROCESS < peak:
        tally.fail(case, f"{step}: took {peak:.0f} MiB")
    tally.peak_mib = max(tally.peak_mib, peak)


def _questions(path: Path, trace: Trace, random: Random) -> Iterator[tuple[str, Any]]:
    """Every analysis with options taken at random, and the report in every format, also as one rank of two."""
    for name in analyses.names("trace"):
        analysis = analyses.find(name)
        options = {n: value for n, p in analysis.options().items() if (value := _option(p, random)) is not None}
        yield name, lambda analysis=analysis, options=options: analysis(trace, **options)
    yield "report", lambda: _rendered(trace)
    if random.random() < 0.1:
        sound = random.choice(sorted(mutations.EXAMPLES.glob("*decode/*.json.gz")))
        yield "report of two", lambda: _rendered(stepscope.load_run(random.sample([path, sound], 2)))


def _more_questions(path: Path, trace: Trace) -> Iterator[tuple[str, Any]]:
    """SQL, comparison with itself, the pages and every export."""
    yield "sql", lambda: trace.sql("SELECT name, count(*), sum(dur_ns) FROM spans GROUP BY name")
    yield "compare", lambda: str(stepscope.compare(trace, trace))
    yield "one-file page", lambda: report_page(stepscope.load_run(path))
    yield "page", lambda: _page(path)
    for kind in exports.names():
        yield f"export {kind}", lambda kind=kind: _exported(kind, trace)


def _page(path: Path) -> None:
    session = Session([str(path)])
    try:
        client = TestClient(create_app(session), base_url="http://127.0.0.1", headers={"x-stepscope-wait": "1"})
        for address in ("/", "/timeline", "/tables/kernels", "/api/trace/0/layout"):
            client.get(address)
    finally:
        session.close()


def _exported(kind: str, trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out"
        stepscope.export(trace, kind, output=target if kind == "parquet" else None)


def _rendered(source: Trace | Run) -> None:
    report = stepscope.report(source)
    for name in FORMATS:
        render = renderers.find(name).report
        if render is not None:
            render(report, renderers.Screen())


def _option(option: Option, random: Random) -> Any:
    """A value for an option; None: leave it out."""
    if random.random() < 0.5:
        return None
    if option.choices:
        return random.choice(option.choices)
    if option.kind is bool:
        return not option.default
    if option.kind is int and option.default is not None:
        return random.choice((0, 1, option.default * 2, 10**9))
    return random.choice(("", "mm", "aten::", "(")) if isinstance(option.default, str) else None


def _place_of(error: BaseException, step: str) -> str:
    """Where it happened, so that failures with one cause have one name."""
    root = Path(stepscope.__file__).parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(root)]
    where = f"{Path(frames[-1].filename).relative_to(root)}:{frames[-1].lineno}" if frames else "?"
    return f"{step}: {type(error).__name__} at {where}: {str(error).partition(chr(10))[0][:80]}"


def _peak_mib() -> float:
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _summary(tally: Tally, seconds: float) -> None:
    n = sum(tally.outcomes.values()) + sum(len(c) for key, c in tally.failures.items() if key.startswith("read:"))
    print(f"{n:,} cases in {seconds:,.0f} s ({n / max(seconds, 1e-9):.1f} a second)")
    print(
        f"slowest {tally.slowest_s:.2f} s (case {tally.slowest_case}), "
        f"most memory of a process {tally.peak_mib:.0f} MiB\n"
    )
    for title, counts in (("became of the file", tally.outcomes), ("became of the questions", tally.steps)):
        print(f"| {title} | n |\n| :-- | --: |")
        for what, count in sorted(counts.items(), key=lambda item: (item[0].partition(":")[0], -item[1])):
            print(f"| {what} | {count:,} |")
        print()
    if not tally.failures:
        print("no failures")
    for key, numbers in sorted(tally.failures.items(), key=lambda item: -len(item[1])):
        print(f"FAILED {len(numbers):,} × {key}\n  cases {', '.join(map(str, sorted(numbers)[:SHOWN]))}")
        with contextlib.suppress(KeyError):
            print("  " + tally.traces[key].strip().replace("\n", "\n  ") + "\n")


if __name__ == "__main__":
    sys.exit(main())
