from __future__ import annotations

import itertools
import math
import sys
import time

import fake_frameworks
import numpy as np
import pytest

from stepscope.core.errors import FunctionFailed, StepscopeError
from stepscope.timing import _measure
from stepscope.timing._measure import Budget, Clock, Job, Lap, call_overhead_ns, clock_for, inner_calls, lap, measure


@pytest.fixture
def clock(monkeypatch):
    """A host's clock that only goes on when a call spends its time."""
    now = itertools.count()
    state = {"ns": 0}
    monkeypatch.setattr(_measure.time, "perf_counter_ns", lambda: state["ns"])

    def job(ns, log=None, name="f"):
        def call():
            state["ns"] += ns(next(now)) if callable(ns) else ns
            if log is not None:
                log.append(name)

        return Job(call, Clock(), name)

    return job


def test_repeats_follow_the_warm_up_and_functions_take_turns(clock):
    log = []
    jobs = [clock(50_000, log, "a"), clock(80_000, log, "b")]
    timings = measure(jobs, Budget(warmup=2, repeats=4), [0.0, 1.0])
    assert log[:4] == ["a", "a", "b", "b"]
    assert log[-8:] == ["a", "b", "b", "a", "a", "b", "b", "a"]  # every other round backwards
    assert [list(t.times_ns) for t in timings] == [[50_000.0] * 4, [80_000.0] * 4]
    assert [(t.n_inner, t.overhead_ns) for t in timings] == [(1, 0.0), (1, 1.0)]


def test_times_stay_in_the_order_in_which_they_were_measured(clock):
    (timings,) = measure([clock(lambda i: 100_000 + i)], Budget(warmup=0, repeats=5), [0.0])
    assert list(np.diff(timings.times_ns)) == [1.0] * 4


def test_without_a_number_it_goes_on_until_the_time_is_up(clock):
    (timings,) = measure([clock(10_000_000)], Budget(warmup=0, seconds=0.2), [0.0])
    assert timings.times_ns.size == 20
    fast, slow = measure([clock(10_000_000), clock(30_000_000)], Budget(warmup=0), [0.0, 0.0])
    assert fast.times_ns.size == slow.times_ns.size == 50  # of 2 s for both


def test_a_slow_function_is_still_measured_seven_times(clock):
    (timings,) = measure([clock(5_000_000_000)], Budget(warmup=0, seconds=1.0), [0.0])
    assert timings.times_ns.size == 7


@pytest.mark.parametrize(
    ("ns", "inner"), [(10_000, 1), (9_999, 20), (1_000, 100), (300, 500), (80, 2000), (1, 100_000), (10**9, 1)]
)
def test_short_calls_are_repeated_in_an_inner_loop_of_a_round_number(clock, ns, inner):
    job = clock(ns)
    assert inner_calls(job) == inner
    (timings,) = measure([job], Budget(warmup=0, repeats=3), [0.0])
    assert timings.n_inner == inner
    assert list(timings.times_ns) == [float(ns)] * 3  # of one call


def test_one_disturbed_call_does_not_make_a_short_function_long(clock):
    assert inner_calls(clock(lambda i: 50_000 if i == 0 else 1_000)) > 1


def test_a_clock_that_stands_still_ends_the_search(clock):
    assert inner_calls(clock(0)) == _measure.MOST_INNER


