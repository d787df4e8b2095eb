"""What collectives cost: how many, how many bytes, how long, how fast, and how much of that time is hidden.

On an accelerator a call is what one operator of a communication library queued: its kernels. Where the host moves the
data, a call is the operator itself. A host operator and its own kernels are never both counted.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.collective_calls import HOST, computing_on_host, named_calls
from stepscope.analyses.common.device_work import COMMUNICATION, COMPUTATION, device_work
from stepscope.analyses.common.span_lookup import are_among, nearest_span, of_ids
from stepscope.analyses.common.windows import of_rank
from stepscope.core.collectives import bus_factor, kinds_of, library_of, size_of_whole
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Intervals, covered, union, union_by
from stepscope.core.names import map_names
from stepscope.core.schema import COLLECTIVES, KERNEL_METRICS, OPS
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    pass

#: Libraries whose operators last as long as the transfer, as the host does it. UCC may leave it to the device.
_TIMED = ("gloo", "mpi")
#: Records of the library that move no data themselves.
_NO_TRANSFER = ("wait", "init", "end", "start_coalescing", "end_coalescing")
_ELEMENT_BYTES = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1, "bool": 1,
    "complexdouble": 16, "complexfloat": 8, "complexhalf": 4, "uint64": 8, "uint32": 4, "uint16": 2,
}  # fmt: skip
#: Element types of operators' inputs, and what records of collectives call them.
_TYPES = {
    "double": "Double", "float": "Float", "c10::Half": "Half", "c10::BFloat16": "BFloat16", "long int": "Long",
    "long": "Long", "int": "Int", "short int": "Short", "short": "Short", "signed char": "Char",
    "unsigned char": "Byte", "bool": "Bool",
}  # fmt: skip
_RECORDED = (
    "dtype", "in_elements", "out_elements", "group", "group_size", "group_ranks", "group_description",
    "seq", "src_rank", "dst_rank",
)  # fmt: skip
By = Literal["collective", "step", "link"]
_WHAT = ("rank", "collective", "group", "dtype", "measured")
KEYS = {"collective": _WHAT, "step": ("step", *_WHAT), "link": (*_WHAT, "link")}
#: How the recorder's counters of a collective are called that say what it moved over a kind of link.
_LINK = r"^(?<link>.+) (?<what>size|transit)$"
COMMUNICATION_SUMMARY = Table(
    "communication",
    "what collectives cost",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("step", pl.Int32(), "number of the step that queued it (by step)", key=True),
        Column("collective", Name, "as recorded, or else the name of its operator or kernel", key=True),
        Column("group", Name, "process group", key=True),
        Column("dtype", Name, "element type", key=True),
        Column(
            "measured",
            Name,
            "its time is that of: device, its kernels; host, its operator; call, what queues it",
            key=True,
        ),
        Column("link", Name, "kind of link, as in HCCS, PCIE, RDMA (by link)", key=True),
        Column("bytes", pl.Int64(), "moved over the link (by link)", "bytes"),
        Column("bytes_per_s", pl.Float64(), "that by the time in which data was under way (by link)", "bytes/s"),
        Column("group_size", pl.Int32(), "ranks in the group; null if it changes"),
        Column("calls", pl.Int64(), "how often"),
        Column("in_bytes", pl.Int64(), "sent in by this rank; null where the trace has no sizes", "bytes"),
        Column("mean_in_bytes", pl.Float64(), "mean of a call", "bytes"),
        Column("out_bytes", pl.Int64(), "got by this rank", "bytes"),
        Column("mean_out_bytes", pl.Float64(), "mean of a call", "bytes"),
        Column("total_ns", pl.Int64(), "summed time", "ns"),
        Column("mean_ns", pl.Float64(), "mean time of a call", "ns"),
        Column("merged_ns", pl.Int64(), "time during which at least one was under way", "ns"),
        Column("hidden_ns", pl.Int64(), "of it, while something computes", "ns"),
        Column("exposed_ns", pl.Int64(), "of it, while nothing computes", "ns"),
        Column("transit_ns", pl.Int64(), "data was under way, where the recorder says so (by link: over it)", "ns"),
        Column("wait_ns", pl.Int64(), "waited for other ranks, where the recorder says so", "ns"),
        Column("hidden_ratio", pl.Float64(), "hidden part of the merged time", "ratio"),
        Column("algorithm_bytes_per_s", pl.Float64(), "size of the whole by summed time", "bytes/s"),
        Column("bus_bytes_per_s", pl.Float64(), "the same times what each rank sends of it", "bytes/s"),
    ),
)


def communication(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    collectives: pl.DataFrame = COLLECTIVES.empty(),
    ops: pl.DataFrame = OPS.empty(),
    kernel_metrics: pl.DataFrame = KERNEL_METRICS.empty(),
    *,
    by: By = "collective",
    communication: str = "any",
) -> pl.DataFrame:
    """One row per collective, process group and element type (and per step, or kind of link), longest in total first.

    The main columns are `calls`, `total_ns`, the time hidden behind computation (`hidden_ns`) or not (`exposed_ns`),
    and the bandwidths. `merged_ns` is `hidden_ns` + `exposed_ns` and counts simultaneous calls once. Collectives of
    different names that run at the same time share that time.

    By link the rows say what went over each kind of link, and how fast, where the recorder measured it (Ascend's does,
    from level 1 on). It also says how long each collective waited for other ranks (`wait_ns`) and moved data
    (`transit_ns`).

    `collectives`, `ops` and `kernel_metrics` are the trace's tables. Without the first, kernels and operators are
    recognised by name, and sizes come from the shapes of the operators' inputs. A call is what one operator queued: the
    times of its kernels add up, and its size counts once. Where no device communicates, as on CPUs, the host's
    operators are the calls. Those of Gloo and MPI last as long as the transfer; of all others only the time to queue it
    is known (`call`). Where no device computes, the host's other operators count as computation. `communication` says
    which kernels are collectives, as in `timeline`.

    A kernel also waits until the other ranks have come. One rank alone cannot separate that wait from the transfer, so
    the bandwidths are lower bounds. They cover the calls whose size and time are known, and are null for `call`.

    Units: ns, bytes, bytes/s, ratio.
    Source: size and bus bandwidth as nccl-tests define them: size / time × 2(n−1)/n for all-reduce, (n−1)/n for
    all-gather, reduce-scatter, all-to-all, gather and scatter, 1 for broadcast, reduce and messages, n ranks in the
    group.
    Raises MissingTable (no collectives; by step: no steps), UnknownName (by).
    """
    work = device_work(spans, tracks, needed_by=None, communication=communication)
    parts, computing = collective_calls(spans, tracks, collectives, ops, work)
    if parts.is_empty():
        hint = "traces of distributed jobs have them, as kernels or operators of NCCL, RCCL, Gloo, …"
        raise MissingTable("collectives", needed_by="communication", hint=hint)
    if by == "step" and parts["step"].null_count() == parts.height:
        raise MissingTable("steps", needed_by="communication by step", topic="steps")
    keys = KEYS["collective" if by == "link" else by]
    measured = _measured(parts, keys, kernel_metrics)
    if by == "link":
        return _by_link(measured)
    calls = parts.group_by("call_id", maintain_order=True).agg(
        *(pl.col(c).first() for c in (*keys, "group_size", "in_bytes", "out_bytes")), ns=pl.col("dur_ns").sum()
    )
    calls = calls.with_columns(kind=kinds_of(calls["collective"])).with_columns(
        size=size_of_whole(pl.col("kind"), pl.col("in_bytes"), pl.col("out_bytes"), pl.col("group_size"))
    )
    result = calls.group_by(keys).agg(
        group_size=pl.when(pl.col("group_size").n_unique() == 1).then(pl.col("group_size").first()),
        calls=pl.len().cast(pl.Int64),
        in_bytes=_known_sum("in_bytes"),
        mean_in_bytes=pl.col("in_bytes").mean(),
        out_bytes=_known_sum("out_bytes"),
        mean_out_bytes=pl.col("out_bytes").mean(),
        total_ns=pl.col("ns").sum(),
        mean_ns=pl.col("ns").mean(),
        algorithm_bytes_per_s=_rate(pl.col("size")),
        bus_bytes_per_s=_rate(pl.col("size") * bus_factor(pl.col("kind"), pl.col("group_size"))),
    )
    result = result.join(_merged(parts, keys, computing), on=keys, how="left", nulls_equal=True)
    own = (("transit", "transit_ns"), ("wait", "wait_ns"))
    for metric, column in own if measured.height else ():
        sums = measured.filter(pl.col("metric") == metric).group_by(keys).agg(_whole_sum(pl.col("value")).alias(column))
        result = result.join(sums, on=keys, how="left", nulls_equal=True)
    result = result.with_columns(
        exposed_ns=pl.col("merged_ns") - pl.col("hidden_ns"),
        hidden_ratio=pl.when(pl.col("merged_ns") > 0).then(pl.col("hidden_ns") / pl.col("merged_ns")),
    )
    first = [c for c in ("step", "rank") if c in keys]
    last = [c for c in keys if c not in first]
    order = [*first, pl.col("total_ns").neg(), *(pl.col(c).cast(pl.String) for c in last)]
    result = result.sort(*order, nulls_last=True)
    return result.select(pl.col(k).cast(t) for k, t in COMMUNICATION_SUMMARY.dtypes.items() if k in result.columns)


def _measured(parts: pl.DataFrame, keys: tuple[str, ...], kernel_metrics: pl.DataFrame) -> pl.DataFrame:
    """The recorder's counters of collectives, by span, with the keys of its row."""
    metrics = kernel_metrics.join(parts.select("span_id", *keys).unique("span_id"), on="span_id", how="inner")
    return metrics.with_columns(pl.col("metric").cast(pl.String))


