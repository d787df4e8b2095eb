"""What ran a device out of memory, whose memory it was, and how much each change would save."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import label_devices
from stepscope.analyses.memory.allocator import Replayed, Settings, replay, segment_bytes
from stepscope.analyses.memory.replays import Saving, _lifetimes, needed_with, recording
from stepscope.analyses.memory.snapshots import about_stacks
from stepscope.core.schema import DEVICES, STACKS
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GIB = 1 << 30
MOST_BYTES = 1 << 46
#: So many events before a failure are replayed at most.
MOST_EVENTS = 60_000
#: What drivers report as the memory of devices, from and to, from 4 GiB on. Units: GiB.
_DEVICES = (
    (3.7, 4), (4.7, 5), (5.6, 6), (7.4, 8), (9.5, 10), (10.5, 11), (11.1, 12), (14.5, 16), (19.4, 20), (21.9, 24),
    (31.2, 32), (39.3, 40), (44.3, 48), (60.9, 64), (79.0, 80), (92.9, 96), (127.0, 128), (139.7, 144), (177.9, 192),
    (255.0, 256), (266.0, 288),
)  # fmt: skip
#: What a process may have on a device that the allocator does not know of, such as CUDA's context and NCCL's buffers.
_CONTEXT_BYTES, _CONTEXT_RATIO = _GIB // 2, 0.04
#: A request is large if it is so many times the largest before, and such a share of the memory.
_LARGE_TIMES, _LARGE_RATIO = 2, 0.05
#: A step is large if it needs so many times what was in use in all steps before.
_LARGE_STEP_TIMES = 1.5
#: Requests of a stack mark steps if their distances in events vary by less than this (for three in four).
_REGULAR = 0.25
_LEAST_STEPS, _LEAST_SPAN, _FREED_RATIO, _CANDIDATES, _PARTS = 4, 0.5, 0.6, 50, 8
_NEVER = 1 << 62
#: Stacks that hold no more of what they asked for before hold it for a step only.
_LEFT_RATIO = 0.1
#: Of the stacks that grow, so many are named as changes.
_MOST_STACKS = 8
#: Growth is looked at in so many steps at most.
_MOMENTS = 32
#: What rises so often in sequence, and never falls, grows, however slowly.
_SURE_RISES = 6
#: Less idle memory than this share is usual, and not what a failure is due to.
_USUAL_IDLE_RATIO, _MUCH_IDLE_RATIO = 0.025, 0.1

MEMORY_OOM = Table(
    "memory-oom",
    "why a device ran out of memory, the last time that it did",
    (
        Column("device_id", pl.UInt32(), "device that ran out of memory", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column(
            "kind", Name, "too much held, fragmentation, one large request, one large step, or other process", key=True
        ),
        Column("line", Name, "innermost line of the user's code on the stack to blame", key=True),
        Column("request_bytes", pl.Int64(), "bytes that were asked for", "bytes"),
        Column("request_line", Name, "innermost line of the user's code that asked for them"),
        Column("n_failures", pl.Int64(), "how often the device had no memory for a request"),
        Column("allocated_bytes", pl.Int64(), "in use by tensors", "bytes"),
        Column("reserved_bytes", pl.Int64(), "held by the allocator", "bytes"),
        Column("device_free_bytes", pl.Int64(), "free on the device", "bytes"),
        Column("idle_bytes", pl.Int64(), "reserved, but not in use", "bytes"),
        Column("largest_free_bytes", pl.Int64(), "largest piece that was idle, or free on the device", "bytes"),
        Column("outside_bytes", pl.Int64(), "held on the device by others, at least", "bytes"),
        Column("own_limit_bytes", pl.Int64(), "the process' own limit, at least; null: the device was full", "bytes"),
        Column("before_bytes", pl.Int64(), "most in use in earlier steps; null if no steps are seen", "bytes"),
        Column("activation_bytes", pl.Int64(), "held for this step only; null if no steps are seen", "bytes"),
        Column("held_bytes", pl.Int64(), "in use by this stack's tensors (by stack)", "bytes"),
        Column("n_blocks", pl.Int64(), "number of its tensors (by stack)"),
        Column("pinned_bytes", pl.Int64(), "idle in segments in which it holds memory (by stack)", "bytes"),
        Column("grown_bytes", pl.Int64(), "held more than in the first step (by stack)", "bytes"),
        Column("growth_bytes_per_step", pl.Float64(), "median growth from step to step (by stack)", "bytes"),
        Column("is_growing", pl.Boolean(), "whether it grows step after step (by stack)"),
        Column("stack", pl.String(), "that stack, outermost frame first; by stack: one that held memory", key=True),
        Column("request_stack", pl.String(), "where they were asked for, outermost frame first"),
    ),
)
MEMORY_SAVINGS = Table(
    "memory-savings",
    "what changes would save when a device ran out of memory",
    (
        Column("device_id", pl.UInt32(), "device that ran out of memory", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column("change", Name, "what is changed", key=True),
        Column("line", Name, "innermost line of the user's code that it is about; null: the whole job", key=True),
        Column("event", pl.Int64(), "number of the device's event before which the cache is emptied"),
        Column("needed_bytes", pl.Int64(), "memory needed for the request then", "bytes"),
        Column("saved_bytes", pl.Int64(), "less than without the change; negative: more", "bytes"),
        Column("available_bytes", pl.Int64(), "memory that the job could have", "bytes"),
        Column("is_enough", pl.Boolean(), "whether the request would have been granted"),
        Column("is_at_most", pl.Boolean(), "whether no more than that is saved, perhaps less"),
        Column("stack", pl.String(), "the stack that it is about, outermost frame first"),
    ),
)


class Failure(msgspec.Struct, frozen=True):
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
    #: What the process had at least, if it reached a limit of its own while the device had enough; else None.
    own_limit_bytes: int | None
    #: Most that was in use before the step in which it failed; null where no steps are seen.
    before_bytes: int | None
    #: By stack: what it held, how much of it was added since the first of the steps that are known, and the idle memory
    #: in whose segments it held something; the one to blame first.
    stacks: pl.DataFrame
    #: What the allocator had, with what the device could still give.
    available_bytes: int
    #: What needs least with each kind of change of settings, after what is needed without one.
    savings: list[Saving]
    #: Held for the step in which it failed: it was freed in each step before; null where no steps are seen.
    activation_bytes: int | None


def memory_oom(
    memory_events: pl.DataFrame,
    memory_segments: pl.DataFrame,
    memory_blocks: pl.DataFrame,
    stacks: pl.DataFrame = STACKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    by: Literal["device", "stack"] = "device",
) -> pl.DataFrame:
    """One row per device that ran out of memory, or per device and stack that held memory then, the one to blame first.

    The main columns are `kind` and `stack`. A failure is *fragmentation* if the request would have fit into the idle
    and free memory in one piece, *other process* if it would have fit without what others hold, *one large request* if
    what was asked for before would still have fit, *one large step* if no earlier step needed nearly as much, and else
    *too much held*. `outside_bytes` is what the allocator once had and no longer could have, or what a device of this
    size has more than was there for it. If the device had enough, the process reached a limit of its own
    (`set_per_process_memory_fraction`). It is at least what the process once had.

    Units: bytes.
    Source: PyTorch's record of its caching allocator, replayed by a model of it.
    """
    rows = []
    for failure in _failures_of(memory_events, memory_segments, memory_blocks, devices, stacks):
        first = failure.stacks.head(1) if by == "device" else failure.stacks
        about = {
            name: pl.lit(getattr(failure, name)) for name in MEMORY_OOM.dtypes if name in Failure.__struct_fields__
        }
        request = pl.lit(failure.request_stack_id, pl.UInt32).alias("request_stack_id")
        rows.append(first.with_columns(**about).with_columns(request))
    if not rows:
        return MEMORY_OOM.empty()
    result = _with_text(_with_text(pl.concat(rows, how="vertical_relaxed"), stacks), stacks, "request_")
    held = ("held_bytes", "n_blocks", "pinned_bytes", "grown_bytes", "growth_bytes_per_step", "is_growing")
    left_out = held if by == "device" else {*MEMORY_OOM.dtypes} - {"device_id", "device", "line", "stack", *held}
    known = [name for name in MEMORY_OOM.dtypes if name not in left_out]
    return MEMORY_OOM.conform(label_devices(result, devices)).select(known)


def memory_savings(
    memory_events: pl.DataFrame,
    memory_segments: pl.DataFrame,
    memory_blocks: pl.DataFrame,
    stacks: pl.DataFrame = STACKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
) -> pl.DataFrame:
    """One row per device that ran out of memory and change that might help, the one that saves most first.

    The main column is `saved_bytes`: how much less memory the request needs, all idle memory being given back before.
    Changes of settings and calls of `empty_cache` are replayed, from the last 60,000 events on. What stacks keep from
    step to step, activations and the memory of others are counted.

    Units: bytes.
    Source: PyTorch's record of its caching allocator, replayed by a model of it.
    """
    rows = [
        {"device_id": failure.device_id, "available_bytes": failure.available_bytes, "is_at_most": False, **change}
        for failure in _failures_of(memory_events, memory_segments, memory_blocks, devices, stacks)
        for change in _changes(failure)
    ]
    result = pl.DataFrame(rows, schema=_CHANGES).with_columns(
        is_enough=pl.col("needed_bytes") <= pl.col("available_bytes")
    )
    result = _with_text(result, stacks).sort("device_id", "saved_bytes", descending=[False, True])
    return MEMORY_SAVINGS.conform(label_devices(result, devices))


_CHANGES = {
    "device_id": pl.UInt32, "change": pl.String, "stack_id": pl.UInt32, "event": pl.Int64, "needed_bytes": pl.Int64,
    "saved_bytes": pl.Int64, "available_bytes": pl.Int64, "is_at_most": pl.Boolean,
}  # fmt: skip


def _changes(failure: Failure) -> list[dict[str, Any]]:
    if not failure.savings:
        return []
    base, *rest = failure.savings
    kinds = dict.fromkeys(saving.change.partition(":")[0] for saving in rest)
    best = [min((s for s in rest if s.change.startswith(kind)), key=lambda s: s.needed_bytes) for kind in kinds]
    changes: list[dict[str, Any]] = [
        {"change": saving.change, "event": saving.event, "saved": base.needed_bytes - saving.needed_bytes}
        for saving in best
    ]
    growing = failure.stacks.filter("is_growing").head(_MOST_STACKS)
    changes += [
        {"change": "keep nothing from step to step", "stack_id": stack_id, "saved": grown}
        for stack_id, grown in growing.select("stack_id", "grown_bytes").rows()
    ]
    if failure.kind == "one large request":
        halved = {
            "change": "half the request",
            "stack_id": failure.request_stack_id,
            "saved": failure.request_bytes // 2,
        }
        changes.append(halved)
    if failure.activation_bytes:
        changes.append({"change": "checkpointing", "saved": failure.activation_bytes, "is_at_most": True})
        changes.append({"change": "half the batch", "saved": failure.activation_bytes // 2, "is_at_most": True})
    for change in changes:
        change["saved_bytes"] = change.pop("saved")
        change["needed_bytes"] = base.needed_bytes - change["saved_bytes"]
    if failure.kind == "other process":
        there = {"needed_bytes": base.needed_bytes, "available_bytes": failure.available_bytes + failure.outside_bytes}
        changes.append({"change": "no other process", "saved_bytes": failure.outside_bytes, **there})
    return changes


def _with_text(frame: pl.DataFrame, stacks: pl.DataFrame, prefix: str = "") -> pl.DataFrame:
    """The frame with the text of a stack and its line of the user's code."""
    about = about_stacks(stacks).select(pl.col("stack_id", "stack", "line").name.prefix(prefix))
    return frame.join(about, on=f"{prefix}stack_id", how="left", maintain_order="left")


