"""What nobody waits for is dropped, what takes long makes room, and what never ends is given up."""

from __future__ import annotations

import threading
import time

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.web import workers as _workers
from stepscope.web.workers import Stopped, Workers, halt_if_stopped, on_stop

PATIENCE_S = 20


@pytest.fixture
def gate():
    """Holds up work until it is opened; opened at the end at the latest."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def workers(gate):
    made = Workers()
    yield made
    gate.set()
    made.close()


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_answers_and_errors_are_handed_on(workers):
    assert workers.submit(lambda: 7).answer.result(PATIENCE_S) == 7

    def fail():
        raise StepscopeError("no")

    assert isinstance(workers.submit(fail).answer.exception(PATIENCE_S), StepscopeError)
    until(lambda: workers.pending() == 0)


def test_two_are_worked_on_at_a_time_in_order(workers, gate):
    begun = []

    def work(number):
        begun.append(number)
        gate.wait()

    tasks = [workers.submit(lambda n=n: work(n)) for n in range(4)]
    until(lambda: len(begun) == 2)
    time.sleep(0.05)
    assert sorted(begun) == [0, 1]
    assert workers.pending() == 4
    gate.set()
    for task in tasks:
        task.answer.result(PATIENCE_S)
    assert sorted(begun) == [0, 1, 2, 3]


def test_what_waits_and_is_wanted_by_nobody_is_never_begun(workers, gate):
    held = [workers.submit(gate.wait, wanted_s=1e6) for _ in range(2)]
    begun = []
    left = workers.submit(lambda: begun.append("left"))
    kept = workers.submit(lambda: begun.append("kept"))
    ahead = workers.submit(lambda: begun.append("ahead"), wanted_s=1e6)
    for task in (left, kept):
        task.wanted_at -= 60  # nobody has asked for it since
    workers.want(kept)
    workers.tend()
    assert left.answer.cancelled()
    gate.set()
    for task in (*held, kept, ahead):
        task.answer.result(PATIENCE_S)
    assert begun == ["kept", "ahead"]


def test_what_runs_and_is_wanted_by_nobody_ends_at_its_next_look(workers, monkeypatch):
    seen, stopped = [], []

    def work():
        on_stop(lambda: stopped.append(1))
        for path in range(1_000_000):
            halt_if_stopped()
            seen.append(path)
            time.sleep(0.001)

    monkeypatch.setattr(_workers, "_UNWANTED_S", 0.05)
    task = workers.submit(work)
    until(lambda: len(seen) > 3)
    time.sleep(0.1)
    workers.tend()
    assert task.answer.cancelled()
    assert stopped == [1]
    until(lambda: workers.pending() == 0)
    assert len(seen) < 10_000
    workers.tend()
    assert stopped == [1]


def test_what_was_stopped_before_it_says_how_is_stopped_then(workers, gate, monkeypatch):
    stopped, began = [], threading.Event()

    def work():
        began.set()
        gate.wait()
        on_stop(lambda: stopped.append(1))

    task = workers.submit(work)
    assert began.wait(PATIENCE_S)
    monkeypatch.setattr(_workers, "_UNWANTED_S", 0.0)
    until(lambda: workers.tend() or task.stopped)
    gate.set()
    until(lambda: stopped == [1])


def test_what_takes_long_makes_room_for_others_up_to_a_bound(workers, gate, monkeypatch):
    begun = []

    def work(number):
        begun.append(number)
        gate.wait()

    tasks = [workers.submit(lambda n=n: work(n), wanted_s=1e6) for n in range(8)]
    until(lambda: len(begun) == 2)
    monkeypatch.setattr(_workers, "_LONG_S", 0.0)
    until(lambda: workers.tend() or len(begun) == _workers._MOST_THREADS)
    time.sleep(0.05)
    workers.tend()
    assert len(begun) == _workers._MOST_THREADS < 8
    gate.set()
    for task in tasks:
        task.answer.result(PATIENCE_S)


def test_what_takes_too_long_is_given_up_and_who_waits_is_told(workers, gate, monkeypatch):
    monkeypatch.setattr(_workers, "_GIVEN_UP_S", 0.05)
    task = workers.submit(gate.wait, wanted_s=1e6)
    time.sleep(0.1)
    workers.tend()
    error = task.answer.exception(0)
    assert isinstance(error, StepscopeError)
    assert "no answer within" in error.message
    assert task.stopped
    gate.set()
    until(lambda: workers.pending() == 0)
    assert task.answer.exception(0) is error


def test_work_outside_of_workers_is_never_stopped():
    halt_if_stopped()
    on_stop(pytest.fail)


def test_work_that_ends_as_stopped_has_no_answer(workers):
    def work():
        raise Stopped

    until(workers.submit(work).answer.cancelled)


def test_closed_workers_begin_nothing_more_and_stop_what_they_can(gate):
    workers = Workers()
    stopped = threading.Event()

    def work():
        on_stop(stopped.set)
        gate.wait()

    running = [workers.submit(work, wanted_s=1e6) for _ in range(2)]
    waiting = workers.submit(pytest.fail)
    until(lambda: all(task.stops for task in running))
    workers.close()
    assert waiting.answer.cancelled()
    assert stopped.is_set()
    gate.set()
    until(lambda: workers.pending() == 0)
    late = workers.submit(pytest.fail)
    time.sleep(0.02)
    assert not late.answer.done()
