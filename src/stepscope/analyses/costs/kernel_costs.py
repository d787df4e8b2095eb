"""Operations and bytes of single kernel launches, from hardware counters.

Counters that are used: Nsight Compute's instruction counts by type and DRAM bytes, AMD's VALU and MFMA counts with
FETCH_SIZE and WRITE_SIZE, and the flops and bytes that a Triton program reports to Proton.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
import polars as pl

from stepscope.core.names import is_tensor_core, kernel_class, map_names
from stepscope.core.patterns import regex

_PRECISION = {"h": "fp16", "f": "fp32", "d": "fp64"}
_TENSOR = {"bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp8": "fp8", "fp64": "fp64", "int8": "int8", "fp4": "fp4"}
#: AMD counts vector instructions per wavefront, and operations of matrix units in units of 512 (rocprofiler-compute,
#: "Roofline": VALU counts × 64, MFMA_MOPS × 512).
_WAVE, _MOPS = 64, 512
_KIB = 1024
_READ = {"dram__bytes_read.sum": 1.0, "FETCH_SIZE": _KIB}
_WRITTEN = {"dram__bytes_write.sum": 1.0, "WRITE_SIZE": _KIB}
_SASS = regex(r"smsp__sass_thread_inst_executed_op_([hfd])(add|mul|fma)_pred_on\.sum(\.per_cycle_elapsed)?")
#: Either of single instructions (`_op_hgmma`), or of all of them: newer versions write both.
_TENSOR_OPS = regex(r"sm__ops_path_tensor(_op_\w+?)?_src_([a-z]+\d+)\w*\.sum(\.per_cycle_elapsed)?")
_VALU = regex(r"SQ_INSTS_VALU_(ADD|MUL|TRANS|FMA)_F(16|32|64)")
_MFMA = regex(r"SQ_INSTS_VALU_MFMA_MOPS_(F8|F16|BF16|F32|F64|I8)")
_PROTON_FLOPS = regex(r"flops(\d*)")
#: Counters that are above 0 if matrix units were used.
_MATRIX_AT_WORK = r"^sm__(?:inst_executed_pipe_tensor|pipe_tensor)|^SQ_INSTS_(?:VALU_)?MFMA(?:_|$)"
_CYCLES = regex(r"smsp__cycles_elapsed\.(?:max|avg)")


class _Role(msgspec.Struct, frozen=True):
    """What a counter measures: `flop` or `bytes`, how many of them a count of 1 is, in which precision.

    `way` ranks the ways to the same figure; the lowest that a launch has in a precision is used. `per` is `cycle` or
    `second` for a counter that is a rate. `part` is `read` or `written` for bytes in one direction.
    """

    what: str
    weight: float
    precision: str | None = None
    matrix: bool = False
    way: int = 0
    per: str | None = None
    part: str | None = None


@lru_cache(1 << 16)
def role_of(metric: str, unit: str | None) -> _Role | None:
    """What a counter of that name and unit says about operations or bytes; None if nothing."""
    if match := _SASS.fullmatch(metric):
        weight = 2.0 if match[2] == "fma" else 1.0
        return _Role("flop", weight, _PRECISION[match[1]], way=int(match[3] is not None), per=match[3] and "cycle")
    if match := _TENSOR_OPS.fullmatch(metric):
        way = 2 * (match[1] is not None) + (match[3] is not None)
        return _Role("flop", 1.0, _TENSOR.get(match[2]), True, way, match[3] and "cycle")
    if match := _VALU.fullmatch(metric):
        return _Role("flop", _WAVE * (2 if match[1] == "FMA" else 1), f"fp{match[2]}")
    if match := _MFMA.fullmatch(metric):
        precision = match[1].lower().replace("i8", "int8")
        return _Role("flop", _MOPS, re.sub(r"^f(?=\d)", "fp", precision), matrix=True)
    if (match := _PROTON_FLOPS.fullmatch(metric)) and unit == "FLOP":
        return _Role("flop", 1.0, {"8": "fp8", "16": "fp16", "32": "fp32", "64": "fp64"}.get(match[1]), matrix=True)
    return _bytes_role(metric, unit)


def _bytes_role(metric: str, unit: str | None) -> _Role | None:
    if metric in ("dram__bytes.sum", "bytes"):
        return _Role("bytes", 1.0)
    if metric in _READ or metric in _WRITTEN:
        return _Role(
            "bytes", _READ.get(metric) or _WRITTEN[metric], way=1, part="read" if metric in _READ else "written"
        )
    if metric == "dram__bytes.sum.per_second" or (metric.endswith(": Memory Throughput") and unit == "byte/s"):
        return _Role("bytes", 1.0, way=2, per="second")
    return None


def uses_matrix_units(work: pl.DataFrame, kernels: pl.DataFrame) -> pl.Series:
    """Whether each kernel's name, or the recorder, says that it computes on matrix units."""
    by_name = map_names(work["name"], is_tensor_core, pl.Boolean())
    if kernels["tensor_core"].null_count() == kernels.height:
        return by_name
    side = kernels[["span_id", "tensor_core"]]
    return work.join(side, on="span_id", how="left", maintain_order="left")["tensor_core"].fill_null(by_name)


