"""What ran a device out of memory, whose memory it was, and how much each change would save."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from stepscope.analyses.memory.allocator import Replayed, Settings, replay, segment_bytes
from stepscope.analyses.memory.replays import Recording, Saving, needed_with, recording

_GIB = 1 << 30
MOST_BYTES = 1 << 46
#: So many events before a failure are replayed at most.
MOST_EVENTS = 60_000
#: What drivers report as the memory of devices, from and to, from 4 GiB on. Units: GiB.
_DEVICES = (
    (3.7, 4), (4.7, 5), (5.6, 6), (7.4, 8), (9.5, 10), (10.5, 11), (11.1, 12), (14.5, 16), (19.4, 20), (21.9, 24),
    (31.2, 32), (39.3, 40), (44.3, 48), (60.9, 64), (79.0, 80), (92.9, 96), (139.7, 144), (177.9, 192), (255.0, 256),
    (266.0, 288),
)  # fmt: skip
#: What a process may have on a device that the allocator does not know of, such as CUDA's context and NCCL's buffers.
_CONTEXT_BYTES, _CONTEXT_RATIO = _GIB // 2, 0.04
#: A request is large if it is so many times the largest before, and such a share of the memory.
_LARGE_TIMES, _LARGE_RATIO = 2, 0.05
#: Requests of a stack mark steps if their distances in events vary by less than this (for three in four).
_REGULAR = 0.25
_LEAST_STEPS, _LEAST_SPAN, _FREED_RATIO, _CANDIDATES = 4, 0.5, 0.6, 50
_NEVER = 1 << 62
#: Growth is looked at in so many steps at most.
_MOMENTS = 32
#: What rises so often in sequence, and never falls, grows, however slowly.
_SURE_RISES = 6
#: Less idle memory than this share is usual, and not what a failure is due to.
_USUAL_IDLE_RATIO, _MUCH_IDLE_RATIO = 0.025, 0.1


@dataclass(frozen=True, slots=True)
class Failure:
    """The last time that a device had no memory for a request. Units: bytes."""

    device_id: int
    #: Number of the event in the device's history, and how often this happened.
    event: int
    n_failures: int
    kind: str
    request_bytes: int
    request_stack_id: int | None
    allocated_bytes: int
    reserved_bytes: int
    device_free_bytes: int
    #: Reserved, but not in use, in pieces that are too small or belong to another stream.
    idle_bytes: int
    #: Of the idle blocks and of what the device had, the largest piece.
    largest_free_bytes: int
    #: On the device and not in the allocator's hands, as far as is known: at least so much more than is usual.
    outside_bytes: int
    #: By stack: what it held, how much of it was added since the first of the steps that are known, and the idle memory
    #: in whose segments it held something; the one to blame first.
    stacks: pl.DataFrame
    n_steps: int
    history: Recording
    #: Number of the failure in the history that is replayed, and what the allocator had at most.
    failed: int
    limit_bytes: int
    savings: list[Saving]


def failures(
    events: pl.DataFrame,
    segments: pl.DataFrame,
    blocks: pl.DataFrame,
    settings: Settings | None,
    capacity: int | None = None,
) -> list[Failure]:
    """The last failure of each device; `capacity` is the device's memory, if known. Units: bytes."""
    result = []
    for device_id in events.filter(action="oom")["device_id"].unique().sort():
        own = [frame.filter(device_id=device_id) for frame in (events, segments, blocks)]
        result.append(_failure(device_id, own[0], own[1], own[2], settings, capacity))
    return result


