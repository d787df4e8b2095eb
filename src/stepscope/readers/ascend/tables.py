"""What Ascend's databases and text files give besides spans: arguments and counters of kernels, memory, collectives.

Each function adds to the tables of a trace. Times are ns since 1970.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core import files
from stepscope.core import names as rules
from stepscope.core.collectives import RECORDED, kind_of
from stepscope.core.schema import ALLOCATIONS, COLLECTIVES, COUNTERS, DEVICES, KERNEL_METRICS, KERNELS, OPS
from stepscope.core.table import Name
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.columns import ABSENT, nullable, torch_npu_arguments
from stepscope.readers.common.span_builder import CODE, Names, Tracks, believable, span_table

if TYPE_CHECKING:
    from stepscope.readers.common.source import IssueLog, Source

#: Counters of the time in cores, and those of its share of a kernel's time, which are made here.
_SHARES = {"aicore_time": "aicore_ratio", "aiv_time": "aiv_ratio"}
_UNITS = {"_time": "us", "_ratio": "ratio", "_rate": "ratio", "_cycles": "cycles"}
_COUNTER = r"^\s*(?<name>.*?)\s*(?:\((?<unit>[^()]*)\))?$"
#: What the profiler writes where a value does not apply.
_NOT_KNOWN = ("N/A", "")
#: What engines moved over any link, which is no link of its own.
_ALL_LINKS = "SDMA"
#: A collective and the profiler's own record of it start within this time of each other.
_SAME_START_NS = 1_000_000


def text_of(column: str) -> pl.Expr:
    """The text of a column without blanks around it; null where the profiler has none."""
    text = pl.col(column).cast(pl.String).str.strip_chars()
    return pl.when(~text.is_in(_NOT_KNOWN)).then(text).alias(column)


def unit_of(metric: str) -> pl.Expr:
    """The unit of the counters in a column, by the ends of their names."""
    return pl.coalesce(*(pl.when(pl.col(metric).str.ends_with(e)).then(pl.lit(u)) for e, u in _UNITS.items()))


def metric_rows(wide: pl.DataFrame) -> pl.DataFrame:
    """The rows span_id, metric, unit, value of a frame with a column for each counter, called as in `name(unit)`."""
    long = wide.unpivot(index="span_id", variable_name="column").drop_nulls("value")
    parts = pl.col("column").str.extract_groups(_COUNTER)
    rows = long.select(
        "span_id",
        metric=parts.struct["name"],
        unit=parts.struct["unit"],
        value=pl.col("value").cast(pl.Float64),
    )
    return rows.with_columns(unit=pl.coalesce("unit", unit_of("metric"))).drop_nulls("metric")


def of_kernels(details: pl.DataFrame, source: Source, issues: IssueLog) -> Trace:
    """The kernels of kernel_details.csv as the spans of a trace that has nothing else.

    `details` has a row for each: name, start, dur, step, number (of the device), stream, is_collective.
    """
    details = details.with_columns(pl.col("number").fill_null(0), pl.col("name").fill_null("?"))
    numbers = details["number"].unique().sort().to_list()
    devices = {number: i for i, number in enumerate(numbers, 1)}
    tracks, texts, recorded = Tracks(), Names(), Names()
    lanes = details.select("number", "stream", "is_collective").unique(maintain_order=True)
    ids = [
        tracks.id(
            lane, device_id=devices[lane[0]], stream=lane[1], kind="stream",
            process="HCCL" if lane[2] else "Ascend Hardware",
            label="Communication" if lane[2] else "Kernels" if lane[1] is None else f"Stream {lane[1]}",
        )
        for lane in lanes.rows()
    ]  # fmt: skip
    lanes = lanes.with_columns(track=pl.Series(ids, dtype=pl.Int64))
    rows = details.join(lanes, on=["number", "stream", "is_collective"], nulls_equal=True, maintain_order="left")
    start, duration = (rows[column].fill_null(ABSENT).to_numpy().copy() for column in ("start", "dur"))
    names = rules.map_names(rows["name"], texts.code, pl.UInt32()).to_numpy()
    word = pl.Series(np.where(rows["is_collective"].to_numpy(), RECORDED, ""))
    codes = rules.map_names(word, recorded.code, pl.UInt32()).to_numpy()
    track = rows["track"].to_numpy().astype(np.uint32)
    what = "kernels without a start or a duration were dropped"
    spans = believable(start, duration, track, names, codes, issues, what)
    n = spans.ts.size
    category = np.full(n, CODE["kernel"], np.uint8)
    step = np.full(n, ABSENT, np.int64)
    at = np.flatnonzero(spans.position >= 0)
    step[spans.position[at]] = rows["step"].fill_null(ABSENT).to_numpy()[at]
    kinds = [t or None for t in recorded.texts]
    table = span_table(spans, texts.texts, kinds, category, nullable(step, pl.Int32()), {}, {})
    talks = table.filter(pl.Series(spans.recorded) == recorded.code(RECORDED)).select("span_id", "name")
    kind = rules.map_names(talks["name"], lambda name: kind_of(name) or name, pl.String())
    matrix = rules.map_names(table["name"], rules.is_tensor_core, pl.Boolean())
    npus = [{"device_id": i, "type": "npu", "index": number} for number, i in devices.items()]
    rank = files.rank_in(source.path)
    return Trace(
        Meta(
            source.label, "ascend", n_events=n, size_bytes=source.n_bytes, rank=rank,
            origin_unix_ns=spans.origin_ns, origin_recorded_ns=spans.origin_ns, framework="Ascend",
        ),
        {
            "devices": DEVICES.conform(pl.DataFrame([{"device_id": 0, "type": "cpu", "index": None}, *npus])),
            "tracks": tracks.table(rank, None),
            "spans": table,
            "kernels": KERNELS.conform(table.select("span_id").with_columns(tensor_core=matrix)),
            "collectives": COLLECTIVES.conform(talks.select("span_id").with_columns(collective=kind)),
        },
    )  # fmt: skip


def with_kernels(trace: Trace, details: pl.DataFrame, metrics: pl.DataFrame) -> Trace:
    """The trace with what is known of its kernels.

    `details` has a row for each kernel, by span_id: type (of the operator), core, blocks, shapes, dtypes. `metrics` has
    their counters: span_id, metric, unit, value. The share of the kernel's time that cores took is added to them.
    """
    details = details.unique("span_id", keep="first", maintain_order=True)
    typed = details.select("span_id", kind="type")
    spans = trace.spans.join(typed, on="span_id", how="left", maintain_order="left")
    recorded = pl.coalesce(pl.col("recorded_category").cast(pl.String), "kind").cast(Name)
    spans = spans.with_columns(recorded_category=recorded).drop("kind")
    new = details.select("span_id", "core", "blocks")
    kernels = trace.kernels.join(new, on="span_id", how="left", maintain_order="left").with_columns(
        grid_x=pl.coalesce("grid_x", pl.col("blocks").replace(0, None).cast(pl.Int32, strict=False)),
        kernel_type=pl.coalesce(pl.col("kernel_type").cast(pl.String), "core"),
    )
    arguments = details.filter(pl.any_horizontal(pl.col("shapes", "dtypes").is_not_null()))
    arguments = arguments.select(
        "span_id",
        input_shapes=rules.map_names(arguments["shapes"].str.strip_chars('"'), torch_npu_arguments, pl.String()),
        input_types=rules.map_names(arguments["dtypes"], torch_npu_arguments, pl.String()),
    )
    lasting = trace.spans.select("span_id", "dur_ns").filter(pl.col("dur_ns") > 0)
    shares = metrics.filter(pl.col("metric").is_in(list(_SHARES)) & (pl.col("value") > 0)).join(lasting, on="span_id")
    shares = shares.select(
        "span_id",
        pl.col("metric").replace(_SHARES),
        unit=pl.lit("ratio"),
        value=(pl.col("value") * 1000 / pl.col("dur_ns")).clip(0, 1),
    )
    return trace.with_tables(
        spans=spans,
        kernels=KERNELS.conform(kernels),
        ops=_added(trace.ops, OPS.conform(arguments)),
        kernel_metrics=_added(
            trace.kernel_metrics, KERNEL_METRICS.conform(pl.concat([metrics, shares], how="diagonal"))
        ),
    )


def _added(table: pl.DataFrame, more: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([table, more]).sort("span_id", maintain_order=True)


def of_modules(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples of the memory of Ascend's modules, some of which have the name of a component that is another thing."""
    return samples.with_columns(pl.format("{} module", "component").alias("component"))


