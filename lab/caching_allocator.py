"""PyTorch's caching allocator, written after its C++ source, on a device that is only a number of free bytes.

It records its history as `torch.cuda.memory._record_memory_history` does, and gives the same snapshot. It shares no
line with the model in `stepscope.analyses.memory.allocator`, which it checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
Frames = list[dict[str, Any]]


class OutOfMemory(Exception):
    """The driver has no memory for a request."""


@dataclass
class Device:
    """The memory of a device: what the driver has, of which others hold a part."""

    total: int
    others: int = 0
    ours: int = 0
    #: The next free address, and addresses that were given back, by size.
    address: int = 0x7F00_0000_0000
    returned: dict[int, list[int]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Bytes that the driver can give."""
        return max(0, self.total - self.others - self.ours)

    def take(self, size: int) -> int | None:
        """Address of new memory, None if there is none (cudaMalloc)."""
        if size > self.free:
            return None
        self.ours += size
        if self.returned.get(size):
            return self.returned[size].pop()
        self.address += size + 2 * MIB
        return self.address - size

    def give_back(self, address: int, size: int) -> None:
        """Memory is free again (cudaFree)."""
        self.ours -= size
        self.returned.setdefault(size, []).append(address)


@dataclass
class Conf:
    """PYTORCH_CUDA_ALLOC_CONF. Units: bytes."""

    max_split_size: int | None = None
    expandable_segments: bool = False
    roundup_power2_divisions: int = 0

    def settings(self) -> dict[str, Any]:
        """As the snapshot of today says it."""
        divisions = {str(1 << n): self.roundup_power2_divisions for n in range(16)}
        return {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1 if self.max_split_size is None else self.max_split_size,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": divisions,
        }


