"""The plugin's kernel view: kernels by name, and by name, operator and launch properties.

Kernels of equal total time appear in the order that the unstable sort of the plugin's libraries gives. The plugin
sorts totals, listed by name, with pandas: reversed, through NumPy's "quicksort" of indices, reversed again. That sort
is an introsort: it splits at the median of first, middle and last, postpones the larger part, sorts parts of up to 16
values by insertion, and sorts by heap a part that was split too often. The values determine the result, so the same
steps give the same order. Source: NumPy 1.23, npysort/quicksort.cpp (kind="quicksort" without AVX-512); pandas 1.5,
core/sorting.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import distinct_values
from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._events import KERNEL
from stepscope.exports.tensorboard._json import rounded
from stepscope.exports.tensorboard._names import is_eligible, uses_tensor_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Dialect, Events, Launches
    from stepscope.exports.tensorboard._forest import Forest

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Times = NDArray[Any]
    Column = dict[str, str]


_SORT = "Total Duration (us)"
_TIMES = ("Calls", "Total Duration (us)", "Mean Duration (us)", "Max Duration (us)", "Min Duration (us)")
_USES_TC = "Whether this kernel uses Tensor Cores."
_USES_TC_MLU = _USES_TC + " It's always NO On MLU devices because MLU does not have Tensor Cores."
_OP_ELIGIBLE = "Whether the operator launched this kernel is eligible to use Tensor Cores."
_BLOCKS = (
    "Blocks Per SM = blocks of this kernel / SM number of this GPU.\n"
    "If this number is less than 1, it indicates the GPU multiprocessors are not fully utilized.\n"
    '"Mean Blocks per SM" is the weighted average of all calls of this kernel, '
    "using each call's execution duration as weight."
)
_OCCUPANCY = (
    "Est. Achieved Occupancy:\n"
    "For most cases such as memory bandwidth bounded kernels, the higher the better. "
    "Occupancy is the ratio of active warps on an SM to the maximum number of active warps supported by the SM. "
    "The theoretical occupancy of a kernel is upper limit occupancy of this kernel, limited by multiple factors such "
    "as kernel shape, kernel used resource, and the GPU compute capability.\n"
    "Est. Achieved Occupancy of a kernel, OCC_K = min(threads of the kernel / SM number / max threads per SM, "
    "theoretical occupancy of the kernel). "
    'This "Mean" number is the weighted average of all calls\' OCC_K of the kernel, '
    "using each call's execution duration as weight. "
    "It shows fine-grained low-level GPU utilization."
)
_GRID, _BLOCK = ("grid_x", "grid_y", "grid_z"), ("block_x", "block_y", "block_z")
#: Properties that distinguish launches of a kernel, in NVIDIA's plugin and Cambricon's. They are exact; 0 if unknown.
_PROPERTIES = ((*_GRID, *_BLOCK), ("registers", "shared_bytes"))
_PROPERTIES_MLU = ((*_GRID, "kernel_type"), ("graph_id", "graph_node_id"))
#: Up to this many calls of a kernel, sums are added step by step as in the plugin.
_STEPS = 4096


class KernelStats(msgspec.Struct, frozen=True):
    """Kernels by name, in the order of the plugin's table. Times in µs; `tc_ratio` is tensor cores' share of them."""

    names: list[str]
    uses_tc: list[bool]
    calls: Ints
    total: Times
    mean: Floats
    longest: Times
    shortest: Times
    blocks_per_sm: Floats
    occupancy: Floats
    tc_ratio: float


def kernel_stats(events: Events) -> KernelStats:
    """All kernels of the trace by name, within steps or not.

    Durations are the recorded ones. Blocks per multiprocessor and occupancy (in %) are means weighted by duration.
    Values that are not recorded count as 0 in them.
    """
    rows = events.rows(KERNEL)
    names, code = _by_text(events, rows)
    order = np.argsort(code, kind="stable")
    rows, calls = rows[order], np.bincount(code, minlength=len(names))
    starts = np.cumsum(calls) - calls
    dur = events.dur[rows]
    total = _added(dur, starts, calls)
    facts = _facts(events, rows)
    means = [_weighted(facts[key].fill_null(0).to_numpy(), dur, starts, calls) for key in ("blocks", "occupancy")]
    uses_tc = [_uses_tc(name, events.dialect) for name in names]
    longest, shortest = (f.reduceat(dur, starts) if names else dur for f in (np.maximum, np.minimum))
    shown = by_total(total)
    everything = total[shown].sum()
    on_tc = total[shown][np.array(uses_tc, bool)[shown]].sum()
    return KernelStats(
        [names[i] for i in shown.tolist()], [uses_tc[i] for i in shown.tolist()], calls[shown], total[shown],
        total[shown] / calls[shown], longest[shown], shortest[shown], means[0][shown], means[1][shown],
        float(on_tc / everything) if everything > 0 else 0.0,
    )  # fmt: skip


def kernel_table(events: Events, stats: KernelStats) -> dict[str, Any]:
    """The table of kernels by name."""
    columns = [
        {"type": "string", "name": "Name"},
        {"type": "string", "name": "Tensor Cores Used", "tooltip": _tooltip(events.dialect)},
        *_numbers(),
    ]
    parts: list[list[Any]] = [
        stats.names, ["Yes" if used else "No" for used in stats.uses_tc], stats.calls.tolist(),
        *(rounded(values) for values in (stats.total, stats.mean, stats.longest, stats.shortest)),
    ]  # fmt: skip
    for column, key in _measured(events):
        columns.append(column)
        parts.append([round(v, 2) for v in (stats.blocks_per_sm if key == "blocks" else stats.occupancy).tolist()])
    return _framed(columns, [list(row) for row in zip(*parts, strict=True)])


def kernel_pie(stats: KernelStats) -> dict[str, Any]:
    """Names and total times of all kernels."""
    return _pie([[name, v] for name, v in zip(stats.names, stats.total.tolist(), strict=True)])


def tc_pie(stats: KernelStats) -> dict[str, Any]:
    """Shares of the time of kernels that use tensor cores and of all others."""
    return _pie([["Using Tensor Cores", stats.tc_ratio], ["Not Using Tensor Cores", 1.0 - stats.tc_ratio]])


def kernel_op_table(events: Events, launches: Launches, forest: Forest) -> dict[str, Any]:
    """The table of kernels by name, operator that launched them, and launch properties.

    It has the kernels that a node of the forest claims, which may be fewer than all. A kernel that two nodes claim is
    in it twice. Its durations are differences of start and end.
    """
    rows, owner = _claimed(events, launches, forest)
    measured = _measured(events)
    columns = [*_op_columns(events.dialect), *_numbers(), *(column for column, _ in measured)]
    if not rows.size:
        return _framed(columns, [])
    mlu = events.dialect.is_mlu
    facts = _facts(events, rows)
    keys, order, calls = _grouped(facts, events.name[rows], forest.name[owner], mlu=mlu)
    length = (events.end[rows] - events.ts[rows])[order]
    starts = np.cumsum(calls) - calls
    group = np.repeat(np.arange(calls.size), calls)
    total = np.bincount(group, weights=length).astype(length.dtype)
    weighted = [np.bincount(group, weights=facts[key].fill_null(0).to_numpy()[order] * length) for _, key in measured]
    means = [(values / np.where(total > 0, total, 1)).tolist() for values in weighted]
    numbers = (calls, total, np.maximum.reduceat(length, starts), np.minimum.reduceat(length, starts))
    cells = list(zip(*(values.tolist() for values in numbers), strict=True))
    uses_tc = _verdicts({key[0] for key in keys}, events.names, lambda name: _uses_tc(name, events.dialect))
    eligible = _verdicts({key[1] for key in keys}, forest.names, is_eligible)
    table = []
    for i in np.argsort(-total, kind="stable").tolist():
        name, op, *properties = keys[i]
        n, summed, longest, shortest = cells[i]
        row = [events.names[name], forest.names[op], *_spelled(properties, mlu=mlu), uses_tc[name]]
        if not mlu:
            row.append(eligible[op])
        row += [n, summed, round(summed / n), longest, shortest]
        table.append(row + [round(values[i], 2) if summed else 0 for values in means])
    return _framed(columns, table)


def _op_columns(dialect: Dialect) -> list[Column]:
    """Columns that distinguish kernels, before those with numbers."""
    uses_tc = {"type": "string", "name": "Kernel Uses Tensor Cores", "tooltip": _tooltip(dialect)}
    names = ("Name", "Operator", "DimXYZ", "Kernel Type") if dialect.is_mlu else ("Name", "Operator", "Grid", "Block")
    columns = [{"type": "string", "name": name} for name in names]
    if dialect.is_mlu:
        return [*columns, uses_tc]
    return [
        *columns, {"type": "number", "name": "Register Per Thread"}, {"type": "number", "name": "Shared Memory"},
        uses_tc, {"type": "string", "name": "Op is Tensor Cores eligible", "tooltip": _OP_ELIGIBLE},
    ]  # fmt: skip


def _verdicts(codes: set[int], names: list[str], holds: Callable[[str], bool]) -> dict[int, str]:
    return {code: "Yes" if holds(names[code]) else "No" for code in codes}


def _claimed(events: Events, launches: Launches, forest: Forest) -> tuple[Ints, Ints]:
    """Kernels in the plugin's order, children's before their parent's, and the node that is shown as their owner.

    If two nodes claim a kernel, both of its rows show the later node.
    """
    rank = np.empty(forest.row.size, np.int64)
    rank[_order.post_order(forest.parent, _order.last_descendant(forest.parent))] = np.arange(rank.size)
    call, node = forest.claim_call, forest.claim_node
    at = launches.calls[call]
    order = np.lexsort((call, -events.end[at], events.ts[at], rank[node]))
    place, work = launches.work_of(call[order])
    node = node[order][place]
    # Kernels without a known call come last in each root that holds them.
    loose = np.flatnonzero((launches.call_of < 0) & (events.kind[launches.work] == KERNEL))
    loose = loose[np.lexsort((-events.end[launches.work[loose]], events.ts[launches.work[loose]]))]
    work = np.concatenate((work, np.tile(loose, forest.loose.size)))
    node = np.concatenate((node, np.repeat(forest.loose, loose.size)))
    is_kernel = events.kind[launches.work[work]] == KERNEL
    work, node = work[is_kernel], node[is_kernel]
    order = np.argsort(rank[node], kind="stable")
    work, node = work[order], node[order]
    owner = np.empty(launches.work.size, np.int64)
    owner[work] = node
    return launches.work[work], owner[work]


def _facts(events: Events, rows: Ints) -> pl.DataFrame:
    """Launch properties of kernels, null where none are recorded; occupancy in %."""
    kernels = events.trace.kernels.select(
        "span_id", *_GRID, *_BLOCK, "registers", "shared_bytes", "kernel_type", "graph_id", "graph_node_id",
        pl.col("blocks_per_sm").alias("blocks"),
        (pl.col("est_occupancy_ratio") * 100).round(9).alias("occupancy"),  # as recorded, before it became a ratio
    )  # fmt: skip
    wanted = pl.DataFrame({"span_id": rows.astype(np.uint32)})
    return wanted.join(kernels, on="span_id", how="left", maintain_order="left")


def _grouped(
    facts: pl.DataFrame, name: NDArray[Any], op: Ints, *, mlu: bool
) -> tuple[list[tuple[Any, ...]], Ints, Ints]:
    """Groups by first appearance: the key of each, places of the kernels group by group, and how many each has."""
    exact, or_zero = _PROPERTIES_MLU if mlu else _PROPERTIES
    frame = facts.select(
        pl.Series("name", name), pl.Series("op", op), *exact, *(pl.col(c).fill_null(0) for c in or_zero),
        pl.int_range(pl.len()).alias("place"),
    )  # fmt: skip
    keys = ["name", "op", *exact, *or_zero]
    groups = frame.group_by(keys, maintain_order=True).agg("place")
    calls = groups["place"].list.len().to_numpy().astype(np.int64)
    return groups.select(keys).rows(), groups["place"].explode().to_numpy(), calls


def _spelled(properties: list[Any], *, mlu: bool) -> list[str | None]:
    if mlu:
        return [str(properties[:3]), properties[3]]
    grid, block = (str(d) if d[0] is not None else "None" for d in (properties[:3], properties[3:6]))
    return [grid, block, str(properties[6]), str(properties[7])]


def _by_text(events: Events, rows: Ints) -> tuple[list[str], Ints]:
    """The distinct names in alphabetical order, and the number of each row's name."""
    used = np.flatnonzero(np.bincount(events.name[rows], minlength=len(events.names)))
    sorted_codes = sorted(used.tolist(), key=events.names.__getitem__)
    place = np.zeros(len(events.names), np.int64)
    place[sorted_codes] = np.arange(used.size)
    return [events.names[i] for i in sorted_codes], place[events.name[rows]]


