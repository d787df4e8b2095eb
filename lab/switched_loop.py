"""A loop without a framework whose fault is switched on and off while it runs: the file FAULT names the one of now.

    python lab/switched_loop.py FAULT_FILE STEPS_FILE [--seconds 600] [--pause 0]

Each step compresses some text, and calls `stepscope.step()`. The faults are those of `switched_job.py` that counters
can show. STEPS_FILE is as there.
"""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from typing import IO

from switches import COLLATE_S, Switch, arguments

import stepscope

SIZE, LARGER = 800_000, 2.5
WRITES, WRITTEN = 3, 1 << 24
LISTS = 120_000


def fetch(pause_s: float) -> None:
    """Wait for the next piece."""
    time.sleep(pause_s)


def packed(text: bytes) -> int:
    """Work on a piece."""
    return len(zlib.compress(text, 1)) + sum(int(word) for word in text[: len(text) // 10].split())


def save(file: IO[bytes]) -> None:
    """Write, and wait for the disk."""
    for _ in range(WRITES):
        file.seek(0)
        file.write(os.urandom(WRITTEN))
        os.fsync(file.fileno())


def litter() -> None:
    """Make lists that only the collector of garbage removes."""
    for _ in range(LISTS):
        cycle: list[object] = []
        cycle.append(cycle)


def main() -> None:
    """Work until the time is over."""
    given = arguments()
    switch = Switch(given.fault_file)
    text = " ".join(f"{i * i % 9973:05d}" for i in range(int(SIZE * LARGER) // 6)).encode()
    began = before = time.time()
    with tempfile.TemporaryFile(dir=".") as file, given.steps_file.open("a", buffering=1, encoding="utf-8") as steps:
        while before - began < given.seconds:
            fault = switch.read()
            fetch(given.pause + (COLLATE_S if fault == "slow_loader" else 0))
            packed(text if fault == "larger_batch" else text[:SIZE])
            if fault == "fsync":
                save(file)
            if fault == "garbage":
                litter()
            stepscope.step()
            now = time.time()
            steps.write(f"{now:.6f} {now - before:.6f} {fault}\n")
            before = now


if __name__ == "__main__":
    main()
