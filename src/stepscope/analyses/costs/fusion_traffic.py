"""What the kernels of a run read and write, and how much of that a single kernel in their place would not.

A *stage* is a kernel with counters, or the kernels of one operator's call, whose traffic follows from its shapes.
Launches of an optimizer's kernel in succession are one stage: each works on a part of one list of tensors. An amount is
in bytes; where only shares of the peak bandwidth are known, and not the device, in ns at that bandwidth.
"""

from __future__ import annotations

import polars as pl

from stepscope.analyses.costs.kernel_costs import moved
from stepscope.analyses.costs.op_costs import priced
from stepscope.analyses.costs.roofs import Roofs, roof_of, uses_matrix_units
from stepscope.core.counter_roles import measured

METHODS = ("counters", "dram share", "shapes")
_PARTLY = "its operator launches other work too"
_NO_BYTES = "no counters of its bytes, and no operator with shapes"


def stages_of(
    members: pl.DataFrame,
    work: pl.DataFrame,
    spans: pl.DataFrame,
    ops: pl.DataFrame,
    metrics: pl.DataFrame,
    roofs: Roofs,
) -> pl.DataFrame:
    """A row per stage in order: run, dur_ns, read, written, largest (input), method, in_bytes, reason.

    `members` are the kernels of all runs in order, `work` all device work. Counters of bytes come first, then the
    share of peak bandwidth, then shapes; where only the sum of both directions is known, half is taken for each.
    """
    counted = _by_counters(members, metrics, roofs)
    shaped = _by_shapes(members, work, spans, ops)
    columns = ("run", "span_id", "dur_ns", "name", "kernel_class")
    rows = members.select(columns).join(counted, on="span_id", how="left", maintain_order="left")
    rows = rows.join(shaped, on="span_id", how="left", maintain_order="left")
    alike = pl.struct("run", "name", "method")
    is_part = (pl.col("kernel_class") == "optimizer") & (alike == alike.shift(1))
    by_itself = pl.col("method").is_not_null() | pl.col("call_id").is_null()
    own = -1 - (~is_part.fill_null(value=False)).cum_sum().cast(pl.Int64)
    rows = rows.with_columns(stage=pl.when(by_itself).then(own).otherwise("call_id"))
    amounts = ("read", "written", "largest")
    found = rows.group_by("run", pl.col("stage").rle_id().alias("at"), maintain_order=True).agg(
        pl.col("dur_ns").sum(),
        *(pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in amounts),
        *(pl.col(f"{name}_shape").first() for name in amounts),
        pl.col("method", "in_bytes", "n_work", "reason").first(),
        n=pl.len(),
    )
    whole = pl.col("n") == pl.col("n_work")
    told = pl.col("written_shape").is_not_null() & whole
    return found.select(
        "run",
        "dur_ns",
        *(pl.coalesce(name, pl.when(told).then(f"{name}_shape")).alias(name) for name in amounts),
        method=pl.coalesce("method", pl.when(told).then(pl.lit("shapes"))).cast(pl.Enum(METHODS)),
        in_bytes=pl.col("in_bytes").fill_null(value=True),
        reason=pl.when(pl.col("written_shape").is_not_null() & ~whole)
        .then(pl.lit(_PARTLY))
        .otherwise(pl.coalesce("reason", pl.lit(_NO_BYTES))),
    )


def _by_counters(members: pl.DataFrame, metrics: pl.DataFrame, roofs: Roofs) -> pl.DataFrame:
    """span_id, read, written, largest, method, in_bytes of launches whose traffic was counted."""
    bytes_of = moved(members, metrics)
    half = pl.col("bytes") / 2
    read, written = pl.coalesce("read_bytes", half), pl.coalesce("written_bytes", half)
    exact = bytes_of.select(
        "span_id", read=read, written=written, method=pl.lit("counters"), in_bytes=pl.lit(value=True)
    )
    share = members.select("span_id", "dur_ns", "device_id").join(measured(metrics, "dram"), on="span_id")
    share = share.join(exact, on="span_id", how="anti")
    devices = share["device_id"].unique().to_list()
    products = {device: roof_of(roofs, device) for device in devices}
    known = [(d, None if isinstance(p, str) else p.memory_bytes_per_s) for d, p in products.items()]
    rates = pl.DataFrame(known, schema={"device_id": pl.UInt32, "rate": pl.Float64}, orient="row")
    share = share.join(rates, on="device_id", how="left", nulls_equal=True)
    amount = pl.col("value") * pl.col("dur_ns") * (pl.col("rate") / 1e9).fill_null(1.0) / 2
    rough = share.select(
        "span_id", read=amount, written=amount, method=pl.lit("dram share"), in_bytes=pl.col("rate").is_not_null()
    )
    return pl.concat([exact, rough]).with_columns(largest="read")


