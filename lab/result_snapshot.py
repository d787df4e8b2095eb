"""Record every result that stepscope gives on the sample traces, and compare two such recordings.

A refactoring is to change no result. Record before and after it, then compare:

    python lab/result_snapshot.py run before --src ../other-worktree/src
    python lab/result_snapshot.py run after --src src
    python lab/result_snapshot.py diff before after

Only the public functions and the command line are used. Each trace, and each folder of 2 to 16 traces (`folder@all`),
has a process and a folder of results of its own: a table is its columns and rows (a long one: hashes of its columns and
the first rows), text is kept or hashed, what failed is a line of errors.tsv. Folders and the version are masked.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fnmatch
import hashlib
import io
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S, MAX_BYTES, MAX_ROWS, MAX_TEXT, MAX_TRACES = 120, 60_000_000, 2_000, 100_000, 16
NO_INPUTS = {".md", ".py", ".log"}
TIME_LIMIT, CRASH = "time-limit", "crash"
HEAD = '{"rows"'
#: Options that are no choices, with values worth trying.
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "critical-path": [{"step": 1}], "device-utilisation": [{"by": "time", "bucket_ns": 1_000_000}],
    "fusion": [{"min_kernels": 4}, {"max_gap_ns": 10_000}, {"accelerator": "H100 SXM"}],
    "idle": [{"min_gap_ns": 5_000}, {"kernel_wait_ns": 1_000}], "kernel-mix": [{"top": 3}],
    "kernel-similarity": [{"distance": 0.2}], "mfu": [{"accelerator": "H100 SXM"}],
    "roofline": [{"accelerator": "H100 SXM"}], "sequences": [{"min_kernels": 1}], "stragglers": [{"min_share": 0.0}],
    "timeline": [{"by": "time", "bucket_ns": 1_000_000}],
}  # fmt: skip
EXPORTS: dict[str, list[dict[str, Any]]] = {
    "tensorboard": [{}], "kernel-table": [{}], "latencyprism": [{}, {"part": "csv"}],
    "paddle-summary": [{}, {"sorted_by": "GPUTotal"}, {"thread_sep": True}, {"approximate": True}],
    "chrome": [{}, {"as_recorded": True}], "flamegraph": [{}, {"gil": True}, {"idle": True}],
}  # fmt: skip
FIGURES = (
    "steps", "operators", "kernels", "communication", "memory", "timeline", "device-utilisation", "roofline",
    "utilisation", "python-stacks",
)  # fmt: skip
BY_NAME = "SELECT name, count(*) AS n, sum(dur_ns) AS ns FROM spans GROUP BY name ORDER BY n DESC, name LIMIT 100"
QUERIES = {"traces": "SELECT * FROM traces", "names": BY_NAME}
SHOWN = ("steps", "operators", "kernels --format md", "spans --group-by track_id --sort dur_ns --limit 20")
COMPARED = ("parts", "attribution", "resources", "effects", "ruled-out", "kernels")
VERBS = ("report", "show", "compare", "serve", "sql", "record", "export", "tables", "formats", "bench", "cache")


@dataclass(frozen=True)
class Task:
    """What one process records: a file, or a folder with the traces in it; `questions` are kind, table, options."""

    name: str
    paths: tuple[str, ...]
    folder: str | None
    questions: tuple[tuple[str, str, dict[str, Any]], ...]
    out: Path
    src: Path
    scratch: Path
    masks: tuple[tuple[str, str], ...]


class Recorder:
    """Keeps results of one trace as files, and what failed as lines."""

    def __init__(self, task: Task) -> None:
        sys.path.insert(0, str(task.src))
        os.environ["STEPSCOPE_CACHE_DIR"] = str(task.scratch / "cache")
        import stepscope

        if not Path(stepscope.__file__).is_relative_to(task.src):
            raise SystemExit(f"stepscope came from {stepscope.__file__}, not from {task.src}")
        self._scratch, self._out = task.scratch, task.out / task.name
        self._masks = ((str(task.scratch), "<scratch>"), (str(task.src), "<src>"), *task.masks)
        self._version = re.compile(rf'(stepscope[^0-9\n]{{0,20}}|"written_by": ?"){re.escape(stepscope.__version__)}')
        self._out.mkdir(parents=True, exist_ok=True)

    def masked(self, text: str) -> str:
        """The text without what depends on the machine and the release."""
        for word, instead in self._masks:
            text = text.replace(word, instead)
        return self._version.sub(r"\1<version>", text)

    def keep(self, name: str, function: Callable[..., Any], *words: Any, **options: Any) -> Any:
        """Store what a function gives and warns of, or its error; returns what it gave."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                value = function(*words, **options)
                suffix, text = self._written(value)
            except Exception as error:  # noqa: BLE001  whatever fails is a result too
                self.fail(name, error)
                return None
        notes = "".join(f"# {note.category.__name__}: {note.message}\n" for note in told)
        (self._out / f"{name}.{suffix}").write_text(self.masked(text + notes), "utf-8", "backslashreplace")
        return value

    def fail(self, name: str, error: Exception) -> None:
        """Store an error."""
        line = self.masked(f"{name}\t{type(error).__name__}: {error}".replace("\n", " ⏎ "))
        with (self._out / "errors.tsv").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{line}\n")

    def command(self, *words: str, output: str = "") -> str:
        """What a command writes, to a file of that name or else to the screen. Raises RuntimeError if it fails."""
        from stepscope.cli import main

        target, said, complained = self._scratch / output, io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            code = main([*words, "-o", str(target), "--force"] if output else list(words))
        if code:
            raise RuntimeError(f"exit {code}: {complained.getvalue().strip()}")
        return (target.read_text("utf-8") if output else said.getvalue()) + complained.getvalue()

    def folder(self, write: Callable[..., object], *words: Any) -> str:
        """What each file of a folder holds that a function makes."""
        import polars as pl

        target = self._scratch / "folder"
        write(*words, output=target)
        found: dict[str, Any] = {}
        for path in sorted(path for path in target.rglob("*") if path.is_file()):
            is_table = path.suffix == ".parquet"
            held = _fingerprints(pl.read_parquet(path)) if is_table else _digest(self.masked(path.read_text("utf-8")))
            found[str(path.relative_to(target))] = held
        return json.dumps(found, indent=1)

    def _written(self, value: Any) -> tuple[str, str]:
        import polars as pl

        if isinstance(value, pl.DataFrame):
            return "jsonl", _frame_text(value)
        text = self.masked(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value))
        is_long = len(text) > MAX_TEXT
        return "txt", f"{len(text):,} characters, blake2b {_digest(text)}\n" if is_long else text


