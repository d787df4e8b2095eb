"""What the times of steps cost a job: a benchmark in pairs of steps, one with a mark and one without.

    python lab/step_marks.py [--pairs 20000]

Each step is the same work, of some tenths of a millisecond. Which of the two steps of a pair gets the mark changes at
random. Printed are the time of a mark with its 95 % interval (bootstrap of the mean, extreme tenths left out), and the
length of a step from which on marks take less than 0.05 % of it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src" / "stepscope" / "record" / "startup"))
import _stepscope_step_times as step_times

_BAR = 0.0005
_TRIMMED = 0.1


def differences(n_pairs: int) -> tuple[np.ndarray, float]:
    """How much longer the step with a mark took than its partner, for each pair (ns), and a typical step (ns)."""
    work = bytes(300_000)
    chance = np.random.default_rng(0).random(n_pairs) < 0.5
    with tempfile.TemporaryDirectory() as folder:
        times = step_times.StepTimes(folder, None)
        took = np.zeros((n_pairs, 2))
        for i in range(n_pairs):
            for is_second in (0, 1):
                is_marked = is_second == chance[i]
                start = time.thread_time_ns()
                hashlib.sha1(work, usedforsecurity=False).digest()
                if is_marked:
                    times.ended(1, is_unlike=False)
                took[i, int(is_marked)] = time.thread_time_ns() - start
        times.flush()
    return took[:, 1] - took[:, 0], float(np.median(took[:, 0]))


def trimmed_mean(values: np.ndarray) -> float:
    """The mean without the extreme tenths."""
    ordered = np.sort(values)
    n = int(_TRIMMED * ordered.size)
    return float(ordered[n : ordered.size - n].mean())


def main() -> None:
    """Print the cost of a mark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20_000)
    given = parser.parse_args()
    found, step_ns = differences(given.pairs)
    random = np.random.default_rng(1)
    again = [trimmed_mean(found[random.integers(0, found.size, found.size)]) for _ in range(400)]
    low, high = np.quantile(again, [0.025, 0.975])
    print(f"{given.pairs:,} pairs of steps of {step_ns / 1e6:.2f} ms")
    print(f"a mark takes {trimmed_mean(found) / 1e3:.2f} µs ({low / 1e3:.2f} to {high / 1e3:.2f})")
    print(f"with the mean of all pairs, writing included: {found.mean() / 1e3:.2f} µs")
    print(f"less than {_BAR:.2%} of steps of {high / 1e6 / _BAR:.1f} ms and more")


if __name__ == "__main__":
    main()