def _by_link(measured: pl.DataFrame) -> pl.DataFrame:
    """A row for each kind of link of a collective. Raises MissingTable if the recorder names none."""
    links = measured.with_columns(pl.col("metric").str.extract_groups(_LINK).struct.unnest()).drop_nulls("link")
    if links.is_empty():
        hint = "Ascend's profiler measures them, from level 1 on (communication.json, analysis.db)"
        raise MissingTable("links of collectives", needed_by="communication by link", hint=hint)
    is_size = pl.col("what") == "size"
    result = links.group_by(KEYS["link"]).agg(
        calls=pl.col("span_id").n_unique().cast(pl.Int64),
        bytes=_whole_sum(pl.col("value").filter(is_size)),
        transit_ns=_whole_sum(pl.col("value").filter(~is_size)),
    )
    rate = pl.when(pl.col("transit_ns") > 0).then(pl.col("bytes") / pl.col("transit_ns") * 1e9)
    texts = [pl.col(c).cast(pl.String) for c in KEYS["link"][1:]]
    result = result.with_columns(bytes_per_s=rate).sort("rank", pl.col("bytes").neg(), *texts, nulls_last=True)
    return result.select(pl.col(k).cast(t) for k, t in COMMUNICATION_SUMMARY.dtypes.items() if k in result.columns)


