"""What each framework operator cost, by itself and with all that it called, on the host and on the device."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.span_lookup import in_rows, is_captured, own_time
from stepscope.core.arrays import numbered
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Bools, Ints, ends_of, outermost
from stepscope.core.names import is_tensor_core, is_tensor_core_eligible, map_names
from stepscope.core.schema import DEVICE_WORK, OPS, STACKS
from stepscope.core.table import Column, Name, Table, filtered, is_any_of

OPERATORS = Table(
    "operators",
    "what each framework operator cost, on the host and on the device",
    (
        Column("name", Name, "operator", key=True),
        Column("input_shapes", Name, "shapes of its inputs, as compact JSON (by shape)", key=True),
        Column("stack", pl.String(), "where it was called from, outermost frame first (by stack)", key=True),
        Column("calls", pl.Int64(), "how often it was called"),
        Column("device_self_ns", pl.Int64(), "device work that it launched itself", "ns"),
        Column("device_total_ns", pl.Int64(), "device work launched by it and by the operators inside it", "ns"),
        Column("n_kernels", pl.Int64(), "kernels that it launched itself"),
        Column("host_self_ns", pl.Int64(), "host time less that of operators and runtime calls inside it", "ns"),
        Column("host_total_ns", pl.Int64(), "host time from call to return, recursion counted once", "ns"),
        Column("host_mean_ns", pl.Float64(), "mean host time of a call", "ns"),
        Column(
            "share_ratio", pl.Float64(), "its own part of all device work; without any, of operators' time", "ratio"
        ),
        Column("tc_eligible", pl.Boolean(), "it computes products that matrix units (tensor cores) can do"),
        Column("tc_self_ratio", pl.Float64(), "part of device_self_ns in kernels that use matrix units", "ratio"),
        Column("tc_total_ratio", pl.Float64(), "the same of device_total_ns", "ratio"),
    ),
)

#: Host spans whose time is not the own time of the operator around them. Python frames, modules and annotations are
#: not among them: what an operator does in Python is its own time.
_CALLS = ("operator", "runtime", "driver")


def operators(
    spans: pl.DataFrame,
    ops: pl.DataFrame = OPS.empty(),
    stacks: pl.DataFrame = STACKS.empty(),
    *,
    by: Literal["name", "shape", "stack"] = "name",
) -> pl.DataFrame:
    """One row per operator (by shape, stack: and its inputs' shapes or its call stack), costliest on the device first.

    The main columns are `calls`, `device_self_ns`, `device_total_ns`, `host_self_ns` and `host_total_ns`. Without
    device work the costliest on the host comes first, and device columns are null. Device time is the plain sum of the
    durations of kernels, copies and fills. Self is the work whose innermost operator this is; total adds that of
    operators that start while it is open on the same thread. Totals count a call inside a call of the same row once.

    An operator is eligible for matrix units if its name says so or if it launched kernels that use them. Whether
    kernels use them is read from their names: a ratio above 0 is reliable, 0 is not (the names of Triton kernels and of
    many vendors do not say).

    Units: ns; ratios 0..1.
    Source: self and total as in torch.profiler's key_averages, with runtime calls taken as children. Eligible are the
    operators that PyTorch's autocast runs in half precision, as in the TensorBoard profiler plugin, and later ones.
    Raises MissingTable if there is no operator, or if shapes or stacks were not recorded;
    UnknownName (by).
    """
    is_operator = (spans["category"] == "operator").to_numpy()
    is_call = spans["category"].is_in(_CALLS).to_numpy()
    calls = np.flatnonzero(is_operator)
    if calls.size == 0:
        raise MissingTable("operators", needed_by="operators", topic="operators")
    frame, group = _groups(spans["name"], ops, calls, by)
    work = filtered(spans[["name", "dur_ns", "category", "op_id"]], is_any_of(spans["category"], DEVICE_WORK))
    on_host = ~is_captured(spans)[calls]

    def summed(values: NDArray[np.number], rows: Ints | slice = slice(None)) -> Ints:
        # Sums of whole nanoseconds are exact in a double up to 104 days.
        return np.bincount(group[rows], values, minlength=frame.height).astype(np.int64)

    # Each is summed at once: columns of millions of calls are what takes memory.
    sums = {
        "calls": np.bincount(group, minlength=frame.height),
        "host_self_ns": summed(own_time(spans, is_call)[is_operator[is_call]] * on_host),
    }
    tracks, starts, durations = (spans[c].to_numpy()[calls] for c in ("track_id", "ts_ns", "dur_ns"))
    first = outermost(tracks, starts, starts + durations, group)
    sums["host_total_ns"] = summed(durations * first * on_host)
    sums["host_ns"] = summed(durations * on_host)
    if not work.is_empty():
        outer = np.flatnonzero(first)
        after = ends_of(tracks, starts, starts + durations, outer)
        del starts, durations
        at, kernels, times = _launched(work, calls)
        sums["n_kernels"] = np.bincount(group[at[kernels]], minlength=frame.height)
        for part, ns in times.items():
            own = np.bincount(at, ns, minlength=calls.size).astype(np.int64)
            sums[f"{part}_self_ns"] = summed(own)
            sums[f"{part}_total_ns"] = summed(_within(own, outer, after), outer)
    frame = frame.with_columns(**sums)
    return _named(frame, stacks, by, int(work["dur_ns"].sum()))


def _groups(names: pl.Series, ops: pl.DataFrame, calls: Ints, by: str) -> tuple[pl.DataFrame, Ints]:
    """The result's rows by their keys (name, key), and for each call which of them it belongs to."""
    first, number = numbered(names.to_physical().to_numpy()[calls])
    rows, group = in_rows(names, calls[first]).to_frame("name"), number.astype(np.int64)
    if by == "name":
        return rows, group
    keys = pl.DataFrame({"group": group, "key": _key(ops, calls, by)})
    pairs = keys.unique(maintain_order=True).with_row_index("pair")
    group = keys.join(pairs, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")["pair"].to_numpy()
    return pairs.select(rows["name"].gather(pairs["group"]), "key"), group.astype(np.int64)


def _key(ops: pl.DataFrame, calls: Ints, by: str) -> pl.Series:
    """What separates calls of one operator, a value per call: its inputs' shapes or its stack's id."""
    column = "input_shapes" if by == "shape" else "stack_id"
    known = ops.select("span_id", column).drop_nulls()
    if known.is_empty():
        raise MissingTable(f"operators' {by}s", needed_by=f"operators by {by}", topic=f"{by}s")
    wanted = pl.DataFrame({"span_id": calls.astype(np.uint32)})
    return wanted.join(known, on="span_id", how="left", maintain_order="left")[column]


def _launched(work: pl.DataFrame, calls: Ints) -> tuple[Ints, Bools, dict[str, Ints]]:
    """Of work with an operator: which call that is, whether it is a kernel; its time, and that on matrix units."""
    linked = filtered(work, work["op_id"].is_not_null())
    ids = linked["op_id"].to_numpy()
    at = np.minimum(np.searchsorted(calls, ids), calls.size - 1)
    is_known = calls[at] == ids
    ns = linked["dur_ns"].to_numpy() * is_known
    is_kernel = (linked["category"] == "kernel").to_numpy() & is_known
    on_units = is_kernel & map_names(linked["name"], is_tensor_core, pl.Boolean()).to_numpy()
    return at, is_kernel, {"device": ns, "tc": ns * on_units}


def _within(own: Ints, wanted: Ints, after: Ints) -> Ints:
    """What each wanted call and those that start within it on its track have of their own, together."""
    before = np.concatenate(([0], np.cumsum(own)))
    return before[after] - before[wanted]


def _named(frame: pl.DataFrame, stacks: pl.DataFrame, by: str, work_ns: int) -> pl.DataFrame:
    rank = "device_self_ns" if "device_self_ns" in frame.columns else "host_self_ns"
    whole = work_ns if rank == "device_self_ns" else frame[rank].sum()
    frame = frame.with_columns(
        share_ratio=pl.col(rank) / whole if whole else None, host_mean_ns=pl.col("host_ns") / pl.col("calls")
    )
    eligible = map_names(frame["name"], is_tensor_core_eligible, pl.Boolean())
    if rank == "device_self_ns":
        for part in ("self", "total"):
            device = pl.col(f"device_{part}_ns")
            frame = frame.with_columns(
                pl.when(device > 0).then(pl.col(f"tc_{part}_ns") / device).alias(f"tc_{part}_ratio")
            )
        eligible |= frame["tc_self_ns"] > 0
    frame = frame.with_columns(tc_eligible=eligible)
    if by == "stack":
        text = stacks.select("stack_id", stack=pl.col("frames").list.join(";"))
        frame = frame.join(text, left_on="key", right_on="stack_id", how="left")
    elif by == "shape":
        frame = frame.rename({"key": "input_shapes"})
    frame = OPERATORS.conform(frame).sort(rank, "host_total_ns", "calls", "name", descending=[True, True, True, False])
    return frame.drop({"name": ("input_shapes", "stack"), "shape": ("stack",), "stack": ("input_shapes",)}[by])


ANALYSIS = analysis_of(operators, OPERATORS, "What each framework operator cost, on the host and on the device.")