def test_the_loop_ends_where_the_device_says_next_to_nothing_and_the_host_does_not(monkeypatch):
    laps = []

    def told(_clock, _call, n, _what):
        laps.append(n)
        return Lap(ns=1.0, wall_ns=50_000.0)

    monkeypatch.setattr(_measure, "lap", told)
    assert inner_calls(Job(int, Clock(), "f")) == 1000
    assert sum(laps) < 1200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 3, "seconds": 1.0}, "both repeats and seconds"),
        ({"repeats": 0}, "repeats is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"seconds": 0.0}, "seconds is 0"),
        ({"seconds": math.inf}, "seconds is inf"),
        ({"seconds": math.nan}, "seconds is nan"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(StepscopeError, match=message):
        Budget(**options)


def test_a_failure_in_the_middle_is_the_function_s():
    numbers = iter(range(3))
    with pytest.raises(FunctionFailed, match="f, case 1, raised StopIteration"):
        measure([Job(lambda: next(numbers), Clock(), "f, case 1,")], Budget(repeats=10), [0.0])


def test_the_overhead_is_that_of_calling_nothing_with_these_arguments():
    assert 5 < call_overhead_ns((), {}) < 1e5
    assert call_overhead_ns((1, 2), {"x": 3}) > 5


@pytest.fixture
def log():
    return []


@pytest.fixture
def fake_torch(monkeypatch, log):
    def put(**options):
        module = fake_frameworks.torch(log, **options)
        monkeypatch.setitem(sys.modules, "torch", module)
        return module

    return put


@pytest.fixture
def fake_paddle(monkeypatch, log):
    def put(**options):
        module = fake_frameworks.paddle(log, **options)
        monkeypatch.setitem(sys.modules, "paddle", module)
        return module

    return put


def tensor(module, device="cpu"):
    return module.Tensor(np.ones(2, np.float32), device)


def test_without_a_framework_the_host_s_clock_is_read():
    found = clock_for([np.ones(2), 3])
    assert found == Clock("wall clock", "cpu")
    spent = lap(found, lambda: time.sleep(0.002), 3, "f")
    assert 2e6 <= spent.ns == spent.wall_ns < 1e8


def test_a_framework_that_uses_no_device_is_not_waited_for(fake_torch, fake_paddle):
    torch = fake_torch()
    fake_paddle(device="cpu")
    assert clock_for([tensor(torch)]) == Clock()


def test_events_of_fake_torch_are_read_where_tensors_are_on_its_current_cuda_device(fake_torch, log):
    torch = fake_torch(used=("cuda",), current=1)
    found = clock_for({"x": [tensor(torch, "cuda:1"), tensor(torch)]})
    assert (found.name, found.device) == ("CUDA events of torch", "cuda:1")
    spent = lap(found, lambda: log.append("call"), 4, "f")
    assert spent.ns == 2e6 / 4
    waited = ["synchronize", ("cuda", 1)]
    assert log == [*waited, "record", *["call"] * 4, "record", *waited]


def test_work_on_another_device_than_the_current_one_is_waited_for(fake_torch, log):
    torch = fake_torch(used=("cuda",), current=0)
    found = clock_for([tensor(torch, "cuda:2"), tensor(torch, "cuda")])
    assert (found.name, found.device) == ("wall clock after torch.cuda.synchronize", "cuda:0")
    spent = lap(found, lambda: log.append("call"), 1, "f")
    waited = ["synchronize", ("cuda", 0), "synchronize", ("cuda", 2)]
    assert log == [*waited, "call", *waited]
    assert spent.ns == spent.wall_ns


def test_a_device_in_use_is_waited_for_though_no_tensor_is_seen(fake_torch):
    fake_torch(used=("cuda",))
    assert clock_for([1.5]).name == "wall clock after torch.cuda.synchronize"


@pytest.mark.parametrize(("kind", "waited"), [("xpu", ("xpu", 0)), ("mps", ("mps",))])
def test_other_devices_of_fake_torch_are_waited_for(fake_torch, log, kind, waited):
    torch = fake_torch(used=(kind,))
    found = clock_for([tensor(torch, kind)])
    assert found.name == f"wall clock after torch.{kind}.synchronize"
    lap(found, lambda: log.append("call"), 1, "f")
    assert log == ["synchronize", waited, "call", "synchronize", waited]


def test_events_of_fake_paddle_are_read_where_tensors_are_on_a_gpu(fake_paddle, log):
    paddle = fake_paddle()
    found = clock_for([tensor(paddle, "gpu:0")])
    assert (found.name, found.device) == ("CUDA events of paddle", "gpu:0")
    assert lap(found, lambda: log.append("call"), 1, "f").ns == 2e6
    assert log == ["synchronize", "record", "call", "record", "synchronize"]


@pytest.mark.parametrize(
    ("options", "device"), [({"timed": False}, "gpu:0"), ({"device": "xpu:0"}, "xpu:0"), ({}, "cpu")]
)
def test_without_events_fake_paddle_is_waited_for(fake_paddle, log, options, device):
    paddle = fake_paddle(**options)
    found = clock_for([tensor(paddle, device)])
    assert found.name == "wall clock after paddle.device.synchronize"
    lap(found, lambda: log.append("call"), 2, "f")
    assert log == ["synchronize", "call", "call", "synchronize"]


def test_with_both_all_devices_are_waited_for_and_the_tensors_own_events_count(fake_torch, fake_paddle, log):
    fake_torch(used=("cuda",))
    paddle = fake_paddle()
    found = clock_for([tensor(paddle, "gpu:0")])
    assert found.name == "CUDA events of paddle"
    found.wait()
    assert log == ["synchronize", ("cuda", 0), "synchronize"]


@pytest.mark.parametrize("waits", [(), (lambda: None,)])
def test_a_function_that_fails_is_named(waits):
    with pytest.raises(FunctionFailed, match="mine:f raised ZeroDivisionError"):
        lap(Clock(waits=waits), lambda: 1 / 0, 1, "mine:f")


def test_an_error_that_shows_only_when_the_device_is_waited_for_is_the_function_s():
    called = []

    def wait():
        if called:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    clock = Clock(waits=(wait,))
    with pytest.raises(FunctionFailed, match="illegal memory access"):
        lap(clock, lambda: called.append(1), 1, "f")