def counted(work: pl.DataFrame, metrics: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel launch with its counted operations and bytes; no rows if no launch has such counters.

    Columns: name, family, precision, matrix, flop, bytes, reason, device_ns, tensor_core, device_id, step. Bytes that
    are counted as read and written need both counters. `flop` is null for a kernel on matrix units whose counters leave
    those units out. Units: FLOP, bytes, ns.
    """
    launches = work.filter(pl.col("category") == "kernel")
    values = _amounts(launches, metrics, "flop", "bytes")
    if values.is_empty():
        return pl.DataFrame()
    flop = values.filter(pl.col("what") == "flop").sort("amount", descending=True)
    flop = flop.group_by("span_id", maintain_order=True).agg(
        flop=pl.col("amount").sum(),
        precision=pl.col("precision").first(),
        matrix=pl.col("matrix").first(),
        sees_matrix=pl.col("matrix").any(),
    )
    at_work = metrics.filter(pl.col("metric").cast(pl.String).str.contains(_MATRIX_AT_WORK) & (pl.col("value") > 0))
    rows = launches.join(flop, on="span_id", how="left", maintain_order="left")
    rows = rows.with_columns(uses_matrix=pl.col("span_id").is_in(at_work["span_id"].unique().implode()))
    rows = rows.join(_moved(values).select("span_id", "bytes"), on="span_id", how="left", maintain_order="left")
    return _rows(rows, kernels)


def moved(launches: pl.DataFrame, metrics: pl.DataFrame) -> pl.DataFrame:
    """span_id, bytes, read_bytes and written_bytes of launches whose memory traffic was counted.

    The last two are null where only the sum was counted. `launches` has span_id and dur_ns.
    """
    return _moved(_amounts(launches, metrics, "bytes"))


def _amounts(launches: pl.DataFrame, metrics: pl.DataFrame, *wanted: str) -> pl.DataFrame:
    """The counters that are used for each launch, in FLOP or bytes: span_id, amount, and the columns of `_Role`."""
    names = metrics.select("metric", "unit").unique().with_columns(pl.all().cast(pl.String)).rows()
    roles = {key: role for key in names if (role := role_of(*key)) and role.what in wanted}
    table = pl.DataFrame(
        [(*key, r.what, r.weight, r.precision, r.matrix, r.way, r.per, r.part) for key, r in roles.items()],
        schema={
            "metric": pl.String, "unit": pl.String, "what": pl.String, "weight": pl.Float64, "precision": pl.String,
            "matrix": pl.Boolean, "way": pl.Int64, "per": pl.String, "part": pl.String,
        },
        orient="row",
    )  # fmt: skip
    if table.is_empty() or launches.is_empty():
        return table.clear().with_columns(span_id=pl.lit(None, pl.UInt32), amount=pl.lit(None, pl.Float64))
    plain = metrics.with_columns(pl.col("metric", "unit").cast(pl.String))
    cycles = plain.filter(pl.col("metric").str.contains(f"^{_CYCLES.pattern}$"))
    cycles = cycles.group_by("span_id").agg(cycles=pl.col("value").max())
    values = plain.join(table, on=["metric", "unit"], how="inner", nulls_equal=True).drop_nulls("value")
    values = values.join(cycles, on="span_id", how="left").join(launches.select("span_id", "dur_ns"), on="span_id")
    scale = (
        pl.when(pl.col("per") == "cycle")
        .then(pl.col("cycles"))
        .when(pl.col("per") == "second")
        .then(pl.col("dur_ns") / 1e9)
        .otherwise(1.0)
    )
    values = values.with_columns(amount=pl.col("value") * pl.col("weight") * scale).drop_nulls("amount")
    return values.filter(pl.col("way") == pl.col("way").min().over("span_id", "what", "matrix", "precision"))


def _moved(values: pl.DataFrame) -> pl.DataFrame:
    amount, part = pl.col("amount"), pl.col("part")
    traffic = (
        values.filter(pl.col("what") == "bytes")
        .group_by("span_id")
        .agg(
            bytes=amount.sum(),
            read_bytes=amount.filter(part == "read").first(),
            written_bytes=amount.filter(part == "written").first(),
            in_parts=part.is_not_null().any(),
        )
    )
    both = pl.col("read_bytes").is_not_null() & pl.col("written_bytes").is_not_null()
    return traffic.filter(~pl.col("in_parts") | both).drop("in_parts")


def _rows(rows: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    family = map_names(rows["name"], kernel_class, pl.String())
    rows = rows.with_columns(tensor_core=uses_matrix_units(rows, kernels), family=family)
    blind = (pl.col("tensor_core") | pl.col("uses_matrix")) & ~pl.col("sees_matrix").fill_null(value=False)
    why = (
        pl.when(blind & pl.col("flop").is_not_null())
        .then(pl.lit("it uses matrix units, which the recorded counters leave out"))
        .when(pl.col("flop").is_null())
        .then(pl.lit("no counters of its operations"))
        .when(pl.col("bytes").is_null())
        .then(pl.lit("no counters of its bytes"))
    )
    return rows.select(
        pl.col("name").cast(pl.String),
        "family",
        "precision",
        "matrix",
        pl.when(~blind).then("flop").alias("flop"),
        "bytes",
        why.alias("reason"),
        pl.col("dur_ns").alias("device_ns"),
        "tensor_core",
        "device_id",
        "step",
    )
