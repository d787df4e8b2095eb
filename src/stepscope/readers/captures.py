"""Operators of replayed graphs, from a trace in which the graphs were captured.

A replayed graph (CUDA, HIP) is one call on the host and hundreds of kernels that belong to no operator. While a graph
is captured, each launch is made under its operator, module and Python stack. Engines that serve models write a trace
of that into a folder beside the profile: vLLM as `capture_traces/graph_capture_rank_R….json.gz`, SGLang as
`bs_B_rankR.json.gz` there, both with an `execution_details.json`, or in `graph_capture_profile` as
`RUNNER_bs_B_rankR.json.gz` or, all sizes in one file, `cuda_graph_capture-RUNNER-TP-R.json.gz`. The n-th launch of a
kernel in the capture is the n-th run of that kernel in the replay; where the capture does not name kernels (CUDA), the
n-th launch is the n-th kernel.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import nearest
from stepscope.core.names import is_graph_launch
from stepscope.core.patterns import regex
from stepscope.core.schema import CAPTURED, DEVICE_WORK, FRAMES, OPS, SPAN_REFERENCES, SPANS, STACKS
from stepscope.core.table import Name, integers
from stepscope.readers.common.source import IssueLog, with_issues
from stepscope.readers.common.span_builder import note_coverage

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]

#: Folders of capture traces, in that of the profile or next to it.
FOLDERS = ("capture_traces", "graph_capture_profile")
DETAILS = "execution_details.json"
_BEGIN, _END = "StreamBeginCapture", "StreamEndCapture"
_RANK = regex(r"(?:rank_?|-TP-)(\d{1,9})")
#: What a capture is for, and what a step of the engine runs: its batch, or its tokens (several numbers add up).
_CAPTURED_SIZE = regex(r"^capture_(?:graph_bs_)?(\d{1,9})(?:_|$)")
_FILE_SIZE = regex(r"(?:^|/|_)bs_(\d{1,9})_")
_RUN_SIZE = regex(
    r"^(?:execute_(\d{1,9})_context|execute_context_\d+\((\d{1,9})\)_generation_\d+\((\d{1,9})\)"
    r"|step\[(?:DECODE|EXTEND|MIXED)\b[^\]]*\bbs=(\d{1,9})|decode\[bs=(?:\d+/)?(\d{1,9})\b)"
)
_EMBEDDING = "aten::embedding"
_CALLS = ("runtime", "driver")
_CHOSEN = {"launch_id": pl.UInt32(), "graph": pl.Int64()}
_MOST_DETAILS = 1 << 20
_PLACE = ("of_kernel", "at")
#: Operators and modules around a call that count, innermost first. Python stops programs at a depth of 1,000.
_DEEPEST = 1_000
#: Modules around a launch that are looked at, innermost first.
_MOST_AROUND = 100
#: What is added for each replayed kernel at the most, and beyond that.
_MOST_NODES, _MORE_NODES = 64, 100_000


class Graph(msgspec.Struct, frozen=True):
    """One captured graph.

    `launches` has a row for each launch in order: kernel (name, null where not recorded), node (row of `nodes` of its
    operator, or null). `nodes` are the operators and modules around them, outermost first: name, category, first and
    end (the launches in it, end exclusive), parent (row of `nodes`, or null), and span_id in `source`.
    """

    source: Trace
    size: int | None
    launches: pl.DataFrame
    nodes: pl.DataFrame


def capture_files(path: str, rank: int | None = None) -> list[str]:
    """The capture traces beside a profile; if their names have ranks, those of this rank."""
    folder, name = files.split(path)
    if files.is_url(path) or folder.endswith(FOLDERS) or name == DETAILS:
        return []
    above = [files.split(folder)[0]] if folder else []
    around = (files.joined(one, inside) for one in (folder, *above) for inside in FOLDERS)
    return next((_in_folder(one, rank) for one in around if files.is_folder(one)), [])


def _given(path: str, rank: int | None) -> list[str]:
    """The capture that was named, or those in the folder that was."""
    if not files.is_folder(path):
        return [path]
    inside = (one for name in FOLDERS if files.is_folder(one := files.joined(path, name)))
    return _in_folder(next(inside, path), rank)


def _in_folder(folder: str, rank: int | None) -> list[str]:
    traces = [file for file in files.files_in(folder, deep=False) if ".json" in file and not file.endswith(DETAILS)]
    of_rank = {file: _RANK.search(files.split(file)[1]) for file in traces}
    return [file for file, its in of_rank.items() if its is None or rank is None or int(its[1]) == rank]


def with_captures(trace: Trace, path: str, open_file: Callable[[str], Trace], given: str | None = None) -> Trace:
    """The trace with the operators of its replayed graphs: from captures in itself, and from those beside `path`.

    `given` is a capture trace, or a folder of them, to use in place of those beside it. Captures that cannot be read or
    do not fit, and how much of the replayed work was joined, are `issues`. Raises StepscopeError if what was given
    cannot be read, or holds no capture.
    """
    replays = replays_of(trace)
    if replays.is_empty():
        issues = IssueLog()
        what = f"{given}: no replayed graph without operators is in the recording"
        issues.add("capture_refused", "warning", given is not None, what)
        return with_issues(trace, issues)
    issues, graphs = IssueLog(), [*graphs_of(trace)]
    for file in capture_files(path, trace.meta.rank) if given is None else _given(given, trace.meta.rank):
        try:
            graphs += graphs_of(open_file(file), _stated_size(file))
        except StepscopeError as error:
            if given == file:
                raise
            issues.add("capture_refused", "warning", 1, f"{file}: {error.message}")
    if not graphs:
        if given is not None:
            raise StepscopeError(f"{given} holds no capture of a graph", "name the trace that was made while capturing")
        return with_issues(trace, issues)
    matched, refused = match(replays, graphs)
    for reason, n in refused.items():
        issues.add("capture_refused", "warning", n, f"launches of graphs without operators: {reason}")
    n_nodes = sum(graphs[at].nodes.height for at in matched.values())
    if n_nodes > _MOST_NODES * replays.height + _MORE_NODES:
        what = f"{n_nodes:,} operators and modules would be added to {replays.height:,} kernels and copies"
        issues.add("capture_refused", "warning", len(matched), what)
    elif matched:
        n_work = sum(graphs[at].launches.height for at in matched.values())
        what = f"of {replays.height:,} kernels and copies in replayed graphs have the operator of their capture"
        issues.add("graphs_joined", "info", n_work, what)
        trace = grafted(trace, replays, graphs, matched)
        trace = _counted_again(trace, issues)
    return with_issues(trace, issues)


def _counted_again(trace: Trace, issues: IssueLog) -> Trace:
    """The trace without the count of work that had no operator, which goes to `issues` as it is now."""
    spans = trace.spans
    rows = {c: integers(spans[c]) for c in ("launch_id", "op_id")}
    is_work = spans["category"].is_in(DEVICE_WORK).to_numpy()
    note_coverage(spans["dur_ns"].to_numpy(), is_work, rows["launch_id"], issues, rows["op_id"])
    codes = issues.table()["code"]
    return trace.with_tables(issues=trace.issues.filter(pl.col("code").is_in(["no_operator", *codes]).not_()))


def replays_of(trace: Trace) -> pl.DataFrame:
    """The work of replayed graphs that has no operator, in order: launch_id, span_id, kernel, size.

    `kernel` is empty for copies and fills. `size` is that of the run around the launch, null if it states none.
    """
    spans = trace.spans
    graph_launches = _rows_named(spans, is_graph_launch)
    work = spans.filter(
        pl.col("category").is_in(DEVICE_WORK) & pl.col("launch_id").is_in(graph_launches.implode())
    ).filter(pl.col("op_id").is_null().any().over("launch_id"))
    kernel = pl.when(pl.col("category") == "kernel").then(pl.col("name").cast(pl.String)).otherwise(pl.lit(""))
    ordered = work.sort("launch_id", "ts_ns").select("launch_id", "span_id", kernel=kernel.cast(Name))
    sizes = _sizes_around(spans, ordered["launch_id"].unique(), _RUN_SIZE)
    return ordered.join(sizes, on="launch_id", how="left", maintain_order="left")


def _rows_named(spans: pl.DataFrame, wanted: Callable[[str], bool]) -> pl.Series:
    """Ids of calls of the host whose name is wanted."""
    calls = spans.filter(pl.col("category").is_in(_CALLS)).select("span_id", "name")
    names = [name for name in calls["name"].unique().cast(pl.String).to_list() if wanted(name)]
    return calls.filter(pl.col("name").cast(pl.String).is_in(names))["span_id"]


def _sizes_around(spans: pl.DataFrame, launches: pl.Series, pattern: re.Pattern[str]) -> pl.DataFrame:
    """The size that the innermost range around each launch states, by its name: launch_id, size (Int64)."""
    ranges = spans.filter(pl.col("category") == "user_range").select("span_id", "track_id", "ts_ns", "dur_ns", "name")
    texts = {name: pattern.search(name) for name in ranges["name"].unique().cast(pl.String)}
    sizes = {name: sum(int(n) for n in said.groups() if n) for name, said in texts.items() if said is not None}
    stating = ranges.with_columns(size=pl.col("name").cast(pl.String).replace_strict(sizes, default=None))
    stating = stating.drop_nulls("size").select("span_id", pl.col("size").cast(pl.Int64))
    is_stating = np.zeros(spans.height, np.bool_)
    is_stating[stating["span_id"].to_numpy()] = True
    parents = integers(spans["parent_id"])
    around = _Tree(spans, parents, nearest(parents, is_stating)).above(launches.to_numpy().astype(np.int64))
    held = pl.DataFrame({"launch_id": launches, "span_id": pl.Series(around)}).filter(pl.col("span_id") >= 0)
    return held.join(stating.cast({"span_id": pl.Int64}), on="span_id").select("launch_id", "size")


def _stated_size(file: str) -> int | None:
    """The size that the capture's file name or the details beside it state. Raises StepscopeError if they differ."""
    folder, name = files.split(file)
    said = {int(size[1]) for size in [_FILE_SIZE.search(file)] if size}
    try:
        with files.opened(files.joined(folder, DETAILS)) as file_of_sizes:
            listed = json.loads(file_of_sizes.read(_MOST_DETAILS))
    except (OSError, ValueError, StepscopeError, RecursionError):
        listed = []
    for row in listed if isinstance(listed, list) else []:
        if isinstance(row, dict) and row.get("file") == name and isinstance(row.get("batch_size"), int):
            said.add(row["batch_size"])
    if len(said) > 1:
        raise StepscopeError(f"its name and {DETAILS} state different batch sizes: {sorted(said)}")
    return next(iter(said), None)