def _digest(text: str | bytes) -> str:
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text).hexdigest()[:16]


def _fingerprints(frame: Any) -> dict[str, str]:
    """The type of each column, its length and a hash of its values in their order."""
    import polars as pl

    def of(column: Any) -> str:
        plain = column.cast(pl.String) if column.dtype in {pl.Categorical, pl.Enum} else column
        with contextlib.suppress(pl.exceptions.PolarsError):
            return _digest(plain.hash(seed=0).to_numpy().tobytes())
        return _digest(plain.to_frame().write_ndjson())

    return {column.name: f"{column.dtype} {len(column)} {of(column)}" for column in frame}


def _frame_text(frame: Any) -> str:
    is_long = frame.height > MAX_ROWS
    head = {"rows": frame.height, "columns": {name: str(dtype) for name, dtype in frame.schema.items()}}
    head |= {"hashes": _fingerprints(frame)} if is_long else {}
    rows = (frame.head(5) if is_long else frame).rows()
    return "".join(f"{json.dumps(line, ensure_ascii=False, default=str)}\n" for line in (head, *rows))


def _label(name: str, options: dict[str, Any]) -> str:
    return "+".join([name, *(f"{key}={value}" for key, value in options.items())])


def record(task: Task) -> None:
    """Record one trace or folder: the work of one process."""
    recorder = Recorder(task)
    import stepscope

    keep, target = recorder.keep, task.folder or task.paths[0]
    source: Any = stepscope.load_run(target) if task.folder else keep("load", stepscope.load, target)
    if source is None:
        return
    if task.folder:
        _record_pairs(recorder, task)
    else:
        keep("load-meta", lambda: json.dumps(_fields_of(source.meta)))
    for kind, table, options in task.questions:
        if not task.folder or kind == "ranks" or (kind == "analysis" and not options):
            keep(_label(table, options), stepscope.show, source, table, workers=0, **options)
    keep("report", stepscope.report, source, workers=0)
    plain = ("--workers", "0", "--no-progress")
    for suffix in ("json", "html", "md"):
        keep(f"report-{suffix}", recorder.command, "report", target, *plain, output=f"report.{suffix}")
    for kind, options in ((kind, options) for kind, variants in EXPORTS.items() for options in variants):
        keep(_label(f"export-{kind}", options), stepscope.export, source, kind, **options)
    keep("export-parquet", recorder.folder, stepscope.export, source, "parquet")
    for name, query in QUERIES.items():
        keep(f"sql-{name}", stepscope.sql, source, query)
    for table in FIGURES:
        keep(f"plot-{table}", lambda name: stepscope.plot(source, name).to_json(), table)
    for table, *rest in map(str.split, SHOWN):
        keep(f"show-{table}", recorder.command, "show", table, target, *rest, *plain)


