"""A recorded history of an allocator, as requests that the model can replay, also with other settings."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import accumulate

import msgspec
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.memory.allocator import (
    ADDRESSES,
    ALLOC,
    EMPTY_CACHE,
    FREE,
    GIVEN_BACK,
    IGNORE,
    LARGE_SEGMENT,
    MIB,
    SMALL,
    TAKEN,
    Settings,
    Start,
    replay,
)

#: What an NPU's allocator adds to each request, and what it aligns large blocks to.
_PADDING, _ALIGNMENT = 32, 16384
_FAR = 1 << 62
#: A rule for rounding is not the usual one if it explains so many more of the blocks.
_CLEAR_RATIO = 0.1
#: Values of max_split_size_mb that are tried.
_SPLITS = (32, 128, 512)


class Recording(msgspec.Struct, frozen=True):
    """What a device's history and its state at the end say of the allocator's work. Units: bytes."""

    events: list[tuple[int, int, int, int]]
    settings: Settings
    start: Start
    #: Reserved before the first event and after each event that changed it, with the number of the event (from 0).
    reserved: list[tuple[int, int]]


_KINDS = {
    "alloc": ALLOC, "free_completed": FREE, "segment_alloc": TAKEN, "segment_map": TAKEN,
    "segment_free": GIVEN_BACK, "segment_unmap": GIVEN_BACK,
}  # fmt: skip

#: What cannot be in any memory is not replayed.
_is_possible = pl.col("address").is_between(0, ADDRESSES, closed="left") & pl.col("bytes").is_between(0, ADDRESSES >> 2)


def recording(
    events: pl.DataFrame, segments: pl.DataFrame, blocks: pl.DataFrame, settings: Settings | None
) -> Recording:
    """The history of one device as `replay` takes it, with the state before its first event.

    The state before is that at the end, with all events undone. The bytes of a block that was freed since are not
    recorded: they are those of the request, and what else is before the next block if a free block would not fit there.
    """
    segments, blocks = segments.filter(_is_possible), blocks.filter(_is_possible)
    kind = pl.col("action").cast(pl.String).replace_strict(_KINDS, default=IGNORE, return_dtype=pl.Int8)
    events = _with_pools(events, segments).select(
        pl.when(_is_possible).then(kind).otherwise(IGNORE), pl.col("address", "bytes", "stream").fill_null(0), "private"
    )
    of_events = events.select("stream", "private").rows()
    of_segments = _with_pools(segments, segments).select(pl.col("stream").fill_null(0), "private").rows()
    pools = {owner: 2 * n for n, owner in enumerate(dict.fromkeys((*of_segments, *of_events)))}
    settings = _as_recorded(settings, segments, blocks)
    sizes = events["bytes"].unique().to_list()
    rounded = {size: settings.rounded(size) for size in sizes}
    rows = zip(events["action"], events["address"], events["bytes"], of_events, strict=True)
    listed = [(kind, at, size, pools[owner] + (rounded[size] > SMALL)) for kind, at, size, owner in rows]
    first: dict[int, tuple[int, int]] = {}
    for number, (kind, address, size, _) in enumerate(listed):
        if kind in (ALLOC, FREE) and address not in first:
            first[address] = number, 0 if kind == ALLOC else rounded[size]
    used = blocks.filter(pl.col("state") != "inactive").select("address", "bytes").rows()
    used = [(address, size) for address, size in used if address not in first]
    used += [(address, size) for address, (_, size) in first.items() if size]
    parts = zip(segments["address"], segments["bytes"], of_segments, segments["pool"].cast(pl.String), strict=True)
    known = {at: (size, pools[owner] + (pool != "small")) for at, size, owner, pool in parts}
    ranges = _undone(listed, known, expandable=settings.expandable)
    if not settings.expandable:
        used = _with_slack(sorted(used), ranges, first, settings.max_split_bytes or _FAR)
    reserved = [(-1, sum(size for _, size, _ in ranges))]
    for number, (kind, _, size, _) in enumerate(listed):
        if kind in (TAKEN, GIVEN_BACK):
            reserved.append((number, reserved[-1][1] + (size if kind == TAKEN else -size)))
    return Recording(listed, settings, Start(ranges, used, settings.expandable), reserved)


def _with_pools(rows: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """The rows in their order with the `private` pool of their segment, as far as segments are known; null: none."""
    private = segments.filter(pl.col("private_pool").is_not_null()).sort("address")
    if private.is_empty():
        return rows.with_columns(private=pl.lit(None, pl.String))
    ranges = private.select(
        begin="address", end=pl.col("address") + pl.col("bytes"), private=pl.col("private_pool").cast(pl.String)
    )
    placed = rows.with_row_index("row").sort("address").join_asof(ranges, left_on="address", right_on="begin")
    inside = pl.when(pl.col("address") < pl.col("end")).then("private")
    return placed.sort("row").with_columns(private=inside).drop("row")


def _as_recorded(settings: Settings | None, segments: pl.DataFrame, blocks: pl.DataFrame) -> Settings:
    """The settings, with what is seen of them: whether segments are expandable, and how sizes are rounded.

    Old files and those of NPUs have no settings: it is the usual rule, unless another one explains many more blocks.
    """
    is_expandable = bool(segments["is_expandable"].any())
    if settings is not None:
        return replace(settings, expandable=settings.expandable or is_expandable)
    plain = Settings(expandable=is_expandable)
    rules = [plain, replace(plain, padding_bytes=_PADDING, alignment_bytes=_ALIGNMENT)]
    rules += [replace(plain, divisions={1 << n: parts for n in range(16)}) for parts in (2, 4, 8, 16)]
    used = blocks.filter(pl.col("state") != "inactive", pl.col("requested_bytes") > 0)
    sizes = used.group_by("requested_bytes", "bytes").len().rows()
    slack = 0 if is_expandable else SMALL  # what is not split off a block of the large pool
    fits = [
        sum(n for asked, given, n in sizes if 0 <= given - (own := rule.rounded(asked)) <= slack * (own > SMALL))
        for rule in rules
    ]
    is_clear = max(fits) - fits[0] > _CLEAR_RATIO * used.height
    rule = rules[fits.index(max(fits)) if is_clear else 0]
    # A rest that would have been split off belongs to a block that is too large to be split.
    unsplit = [asked for asked, given, _ in sizes if given - rule.rounded(asked) > SMALL and not is_expandable]
    return replace(rule, max_split_bytes=min(unsplit) // MIB * MIB if unsplit else None)


def _undone(
    events: list[tuple[int, int, int, int]], ranges: dict[int, tuple[int, int]], *, expandable: bool
) -> list[tuple[int, int, int]]:
    """The segments before the events: those after them, without what was taken and with what was given back."""
    decided = [event for event in events if event[0] in (TAKEN, GIVEN_BACK)]
    if expandable:
        return _unmapped(decided, ranges)
    for kind, address, size, pool_id in reversed(decided):
        if kind == GIVEN_BACK:
            ranges[address] = size, pool_id
        else:
            ranges.pop(address, None)
    return sorted((address, size, pool_id) for address, (size, pool_id) in ranges.items())


def _unmapped(
    decided: list[tuple[int, int, int, int]], ranges: dict[int, tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """The same for mapped ranges, which may be mapped and unmapped in other pieces."""
    change: Counter[int] = Counter()
    pools = {address: pool_id for address, (_, pool_id) in ranges.items()}
    for address, (size, _) in ranges.items():
        change.update({address: 1, address + size: -1})
    for kind, address, size, pool_id in decided:
        sign = 1 if kind == GIVEN_BACK else -1
        change.update({address: sign, address + size: -sign})
        # A piece of the large pool is a multiple of 20 MiB.
        pools.setdefault(address, pool_id // 2 * 2 + (size % LARGE_SEGMENT == 0))
    result, level, begin = [], 0, 0
    firsts = sorted(pools)
    for address in sorted(change):
        before, level = level, level + change[address]
        if before <= 0 < level:
            begin = address
        elif level <= 0 < before:
            result.append((begin, address - begin, pools[firsts[max(0, bisect_right(firsts, begin) - 1)]]))
    return result


def _with_slack(
    used: list[tuple[int, int]], ranges: list[tuple[int, int, int]], first: dict[int, tuple[int, int]], unsplit: int
) -> list[tuple[int, int]]:
    """The blocks of segments that do not expand, each with what was not split off it.

    In the large pool no free block has 1 MiB or less, so a gap of that size is part of the block before it. Of a larger
    gap that part is known if the first event in it is an allocation, which is at the start of the free block.
    """
    begins = [address for address, _, _ in ranges]
    requests = sorted(address for address, (_, size) in first.items() if not size)
    result = []
    for at, (address, size) in enumerate(used):
        number = bisect_right(begins, address) - 1
        begin = after = address + size
        if number >= 0 and ranges[number][2] % 2:
            end = min(ranges[number][0] + ranges[number][1], used[at + 1][0] if at + 1 < len(used) else _FAR)
            if 0 < end - after <= SMALL or size >= unsplit:
                begin = end
            elif address in first:
                near = requests[bisect_left(requests, after) : bisect_right(requests, min(end, after + SMALL))]
                earliest = min(near, key=lambda request: first[request][0], default=None)
                if earliest is not None and first[earliest][0] < first[address][0]:
                    begin = earliest
        result.append((address, begin - address))
    return result


class Saving(msgspec.Struct, frozen=True):
    """What a job needs for a request that failed, with one change. Units: bytes."""

    change: str
    #: Reserved after the request, had all idle memory been given back before.
    needed_bytes: int
    #: Number of the event before which the cache is emptied.
    event: int | None = None


def needed_with(history: Recording, failed: int, limit: int, most: int) -> list[Saving]:
    """What the job would need for the request that failed, as it was (the first) and with each change.

    A change with which the job fails before that has no row. `failed` is the number of the event, `limit` what the
    allocator had at most, and `most` what it could perhaps have had.
    """
    before = _what_was_asked(history, failed, limit)
    _, _, size, pool_id = history.events[failed]
    base = replace(history.settings, limit_bytes=most)
    changes: list[tuple[str, Settings, int | None]] = [("", base, None)]
    if not base.expandable:
        changes.append(("expandable_segments:True", replace(base, expandable=True, max_split_bytes=None), None))
        changes += [
            (f"max_split_size_mb:{mib}", replace(base, max_split_bytes=mib * MIB), None)
            for mib in _SPLITS
            if base.max_split_bytes is None or mib * MIB < base.max_split_bytes
        ]
    changes += [("empty_cache", base, event) for event in _best_moments(before)]
    result = []
    for change, settings, event in changes:
        events = before if event is None else [*before[:event], (EMPTY_CACHE, 0, 0, 0), *before[event:]]
        done = replay(events, settings, history.start)
        if not done.failed:
            result.append(Saving(change, done.allocator.needed_for(size, pool_id), event))
    return result


def _what_was_asked(history: Recording, failed: int, limit: int) -> list[tuple[int, int, int, int]]:
    """The events before a failure, without those that the allocator decides.

    Where segments were given back, the job called empty_cache, unless the driver had no memory for the request that
    follows: then the allocator does the same again.
    """
    events = history.events[:failed]
    reserved = dict(history.reserved)
    level, is_run = history.reserved[0][1], False
    for number, (kind, _, _, _) in enumerate(events):
        if kind == GIVEN_BACK and not is_run:
            following = next((event for event in history.events[number:] if event[0] in (ALLOC, TAKEN)), None)
            more = 0 if following is None or following[0] == ALLOC else following[2]
            forced = following is None or level + more > limit
            events[number] = (IGNORE if forced else EMPTY_CACHE, 0, 0, 0)
        is_run = kind == GIVEN_BACK or (is_run and kind in (IGNORE, FREE))
        level = reserved.get(number, level)
    return events


def _best_moments(events: list[tuple[int, int, int, int]]) -> list[int]:
    """Where the job held least, in the whole history and in its last quarter: there most can be given back."""
    levels = list(accumulate(size if kind == ALLOC else -size if kind == FREE else 0 for kind, _, size, _ in events))
    parts = (range(1, len(levels)), range(len(levels) * 3 // 4, len(levels)))
    return sorted({min(part, key=levels.__getitem__) + 1 for part in parts if part})


def _lifetimes(events: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """A row per block: its stack and bytes, the events that made and freed it (null: before the first, or never)."""
    events = events.drop("event", strict=False).with_row_index("event")
    own = events.filter(pl.col("action").is_in(["alloc", "free_completed"]))
    own = own.select("event", "address", "bytes", "stack_id", is_alloc=pl.col("action") == "alloc")
    own = own.sort("address", maintain_order=True)  # and so by event within each
    is_first = (pl.col("address") != pl.col("address").shift(1)).fill_null(value=True)
    following = pl.when(pl.col("address").shift(-1) == pl.col("address")).then(pl.col("event").shift(-1))
    own = own.with_columns(freed=following, is_first=is_first)
    made = own.filter("is_alloc").sort("event")
    old = own.filter(~pl.col("is_alloc") & pl.col("is_first")).sort("event")
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
