"""How many false alarms `stepscope watch` raises on simulated healthy streams, against the number that was chosen.

Each row is a stream of cycles: autocorrelation, tail of the noise, and what else goes on. Alarms within 300 cycles of
a change of level, or of a drift's begin, are right and not counted. Prints the ratio of false to chosen alarms.

    python lab/watch_streams.py --cycles 10000000
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
from scipy.signal import lfilter

from stepscope.watching.alarms import KINDS, StreamTest, find_alarms
from stepscope.watching.expected_time import ExpectedTime, observe

RHOS = (0.0, 0.5, 0.9)
TAILS = ("normal", "t4")
EXTRAS = ("none", "daily", "levels", "drift")
BLOCK, DAY = 100_000, 86_400


def stream(n: int, rho: float, tail: str, extra: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Times of `n` cycles in ns, and the cycles at which the level changes."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=n) if tail == "normal" else rng.standard_t(float(tail[1:]), size=n)
    log_time = 0.02 * lfilter([np.sqrt(1 - rho**2)], [1, -rho], noise)
    changes = np.array([], dtype=int)
    at = np.arange(n)
    if extra == "daily":
        log_time += 0.05 * np.sin(2 * np.pi * at / DAY)
    elif extra == "levels":
        changes = np.sort(rng.choice(n, 10, replace=False))
        log_time += np.cumsum(np.bincount(changes, rng.normal(0, 0.2, 10), minlength=n))
    elif extra == "drift":
        log_time += 0.3 * at / n
    return 1e7 * np.exp(log_time), changes


def false_alarms(n: int, rho: float, tail: str, extra: str, rate: float, seed: int = 0) -> Counter[str]:
    """Alarms of each kind that no change of level explains."""
    times, changes = stream(n, rho, tail, extra, seed)
    model, test, counts = ExpectedTime(), StreamTest(), Counter[str]()
    for start in range(0, n, BLOCK):
        expectation, model = observe(model, times[start : start + BLOCK])
        alarms, test = find_alarms(test, expectation.error, expectation.log_time, rate)
        for alarm in alarms:
            since = start + alarm.cycle - changes
            counts[alarm.kind] += not ((since >= 0) & (since < 300)).any()
    return counts


def main() -> None:
    """Print a line for each stream."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000_000)
    parser.add_argument("--rate", type=float, default=1e-5, help="chosen false alarms in a cycle")
    given = parser.parse_args()
    expected = given.cycles * given.rate
    print(f"{'autocorrelation':>15} {'tail':>7} {'and':>7} {'ratio':>6}  of {expected:g} chosen: {', '.join(KINDS)}")
    for extra in EXTRAS:
        for tail in TAILS:
            for rho in RHOS:
                counts = false_alarms(given.cycles, rho, tail, extra, given.rate)
                ratio = counts.total() / expected
                print(f"{rho:>15} {tail:>7} {extra:>7} {ratio:>6.2f}  {[counts[kind] for kind in KINDS]}", flush=True)


if __name__ == "__main__":
    main()