def graphs_of(capture: Trace, stated: int | None = None) -> Iterator[Graph]:
    """The graphs that were captured in a trace. Raises StepscopeError if it states another size than its file does."""
    spans = capture.spans
    begins = _rows_named(spans, lambda name: _BEGIN in name)
    ends = _rows_named(spans, lambda name: _END in name)
    if begins.is_empty() or ends.is_empty():
        return
    windows = _windows(spans, begins, ends)
    launches = capture.captured_launches
    calls = launches.with_columns(spans["ts_ns", "op_id"][launches["span_id"]])
    calls = calls.join_where(
        windows, pl.col("ts_ns") > pl.col("from_ns"), pl.col("ts_ns") < pl.col("until_ns")
    ).sort("window", "ts_ns")  # fmt: skip
    sizes = dict(_sizes_around(spans, begins, _CAPTURED_SIZE).iter_rows())
    tree = _Tree.of(spans)
    embedded = _embedded_tokens(capture) if stated is None and not sizes else []
    for part in calls.partition_by("window", maintain_order=True):
        low, high = part["from_ns"][0], part["until_ns"][0]
        read = next((n for at, n in embedded if low < at < high), stated)
        size = sizes.get(part["begin_id"][0], read)
        if stated is not None and size != stated:
            raise StepscopeError(f"it was captured for a size of {size}, and its name or {DETAILS} says {stated}")
        launches, nodes = tree.around(part)
        yield Graph(capture, size, launches, nodes)