def with_memory(trace: Trace, blocks: pl.DataFrame, levels: pl.DataFrame) -> Trace:
    """The trace with the life of blocks of memory, and the memory of each component over time.

    `blocks` has a row for each block: name (of the operator), number (of the device), bytes, ts_ns, freed_ns, and what
    was held and reserved after each (held, reserved, freed_held, freed_reserved). Blocks are numbered in place of their
    addresses, which are not recorded. `levels` has samples: component, number, ts_ns, kind, value in bytes.
    """
    origin = trace.meta.origin_recorded_ns
    devices = dict(trace.devices.filter(pl.col("type") != "cpu").select("index", "device_id").drop_nulls().rows())
    only = next(iter(devices.values())) if len(devices) == 1 else None  # the timeline may number a rank's device 0
    device = pl.col("number").replace_strict(devices, default=only, return_dtype=pl.UInt32())
    blocks = blocks.with_row_index("address").with_columns(device_id=device)
    shared = ("address", "device_id", "name")
    taken = blocks.select(*shared, "bytes", "ts_ns", "held", "reserved")
    given = blocks.select(
        *shared, -pl.col("bytes"), ts_ns="freed_ns", held="freed_held", reserved="freed_reserved"
    )  # fmt: skip
    events = pl.concat([taken, given]).drop_nulls(["ts_ns", "bytes"])
    events = events.with_columns(pl.col("ts_ns") - origin).sort("ts_ns", maintain_order=True)
    events = events.join(_callers(trace, taken, origin), on="address", how="left", maintain_order="left")
    allocations = ALLOCATIONS.conform(
        events.with_columns(total_allocated_bytes="held", total_reserved_bytes="reserved").with_columns(
            op_id=pl.when(pl.col("bytes") > 0).then("op_id"),
            track_id=pl.col("track_id").fill_null(_main_thread(trace)),
        )
    )
    samples = levels.drop_nulls(["component", "kind", "ts_ns", "value"])
    # Most of some eighty components hold nothing, and have no sample that says otherwise.
    samples = samples.filter((pl.col("value").max() > 0).over("component", "kind"))
    samples = samples.with_columns(
        pl.col("ts_ns") - origin,
        device_id=device,
        device=pl.format("{} memory", "component"),
        metric=pl.format("{} {}", "component", "kind"),
        unit=pl.lit("bytes"),
    )
    counters = pl.concat([trace.counters, COUNTERS.conform(samples)])
    return trace.with_tables(allocations=allocations, counters=counters.sort("ts_ns", maintain_order=True))


