"""Kernel launches in their order, with what each measured, as a Trace without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import counter_roles as roles
from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, SPANS, TRACKS, Name
from stepscope.core.trace import Meta, Trace
from stepscope.readers.nsight.ncu_values import DEVICE_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.schema import Table
    from stepscope.readers.common.issues import IssueLog
    from stepscope.readers.common.source import Source

#: What a reader hands over for each launch, as printed: null where it does not say.
LAUNCHES = (
    "name", "pid", "process", "host", "context", "stream", "device", "cc", "block", "grid",
)  # fmt: skip
PROVIDES = ("devices", "tracks", "spans", "kernels", "kernel_metrics", "issues")

_AXES = "xyz"
#: Facts of a launch among its metrics: the counter's own name, then its label on the details page.
_SM_COUNT = ("launch__sm_count", "device__attribute_multiprocessor_count", "# SMs")
_REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
_STATIC = ("launch__shared_mem_per_block_static", "Static Shared Memory Per Block")
_DYNAMIC = ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block")
_MEMORY = ("device__attribute_total_memory",)
_NO_DURATION = "launches have no duration; ask ncu for it: --metrics gpu__time_duration.sum,…"


def build(
    source: Source, kind: str, launches: pl.DataFrame, metrics: pl.DataFrame, texts: pl.DataFrame, issues: IssueLog
) -> Trace:
    """The trace of all launches (columns LAUNCHES as text, a row each) and their metrics (`launch` is the row).

    Durations are those of `gpu__time_duration`, in ns; `metrics` and `words` are as of `_ncu_values`.
    """
    metrics = metrics.rename({"launch": "span_id"})
    if not metrics["span_id"].is_sorted():
        metrics = metrics.sort("span_id", maintain_order=True)
    n = launches.height
    facts = _Facts(metrics, n)
    duration = _aligned(roles.measured(metrics, "duration"), n).round().cast(pl.Int64)
    issues.add("no_duration", "warning", duration.null_count(), _NO_DURATION)
    sm_count = facts.of(_SM_COUNT)
    device_id, devices = _devices(launches, sm_count, facts, texts)
    tracks = launches.select("host", "pid", "process", "context", "stream", device_id=device_id)
    track_id, distinct = _numbered(tracks)
    spans = pl.DataFrame({
        "span_id": pl.int_range(n, dtype=pl.UInt32, eager=True),
        "track_id": track_id,
        "dur_ns": duration,
        "name": launches["name"].cast(Name),
    }).with_columns(pl.lit("kernel").alias("category"))  # fmt: skip
    tables = {
        "devices": devices,
        "tracks": _tracks(distinct),
        "spans": SPANS.conform(spans),
        "kernels": _kernels(launches, metrics, facts, sm_count),
        "kernel_metrics": KERNEL_METRICS.conform(metrics),
        "issues": issues.table(),
    }
    meta = Meta(source.label, kind, n_events=n, size_bytes=source.n_bytes, host=_only(launches["host"]))
    return Trace(meta, {name: frame for name, frame in tables.items() if not frame.is_empty()})


def _aligned(found: pl.DataFrame, n: int) -> pl.Series:
    """Values by launch, a row for each of n launches."""
    frame = pl.DataFrame({"span_id": pl.int_range(n, dtype=pl.UInt32, eager=True)})
    return frame.join(found, on="span_id", how="left", maintain_order="left")["value"]


class _Facts:
    """What launches say of themselves among their metrics."""

    def __init__(self, metrics: pl.DataFrame, n: int) -> None:
        self._metrics, self._n = metrics, n
        self._present = set(metrics["metric"].unique().cast(pl.String))

    def of(self, names: Sequence[str]) -> pl.Series:
        """The value of the first of these metrics that a launch has, in order of launch."""
        present = [name for name in names if name in self._present]
        if not present:
            return pl.repeat(None, self._n, dtype=pl.Float64, eager=True)
        rows = self._metrics.filter(pl.col("metric").is_in(present) & pl.col("value").is_not_null())
        rank = pl.col("metric").cast(pl.String).replace_strict(present, range(len(present)), return_dtype=pl.Int32)
        best = rows.select("span_id", "value", rank=rank).sort("span_id", "rank")
        return _aligned(best.group_by("span_id", maintain_order=True).agg(pl.col("value").first()), self._n)


def _numbered(frame: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """For each row the number of its like among the distinct rows, which come in order of first use."""
    distinct = frame.unique(maintain_order=True)
    if distinct.height == 1:
        return pl.repeat(0, frame.height, dtype=pl.UInt32, eager=True), distinct
    keyed = distinct.with_row_index("number")
    rows = frame.join(keyed, on=frame.columns, how="left", nulls_equal=True, maintain_order="left")
    return rows["number"], distinct


def _devices(
    launches: pl.DataFrame, sm_count: pl.Series, facts: _Facts, texts: pl.DataFrame
) -> tuple[pl.Series, pl.DataFrame]:
    """For each launch its device_id, and the `devices` table."""
    number, distinct = _numbered(launches.select("host", "device", "cc"))
    names = texts.filter(texts["metric"] == DEVICE_NAME).select(span_id="launch", value="text").unique("span_id")
    described = pl.DataFrame({
        "number": number,
        "name": _aligned(names, launches.height).cast(pl.String),
        "sm_count": sm_count,
        "memory_bytes": facts.of(_MEMORY),
    }).group_by("number").agg(pl.all().drop_nulls().first())  # fmt: skip
    devices = distinct.with_row_index("number").join(described, on="number", how="left", maintain_order="left")
    devices = devices.select(
        "name", "sm_count", "memory_bytes", device_id="number", type=pl.lit("cuda"),
        index=_whole(pl.col("device")), compute_capability="cc",
    )  # fmt: skip
    return number, DEVICES.conform(_fitting(devices, DEVICES))


def _tracks(distinct: pl.DataFrame) -> pl.DataFrame:
    frame = distinct.with_row_index("track_id").with_columns(
        _whole(pl.col("pid")),
        _whole(pl.col("stream")),
        pl.col("process").cast(pl.String).replace("", None),
        pl.col("host").cast(pl.String).replace("", None),
        kind=pl.lit("stream"),
        label=pl.format("context {}", pl.col("context").cast(pl.String)),
    )
    return TRACKS.conform(frame)


def _kernels(launches: pl.DataFrame, metrics: pl.DataFrame, facts: _Facts, sm_count: pl.Series) -> pl.DataFrame:
    n = launches.height
    grid, block = (_axes(launches[what], what, facts) for what in ("grid", "block"))
    threads = block[0] * block[1] * block[2]
    blocks = grid[0].cast(pl.Float64) * grid[1] * grid[2]
    shared = facts.of(_STATIC) + facts.of(_DYNAMIC)
    frame = pl.DataFrame({
        "span_id": pl.int_range(n, dtype=pl.UInt32, eager=True),
        **{f"grid_{a}": s for a, s in zip(_AXES, grid, strict=True)},
        **{f"block_{a}": s for a, s in zip(_AXES, block, strict=True)},
        "registers": facts.of(_REGISTERS),
        "shared_bytes": shared,
        "blocks_per_sm": blocks / sm_count,
        "warps_per_sm": blocks * (threads / 32).ceil() / sm_count,
        "est_occupancy_ratio": _aligned(roles.measured(metrics, "occupancy"), n),
    })  # fmt: skip
    return KERNELS.conform(_fitting(frame, KERNELS))


def _fitting(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Whole numbers in the table's types, null where a value does not fit, as of a damaged file."""
    whole = [name for name, dtype in table.dtypes.items() if name in frame.columns and dtype.is_integer()]
    return frame.with_columns(pl.col(name).cast(table.dtypes[name], strict=False) for name in whole)


