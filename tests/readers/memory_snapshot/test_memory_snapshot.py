"""Memory snapshots: their tables, and that a hostile or broken file is one error."""

from __future__ import annotations

import gzip
import os
import pickle
import random

import pytest
from snapshots import MIB, snapshot

import stepscope
from stepscope.core.errors import StepscopeError


def loaded(tmp_path, document, name="a.pickle"):
    data = document if isinstance(document, bytes) else pickle.dumps(document)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return stepscope.load(tmp_path / name)


@pytest.mark.parametrize("name", ["a.pickle", "a.pkl", "a.pickle.gz"])
def test_events_segments_blocks_and_stacks(tmp_path, name):
    trace = loaded(tmp_path, snapshot(), name)
    assert trace.meta.format == "memory-snapshot"
    assert trace.memory_events["action"].to_list() == ["alloc", "alloc", "free_requested", "free_completed"]
    assert trace.memory_events["stack_id"].n_unique() == 1
    assert trace.memory_segments["bytes"].to_list() == [22 * MIB, 20 * MIB]
    assert trace.memory_blocks["segment_address"].to_list() == [64 * MIB] * 3 + [128 * MIB]
    assert ["<module> (/home/me/train.py:3)", "forward (/home/me/model.py:7)"] in trace.stacks["frames"].to_list()
    assert trace.devices.select("type", "index").row(0) == ("cuda", 0)


def test_files_of_2023_have_their_stacks_in_the_history_of_blocks(tmp_path):
    block = {"size": MIB, "state": "active_allocated", "history": [{"real_size": 1000, "frames": []}]}
    old = {"address": MIB, "total_size": 2 * MIB, "stream": 0, "segment_type": "large", "blocks": [block, block]}
    trace = loaded(tmp_path, {"segments": [old], "device_traces": [[{"action": "alloc", "address": 5, "size": 1}]]})
    assert trace.memory_blocks.select("address", "requested_bytes").rows() == [(MIB, 1000), (2 * MIB, 1000)]
    assert trace.memory_events.select("address", "ts_ns").row(0) == (5, None)


def test_host_memory_is_a_device_of_its_own(tmp_path):
    document = snapshot() | {"host_segments": [], "host_traces": [{"action": "alloc", "addr": 1, "size": 2}]}
    trace = loaded(tmp_path, document)
    assert trace.devices["type"].to_list() == ["cuda", "cpu"]
    assert trace.memory_events.filter(device_id=1)["bytes"].to_list() == [2]


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


def _memo_bomb():
    """Lists of lists, of which each has the one before ten times: a billion values in a few hundred bytes."""
    value = ["x"]
    for _ in range(9):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    "document",
    [
        {"segments": [{"total_size": Evil()}]},
        b"\x80\x04" + b"]" * 10_000 + b"\x8c\x08segments.total_size.",
        b"\x80\x04" + b"(" * 10_000 + b"\x8c\x08segmentstotal_size.",
        pickle.dumps({"segments": "total_size"}),
    ],
    ids=["global", "deep", "marks", "no-list"],
)
def test_a_hostile_file_is_one_error_and_nothing_runs(tmp_path, document, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StepscopeError):
        loaded(tmp_path, document)
    assert not (tmp_path / "ran").exists()


def test_a_billion_values_by_reference_cost_nothing(tmp_path):
    document = snapshot() | {"external_annotations": _memo_bomb()}
    document["segments"][0]["frames"] = document["device_traces"][0][0]["frames"] = _memo_bomb()
    assert loaded(tmp_path, document).memory_events.height == 4


@pytest.mark.parametrize("at", range(2, len(pickle.dumps(snapshot())), 61))
def test_a_file_that_ends_early_is_an_error(tmp_path, at):
    with pytest.raises(StepscopeError):
        loaded(tmp_path, pickle.dumps(snapshot())[:at])


@pytest.mark.slow
def test_changed_bytes_give_a_trace_or_an_error_of_ours(tmp_path):
    data, rng = pickle.dumps(snapshot()), random.Random(0)
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(3):
            changed[rng.randrange(2, len(data))] = rng.randrange(256)
        try:
            trace = loaded(tmp_path, bytes(changed))
            stepscope.report(trace)
        except StepscopeError:
            pass


@pytest.mark.parametrize("document", [[], {"segments": [], "device_traces": [[], []]}])
def test_an_empty_snapshot_is_said_to_be_empty(tmp_path, document):
    with pytest.raises(StepscopeError, match="is empty"):
        loaded(tmp_path, document)


@pytest.mark.parametrize("document", [[1, 2], ["a"], [[[]]], {"a": 1}])
def test_other_data_is_no_snapshot(tmp_path, document):
    with pytest.raises(StepscopeError, match="no memory snapshot"):
        loaded(tmp_path, document)


def test_a_damaged_pickle_is_named_once(tmp_path):
    with pytest.raises(StepscopeError, match=r"a\.pickle at byte 2: pickle ends early$"):
        loaded(tmp_path, b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.")
