"""What each function took of each cycle: its calls, their time, self time and exposed time."""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import COMPUTATION, MEMCPY, device_work
from stepscope.analyses.common.span_lookup import own_time
from stepscope.analyses.common.windows import HOST, counted_at, cycle_of, device_of_tracks
from stepscope.analyses.cycles.anchors import plain_name
from stepscope.core.arrays import grouped
from stepscope.core.intervals import Intervals, Ints, covered, union
from stepscope.core.names import map_names
from stepscope.core.schema import DEVICE_WORK

#: Not work: spans on a device's track that do not occupy it, and the profiler's overhead.
_NOT_WORK = ("device_range", "sync", "overhead")


class Own(msgspec.Struct, frozen=True):
    """Per span: its device (null: a track that repeats others), its self time on the host, its exposed time."""

    device: pl.Series
    self_ns: Ints
    exposed_ns: Ints


class Functions(msgspec.Struct, frozen=True):
    """One row of `frame` per cycle and function; `events` are rows of spans, `group` is the row of each in `frame`.

    Columns: row (of the cycle), device, name, category, calls, total_ns, self_ns (null on devices), exposed_ns (null on
    the host).
    """

    frame: pl.DataFrame
    events: Ints
    group: Ints


def own_of(spans: pl.DataFrame, tracks: pl.DataFrame, devices: pl.DataFrame) -> Own:
    """The device, self time and exposed time of each span."""
    device = device_of_tracks(tracks, devices).cast(pl.Categorical).gather(spans["track_id"])
    return Own(device, own_time(spans, np.ones(spans.height, np.bool_)), exposed_time(spans, tracks))


def functions_of(spans: pl.DataFrame, own: Own, lows: Ints, highs: Ints) -> Functions:
    """The functions of each cycle [low, high), sorted by cycle.

    Host work belongs to the cycle in which it begins, device work to the cycle that queued it, so that counts do not
    depend on how far the device lags. Names are without what differs from run to run.
    """
    row = cycle_of(counted_at(spans), lows, highs)
    counts = own.device.is_not_null() & ~spans["category"].is_in(_NOT_WORK)
    events = np.flatnonzero((row >= 0) & counts.to_numpy())
    names, name_code = _plain(spans["name"])
    devices = own.device.unique().drop_nulls()
    device_code = _codes(own.device, devices)
    key = (row[events] * max(devices.len(), 1) + device_code[events]) * max(names.len(), 1) + name_code[events]
    first, group = grouped(key)
    n = first.size
    at = events[first]
    on_host = (own.device == HOST).fill_null(value=False).gather(at)

    def summed(values: Ints) -> pl.Series:
        # Sums of whole nanoseconds are exact in float64 up to 104 days.
        return pl.Series(np.bincount(group, values[events], minlength=n).astype(np.int64))

    frame = pl.DataFrame(
        {
            "row": row[at],
            "device": own.device.gather(at),
            "name": names.gather(name_code[at]),
            "category": spans["category"].gather(at),
            "calls": np.bincount(group, minlength=n).astype(np.int64),
            "total_ns": summed(spans["dur_ns"].to_numpy()),
            "self_ns": summed(own.self_ns),
            "exposed_ns": summed(own.exposed_ns),
        }
    ).with_columns(self_ns=pl.when(on_host).then("self_ns"), exposed_ns=pl.when(~on_host).then("exposed_ns"))
    return Functions(frame, events, group)


def exposed_time(spans: pl.DataFrame, tracks: pl.DataFrame) -> Ints:
    """The time of each piece of device work that no other work on its device hides; 0 for all other spans.

    At each moment one piece of work counts: computation before communication before copies, and of equals the one that
    began first. So the times of all work on a device add up to its busy time. Units: ns.
    """
    exposed = np.zeros(spans.height, np.int64)
    if not spans["category"].is_in(DEVICE_WORK).any():
        return exposed
    work = device_work(spans, tracks, needed_by="cycles")
    for part in work.partition_by("device_id"):
        mine = part.sort("ts_ns")
        sorts, starts, ends, rows = (mine[c].to_numpy() for c in ("sort", "ts_ns", "end_ns", "span_id"))
        before: Intervals = np.empty(0, np.int64), np.empty(0, np.int64)
        for sort in range(COMPUTATION, MEMCPY + 1):
            chosen = np.flatnonzero(sorts == sort)
            if chosen.size == 0:
                continue
            high = ends[chosen]
            # The part after the end of all that began before it.
            low = np.maximum(starts[chosen], np.maximum.accumulate(np.concatenate((starts[chosen][:1], high[:-1]))))
            exposed[rows[chosen]] = np.maximum(high - low, 0) - covered(before, low, high)
            both = np.concatenate((before[0], starts[chosen])), np.concatenate((before[1], high))
            before = union(*both)
    return exposed


def _plain(names: pl.Series) -> tuple[pl.Series, Ints]:
    """The distinct plain names, and the index of each span's."""
    distinct = names.unique()
    plain = map_names(distinct, plain_name, pl.String()).cast(pl.Categorical)
    used = plain.unique(maintain_order=True)
    place = pl.DataFrame({"name": used}).with_row_index("at")
    of_distinct = pl.DataFrame({"name": plain}).join(
        place, on="name", how="left", nulls_equal=True, maintain_order="left"
    )
    return used, of_distinct["at"].cast(pl.Int64).to_numpy()[_codes(names, distinct)]


def _codes(values: pl.Series, distinct: pl.Series) -> Ints:
    """The index of each value among the distinct ones; 0 if it is not among them."""
    codes = distinct.to_physical()
    known = codes.is_not_null().to_numpy()
    used = codes.drop_nulls().to_numpy()
    table = np.zeros(int(used.max(initial=0)) + 2, np.int64)
    table[used] = np.flatnonzero(known)
    if not known.all():
        table[-1] = int(np.flatnonzero(~known)[0])
    places: Ints = table[values.to_physical().cast(pl.Int64).fill_null(table.size - 1).to_numpy()]
    return places
