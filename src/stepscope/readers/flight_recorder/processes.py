"""What `stepscope hang` writes of the processes of a job: their states, the cores that they use, and their stacks.

The file lies beside the dumps of the flight recorder, if there are any, and is then part of the same trace.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Literal

import msgspec
import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.schema import COUNTERS, PROCESSES, STACKS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.source import IssueLog, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = "processes"
FILE = "processes.json"
_HINT = "ask the job again: stepscope hang --pid N"
_STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "stopped", "Z": "gone", "X": "gone",
           "I": "sleeping"}  # fmt: skip
#: Functions that end when other ranks have come, or when the device is done.
_COLLECTIVE = regex(
    r"c10d::|gloo::|ProcessGroup|\b(?:p?nccl|rccl|hccl|xccl)[A-Z_]|paddle::distributed|MPI_[A-Z]|TCPStore|uv_run"
)
_DEVICE = regex(
    r"(?:Stream|Device|Event|Ctx|Context)_?Synchronize|cu[A-Z]\w*Synchronize|aclrtSynchronize|_cuda_synchronize"
)
_DISTRIBUTED = regex(r"torch/distributed/|paddle/distributed/|mpi4py|deepspeed/comm/")
_LIBRARIES = regex(
    r"(?:^|/)(?:site|dist)-packages/|(?:^|/)lib/python3[^/]*/|^<|/torch/|\.so(?:\.|$)|^\[|\.c(?:c|pp|xx)?$|\.h$"
    r"|(?:^|/)_stepscope_\w+\.py$"
)
_ADDRESS = regex(r"0x[0-9a-f]+\Z")
_MOST_FRAMES, _MOST_PROCESSES, _MOST_LETTERS, _MOST_BYTES = 256, 100_000, 300, 16 << 20
#: Files with outputs of py-spy, and the lines in them.
_PY_SPY = regex(r"py-?_?spy|stack", re.IGNORECASE)
_LAST_NUMBER = regex(r"\d{1,9}")
_PROCESS = regex(r"^Process (\d{1,9}): (.*)", re.MULTILINE)
_THREAD = regex(r"^Thread ", re.MULTILINE)
_NAME = regex(r'"(.*)"')
_FRAME = regex(r"^    (\S[^\n]*?) \(([^\n]*?)(?::(\d{1,9}))?\)[ \t]*$", re.MULTILINE)


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct):
    thread_name: str | None = None
    os_thread_id: int | None = None
    frames: list[_Frame] = []
    pid: int = 0


class _Process(msgspec.Struct):
    pid: int
    rank: int | None = None
    world_size: int | None = None
    command: str = ""
    state: str = ""
    wait_channel: str | None = None
    cores_used: float | None = None
    threads: list[_Thread] = []
    problem: str | None = None


class _Issue(msgspec.Struct):
    code: str
    severity: Literal["info", "warning", "error"]
    count: int
    example: str


class _Document(msgspec.Struct):
    schema: str
    processes: list[_Process]
    host: str = ""
    taken_unix_ns: int | None = None
    #: Rows of metric, unit, device, value: what accelerators reported.
    counters: list[tuple[str, str, str, float]] = []
    issues: list[_Issue] = []


def read(source: Source) -> Trace:
    """The processes of a job by themselves. Raises CorruptInput, StepscopeError (size limit)."""
    document = _decoded(source)
    issues = IssueLog()
    tables = _tables(document, 0, issues)
    tables["issues"] = issues.table()
    taken = document.taken_unix_ns
    origin = taken if taken is not None and 0 <= taken < 2**63 else None
    facts = {"host": document.host[:_MOST_LETTERS]} if document.host else {}
    n_rows = tables["processes"].height
    meta = Meta(source.label, FORMAT, n_events=n_rows, size_bytes=source.n_bytes, origin_unix_ns=origin, facts=facts)
    return Trace(meta, tables)


def processes_of_folder(path: str, stacks: pl.DataFrame, issues: IssueLog) -> dict[str, pl.DataFrame]:
    """The tables `processes`, `counters` and `stacks` for the folder of a dump with these stacks; empty without files.

    They come from the file of `stepscope hang`, and for other ranks from what `py-spy dump` printed, as text or JSON.
    """
    folder = files.split(path)[0] or "."
    document = _Document("", [])
    try:
        if files.exists(file := files.joined(folder, FILE)):
            document = _decoded(Source(file, None, None))
    except CorruptInput as error:
        issues.add("unreadable_processes", "warning", 1, error.message)
    known = {one.rank for one in document.processes}
    document.processes += [one for one in _of_py_spy(folder, issues) if one.rank not in known]
    if not document.processes:
        return {}
    tables = _tables(document, stacks.height, issues)
    return {**tables, "stacks": pl.concat([stacks, tables["stacks"]])}


def _decoded(source: Source) -> _Document:
    data = b"".join(source.chunks())
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        reason = f"no processes of a job: {source.damage or error}"
        raise CorruptInput(reason, _HINT, path=source.label) from None
    if len(document.processes) > _MOST_PROCESSES:
        raise CorruptInput(f"it lists more than {_MOST_PROCESSES:,} processes", _HINT, path=source.label)
    return document


def _of_py_spy(folder: str, issues: IssueLog) -> list[_Process]:
    """The processes in the outputs of py-spy in a folder, which have the rank as the last number of their names."""
    try:
        listed = files.files_in(folder, deep=False)
    except StepscopeError:  # a bucket whose files may be read and not listed
        return []
    paths = [path for path in listed if _PY_SPY.search(files.split(path)[1]) and files.rank_of_dump(path) is None]
    made = []
    for path in paths[:_MOST_PROCESSES]:
        process = _from_py_spy(b"".join(Source(path, None, _MOST_BYTES).chunks()))
        if process is None:
            issues.add("unreadable_processes", "warning", 1, f"{files.split(path)[1]} is no output of py-spy dump")
        else:
            number = int((_LAST_NUMBER.findall(files.split(path)[1]) or ["-1"])[-1])
            process.rank = None if number in (-1, process.pid) else number
            made.append(process)
    return made


def _from_py_spy(data: bytes) -> _Process | None:
    """The process of `py-spy dump`, with or without `--json`; None for anything else."""
    if data.lstrip().startswith(b"["):
        try:
            threads = msgspec.json.decode(data, type=list[_Thread])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        return _Process(threads[0].pid, threads=threads) if threads else None
    text = data.decode("utf-8", "replace")
    head = _PROCESS.search(text)
    if head is None:
        return None
    threads = []
    for part in _THREAD.split(text)[1:]:
        number, _, rest = part.partition(" ")
        name = _NAME.search(rest.partition("\n")[0])
        frames = [_Frame(one[1], _in_full(one[2]), int(one[3] or 0)) for one in _FRAME.finditer(rest)]
        own = int(number, 16) if number.startswith("0x") else int(number) if number.isdecimal() else None
        threads.append(_Thread(name[1] if name else None, own, frames))
    return _Process(int(head[1]), command=head[2].strip(), threads=threads)


def _in_full(name: str) -> str:
    """The name of a file that py-spy has shortened to that within its folder of libraries."""
    top = name.partition("/")[0].removesuffix(".py")
    return f"lib/python3/{name}" if top in sys.stdlib_module_names or name.startswith("torch/") else name


def _tables(document: _Document, first_stack: int, issues: IssueLog) -> dict[str, pl.DataFrame]:
    for issue in document.issues[:_MOST_PROCESSES]:
        count = min(max(issue.count, 0), 2**62)
        issues.add(issue.code[:_MOST_LETTERS], issue.severity, count, issue.example[:_MOST_LETTERS])
    rows: list[dict[str, object]] = []
    stacks: list[list[str]] = []
    for one in document.processes:
        main = _main_thread(one)
        frames = main.frames[:_MOST_FRAMES] if main else []
        state = _STATES.get(one.state)
        rows.append({
            "rank": one.rank if one.rank is not None and 0 <= one.rank < 2**31 else None,
            "host": document.host[:_MOST_LETTERS],
            "pid": one.pid if 0 < one.pid < 2**62 else 0,
            "world_size": one.world_size if one.world_size is not None and 0 < one.world_size < 2**31 else None,
            "is_gone": state == "gone",
            "state": state,
            "wait_channel": one.wait_channel and one.wait_channel[:_MOST_LETTERS],
            "cores_used": one.cores_used if one.cores_used is not None and 0 <= one.cores_used < 1e6 else None,
            **_doing(frames),
            "line": next((_text(frame) for frame in frames if not _LIBRARIES.search(frame.filename)), None),
            "stack_id": first_stack + len(stacks) if frames else None,
            "n_threads": len(one.threads),
            "command_line": one.command[:_MOST_LETTERS],
            "problem": None if one.problem is None else one.problem[:_MOST_LETTERS],
        })  # fmt: skip
        if frames:
            stacks.append([_text(frame) for frame in reversed(frames)])
    table = pl.DataFrame({"frames": stacks}, schema={"frames": pl.List(pl.String)})
    counters = pl.DataFrame(
        [(0, *row) for row in document.counters[:_MOST_PROCESSES]],
        schema={name: COUNTERS.dtypes[name] for name in ("ts_ns", "metric", "unit", "device", "value")},
        orient="row",
    )
    return {
        "counters": COUNTERS.conform(counters),
        "processes": PROCESSES.conform(pl.DataFrame(rows, schema=dict(PROCESSES.dtypes))),
        "stacks": STACKS.conform(table.with_row_index("stack_id", offset=first_stack)),
    }


def _main_thread(process: _Process) -> _Thread | None:
    own = [t for t in process.threads if t.os_thread_id == process.pid or t.thread_name == "MainThread"]
    return next(iter([*own, *process.threads]), None)


def _doing(frames: Sequence[_Frame]) -> dict[str, str | None]:
    """What a thread stands in, and the function in which it does, by its frames, innermost first."""
    for awaited, is_it in (("collective", _is_collective), ("device", _is_of_device)):
        if (frame := next(filter(is_it, frames), None)) is not None:
            return {"awaits": awaited, "function": _called(frame)}
    named = (_called(frame) for frame in frames if not _ADDRESS.match(frame.name))
    return {"awaits": None, "function": next(named, None)}


def _is_collective(frame: _Frame) -> bool:
    return bool(_COLLECTIVE.search(frame.name) or _DISTRIBUTED.search(frame.filename))


def _is_of_device(frame: _Frame) -> bool:
    return _DEVICE.search(frame.name) is not None


def _called(frame: _Frame) -> str:
    return frame.name[:_MOST_LETTERS]


def _text(frame: _Frame) -> str:
    return f"{_called(frame)} ({frame.filename[-_MOST_LETTERS:]}:{frame.line})"