def _failure(
    device_id: int,
    events: pl.DataFrame,
    segments: pl.DataFrame,
    blocks: pl.DataFrame,
    settings: Settings | None,
    capacity: int | None,
) -> Failure:
    ooms = events["action"].cast(pl.String).eq("oom").arg_true()
    at = int(ooms[-1])
    first = max(0, at - MOST_EVENTS)
    history = recording(events[first:], segments, blocks, settings)
    failed = at - first
    reserved = [level for number, level in history.reserved if number <= failed]
    oom = events.row(at, named=True)
    request, free = (min(max(0, oom[column] or 0), MOST_BYTES) for column in ("bytes", "device_free_bytes"))
    # With memory in one piece at hand, it is a limit of the process' own that was reached.
    room = free if free < segment_bytes(history.settings.rounded(request)) else 0
    limit = reserved[-1] + room
    start = replace(history.start, device_bytes=limit)
    done = replay(history.events[:failed], history.settings, start, follow=True)
    allocator = done.allocator
    idle = allocator.idle()
    idle_bytes = max(0, reserved[-1] - allocator.allocated)
    largest = max([room, *(size for _, size in idle)])
    lifetimes = _lifetimes(events, blocks)
    steps = _steps(lifetimes, at)
    stacks = _by_stack(lifetimes, steps, _held(done, lifetimes, at))
    grown = int(stacks.filter("is_growing")["grown_bytes"].sum())
    outside = _outside(limit, max(reserved), capacity)
    requests = lifetimes.filter(pl.col("made").fill_null(-1) < at)["bytes"]
    usual = max(requests.to_list(), default=0)
    is_large = request > limit / 2 or (
        request > max(_LARGE_TIMES * usual, _LARGE_RATIO * limit) and usual <= max(largest, room)
    )
    savings = needed_with(history, failed, max(limit, *reserved))
    is_much = idle_bytes >= max(_USUAL_IDLE_RATIO * limit, outside)
    is_wasteful = is_much or max(reserved) - limit <= idle_bytes >= _MUCH_IDLE_RATIO * limit
    expandable = [saving.needed_bytes for saving in savings if saving.change.startswith("expandable")]
    fits = idle_bytes + room >= request and (history.settings.expandable or any(n <= limit for n in expandable))
    if fits and is_wasteful and grown <= idle_bytes:
        kind = "fragmentation"
    elif outside > max(idle_bytes, grown) and outside + idle_bytes + room >= request:
        kind = "other process"
    elif is_large:
        kind = "one large request"
    else:
        kind = "too much held"
    by_growth = kind == "too much held" and grown + idle_bytes + room >= request
    stacks = _to_blame(stacks, kind, oom["stack_id"], by_growth=by_growth)
    return Failure(
        device_id, at, len(ooms), kind, request, oom["stack_id"], allocator.allocated, reserved[-1], free, idle_bytes,
        largest, outside, stacks, len(steps), history, failed, max(limit, *reserved), savings,
    )  # fmt: skip


def _outside(had: int, before: int, capacity: int | None) -> int:
    """What others hold of a device, at least, beyond what is usual; 0 where that is not known.

    The allocator had `had` bytes at most. It had more before, or the device is known, or no device has so little.
    """
    if capacity is None:
        capacity = next((int(low * _GIB) for low, high in _DEVICES if had <= high * _GIB), had)
    usual = capacity - _CONTEXT_BYTES - int(capacity * _CONTEXT_RATIO)
    return max(0, before - had, usual - had)


