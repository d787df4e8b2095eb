from __future__ import annotations

from typing import Any

from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard._counters import buckets_of, trace_counters, utilization
from stepscope.exports.tensorboard._devices import find_devices
from stepscope.exports.tensorboard._dialect import Dialect
from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._forest import grow
from stepscope.exports.tensorboard._launches import find_launches
from stepscope.exports.tensorboard._names import uses_tensor_cores
from stepscope.exports.tensorboard._steps import find_steps

MLU = {"deviceProperties": [{"id": 0, "name": "MLU370"}]}


def with_blocks(ts: float, dur: float, blocks: float, **more: Any):
    event = kernel("k", ts, dur, int(ts), grid=[1, 1, 1], **more)
    event["args"]["blocks per SM"] = blocks
    return event


def counters(*recorded, **meta) -> list[tuple[str, int, float, dict[str, float]]]:
    events = read_events(read(list(recorded), **meta))
    launches = find_launches(events)
    forest = grow(events, launches)
    tc = events.where(uses_tensor_cores, launches.work)
    found = list(trace_counters(events, find_devices(events, launches, forest, find_steps(events, launches), tc)))
    assert all(list(event) == ["ph", "name", "pid", "ts", "args"] and event["ph"] == "C" for event in found)
    return [(event["name"], event["pid"], event["ts"], event["args"]) for event in found]


def buckets(*recorded) -> list[tuple[float, float]]:
    starts, ends = buckets_of(read_events(read(list(recorded))))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def test_each_device_has_its_utilization_by_bucket_after_a_scale_and_before_a_0() -> None:
    found = counters(op("aten::mm", 0, 4), kernel("a", 1, 2, 1, device=0), kernel("b", 2, 3, 2, device=1))
    name, key = "GPU 0 Utilization", "GPU Utilization"
    assert found[:8] == [
        (name, 0, 0, {key: 1}), (name, 0, 0, {key: 0}), (name, 0, 0, {key: 0.0}), (name, 0, 1, {key: 1.0}),
        (name, 0, 2, {key: 1.0}), (name, 0, 3, {key: 0.0}), (name, 0, 4, {key: 0.0}), (name, 0, 5, {key: 0}),
    ]  # fmt: skip
    assert [(ts, *args.values()) for name, pid, ts, args in found[8:] if (name, pid) == ("GPU 1 Utilization", 1)] == [
        (0, 1), (0, 0), (0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 0),
    ]  # fmt: skip


def test_the_efficiency_follows_with_a_start_and_an_end_for_each_range() -> None:
    found = counters(op("aten::mm", 0, 4), with_blocks(1, 2, 0.5), with_blocks(3, 1, 8.0))
    name, key = "GPU 0 Est. SM Efficiency", "Est. SM Efficiency"
    assert found[7:] == [
        (name, 0, 0, {key: 1}), (name, 0, 0, {key: 0}), (name, 0, 1, {key: 0.5}), (name, 0, 3, {key: 0}),
        (name, 0, 3, {key: 1.0}), (name, 0, 4, {key: 0}),
    ]  # fmt: skip


def test_mlu_has_no_efficiency() -> None:
    assert {name for name, *_ in counters(op("aten::mm", 0, 4), with_blocks(1, 2, 0.5), **MLU)} == {"MLU 0 Utilization"}


def test_without_kernels_there_are_no_counters() -> None:
    assert counters(op("aten::mm", 0, 4)) == []


def test_a_bucket_is_as_long_as_gives_a_hundred_at_most_and_the_last_may_be_longer() -> None:
    assert len(buckets(op("a", 0, 100))) == 100
    found = buckets(op("a", 1000, 234))
    assert len(found) == 23
    assert (found[0], found[-1]) == ((1000, 1010), (1220, 1234))


def test_buckets_cover_the_recording_as_the_profiler_names_it_the_last_of_them() -> None:
    recorded = [x("PyTorch Profiler (0)", ts, 3, "Trace") for ts in (0, 10)]
    assert buckets(op("aten::mm", 0, 400), *recorded) == [(10, 11), (11, 12), (12, 13)]
    assert len(buckets(op("aten::mm", 0, 4), x("another", 0, 2, "Trace"))) == 4


def test_less_than_a_microsecond_has_no_bucket_and_no_utilization() -> None:
    assert buckets(op("aten::mm", 0.0, 0.5)) == []
    names = [name for name, *_ in counters(op("aten::mm", 0.0, 0.5), with_blocks(0.125, 0.25, 0.5))]
    assert names == ["GPU 0 Est. SM Efficiency"] * 2


def test_without_events_there_is_no_bucket() -> None:
    assert buckets(x("unknown", 0, 5, "something")) == []


def test_a_given_utilization_becomes_counters_in_the_devices_words() -> None:
    found = list(utilization(2, [10, 20], [0.5, 0], Dialect("mlu")))
    assert [(e["name"], e["ts"], e["args"]) for e in found] == [
        ("MLU 2 Utilization", 10, {"MLU Utilization": 1}), ("MLU 2 Utilization", 10, {"MLU Utilization": 0}),
        ("MLU 2 Utilization", 10, {"MLU Utilization": 0.5}), ("MLU 2 Utilization", 20, {"MLU Utilization": 0}),
    ]  # fmt: skip
