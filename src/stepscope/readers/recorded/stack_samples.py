"""Python stacks that `stepscope record --stacks` left with a trace: the table `stack_samples`, on the trace's time.

The file is rows of several kinds, which record/stacks/stack_file.py explains: frames, stacks of frames, threads and
processes once each, and samples that refer to them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.names import map_names
from stepscope.core.patterns import regex
from stepscope.core.schema import STACK_SAMPLES, STACKS
from stepscope.core.trace import extent_ns
from stepscope.readers.common.source import IssueLog, Source, with_issues
from stepscope.readers.recorded import STACK_FILES, recording_of, side_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.core.trace import Trace


_COLUMNS = {
    "kind": pl.String(),
    "id": pl.Int64(),
    "ts_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "pid": pl.Int64(),
    "tid": pl.Int64(),
    "n": pl.Int64(),
    "text": pl.String(),
    "file": pl.String(),
}
_LIBRARIES = regex(r"^.*(?:site-packages|dist-packages|/lib/python\d+(?:\.\d+)?t?)/")
_PROFILES = (".pt.trace.json", ".pt.trace.json.gz")
_THREAD = ("pid", "tid")
_HINT = "record again with stepscope record --stacks"


def with_stacks(trace: Trace, path: str) -> Trace:
    """The trace with the stacks from the folder of `path` in `stack_samples` and `stacks`; problems go to `issues`.

    If a folder holds several profiles, each gets the stacks of its own process and of those that this one started.
    """
    side = side_file(path, STACK_FILES)
    recording = recording_of(path)
    issues = IssueLog()
    if recording.get("stacks_hz") and "n_stack_samples" not in recording:
        what = "the recorder was killed, or is still running: Python stacks of the last seconds may be missing"
        issues.add("stacks_cut", "warning", 1, what)
    if side is None:
        return with_issues(trace, issues)
    try:
        rows = read_stacks(side, issues)
    except StepscopeError as error:
        issues.add("stacks_unreadable", "warning", 1, error.message)
        return with_issues(trace, issues)
    origin = trace.meta.origin_unix_ns
    if origin is None:
        issues.add("stacks_unplaced", "warning", 1, "the trace does not say when it began, in Unix time")
        return with_issues(trace, issues)
    stacks = _stacks(rows, str(recording.get("cwd") or ""))
    samples = _own(rows, trace, path).filter(pl.col("kind").is_in(["W", "G"]))
    sound = samples.drop_nulls(["ts_ns", "dur_ns", *_THREAD, "n"]).join(stacks, on="id", how="semi")
    what = f"samples in {side} without time, thread or stack"
    issues.add("stacks_dropped", "warning", samples.height - sound.height, what)
    used = stacks.join(sound, on="id", how="semi").sort("id")
    used = used.with_columns(stack_id=pl.int_range(trace.stacks.height, trace.stacks.height + pl.len()))
    placed = _placed(sound.join(used.select("id", "stack_id"), on="id"), rows, origin)
    if placed.height and _is_elsewhere(placed, trace):
        issues.add("stacks_elsewhere", "info", placed.height, "no stack was sampled while the profile was recorded")
    every = pl.concat([trace.stacks, STACKS.conform(used)])
    return with_issues(trace.with_tables(stacks=every, stack_samples=placed), issues)


def read_stacks(path: str, issues: IssueLog) -> pl.DataFrame:
    """All rows of a file; fields that do not parse are null. A truncated file is read as far as it goes.

    Raises StepscopeError (unreadable), CorruptInput (not such a file).
    """
    source = Source(path)
    text = b"".join(source.chunks())
    end = text.rfind(b"\n") + 1
    if source.damage:
        issues.add("stacks_cut", "warning", 1, f"{path}: {source.damage}; read up to the last whole row")
    try:
        frame = pl.read_csv(
            io.BytesIO(text[:end]), separator="\t", quote_char=None, infer_schema=False, truncate_ragged_lines=True
        )
    except (pl.exceptions.PolarsError, UnicodeError) as error:
        raise CorruptInput(f"not a file of stacks: {str(error).splitlines()[0]}", _HINT, path=path) from None
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise CorruptInput(f"not a file of stacks: no column {', '.join(missing)}", _HINT, path=path)
    return frame.select(pl.col(name).cast(dtype, strict=False) for name, dtype in _COLUMNS.items())


def _stacks(rows: pl.DataFrame, folder: str) -> pl.DataFrame:
    """The distinct stacks of the rows. Columns: id, frames (outermost first, as in "train (train.py:12)")."""
    of_kind = rows.filter(pl.col("kind") == "F").drop_nulls(["id", "text"]).unique("id", keep="first")
    file = map_names(of_kind["file"].fill_null(""), lambda path: _short(path, folder), pl.String())
    line = pl.when(pl.col("n") > 0).then(pl.format(":{}", "n")).otherwise(pl.lit(""))
    named = pl.when(file == "").then(pl.col("text")).otherwise(pl.format("{} ({}{})", "text", file, line))
    frames = of_kind.select(frame="id", name=named.str.replace_all(";", ",", literal=True))
    stacks = rows.filter(pl.col("kind") == "S").drop_nulls(["id", "text"]).unique("id", keep="first")
    every = stacks.select("id", frame=pl.col("text").str.split(" ").cast(pl.List(pl.Int64), strict=False))
    flat = every.explode("frame", empty_as_null=True).join(frames, on="frame", how="left", maintain_order="left")
    grouped = flat.group_by("id", maintain_order=True).agg(frames="name", is_whole=pl.col("name").is_not_null().all())
    return grouped.filter("is_whole").select("id", "frames")


def _short(path: str, folder: str) -> str:
    """A file's path without the folder of the job, or that of Python's libraries; else its name and one folder."""
    if folder and path.startswith(folder.rstrip("/") + "/"):
        return path[len(folder.rstrip("/")) + 1 :]
    short = _LIBRARIES.sub("", path)
    return short if short != path else "/".join(path.split("/")[-2:])


def _own(rows: pl.DataFrame, trace: Trace, path: str) -> pl.DataFrame:
    """Rows of the processes of a trace: all, unless the folder holds other profiles."""
    folder = files.split(path)[0]
    profiles = [file for file in files.files_in(folder or ".", deep=False) if file.endswith(_PROFILES)]
    mine = set(trace.tracks["pid"].drop_nulls().unique().to_list())
    if len(profiles) < 2 or not mine:
        return rows
    of_kind = rows.filter(pl.col("kind") == "P").drop_nulls("pid").select("pid", "n")
    return rows.filter(pl.col("pid").is_in(_descending(of_kind.iter_rows(), mine)))


def _descending(parents: Iterable[tuple[int, int | None]], wanted: set[int]) -> list[int]:
    """The wanted processes and all that descend from them; `parents` are pairs of a process and its parent."""
    children: dict[int | None, list[int]] = {}
    for pid, parent in parents:
        children.setdefault(parent, []).append(pid)
    pids, queue = set(wanted), list(wanted)
    while queue:
        new = [pid for pid in children.get(queue.pop(), []) if pid not in pids]
        pids.update(new)
        queue += new
    return sorted(pids)


def _placed(samples: pl.DataFrame, rows: pl.DataFrame, origin_unix_ns: int) -> pl.DataFrame:
    """Samples as the table, in order of time from the origin."""
    names = rows.filter(pl.col("kind") == "T").select(*_THREAD, thread="text").unique(_THREAD, keep="last")
    ran = rows.filter((pl.col("kind") == "C") & (pl.col("dur_ns") > 0)).drop_nulls(["ts_ns", *_THREAD, "n"])
    ratio = (pl.col("n") / pl.col("dur_ns")).clip(0.0, 1.0)
    ran = ran.select("ts_ns", *_THREAD, oncpu_ratio=ratio, until="dur_ns").with_columns(
        until=pl.sum_horizontal("ts_ns", "until")
    )
    placed = (
        samples.join(names, on=_THREAD, how="left")
        .sort("ts_ns", maintain_order=True)
        .join_asof(ran.sort("ts_ns"), on="ts_ns", by=list(_THREAD), check_sortedness=False)
        .with_columns(
            pl.when(pl.col("ts_ns") < pl.col("until")).then("oncpu_ratio").alias("oncpu_ratio"),
            pl.col("ts_ns") - origin_unix_ns,
            on_gil=pl.col("kind") == "G",
            # Python names threads once it has imported threading; the first one is called so then.
            thread=pl.when(pl.col("thread") != "")
            .then("thread")
            .when(pl.col("pid") == pl.col("tid"))
            .then(pl.lit("MainThread")),
            n_samples="n",
        )
    )
    return STACK_SAMPLES.conform(placed)


def _is_elsewhere(placed: pl.DataFrame, trace: Trace) -> bool:
    """Whether no stack was seen at the time of any span."""
    if trace.spans.is_empty() or not trace.has_clock:
        return False
    first, last = extent_ns(trace.spans)
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    return placed.filter((ends > first) & (pl.col("ts_ns") < last)).is_empty()
