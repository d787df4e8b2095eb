from __future__ import annotations

import random

import pytest

from stepscope.record.stacks.py_spy_output import StackSpan, from_events, from_folded, n_samples, with_counts

PROCESS = ('process 7:"python a.py"', "", 0)
MAIN = ("thread (7): MainThread", "", 0)


def event(ph: str, ts: int, frame: tuple[str, str, int], *, pid: int = 7, tid: int = 1) -> dict:
    name, file, line = frame
    return {"ph": ph, "ts": ts, "pid": pid, "tid": tid, "name": name, "args": {"filename": file, "line": line}}


def recorded(looks: list[tuple[int, int, int, list]], end: int) -> list[dict]:
    """Events as py-spy writes them: looks are time, number of the thread, process, stack (outermost first)."""
    before: dict[int, list] = {}
    last: dict[int, int] = {}
    events = []
    for ts, tid, pid, stack in looks:
        old = before.get(tid, [])
        same = next((i for i, (a, b) in enumerate(zip(old, stack, strict=False)) if a != b), min(len(old), len(stack)))
        events += [event("E", ts, frame, pid=pid, tid=tid) for frame in reversed(old[same:])]
        events += [event("B", ts, frame, pid=pid, tid=tid) for frame in stack[same:]]
        before[tid], last[tid] = stack, pid
    for tid, stack in before.items():
        events += [event("E", end, frame, pid=last[tid], tid=tid) for frame in reversed(stack)]
    return events


def test_a_stack_holds_until_another_is_seen():
    train, load, step = ("train", "/a.py", 3), ("load", "/a.py", 9), ("step", "/a.py", 5)
    looks = [(10, 1, 7, [PROCESS, MAIN, train, load]), (20, 1, 7, [PROCESS, MAIN, train, load]),
             (30, 1, 7, [PROCESS, MAIN, train, step]), (40, 1, 7, [PROCESS, MAIN, train])]  # fmt: skip
    found = from_events(recorded(looks, 55))
    assert [(seen.start_us, seen.end_us, seen.frames) for seen in found] == [
        (10, 30, (train, load)), (30, 40, (train, step)), (40, 55, (train,)),
    ]  # fmt: skip
    assert {(seen.pid, seen.tid, seen.thread, seen.processes) for seen in found} == {
        (7, 7, "MainThread", ((7, "python a.py"),))
    }


def test_processes_that_share_a_number_of_thread_are_told_apart():
    child = [PROCESS, ('process 8:"python; a"', "", 0), ("thread (8): MainThread", "", 0), ("work", "/a.py", 1)]
    parent = [PROCESS, MAIN, ("wait", "/a.py", 2)]
    looks = [(10, 1, 7, parent), (11, 1, 8, child), (20, 1, 7, parent), (20, 1, 8, child)]
    found = from_events(recorded(looks, 30))
    assert sorted((seen.pid, seen.start_us, seen.end_us, seen.frames[0][0]) for seen in found) == [
        (7, 10, 20, "wait"), (7, 20, 30, "wait"), (8, 11, 20, "work"), (8, 20, 30, "work"),
    ]  # fmt: skip
    assert {seen.processes for seen in found if seen.pid == 8} == {((7, "python a.py"), (8, "python; a"))}


@pytest.mark.parametrize("seed", range(20))
def test_every_look_of_one_process_is_found_again(seed):
    chance = random.Random(seed)
    frames = [(name, "/f.py", line) for name in "abc" for line in (1, 2)]
    looks = []
    for ts in sorted(chance.sample(range(1, 500), 40)):
        tid = chance.choice([1, 2])
        stack = chance.choices(frames, k=chance.randint(1, 5))
        looks.append((ts, tid, 7, [(f"thread ({tid})", "", 0), *stack]))
    at = {
        (seen.tid, ts): seen.frames
        for seen in from_events(recorded(looks, 500))
        for ts in range(seen.start_us, seen.end_us)
    }
    for tid in (1, 2):
        shown = ()
        mine = {ts: tuple(stack[1:]) for ts, t, _, stack in looks if t == tid}
        for ts in range(500):
            shown = mine.get(ts, shown)
            assert at.get((tid, ts), ()) == shown


def test_a_thread_outside_python_and_other_events_are_left_out():
    looks = [(10, 1, 7, [PROCESS, MAIN]), (20, 1, 7, [PROCESS, ("odd", "", 0)])]
    named = {"ph": "M", "ts": 0, "pid": 7, "tid": 1, "name": "thread_name", "args": {"name": "x"}}
    assert from_events([named, *recorded(looks, 30)]) == []
    assert from_events([]) == []


def test_ends_without_a_beginning_do_no_harm():
    assert from_events([event("E", 5, ("f", "/a.py", 1)), event("B", 6, MAIN)]) == []


def test_threads_that_python_numbers_otherwise_and_unnamed_ones():
    (seen,) = from_events(recorded([(1, 1, 7, [("thread (0x1F)", "", 0), ("f", "/a.py", 1)])], 2))
    assert (seen.tid, seen.thread, seen.processes) == (31, "", ())


def test_folded_stacks_have_a_count_each():
    text = """process 7:"sh -c 'a;b'";process 8:"python";thread (8): MainThread;<module> (/a b/x.py:3);f (/x.py:4) 21
thread (9);g (<string>) 2
thread (9): pool;h 1
no stack at all 3
"""
    assert from_folded(text, 100, 5) == [
        StackSpan(0, 100, 8, 8, "MainThread", (("<module>", "/a b/x.py", 3), ("f", "/x.py", 4)), 21),
        StackSpan(0, 100, 5, 9, "", (("g", "<string>", 0),), 2),
        StackSpan(0, 100, 5, 9, "pool", (("h", "", 0),), 1),
    ]


def test_looks_are_shared_out_by_time():
    seen = [StackSpan(0, 10, 1, 1, "", ()), StackSpan(10, 100, 1, 1, "", ()), StackSpan(0, 1, 1, 2, "", ())]
    assert with_counts(seen, 101) == [10, 90, 1]
    assert with_counts(seen, None) == [1, 1, 1]
    assert with_counts([], 5) == []


def test_what_py_spy_says_of_its_samples():
    assert n_samples(b"Wrote chrome trace to 'x'. Samples: 798 Errors: 2\n") == (798, 2)
    assert n_samples(bytearray(b"")) is None