def _added(values: Times, starts: Ints, calls: Ints) -> Times:
    """Sum of each group of adjacent values, as pandas adds. Sums of doubles carry the rounding error along.

    This matters because the last digit decides the order of totals that are mathematically equal.
    """
    if not starts.size or values.dtype == np.int64:
        return np.add.reduceat(values, starts) if starts.size else values
    by_size = np.argsort(-calls, kind="stable")
    starts, sizes = starts[by_size], calls[by_size]
    total, lost = np.zeros(sizes.size), np.zeros(sizes.size)
    for i in range(min(int(sizes[0]), _STEPS)):
        k = int(np.searchsorted(-sizes, -i))
        value = values[starts[:k] + i] - lost[:k]
        grown = total[:k] + value
        lost[:k] = (grown - total[:k]) - value
        total[:k] = grown
    for j in range(int(np.searchsorted(-sizes, -_STEPS))):
        total[j] += values[starts[j] + _STEPS : starts[j] + sizes[j]].sum() - lost[j]
    sums = np.empty(sizes.size)
    sums[by_size] = total
    return sums


def _weighted(values: Floats, weights: Times, starts: Ints, calls: Ints) -> Floats:
    """Weighted mean of each group of adjacent values; 0 if all weights are 0."""
    means = np.zeros(starts.size)
    for i, (low, high) in enumerate(zip(starts.tolist(), (starts + calls).tolist(), strict=True)):
        whole = weights[low:high].sum()
        if whole:
            means[i] = (values[low:high] * weights[low:high]).sum() / whole
    return means


