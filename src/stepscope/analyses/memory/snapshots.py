"""What a memory snapshot says: the peak, what held it, what is never freed, and how much of the cache is of no use.

Conservation gives the level at every event: bytes in use when the snapshot was taken, less what was allocated since,
plus what was freed. Holders at the peak add up to it exactly. What was allocated before the history began, and the
allocator's rounding, is a row of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import label_devices
from stepscope.analyses.memory.replays import _lifetimes
from stepscope.core.errors import MissingTable
from stepscope.core.patterns import regex
from stepscope.core.schema import DEVICES, MEMORY_BLOCKS, MEMORY_EVENTS, MEMORY_SEGMENTS, STACKS
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHOLE = pl.Int64()
_DEVICE = (
    Column("device_id", pl.UInt32(), "device whose memory it is", key=True),
    Column("device", pl.String(), "device as the framework calls it"),
)
_STACK = (
    Column("line", Name, "innermost line of the user's code", key=True),
    Column("stack", pl.String(), "Python frames, or else all, outermost first; null: not recorded", key=True),
    Column("stack_id", pl.UInt32(), "the stack, by its number in this snapshot"),
)
CATEGORIES = ("weights", "gradients", "optimiser state", "activations", "temporary", "workspace", "unknown")
MEMORY_PEAK = Table(
    "memory-peak",
    "most that was in use, and most that the allocator had, for each device of a memory snapshot",
    (
        *_DEVICE,
        Column("peak_allocated_bytes", _WHOLE, "most in use at once, in the history and at its end", "bytes"),
        Column("peak_event", _WHOLE, "event after which that was; null: before the first, or without a history"),
        Column("peak_ts_ns", _WHOLE, "when that was, where times were recorded", "ns"),
        Column("peak_reserved_bytes", _WHOLE, "most that the allocator had from the driver", "bytes"),
        Column("reserved_at_peak_bytes", _WHOLE, "what it had when most was in use", "bytes"),
        Column("before_bytes", _WHOLE, "in use before the first event, with the rounding of what is in use", "bytes"),
        Column("allocated_bytes", _WHOLE, "in use when the snapshot was taken", "bytes"),
        Column("reserved_bytes", _WHOLE, "what the allocator had then", "bytes"),
        Column("n_events", _WHOLE, "events of the history"),
    ),
)
MEMORY_HOLDERS = Table(
    "memory-holders",
    "what held the memory at the peak; the rows of a device add up to its peak",
    (
        *_DEVICE,
        Column(
            "holder",
            pl.Enum(("recorded", "before recording")),
            "whether it was allocated in the history, or before (with the allocator's rounding)",
            key=True,
        ),
        Column("category", pl.Enum(CATEGORIES), "what it is, by its stack and how long it lived", key=True),
        *_STACK,
        Column("bytes", _WHOLE, "held at the peak", "bytes"),
        Column("share_ratio", pl.Float64(), "share of the peak", "ratio"),
        Column("n_blocks", _WHOLE, "blocks that held it; null: unknown"),
        Column("confidence_ratio", pl.Float64(), "how sure the category is, least of the blocks", "ratio"),
    ),
)
MEMORY_LEAKS = Table(
    "memory-leaks",
    "memory that was allocated in the history and not freed in it, by stack",
    (
        *_DEVICE,
        *_STACK,
        Column("bytes", _WHOLE, "not freed", "bytes"),
        Column("n_blocks", _WHOLE, "blocks that were not freed"),
        Column("n_eighths", _WHOLE, "of eight equal parts of the history, those in which it allocated such a block"),
        Column("first_event", _WHOLE, "event that allocated the first of them"),
        Column("last_event", _WHOLE, "event that allocated the last of them"),
        Column("n_freed", _WHOLE, "blocks of this stack that were freed"),
        Column("freed_bytes", _WHOLE, "their bytes", "bytes"),
    ),
)
MEMORY_FRAGMENTATION = Table(
    "memory-fragmentation",
    "reserved memory that is not in use when the snapshot is taken, by pool and stream",
    (
        *_DEVICE,
        Column("pool", Name, "small or large", key=True),
        Column("private_pool", Name, "private pool, as of a captured graph; null: the usual one", key=True),
        Column("stream", _WHOLE, "stream that it belongs to; others cannot use it", key=True),
        Column("reserved_bytes", _WHOLE, "what the allocator has", "bytes"),
        Column("active_bytes", _WHOLE, "in use", "bytes"),
        Column("rounding_bytes", _WHOLE, "of it, more than what was asked for", "bytes"),
        Column("cached_bytes", _WHOLE, "free, and empty_cache() would give it back", "bytes"),
        Column("unusable_bytes", _WHOLE, "free, but in one segment or page with what is in use", "bytes"),
        Column("fragmentation_ratio", pl.Float64(), "unusable, as a share of what is reserved", "ratio"),
        Column("largest_free_bytes", _WHOLE, "largest free block: a larger request needs the driver", "bytes"),
        Column("n_segments", _WHOLE, "segments"),
        Column("n_free_blocks", _WHOLE, "free blocks"),
    ),
)
MEMORY_TIMELINE = Table(
    "memory-timeline",
    "what is in use and what the allocator has, after each event that changes it",
    (
        *_DEVICE,
        Column("event", _WHOLE, "number of the event; -1: before the first", key=True),
        Column("ts_ns", _WHOLE, "when, where times were recorded", "ns"),
        Column("allocated_bytes", _WHOLE, "in use from then on", "bytes"),
        Column("reserved_bytes", _WHOLE, "what the allocator has from then on", "bytes"),
    ),
)
_LIBRARIES = regex(r"/(?:site|dist)-packages/|/lib/python3|<frozen|/torch/|\(<string>")
#: Frames of the hooks of `stepscope record`, which are between the user's code and the library's.
_RECORDER = regex(r"[ (/]_stepscope_\w+\.py:\d+\)$")
_PYTHON = regex(r"\.py(?::\d+)?\)$|\(<(?:string|stdin|ipython)")
#: In C++ frames: what autograd runs backward, or the operator that is called. The outermost says most.
_OPERATION = regex(
    r"autograd::(?:generated::)?(\w+Backward\d*|AccumulateGrad|CopyBackwards)::apply|at::_ops::(\w+?)(?:_Tensor|_out)?::call"
)
#: Frames of the allocator and of what records and calls it.
_PLUMBING = regex(r"torch::unwind|CapturedTraceback|^(?:torch|c10)::cuda::|c10_npu|^at::detail::|^c10::")
#: What a stack says of the tensors that it makes, the first that fits: how sure it is, if they are never freed.
_SIGNS = (
    ("workspace", 0.9, regex(r"(?i)workspace|cublas\w*handle|cudnn\w*algorithm|nccl\w*(?:buffer|alloc)")),
    ("optimiser state", 0.8, regex(r"/optim/|(?i:optimi[sz]er|adam|sgd)\w*\.py")),
    ("gradients", 0.7, regex(r"(?i)AccumulateGrad|autograd::Engine|run_backward|^backward \(|_tensor\.py")),
    ("weights", 0.7, regex(r"(?i)^(?:_apply|to|cuda|load_state_dict|reset_parameters|init_\w*weight\w*) \(")),
    ("activations", 0.6, regex(r"^(?:forward|_call_impl|_wrapped_call_impl) \(")),
    ("weights", 0.5, regex(r"^__init__ \(")),
)
#: A block that lives no longer than this many events is temporary, if it is no activation of a short history.
_SHORT_EVENTS = 8
_SURE_TEMPORARY, _LIKELY = 0.8, 0.6


def _allocated() -> pl.Expr:
    action = pl.col("action").cast(pl.String)
    sign = pl.when(action == "alloc").then(1).when(action == "free_completed").then(-1).otherwise(0)
    return sign * pl.col("bytes").fill_null(0)


def _reserved() -> pl.Expr:
    action = pl.col("action").cast(pl.String)
    taken, given = action.is_in(["segment_alloc", "segment_map"]), action.is_in(["segment_free", "segment_unmap"])
    return pl.when(taken).then(1).when(given).then(-1).otherwise(0) * pl.col("bytes").fill_null(0)


def levels_of(events: pl.DataFrame, segments: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The levels of each device before its first event (number -1) and after each one."""
    used = blocks.filter(pl.col("state") != "inactive").group_by("device_id").agg(at_end=pl.col("bytes").sum())
    ends = segments.group_by("device_id").agg(reserved_at_end=pl.col("bytes").sum())
    known = pl.concat([frame.select("device_id") for frame in (events, segments)]).unique().sort("device_id")
    ends = known.join(used, on="device_id", how="left").join(ends, on="device_id", how="left").fill_null(0)
    zero = pl.lit(0, pl.Int64)
    before = known.with_columns(event=pl.lit(-1, pl.Int64), ts_ns=pl.lit(None, pl.Int64), change=zero, taken=zero)
    changes = events.select("device_id", "event", "ts_ns", change=_allocated(), taken=_reserved())
    levels = pl.concat([before, changes]).sort("device_id", "event").join(ends, on="device_id", how="left")

    def running(name: str, end: str) -> pl.Expr:
        return (pl.col(name).cum_sum() - pl.col(name).sum() + pl.col(end)).over("device_id")

    return levels.select(
        "device_id",
        "event",
        "ts_ns",
        "change",
        "taken",
        allocated_bytes=running("change", "at_end"),
        reserved_bytes=running("taken", "reserved_at_end"),
    )


