from __future__ import annotations

import numpy as np
from chrome_traces import call, kernel, op, read
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._launches import find_launches


def owners(events):
    """Name of the call that each kernel belongs to, by the kernel's name."""
    found = find_launches(events)
    names = [events.names[i] for i in events.name[found.work]]
    calls = [events.names[events.name[found.calls[i]]] if i >= 0 else None for i in found.call_of]
    return dict(zip(names, calls, strict=True))


def test_work_belongs_to_the_call_of_its_correlation():
    events = read_events(read([op("a", 0, 9), call("one", 1, 1, 1), call("two", 3, 1, 2), kernel("k", 5, 1, 2)]))
    assert owners(events) == {"k": "two"}


def test_of_several_calls_the_latest_before_the_work_counts_else_the_first_after():
    events = read_events(read([
        kernel("early", 0, 1, 1), call("one", 2, 1, 1), kernel("mid", 4, 1, 1), call("two", 6, 1, 1),
        kernel("late", 8, 1, 1), kernel("alone", 9, 1, 5),
    ]))  # fmt: skip
    assert owners(events) == {"early": "one", "mid": "one", "late": "two", "alone": None}


def test_work_and_calls_without_an_id_belong_together():
    events = read_events(read([call("c", 0, 1, None), kernel("k", 2, 1, None)]))
    assert owners(events) == {"k": "c"}


def test_driver_calls_launch_nothing():
    driver = call("cuLaunchKernel", 0, 1, 1) | {"cat": "cuda_driver"}
    assert owners(read_events(read([driver, kernel("k", 2, 1, 1)]))) == {"k": None}


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=20))
def test_ties_equal_those_made_one_after_the_other(kinds):
    items = [
        call(f"c{i}", 2 * i, 1, corr) if is_call else kernel(f"k{i}", 2 * i, 1, corr)
        for i, (is_call, corr) in enumerate(kinds)
    ]
    expected: dict[str, str | None] = {}
    latest: dict[int, str] = {}
    waiting: dict[int, list[str]] = {}
    for i, (is_call, corr) in enumerate(kinds):
        if is_call:
            latest[corr] = f"c{i}"
            expected.update(dict.fromkeys(waiting.pop(corr, []), f"c{i}"))
        else:
            expected[f"k{i}"] = latest.get(corr)
            if corr not in latest:
                waiting.setdefault(corr, []).append(f"k{i}")
    assert owners(read_events(read([op("a", 100, 1), *items]))) == expected


def test_sums_and_pairs_are_by_call():
    events = read_events(read([call("a", 0, 1, 1), call("b", 2, 1, 2), kernel("k", 5, 3, 1), kernel("l", 9, 4, 1)]))
    found = find_launches(events)
    assert found.summed(events.dur[found.work]).tolist() == [7, 0]
    place, work = found.work_of(np.array([1, 0, 0]))
    assert (place.tolist(), work.tolist()) == ([1, 1, 2, 2], [0, 1, 0, 1])
