from __future__ import annotations

import memory_snapshots as lab
import polars as pl
import pytest
from memory_snapshots import BLOCKS, EVENTS, SEGMENTS, tables

from stepscope.analyses.memory.allocator import MIB, Settings, replay
from stepscope.analyses.memory.replays import needed_with, recording


def frames(events, segments, blocks):
    return (
        pl.DataFrame([(0, *row, None, None) for row in events], schema=EVENTS, orient="row"),
        pl.DataFrame([(0, *row, None)[:7] for row in segments], schema=SEGMENTS, orient="row"),
        pl.DataFrame([(0, *row, None) for row in blocks], schema=BLOCKS, orient="row"),
    )


def test_the_state_before_the_history_is_that_at_the_end_with_all_events_undone():
    events = [
        ("free_completed", 0, 3 * MIB, 0),
        ("segment_alloc", 1 << 30, 20 * MIB, 0),
        ("alloc", 1 << 30, 2 * MIB, 0),
    ]
    segments = [(0, 20 * MIB, 0, "large", False), (1 << 30, 20 * MIB, 0, "large", False)]
    blocks = [(10 * MIB, 10 * MIB, 10 * MIB, "active_allocated"), (1 << 30, 2 * MIB, 2 * MIB, "active_allocated")]
    history = recording(*frames(events, segments, blocks), None)
    assert history.start.segments == [(0, 20 * MIB, 1)]
    assert history.start.blocks == [(0, 3 * MIB), (10 * MIB, 10 * MIB)]
    assert history.reserved == [(-1, 20 * MIB), (1, 40 * MIB)]


@pytest.mark.parametrize(("first", "expected"), [(4, 4), (3.5, 3.5), (5, 3)])
def test_what_was_not_split_off_a_block_is_seen_where_the_next_request_begins(first, expected):
    events = [("alloc", int(first * MIB), 2 * MIB, 0), ("free_completed", 0, 3 * MIB, 0)]
    history = recording(*frames(events, [(0, 20 * MIB, 0, "large", False)], []), None)
    assert history.start.blocks == [(0, int(expected * MIB))]


def test_mapped_parts_of_a_range_are_undone_in_any_pieces():
    events = [("segment_unmap", 20 * MIB, 20 * MIB, 0), ("segment_map", 40 * MIB, 40 * MIB, 0)]
    history = recording(
        *frames(events, [(0, 20 * MIB, 0, "large", True), (40 * MIB, 40 * MIB, 0, "large", True)], []), None
    )
    assert history.start.segments == [(0, 40 * MIB, 1)]


def test_rounding_is_seen_in_files_without_settings():
    segments = [(0, 40 * MIB, 0, "large", True)]
    padded = [(n * MIB, 512 * (n + 1), 512 * n, "active_allocated") for n in range(1, 9)]
    assert recording(*frames([], segments, padded), None).settings.padding_bytes == 32
    divided = [(4 * n * MIB, 2 * MIB + MIB // 2, 2 * MIB + 1000 * n, "active_allocated") for n in range(1, 9)]
    assert recording(*frames([], segments, divided), None).settings.divisions[1] == 4
    assert recording(*frames([], segments, divided), Settings()).settings.divisions == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", lab.KINDS)
def test_the_recorded_reserved_memory_is_reproduced(kind):
    case = lab.make(kind, 1)
    settings = Settings(case.conf.max_split_size) if not case.conf.roundup_power2_divisions else None
    history = recording(*tables(case.snapshot)[:3], settings)
    done = replay(history.events, history.settings, history.start, follow=True)
    recorded = max(level for _, level in history.reserved)
    assert max(level for _, level in done.reserved) == pytest.approx(recorded, rel=1e-3)


@pytest.mark.slow
def test_a_change_saves_what_it_saves_in_the_job():
    case = lab.make("fragmentation", 0)
    events, segments, blocks, _ = tables(case.snapshot)
    failed = events.height - 1 - events["action"].reverse().index_of("oom")
    savings = {
        s.change: s.needed_bytes
        for s in needed_with(recording(events, segments, blocks, None), failed, case.available, case.available)
    }
    assert savings[""] == lab.needed(case) > case.available
    expandable = lab.needed(case, lab.Conf(expandable_segments=True))
    saved = savings[""] - savings["expandable_segments:True"]
    assert saved == pytest.approx(lab.needed(case) - expandable, rel=0.05)
    assert expandable < case.available