def _lifetimes(events: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """A row per block: its stack and bytes, the events that made and freed it (null: before the first, or never)."""
    events = events.with_row_index("event")
    kinds = pl.col("action").cast(pl.String)
    own = events.filter(kinds.is_in(["alloc", "free_completed"])).with_columns(is_alloc=kinds == "alloc")
    following = pl.col("event").shift(-1).over("address", order_by="event")
    made = own.with_columns(freed=following).filter("is_alloc")
    old = own.filter(pl.col("event") == pl.col("event").min().over("address"), ~pl.col("is_alloc"))
    left = blocks.filter(pl.col("state") != "inactive").join(own, on="address", how="anti")
    shape = {
        "address": pl.Int64(),
        "stack_id": pl.UInt32(),
        "bytes": pl.Int64(),
        "made": pl.Int64(),
        "freed": pl.Int64(),
    }
    parts = (
        made.select("address", "stack_id", "bytes", "freed", made="event"),
        old.select("address", "bytes", freed="event"),
        left.select("address", "stack_id", bytes="requested_bytes"),
    )
    empty = pl.DataFrame(schema=shape)
    return pl.concat([empty, *(part.cast({c: shape[c] for c in part.columns}) for part in parts)], how="diagonal")


def _steps(lifetimes: pl.DataFrame, last: int) -> list[int]:
    """Events at which steps begin: those of a stack that asks for memory at regular distances, the rarest of them.

    Most memory that a step asks for is freed before the next but one; of a layer's activations that is not so.
    """
    asked = lifetimes.filter(pl.col("made") < last).sort("made")
    gap = pl.col("made").diff()
    gaps = (
        asked.filter(pl.col("stack_id").is_not_null())
        .group_by("stack_id")
        .agg(
            pl.col("made"),
            n=pl.len(),
            spread=(gap - gap.median()).abs().quantile(0.75) / gap.median(),
            span=pl.col("made").max() - pl.col("made").min(),
        )
    )
    regular = gaps.filter(
        pl.col("n") >= _LEAST_STEPS, pl.col("spread") < _REGULAR, pl.col("span") > last * _LEAST_SPAN
    ).sort("n", "spread", "stack_id")
    for begins in regular["made"].head(_CANDIDATES):
        step = begins.search_sorted(asked["made"], side="right").cast(pl.Int64)
        freed = begins.search_sorted(asked["freed"].fill_null(_NEVER), side="right").cast(pl.Int64)
        between = asked.filter((step > 0) & (step < len(begins) - 1))
        in_time = asked.filter(
            (step > 0) & (step < len(begins) - 1) & (freed <= step + 1) & asked["freed"].is_not_null()
        )
        if float(in_time["bytes"].sum()) > _FREED_RATIO * float(between["bytes"].sum()):
            return [int(begin) for begin in begins]
    return []


def _by_stack(lifetimes: pl.DataFrame, steps: list[int], held: pl.DataFrame) -> pl.DataFrame:
    """A row per stack: what it held when the request failed, and how that grew from step to step."""

    def level(moment: int, name: str) -> pl.DataFrame:
        return lifetimes.filter(_alive(moment)).group_by("stack_id").agg(pl.col("bytes").sum().alias(name))

    result = held
    every = max(1, -(-len(steps) // _MOMENTS))
    steps = steps[::-1][::every][::-1]
    names = [f"step {number}" for number in range(len(steps))]
    for name, moment in zip(names, steps, strict=True):
        result = result.join(level(moment, name), on="stack_id", how="left", nulls_equal=True)
    result = result.with_columns(pl.col(names).fill_null(0)) if names else result
    levels = pl.concat_list(names) if len(names) >= _LEAST_STEPS else pl.lit(None, pl.List(pl.Int64))
    rises = levels.list.diff(null_behavior="drop")
    share = rises.list.eval(pl.element() > 0).list.mean()
    grown = levels.list.last() - levels.list.first()
    is_most = grown >= 0.4 * levels.list.last()
    is_steady = (rises.list.min() >= 0) & (is_most | (rises.list.len() >= _SURE_RISES))
    return result.with_columns(
        grown_bytes=grown.fill_null(0),
        growth_bytes_per_step=(rises.list.median() / every).fill_null(0),
        is_growing=((is_steady & (share >= 0.6)) | (is_most & (share >= 0.8))).fill_null(value=False),
    ).drop(names)


def _alive(at: int) -> pl.Expr:
    return (pl.col("made").fill_null(-1) < at) & (pl.col("freed").is_null() | (pl.col("freed") > at))


def _held(done: Replayed, lifetimes: pl.DataFrame, at: int) -> pl.DataFrame:
    """By stack, what it holds, and the idle bytes of the segments in which it does, shared among their blocks."""
    used = done.allocator.used
    known = [(address, at, used[at][0]) for address, at in done.where.items()]
    where = pl.DataFrame(known, schema={"address": pl.Int64, "at": pl.Int64, "held": pl.Int64}, orient="row")
    begins = pl.DataFrame({"at": done.allocator.segments()}, schema={"at": pl.Int64}).with_columns(segment="at")
    idle = pl.DataFrame(done.allocator.idle(), schema={"at": pl.Int64, "idle": pl.Int64}, orient="row")
    idle = idle.join_asof(begins, on="at").group_by("segment").agg(pl.col("idle").sum())
    alive = lifetimes.filter(_alive(at)).unique("address", keep="last", maintain_order=True)
    blocks = where.join(alive, on="address", how="left").sort("at").join_asof(begins, on="at")
    blocks = blocks.join(idle, on="segment", how="left").with_columns(pinned=pl.col("idle") / pl.len().over("segment"))
    return blocks.group_by("stack_id").agg(
        held_bytes=pl.col("held").sum(),
        n_blocks=pl.len(),
        pinned_bytes=pl.col("pinned").sum().cast(pl.Int64),
    )


def _to_blame(stacks: pl.DataFrame, kind: str, request_stack_id: int | None, *, by_growth: bool) -> pl.DataFrame:
    """The stacks, first those that explain a failure of that kind."""
    if kind == "fragmentation":
        order = [pl.col("pinned_bytes").fill_null(0)]
    elif kind == "one large request":
        order = [pl.col("stack_id").eq_missing(pl.lit(request_stack_id, pl.UInt32))]
    elif by_growth:
        order = [pl.col("grown_bytes") * pl.col("is_growing")]
    else:
        order = []
    if kind == "one large request" and request_stack_id not in stacks["stack_id"]:
        row = pl.DataFrame({"stack_id": [request_stack_id], "held_bytes": [0]}, schema_overrides=stacks.schema)
        stacks = pl.concat([row.select(c for c in stacks.columns if c in row.columns), stacks], how="diagonal")
    return stacks.sort(*order, "held_bytes", "stack_id", descending=[True] * (len(order) + 1) + [False])