def _measured(events: Events) -> list[tuple[Column, str]]:
    """Columns of the measures that at least one kernel has, and where their values are."""
    kernels, noun = events.trace.kernels, events.dialect.noun
    columns = []
    if (kernels["blocks_per_sm"] > 0).any():
        name = "Mean Blocks Per SM"
        columns.append(({"type": "number", "name": name, "tooltip": _BLOCKS.replace("GPU", noun)}, "blocks"))
    if (kernels["est_occupancy_ratio"] >= 0).any():
        name = "Mean Est. Achieved Occupancy (%)"
        columns.append(({"type": "number", "name": name, "tooltip": _OCCUPANCY.replace("GPU", noun)}, "occupancy"))
    return columns


def _uses_tc(kernel: str, dialect: Dialect) -> bool:
    return not dialect.is_mlu and uses_tensor_cores(kernel)


def _tooltip(dialect: Dialect) -> str:
    return _USES_TC_MLU if dialect.is_mlu else _USES_TC


def _numbers() -> list[Column]:
    return [{"type": "number", "name": name} for name in _TIMES]


def _framed(columns: list[Column], rows: list[list[Any]]) -> dict[str, Any]:
    return {"metadata": {"sort": _SORT}, "data": {"columns": columns, "rows": rows}}


def _pie(rows: list[list[Any]]) -> dict[str, Any]:
    columns = [{"type": "string", "name": "name"}, {"type": "number", "name": "value"}]
    return {"total": {"columns": columns, "rows": rows}}