def _callers(trace: Trace, blocks: pl.DataFrame, origin: int) -> pl.DataFrame:
    """Of each block the operator that asked for it, `op_id`, and its track: the last of its name then open."""
    calls = trace.spans.filter(pl.col("category") == "operator").select(
        "track_id", "ts_ns", pl.col("name").cast(pl.String), op_id="span_id", end=pl.col("ts_ns") + pl.col("dur_ns")
    )
    asked = blocks.select("address", "name", pl.col("ts_ns") - origin).drop_nulls().sort("ts_ns")
    within = asked.join_asof(calls.sort("ts_ns"), on="ts_ns", by="name", check_sortedness=False)
    return within.filter(pl.col("ts_ns") <= pl.col("end")).select("address", "op_id", "track_id")


def _main_thread(trace: Trace) -> int:
    """The track of the first operator; else the first track."""
    first = trace.spans.filter(pl.col("category") == "operator").sort("ts_ns")["track_id"].first()
    return int(first) if isinstance(first, int) else 0


def with_collectives(trace: Trace, times: pl.DataFrame, links: pl.DataFrame) -> Trace:
    """The trace with what the profiler says of each of its collectives, as counters of its span.

    `times` and `links` are the results `communication_time` and `communication_links`.
    """
    talks = (trace.spans["category"] == "kernel") & (trace.spans["recorded_category"].cast(pl.String) == RECORDED)
    spans = trace.spans.filter(talks).select("span_id", "name", start=pl.col("ts_ns") + trace.meta.origin_recorded_ns)
    if times.is_empty() or spans.is_empty():
        return trace
    spans = spans.with_columns(pl.col("name").cast(pl.String)).sort("start")
    keys = ["step", "name", "group"]
    texts = times.with_columns(pl.col("name", "group").cast(pl.String), start="start_ns")
    records = texts.drop_nulls(["name", "start"]).sort("start")
    tied = spans.join_asof(
        records, on="start", by="name", strategy="nearest", tolerance=_SAME_START_NS, check_sortedness=False
    ).drop_nulls("start_ns")
    parts = ("elapse", "transit", "wait", "synchronization", "idle")
    moved = (
        tied.select("span_id", *keys)
        .unique(keys, keep="first", maintain_order=True)
        .join(links.with_columns(pl.col("name", "group", "link").cast(pl.String)), on=keys, nulls_equal=True)
    )
    moved = moved.filter(pl.col("link") != _ALL_LINKS)
    counters = [
        *((tied, pl.lit(part), f"{part}_ns", "ns") for part in parts),
        (moved, pl.format("{} transit", "link"), "transit_ns", "ns"),
        (moved, pl.format("{} size", "link"), "bytes", "bytes"),
    ]
    added = pl.concat(
        frame.select("span_id", metric=metric, unit=pl.lit(unit), value=pl.col(column).cast(pl.Float64))
        for frame, metric, column, unit in counters
    )
    kind = rules.map_names(spans["name"], lambda name: kind_of(name) or name, pl.String())
    groups = spans.select("span_id", kind=kind).join(tied.select("span_id", own="group"), on="span_id", how="left")
    collectives = trace.collectives.join(groups, on="span_id", how="full", coalesce=True).sort("span_id")
    collectives = collectives.with_columns(
        group=pl.coalesce(pl.col("group").cast(pl.String), "own"),
        collective=pl.coalesce(pl.col("collective").cast(pl.String), "kind"),
    )
    return trace.with_tables(
        collectives=COLLECTIVES.conform(collectives),
        kernel_metrics=_added(trace.kernel_metrics, KERNEL_METRICS.conform(added.drop_nulls(["metric", "value"]))),
    )
