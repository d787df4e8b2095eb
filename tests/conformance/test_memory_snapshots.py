"""The model of PyTorch's allocator replays the recorded histories of real jobs."""

from __future__ import annotations

import io
import pickle

import polars as pl
import pytest
from memory_snapshots import tables

import stepscope
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


def plain_peak(snapshot, device):
    """The peak by conservation, counted event by event."""
    level = highest = 0
    for event in snapshot["device_traces"][device]:
        sign = {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
        level += sign * event["size"]
        highest = max(highest, level)
    blocks = (b for s in snapshot["segments"] if s["device"] == device for b in s["blocks"])
    return sum(b["size"] for b in blocks if b["state"] != "inactive") - level + highest


@pytest.mark.parametrize("name", FILES)
def test_peaks_are_those_of_conservation_and_holders_add_up_to_them(shared, name):
    path = shared / "memory-snapshots" / name
    snapshot = Restricted(io.BytesIO(path.read_bytes())).load()
    trace = stepscope.load(path)
    peaks = trace.analyses.memory_peak()
    assert peaks["peak_allocated_bytes"].to_list() == [plain_peak(snapshot, n) for n in trace.devices["index"]]
    holders = trace.analyses.memory_holders().group_by("device_id").agg(pl.col("bytes").sum()).sort("device_id")
    assert holders["bytes"].to_list() == peaks["peak_allocated_bytes"].to_list()
    if name == "medium512_train.pickle":
        assert peaks["peak_allocated_bytes"][0] >> 20 == 11_859
