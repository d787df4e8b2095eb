"""What each device can do at most, beside what calls and kernels have to do: the roofs of `roofline` and `mfu`."""

from __future__ import annotations

import polars as pl

from stepscope.core.errors import UnknownName
from stepscope.core.hardware import Accelerator, with_file
from stepscope.core.names import is_tensor_core, map_names

#: For each device its product, or why none is known; for None that of devices without an entry.
Roofs = dict[int | None, Accelerator | str]
NOT_DESCRIBED = "the trace does not describe the device"


def roofs_of(devices: pl.DataFrame, hardware: str | None, accelerator: str | None) -> Roofs:
    """For each device its product, or why none is known; an `accelerator` that is named stands for all (key None).

    `hardware` is a file of products. Raises UnknownName (accelerator), StepscopeError (hardware).
    """
    known = with_file(hardware)
    if accelerator is not None:
        found = known.find(accelerator)
        if isinstance(found, str):
            raise UnknownName("accelerator", accelerator, [a.name for a in known.accelerators])
        return {None: found}
    rows = devices.filter(pl.col("type") != "cpu").to_dicts()
    return {
        row["device_id"]: known.find(row["name"], units=row["sm_count"], memory_bytes=row["memory_bytes"])
        for row in rows
    }


def roof_of(roofs: Roofs, device_id: int | None) -> Accelerator | str:
    """The product of a device, or why it is not known."""
    return roofs.get(device_id, roofs.get(None, NOT_DESCRIBED))


def uses_matrix_units(work: pl.DataFrame, kernels: pl.DataFrame | None) -> pl.Series:
    """Whether each kernel's name, or the recorder, says that it computes on matrix units."""
    by_name = map_names(work["name"], is_tensor_core, pl.Boolean())
    if kernels is None or kernels.is_empty():
        return by_name
    side = kernels.select("span_id", "tensor_core")
    return work.join(side, on="span_id", how="left", maintain_order="left")["tensor_core"].fill_null(by_name)


def with_roofs(found: pl.DataFrame, roofs: Roofs) -> pl.DataFrame:
    """Beside the cost of each call the time that it takes at either roof, and the product or the reason.

    Adds peak (FLOP/s), bandwidth (bytes/s), accelerator, unknown (why no product is known), compute_ns, memory_ns,
    roof_ns; `reason` is completed.
    """
    keys = ["device_id", "precision", "matrix", "tensor_core"]
    distinct = found.select(keys).unique(maintain_order=True)
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
    found = found.join(by_key, on=keys, how="left", nulls_equal=True, maintain_order="left")
    compute_ns = pl.col("flop") / pl.col("peak") * 1e9
    memory_ns = pl.col("bytes") / pl.col("bandwidth") * 1e9
    no_peak = (
        pl.lit("no peak is known for ")
        + pl.col("precision")
        + pl.when("matrix").then(pl.lit(" on matrix units")).otherwise(pl.lit(""))
    )
    lacks = pl.col("accelerator").is_not_null() & pl.col("peak").is_null() & pl.col("precision").is_not_null()
    # Work in whole numbers, and work without operations, has memory as its roof.
    no_compute = pl.col("bandwidth").is_not_null() & pl.col("precision").is_null() | (pl.col("flop") == 0)
    compute_ns = pl.when(no_compute & pl.col("flop").is_not_null()).then(0.0).otherwise(compute_ns)
    return found.with_columns(compute_ns=compute_ns, memory_ns=memory_ns).with_columns(
        reason=pl.coalesce("reason", "unknown", pl.when(lacks & (pl.col("flop") > 0)).then(no_peak)),
        roof_ns=pl.when(pl.col("compute_ns").is_not_null() & pl.col("memory_ns").is_not_null()).then(
            pl.max_horizontal("compute_ns", "memory_ns")
        ),
    )
