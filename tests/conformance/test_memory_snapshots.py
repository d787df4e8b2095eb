"""The model of PyTorch's allocator replays the recorded histories of real jobs."""

from __future__ import annotations

import io
import pickle

import pytest
from memory_snapshots import tables

from stepscope.analyses.memory.allocator import ALLOC, replay
from stepscope.analyses.memory.replays import recording

FILES = (
    "cs336_small.pickle", "medium128_train.pickle", "medium512_infer.pickle", "medium512_train.pickle",
    "opt13b_2023.pickle", "opt_oom_2023.pickle", "snapshot_expandable.pkl",
)  # fmt: skip


class Restricted(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} in a file that needs nothing")


@pytest.mark.parametrize("name", FILES)
def test_the_model_takes_the_recorded_segments_at_the_recorded_addresses(shared, name):
    snapshot = Restricted(io.BytesIO((shared / "memory-snapshots" / name).read_bytes())).load()
    events, segments, blocks, _ = tables(snapshot)
    history = recording(events, segments, blocks, None)
    done = replay(history.events, history.settings, history.start, follow=True)
    # Segments are recorded before the request that needs them.
    assert [level for _, level in done.reserved] == [level for _, level in history.reserved]
    active = blocks.filter(blocks["state"] != "inactive")
    assert {address: size for address, (size, _) in done.allocator.used.items()} == dict(
        active.select("address", "bytes").iter_rows()
    )
    moved = [
        address
        for kind, address, _, _ in history.events
        if kind == ALLOC and done.where.get(address, address) != address
    ]
    assert not moved
