"""How close operators and kernels come to the device's roofs: its peak FLOP/s and bytes/s."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.kernel_costs import counted, uses_matrix_units
from stepscope.analyses.costs.op_costs import ARGUMENTS, priced
from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.hardware import ANY, Accelerator, Hardware, with_file
from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, OPS
from stepscope.core.table import Column, Table, without

#: The product of each device, or why it is unknown; under None that of all devices without an entry.
Roofs = dict[int | None, Accelerator | str]
NOT_DESCRIBED = "the trace does not describe the device"
By = Literal["auto", "op", "args", "kernel"]
KEYS = {"op": ("name",), "args": ("name", *ARGUMENTS), "kernel": ("name",)}
ROOFLINE = Table(
    "roofline",
    "how close operators and kernels come to the device's peaks",
    (
        Column("name", pl.String(), "operator or kernel (by op, args, kernel)", key=True),
        Column("input_shapes", pl.String(), "shapes of its inputs, as compact JSON (by args)", key=True),
        Column("input_types", pl.String(), "their element types (by args)", key=True),
        Column("concrete_inputs", pl.String(), "its plain values (by args)", key=True),
        Column("family", pl.String(), "kind of computation: gemm, convolution, attention, norm, elementwise, …"),
        Column("precision", pl.String(), "type that it computes in, such as bf16"),
        Column("calls", pl.Int64(), "calls with device work; by kernel: launches"),
        Column("device_ns", pl.Int64(), "time in which their work ran; overlaps within a call count once", "ns"),
        Column("roof_ratio", pl.Float64(), "roof time over device time; 1 is as fast as the device allows", "ratio"),
        Column("bound", pl.Enum(("compute", "memory")), "which of the two roofs limits it"),
        Column("flop_per_s", pl.Float64(), "operations over device time", "FLOP/s"),
        Column("bytes_per_s", pl.Float64(), "bytes over device time", "bytes/s"),
        Column("intensity", pl.Float64(), "operations per byte", "FLOP/byte"),
        Column("roof_ns", pl.Float64(), "device time at the roof that limits it", "ns"),
        Column("mean_ns", pl.Float64(), "mean device time of a call", "ns"),
        Column("share_ratio", pl.Float64(), "its share of the device time of all rows", "ratio"),
        Column("flop", pl.Float64(), "operations of all calls", "FLOP"),
        Column("bytes", pl.Float64(), "bytes that all calls had to read and write at least", "bytes"),
        Column("peak_flop_per_s", pl.Float64(), "peak rate for its types; the highest if there are several", "FLOP/s"),
        Column("peak_bytes_per_s", pl.Float64(), "the device's memory bandwidth", "bytes/s"),
        Column("accelerator", pl.String(), "product whose peaks were used"),
        Column("reason", pl.String(), "why a value is missing"),
    ),
)


def roofs_of(devices: pl.DataFrame, hardware: str | None, accelerator: str | None) -> Roofs:
    """The product of each device, or why it is unknown. A given `accelerator` holds for all devices (key None).

    `hardware` is a file of products. Raises UnknownName (accelerator), StepscopeError (hardware).
    """
    known = with_file(hardware)
    if accelerator is not None:
        product = known.find(accelerator)
        if isinstance(product, str):
            raise UnknownName("accelerator", accelerator, [a.name for a in known.accelerators])
        return {None: product}
    rows = [row for row in devices.iter_rows(named=True) if row["type"] not in (None, "cpu")]
    return {row["device_id"]: _roof(known, row) for row in rows}


def _roof(known: Hardware, row: dict[str, Any]) -> Accelerator | str:
    """The product of a device; if it is not known, the peaks that its recorder states."""
    product = known.find(row["name"], units=row["sm_count"], memory_bytes=row["memory_bytes"])
    rate, bandwidth = row["recorded_flop_per_s"], row["recorded_bytes_per_s"]
    if not isinstance(product, str) or bandwidth is None:
        return product
    name = f"{row['name'] or row['type']} (recorded peaks)"
    return Accelerator(name=name, memory_bytes_per_s=bandwidth, tensor={} if rate is None else {ANY: rate})


def roof_of(roofs: Roofs, device_id: int | None) -> Accelerator | str:
    """The product of a device, or why it is unknown."""
    return roofs.get(device_id, roofs.get(None, NOT_DESCRIBED))


def with_roofs(calls: pl.DataFrame, roofs: Roofs) -> pl.DataFrame:
    """The calls with the time that each would take at either roof.

    Adds peak (FLOP/s), bandwidth (bytes/s), accelerator, unknown (why the product is unknown), compute_ns, memory_ns
    and roof_ns, and fills in `reason`.
    """
    keys = ["device_id", "precision", "matrix", "tensor_core"]
    distinct = calls[keys].unique(maintain_order=True)
    rows: list[tuple[float | None, float | None, str | None, str | None]] = []
    for device_id, precision, matrix, tensor_core in distinct.rows():
        roof = roof_of(roofs, device_id)
        if isinstance(roof, str):
            rows.append((None, None, None, roof))
        else:
            peak = roof.peak(precision, matrix=bool(matrix), tensor_core=tensor_core)
            rows.append((peak, roof.memory_bytes_per_s, roof.name, None))
    schema = {"peak": pl.Float64, "bandwidth": pl.Float64, "accelerator": pl.String, "unknown": pl.String}
    by_key = pl.concat([distinct, pl.DataFrame(rows, schema=schema, orient="row")], how="horizontal")
    no_peak = (
        pl.lit("no peak is known for ")
        + pl.col("precision")
        + pl.when("matrix").then(pl.lit(" on matrix units")).otherwise(pl.lit(""))
    )
    by_key = by_key.with_columns(no_peak=no_peak)
    calls = calls.join(by_key, on=keys, how="left", nulls_equal=True, maintain_order="left")
    compute_ns = pl.col("flop") / pl.col("peak") * 1e9
    memory_ns = pl.col("bytes") / pl.col("bandwidth") * 1e9
    lacks = pl.col("accelerator").is_not_null() & pl.col("peak").is_null() & pl.col("precision").is_not_null()
    # For work of unknown type, as on integers, and work without operations, only the memory roof counts.
    no_compute = pl.col("bandwidth").is_not_null() & pl.col("precision").is_null() & pl.col("peak").is_null() | (
        pl.col("flop") == 0
    )
    compute_ns = pl.when(no_compute & pl.col("flop").is_not_null()).then(0.0).otherwise(compute_ns)
    rated = calls.with_columns(compute_ns=compute_ns, memory_ns=memory_ns).with_columns(
        reason=pl.coalesce("reason", "unknown", pl.when(lacks & (pl.col("flop") > 0)).then("no_peak")),
        roof_ns=pl.when(pl.col("compute_ns").is_not_null() & pl.col("memory_ns").is_not_null()).then(
            pl.max_horizontal("compute_ns", "memory_ns")
        ),
    )
    return without(rated, "no_peak")


def roofline(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    ops: pl.DataFrame = OPS.empty(),
    kernels: pl.DataFrame = KERNELS.empty(),
    kernel_metrics: pl.DataFrame = KERNEL_METRICS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    by: By = "auto",
    hardware: str | None = None,
    accelerator: str | None = None,
) -> pl.DataFrame:
    """One row per operator, per operator and its arguments, or per kernel: its work, its speed, and its roof.

    `roof_ratio` compares with the roof: the time that a call takes at the peak FLOP/s or at the memory bandwidth,
    whichever is longer. A ratio above 1 means that less was moved than counted, as data stayed in the cache.

    `flop` and `bytes` of an operator follow from the shapes and types of its inputs; each tensor counts as read or
    written once, so cache misses are not included. Work is attributed to the outermost operator with a known cost; work
    without one has rows too, with the `reason`. By kernel, both come from hardware counters. `by=auto` takes kernels if
    the source has no times, else operators. For the MFU of whole steps see `mfu`.

    `hardware` is a JSON file with more accelerators; `accelerator` names the product if the trace does not. For an
    unknown device the roofs are null, and `reason` says why.

    Units: ns, FLOP, bytes, FLOP/s and bytes/s (decimal), ratio.
    Source: Williams, Waterman, Patterson, "Roofline" (2009); counts as in TraceLens's performance models.
    Raises MissingTable (no device work; by kernel: no counters), UnknownName (by), StepscopeError (hardware).
    """
    work = device_work(spans, tracks, needed_by="roofline").select(pl.exclude("sort"))
    has_clock = work["ts_ns"].null_count() < work.height
    grouping = by if by != "auto" else "op" if has_clock else "kernel"
    if grouping != "kernel" and not has_clock:
        raise MissingTable("start times", needed_by=f"roofline by {by}", hint="without a clock, use by=kernel")
    if grouping == "kernel":
        rows = counted(work, kernel_metrics, kernels)
        if rows.is_empty():
            hint = "record counters with ncu or rocprofv3 --pmc; docs/hardware.md lists those that are used"
            raise MissingTable("counters of operations or bytes", needed_by="roofline by kernel", hint=hint)
    else:
        work = work.with_columns(tensor_core=uses_matrix_units(work, kernels))
        _, rows = priced(work, spans, ops)
    roofs = roofs_of(devices, hardware, accelerator)
    return _summed(with_roofs(rows, roofs), KEYS[grouping])


def _summed(rows: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Rows summed by their keys, most device time first."""
    total = rows["device_ns"].sum()
    result = rows.group_by(keys, maintain_order=True).agg(
        family=pl.col("family").first(),
        precision=pl.col("precision").drop_nulls().mode().sort().first(),
        calls=pl.col("n_calls").sum() if "n_calls" in rows.columns else pl.len().cast(pl.Int64),
        device_ns=pl.col("device_ns").sum(),
        peak_flop_per_s=pl.col("peak").max(),
        peak_bytes_per_s=pl.col("bandwidth").max(),
        accelerator=pl.col("accelerator").first(),
        reason=pl.col("reason").drop_nulls().first(),
        **{c: _sum(c) for c in ("flop", "bytes", "roof_ns", "compute_ns", "memory_ns")},
    )
    seconds = pl.when(pl.col("device_ns") > 0).then(pl.col("device_ns") / 1e9)
    bound = pl.when(pl.col("compute_ns") >= pl.col("memory_ns")).then(pl.lit("compute")).otherwise(pl.lit("memory"))
    result = result.with_columns(
        mean_ns=pl.col("device_ns") / pl.col("calls"),
        share_ratio=pl.col("device_ns") / total if total else None,
        intensity=pl.when(pl.col("bytes") > 0).then(pl.col("flop") / pl.col("bytes")),
        flop_per_s=pl.col("flop") / seconds,
        bytes_per_s=pl.col("bytes") / seconds,
        bound=pl.when(pl.col("roof_ns").is_not_null()).then(bound),
        roof_ratio=pl.col("roof_ns") / 1e9 / seconds,
    )
    result = result.sort("device_ns", *keys, descending=[True] + [False] * len(keys), nulls_last=True)
    return result.select(pl.col(k).cast(t) for k, t in ROOFLINE.dtypes.items() if k in result.columns)


def _sum(column: str) -> pl.Expr:
    """The sum if every call has a value: operations of some calls over the time of all would mislead."""
    return pl.when(pl.col(column).null_count() == 0).then(pl.col(column).sum())


ANALYSIS = analysis_of(
    roofline, ROOFLINE, "How close operators and kernels come to the device's peaks.", needs_clock=False
)