def _failures_of(
    events: pl.DataFrame, segments: pl.DataFrame, blocks: pl.DataFrame, devices: pl.DataFrame, stacks: pl.DataFrame
) -> list[Failure]:
    known = dict(devices.select("device_id", "memory_bytes").drop_nulls().iter_rows())
    of_optimisers = about_stacks(stacks).filter(sign="optimiser state")["stack_id"].to_list()
    return failures(events, segments, blocks, None, known, of_optimisers)


def failures(
    events: pl.DataFrame,
    segments: pl.DataFrame,
    blocks: pl.DataFrame,
    settings: Settings | None,
    capacities: Mapping[int, int] = MappingProxyType({}),
    of_optimisers: Sequence[int] = (),
) -> list[Failure]:
    """The last failure of each device; `capacities` has the memory of devices that are known. Units: bytes.

    What the stacks `of_optimisers` hold is no activation, however short they hold it.
    """
    result = []
    for device_id in events.filter(action="oom")["device_id"].unique().sort():
        own = [frame.filter(device_id=device_id) for frame in (events, segments, blocks)]
        result.append(_failure(device_id, own[0], own[1], own[2], settings, capacities.get(device_id), of_optimisers))
    return result


def _failure(
    device_id: int,
    events: pl.DataFrame,
    segments: pl.DataFrame,
    blocks: pl.DataFrame,
    settings: Settings | None,
    capacity: int | None,
    of_optimisers: Sequence[int],
) -> Failure:
    ooms = events["action"].cast(pl.String).eq("oom").arg_true()
    at = int(ooms[-1])
    first = max(0, at - MOST_EVENTS)
    history = recording(events[first:], segments, blocks, settings)
    failed = at - first
    reserved = [level for number, level in history.reserved if number <= failed]
    oom = events.row(at, named=True)
    request, free = (min(max(0, oom[column] or 0), MOST_BYTES) for column in ("bytes", "device_free_bytes"))
    # With memory in one piece at hand, it is a limit of the process' own that was reached: at least what it once had.
    piece = segment_bytes(history.settings.rounded(request))
    is_own = free >= piece
    room = max(reserved) - reserved[-1] if is_own else free
    limit = reserved[-1] + room
    start = replace(history.start, device_bytes=limit)
    done = replay(history.events[:failed], history.settings, start, follow=True)
    allocator = done.allocator
    idle = allocator.idle()
    idle_bytes = max(0, reserved[-1] - allocator.allocated)
    largest = max([room, *(size for _, size in idle)])
    lifetimes = _lifetimes(events, blocks)
    steps, are_regular = _steps(lifetimes, at)
    stacks = _by_stack(lifetimes, steps, _held(done, lifetimes, at))
    grown = int(stacks.filter("is_growing")["grown_bytes"].sum())
    outside = 0 if is_own else _outside(limit, max(reserved), capacity)
    before = _most_before(events[:at], steps[-2], allocator.allocated) if are_regular else None
    requests = lifetimes.filter(pl.col("made").fill_null(-1) < at)["bytes"].drop_nulls()
    usual = max(requests.to_list(), default=0)
    is_large = request > limit / 2 or (
        request > max(_LARGE_TIMES * usual, _LARGE_RATIO * limit) and usual <= max(largest, room)
    )
    # A limit of its own is less than what that request needed, but nothing says how much less.
    most = max(limit, reserved[-1] + piece - 1) if is_own else max(limit, *reserved)
    savings = needed_with(history, failed, max(limit, *reserved), most)
    lost = max(reserved) - limit  # what the allocator once had and no longer could have
    is_taken = lost > grown and lost + room >= request
    is_much = idle_bytes >= max(_USUAL_IDLE_RATIO * limit, outside) and not is_taken
    is_wasteful = is_much or lost <= idle_bytes >= _MUCH_IDLE_RATIO * limit
    expandable = [saving.needed_bytes for saving in savings if saving.change.startswith("expandable")]
    fits = idle_bytes + room >= request and (history.settings.expandable or any(n <= limit for n in expandable))
    if fits and is_wasteful and grown <= idle_bytes:
        kind = "fragmentation"
    elif is_taken or (outside > max(idle_bytes, grown) and outside + idle_bytes + room >= request):
        kind = "other process"
    elif is_large:
        kind = "one large request"
    elif before is not None and allocator.allocated + request - grown > _LARGE_STEP_TIMES * before:
        kind = "one large step"
    else:
        kind = "too much held"
    by_growth = kind == "too much held" and grown + idle_bytes + room >= request
    stacks = _to_blame(stacks, kind, oom["stack_id"], by_growth=by_growth)
    passing = lifetimes.join(stacks.filter("is_growing"), on="stack_id", how="anti")
    passing = passing.filter(~pl.col("stack_id").is_in(of_optimisers).fill_null(value=False))
    activations = _activations(passing, steps, at) if are_regular else None
    return Failure(
        device_id, at, len(ooms), kind, request, oom["stack_id"], allocator.allocated, reserved[-1], free, idle_bytes,
        largest, outside, limit if is_own else None, before, stacks, limit, savings, activations,
    )  # fmt: skip