def _by_shapes(members: pl.DataFrame, work: pl.DataFrame, spans: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """span_id, call_id, n_work, reason and the amounts of the call that stands for each launch."""
    columns: dict[str, type[pl.DataType]] = {
        "span_id": pl.UInt32, "call_id": pl.Int64, "n_work": pl.Int64, "reason": pl.String,
        "read_shape": pl.Float64, "written_shape": pl.Float64, "largest_shape": pl.Float64,
    }  # fmt: skip
    if work["ts_ns"].null_count() == work.height or members["op_id"].null_count() == members.height:
        return pl.DataFrame(schema=columns)  # a source that knows no operators
    marked = work.with_columns(tensor_core=uses_matrix_units(work, None))
    mine, calls = priced(marked, spans, ops)
    mine = mine.select("span_id", "call_id").join(members.select("span_id"), on="span_id", how="semi")
    amounts = calls.select(
        "call_id",
        "n_work",
        "reason",
        read_shape=pl.col("bytes") - pl.col("written_bytes"),
        written_shape="written_bytes",
        largest_shape="largest_bytes",
    )
    return mine.join(amounts, on="call_id", how="left").select(*columns)


def savings_of(stages: pl.DataFrame) -> pl.DataFrame:
    """A row per run: amount moved, kept in between, what was known, and both bounds of the time that fusion saves.

    Within stretches of stages that are all known, of two or more: at best one kernel reads the largest input and
    writes the last output; at worst each stage still writes its output, and only what it hands to the next one is not
    read again. Time goes with amounts: at best at the rate of the stretch, at worst at that of the stage that reads.
    """
    amount = pl.col("read") + pl.col("written")
    known = amount.is_not_null()
    stages = stages.with_columns(
        amount=amount,
        stretch=pl.struct("run", "in_bytes", known.alias("known")).rle_id(),
        handed=pl.min_horizontal(pl.col("written").shift(1), pl.col("read")),
    )
    first = pl.col("stretch") != pl.col("stretch").shift(1).fill_null(2**32 - 1)
    stages = stages.with_columns(handed=pl.when(~first & known).then("handed").otherwise(0.0))
    reread_ns = (
        pl.when(pl.col("amount") > 0).then(pl.col("handed") / pl.col("amount") * pl.col("dur_ns")).otherwise(0.0)
    )
    stretches = stages.group_by("run", "stretch", maintain_order=True).agg(
        known.first().alias("known"),
        pl.col("dur_ns", "amount").sum(),
        reread_ns=reread_ns.sum(),
        least=pl.col("largest").max() + pl.col("written").last(),
        n=pl.len(),
        in_bytes=pl.col("in_bytes").all(),
        method=pl.col("method").first(),
        reason=pl.col("reason").first(),
    )
    fusible = pl.col("known") & (pl.col("n") > 1) & (pl.col("amount") > 0)
    between = pl.when(fusible).then((pl.col("amount") - pl.col("least")).clip(lower_bound=0.0)).otherwise(0.0)
    high = pl.when(fusible).then(between / pl.col("amount") * pl.col("dur_ns")).otherwise(0.0)
    low = pl.min_horizontal(pl.when(fusible).then("reread_ns").otherwise(0.0), high)
    some, can_save = pl.col("known").any(), fusible.any()
    return (
        stretches.with_columns(between=between, high_ns=high, low_ns=low)
        .group_by("run", maintain_order=True)
        .agg(
            bytes=pl.when(some & pl.col("in_bytes").all()).then(pl.col("amount").sum()),
            between_bytes=pl.when(can_save & pl.col("in_bytes").all()).then(pl.col("between").sum()),
            known_ns=pl.col("dur_ns").filter("known").sum(),
            saved_low_ns=pl.when(can_save).then(pl.col("low_ns").sum()),
            saved_high_ns=pl.when(can_save).then(pl.col("high_ns").sum()),
            method=pl.col("method").drop_nulls().first(),
            reason=pl.col("reason").filter(~pl.col("known")).first(),
        )
    )
