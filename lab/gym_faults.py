"""The faults of the gymnasium's jobs: how hard they are, what they do in a job and beside it, and what they take.

Faults that any job can have are done by `Trouble`; those that belong to a kind of job are in `gym_jobs.py`.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE = "none"
#: How hard each fault is, by severity: milliseconds, counts, MiB or factors, as its code says.
HARD: dict[str, tuple[float, float, float]] = {
    "core_hogs": (1, 2, 4),
    "gil_hog": (1, 2, 3),
    "fsync": (1, 4, 12),
    "garbage": (4_000, 15_000, 50_000),
    "memory_growth": (1, 4, 12),
    "checkpoint": (40, 120, 400),
    "slow_tail": (40, 100, 300),
    "growing": (300, 1_000, 3_000),
    "lock": (4, 10, 25),
    "bandwidth": (1, 2, 3),
    "logging": (60, 200, 600),
    "slow_data": (4, 12, 30),
    "slow_decode": (2, 5, 10),
    "tiny_syncs": (60, 200, 800),
    "float64": (1, 2, 4),
    "larger_batch": (1.25, 1.5, 2),
    "longer_input": (1.25, 1.5, 2),
    "many_threads": (4, 8, 16),
    "layout": (2, 5, 12),
    "recompile": (20, 8, 3),
    "slow_rank": (4, 10, 25),
    "no_cache": (1, 2, 3),
    "more_requests": (1.3, 1.7, 2.5),
    "large_messages": (1, 4, 12),
    "slow_optimizer": (1, 2, 3),
    "sleep": (3, 8, 25),
    "float32": (1, 3, 6),
    "gpu_neighbour": (1, 2, 3),
    "copies_back": (1, 3, 8),
    "empty_cache": (1, 2, 4),
    "no_graph": (1, 2, 3),
}

BUSY = "while True: pass"
#: A neighbour that reads and writes far more memory than caches hold.
STREAM = """
import numpy
a, b = numpy.zeros(8 << 20), numpy.ones(8 << 20)
while True:
    numpy.copyto(a, b)
    numpy.copyto(b, a)
"""
#: A neighbour on the device.
MULTIPLY = """
import torch
a = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""


class Trouble:
    """The faults of a job, mostly one: what they do from the start, and what after each step."""

    def __init__(self, faults: list[str], severity: int, seed: int) -> None:
        self.hard = {fault: HARD[fault][severity - 1] for fault in faults if fault != NONE}
        self.chance = random.Random(seed)
        self.n = 0
        self.kept: list[Any] = []
        self.lock = threading.Lock()
        self.block = os.urandom(1 << 20)
        self.file = tempfile.TemporaryFile(dir=".")  # noqa: SIM115  closed with the process
        self.text = tempfile.TemporaryFile("w+", dir=".")  # noqa: SIM115
        self.log = logging.getLogger("job")
        self.took_ns = dict.fromkeys(self.hard, 0)
        self.began_ns = self.collected_ns = 0
        if self.is_("garbage"):
            gc.callbacks.append(self._collects)

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self.began_ns = time.perf_counter_ns()
        else:
            self.collected_ns += time.perf_counter_ns() - self.began_ns

    @contextmanager
    def timed(self, fault: str) -> Iterator[None]:
        """What is done here is done for this fault. Collections are those of `garbage`, wherever they happen."""
        start, collected = time.perf_counter_ns(), self.collected_ns
        yield
        self.took_ns[fault] += time.perf_counter_ns() - start - (self.collected_ns - collected)

    def costs(self) -> dict[str, float]:
        """What each fault took of a step (ns), on average, of those whose work can be told from that of the job."""
        took = dict(self.took_ns)
        if self.is_("garbage"):
            took["garbage"] += self.collected_ns
        return {fault: ns / self.n for fault, ns in took.items() if ns and self.n}

    def of(self, fault: str, otherwise: float = 0.0) -> float:
        """How hard this fault is, if the job has it."""
        return self.hard.get(fault, otherwise)

    def is_(self, *faults: str) -> bool:
        """Whether the job has one of these faults."""
        return any(fault in self.hard for fault in faults)

    def begin(self) -> None:
        """What goes on in other threads of the job."""
        for _ in range(int(self.of("gil_hog"))):
            threading.Thread(target=count, daemon=True).start()
        if self.is_("lock"):
            threading.Thread(target=self._hold, daemon=True).start()
        if self.is_("logging"):
            self.log.addHandler(logging.StreamHandler(self.text))
            self.log.setLevel(logging.DEBUG)

    def _hold(self) -> None:
        """Holds the lock that each step needs, as a thread that saves or reports while it holds it."""
        while True:
            with self.lock:
                time.sleep(self.of("lock") / 1000)
            time.sleep(0.001)

    def after_step(self) -> None:  # noqa: C901  one branch a fault
        """What goes wrong in each step."""
        self.n += 1
        if self.is_("fsync"):
            with self.timed("fsync"):
                for _ in range(int(self.of("fsync"))):
                    self.file.write(self.block)
                    self.file.flush()
                    os.fsync(self.file.fileno())
        if self.is_("garbage"):
            with self.timed("garbage"):
                for _ in range(int(self.of("garbage"))):
                    itself: list[Any] = []
                    itself.append(itself)
                    self.kept.append(itself)
                del self.kept[: -4 * int(self.of("garbage"))]
        if self.is_("memory_growth"):
            self.kept.append(bytearray(os.urandom(1 << 10) * int(self.of("memory_growth") * 1024)))
        if self.is_("checkpoint") and self.n % 12 == 0:
            with self.timed("checkpoint"):
                work_for(self.of("checkpoint"))
        if self.is_("slow_tail") and self.chance.random() < 0.04:
            with self.timed("slow_tail"):
                time.sleep(self.of("slow_tail") / 1000 * self.chance.uniform(0.7, 1.3))
        if self.is_("growing"):
            with self.timed("growing"):
                self.kept.extend(range(int(self.of("growing"))))
                sum(x & 1 for x in self.kept)
        if self.is_("lock"):
            with self.timed("lock"), self.lock:
                pass
        if self.is_("logging"):
            with self.timed("logging"):
                for i in range(int(self.of("logging"))):
                    self.log.debug("step %d value %d of %s", self.n, i, "logging")
        if self.is_("sleep"):
            with self.timed("sleep"):
                time.sleep(self.of("sleep") / 1000)


def neighbours(faults: tuple[str, ...], severity: int) -> list[subprocess.Popen[bytes]]:
    """The processes beside a job with these faults. The job does not start them, or they would be its workers."""
    return [
        subprocess.Popen([sys.executable, option, "-c", program])
        for fault, option, program in (
            ("core_hogs", "-S", BUSY),
            ("bandwidth", "-s", STREAM),
            ("gpu_neighbour", "-s", MULTIPLY),
        )
        if fault in faults
        for _ in range(int(HARD[fault][severity - 1]))
    ]


def count() -> None:
    """Keeps the interpreter's lock from the others, for half of the time: else a step of a large job takes minutes."""
    while True:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
        time.sleep(0.02)


def work_for(ms: float) -> None:
    """Computes, as what a checkpoint packs."""
    until = time.perf_counter() + ms / 1000
    data = bytes(1 << 16)
    while time.perf_counter() < until:
        data = zlib.compress(data * 4)[: 1 << 16]
