from __future__ import annotations

import sys
import time

import fake_frameworks
import numpy as np
import pytest

from stepscope.core.errors import FunctionFailed
from stepscope.timing._clock import Clock, clock_for, lap


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
