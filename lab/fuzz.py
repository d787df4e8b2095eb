"""Mutated traces through all of stepscope: nothing but a StepscopeError may come of them, soon, in little memory.

python fuzz.py [--cases 20000] [--first 0] [--jobs 2] [--minutes M]
python fuzz.py --first 1234 --cases 1 --keep DIR        one case again, its file kept
python fuzz.py --meaning [--also DIR] [--share 0.1]     files whose bytes are sound and whose meaning is absurd
python fuzz.py --meaning --further --share 0.1          further changes, and questions of agents, stores and formats
python fuzz.py --meaning --damage --share 0 --seeds perfetto      damaged files of one reader, which are only opened

Every case reads a trace, runs every analysis with options taken at random, and renders the report. Case N follows from
the random seed N alone. With --meaning a case changes what a file of any format means (semantic_mutations.py) and asks
every public question about it, or that share of them; each has its own bounds of time and memory (contract.py).

Exit code 1 if a case failed: an error that is none of ours, too long, too much memory,
a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import resource
import shutil
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

import contract
import mutations
import semantic_mutations
import small_files

import stepscope
from stepscope import analyses, renderers
from stepscope.core.errors import MissingTable, StepscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.options import Option
    from stepscope.core.trace import Run, Trace

SECONDS_PER_CASE = 20
#: A reader may take some times a block of memory, whatever is in the file; the interpreter and its libraries take 200.
MIB_PER_PROCESS = 800
#: With --meaning no process can take more: a file that would fill the memory ends its own process alone.
ADDRESSES_MIB = 6_000
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
    stopped_after: int | None = None

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
    parser.add_argument(
        "--share", type=float, default=1.0, help="with --meaning: of the questions, chosen at random (1; 0: none)"
    )
    parser.add_argument("--seeds", default="", help="with --meaning: begin with the small files of such a name")
    parser.add_argument("--further", action="store_true", help="with --meaning: more kinds of changes and questions")
    parser.add_argument("--damage", action="store_true", help="with --meaning: change bytes of every other file too")
    parser.add_argument("--keep", type=Path, help="folder for the files of the cases")
    parser.add_argument("--also", type=Path, help="folder of more traces to begin with")
    parser.add_argument("--only", action="store_true", help="begin with protobuf files of that folder alone")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mark", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _spread(given: argparse.Namespace) -> Tally:
    """Worker processes over pieces of the cases: a crash costs one case, and memory that one leaks is given back."""
    tally = Tally()
    deadline = time.monotonic() + 60 * given.minutes
    piece = max(1, min(1000, -(-given.cases // given.jobs)))  # a worker's start takes as long as some 50 cases
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
    command += ["--also", str(given.also), *["--only"] * given.only] if given.also else []
    command += ["--meaning", "--share", str(given.share), "--seeds", given.seeds] if given.meaning else []
    command += ["--damage"] * given.damage + ["--further"] * given.further
    with out.open("wb") as file, (folder / f"{first}.err").open("wb") as errors:
        # The files are small: threads of Polars would only get in each other's way.
        environment = {"POLARS_MAX_THREADS": "1", **os.environ}
        return subprocess.Popen(command, stdout=file, stderr=errors, env=environment), first, n, out


def _collect(tally: Tally, process: subprocess.Popen[bytes], first: int, n: int, out: Path) -> list[tuple[int, int]]:
    """Count in what a worker found. If it crashed: what is left to do around the case that it crashed on."""
    if process.returncode == 0:
        tally.add(done := json.loads(out.read_bytes()))
        at = done["stopped_after"]
        return [] if at is None or at + 1 == first + n else [(at + 1, first + n - at - 1)]
    mark = out.with_suffix(".mark")
    at = int(mark.read_text() or first) if mark.exists() else first
    said = out.with_suffix(".err").read_text(errors="replace")[-2000:]
    tally.outcomes["crash"] += 1
    tally.fail(at, f"crash: exit code {process.returncode}", said)
    return [piece for piece in ((at + 1, first + n - at - 1), (first, at - first)) if piece[1] > 0]


def _work(given: argparse.Namespace) -> Tally:
    """Cases in this process."""
    faulthandler.enable()
    if given.meaning:
        return _work_on_meaning(given)
    signal.signal(signal.SIGALRM, _alarm)
    tally, seeds = Tally(), mutations.seeds(given.also)
    seeds = [seed for seed in seeds if isinstance(seed, bytes)] if given.only else seeds
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        for case in range(given.first, given.first + given.cases):
            if time.monotonic() > until:
                break
            given.mark.write_text(str(case))
            random = Random(case)
            data = mutations.mutated(random.choice(seeds), random)
            path = Path(given.keep or folder) / f"case{case if given.keep else ''}.json"
            path.write_bytes(data)
            _one(tally, case, path, random)
    return tally


def _work_on_meaning(given: argparse.Namespace) -> Tally:
    """Cases with every question. Stops early where a question took too long: what it began may still run."""
    tally = Tally()
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        every = small_files.write_all(Path(folder) / "seeds", further=given.further)
        seeds = [path for name, path in every.items() if name.startswith(given.seeds)]
        more = semantic_mutations.seeds_in(given.also) if given.also else []
        base = small_files.sound(Path(folder) / "seeds")
        most_mib = contract.most_mib(base)
        contract.limit_memory(ADDRESSES_MIB)
        for case in range(given.first, given.first + given.cases):
            if time.monotonic() > until:
                break
            given.mark.write_text(str(case))
            random = Random(case)
            place = Path(given.keep or folder) / str(case)
            place.mkdir(exist_ok=True)
            seed = random.choice(random.choice((seeds, more)) or seeds)
            paths = semantic_mutations.write_mutated(seed, place, random, further=given.further)
            files = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
            if given.damage and random.random() < 0.5:
                path = random.choice(files)
                path.write_bytes(random.choice(mutations.BYTE_CHANGES)(path.read_bytes(), random))
            n_bytes = sum(path.stat().st_size for path in files)
            most = most_mib + contract.MEMORY_PER_BYTE * n_bytes / 2**20
            # A sound file to be compared with.
            partner = seed if given.further and seed.is_file() and random.random() < 0.5 else base
            asked = contract.questions(paths, partner, further=given.further)
            if not _keeps_contract(tally, case, asked, most, random, given.share):
                tally.stopped_after = case
                break
            if not given.keep:
                shutil.rmtree(place)
    return tally


def _keeps_contract(
    tally: Tally, case: int, questions: Iterator[contract.Question], most_mib: float, random: Random, share: float
) -> bool:
    """Asks a share of the questions. False if one of them took too long."""
    began, in_time = time.monotonic(), True
    try:
        for step, question in questions:
            if step != contract.OPEN and not share:
                break  # asked is the reader alone
            if step != contract.OPEN and random.random() >= share:
                continue
            faulthandler.dump_traceback_later(contract.WALL_SECONDS, exit=True)
            try:
                answer = contract.ask(question, most_mib)
                if step == contract.OPEN:
                    tally.outcomes["read" if answer == "answered" else f"refused: {answer}"] += 1
                else:
                    tally.steps[f"{step}: {answer}"] += 1
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  what a bug raises, a panic in Polars and our alarm among them
                tally.fail(case, _place_of(error, step), "".join(traceback.format_exception(error)[-12:]))
                in_time = in_time and not isinstance(error, contract.TookTooLongError)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if (took := time.monotonic() - began) > tally.slowest_s:
        tally.slowest_s, tally.slowest_case = took, case
    tally.peak_mib = max(tally.peak_mib, contract.peak_mib())
    return in_time


def _alarm(_signal: int, _frame: object) -> None:
    raise TookTooLong


def _one(tally: Tally, case: int, path: Path, random: Random) -> None:
    began, before = time.monotonic(), _peak_mib()
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_CASE)
    step = "read"
    try:
        trace = stepscope.load(path)
        tally.outcomes["read, with issues" if trace.issues.height else "read"] += 1
        for step, run in _questions(path, trace, random):
            try:
                run()
                tally.steps[f"{step}: answered"] += 1
            except MissingTable:
                tally.steps[f"{step}: lacks data"] += 1
            except StepscopeError as error:
                tally.steps[f"{step}: {type(error).__name__}"] += 1
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
    unread = ("read:", "open:")
    n = sum(tally.outcomes.values()) + sum(len(c) for key, c in tally.failures.items() if key.startswith(unread))
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
