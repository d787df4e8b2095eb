from __future__ import annotations

import random

import caching_allocator as lab
import pytest

from stepscope.analyses.memory.allocator import (
    ALLOC,
    EMPTY_CACHE,
    FREE,
    GIVEN_BACK,
    MIB,
    SMALL,
    TAKEN,
    Settings,
    Start,
    replay,
)

LARGE = 1


def reserved_after(events, settings=Settings(), start=Start()):  # noqa: B008  frozen values
    return replay(events, settings, start).allocator.reserved


@pytest.mark.parametrize(
    ("size", "segment"),
    [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 1, 12), (63 * MIB, 64)],
)
def test_a_segment_has_2_or_20_mib_or_the_request_rounded_up(size, segment):
    assert reserved_after([(ALLOC, 0, size, int(size > SMALL))]) == segment * MIB


def test_sizes_are_rounded_as_the_settings_say():
    assert [Settings().rounded(size) for size in (1, 512, 513)] == [512, 512, 1024]
    divided = Settings(divisions={1024: 4})
    assert [divided.rounded(size * MIB) for size in (1024, 1025, 1281)] == [1024 * MIB, 1280 * MIB, 1536 * MIB]
    assert Settings(padding_bytes=32).rounded(1 << 20) == (1 << 20) + 512


def test_the_smallest_block_that_fits_is_taken_and_the_rest_of_it_is_free():
    events = [(ALLOC, 1, 30 * MIB, LARGE), (ALLOC, 2, 12 * MIB, LARGE), (FREE, 1, 0, 0), (FREE, 2, 0, 0)]
    done = replay([*events, (ALLOC, 3, 11 * MIB, LARGE)], Settings())
    assert [size for _, size in done.allocator.idle()] == [30 * MIB]  # 1 MiB is not split off
    done = replay([*events, (ALLOC, 3, 10 * MIB, LARGE)], Settings())
    assert [size for _, size in done.allocator.idle()] == [30 * MIB, 2 * MIB]
    assert done.allocator.reserved == 42 * MIB


def test_neighbours_are_merged_and_whole_segments_given_back():
    events = [(ALLOC, n, 5 * MIB, LARGE) for n in range(4)] + [(FREE, n, 0, 0) for n in (0, 2, 1)]
    done = replay(events, Settings())
    assert [size for _, size in done.allocator.idle()] == [15 * MIB]
    assert reserved_after([*events, (EMPTY_CACHE, 0, 0, 0)]) == 20 * MIB
    assert reserved_after([*events, (FREE, 3, 0, 0), (EMPTY_CACHE, 0, 0, 0)]) == 0


def test_streams_and_pools_share_nothing():
    events = [(ALLOC, 1, 12 * MIB, LARGE), (FREE, 1, 0, 0), (ALLOC, 2, 12 * MIB, 3), (ALLOC, 3, 100, 0)]
    assert reserved_after(events) == 26 * MIB


def test_a_driver_without_memory_gets_idle_segments_back_before_a_request_fails():
    settings = Settings(limit_bytes=40 * MIB)
    events = [(ALLOC, 1, 20 * MIB, LARGE), (FREE, 1, 0, 0), (ALLOC, 2, 30 * MIB, LARGE)]
    done = replay(events, settings)
    assert (done.allocator.reserved, done.failed) == (30 * MIB, [])
    assert replay([*events, (ALLOC, 3, 20 * MIB, LARGE)], settings).failed == [3]


def test_blocks_above_the_split_size_are_not_split():
    events = [(ALLOC, 1, 100 * MIB, LARGE), (FREE, 1, 0, 0), (ALLOC, 2, 30 * MIB, LARGE)]
    assert reserved_after(events) == 100 * MIB
    assert reserved_after(events, Settings(max_split_bytes=64 * MIB)) == 130 * MIB


def test_expandable_segments_grow_by_20_mib_and_shrink_piece_by_piece():
    settings = Settings(expandable=True)
    events = [(ALLOC, 1, 30 * MIB, LARGE), (ALLOC, 2, 30 * MIB, LARGE), (FREE, 1, 0, 0)]
    assert reserved_after(events, settings) == 60 * MIB
    assert reserved_after([*events, (ALLOC, 3, 45 * MIB, LARGE)], settings) == 120 * MIB
    assert reserved_after([*events, (EMPTY_CACHE, 0, 0, 0)], settings) == 40 * MIB


