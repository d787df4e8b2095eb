"""How much work each operator gets in both runs, by the sizes of its inputs, and in which element types."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.model import MATRIX_PRODUCTS
from stepscope.core.collectives import talks_to_ranks
from stepscope.core.table import filtered

if TYPE_CHECKING:
    from stepscope.comparison.model import Pair


#: All operators that multiply matrices count as one.
PRODUCTS = "matrix products"
#: Relative difference up to which two numbers of calls count as equal.
_AS_OFTEN = 0.05
#: Share of the operators' time from which on those in both runs stand for all.
_MOST = 0.5
#: Calls have new types if so many of the old ones are gone, of those that were there or that are new.
_REPLACED = 0.5
_KEYS = ["device", "name", "shapes", "types"]
_GRID, _HOST = "grid ", "host"


def elements(shapes: str | None) -> float | None:
    """Elements of all inputs, from their shapes as compact JSON, or blocks of a kernel's grid; null if unknown.

    >>> elements("[[576,320],[320,2048],[]]"), elements("grid 4×2×1, block 128×1×1"), elements("[[],[]]")
    (839681.0, 8.0, 2.0)
    """
    if not shapes:
        return None
    if shapes.startswith(_GRID):
        numbers = shapes.removeprefix(_GRID).split(",")[0].split("×")
        return float(math.prod(int(n) for n in numbers)) if all(n.isdigit() for n in numbers) else None
    try:
        parsed = json.loads(shapes)
    except (ValueError, RecursionError):
        return None
    return _count(parsed) if isinstance(parsed, list) else None


def _count(shapes: list[object]) -> float:
    """Elements of a list of shapes, in which a list of tensors is a nested list. A scalar, [], has one element."""
    total = 0.0
    for shape in shapes:
        if not isinstance(shape, list):
            continue
        if all(isinstance(n, int) for n in shape):
            total += float(math.prod(n for n in shape if isinstance(n, int)))
        else:
            total += _count(shape)
    return total


@lru_cache(1 << 14)  # several causes ask for the same calls
def amount(name: str, shapes: str | None) -> float | None:
    """The amount of work in a call: multiplications of a matrix product, else elements of the inputs.

    >>> amount("aten::mm", "[[2,3],[3,5]]"), amount("aten::linear", "[[4,2,3],[5,3],[5]]")
    (30.0, 120.0)
    >>> amount("aten::add", "[[2],[2]]")
    4.0
    """
    whole = elements(shapes)
    if whole is None or shapes is None or not re.match(MATRIX_PRODUCTS, name):
        return whole
    matrices = [shape for shape in json.loads(shapes) if isinstance(shape, list) and len(shape) >= 2]
    if len(matrices) < 2 or not all(isinstance(n, int) for shape in matrices[:2] for n in shape):
        return whole
    left, right = matrices[-2:]
    columns = right[-2] if name.endswith("linear") else right[-1]
    return float(math.prod(left) * columns)


def sizes(pair: Pair) -> pl.DataFrame:
    """A row per device and operator (matrix products together) with known sizes on both sides.

    Without sizes of operators, a row per kernel: a grid says less, since libraries choose it. Collectives have no row,
    because their grid depends on the links. Columns: device, name, and per side `volume_*` (`amount` per cycle),
    `calls_*`, `time_*` (own time per cycle, ns).
    """
    rows = _both(pair, pl.when(pl.col("name").str.contains(MATRIX_PRODUCTS)).then(pl.lit(PRODUCTS)).otherwise("name"))
    rows = rows.filter(~talks_to_ranks(rows["name"].cast(pl.Categorical), "any"))
    operators, kernels = rows.filter(pl.col("device") == _HOST), rows.filter(pl.col("device") != _HOST)
    return operators if kernels.is_empty() or _are_most(operators, pair) else kernels


def most_telling(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of `sizes` in order: matrix products, convolutions, then those that take most time in the base."""
    rank = pl.when(pl.col("name") == PRODUCTS).then(2).when(pl.col("name").str.contains("conv")).then(1).otherwise(0)
    return rows.sort(rank, "time_base", descending=True, maintain_order=True)


def _are_most(operators: pl.DataFrame, pair: Pair) -> bool:
    """Whether these operators take half of the time of all in either run; those in a captured graph are not visible."""
    for side, rows in zip(("base", "other"), pair.workloads, strict=True):
        whole = float(rows["time"].filter(rows["device"] == _HOST).sum())
        if not whole or float(operators[f"time_{side}"].sum()) < _MOST * whole:
            return False
    return True