def _embedded_tokens(capture: Trace) -> list[tuple[int, int]]:
    """When tokens are embedded, and how many: the size of a graph that nothing else states."""
    spans = capture.spans.filter((pl.col("category") == "operator") & (pl.col("name").cast(pl.String) == _EMBEDDING))
    shapes = spans.select("span_id", "ts_ns").join(capture.ops, on="span_id").select("ts_ns", "input_shapes")
    sizes = []
    for at, text in shapes.drop_nulls().sort("ts_ns").iter_rows():
        with contextlib.suppress(ValueError, TypeError, IndexError):
            sizes.append((at, math.prod(json.loads(text)[1])))
    return sizes


def _windows(spans: pl.DataFrame, begins: pl.Series, ends: pl.Series) -> pl.DataFrame:
    """From the last begin before each end on a thread to that end: window, begin_id, from_ns, until_ns."""
    marks = spans[begins].select("track_id", "ts_ns", begin_id="span_id", from_ns=pl.col("ts_ns")).sort("ts_ns")
    closing = spans[ends].select("track_id", "ts_ns", until_ns="ts_ns").sort("ts_ns")
    paired = marks.join_asof(closing, on="ts_ns", by="track_id", strategy="forward", check_sortedness=False)
    ended = paired.drop_nulls("until_ns").unique(["track_id", "until_ns"], keep="last", maintain_order=True)
    # Of captures at the same time, on several threads, launches are those of the first.
    apart = ended.sort("from_ns", "until_ns").filter(
        (pl.col("from_ns") >= pl.col("until_ns").cum_max().shift()).fill_null(value=True)
    )
    return apart.with_row_index("window").select("window", "begin_id", "from_ns", "until_ns")