def test_what_a_request_needs_is_what_stays_when_idle_segments_are_given_back():
    events = [(ALLOC, 1, 50 * MIB, LARGE), (ALLOC, 2, 30 * MIB, LARGE), (FREE, 1, 0, 0)]
    done = replay(events, Settings(limit_bytes=80 * MIB))
    assert done.allocator.needed_for(60 * MIB, LARGE) == 90 * MIB


def test_a_start_with_other_settings_is_allocated_anew():
    start = Start([(1000 * MIB, 100 * MIB, LARGE)], [(1000 * MIB, 5 * MIB), (1050 * MIB, 5 * MIB)])
    assert reserved_after([], start=start) == 100 * MIB
    assert reserved_after([], Settings(expandable=True), start) == 20 * MIB


def test_an_impossible_start_is_taken_as_far_as_it_goes():
    segments = [(0, 20 * MIB, LARGE), (10 * MIB, 20 * MIB, LARGE), (100 * MIB, -5, LARGE)]
    blocks = [(0, 2 * MIB), (MIB, 2 * MIB), (19 * MIB, 9 * MIB), (1 << 60, 4), (3 * MIB, -7)]
    done = replay([(FREE, 0, 0, 0), (FREE, 0, 0, 0), (FREE, 5, 0, 0)], Settings(), Start(segments, blocks))
    assert (done.allocator.reserved, done.allocator.allocated) == (20 * MIB, 0)


def random_job(seed: int):
    """A random job with the lab's allocator; its history as events of the model."""
    rng = random.Random(seed)
    is_expandable = rng.random() < 0.4
    split = None if is_expandable or rng.random() < 0.5 else rng.choice([20, 64, 128]) * MIB
    parts = rng.choice([0, 0, 0, 4, 8])
    limit = rng.choice([200, 400, 1000]) * MIB
    allocator = lab.CachingAllocator(lab.Device(limit), lab.Conf(split, is_expandable, parts))
    live, emptied = [], []
    for _ in range(400):
        choice = rng.random()
        if choice < 0.55 or not live:
            size = rng.choice(
                [rng.uniform(1, 4e3), rng.uniform(4e3, 2e6), rng.uniform(1e6, 2e7), rng.uniform(1e7, 8e7)]
            )
            try:
                live.append(allocator.malloc(int(size), rng.choice([0, 0, 0, 7])))
            except lab.OutOfMemory:
                for _ in range(min(len(live), 20)):
                    allocator.free(live.pop(rng.randrange(len(live))))
        elif choice < 0.98:
            allocator.free(live.pop(rng.randrange(len(live))))
        else:
            emptied.append(len(allocator.events))
            allocator.empty_cache()
    divisions = {1 << n: parts for n in range(16)} if parts else {}
    settings = Settings(split, is_expandable, divisions, limit_bytes=limit)
    kinds = {"alloc": ALLOC, "oom": ALLOC, "free_completed": FREE}
    events = []
    for number, event in enumerate(allocator.events):
        if number in emptied:
            events.append((EMPTY_CACHE, 0, 0, 0))
        kind = kinds.get(event["action"], TAKEN if event["action"] in ("segment_alloc", "segment_map") else 0)
        pool = 2 * (event["stream"] > 0) + (settings.rounded(event["size"]) > SMALL)
        events.append((kind, event.get("addr", -number), event["size"], pool))
    return allocator, events, settings


def test_it_agrees_with_an_allocator_that_was_written_apart_from_it():
    for seed in range(40):
        allocator, events, settings = random_job(seed)
        done = replay(events, settings, follow=True)
        assert done.allocator.reserved == allocator.reserved, seed
        assert done.allocator.allocated == sum(block.size for block in allocator.blocks.values()), seed
        n_failures = sum(event["action"] == "oom" for event in allocator.events)
        assert len(done.failed) == n_failures, seed


def test_recorded_segments_are_given_back_when_they_were():
    events = [(TAKEN, 7 * MIB, 20 * MIB, 0), (ALLOC, 7 * MIB, 3 * MIB, LARGE), (FREE, 7 * MIB, 0, 0)]
    done = replay([*events, (GIVEN_BACK, 7 * MIB, 20 * MIB, 0)], Settings(), follow=True)
    assert [level for _, level in done.reserved] == [0, 20 * MIB, 0]
