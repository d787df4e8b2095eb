"""Tables of kernels as text: a line for each launch, with its latency in ns and how busy tensor cores and DRAM were.

Format: `Kernel | Latency Tensor DRAM`, as scripts of CASIO's author write it (medav/torchbench-ncu); a newer version
has `:` where older ones have `|`. Names are truncated; some say little (`Kernel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput
from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, SPANS, TRACKS
from stepscope.core.table import Name
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.source import IssueLog

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source

_ROW = r"^(?<name>.*\S)\s*[|:]\s*(?<Latency>[\d.]+|-)\s+(?<Tensor>[\d.]+|-)\s+(?<DRAM>[\d.]+|-)\s*$"
_RATIOS = ("Tensor", "DRAM")
_SHORTENED = r"\.\.\.$"


def read(source: Source) -> Trace:
    """Every line as a launch, in their order; shares of the peak as metrics `Tensor` and `DRAM`, 0 to 1.

    Raises CorruptInput if no line can be read; other unreadable lines are counted in `issues`.
    """
    issues = IssueLog()
    text = b"".join(source.chunks()).decode("utf-8", "replace")
    lines = pl.Series("line", text.split("\n")[1:]).str.strip_chars_end()
    lines = lines.filter(lines != "")
    rows = lines.str.extract_groups(_ROW).struct.unnest()
    is_row = rows["name"].is_not_null()
    if not is_row.any():
        raise CorruptInput("a header and no rows", "write the table again", path=source.label)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    for example in lines.filter(~is_row).head(1):
        issues.add("lines_dropped", "warning", int((~is_row).sum()), f"lines that are not rows, as {example[:60]!r}")
    rows = rows.filter(is_row).with_columns(pl.col("Latency", *_RATIOS).cast(pl.Float64, strict=False))
    n_shortened = int(rows["name"].str.contains(_SHORTENED).sum())
    issues.add("names_cut", "info", n_shortened, "long names are cut, so that several kernels may have the same name")
    spans = rows.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("span_id"),
        pl.lit(0, dtype=pl.UInt32).alias("track_id"),
        pl.col("Latency").round().clip(0, 2**61).cast(pl.Int64).alias("dur_ns"),
        pl.col("name").cast(Name),
        pl.lit("kernel").alias("category"),
    )
    values = rows.select(*_RATIOS).with_row_index("span_id").unpivot(_RATIOS, index="span_id", variable_name="metric")
    values = values.sort("span_id", maintain_order=True).with_columns(
        pl.col("metric").cast(Name), unit=pl.lit("ratio").cast(Name)
    )
    tables = {
        "devices": DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["accelerator"], "index": [0]})),
        "tracks": TRACKS.conform(pl.DataFrame({"track_id": [0], "device_id": [0], "kind": ["stream"]})),
        "spans": SPANS.conform(spans),
        "kernels": KERNELS.conform(spans.select("span_id")),
        "kernel_metrics": KERNEL_METRICS.conform(values),
        "issues": issues.table(),
    }
    meta = Meta(source.label, "kernel-table", n_events=spans.height, size_bytes=source.n_bytes)
    return Trace(meta, {name: frame for name, frame in tables.items() if not frame.is_empty()})