_SMALL = 16


def by_total(totals: NDArray[Any]) -> Ints:
    """Places of the totals, largest first, equal ones in the plugin's order. `totals` are listed by name."""
    if distinct_values(totals).size == totals.size:
        return np.argsort(totals)[::-1]
    order = np.array(_places(totals[::-1].tolist()), np.int64)
    return totals.size - 1 - order[::-1]


def _places(values: list[float]) -> list[int]:
    """Places of the values in ascending order, as NumPy's introsort leaves them."""
    order = list(range(len(values)))
    parts = [(0, len(values) - 1, 2 * (len(values).bit_length() - 1))]
    while parts:
        low, high, splits = parts.pop()
        if splits < 0:
            order[low : high + 1] = _by_heap(order[low : high + 1], values)
            continue
        while high - low >= _SMALL:
            middle = _split(order, values, low, high)
            splits -= 1
            if middle - low < high - middle:
                parts.append((middle + 1, high, splits))
                high = middle - 1
            else:
                parts.append((low, middle - 1, splits))
                low = middle + 1
        order[low : high + 1] = sorted(order[low : high + 1], key=values.__getitem__)  # stable, as by insertion
    return order


def _split(order: list[int], values: list[float], low: int, high: int) -> int:
    """Move smaller values before the median of three, larger ones after it. Returns its place. Writes into `order`."""
    middle = (low + high) // 2
    for a, b in ((low, middle), (middle, high), (low, middle)):
        if values[order[b]] < values[order[a]]:
            order[a], order[b] = order[b], order[a]
    pivot = values[order[middle]]
    left, right = low, high - 1
    order[middle], order[right] = order[right], order[middle]
    while True:
        left += 1
        while values[order[left]] < pivot:
            left += 1
        right -= 1
        while pivot < values[order[right]]:
            right -= 1
        if left >= right:
            break
        order[left], order[right] = order[right], order[left]
    order[left], order[high - 1] = order[high - 1], order[left]
    return left


def _by_heap(part: list[int], values: list[float]) -> list[int]:
    """A part of the places in ascending order of their values, by heapsort."""
    heap = list(part)
    for top in range(len(heap) // 2 - 1, -1, -1):
        _sink(heap, values, top, len(heap))
    for size in range(len(heap) - 1, 0, -1):
        heap[0], heap[size] = heap[size], heap[0]
        _sink(heap, values, 0, size)
    return heap


def _sink(heap: list[int], values: list[float], at: int, size: int) -> None:
    """Move the place at `at` below all larger children. Writes into `heap`."""
    place = heap[at]
    while (child := 2 * at + 1) < size:
        if child + 1 < size and values[heap[child]] < values[heap[child + 1]]:
            child += 1
        if values[place] >= values[heap[child]]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = place