def _whole_sum(values: pl.Expr) -> pl.Expr:
    return values.sum().round().cast(pl.Int64, strict=False)


def _known_sum(column: str) -> pl.Expr:
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _rate(size: pl.Expr) -> pl.Expr:
    """Bytes per second over the calls of which both are known; null if there are none."""
    timed = size.is_not_null() & (pl.col("ns") > 0) & (pl.col("measured") != "call")
    seconds = pl.col("ns").filter(timed).sum() / 1e9
    return pl.when(seconds > 0).then(size.filter(timed).sum() / seconds)


def _merged(parts: pl.DataFrame, keys: tuple[str, ...], computing: dict[int | None, Intervals]) -> pl.DataFrame:
    """For each combination of keys the time of its collectives, overlaps counted once, and how much of it is hidden."""
    groups = parts.select(keys).unique(maintain_order=True).with_row_index("key")
    rows = parts.join(groups, on=keys, how="left", nulls_equal=True, maintain_order="left")
    starts, durations = rows["ts_ns"].to_numpy(), rows["dur_ns"].to_numpy()
    of, low, high = union_by(rows["key"].cast(pl.Int64).to_numpy(), starts, starts + durations)
    merged, hidden = np.zeros(groups.height, np.int64), np.zeros(groups.height, np.int64)
    np.add.at(merged, of, high - low)
    rank = groups["rank"]
    for number, intervals in computing.items():
        own = rank.eq_missing(pl.Series([number], dtype=rank.dtype)).to_numpy()[of]
        np.add.at(hidden, of[own], covered(intervals, low[own], high[own]))
    return groups.select(keys).with_columns(merged_ns=pl.Series(merged), hidden_ns=pl.Series(hidden))


