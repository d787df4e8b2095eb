"""The fault of now, for jobs that read it from a file at each step, and what runs beside the job while it is on."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

#: How much longer a slow loader takes.
COLLATE_S = 0.09


class Switch:
    """Reads the file, and starts and ends what runs beside."""

    def __init__(self, path: Path) -> None:
        self.path, self.fault = path, "none"
        self.hogs: list[subprocess.Popen] = []
        self.spins = threading.Event()
        threading.Thread(target=self._spin, daemon=True).start()

    def read(self) -> str:
        """The fault of now."""
        fault = self.path.read_text(encoding="utf-8").strip() or "none"
        if fault != self.fault:
            for hog in self.hogs:
                hog.kill()
                hog.wait()
            self.hogs = []
            if fault == "core_contention":
                self.hogs = [
                    subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    for _ in range(2 * len(os.sched_getaffinity(0)))
                ]
            (self.spins.set if fault == "gil_hog" else self.spins.clear)()
            self.fault = fault
        return fault

    def _spin(self) -> None:
        while self.spins.wait():
            pass


def arguments() -> argparse.Namespace:
    """What such a job is given: the file of the fault, where its steps go, and for how long it runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("fault_file", type=Path)
    parser.add_argument("steps_file", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pause", type=float, default=0, help="seconds that each batch takes to arrive")
    return parser.parse_args()
