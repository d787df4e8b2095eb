"""How well kernels use a device: how long any runs, how much of it they fill, and whether with matrix units."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import by_device, device_work, label_devices
from stepscope.analyses.common.span_lookup import of_ids
from stepscope.analyses.common.windows import stretches, windows_of
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Ints, covered, union
from stepscope.core.names import is_tensor_core, map_names
from stepscope.core.schema import DEVICES, KERNELS, STEPS
from stepscope.core.table import Column, Table, filtered, without

Floats = NDArray[np.float64]
By = Literal["device", "step", "time"]

#: Kinds of devices whose kernels say by their names whether they use matrix units.
_NAMED_TENSOR_CORES = ("cuda", "rocm")

DEVICE_UTILISATION = Table(
    "device-utilisation",
    "how well kernels use each device, over the steps, per step or over time",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("device_id", pl.UInt32(), "device", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column("step", pl.Int32(), "step within whose bounds on the device it is (by step)", key=True),
        Column("ts_ns", pl.Int64(), "start of the window, from the trace's origin (by time)", "ns", key=True),
        Column(
            "window_ns", pl.Int64(), "length of the window: from the first step's start to the last one's end", "ns"
        ),
        Column("busy_ratio", pl.Float64(), "part of the window in which a kernel runs", "ratio"),
        Column(
            "est_sm_efficiency_ratio",
            pl.Float64(),
            "multiprocessors with a block to run, estimated from the size of launches, mean over the window",
            "ratio",
        ),
        Column(
            "est_occupancy_ratio",
            pl.Float64(),
            "occupancy of kernels as the recorder estimates it, mean weighted by duration",
            "ratio",
        ),
        Column(
            "tensor_core_ratio",
            pl.Float64(),
            "part of kernels' summed time in those whose name says that they use matrix units",
            "ratio",
        ),
        Column("n_kernels", pl.Int64(), "kernels that start in the window"),
    ),
)


def device_utilisation(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    devices: pl.DataFrame = DEVICES.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    kernels: pl.DataFrame = KERNELS.empty(),
    *,
    by: By = "device",
    bucket_ns: int | None = None,
) -> pl.DataFrame:
    """One row per device, per device and step, or per device and stretch of time: how well kernels use it.

    The window reaches from the first step's start to the last one's end, both on the side of the device as in
    `step-breakdown`; without steps it is the recording. By time it is cut into stretches of `bucket_ns`; the default is
    the smallest power of ten µs that makes at most 100. The last one may be shorter. Kernels count with the part of
    them that is within the window. `launches` is the trace's table `kernels`.

    A launch fills as many multiprocessors as it has blocks, and all of them from one block per multiprocessor on;
    simultaneous launches add up to no more than all. Columns are null where kernels lack the facts: blocks per
    multiprocessor and occupancy are known on NVIDIA devices, matrix units on NVIDIA and AMD.

    Units: ns; ratios 0..1.
    Source: GPU utilisation, est. SM efficiency, est. achieved occupancy and tensor core time of the TensorBoard
    profiler plugin, which counts for the latter only kernels that some operator launched.
    Raises MissingTable (no kernels), UnknownName (by), StepscopeError (too many stretches of time).
    """
    work = device_work(spans, tracks, needed_by="device-utilisation")
    windows = windows_of(spans, tracks, steps, work)
    if by != "step":
        low, high = int(windows["ts_ns"][0]), int(windows["end_ns"][-1])
        edges = np.array([low, high]) if by == "device" else stretches(low, high, bucket_ns)
        windows = pl.DataFrame({"ts_ns": edges[:-1], "end_ns": edges[1:]})
    rows = utilisation_of(work, devices, kernels, windows.drop("rank", strict=False))
    rows = label_devices(rows, devices)
    left_out = {"device": ("step", "ts_ns"), "step": ("ts_ns",), "time": ("step",)}[by]
    return DEVICE_UTILISATION.conform(rows).drop(left_out)


def utilisation_of(
    work: pl.DataFrame, devices: pl.DataFrame, launches: pl.DataFrame, windows: pl.DataFrame
) -> pl.DataFrame:
    """The measures of `device_utilisation` for each device of `work` and each of the windows (ts_ns, end_ns).

    `work` is what `device_work` returns. Units: ns; ratios 0..1. Raises MissingTable (no kernels).
    """
    named = work[["span_id", "rank", "device_id", "ts_ns", "end_ns", "name"]]
    named = filtered(named, work["category"] == "kernel")
    if named.is_empty():
        raise MissingTable("kernels", needed_by="device-utilisation", hint="show timeline tells about copies and fills")
    side = launches[["span_id", "blocks_per_sm", "est_occupancy_ratio"]]
    occupancy = pl.col("est_occupancy_ratio")
    # What a kernel says is worked out for all devices at once: a file may claim thousands.
    named = named.hstack(of_ids(side, named["span_id"]))
    named = (named if named["ts_ns"].is_sorted() else named.sort("ts_ns")).with_columns(
        pl.col("blocks_per_sm").fill_null(0.0).fill_nan(0.0),
        occupancy.fill_null(0.0),
        has_occupancy=occupancy.is_not_null(),
    )
    named = named.with_columns(map_names(named["name"], is_tensor_core, pl.Boolean()).alias("uses_tensor_cores"))
    lows, highs = windows["ts_ns"].to_numpy(), windows["end_ns"].to_numpy()
    telling = [number for number, kind in devices[["device_id", "type"]].iter_rows() if kind in _NAMED_TENSOR_CORES]
    of_device = {key: _measures(mine, lows, highs, names_tell=key[1] in telling) for key, mine in by_device(named)}
    unknown = np.full(windows.height, np.nan)
    names = dict.fromkeys(name for measures in of_device.values() for name in measures)
    columns = {name: np.concatenate([one.get(name, unknown) for one in of_device.values()]) for name in names}
    keys = pl.DataFrame(list(of_device), schema={"rank": pl.Int32, "device_id": pl.UInt32}, orient="row")
    rows = pl.concat(
        [
            keys[np.repeat(np.arange(keys.height), windows.height)],
            windows[np.tile(np.arange(windows.height), keys.height)],
            pl.DataFrame(columns, nan_to_null=True),
        ],
        how="horizontal",
    )
    return without(DEVICE_UTILISATION.conform(rows), "device")


def _measures(kernels: pl.DataFrame, lows: Ints, highs: Ints, *, names_tell: bool) -> dict[str, Ints | Floats]:
    """The measures of each window [low, high), from one device's kernels sorted by start. NaN is unknown."""
    starts, ends = kernels["ts_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    length = highs - lows
    measures: dict[str, Ints | Floats] = {
        "window_ns": length,
        "busy_ratio": _over(covered(union(starts, ends), lows, highs), length),
        "n_kernels": np.searchsorted(starts, highs) - np.searchsorted(starts, lows),
    }
    edges = _Edges.of(starts, ends)

    def within(weights: NDArray[np.number], most: float = np.inf) -> Floats:
        """Of each window the integral of the summed weight of kernels that run, cut to `most`."""
        until = edges.integral(weights, most, np.concatenate((lows, highs)))
        return until[lows.size :] - until[: lows.size]

    blocks = kernels["blocks_per_sm"].to_numpy()
    if (blocks > 0).any():
        # Each is cut to 1 by itself too, which changes nothing and keeps sums small, hence exact.
        measures["est_sm_efficiency_ratio"] = _over(within(np.clip(blocks, 0.0, 1.0), most=1.0), length)
    occupancy = kernels["est_occupancy_ratio"].to_numpy()
    if occupancy.sum() > 0:
        measures["est_occupancy_ratio"] = _over(within(occupancy), within(kernels["has_occupancy"].to_numpy()))
    if names_tell:
        uses = kernels["uses_tensor_cores"].to_numpy()
        measures["tensor_core_ratio"] = _over(within(uses), within(np.ones(starts.size)))
    return measures


class _Edges(msgspec.Struct, frozen=True):
    """Starts and ends of intervals in order of time: `rows` says whose, `signs` is 1 for a start and −1 for an end."""

    times: Ints
    rows: Ints
    signs: Floats

    @classmethod
    def of(cls, starts: Ints, ends: Ints) -> _Edges:
        """The edges of these intervals. Reversed ones count as empty."""
        points = np.concatenate((starts, np.maximum(starts, ends)))
        order = np.argsort(
            points, kind="stable"
        )  # merges the starts, which are sorted, with the ends, which nearly are
        return cls(points[order], order % max(starts.size, 1), np.where(order < starts.size, 1.0, -1.0))

    def integral(self, weights: NDArray[np.number], most: float, until: Ints) -> Floats:
        """Of the summed weight of open intervals, cut to `most`, the integral up to each of some points in time."""
        levels = np.clip(np.cumsum(weights[self.rows] * self.signs), 0.0, most)
        areas = np.concatenate(([0.0], np.cumsum(levels[:-1] * np.diff(self.times))))
        at = np.searchsorted(self.times, until, side="right") - 1
        inside: Floats = areas[at] + levels[at] * (until - self.times[at])
        return np.where(at >= 0, inside, 0.0)


def _over(part: NDArray[np.number], whole: NDArray[np.number]) -> Floats:
    """The ratio of the two, NaN where the whole is 0."""
    ratio: Floats = np.divide(part, whole, out=np.full(part.size, np.nan), where=whole > 0)
    return ratio


ANALYSIS = analysis_of(
    device_utilisation,
    DEVICE_UTILISATION,
    "How well kernels use each device: busy, est. SM efficiency, est. occupancy, tensor cores; also over time.",
)
