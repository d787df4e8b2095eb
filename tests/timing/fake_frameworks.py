"""Stand-ins for torch and paddle with a device, put into sys.modules: neither is installed where the tests run.

They know just what stepscope asks of them, and note what it asked. They show that the right calls are made in the right
order, not that the real libraries answer them.
"""

from __future__ import annotations

import types

import numpy as np


class Event:
    """Records one after the other, 2 ms apart."""

    def __init__(self, log, enable_timing=False):
        assert enable_timing
        self.log = log
        self.at = None

    def record(self):
        self.log.append("record")
        self.at = len(self.log)

    def elapsed_time(self, other):
        assert other.at > self.at
        assert "synchronize" in self.log[other.at :]  # or the real one would raise
        return 2.0


def tensor_class(module_name, dtype_prefix, device_of):
    """A class of tensors around a NumPy array, as far as it is looked into."""

    class Tensor:
        def __init__(self, array, device="cpu", dtype=None):
            self.array = np.asarray(array)
            self.shape = self.array.shape
            self.dtype = f"{dtype_prefix}.{dtype or self.array.dtype.name}"
            device_of(self, device)

        def detach(self):
            return self

        cpu = resolve_conj = resolve_neg = detach

        def numpy(self):
            if "bfloat16" in self.dtype:
                raise TypeError("unsupported ScalarType BFloat16")
            return self.array

        def float(self):
            return Tensor(self.array.astype(np.float32))

        def astype(self, dtype):
            return Tensor(self.array.astype(dtype))

        def to(self, device, dtype):
            return Tensor(self.array, device, dtype)

    Tensor.__module__ = module_name
    return Tensor


def _torch_device(tensor, device):
    kind, _, index = device.partition(":")
    tensor.device = types.SimpleNamespace(type=kind, index=int(index) if index else None)


def _paddle_place(tensor, device):
    tensor.place = types.SimpleNamespace(is_gpu_place=lambda: device.startswith("gpu"))


def torch(log, *, used=(), current=0):
    """A module like torch that has the devices `used`, already set up, and writes waits and events to `log`."""
    module = types.ModuleType("torch")
    for kind in ("cuda", "xpu", "mps"):
        device = types.SimpleNamespace(
            is_available=lambda kind=kind: kind in used,
            is_initialized=lambda kind=kind: kind in used,
            current_device=lambda: current,
            synchronize=lambda *at, kind=kind: log.append("synchronize") or log.append((kind, *at)),
            Event=lambda enable_timing=False: Event(log, enable_timing),
        )
        if kind == "mps":
            del device.is_initialized, device.current_device
        setattr(module, kind, device)
    module.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: "mps" in used))
    module.Tensor = tensor_class("torch", "torch", _torch_device)
    module.as_tensor = module.Tensor
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        setattr(module, dtype, dtype)
    return module


def paddle(log, *, device="gpu:0", timed=True):
    """A module like paddle whose current device is `device`; `timed`: its events can tell the time between them."""
    module = types.ModuleType("paddle")

    class PaddleEvent(Event):
        def __init__(self, enable_timing=False):
            super().__init__(log, enable_timing)

    class Untimed:
        pass

    module.device = types.SimpleNamespace(
        get_device=lambda: device,
        synchronize=lambda: log.append("synchronize"),
        Event=PaddleEvent if timed else Untimed,
    )
    module.Tensor = tensor_class("paddle", "paddle", _paddle_place)
    module.made = []

    def to_tensor(array, dtype=None, place=None):
        module.made.append((dtype, place))
        return module.Tensor(array, place or device, dtype)

    module.to_tensor = to_tensor
    return module
