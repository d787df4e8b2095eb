"""The peak, its holders, what is never freed, and free memory, of a small memory snapshot."""

from __future__ import annotations

import pickle

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import MIB, snapshot

import stepscope
from stepscope.analyses.memory.snapshots import about_stacks, memory_holders, memory_peak, memory_timeline
from stepscope.core.schema import MEMORY_BLOCKS, MEMORY_EVENTS, MEMORY_SEGMENTS


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(snapshot()))
    return stepscope.load(tmp_path / "a.pickle")


def test_the_peak_has_what_was_allocated_before_the_history(trace):
    row = trace.analyses.memory_peak().row(0, named=True)
    # Rounding counts as in use all the time: 100 bytes.
    assert row["peak_allocated_bytes"] == 22 * MIB
    assert (row["peak_event"], row["peak_reserved_bytes"], row["before_bytes"]) == (1, 42 * MIB, 10 * MIB + 100)
    assert (row["allocated_bytes"], row["device"]) == (14 * MIB, "cuda:0")


def test_holders_add_up_to_the_peak(trace):
    rows = trace.analyses.memory_holders()
    assert rows["bytes"].sum() == trace.analyses.memory_peak()["peak_allocated_bytes"][0]
    assert rows.select("holder", "category", "bytes", "n_blocks").rows() == [
        ("before recording", "weights", 10 * MIB, 1),
        ("recorded", "temporary", 8 * MIB, 1),
        ("recorded", "activations", 4 * MIB - 100, 1),
        ("before recording", "unknown", 100, None),
    ]
    assert rows["line"].drop_nulls().unique().sort().to_list() == [
        "__init__ (/home/me/model.py:2)",
        "forward (/home/me/model.py:7)",
    ]


def test_what_is_not_freed_is_listed_by_stack(trace):
    assert trace.analyses.memory_leaks().select("bytes", "n_blocks", "n_freed", "freed_bytes").rows() == [
        (4 * MIB - 100, 1, 1, 8 * MIB)
    ]


def test_free_memory_beside_blocks_in_use_is_unusable(trace):
    row = trace.analyses.memory_fragmentation().row(0, named=True)
    assert (row["cached_bytes"], row["unusable_bytes"], row["rounding_bytes"]) == (20 * MIB, 8 * MIB, 100)
    assert (row["largest_free_bytes"], row["n_segments"]) == (20 * MIB, 2)


events = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), max_size=30)


@pytest.mark.slow
@given(events, st.integers(0, 10))
def test_peak_and_holders_agree_with_a_plain_count(steps, n_lost):
    """Allocates at a free address and frees one in use, then forgets the first events."""
    used: dict[int, int] = {}
    history, levels = [], [0]
    for address, size in steps:
        if address in used:
            history.append(("free_completed", address, used.pop(address)))
        else:
            used[address] = size
            history.append(("alloc", address, size))
        levels.append(sum(used.values()))
    n_lost = min(n_lost, len(history))
    rows = [
        {"device_id": 0, "event": i, "action": a, "address": at, "bytes": n}
        for i, (a, at, n) in enumerate(history[n_lost:])
    ]
    blocks = [
        {"device_id": 0, "address": at, "bytes": n, "requested_bytes": n, "state": "active"} for at, n in used.items()
    ]
    tables = (
        MEMORY_EVENTS.conform(pl.DataFrame(rows)) if rows else MEMORY_EVENTS.empty(),
        MEMORY_SEGMENTS.conform(pl.DataFrame({"device_id": [0], "bytes": [1000], "is_expandable": [False]})),
        MEMORY_BLOCKS.conform(pl.DataFrame(blocks)) if blocks else MEMORY_BLOCKS.empty(),
    )
    peak = memory_peak(*tables)["peak_allocated_bytes"][0]
    assert peak == max(levels[n_lost:])
    holders = memory_holders(*tables)
    assert holders["bytes"].sum() == peak
    assert (holders["bytes"] > 0).all()
    assert memory_timeline(*tables)["allocated_bytes"].to_list() == levels[n_lost:]


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        (
            ["apply (torch.cpp)", "torch::autograd::generated::BmmBackward0::apply(int)", "at::_ops::bmm::call(int)"],
            "BmmBackward0",
        ),
        (["start", "at::_ops::bmm::call(int)", "at::_ops::empty::call(int)"], "aten::bmm"),
        (["torch::autograd::generated::DivBackward0::apply(int)", "at::detail::empty_cuda()"], "DivBackward0"),
        (["main (/x/train.py:3)", "at::_ops::add_Tensor::call(int)"], "main (/x/train.py:3)"),
        (["start", "c10::cuda::malloc()"], "start"),
        (
            [
                "main (/x/train.py:3)",
                "outer (/y/record/startup/_stepscope_torch.py:9)",
                "step (/z/torch/optim/adam.py:2)",
            ],
            "main (/x/train.py:3)",
        ),
    ],
)
def test_a_line_is_the_users_or_else_the_operator(frames, line):
    stacks = pl.DataFrame({"stack_id": [0], "frames": [frames]}, schema_overrides={"stack_id": pl.UInt32})
    assert about_stacks(stacks)["line"].to_list() == [line]
