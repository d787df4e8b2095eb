"""Turns of a loop where no function marks them: the period of a sequence of kernels, or of the activity over time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["sequence_period", "split_sequence", "time_period"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LONGEST = 1 << 18
_BINS = 1 << 14
_SEED = 20
#: A shift counts as a period if so much of the sequence repeats after it, relative to the shift that repeats most.
_AS_GOOD = 0.97


def sequence_period(codes: Ints) -> tuple[int, float]:
    """The shortest shift after which a sequence of names repeats itself, and how much of it does (0..1); 0: too short.

    Of all shifts up to a third of the length, the shortest that repeats nearly as much as the best one does. How often
    names agree at each shift is the autocorrelation of the names as random points on the unit circle: equal names add
    up, others cancel.
    """
    codes = codes[:_LONGEST]
    n = codes.size
    if n < 9:
        return 0, 0.0
    angle = np.random.default_rng(_SEED).uniform(0, 2 * np.pi, (4, int(codes.max()) + 1))
    size = 1 << int(np.ceil(np.log2(2 * n)))
    agree = np.zeros(n // 3 + 1)
    for turn in angle:
        signal = np.exp(1j * turn[codes])
        spectrum = np.fft.fft(signal, size)
        agree += np.fft.ifft(spectrum * np.conj(spectrum)).real[: agree.size]
    agree /= 4 * (n - np.arange(agree.size))
    best = float(agree[1:].max())
    period = 1 + int(np.flatnonzero(agree[1:] >= min(_AS_GOOD * best, best))[0])
    exact = float((codes[:-period] == codes[period:]).mean())
    return period, exact


def split_sequence(starts: Ints, ends: Ints, period: int) -> Ints:
    """Start times of the turns: every `period`-th event, from the place in the turn before which the pause is longest.

    The pause is that between the latest end so far and the next start, as the median over all turns.
    """
    pause = np.maximum(starts[1:] - np.maximum.accumulate(ends)[:-1], 0)
    n_turns = pause.size // period
    typical = np.median(pause[: n_turns * period].reshape(n_turns, period), axis=0)
    offset = (int(np.argmax(typical)) + 1) % period
    return starts[offset::period]


def time_period(times: Ints, low: int, high: int) -> tuple[int, float]:
    """The time after which activity repeats itself, and how alike it is then (correlation, 0..1); 0 if none.

    Starts are counted in bins; the shortest shift counts at which their autocorrelation has a peak nearly as high as
    the highest, looking at shifts from 8 bins to a quarter of the time. Units: ns.
    """
    if times.size < 32 or high <= low:
        return 0, 0.0
    n = min(_BINS, max(256, times.size))
    counts = np.histogram(times, bins=n, range=(low, high))[0].astype(np.float64)
    # Smoothed a little, so that a turn may be late by a bin.
    counts = np.convolve(counts, (0.25, 0.5, 0.25), mode="same")
    counts -= counts.mean()
    power = float((counts**2).sum())
    if power == 0:
        return 0, 0.0
    spectrum = np.fft.rfft(counts, 2 * n)
    shape = np.fft.irfft(spectrum * np.conj(spectrum))[: n // 4 + 2]
    shape = shape / power * n / (n - np.arange(shape.size))
    inner = np.arange(8, shape.size - 1)
    peaks = inner[(shape[inner] >= shape[inner - 1]) & (shape[inner] > shape[inner + 1])]
    if peaks.size == 0 or shape[peaks].max() <= 0:
        return 0, 0.0
    at = int(peaks[shape[peaks] >= 0.9 * shape[peaks].max()][0])
    return round(at * (high - low) / n), float(min(shape[at], 1.0))
