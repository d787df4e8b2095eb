"""A loop without a framework whose fault is switched on and off while it runs: the file FAULT names the one of now.

    python lab/switched_loop.py FAULT_FILE STEPS_FILE [--seconds 600] [--pause 0]

Each step compresses some text, and tells `stepscope.step()`. The faults are some of `switched_job.py`, for what counters
can show. STEPS_FILE is as there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from pathlib import Path

from switches import COLLATE_S, Switch

import stepscope

SIZE, LARGER = 800_000, 2.5
WRITES, WRITTEN = 3, 1 << 24
LISTS = 120_000


def main() -> None:
    """Work until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("fault_file", type=Path)
    parser.add_argument("steps_file", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pause", type=float, default=0, help="seconds that each piece takes to arrive")
    given = parser.parse_args()
    switch = Switch(given.fault_file)
    text = " ".join(f"{i * i % 9973:05d}" for i in range(int(SIZE * LARGER) // 6)).encode()
    began = before = time.time()
    with tempfile.TemporaryFile(dir=".") as file, given.steps_file.open("a", buffering=1, encoding="utf-8") as steps:
        while before - began < given.seconds:
            fault = switch.read()
            time.sleep(given.pause + (COLLATE_S if fault == "slow_loader" else 0))
            zlib.compress(text if fault == "larger_batch" else text[:SIZE], 1)
            if sum(int(word) for word in text[: SIZE // 10].split()) < 0:
                break
            if fault == "fsync":
                for _ in range(WRITES):
                    file.seek(0)
                    file.write(os.urandom(WRITTEN))
                    os.fsync(file.fileno())
            if fault == "garbage":
                for _ in range(LISTS):
                    cycle: list[object] = []
                    cycle.append(cycle)
            stepscope.step()
            now = time.time()
            steps.write(f"{now:.6f} {now - before:.6f} {fault}\n")
            before = now


if __name__ == "__main__":
    main()