def _is_snapshot(segments: pl.DataFrame, events: pl.DataFrame, needed_by: str) -> None:
    if segments.is_empty() and events.is_empty():
        raise MissingTable("a memory snapshot", needed_by=needed_by, topic="memory_events")


def _shown(table: Table, frame: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    return table.conform(label_devices(frame, devices))


def memory_peak(
    memory_events: pl.DataFrame = MEMORY_EVENTS.empty(),
    memory_segments: pl.DataFrame = MEMORY_SEGMENTS.empty(),
    memory_blocks: pl.DataFrame = MEMORY_BLOCKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
) -> pl.DataFrame:
    """Most that was in use on each device, and most that the allocator had, by conservation.

    The peak is what was in use before the first event and the largest sum of allocations less completed frees. It is
    never more than the peak of what the allocator had.

    Units: bytes; ns from the first event.
    Source: events and segments of a memory snapshot, as docs/memory.md explains.
    Raises MissingTable (no memory snapshot).
    """
    _is_snapshot(memory_segments, memory_events, "memory-peak")
    return _shown(MEMORY_PEAK, _peaks(levels_of(memory_events, memory_segments, memory_blocks)), devices)


def _peaks(levels: pl.DataFrame) -> pl.DataFrame:
    top = pl.col("allocated_bytes").arg_max()
    return (
        levels.group_by("device_id", maintain_order=True)
        .agg(
            peak_reserved_bytes=pl.col("reserved_bytes").max(),
            peak_allocated_bytes=pl.col("allocated_bytes").max(),
            peak_event=pl.col("event").get(top),
            peak_ts_ns=pl.col("ts_ns").get(top),
            reserved_at_peak_bytes=pl.col("reserved_bytes").get(top),
            before_bytes=pl.col("allocated_bytes").first(),
            allocated_bytes=pl.col("allocated_bytes").last(),
            reserved_bytes=pl.col("reserved_bytes").last(),
            n_events=pl.len().cast(pl.Int64) - 1,
        )
        .with_columns(
            peak_allocated_bytes=pl.min_horizontal("peak_allocated_bytes", "peak_reserved_bytes"),
            peak_event=pl.when(pl.col("peak_event") >= 0).then("peak_event"),
        )
    )


def memory_timeline(
    memory_events: pl.DataFrame = MEMORY_EVENTS.empty(),
    memory_segments: pl.DataFrame = MEMORY_SEGMENTS.empty(),
    memory_blocks: pl.DataFrame = MEMORY_BLOCKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
) -> pl.DataFrame:
    """What is in use on each device and what the allocator has, after each event that changes either.

    Units: bytes; ns from the first event.
    Source: events and segments of a memory snapshot, as docs/memory.md explains.
    Raises MissingTable (no memory snapshot).
    """
    _is_snapshot(memory_segments, memory_events, "memory-timeline")
    levels = levels_of(memory_events, memory_segments, memory_blocks)
    changed = (pl.col("event") < 0) | (pl.col("change") != 0) | (pl.col("taken") != 0)
    return _shown(MEMORY_TIMELINE, levels.filter(changed).drop("change", "taken"), devices)


def memory_holders(
    memory_events: pl.DataFrame = MEMORY_EVENTS.empty(),
    memory_segments: pl.DataFrame = MEMORY_SEGMENTS.empty(),
    memory_blocks: pl.DataFrame = MEMORY_BLOCKS.empty(),
    stacks: pl.DataFrame = STACKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    by: Literal["stack", "line", "category"] = "stack",
) -> pl.DataFrame:
    """What held the memory of each device at its peak, the most first; the rows add up to the peak.

    The row `before recording` without a stack is what was allocated before the history began and has no stack, with
    what the allocator adds to round the sizes of blocks. The category is a guess from the frames of the stack and from
    how long the block lived: `confidence_ratio` says how good it is.

    Units: bytes.
    Source: events, segments and blocks of a memory snapshot, as docs/memory.md explains.
    Raises MissingTable (no memory snapshot), UnknownName (by).
    """
    _is_snapshot(memory_segments, memory_events, "memory-holders")
    history = history_of(memory_events, memory_segments, memory_blocks, stacks)
    return holders_at_peak(history, devices, by)


class History(msgspec.Struct, frozen=True):
    """What a snapshot holds over time: levels after each event, blocks of each device, and what their stacks say."""

    levels: pl.DataFrame
    lives: Mapping[int, pl.DataFrame]
    about: pl.DataFrame

    def peaks(self) -> pl.DataFrame:
        """A row per device, as `memory_peak`."""
        return _peaks(self.levels)


def history_of(events: pl.DataFrame, segments: pl.DataFrame, blocks: pl.DataFrame, stacks: pl.DataFrame) -> History:
    """The history of a snapshot, for those who ask more than one question of it."""
    levels = levels_of(events, segments, blocks)
    lives = {device_id: _lives(events, blocks, device_id) for device_id in levels["device_id"].unique().sort()}
    return History(levels, lives, about_stacks(stacks))


def holders_at_peak(history: History, devices: pl.DataFrame, by: str = "stack") -> pl.DataFrame:
    """What `memory_holders` answers, of a history."""
    about, parts = history.about, []
    for device_id, event, peak in history.peaks().select("device_id", "peak_event", "peak_allocated_bytes").iter_rows():
        at = -1 if event is None else event
        is_held = (pl.col("made").fill_null(-1) <= at) & (pl.col("freed").is_null() | (pl.col("freed") > at))
        held = _signed(history.lives[device_id].filter(is_held), about)
        rows = held.join(about.select("stack_id", "line", "stack"), on="stack_id", how="left")
        rows = rows.group_by("holder", "category", "line", "stack", "stack_id").agg(
            pl.col("bytes").sum(), n_blocks=pl.len().cast(pl.Int64), confidence_ratio=pl.col("sure").min()
        )
        rows = _with_rest(rows, peak)
        if by != "stack":
            keys = ["holder", "category"] if by == "category" else ["holder", "category", "line"]
            rows = rows.group_by(keys).agg(pl.col("bytes", "n_blocks").sum(), pl.col("confidence_ratio").min())
        rows = rows.with_columns(device_id=pl.lit(device_id, pl.UInt32), share_ratio=pl.col("bytes") / max(peak, 1))
        parts.append(
            rows.filter(pl.col("bytes") != 0).sort(
                "bytes", *_ties(rows), descending=[True, *[False] * len(_ties(rows))]
            )
        )
    left_out = {"stack": (), "line": ("stack", "stack_id"), "category": ("line", "stack", "stack_id")}[by]
    return _shown(MEMORY_HOLDERS, pl.concat(parts, how="diagonal"), devices).drop(left_out)


def _ties(rows: pl.DataFrame) -> list[str]:
    """What orders rows of equal size."""
    return [name for name in ("stack_id", "line", "category", "holder") if name in rows.columns]


def _lives(events: pl.DataFrame, blocks: pl.DataFrame, device_id: int) -> pl.DataFrame:
    """A row per block of a device: where and when it was allocated and freed."""
    own = events.filter(pl.col("device_id") == device_id), blocks.filter(pl.col("device_id") == device_id)
    lives = _lifetimes(own[0].drop("event"), own[1])
    when = pl.when(pl.col("made").is_null()).then(pl.lit("before recording")).otherwise(pl.lit("recorded"))
    return lives.with_columns(pl.col("bytes").fill_null(0), holder=when)


def lives_of(events: pl.DataFrame, blocks: pl.DataFrame, about: pl.DataFrame, device_id: int) -> pl.DataFrame:
    """A row per block of a device: its address, bytes, `stack_id`, category, and how sure that is.

    `made` and `freed` are positions in the device's history; null: before the first, or never. `about` is what
    `about_stacks` returns.
    """
    return _signed(_lives(events, blocks, device_id), about)


def _signed(lives: pl.DataFrame, about: pl.DataFrame) -> pl.DataFrame:
    """The blocks with their category and how sure it is."""
    return _with_category(lives.join(about.select("stack_id", "sign", "sign_sure"), on="stack_id", how="left"))


def _with_rest(rows: pl.DataFrame, peak: int) -> pl.DataFrame:
    """The rows of a device, where that of no stack before the recording has the rest of the peak."""
    is_rest = (pl.col("holder") == "before recording") & pl.col("stack_id").is_null()
    known = rows.filter(~is_rest)
    rest = peak - int(known["bytes"].sum())
    row = pl.DataFrame({"holder": ["before recording"], "category": ["unknown"], "bytes": [rest]})
    return pl.concat([known, row], how="diagonal")


def about_stacks(stacks: pl.DataFrame) -> pl.DataFrame:
    """For each stack: its frames in a line, the innermost line of the user's code, and what hints at its category.

    Where no frame is Python's, the operator that runs stands for the line.
    """
    rows = []
    for stack_id, frames in stacks.select("stack_id", "frames").iter_rows():
        python = [frame for frame in frames if _PYTHON.search(frame) and not _RECORDER.search(frame)]
        own = [frame for frame in python if not _LIBRARIES.search(frame)]
        nodes = [match[1] or f"aten::{match[2]}" for match in map(_OPERATION.search, reversed(frames)) if match]
        telling = own or python or nodes or [frame for frame in frames if not _PLUMBING.search(frame)] or frames
        line = telling[-1] if telling else None
        sign = next(((name, sure) for name, sure, sign in _SIGNS if any(map(sign.search, frames))), (None, None))
        rows.append((stack_id, " > ".join(python or frames), line, *sign))
    schema = {"stack_id": pl.UInt32, "stack": pl.String, "line": pl.String, "sign": pl.String, "sign_sure": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _with_category(held: pl.DataFrame) -> pl.DataFrame:
    """The blocks with their category and how sure it is."""
    lived = pl.col("freed") - pl.col("made")
    is_freed = pl.col("freed").is_not_null() & pl.col("made").is_not_null()
    # The optimiser's and the backward pass' tensors that are freed at once are no state and no gradients.
    is_short = is_freed & (lived <= _SHORT_EVENTS)
    is_state = is_freed & (pl.col("sign") == "optimiser state")
    category = (
        pl.when(is_short | is_state)
        .then(pl.lit("temporary"))
        .when(is_freed & pl.col("sign").eq("weights"))
        .then(pl.lit("unknown"))
        .otherwise(pl.col("sign").fill_null("unknown"))
    )
    sure = pl.when(is_short).then(_SURE_TEMPORARY).when(is_state).then(_LIKELY).otherwise(pl.col("sign_sure"))
    held = held.with_columns(category=category, sure=sure)
    return held.with_columns(sure=pl.when(pl.col("category") != "unknown").then("sure"))


def memory_leaks(
    memory_events: pl.DataFrame,
    memory_blocks: pl.DataFrame = MEMORY_BLOCKS.empty(),
    stacks: pl.DataFrame = STACKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
) -> pl.DataFrame:
    """Memory that was allocated in the history and not freed in it, by stack, the most first.

    Weights and the state of an optimiser are never freed either. What grows is allocated again and again: it has
    blocks in all eighths of the history. `n_freed` and `freed_bytes` say how much the stack allocates and frees again.

    Units: bytes.
    Source: events of a memory snapshot, as docs/memory.md explains.
    """
    return left_over(history_of(memory_events, MEMORY_SEGMENTS.empty(), memory_blocks, stacks), devices)


def left_over(history: History, devices: pl.DataFrame) -> pl.DataFrame:
    """What `memory_leaks` answers, of a history."""
    about, parts = history.about.drop("sign", "sign_sure"), []
    for device_id, n in history.peaks().filter(pl.col("n_events") > 0).select("device_id", "n_events").iter_rows():
        lives = history.lives[device_id].filter(pl.col("made").is_not_null())
        is_left = pl.col("freed").is_null()
        rows = lives.group_by("stack_id").agg(
            pl.col("bytes").filter(is_left).sum(),
            n_blocks=is_left.sum().cast(pl.Int64),
            n_eighths=(pl.col("made") * 8 // n).filter(is_left).n_unique().cast(pl.Int64),
            first_event=pl.col("made").filter(is_left).min(),
            last_event=pl.col("made").filter(is_left).max(),
            n_freed=(~is_left).sum().cast(pl.Int64),
            freed_bytes=pl.col("bytes").filter(~is_left).sum(),
        )
        rows = rows.filter(pl.col("n_blocks") > 0).join(about, on="stack_id", how="left")
        rows = rows.with_columns(device_id=pl.lit(device_id, pl.UInt32))
        parts.append(rows.sort("bytes", "first_event", descending=[True, False]))
    return _shown(MEMORY_LEAKS, pl.concat(parts), devices)


def memory_fragmentation(
    memory_segments: pl.DataFrame,
    memory_blocks: pl.DataFrame = MEMORY_BLOCKS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
) -> pl.DataFrame:
    """Reserved memory when the snapshot was taken: in use, cached, and unusable, by pool and stream.

    A free block that shares its segment with blocks in use cannot be given back to the driver (`unusable_bytes`). Of
    expandable segments, whole free pages can (2 MiB in the small pool, 20 MiB in the large one).

    Units: bytes.
    Source: segments and blocks of a memory snapshot, as docs/memory.md explains.
    """
    segment = ["device_id", "segment_address"]
    is_free = pl.col("state") == "inactive"
    owners = memory_segments.select(
        "device_id", "pool", "private_pool", "stream", "is_expandable", segment_address="address"
    ).unique(segment, keep="first")
    blocks = memory_blocks.join(owners, on=segment, how="left")
    page = pl.when(pl.col("pool").cast(pl.String) == "small").then(2 << 20).otherwise(20 << 20)
    begin = pl.col("address") - pl.col("segment_address")
    pages = (begin + pl.col("bytes")) // page - (begin + page - 1) // page
    cached = (
        pl.when(pl.col("is_expandable"))
        .then(pages.clip(0) * page)
        .when(is_free.all().over(segment))
        .then("bytes")
        .otherwise(0)
    )
    blocks = blocks.with_columns(cached=pl.when(is_free).then(cached).otherwise(0))
    keys = ["device_id", "pool", "private_pool", "stream"]
    own = pl.col("bytes").filter(is_free)
    of_blocks = blocks.group_by(keys).agg(
        active_bytes=pl.col("bytes").filter(~is_free).sum(),
        rounding_bytes=(pl.col("bytes") - pl.col("requested_bytes")).filter(~is_free).sum(),
        cached_bytes=pl.col("cached").sum().cast(pl.Int64),
        unusable_bytes=own.sum() - pl.col("cached").sum().cast(pl.Int64),
        largest_free_bytes=own.max().fill_null(0),
        n_free_blocks=is_free.sum().cast(pl.Int64),
    )
    result = memory_segments.group_by(keys).agg(
        reserved_bytes=pl.col("bytes").sum(), n_segments=pl.len().cast(pl.Int64)
    )
    result = result.join(of_blocks, on=keys, how="left", nulls_equal=True).with_columns(
        fragmentation_ratio=pl.col("unusable_bytes") / pl.col("reserved_bytes")
    )
    return _shown(MEMORY_FRAGMENTATION, result.sort("device_id", "reserved_bytes", descending=[False, True]), devices)


ANALYSIS = analysis_of(memory_peak, MEMORY_PEAK, "Peaks of memory in use and of memory reserved, of a memory snapshot.")
HOLDERS = analysis_of(
    memory_holders,
    MEMORY_HOLDERS,
    "What held the memory at its peak, by stack, line or category, of a memory snapshot.",
)
LEAKS = analysis_of(
    memory_leaks, MEMORY_LEAKS, "Memory that was allocated and never freed, by stack, of a memory snapshot."
)
FRAGMENTATION = analysis_of(
    memory_fragmentation, MEMORY_FRAGMENTATION, "Free memory that is cached or unusable, by pool, of a memory snapshot."
)
TIMELINE = analysis_of(
    memory_timeline, MEMORY_TIMELINE, "Memory in use and reserved after each event of a memory snapshot."
)