def _axes(dims: pl.Series, what: str, facts: _Facts) -> list[pl.Series]:
    """The three sizes in `(128, 1, 1)`, or else those among the metrics."""
    distinct = dims.unique().drop_nulls()
    parts = distinct.cast(pl.String).str.strip_chars("() ").str.split(", ")
    found = []
    for i, axis in enumerate(_AXES):
        sizes = _whole_series(parts.list.get(i, null_on_oob=True))
        known = dims.replace_strict(distinct, sizes, return_dtype=pl.Int64) if len(distinct) else None
        if known is None or known.null_count() == len(dims):
            known = facts.of((f"launch__{what}_dim_{axis}",)).cast(pl.Int64)
        found.append(known)
    return found


def _whole(column: pl.Expr) -> pl.Expr:
    """A text as a whole number, whatever sets its groups apart; null if it is none."""
    return column.cast(pl.String).str.replace_all(r"\D", "").cast(pl.Int64, strict=False)


def _whole_series(texts: pl.Series) -> pl.Series:
    return texts.to_frame("text").select(_whole(pl.col("text"))).to_series()


def _only(values: pl.Series) -> str | None:
    """The value that all rows share."""
    distinct = values.cast(pl.String).unique()
    return distinct[0] or None if len(distinct) == 1 else None
