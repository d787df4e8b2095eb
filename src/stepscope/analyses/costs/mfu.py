"""MFU (model FLOP utilisation): how much of the device's peak FLOP/s each step uses."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.common.windows import windows_of
from stepscope.analyses.costs.kernel_costs import uses_matrix_units
from stepscope.analyses.costs.op_costs import NO_FORMULA, priced
from stepscope.analyses.costs.roofline import Roofs, roofs_of, with_roofs
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import locate
from stepscope.core.names import kernel_class, map_names
from stepscope.core.schema import DEVICES, KERNELS, OPS, STEPS
from stepscope.core.table import Column, Table, filtered, without
from stepscope.core.units import percent

By = Literal["step", "all", "precision"]
KEYS = {"step": ("step",), "all": (), "precision": ("precision", "peak_flop_per_s")}
#: Classes of kernels that are matrix products (of `moe`, routed experts, only some are).
_PRODUCTS = ("gemm", "convolution", "attention", "moe")
_WORTH_NAMING = 0.001
#: What is asked of device work: all of its columns would be copied.
_OF_WORK = ("name", "category", "ts_ns", "end_ns", "dur_ns", "op_id", "step", "device_id", "tensor_core")
NO_PRODUCTS = "no kernel is a matrix product, judging by names"

MFU = Table(
    "mfu",
    "how much of the device's peak FLOP/s each step uses",
    (
        Column("step", pl.Int32(), "step; null: no steps are marked, the row is the recording (by step)", key=True),
        Column("precision", pl.String(), "types of the products and their share of operations; by precision: the type"),
        Column("window_ns", pl.Int64(), "duration of the step, until the device finished its work", "ns"),
        Column("mfu_ratio", pl.Float64(), "time of the matrix products at peak over the step's time", "ratio"),
        Column("product_ratio", pl.Float64(), "part of the step's time in which kernels of products ran", "ratio"),
        Column("product_mfu_ratio", pl.Float64(), "time of the counted products at peak over their own time", "ratio"),
        Column("known_ratio", pl.Float64(), "part of the products' kernel time whose operations are known", "ratio"),
        Column("most_mfu_ratio", pl.Float64(), "MFU if the unknown products ran at their peak", "ratio"),
        Column("flop", pl.Float64(), "operations of the products, as far as known", "FLOP"),
        Column("flop_per_s", pl.Float64(), "operations over the step's time, per device", "FLOP/s"),
        Column("peak_flop_per_s", pl.Float64(), "dense peak of their types, per device; of several types the mean"
               " weighted by operations", "FLOP/s"),
        Column("calls", pl.Int64(), "calls of operators that are matrix products"),
        Column("product_ns", pl.Int64(), "summed time of kernels of matrix products", "ns"),
        Column("n_devices", pl.Int64(), "devices in use"),
        Column("accelerator", pl.String(), "product whose peaks were used"),
        Column("reason", pl.String(), "why the ratio is missing, or what it leaves out"),
    ),
)  # fmt: skip


def mfu(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    ops: pl.DataFrame = OPS.empty(),
    kernels: pl.DataFrame = KERNELS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    *,
    by: By = "step",
    hardware: str | None = None,
    accelerator: str | None = None,
) -> pl.DataFrame:
    """One row per step, one for all steps, or one per type that matrix products compute in.

    Matrix products are GEMM, convolution and attention; their operations follow from the shapes and types of operators'
    inputs, as in `roofline`. Each takes at least operations / dense peak of its type. The sum of these times over the
    step's time is the MFU, `mfu_ratio`. A step lasts until the device has finished what the step queued, as in
    `step-breakdown`; with several devices the step's time is multiplied by their number. Recomputed products count too,
    so with activation checkpointing this is the HFU (hardware FLOP utilisation).

    Kernels that are matrix products by name, but whose operations are unknown, are left out of `mfu_ratio` and assumed
    to run at peak in `most_mfu_ratio`: the MFU is between the two. `known_ratio` is the part of the products' time that
    is counted. Without a known device, peak or operations the ratios are null, and `reason` says why.

    `hardware` is a JSON file with more accelerators; `accelerator` names the product if the trace does not.

    Units: ns, FLOP, FLOP/s (decimal), ratio.
    Source: model FLOP utilisation as in PaLM (Chowdhery et al., 2022), from the operations that were run.
    Raises MissingTable (no device work, no kernels), UnknownName (by, accelerator), StepscopeError (hardware).
    """
    work = device_work(spans, tracks, needed_by="mfu").select(pl.exclude("sort"))
    windows = windows_of(spans, tracks, steps, work)
    roofs = roofs_of(devices, hardware, accelerator)
    return mfu_of(work, windows, spans, ops, kernels, roofs, by=by)


def mfu_of(
    work: pl.DataFrame,
    windows: pl.DataFrame,
    spans: pl.DataFrame,
    ops: pl.DataFrame,
    kernels: pl.DataFrame,
    roofs: Roofs,
    *,
    by: By,
) -> pl.DataFrame:
    """`mfu` for these windows (step, ts_ns, end_ns) and this device work. Raises MissingTable (no kernels)."""
    if not (work["category"] == "kernel").any():
        raise MissingTable("kernels", needed_by="mfu", hint="for copies and fills there is show timeline")
    n_devices = max(work["device_id"].drop_nulls().n_unique(), 1)
    work = work.with_columns(step=_steps_of(work, windows), tensor_core=uses_matrix_units(work, kernels))
    work = work[list(_OF_WORK)]
    if not windows["step"].null_count():  # else the one window is the recording
        work = filtered(work, work["step"].is_in(windows["step"].implode()))
    work, calls = priced(work, spans, ops, arguments=False)
    # What nobody asks for is left out at once: of millions of calls each column takes its memory.
    calls = with_roofs(without(calls, "family", "written_bytes", "largest_bytes", "n_work", "device_ns"), roofs)
    calls = without(calls, "bytes", "bandwidth", "memory_ns", "roof_ns", "unknown", "tensor_core", "device_id")
    is_known = pl.col("matrix").fill_null(value=False) & pl.col("flop").is_not_null()
    calls = calls.with_columns(known=is_known)
    products = filtered(without(calls, "name", "accelerator"), calls["known"]).rename({"peak": "peak_flop_per_s"})
    ran = _kernels_of_products(work, calls)
    if by == "precision":
        ran = ran.join(products.select("call_id", *KEYS[by]), on="call_id", how="left", maintain_order="left")
    keys = list(KEYS[by])
    if by != "step":
        whole = int((windows["end_ns"] - windows["ts_ns"]).sum())
        rows = products.select(keys).unique(maintain_order=True) if keys else pl.DataFrame([{}])
        rows = rows.with_columns(window_ns=pl.lit(whole, pl.Int64))
    else:
        rows = windows.select("step", window_ns=pl.col("end_ns") - pl.col("ts_ns"))
    for part in (_sums_of(products, keys), _times_of(ran, keys)):
        if keys:
            rows = rows.join(part, on=keys, how="left", nulls_equal=True, maintain_order="left")
        else:
            rows = pl.concat([rows, part], how="horizontal")
    products_of = calls["accelerator"].drop_nulls()
    name = products_of[0] if len(products_of) else None
    return _finished(rows.with_columns(n_devices=pl.lit(n_devices, pl.Int64), accelerator=pl.lit(name, pl.String)), by)


def _steps_of(work: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """The step of each piece of work: the one that queued it, or without a launch the one in which it starts."""
    if windows["step"].null_count():  # no steps: the one window is the recording
        return pl.Series("step", [None] * work.height, pl.Int32)
    at = locate((windows["ts_ns"].to_numpy(), windows["end_ns"].to_numpy()), work["ts_ns"].to_numpy())
    ran = windows["step"][pl.Series(np.maximum(at, 0).astype(np.uint32)).set(pl.Series(at < 0), None)]
    return work.select(step=pl.when(pl.col("launch_id").is_null()).then(ran).otherwise("step"))["step"]


def _kernels_of_products(work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels of matrix products: step, call_id, dur_ns, known, and why their operations are unknown."""
    ran = filtered(work[["step", "call_id", "name", "dur_ns", "tensor_core"]], work["category"] == "kernel")
    ids = calls["call_id"].to_numpy()
    order = np.argsort(ids)
    call = pl.Series("call", order[np.searchsorted(ids, ran["call_id"].to_numpy(), sorter=order)])
    ran = ran.hstack([call, calls["known"][call]])
    is_one = map_names(ran["name"], lambda name: kernel_class(name) in _PRODUCTS, pl.Boolean())
    ran = filtered(ran, is_one | ran["tensor_core"] | ran["known"])
    # Texts are made of what is left: of all kernels they would take most of the memory here.
    named = pl.when(pl.col("reason") == NO_FORMULA).then(pl.format("no formula for {}", "name")).otherwise("reason")
    why = pl.DataFrame([calls[column][ran["call"]] for column in ("reason", "name")]).select(named).to_series()
    return without(ran, "call").with_columns(why=why)


