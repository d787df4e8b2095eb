"""Another device, another batch size: the least and the most time that device work may take there.

One recording gives no point. How long a kernel takes on another device depends on how near it comes to the peaks of
both, and of another batch size nobody knows which part of a kernel's time grows with it.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.device_work import COMMUNICATION, MEMCPY
from stepscope.analyses.critical_path.replay import Program
from stepscope.core.errors import StepscopeError
from stepscope.core.hardware import Accelerator, known
from stepscope.core.intervals import Bools
from stepscope.core.names import FUSIBLE, is_tensor_core, map_names, transfer_kind

#: How far products of matrices depart from the ratio of peaks, and attention: between H100 and MI300X, whose peaks
#: promise 0.76 times the time, products took 0.54 to 1.32 times as long, and attention 1.48 to 3.05.
_PRODUCTS, _ATTENTION = 1.75, 4.0
#: Shorter kernels do not fill a device: they take about as long as now, or the ratio. None takes less than the second
#: of these, and those that take less than the third may take that long.
_FILLS_NS, _LEAST_NS, _FLOOR_NS = 20_000, 1_000, 5_000
_PRODUCT_CLASSES = ("gemm", "convolution", "moe", "attention")
#: Element types of products whose kernels do not say theirs.
_PRECISIONS = ("fp16", "bf16", "fp32")
_BATCH_HINT = "say how many times as large it is, as in 'batch: 2x'"
#: Operators whose inputs say the size of a batch, and where: convolutions first, else what looks tokens up.
_BATCHES = (
    (r"^aten::(?:conv\dd|convolution)$", r"^\[\[(\d+),"),
    (r"^aten::embedding$", r"^\[\[[^\]]*\],\s*\[(\d+),"),
)


def on_device(program: Program, name: str, *, at_worst: bool) -> NDArray[np.float64]:
    """Factors of the program's device work on the product of that name, at best or at worst.

    Source: peaks and bandwidths of `core/hardware.json`. Raises StepscopeError (one of the devices is not known).
    """
    here, there = _recorded_device(program), product(name)
    work, classes = program.work, program.classes
    took = np.maximum(work.end - work.start, 1).astype(np.float64)
    memory = here.memory_bytes_per_s / there.memory_bytes_per_s
    low, high = np.full(took.size, min(memory, 1.0)), np.full(took.size, max(memory, 1.0))
    names = program.spans["name"].gather(work.row)
    on_matrix_units = map_names(names, is_tensor_core, pl.Boolean()).to_numpy()
    is_product = np.isin(classes, _PRODUCT_CLASSES)
    for mine, certain in ((is_product & on_matrix_units, True), (is_product & ~on_matrix_units, False)):
        ratios = [*_peak_ratios(here, there, on_matrix_units=certain), memory]
        spread = np.where(classes[mine] == "attention", _ATTENTION, _PRODUCTS)
        low[mine], high[mine] = min(ratios) / _PRODUCTS, max(ratios) * spread
    other = ~np.isin(classes, (*FUSIBLE, *_PRODUCT_CLASSES, "memory"))
    low[other], high[other] = low[other] / _PRODUCTS, high[other] * _PRODUCTS
    talks = work.sort == COMMUNICATION
    links = here.link_bytes_per_s, there.link_bytes_per_s
    link = links[0] / links[1] if links[0] and links[1] else 1.0
    low[talks], high[talks] = min(link, 1.0), max(link, 1.0)
    short = (took < _FILLS_NS) & ~talks
    low[short] = np.minimum(low[short], 1 / _PRODUCTS)
    high[short] = np.maximum(high[short], _PRODUCTS)
    least = np.minimum(np.maximum(low * took, _LEAST_NS), np.maximum(took, low * took))
    factors: NDArray[np.float64] = (np.maximum(high * took, _FLOOR_NS) if at_worst else least) / took
    factors[_is_of_host(program)] = 1.0
    return factors


def product(name: str) -> Accelerator:
    """The product of that name. Raises StepscopeError if it is not known."""
    result = known().find(name)
    if isinstance(result, str):
        raise StepscopeError(f"no peaks are known of {name!r}", result)
    return result


def _recorded_device(program: Program) -> Accelerator:
    """The product on which the program ran."""
    rows = program.devices.filter(pl.col("type") != "cpu").to_dicts()
    reason = "the recording does not describe its device"
    for row in rows:
        result = known().find(row["name"], units=row["sm_count"], memory_bytes=row["memory_bytes"])
        if not isinstance(result, str):
            return result
        reason = result
    raise StepscopeError("the device that was recorded is not known, so it cannot be compared with another", reason)


def _peak_ratios(here: Accelerator, there: Accelerator, *, on_matrix_units: bool) -> list[float]:
    """Times of products there in relation to here by the peaks of both, for each type of element that they may have."""
    pairs = [
        (one.peak(precision, matrix=True, tensor_core=units), other.peak(precision, matrix=True, tensor_core=units))
        for one, other in ((here, there),)
        for precision in _PRECISIONS
        for units in ((True,) if on_matrix_units else (True, False))
    ]
    return [a / b for a, b in pairs if a and b]


def _is_of_host(program: Program) -> Bools:
    """Copies to and from the host, which its link limits."""
    names = program.spans["name"].gather(program.work.row)
    is_local = map_names(names, lambda name: transfer_kind(name) in ("memset", "DtoD"), pl.Boolean()).to_numpy()
    result: Bools = (program.work.sort == MEMCPY) & ~is_local
    return result


def batch_factor(program: Program, wanted: str, times: float | None) -> float:
    """How many times as large the wanted batch is: `times`, or by its size. Raises StepscopeError (size not known)."""
    if times is not None:
        return times
    recorded = recorded_batch(program)
    if recorded is None:
        raise StepscopeError(
            f"the recording does not say its batch size, so 'batch: {wanted}' means nothing", _BATCH_HINT
        )
    return int(wanted) / recorded


def recorded_batch(program: Program) -> int | None:
    """The number of samples of a step, by the shapes of inputs; None if these are not recorded, or differ."""
    shapes = program.ops.select("span_id", pl.col("input_shapes").cast(pl.String)).drop_nulls()
    named = program.spans.filter(pl.col("category") == "operator").select("span_id", pl.col("name").cast(pl.String))
    shapes = shapes.join(named, on="span_id")
    for names, first in _BATCHES:
        mine = shapes.filter(pl.col("name").str.contains(names))
        sizes = mine["input_shapes"].str.extract(first).drop_nulls().unique().to_list()
        if sizes:
            return int(sizes[0]) if len(sizes) == 1 else None
    return None