def _most_before(events: pl.DataFrame, step: int, at_end: int) -> int:
    """Most in use before a step begins, where so many bytes are in use after the last event."""
    action = pl.col("action").cast(pl.String)
    sign = pl.when(action == "alloc").then(1).when(action == "free_completed").then(-1).otherwise(0)
    levels = events.select((sign * pl.col("bytes").fill_null(0)).cum_sum()).to_series().to_numpy()
    return at_end - int(levels[-1]) + max(0, int(levels[:step].max(initial=0)))


def _outside(had: int, before: int, capacity: int | None) -> int:
    """What others hold of a device, at least, beyond what is usual; 0 where that is not known.

    The allocator had `had` bytes at most. It had more before, or the device is known, or no device has so little.
    """
    if capacity is None:  # a share of a device may be smaller than all of them
        known = (int(low * _GIB) for low, high in _DEVICES if _DEVICES[0][0] * _GIB < had <= high * _GIB)
        capacity = next(known, had)
    usual = capacity - _CONTEXT_BYTES - int(capacity * _CONTEXT_RATIO)
    return max(0, before - had, usual - had)


def _steps(lifetimes: pl.DataFrame, last: int) -> tuple[list[int], bool]:
    """Events at which steps begin: those of a stack that asks for memory at regular distances, the rarest of them.

    Where there is none, they are equal parts of the history, and the second value is false. Most memory that a step
    asks for is freed before the next but one; of a layer's activations that is not so.
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
    anywhere = pl.Series([last * part // _PARTS for part in range(1, _PARTS)])
    for begins in [*regular["made"].head(_CANDIDATES), anywhere]:
        step = begins.search_sorted(asked["made"], side="right").cast(pl.Int64)
        freed = begins.search_sorted(asked["freed"].fill_null(_NEVER), side="right").cast(pl.Int64)
        between = asked.filter((step > 0) & (step < len(begins) - 1))
        in_time = asked.filter(
            (step > 0) & (step < len(begins) - 1) & (freed <= step + 1) & asked["freed"].is_not_null()
        )
        if float(in_time["bytes"].sum()) > _FREED_RATIO * float(between["bytes"].sum()):
            return [int(begin) for begin in begins], begins is not anywhere
    return [], False


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


def _activations(lifetimes: pl.DataFrame, steps: list[int], at: int) -> int:
    """Bytes held whose stacks have freed nearly all that they asked for more than a step ago."""
    before = steps[-2]
    old = lifetimes.filter(pl.col("made").fill_null(-1) < before).group_by("stack_id")
    is_left = pl.col("freed").is_null() | (pl.col("freed") > at)
    shares = old.agg(left=pl.col("bytes").filter(is_left).sum() / pl.col("bytes").sum())
    passing = shares.filter(pl.col("left") < _LEFT_RATIO)["stack_id"].to_list()
    now = lifetimes.filter(_alive(at), pl.col("made") >= before, pl.col("stack_id").is_in(passing))
    return int(now["bytes"].sum())


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


ANALYSIS = analysis_of(memory_oom, MEMORY_OOM, "why a device ran out of memory, and who held it (memory snapshots)")
SAVINGS = analysis_of(memory_savings, MEMORY_SAVINGS, "what changes would save when memory ran out (memory snapshots)")
