"""A model of PyTorch's caching allocator: which segments it takes from the driver for a sequence of requests.

An allocator cannot be vectorised: where a block goes depends on all blocks before it. So `replay` loops over events,
which nothing else here does. It takes some 2 µs an event.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 1.13 to 2.14; the NPU's allocator has the same).
Requests are rounded up to 512 bytes. Those up to 1 MiB come from the small pool, whose segments have 2 MiB, the others
from the large pool, whose segments have 20 MiB, or from 10 MiB on the request rounded up to 2 MiB. A request takes the
smallest free block of its stream and pool that is large enough, at the lowest address. What remains of the block
becomes a free block: in the large pool only if it has more than 1 MiB. Free neighbours within a segment are merged.
A segment goes back to the driver only as a whole: when the driver refuses memory, or the job calls `empty_cache`.
Expandable segments are one range of addresses for each stream and pool, into which memory is mapped in pieces of 2 MiB
(small) or 20 MiB (large) and from which free pieces are unmapped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
MIN_BLOCK, SMALL, SMALL_SEGMENT, MIN_LARGE, LARGE_SEGMENT = 512, MIB, 2 * MIB, 10 * MIB, 20 * MIB
#: What an event does: nothing to the allocator's state, allocates, frees, says that a segment was taken or given back,
#: or that the job called empty_cache.
IGNORE, ALLOC, FREE, TAKEN, GIVEN_BACK, EMPTY_CACHE = range(6)
_SHIFT, _FAR = 64, 1 << 62
#: Recorded addresses are below this, and those of new memory from here on.
ADDRESSES = 1 << 50
#: Addresses of a range for expandable segments, if the device's memory is not known.
_ROOM = 1 << 42


class Settings(msgspec.Struct, frozen=True):
    """The allocator's settings, as in PYTORCH_CUDA_ALLOC_CONF. Units: bytes."""

    #: Blocks from this size on are never split (max_split_size_mb).
    max_split_bytes: int | None = None
    #: expandable_segments
    expandable: bool = False
    #: roundup_power2_divisions by power of two: sizes between two powers are rounded up to one of so many parts.
    divisions: dict[int, int] = msgspec.field(default_factory=dict)
    #: What is added to each request before it is rounded; NPUs: 32.
    padding_bytes: int = 0
    #: What the address of a block from 2 MiB on in an expandable segment is a multiple of; NPUs: 16 KiB.
    alignment_bytes: int = 1
    #: What the driver has for the allocator, at most; None: no bound.
    limit_bytes: int | None = None

    def rounded(self, size: int) -> int:
        """The size of the block for a request."""
        size += self.padding_bytes
        if size < MIN_BLOCK:
            return MIN_BLOCK
        if self.divisions:
            power = 1 << (size.bit_length() - 1)
            divisions = self.divisions.get(power >> 20 if power >= MIB else 1, 0)
            if divisions > 1 and size > MIN_BLOCK * divisions:
                part = power // divisions
                return size if size == power else -(-size // part) * part
        return -(-size // MIN_BLOCK) * MIN_BLOCK


def segment_bytes(size: int) -> int:
    """What the driver must have in one piece for a request of that (rounded) size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MIN_LARGE else -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


class Start(msgspec.Struct, frozen=True):
    """What the allocator has before the first event. Units: bytes.

    Each pool is a number: that of a stream's small pool is even, of its large pool odd.
    """

    #: Address, bytes and pool of each segment, or of each mapped range of expandable segments.
    segments: Sequence[tuple[int, int, int]] = ()
    #: Address and bytes of each block in use.
    blocks: Sequence[tuple[int, int]] = ()
    is_expandable: bool = False
    #: The device's memory, as far as the process can have it; None: unknown.
    device_bytes: int | None = None


class Replayed(msgspec.Struct, frozen=True):
    """What the allocator did. Units: bytes."""

    #: Its state after the last event.
    allocator: Allocator
    #: Number of the event and reserved bytes after it, wherever they change.
    reserved: list[tuple[int, int]]
    #: Events at which the driver had no memory for a request.
    failed: list[int]
    #: Where the model has a block that is at an address of the recording.
    where: dict[int, int]


class Pool:
    """The free blocks of a stream's small or large pool."""

    __slots__ = ("free", "is_small", "unmapped")

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        #: Size and address of each free block in one number, in ascending order.
        self.free: list[int] = []
        #: Address and bytes of each unmapped part of the address ranges, in ascending order.
        self.unmapped: list[tuple[int, int]] = []


class Allocator:
    """The state of a caching allocator. Units: bytes."""

    def __init__(self, settings: Settings, start: Start = Start()) -> None:
        self._settings = settings
        self._pools: dict[int, Pool] = {}
        #: Size and pool of the block in use at an address.
        self.used: dict[int, tuple[int, int]] = {}
        self._size: dict[int, int] = {}  # of the free block at an address
        self._start: dict[int, int] = {}  # of the free block that ends at an address
        self._segments: dict[int, tuple[int, int]] = {}  # size and pool by address; expandable: none
        self._borders: set[int] = set()  # where segments and ranges begin
        self._taken: list[tuple[int, int]] = []  # start and end of each segment and range, in ascending order
        self.reserved = self.allocated = 0
        self._expected: dict[int, list[int]] = {}  # addresses of segments to come, by size
        self._next = ADDRESSES
        # A range has an eighth more addresses than the device has memory.
        most = start.device_bytes or settings.limit_bytes
        self._room = _ROOM if most is None else most * 9 // 8
        self._room += -self._room % LARGE_SEGMENT
        #: Where a block of `start` is now, by its address there.
        self.moved = self._placed(start)

    def _placed(self, start: Start) -> dict[int, int]:
        """Take over the blocks in use where they are if the segments are of our kind, else allocate them anew."""
        if start.is_expandable != self._settings.expandable:
            pools = sorted((address, pool_id) for address, _, pool_id in start.segments) or [(0, 1)]
            old = [(address, size) for address, size in start.blocks if size > 0]
            owners = [pools[bisect_right(pools, (address, _FAR)) - 1][1] for address, _ in old]
            blocks = zip(old, owners, strict=True)
            moved = {address: self.alloc(size, pool_id) for (address, size), pool_id in blocks}
            return {address: new for address, new in moved.items() if new is not None}
        rest = sorted(start.blocks, reverse=True)
        ends: list[tuple[int, int]] = []  # of each range for expandable segments, with its pool
        for address, size, pool_id in sorted(start.segments):
            if size <= 0 or not self._is_vacant(address, size):
                continue
            self.reserved += size
            insort(self._taken, (address, address + size))
            if not start.is_expandable:
                self._segments[address] = size, pool_id
                self._borders.add(address)
            elif ends and ends[-1][1] == pool_id:
                unmapped_from = ends.pop()[0]
                if address > unmapped_from:
                    self._pools[pool_id].unmapped.append((unmapped_from, address - unmapped_from))
            else:
                self._borders.add(address)
            ends.append((address + size, pool_id))
            self._fill(address, address + size, pool_id, rest)
        for end, pool_id in ends if start.is_expandable else ():
            room = min((begin for begin, _ in self._taken if begin >= end), default=end + self._room) - end
            if room:
                insort(self._pools[pool_id].unmapped, (end, room))
            self._borders.add(end + room)
        return {address: address for address in self.used}

    def _fill(self, begin: int, end: int, pool_id: int, rest: list[tuple[int, int]]) -> None:
        """Place those blocks that lie in a segment, which are the last of the `rest`; what is between them is free."""
        pool = self._pool(pool_id)
        while rest and rest[-1][0] < end:
            address, size = rest.pop()
            if address < begin or size <= 0 or address + size > end:
                continue
            if address > begin:
                self._give(pool, begin, address - begin)
            self.used[address] = size, pool_id
            self.allocated += size
            begin = address + size
        if begin < end:
            self._give(pool, begin, end - begin)

    def _is_vacant(self, address: int, size: int) -> bool:
        at = bisect_left(self._taken, (address, 0))
        is_before = at == len(self._taken) or address + size <= self._taken[at][0]
        return is_before and (at == 0 or self._taken[at - 1][1] <= address)

    def _address_for(self, size: int, known: list[int] | None) -> int:
        """Where new memory begins: where it was recorded, or after everything else."""
        if known and self._is_vacant(known[0], size):
            address = known.pop(0)
        else:
            address = self._next
            self._next += size + LARGE_SEGMENT
        insort(self._taken, (address, address + size))
        return address

    def alloc(self, size: int, pool_id: int) -> int | None:
        """The address of a new block of that (rounded) size; None if the driver has no memory for it."""
        pool = self._pool(pool_id)
        address = self._best_fit(pool, size)
        if address is None:
            address = self._new_memory(pool, pool_id, size)
            if address is None and self._release_oversize(pool, size):
                address = self._new_memory(pool, pool_id, size)
            if address is None:
                self.empty_cache()
                address = self._new_memory(pool, pool_id, size)
            if address is None:
                return None
        block = self._take(pool, address)
        settings = self._settings
        if settings.alignment_bytes > 1 and settings.expandable and size >= SMALL_SEGMENT:
            skipped = -address % settings.alignment_bytes
            if skipped and skipped + size <= block:
                self._give(pool, address, skipped)
                address += skipped
                block -= skipped
        rest = block - size
        if pool.is_small or settings.expandable:
            is_split = rest >= MIN_BLOCK
        else:
            is_split = rest > SMALL and (settings.max_split_bytes is None or size < settings.max_split_bytes)
        if is_split:
            self._give(pool, address + size, rest)
            block = size
        self.used[address] = block, pool_id
        self.allocated += block
        return address

    def free(self, address: int) -> None:
        """Free the block at an address."""
        size, pool_id = self.used.pop(address)
        self.allocated -= size
        self._merge(self._pools[pool_id], address, size)

    def needed_for(self, size: int, pool_id: int) -> int:
        """What stays reserved once all idle memory is given back, and a request has been granted without limit."""
        self.empty_cache()
        self._settings = replace(self._settings, limit_bytes=None)
        self.alloc(self._settings.rounded(size), pool_id)
        return self.reserved

    def idle(self) -> list[tuple[int, int]]:
        """Address and bytes of each free block."""
        return sorted(self._size.items())

    def segments(self) -> list[int]:
        """Where segments, or mapped parts of ranges, begin."""
        blocks = {**{address: size for address, (size, _) in self.used.items()}, **self._size}
        ends = {address + size for address, size in blocks.items()}
        return sorted(address for address in blocks if address not in ends or address in self._borders)

    def empty_cache(self) -> None:
        """Give all free segments back to the driver, and unmap the free pieces of expandable ones."""
        for pool_id, pool in self._pools.items():
            for key in pool.free[::-1]:
                address, size = key & ((1 << _SHIFT) - 1), key >> _SHIFT
                if self._settings.expandable:
                    self._unmap(pool, address, size)
                elif self._segments.get(address) == (size, pool_id):
                    self._give_back(pool, address)

    def expect(self, address: int, size: int) -> None:
        """The next segment of that size, or the next range, begins at that address."""
        self._expected.setdefault(0 if self._settings.expandable else size, []).append(address)

    def give_back(self, address: int, size: int) -> None:
        """Give one segment back, or unmap a part of a range, if it is free as a whole."""
        if self._settings.expandable:
            for pool in self._pools.values():
                for key in pool.free:
                    at, more = key & ((1 << _SHIFT) - 1), key >> _SHIFT
                    if at <= address and address + size <= at + more:
                        self._unmap(pool, at, more)
                        return
        elif address in self._segments and self._size.get(address) == self._segments[address][0]:
            self._give_back(self._pools[self._segments[address][1]], address)

    def _give_back(self, pool: Pool, address: int) -> None:
        size = self._take(pool, address)
        del self._segments[address]
        self._taken.remove((address, address + size))
        self._borders.discard(address)
        self.reserved -= size

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With max_split_size, give back one free block that is large enough, or the largest until they are."""
        least = self._settings.max_split_bytes
        if least is None or self._settings.expandable:
            return False
        wanted, released = max(size, least), 0
        blocks = [(key >> _SHIFT, key & ((1 << _SHIFT) - 1)) for key in pool.free if key >> _SHIFT >= least]
        whole = [(more, at) for more, at in blocks if at in self._segments and self._segments[at][0] == more]
        enough = [block for block in whole if block[0] >= wanted]
        for more, address in enough[:1] or whole[::-1]:
            if released < wanted:
                self._give_back(pool, address)
                released += more
        return released >= wanted

    def _pool(self, pool_id: int) -> Pool:
        pool = self._pools.get(pool_id)
        if pool is None:
            pool = self._pools[pool_id] = Pool(is_small=pool_id % 2 == 0)
        return pool

    def _best_fit(self, pool: Pool, size: int) -> int | None:
        at = bisect_left(pool.free, size << _SHIFT)
        if at == len(pool.free):
            return None
        key = pool.free[at]
        if self._settings.expandable:
            return self._least_growth(pool, at)
        most = self._settings.max_split_bytes
        if most is not None:
            block = key >> _SHIFT
            if (size < most <= block) or (size >= most and block >= size + LARGE_SEGMENT):
                return None
        return key & ((1 << _SHIFT) - 1)

    def _least_growth(self, pool: Pool, at: int) -> int:
        """Of the free blocks from `at` on, the first that has less room to grow than the one after it."""
        best, room = self._with_room(pool, pool.free[at])
        for key in pool.free[at + 1 :]:
            if not self._is_split(best):
                break
            address, more = self._with_room(pool, key)
            if more >= room:
                break
            best, room = address, more
        return best

    def _with_room(self, pool: Pool, key: int) -> tuple[int, int]:
        address, size = key & ((1 << _SHIFT) - 1), key >> _SHIFT
        return address, size + self._unmapped_at(pool, address + size)

    def _is_split(self, address: int) -> bool:
        """Whether the free block has a neighbour in its range of addresses."""
        end = address + self._size[address]
        return address not in self._borders or end not in self._borders

    @staticmethod
    def _unmapped_at(pool: Pool, address: int) -> int:
        at = bisect_left(pool.unmapped, (address, 0))
        return pool.unmapped[at][1] if at < len(pool.unmapped) and pool.unmapped[at][0] == address else 0

    def _new_memory(self, pool: Pool, pool_id: int, size: int) -> int | None:
        """The address of a free block with new memory that is large enough; None if the driver has none."""
        if self._settings.expandable:
            return self._expanded(pool, size)
        segment = segment_bytes(size)
        if not self._has(segment):
            return None
        address = self._address_for(segment, self._expected.get(segment))
        self._segments[address] = segment, pool_id
        self._borders.add(address)
        self.reserved += segment
        self._give(pool, address, segment)
        return address

    def _has(self, more: int) -> bool:
        limit = self._settings.limit_bytes
        return limit is None or self.reserved + more <= limit

    def _expanded(self, pool: Pool, size: int) -> int | None:
        start = next((at for at, _ in map(self._chain_start, pool.unmapped) if self._chain(pool, at) >= size), None)
        if start is None:
            room = max(self._room, 2 * size)
            start = self._address_for(room, self._expected.get(0, [])[-1:])
            self._borders.update((start, start + room))
            insort(pool.unmapped, (start, room))
        while self._size.get(start, 0) < size:
            at = start + self._size.get(start, 0)
            if not self._map(pool, at, size - (at - start)):
                return None
        return start

    def _chain_start(self, unmapped: tuple[int, int]) -> tuple[int, int]:
        address, size = unmapped
        return (address if address in self._borders else self._start.get(address, address)), size

    def _chain(self, pool: Pool, address: int) -> int:
        """Bytes from an address on that are free or unmapped."""
        total = 0
        while True:
            more = self._size.get(address + total, 0) or self._unmapped_at(pool, address + total)
            total += more
            if not more or address + total in self._borders:
                return total

    def _map(self, pool: Pool, address: int, wanted: int) -> bool:
        at = bisect_left(pool.unmapped, (address, 0))
        room = pool.unmapped[at][1]
        piece = SMALL_SEGMENT if pool.is_small else LARGE_SEGMENT
        mapped = min(-(-wanted // piece) * piece, room)
        if not self._has(mapped):
            return False
        del pool.unmapped[at]
        if room > mapped:
            pool.unmapped.insert(at, (address + mapped, room - mapped))
        self.reserved += mapped
        self._merge(pool, address, mapped)
        return True

    def _unmap(self, pool: Pool, address: int, size: int) -> None:
        piece = SMALL_SEGMENT if pool.is_small else LARGE_SEGMENT
        base = max(border for border in self._borders if border <= address)
        start = base + -(-(address - base) // piece) * piece
        end = base + (address + size - base) // piece * piece
        if start >= end:
            return
        self._take(pool, address)
        if start > address:
            self._give(pool, address, start - address)
        if address + size > end:
            self._give(pool, end, address + size - end)
        self.reserved -= end - start
        insort(pool.unmapped, (start, end - start))
        self._join_unmapped(pool, start)

    def _join_unmapped(self, pool: Pool, address: int) -> None:
        at = bisect_left(pool.unmapped, (address, 0))
        for first in (at, at - 1):
            if first >= 0 and first + 1 < len(pool.unmapped):
                (start, size), (after, more) = pool.unmapped[first : first + 2]
                if start + size == after and after not in self._borders:
                    pool.unmapped[first : first + 2] = [(start, size + more)]

    def _merge(self, pool: Pool, address: int, size: int) -> None:
        end = address + size
        borders = self._borders
        if address not in borders:
            before = self._start.get(address)
            if before is not None:
                self._take(pool, before)
                address = before
        if end not in borders and end in self._size:
            end += self._take(pool, end)
        self._give(pool, address, end - address)

    def _give(self, pool: Pool, address: int, size: int) -> None:
        self._size[address] = size
        self._start[address + size] = address
        insort(pool.free, size << _SHIFT | address)

    def _take(self, pool: Pool, address: int) -> int:
        size = self._size.pop(address)
        del self._start[address + size]
        free = pool.free
        del free[bisect_left(free, size << _SHIFT | address)]
        return size


_DECIDED = {TAKEN: Allocator.expect, GIVEN_BACK: Allocator.give_back}


def replay(
    events: Sequence[tuple[int, int, int, int]], settings: Settings, start: Start = Start(), *, follow: bool = False
) -> Replayed:
    """What an allocator with these settings does for the requests of a job.

    An event has its kind, address, bytes, and pool (as in `Start`). With `follow`, segments get the recorded addresses
    and are given back where that was recorded, as both may depend on more than the requests; otherwise those events
    are ignored. A free of an unknown address is ignored too.
    """
    allocator = Allocator(settings, start)
    where, alloc, free = allocator.moved, allocator.alloc, allocator.free
    sizes: dict[int, int] = {}
    reserved = allocator.reserved
    levels, failed = [(-1, reserved)], []
    for number, (kind, address, size, pool_id) in enumerate(events):
        if kind == ALLOC:
            rounded = sizes.get(size)
            if rounded is None:
                rounded = sizes[size] = settings.rounded(size)
            block = alloc(rounded, pool_id)
            if block is None:
                failed.append(number)
            else:
                where[address] = block
        elif kind == FREE:
            block = where.pop(address, None)
            if block is not None:
                free(block)
        elif kind == EMPTY_CACHE:
            allocator.empty_cache()
        elif follow and kind in _DECIDED:
            _DECIDED[kind](allocator, address, size)
        if allocator.reserved != reserved:
            reserved = allocator.reserved
            levels.append((number, reserved))
    return Replayed(allocator, levels, failed, where)