class _Tree(msgspec.Struct, frozen=True):
    """The nearest span of some categories at or around each span (−1: none)."""

    spans: pl.DataFrame
    parents: Ints
    at: Ints

    @staticmethod
    def of(spans: pl.DataFrame, categories: Sequence[str] = ("operator", "module")) -> _Tree:
        parents = integers(spans["parent_id"])
        return _Tree(spans, parents, nearest(parents, spans["category"].is_in(categories).to_numpy()))

    def around(self, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """`launches` and `nodes` of the graph that these calls made."""
        position = np.arange(calls.height)
        node = self.above(calls["span_id"].to_numpy().astype(np.int64))
        operator = calls["op_id"].cast(pl.Int64)
        pairs: list[tuple[Ints, Ints]] = []
        while (inside := node >= 0).any() and len(pairs) < _DEEPEST:
            position, node = position[inside], node[inside]
            pairs.append((node, position))
            node = self.above(node)
        nodes = np.concatenate([n for n, _ in pairs] or [np.empty(0, np.int64)])
        launches = np.concatenate([p for _, p in pairs] or [np.empty(0, np.int64)])
        grouped = pl.DataFrame({"span_id": nodes, "at": launches}).group_by("span_id").agg(
            first=pl.col("at").min(), end=pl.col("at").max() + 1
        ).sort("first", "end", "span_id", descending=[False, True, False]).with_row_index("node")  # fmt: skip
        above = pl.Series("span_id", self.above(grouped["span_id"].to_numpy()))
        row_of = grouped.select("span_id", "node")
        named = self.spans.select("name", "category")[grouped["span_id"]]
        table = grouped.with_columns(
            named["name"], named["category"],
            parent=above.to_frame().join(row_of, on="span_id", how="left", maintain_order="left")["node"],
        )  # fmt: skip
        own = operator.to_frame("span_id").join(row_of, on="span_id", how="left", maintain_order="left")["node"]
        return calls.select("kernel", node=own), table

    def above(self, rows: Ints) -> Ints:
        """The nearest such span around each of these."""
        above = self.parents[rows]
        return np.where(above >= 0, self.at[above], -1)


def match(replays: pl.DataFrame, graphs: Sequence[Graph]) -> tuple[dict[int, int], dict[str, int]]:
    """The graph that each launch replays, by launch_id; and why launches have none, with their number.

    A graph fits if it has as many launches, of the same kernels where the capture names them, and
    was captured for the size that ran, or is the smallest that holds it (engines fill a batch up to a captured size).
    Of several that fit, as layers do, each run of launches takes them in their order.
    """
    code = pl.col("kernel").to_physical().cast(pl.String)
    launches = replays.group_by("launch_id", maintain_order=True).agg(
        pl.col("size").first(), kernels=code.str.join(","), n=pl.len()
    )
    starts = launches["n"].cum_sum() - launches["n"]
    refused: dict[str, int] = {}
    fitting: dict[tuple[str, int | None], tuple[int, ...] | str] = {}
    chosen: list[tuple[int, tuple[int, ...]]] = []
    for (launch, size, kernels, n), start in zip(
        launches.select("launch_id", "size", "kernels", "n").iter_rows(), starts, strict=True
    ):
        if (kernels, size) not in fitting:
            fitting[kernels, size] = _fitting(replays["kernel"].slice(start, n).cast(pl.String), size, graphs)
        fits = fitting[kernels, size]
        if isinstance(fits, str):
            refused[fits] = refused.get(fits, 0) + 1
        chosen.append((launch, () if isinstance(fits, str) else fits))
    return dict(_in_turn(chosen)), refused


def _fitting(names: pl.Series, size: int | None, graphs: Sequence[Graph]) -> tuple[int, ...] | str:
    """The graphs that fit, or why none does."""
    as_long = [i for i, graph in enumerate(graphs) if graph.launches.height == names.len()]
    if not as_long:
        return f"no capture has {names.len():,} launches"
    alike = [i for i in as_long if _same_names(graphs[i].launches["kernel"].cast(pl.String), names)]
    if not alike:
        return "the captured kernels have other names"
    sizes = sorted({s for i in as_long if (s := graphs[i].size) is not None})
    if size is None and len(sizes) > 1:
        return f"no range states the size that ran, captured were {', '.join(map(str, sizes[:8]))}"
    if size is None or not sizes:
        return tuple(alike)
    all_sizes = sorted({graph.size for graph in graphs if graph.size is not None})
    # A larger capture is the one that was replayed only if the sizes below it are known to be too small.
    holds = next((s for s in all_sizes if s >= size), None)
    if holds != size and (holds is None or not any(s < size for s in all_sizes)):
        return f"a size of {size:,} ran, captured were {', '.join(map(str, all_sizes[:8]))}"
    fits = tuple(i for i in alike if graphs[i].size in (holds, None))
    return fits or f"a size of {size:,} ran, whose capture has other kernels"


def _same_names(captured: pl.Series, replayed: pl.Series) -> bool:
    """Whether the kernels are those that were captured, where names were recorded (by ROCm).

    Streams that run side by side may change their order.
    """
    if captured.null_count() == captured.len():
        return True
    return captured.fill_null("").sort().equals(replayed.sort())


def _in_turn(chosen: Sequence[tuple[int, tuple[int, ...]]]) -> Iterator[tuple[int, int]]:
    """Launches with one of their graphs each: those in a row that share candidates take them in order.

    The recording may begin in the middle of a row: the first row, if it is short, ends with the last candidate.
    """
    start = 0
    while start < len(chosen):
        candidates = chosen[start][1]
        end = start
        while end < len(chosen) and chosen[end][1] == candidates:
            end += 1
        n = len(candidates)
        if n:
            skipped = n - (end - start) if start == 0 and end - start < n else 0
            for at in range(start, end):
                yield chosen[at][0], candidates[(at - start + skipped) % n]
        start = end


def grafted(trace: Trace, replays: pl.DataFrame, graphs: Sequence[Graph], chosen: dict[int, int]) -> Trace:
    """The trace with the operators and modules of each graph inside the launch that replays it.

    `chosen` has the number of the graph for each launch_id. The host does not run these operators: each stands for a
    nanosecond for each launch in it, in their order, so that they nest. Spans are numbered anew.
    """
    spans, n = trace.spans, trace.spans.height
    launches = pl.DataFrame({"launch_id": list(chosen), "graph": list(chosen.values())}, _CHOSEN)
    launches = launches.with_columns(spans["track_id", "ts_ns", "step"][launches["launch_id"]])
    launches = launches.with_columns(_modules_around(spans, launches["launch_id"]))
    nodes, ops, frames, work = [], [], [], []
    stacks = {id(trace): (0, trace.stacks)}
    for (number, around), same in launches.partition_by("graph", "around", as_dict=True).items():
        graph = _inside(graphs[number], str(around).split("\n"))
        first_stack, _ = stacks.setdefault(
            id(graph.source), (sum(known.height for _, known in stacks.values()), graph.source.stacks)
        )
        its = same.with_columns(base=n + pl.int_range(pl.len()) * graph.nodes.height)
        n += its.height * graph.nodes.height
        new_id = (pl.col("base") + pl.col("node")).cast(pl.UInt32)
        tree = its.join(graph.nodes, how="cross", maintain_order="left_right")
        nodes.append(tree.select(
            "track_id", "name", "category", "step",
            span_id=new_id, ts_ns=pl.col("ts_ns") + pl.col("first"), dur_ns=pl.col("end") - pl.col("first"),
            parent_id=pl.coalesce(pl.col("base") + pl.col("parent"), pl.col("launch_id")),
        ))  # fmt: skip
        new_ids = tree.select("span_id", new=new_id)
        carried = _carried(graph.source.ops, new_ids)
        ops.append(carried.with_columns(pl.col("stack_id") + pl.lit(first_stack, pl.UInt32)))
        # The recorder's numbers of calls are of the capture, and mean nothing here.
        frames.append(_carried(graph.source.frames, new_ids).select("span_id", "module_id"))
        replayed = replays.join(its.select("launch_id", "base"), on="launch_id", maintain_order="left")
        replayed = _placed(replayed, "launch_id", graph).join(_placed(graph.launches, None, graph), on=_PLACE)
        work.append(replayed.drop_nulls("node").select("span_id", op_id=new_id))
    joined = pl.concat(work)
    spans = spans.with_columns(spans["op_id"].scatter(joined["span_id"], joined["op_id"]))
    added = SPANS.conform(pl.concat(nodes).with_columns(recorded_category=pl.lit(CAPTURED)))
    every = pl.concat([spans, added])
    end = pl.col("ts_ns") + pl.col("dur_ns")
    order = every.select(
        pl.arg_sort_by("track_id", "ts_ns", end, descending=[False, False, True], maintain_order=True)
    ).to_series()
    number_of = pl.Series(np.empty(every.height, np.uint32)).scatter(order, np.arange(every.height, dtype=np.uint32))
    more = {
        "spans": every[order],
        "ops": OPS.conform(pl.concat([trace.ops, *map(OPS.conform, ops)])),
        "frames": FRAMES.conform(pl.concat([trace.frames, *map(FRAMES.conform, frames)])),
        "stacks": STACKS.conform(pl.concat(
            known.with_columns(pl.col("stack_id") + pl.lit(first, pl.UInt32)) for first, known in stacks.values()
        )),
    }  # fmt: skip
    tables = {name: _renumbered(frame, number_of) for name, frame in {**trace.tables, **more}.items()}
    return trace.with_tables(**{name: frame for name, frame in tables.items() if not frame.is_empty()})


def _placed(work: pl.DataFrame, each: str | None, graph: Graph) -> pl.DataFrame:
    """The rows with their place in the graph: their number among those of the same kernel, or if none is named of all.

    `each` is a column that tells apart several replays.
    """
    named = graph.launches["kernel"].null_count() < graph.launches.height
    name = pl.col("kernel").cast(pl.String).fill_null("") if named else pl.lit("")
    keys = ["of_kernel", *([] if each is None else [each])]
    return work.with_columns(of_kernel=name).with_columns(at=pl.int_range(pl.len()).over(keys))


def _modules_around(spans: pl.DataFrame, launches: pl.Series) -> pl.Series:
    """The names of the modules around each launch, outermost first, a line each: the column `around`."""
    modules = _Tree.of(spans, ("module",))
    row = modules.above(launches.to_numpy().astype(np.int64))
    names = pl.concat([spans["name"].cast(pl.String), pl.Series("name", [""])])
    around = pl.Series("around", [""]).gather(np.zeros(row.size, np.uint32))
    for _ in range(_MOST_AROUND):
        if not (row >= 0).any():
            break
        around = names.gather(np.where(row >= 0, row, spans.height)) + "\n" + around
        row = np.where(row >= 0, modules.above(row), -1)
    return around.str.strip_chars("\n").alias("around")


def _inside(graph: Graph, around: list[str]) -> Graph:
    """The graph without the modules that are around its launch already, when it is replayed."""
    whole = graph.nodes.filter(
        (pl.col("category") == "module") & (pl.col("first") == 0) & (pl.col("end") == graph.launches.height)
    )
    names = whole["name"].cast(pl.String).to_list()
    n = next((n for n in range(min(len(names), len(around)), 0, -1) if names[:n] == around[-n:]), 0)
    if n == 0:
        return graph
    left = graph.nodes.filter(pl.col("node").is_in(whole["node"].head(n).implode()).not_())
    new = pl.Series([None] * graph.nodes.height, dtype=pl.UInt32).scatter(left["node"], range(left.height))
    nodes = left.with_columns(new.gather(left["node"]).alias("node"), new.gather(left["parent"]).alias("parent"))
    launches = graph.launches.with_columns(new.gather(graph.launches["node"]).alias("node"))
    return replace(graph, nodes=nodes, launches=launches)


def _carried(side: pl.DataFrame, new_ids: pl.DataFrame) -> pl.DataFrame:
    """Rows of a side table of the capture, for each new span that stands for theirs."""
    return new_ids.join(side, on="span_id").drop("span_id").rename({"new": "span_id"})


def _renumbered(frame: pl.DataFrame, number_of: pl.Series) -> pl.DataFrame:
    """The table with new numbers of spans, in order of its first column if that is one."""
    new = frame.with_columns(
        number_of.gather(frame[name]).alias(name) for name in SPAN_REFERENCES if name in frame.columns
    )
    return new.sort("span_id") if new.columns[:1] == ["span_id"] else new