def _fields_of(meta: Any) -> dict[str, Any]:
    """The fields of a trace's `Meta`: of a struct, or of a dataclass, which it was in earlier versions."""
    names = getattr(meta, "__struct_fields__", ()) or meta.__dataclass_fields__
    return {name: getattr(meta, name) for name in names} | {"facts": dict(meta.facts)}


def _record_pairs(recorder: Recorder, task: Task) -> None:
    """A folder as a case, or its traces in groups; its first trace beside the second and the last; and to itself."""
    import stepscope

    folder, first, keep = str(task.folder), task.paths[0], recorder.keep
    sides: dict[str, tuple[str, ...]] = {"case": (folder,), "itself": (folder, folder)}
    sides |= {"second": (first, task.paths[1]), "last": (first, task.paths[-1])}
    for name, words in sides.items():
        for suffix in ("json", "txt"):
            keep(f"compare-{name}-{suffix}", recorder.command, "compare", *words, output=f"compared.{suffix}")
    for name, table in ((name, table) for name in ("case", "second") for table in COMPARED):
        plain = ("--format", "csv", "--no-progress")
        keep(f"compare-{name}-{table}", recorder.command, "compare", *sides[name], "--table", table, *plain)
    for name in ("second", "last"):
        pair = stepscope.load_run(sides[name])
        for by in ("operator", "part"):
            keep(f"diff-{name}+by={by}", stepscope.show, pair, "diff", workers=0, by=by)
        keep(f"plot-diff-{name}", lambda run: stepscope.plot(run, "diff").to_json(), pair)


def survey(task: Task) -> None:
    """Find what can be opened and what can be asked, for the others; record what the package says of itself."""
    recorder = Recorder(task)
    import stepscope

    readable: list[str] = []
    for path in task.paths:
        with warnings.catch_warnings(action="ignore"):
            try:
                stepscope.load(path)
            except Exception as error:  # noqa: BLE001  whatever fails is a result too
                recorder.fail(f"load {path}", error)
                continue
        readable.append(path)
    folders: dict[tuple[str, ...], str] = {}
    for folder in sorted({str(parent) for path in readable for parent in Path(path).parents}):
        with contextlib.suppress(stepscope.StepscopeError):
            is_input = any(folder.startswith(root) for root, _ in task.masks)
            paths = tuple(stepscope.load_run(folder).paths) if is_input else ()
            if 2 <= len(paths) <= MAX_TRACES:
                folders[paths] = folder  # the innermost one that holds just these
    questions: list[tuple[str, str, dict[str, Any]]] = []
    for row in json.loads(recorder.command("tables", "--format", "json")):
        name, kind = row["name"], row["kind"]
        recorder.keep(f"tables-{name}", recorder.command, "tables", name)
        if kind != "comparison":
            columns = json.loads(recorder.command("tables", name, "--format", "json"))
            questions += [(kind, name, options) for options in ({}, *_choices(columns), *NUMBERS.get(name, []))]
    recorder.keep("formats", recorder.command, "formats")
    for verb in VERBS:
        recorder.keep(f"help-{verb}", recorder.command, verb, "--help")
    sources = [*((path, (path,), None) for path in readable), *((f, paths, f) for paths, f in folders.items())]
    (task.scratch / "survey.json").write_text(json.dumps({"sources": sources, "questions": questions}))