def kernels_of_same_size(pair: Pair) -> tuple[float, float]:
    """Time per cycle in the base and in the other run of the kernels that both call with the same grid. Units: ns.

    Collectives are left out, whose time is that of other ranks too.
    """
    keys = ["name", "shapes"]
    base, other = (
        rows.filter(pl.col("shapes").str.starts_with(_GRID)).group_by(keys).agg(pl.col("calls", "time").sum())
        for rows in pair.workloads
    )
    both = base.join(other, on=keys, suffix="_other").filter(
        (pl.col("calls_other") / pl.col("calls") - 1).abs() <= _AS_OFTEN
    )
    both = both.filter(~talks_to_ranks(both["name"].cast(pl.Categorical), "any"))
    return float(both["time"].sum()), float(both["time_other"].sum())


def sizes_of_calls(pair: Pair) -> pl.DataFrame:
    """A row per device and function with known sizes on both sides: `ratio` of the mean amount of a call."""
    rows = _both(pair, pl.col("name")).filter(pl.col("volume_base") > 0)
    each = (pl.col(f"volume_{side}") / pl.col(f"calls_{side}") for side in ("other", "base"))
    return rows.select("device", "name", ratio=next(each) / next(each))


def share_of_same_work(pair: Pair) -> float | None:
    """Share of the base's time in operators that are called as often as before on inputs of the same shapes, 0..1.

    None if shapes are not known in both runs.
    """
    base, other = (
        rows.filter(pl.col("shapes").is_not_null() & (pl.col("time") > 0))
        .group_by("device", "name", "shapes")
        .agg(pl.col("calls", "time").sum())
        for rows in pair.workloads
    )
    whole = float(base["time"].sum())
    if not whole or other.is_empty():
        return None
    both = base.join(other, on=["device", "name", "shapes"], how="inner", suffix="_other")
    share_slowed_by = (pl.col("calls_other") / pl.col("calls") - 1).abs() <= _AS_OFTEN
    return float(both.filter(share_slowed_by)["time"].sum()) / whole


def _both(pair: Pair, group: pl.Expr) -> pl.DataFrame:
    tables = []
    for suffix, rows in zip(("base", "other"), pair.workloads, strict=True):
        volumes = [amount(*row) for row in rows.select("name", "shapes").iter_rows()]
        sized = rows.with_columns(volume=pl.Series(volumes, dtype=pl.Float64), name=group)
        tables.append(
            filtered(sized, sized["volume"].is_not_null())
            .group_by("device", "name", maintain_order=True)
            .agg(
                (pl.col("volume") * pl.col("calls")).sum().alias(f"volume_{suffix}"),
                pl.col("calls").sum().alias(f"calls_{suffix}"),
                pl.col("time").sum().alias(f"time_{suffix}"),
            )
        )
    return tables[0].join(tables[1], on=["device", "name"], how="inner", maintain_order="left")


def retyped(pair: Pair) -> tuple[str, ...]:
    """Operators that spend a fifth of their own time or more on new element types at unchanged sizes, longest first.

    Calls with other types that come on top of the old ones are added work, and no change of types.
    """
    base, other = map(_typed, pair.workloads)
    known = base.select("name", "plain").unique()
    of_name = other.group_by("name").agg(pl.col("time").sum().alias("whole"))
    new = other.join(known, on=["name", "plain"], how="anti")
    calls = pl.col("calls").sum()
    before = base.group_by("name", "shapes").agg(before=calls)
    still = other.join(known, on=["name", "plain"], how="semi").group_by("name", "shapes").agg(still=calls)
    sizes_of_new = new.group_by("name", "shapes", maintain_order=True).agg(calls, pl.col("time").sum())
    both = sizes_of_new.join(before, on=["name", "shapes"]).join(still, on=["name", "shapes"], how="left")
    gone = pl.col("before") - pl.col("still").fill_null(0.0)
    replaced = both.filter(gone >= _REPLACED * pl.min_horizontal("before", "calls"))
    times = replaced.group_by("name", maintain_order=True).agg(pl.col("time").sum()).join(of_name, on="name")
    times = times.filter((pl.col("time") >= 0.2 * pl.col("whole")) & (pl.col("time") > 0))
    return tuple(times.sort("time", descending=True)["name"].to_list())


def _typed(workload: pl.DataFrame) -> pl.DataFrame:
    """The rows with known element types, and these as text in the column `plain`."""
    rows = filtered(workload, workload["types"].is_not_null())
    named = pl.Series("plain", [plain(text) for text in rows["types"]], dtype=pl.String)
    return filtered(rows.hstack([named]), named != "")


def plain(types: str) -> str:
    """The distinct types in a JSON list of types.

    >>> plain('["float","float",""]')
    'float'
    """
    parts = [part.strip(' "') for part in types.strip("[]").split(",")]
    return " and ".join(dict.fromkeys(part for part in parts if part and part not in {"Scalar", "ScalarList"}))