class Block:
    """A piece of a segment, between its neighbours."""

    __slots__ = (
        "address", "following", "frames", "head", "is_allocated", "is_mapped", "is_pending", "pool", "previous",
        "requested", "size", "uses",
    )  # fmt: skip

    def __init__(self, address: int, size: int, pool: BlockPool, *, is_mapped: bool = True) -> None:
        self.address, self.size, self.pool, self.is_mapped = address, size, pool, is_mapped
        self.is_allocated = self.is_pending = False
        self.requested = self.uses = 0
        self.frames: Frames = []
        self.previous: Block | None = None
        self.following: Block | None = None
        self.head: ExpandableSegment | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody uses it."""
        return not self.is_allocated and not self.is_pending

    @property
    def is_split(self) -> bool:
        """Whether it is only a part of a segment."""
        return self.previous is not None or self.following is not None


class BlockPool:
    """Blocks of a stream that are free, and the first blocks of its segments."""

    def __init__(self, stream: int, *, is_small: bool) -> None:
        self.stream, self.is_small = stream, is_small
        self.free: set[Block] = set()
        self.unmapped: set[Block] = set()
        self.heads: list[Block] = []


@dataclass
class ExpandableSegment:
    """A range of addresses into which memory is mapped in pieces."""

    start: int
    piece: int


class CachingAllocator:
    """`malloc`, `free` and what else a job can do. `conf` and `device` may be changed between calls."""

    def __init__(self, device: Device, conf: Conf, *, with_time: bool = True) -> None:
        self.device, self.conf, self.with_time = device, conf, with_time
        self.clock_us = 1_750_000_000_000_000
        self.pools: dict[tuple[int, bool], BlockPool] = {}
        self.events: list[dict[str, Any]] = []
        self.blocks: dict[int, Block] = {}
        self.pending: list[tuple[int, Block]] = []  # what other streams still use, and for how many mallocs more
        self.reserved = 0
        self._ranges = 0x6000_0000_0000

    def malloc(self, requested: int, stream: int = 0, frames: Frames | None = None) -> Block:
        """A block of at least that many bytes. Raises OutOfMemory, after an `oom` event."""
        frames = frames or []
        self._process_events()
        size = self._round_size(requested)
        pool = self._pool(stream, is_small=size <= MIB)
        block = (
            self._get_free_block(pool, size)
            or self._alloc_block(pool, size, frames)
            or (self._release_available_cached_blocks(pool, size) and self._alloc_block(pool, size, frames))
            or (self._release_cached_blocks() and self._alloc_block(pool, size, frames))
        )
        if not block:
            self._record("oom", self.device.free, size, stream, frames)
            raise OutOfMemory
        if self._should_split(block, size):
            rest = Block(block.address + size, block.size - size, pool)
            rest.head, rest.previous, rest.following = block.head, block, block.following
            if rest.following is not None:
                rest.following.previous = rest
            block.following, block.size = rest, size
            pool.free.add(rest)
        block.is_allocated, block.requested, block.frames = True, requested, frames
        self.blocks[block.address] = block
        self._record("alloc", block.address, requested, stream, frames)
        return block

    def free(self, block: Block, used_for: int = 0) -> None:
        """Free a block; `used_for`: another stream uses it for so many mallocs more."""
        self._record("free_requested", block.address, block.requested, block.pool.stream, [])
        block.is_allocated = False
        if used_for:
            block.is_pending = True
            self.pending.append((used_for, block))
        else:
            self._free_block(block)

    def empty_cache(self) -> None:
        """As torch.cuda.empty_cache."""
        self._release_cached_blocks()

    def _process_events(self) -> None:
        waiting = [(left - 1, block) for left, block in self.pending]
        self.pending = [(left, block) for left, block in waiting if left > 0]
        for left, block in waiting:
            if left <= 0:
                self._free_block(block)

    def _free_block(self, block: Block) -> None:
        self._record("free_completed", block.address, block.requested, block.pool.stream, [])
        del self.blocks[block.address]
        block.is_pending, block.frames, block.requested = False, [], 0
        for neighbour in (block.previous, block.following):
            self._try_merge(block, neighbour)
        block.pool.free.add(block)

    @staticmethod
    def _try_merge(block: Block, other: Block | None) -> None:
        """Make `other` part of `block` if it is a free neighbour of the same kind."""
        if other is None or not other.is_free or other.is_mapped != block.is_mapped:
            return
        pool = block.pool
        if other is block.previous:
            block.address, block.previous = other.address, other.previous
            if block.previous is not None:
                block.previous.following = block
            elif other in pool.heads:
                pool.heads[pool.heads.index(other)] = block
        else:
            block.following = other.following
            if block.following is not None:
                block.following.previous = block
        block.size += other.size
        (pool.free if other.is_mapped else pool.unmapped).discard(other)

    def _round_size(self, size: int) -> int:
        if size < 512:
            return 512
        divisions = self.conf.roundup_power2_divisions
        if divisions > 1 and size > 512 * divisions:
            floor = 1
            while floor * 2 <= size:
                floor *= 2
            if floor == size:
                return size
            part = floor // divisions
            return (size + part - 1) // part * part
        return (size + 511) // 512 * 512

    @staticmethod
    def _allocation_size(size: int) -> int:
        if size <= MIB:
            return 2 * MIB
        if size < 10 * MIB:
            return 20 * MIB
        return (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)

    def _pool(self, stream: int, *, is_small: bool) -> BlockPool:
        key = stream, is_small
        if key not in self.pools:
            self.pools[key] = BlockPool(stream, is_small=is_small)
        return self.pools[key]

    def _get_free_block(self, pool: BlockPool, size: int) -> Block | None:
        fitting = sorted((b for b in pool.free if b.size >= size), key=lambda b: (b.size, b.address))
        if not fitting:
            return None
        block = fitting[0]
        if self.conf.expandable_segments:
            for candidate in fitting[1:]:
                if not block.is_split or _expandable_size(candidate) >= _expandable_size(block):
                    break
                block = candidate
        limit = self.conf.max_split_size
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + 20 * MIB:
                return None
        pool.free.discard(block)
        return block

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.is_small or self.conf.expandable_segments:
            return rest >= 512
        return rest > MIB and (self.conf.max_split_size is None or size < self.conf.max_split_size)

    def _alloc_block(self, pool: BlockPool, size: int, frames: Frames) -> Block | None:
        if self.conf.expandable_segments:
            return self._expandable_block(pool, size, frames)
        segment = self._allocation_size(size)
        address = self.device.take(segment)
        if address is None:
            return None
        self.reserved += segment
        block = Block(address, segment, pool)
        pool.heads.append(block)
        self._record("segment_alloc", address, segment, pool.stream, frames)
        return block

    def _release_available_cached_blocks(self, pool: BlockPool, size: int) -> bool:
        limit = self.conf.max_split_size
        if limit is None:
            return False
        wanted = max(size, limit)
        blocks = sorted(pool.free, key=lambda b: (b.size, b.address))
        enough = [b for b in blocks if b.size >= wanted]
        if enough:
            self._release(enough[0])
            return True
        released = 0
        for block in reversed(blocks):
            if released >= wanted or block.size < limit:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _release_cached_blocks(self) -> bool:
        for _, block in self.pending:
            self._free_block(block)
        self.pending = []
        for _, pool in sorted(self.pools.items(), key=lambda item: item[0][1]):
            for block in sorted(pool.free, key=lambda b: (b.size, b.address)):
                if block.head is not None:
                    self._unmap(block)
                elif not block.is_split:
                    self._release(block)
        return True

    def _release(self, block: Block) -> None:
        block.pool.free.discard(block)
        block.pool.heads.remove(block)
        self.device.give_back(block.address, block.size)
        self.reserved -= block.size
        self._record("segment_free", block.address, block.size, block.pool.stream, [])

    def _expandable_block(self, pool: BlockPool, size: int, frames: Frames) -> Block | None:
        candidate = self._find_expandable(pool, size)
        if not candidate.is_mapped and not self._map(candidate, min(candidate.size, size), frames):
            return None
        while candidate.size < size:
            after = candidate.following
            if after is None or not self._map(after, min(size - candidate.size, after.size), frames):
                return None
            candidate = after
        pool.free.discard(candidate)
        return candidate

    def _find_expandable(self, pool: BlockPool, size: int) -> Block:
        for block in sorted(pool.unmapped, key=lambda b: b.address):
            first = block.previous if block.previous is not None and block.previous.is_free else block
            room, piece = 0, first  # type: int, Block | None
            while piece is not None and piece.is_free and room < size:
                room += piece.size
                piece = piece.following
            if room >= size:
                return first
        segment = ExpandableSegment(self._ranges, 2 * MIB if pool.is_small else 20 * MIB)
        room = -(-max(self.device.total * 9 // 8, 2 * size) // (20 * MIB)) * 20 * MIB
        self._ranges += 1 << 42
        block = Block(segment.start, room, pool, is_mapped=False)
        block.head = segment
        pool.heads.append(block)
        pool.unmapped.add(block)
        return block

    def _map(self, block: Block, size: int, frames: Frames) -> bool:
        segment = block.head
        if segment is None:
            return False
        mapped = min((size + segment.piece - 1) // segment.piece * segment.piece, block.size)
        if mapped > self.device.free:
            return False
        self.device.ours += mapped
        self.reserved += mapped
        pool = block.pool
        pool.unmapped.discard(block)
        self._record("segment_map", block.address, mapped, pool.stream, frames)
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, pool, is_mapped=False)
            rest.head, rest.previous, rest.following = segment, block, block.following
            if rest.following is not None:
                rest.following.previous = rest
            block.following, block.size = rest, mapped
            pool.unmapped.add(rest)
        block.is_mapped = True
        self._try_merge(block, block.previous)
        self._try_merge(block, block.following)
        pool.free.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        segment = block.head
        if segment is None:
            return
        first = segment.start + (block.address - segment.start + segment.piece - 1) // segment.piece * segment.piece
        last = segment.start + (block.address + block.size - segment.start) // segment.piece * segment.piece
        if last <= first:
            return
        pool = block.pool
        pool.free.discard(block)
        if first > block.address:
            before = Block(block.address, first - block.address, pool)
            before.head, before.previous, before.following = segment, block.previous, block
            if before.previous is not None:
                before.previous.following = before
            elif block in pool.heads:
                pool.heads[pool.heads.index(block)] = before
            block.previous = before
            pool.free.add(before)
        if last < block.address + block.size:
            after = Block(last, block.address + block.size - last, pool)
            after.head, after.previous, after.following = segment, block, block.following
            if after.following is not None:
                after.following.previous = after
            block.following = after
            pool.free.add(after)
        block.address, block.size, block.is_mapped = first, last - first, False
        self.device.ours -= block.size
        self.reserved -= block.size
        self._record("segment_unmap", block.address, block.size, pool.stream, [])
        self._try_merge(block, block.previous)
        self._try_merge(block, block.following)
        pool.unmapped.add(block)

    def _record(self, action: str, address: int, size: int, stream: int, frames: Frames) -> None:
        event: dict[str, Any] = {"action": action, "addr": address, "size": size, "stream": stream, "frames": frames}
        if action == "oom":
            event["device_free"] = event.pop("addr")
        if self.with_time:
            event |= {"time_us": self.clock_us, "compile_context": "N/A", "user_metadata": ""}
        self.events.append(event)

    def segments(self) -> list[dict[str, Any]]:
        """Segments and blocks as today's snapshot has them; a mapped part of an expandable segment is a segment."""
        found = []
        for pool in self.pools.values():
            for head in pool.heads:
                run: list[Block] = []
                block: Block | None = head
                while block is not None:
                    if block.is_mapped:
                        run.append(block)
                    if run and (not block.is_mapped or block.following is None):
                        found.append(_segment(run, pool))
                        run = []
                    block = block.following
        return sorted(found, key=lambda segment: segment["address"])


def _expandable_size(block: Block) -> int:
    after = block.following
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _state(block: Block) -> str:
    if block.is_allocated:
        return "active_allocated"
    return "active_awaiting_free" if block.is_pending else "inactive"


def _segment(run: list[Block], pool: BlockPool) -> dict[str, Any]:
    blocks = [
        {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested,
            "state": _state(block),
            "frames": block.frames,
        }
        for block in run
    ]
    active = [block for block in blocks if block["state"] != "inactive"]
    return {
        "device": 0,
        "address": run[0].address,
        "total_size": sum(block.size for block in run),
        "allocated_size": sum(block["size"] for block in active if block["state"] == "active_allocated"),
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in active),
        "stream": pool.stream,
        "segment_type": "small" if pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": run[0].head is not None,
        "frames": [],
        "blocks": blocks,
    }