def _choices(columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each option that is a choice or a switch, with each value but its default."""
    found: list[dict[str, Any]] = []
    for row in columns:
        key, default = row["name"].removeprefix("--").replace("-", "_"), (row["doc"] or "").removeprefix("default: ")
        if row["kind"] == "option" and row["type"] == "switch":
            found.append({key: default != "True"})
        elif row["kind"] == "option" and "|" in row["type"]:
            found += [{key: value} for value in row["type"].split("|") if value != default]
    return found


def _in_process(work: Callable[[Task], None], task: Task, limit_s: int) -> None:
    """Let a process of its own do it; one that takes too long is ended, by its own time on a core: others may work."""
    folder = task.out / task.name
    shutil.rmtree(folder, ignore_errors=True)
    process = multiprocessing.get_context("spawn").Process(target=_limited, args=(work, task, limit_s))
    process.start()
    process.join(5 * limit_s)
    process.kill()  # if it still runs: it waits for something
    process.join()
    if process.exitcode:
        was_slow = process.exitcode in {-signal.SIGKILL, -signal.SIGXCPU}
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "errors.tsv").open("a", encoding="utf-8") as file:
            file.write(f"{TIME_LIMIT}\t{limit_s} s\n" if was_slow else f"{CRASH}\texit {process.exitcode}\n")


def _limited(work: Callable[[Task], None], task: Task, limit_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    work(task)


def run(out: Path, src: Path, inputs: list[Path], *, jobs: int, only: list[str]) -> int:
    """Record everything under the inputs into a folder."""
    os.environ.update(POLARS_MAX_THREADS="1", COLUMNS="100", NO_COLOR="1")  # one thread: sums of floats in one order
    start, roots = time.monotonic(), [path.resolve() for path in inputs]
    files = sorted(path for root in roots for path in root.rglob("*") if path.is_file())
    paths = tuple(str(path) for path in files if path.suffix not in NO_INPUTS and path.stat().st_size <= MAX_BYTES)
    masks = tuple((f"{root.parent}{os.sep}", "") for root in roots)
    with tempfile.TemporaryDirectory(prefix="result-snapshot-") as scratch:
        asked = Task("@package", paths, None, (), out.resolve(), src.resolve(), Path(scratch), masks)
        _in_process(survey, asked, 10 * LIMIT_S)
        found = json.loads((Path(scratch) / "survey.json").read_text())
        asked = replace(asked, questions=tuple(map(tuple, found["questions"])))

        def one(source: tuple[str, list[str], str | None]) -> None:
            named, inside, folder = source
            root = next(root for root in roots if Path(named).is_relative_to(root))
            name = os.path.relpath(named, root.parent) + ("@all" if folder else "")
            if any(fnmatch.fnmatch(name, pattern) for pattern in only):
                with tempfile.TemporaryDirectory(dir=scratch) as own:
                    task = replace(asked, name=name, paths=tuple(inside), folder=folder, scratch=Path(own))
                    _in_process(record, task, LIMIT_S)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, found["sources"]))
    results = _results(out)
    failed = sum(text.startswith("error: ") for text in results.values())
    ended = ", ".join(sorted(trace for table, trace in results if table in {TIME_LIMIT, CRASH}))
    say(f"{len({trace for _, trace in results}):,} traces and folders: {len(results):,} results, {failed:,} are errors")
    say(f"{time.monotonic() - start:.0f} s; ended early: {ended or 'none'}")
    return 0


def _results(out: Path) -> dict[tuple[str, str], str]:
    """What a recording holds, by table and trace."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        trace, text = str(path.parent.relative_to(out)), path.read_text("utf-8")
        if path.name != "errors.tsv":
            found[path.name.rpartition(".")[0], trace] = text
            continue
        for name, _, error in (line.partition("\t") for line in text.split("\n") if line):
            found[name, trace] = f"error: {error}"
    return found


def diff(left: Path, right: Path) -> int:
    """Tell of each table which results differ, how, and in which traces. Returns 1 if any do."""
    sides = _results(left), _results(right)
    cut = {trace for side in sides for table, trace in side if table == TIME_LIMIT}
    changes: dict[str, dict[str, list[tuple[str, list[str]]]]] = defaultdict(lambda: defaultdict(list))
    for label, trace in sorted({*sides[0], *sides[1]}):
        base, other = (side.get((label, trace)) for side in sides)
        if base != other and not (trace in cut and None in {base, other}):
            table, _, options = label.partition("+")
            what, lines = _change(base, other)
            changes[table][what].append((f"{trace} ({options})" if options else trace, lines))
    for table, kinds in changes.items():
        say(f"\n{table}")
        for what, touched in sorted(kinds.items(), key=lambda item: -len(item[1])):
            say(f"  {what}: {len(touched):,} results, as in {touched[0][0]}")
            where = ", ".join(trace for trace, _ in touched)
            say("\n".join(f"    {line}" for line in (*(line[:240] for line in touched[0][1][:8]), f"in {where}")))
    total = sum(len(touched) for kinds in changes.values() for touched in kinds.values())
    say(f"\n{total:,} of {len({*sides[0], *sides[1]}):,} results differ, of {len(changes):,} tables")
    if cut:
        say(f"compared only as far as both were recorded (time limit): {', '.join(sorted(cut))}")
    return int(total > 0)


def _change(base: str | None, other: str | None) -> tuple[str, list[str]]:
    """What differs, in a few words that are the same for the same change, and the first lines that do."""
    if base is None or other is None:
        return "only in the second" if base is None else "only in the first", []
    lines = list(difflib.unified_diff(base.split("\n"), other.split("\n"), n=0, lineterm=""))[2:]
    if not (base.startswith(HEAD) and other.startswith(HEAD)):
        failed = [text.startswith("error: ") for text in (base, other)]
        return {0: "text", 1: "an error on one side", 2: "error"}[sum(failed)], lines
    (head, *rows), (other_head, *other_rows) = ([json.loads(x) for x in text.split("\n") if x[:1] in tuple("{[")]
                                                for text in (base, other))  # fmt: skip
    if head["columns"] != other_head["columns"]:
        changed = {name for name, _ in head["columns"].items() ^ other_head["columns"].items()}
        return f"columns or types ({', '.join(sorted(changed))})", lines
    if head["rows"] != other_head["rows"]:
        return "number of rows", [f"{head['rows']:,} rows → {other_head['rows']:,} rows", *lines]
    hashes = head.get("hashes", {}).items() - other_head.get("hashes", {}).items()
    pairs = [(a, b) for a, b in zip(rows, other_rows, strict=True) if repr(a) != repr(b)]
    cells = {name for pair in pairs for name, a, b in zip(head["columns"], *pair, strict=True) if repr(a) != repr(b)}
    names = [name for name in head["columns"] if name in cells | {name for name, _ in hashes}]
    shown = [
        f"{sign} {json.dumps(row, ensure_ascii=False)}" for pair in pairs for sign, row in zip("-+", pair, strict=True)
    ]
    what = f"values ({', '.join(names)})" if names else "warnings"
    return what, [f"{len(pairs):,} of the {len(rows):,} recorded rows", *shown] if names else lines


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    parts = verbs.add_parser("run", help="record all results")
    parts.add_argument("out", type=Path)
    parts.add_argument("--src", type=Path, default=ROOT / "src", help="folder that holds the package stepscope")
    parts.add_argument("--inputs", type=Path, nargs="+", default=[ROOT / "examples", ROOT.parent / "shared" / "data"])
    parts.add_argument("--jobs", type=int, default=2, help="processes at once")
    parts.add_argument("--only", nargs="+", default=["*"], help="patterns of names of traces, as 'examples/*'")
    parts = verbs.add_parser("diff", help="compare two recordings; exit 1 if they differ")
    parts.add_argument("left", type=Path)
    parts.add_argument("right", type=Path)
    wanted = parser.parse_args()
    if wanted.verb == "diff":
        return diff(wanted.left, wanted.right)
    return run(wanted.out, wanted.src, wanted.inputs, jobs=wanted.jobs, only=wanted.only)


if __name__ == "__main__":
    sys.exit(main())