def _sums_of(products: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    measures = {
        "calls": pl.len().cast(pl.Int64),
        "flop": pl.col("flop").sum(),
        "at_peak_ns": pl.when(pl.col("compute_ns").null_count() == 0).then(pl.col("compute_ns").sum()),
        "unknown": pl.col("reason").drop_nulls().first(),
    }
    if "precision" in keys:
        return products.group_by(keys).agg(**measures)
    parts = products.group_by([*keys, "precision"]).agg(pl.col("flop").sum())
    parts = parts.sort("flop", "precision", descending=[True, False])
    if not keys:
        return products.select(**measures).with_columns(precision=pl.lit(_mixture(parts), pl.String))
    texts = [(key[0], _mixture(part)) for key, part in parts.partition_by(keys, as_dict=True).items()]
    named = pl.DataFrame(texts, schema={keys[0]: pl.Int32, "precision": pl.String}, orient="row")
    summed = products.group_by(keys).agg(**measures)
    return summed.join(named, on=keys, how="left", nulls_equal=True)


def _mixture(parts: pl.DataFrame) -> str | None:
    """'bf16', or 'bf16 97 %, fp32 3 %'; types with less than a thousandth of the operations are left out."""
    whole = parts["flop"].sum() or 1.0
    shares = [(name or "other", flop / whole) for name, flop in parts.select("precision", "flop").rows()]
    shares = [(name, ratio) for name, ratio in shares if ratio >= _WORTH_NAMING]
    if len(shares) < 2:
        return shares[0][0] if shares else None
    return ", ".join(f"{name} {percent(ratio)}" for name, ratio in shares)


def _times_of(ran: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    known = pl.col("known")
    unknown = pl.col("why").filter(~known).sort_by(pl.col("dur_ns").filter(~known), descending=True)
    measures = {
        "product_ns": pl.col("dur_ns").sum(),
        "known_ns": pl.col("dur_ns").filter(known).sum(),
        "why": unknown.drop_nulls().first(),
    }
    return ran.group_by(keys).agg(**measures) if keys else ran.select(**measures)


def _finished(rows: pl.DataFrame, by: By) -> pl.DataFrame:
    """The ratios of the sums, and the reason where one is missing."""
    room = pl.when(pl.col("window_ns") > 0).then(pl.col("window_ns") * pl.col("n_devices"))
    some = (pl.col("flop") > 0).fill_null(value=False)
    at_peak = pl.when(some).then(pl.col("at_peak_ns"))
    unknown_ns = pl.col("product_ns").fill_null(0) - pl.col("known_ns").fill_null(0)
    no_product = pl.col("product_ns").fill_null(0) == 0
    rows = rows.with_columns(
        calls=pl.col("calls").fill_null(0),
        product_ns=pl.col("product_ns").fill_null(0),
        mfu_ratio=at_peak / room,
        most_mfu_ratio=pl.when(pl.col("accelerator").is_not_null() & (at_peak.is_not_null() | ~some)).then(
            pl.min_horizontal((at_peak.fill_null(0.0) + unknown_ns) / room, pl.lit(1.0))
        ),
        product_ratio=pl.col("product_ns").fill_null(0) / room,
        product_mfu_ratio=pl.when(pl.col("known_ns") > 0).then(at_peak / pl.col("known_ns")),
        known_ratio=pl.when(pl.col("product_ns") > 0).then(pl.col("known_ns") / pl.col("product_ns")),
        flop=pl.when(some).then(pl.col("flop")),
        flop_per_s=pl.when(some).then(pl.col("flop") / (room / 1e9)),
        reason=pl.when(no_product).then(pl.lit(NO_PRODUCTS)).otherwise(pl.coalesce("unknown", "why")),
    )
    if by == "precision":
        rows = rows.sort("flop", descending=True, nulls_last=True)
    else:
        rows = rows.with_columns(peak_flop_per_s=pl.col("flop") / (at_peak / 1e9))
    return rows.select(pl.col(k).cast(t) for k, t in MFU.dtypes.items() if k in rows.columns)


ANALYSIS = analysis_of(mfu, MFU, "How much of the device's peak FLOP/s each step's matrix products use.")