def collective_calls(
    spans: pl.DataFrame, tracks: pl.DataFrame, collectives: pl.DataFrame, ops: pl.DataFrame, work: pl.DataFrame
) -> tuple[pl.DataFrame, dict[int | None, Intervals]]:
    """One row per interval of a collective, by span_id; and when each rank computed. Units: ns, bytes.

    `work` is what `device_work` returns, perhaps empty.

    Columns: rank, step, ts_ns, dur_ns, call_id (the same for all intervals of a call), collective, dtype, in_bytes and
    out_bytes (of the whole call), its group, number and ends as in the `collectives` table, and measured: `device`;
    `host`, an operator that lasts as long as the transfer; or `call`, an operator that may only queue it.
    """
    collectives = collectives.filter(~pl.col("collective").cast(pl.String).is_in(_NO_TRANSFER))
    shared = ("span_id", "rank", "step", "ts_ns", "dur_ns")
    device = work[[*shared, "launch_id", "op_id"]].filter(work["sort"] == COMMUNICATION)
    host = _on_host(spans, tracks, collectives, only_host_libraries=not device.is_empty())
    rows = device.select(*shared, caller=pl.coalesce("launch_id", "op_id"), measured=pl.lit("device"))
    if host is not None:
        rows = pl.concat((rows, host.select(*shared, caller="span_id", measured="measured")))
    rows = rows.sort("span_id")
    return _described(rows, spans, collectives, ops), _computing(
        rows, spans, tracks, work[["rank", "ts_ns", "end_ns"]].filter(work["sort"] == COMPUTATION)
    )


def _on_host(
    spans: pl.DataFrame, tracks: pl.DataFrame, collectives: pl.DataFrame, *, only_host_libraries: bool
) -> pl.DataFrame | None:
    """Host operators that are collectives; of nested ones the outermost. None without any.

    Where a device communicates, only operators of host libraries count, as all others have kernels. Otherwise these are
    the operators of any library; if there are none, what is recorded as a collective; else PyTorch's own calls.
    """
    is_host, names = spans["category"].is_in(HOST), spans["name"]
    if only_host_libraries:
        is_host &= map_names(names, lambda name: library_of(name) in _TIMED, pl.Boolean())
    if not is_host.any():
        return None
    host = spans[["span_id", "parent_id", "track_id", "step", "ts_ns", "dur_ns", "name"]].filter(is_host)
    host = host.with_columns(library=map_names(host["name"], library_of, pl.String()))
    timed = pl.col("library").is_in(_TIMED)
    operators = host if only_host_libraries else host.filter(pl.col("library") != "c10d")
    if operators.is_empty() and not only_host_libraries:
        operators = host.filter(pl.col("span_id").is_in(collectives["span_id"].implode()))
        if operators.is_empty():
            operators = host.filter(pl.col("library") == "c10d")
    if operators.is_empty():
        return None
    inside = nearest_span(spans, operators["parent_id"], are_among(spans, operators["span_id"]))
    operators = operators.with_columns(measured=pl.when(timed).then(pl.lit("host")).otherwise(pl.lit("call")))
    return operators.filter(inside.is_null()).join(tracks[["track_id", "rank"]], on="track_id", how="left")


def _described(rows: pl.DataFrame, spans: pl.DataFrame, collectives: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """The rows with all facts about each call: from its own record, else from that of the operator that queued it."""
    rows = named_calls(rows, spans, collectives)
    rows = rows.hstack(of_ids(collectives[["span_id", *_RECORDED]], rows["record"]))
    dtypes = rows["dtype"].unique().to_list()
    if rows["in_elements"].null_count() or not all(dtype and element_bytes(dtype) for dtype in dtypes):
        rows = rows.join(_inputs(ops, rows["operator"]), on="operator", how="left", maintain_order="left")
    else:
        rows = rows.with_columns(input_bytes=pl.lit(None, pl.Int64), input_dtype=pl.lit(None, pl.String))
    dtype = pl.coalesce(pl.col("dtype").cast(pl.String), "input_dtype")
    rows = rows.with_columns(dtype=dtype, width=map_names(rows.select(dtype).to_series(), element_bytes, pl.Int64()))
    rows = rows.with_columns(
        in_bytes=pl.coalesce(pl.col("in_elements") * pl.col("width"), "input_bytes"),
        out_bytes=pl.col("out_elements") * pl.col("width"),
    )
    facts = [name for name in _RECORDED if name not in ("in_elements", "out_elements")]
    columns = ("rank", "step", "collective", *facts, "in_bytes", "out_bytes")
    rows = rows[["span_id", "ts_ns", "dur_ns", "measured", "call_id", *columns]]
    if rows["call_id"].n_unique() == rows.height:
        return rows
    # A call is one collective. If its kernels disagree about it, the first one decides.
    return rows.with_columns(pl.col(columns).first().over("call_id"))


def _inputs(ops: pl.DataFrame, operators: pl.Series) -> pl.DataFrame:
    """Bytes and element type of the inputs of operators, where shapes and types are recorded."""
    keys = ["input_shapes", "input_types"]
    called = ops[["span_id", *keys]].filter(pl.col("span_id").is_in(operators.implode()))
    sorts = called[keys].unique()
    sizes = pl.DataFrame(
        [_size(*sort) for sort in sorts.iter_rows()],
        schema={"input_bytes": pl.Int64(), "input_dtype": pl.String()},
        orient="row",
    )
    known = called.join(pl.concat((sorts, sizes), how="horizontal"), on=keys, how="left", nulls_equal=True)
    return known.select(operator="span_id", input_bytes="input_bytes", input_dtype="input_dtype").unique("operator")


def _size(shapes: str | None, types: str | None) -> tuple[int | None, str | None]:
    """Bytes and type of all inputs; unknown if there is none, or one of them is no tensor of known type."""
    inputs = list(zip(_listed(shapes), _listed(types), strict=False))
    dtypes = {_TYPES.get(str(kind)) for _, kind in inputs}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype is None or not all(isinstance(s, list) and all(isinstance(n, int) for n in s) for s, _ in inputs):
        return None, None
    return sum(math.prod(shape) for shape, _ in inputs) * (element_bytes(dtype) or 0), dtype


def _listed(text: str | None) -> list[Any]:
    try:
        listed = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return listed if isinstance(listed, list) else []


@lru_cache(1 << 16)
def element_bytes(dtype: str) -> int | None:
    """Size of an element of a type as records of collectives name it; None for one that is not known."""
    lower = dtype.lower()
    return 1 if lower.startswith("float8") else _ELEMENT_BYTES.get(lower)


def _computing(
    rows: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame, computation: pl.DataFrame
) -> dict[int | None, Intervals]:
    """When each rank computed: on its devices, or on the host where it has none that do."""
    ranks: list[int | None] = rows["rank"].unique().to_list()
    on_devices = {
        rank: union(part["ts_ns"].to_numpy(), part["end_ns"].to_numpy())
        for (rank,), part in computation.partition_by("rank", as_dict=True).items()
    }
    return {rank: on_devices[rank] if rank in on_devices else _host_computing(spans, tracks, rank) for rank in ranks}


def _host_computing(spans: pl.DataFrame, tracks: pl.DataFrame, rank: int | None) -> Intervals:
    own = of_rank(tracks, rank)["track_id"].implode()
    return computing_on_host(spans.filter(pl.col("track_id").is_in(own) & pl.col("category").is_in(HOST)))


ANALYSIS = analysis_of(
    communication, COMMUNICATION_SUMMARY, "Collectives: how often, how much, how long, how fast, how much of it hidden."
)
