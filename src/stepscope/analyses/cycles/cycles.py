"""The turns of the program's main loop: its marked steps, or else what comes again and again in the events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.common.cycle_membership import HOST, counted_at, cycle_of, device_of_tracks
from stepscope.analyses.common.device_steps import whole
from stepscope.analyses.common.processes import of_each
from stepscope.analyses.cycles.anchors import Anchor, calls_of, device_anchors, host_anchors
from stepscope.analyses.cycles.content import Content, agreement, content_of, counts, is_whole, phases, reach
from stepscope.analyses.steps.steps import with_windows
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.intervals import Ints
from stepscope.core.schema import CYCLES, DEVICE_WORK, DEVICES, SPANS, STEPS, TRACKS

__all__ = ["ANALYSIS", "Cycles", "cycles", "find_cycles", "sequence_period", "split_sequence", "time_period"]


Floats = NDArray[np.float64]

_LONGEST = 1 << 18
_BINS = 1 << 14
_SEED = 20
#: A shift counts as a period if so much of the sequence repeats after it, relative to the shift that repeats most.
_AS_GOOD_A_PERIOD = 0.97


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
    period = 1 + int(np.flatnonzero(agree[1:] >= min(_AS_GOOD_A_PERIOD * best, best))[0])
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


#: The anchor of cycles that are the trace's marked steps, whatever marked them.
STEP = "ProfilerStep"
_HINT = "mark the steps (profiler.step() after each iteration), or name a function that is called in each, with anchor"
#: What marks cycles must agree at least so well, and the calls must reach over so much of the recording.
_LEAST_AGREEMENT, _LEAST_REACH = 0.55, 0.5
#: A rhythm of fewer beats may be chance, one of more is that of single events.
_FEWEST_PERIODS, _MOST_PERIODS = 4, 500
#: Candidates that agree nearly as well as the best; of these the one with most turns wins: a job that comes in every
#: tenth turn, as saving, shall not make ten of one.
_AS_GOOD = 0.9
#: One call more or less, before or after the loop, is no other division: then a name with a meaning goes first.
_AS_MANY = 0.8


@dataclass(frozen=True, slots=True)
class Cycles:
    """The cycles of one process: a frame of `schema.CYCLES`, what marks them, and how they were found, in words."""

    frame: pl.DataFrame
    anchor: str
    source: Literal["annotation", "detected"]
    how: str


@dataclass(frozen=True, slots=True)
class _Turns:
    """Starts and ends of turns; the last may have been cut off by the end of the recording."""

    lows: Ints
    highs: Ints
    anchor: str
    found_by: str
    agreement: float
    how: str


def cycles(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame | None = None,
    devices: pl.DataFrame | None = None,
    *,
    anchor: str = "auto",
) -> pl.DataFrame:
    """A row per cycle, in order of time; of several processes one after the other, if they have cycles.

    Cycles are the marked steps. Without any, those calls of a function or kernel are sought that divide the recording
    into turns with the same content: each name as often in one turn as in the next (`agreement_ratio` is the share of
    names for which that holds). Pieces of a turn, as layers are, fail it: they lack what stands outside of them. Of
    several that hold, the one with most turns is taken. If no function does, the shortest period of the sequence of
    kernels is; then that of the activity in time. A cycle lasts from the start of its anchor to the start of the next.

    `anchor` names the function, range or kernel whose calls are to mark the cycles instead. `is_complete` is false of
    the last cycle, where its end was not seen, and of cycles at either end that lack much of what the others have.

    Units: ns; ratios 0..1.
    Source: our own; compare LatencyPrism's, which takes the function with most time and few calls at depth 0.
    Raises MissingTable, StepscopeError (nothing comes again; no call of `anchor`).
    """
    tables = {"spans": spans, "tracks": tracks, "steps": STEPS.empty() if steps is None else steps}
    known = DEVICES.empty() if devices is None else devices
    found = of_each(tables, lambda mine: find_cycles(mine["spans"], tracks, mine["steps"], known, anchor))
    return pl.concat(one.frame for _, _, one in found)


def find_cycles(
    spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, devices: pl.DataFrame, anchor: str = "auto"
) -> Cycles:
    """The cycles with what marks them; see `cycles`. The anchor `ProfilerStep` stands for the marked steps."""
    if spans.is_empty():
        raise MissingTable("spans", needed_by="cycles")
    device = device_of_tracks(tracks, devices).gather(spans["track_id"])
    on_host = (device == HOST).fill_null(value=False)
    at = counted_at(spans)
    wanted = on_host & ~spans["category"].is_in(("step", "overhead", "sched_oncpu", "sched_runq", "io"))
    wanted |= spans["category"].is_in(DEVICE_WORK)
    content = content_of(at, spans["name"], spans["dur_ns"], wanted)
    if not steps.is_empty() and anchor in ("auto", STEP):
        return _marked(spans, tracks, steps, at, on_host, content)
    turns = _named(spans, on_host, content, anchor) if anchor != "auto" else _found(spans, on_host, content)
    return _as_cycles(spans, tracks, turns, at, on_host, content)


def _marked(
    spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, at: Ints, on_host: pl.Series, content: Content
) -> Cycles:
    rows = with_windows(steps).filter(pl.col("window_ns") > 0)
    lows = rows["ts_ns"].to_numpy()
    highs = lows + rows["window_ns"].to_numpy()
    frame = rows.select("ts_ns", cycle=pl.col("step").cast(pl.Int64), dur_ns="window_ns")
    frame = frame.with_columns(anchor=pl.lit(STEP), found_by=pl.lit("annotation"))
    frame = _described(frame, spans, tracks, at, on_host, counts(content, lows, highs))
    return Cycles(frame, STEP, "annotation", f"{frame.height} marked steps")


def _as_cycles(
    spans: pl.DataFrame, tracks: pl.DataFrame, turns: _Turns, at: Ints, on_host: pl.Series, content: Content
) -> Cycles:
    frame = pl.DataFrame(
        {"cycle": np.arange(1, turns.lows.size + 1), "ts_ns": turns.lows, "dur_ns": turns.highs - turns.lows}
    ).with_columns(
        anchor=pl.lit(turns.anchor), found_by=pl.lit(turns.found_by), agreement_ratio=pl.lit(turns.agreement)
    )
    frame = _described(frame, spans, tracks, at, on_host, counts(content, turns.lows, turns.highs))
    # Where the last turn would have ended is not known: nothing followed it.
    frame = frame.with_columns(is_complete=pl.col("is_complete") & (pl.int_range(pl.len()) < pl.len() - 1))
    return Cycles(frame, turns.anchor, "detected", turns.how)


def _described(
    frame: pl.DataFrame,
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    at: Ints,
    on_host: pl.Series,
    found: NDArray[np.float64],
) -> pl.DataFrame:
    """With the process, the phase, and whether each was recorded whole."""
    lows = frame["ts_ns"].to_numpy()
    row = cycle_of(at, lows, lows + frame["dur_ns"].to_numpy())
    where = on_host | spans["category"].is_in(DEVICE_WORK)
    row = np.where(where.to_numpy(), row, -1)
    kinds = phases(spans["name"], row, frame.height, frame["dur_ns"].to_numpy())
    main = spans["track_id"].filter(on_host).value_counts(name="n").join(tracks, on="track_id", how="left")
    main = main.sort("n", "track_id", descending=[True, False])
    pids, hosts = main["pid"].drop_nulls(), main["host"].drop_nulls()
    return CYCLES.conform(
        frame.with_columns(
            pid=pl.lit(pids[0] if pids.len() else None, pl.Int64),
            host=pl.lit(hosts[0] if hosts.len() else None, pl.String),
            phase=pl.Series(kinds, dtype=pl.String),
            is_complete=pl.Series(is_whole(found, kinds)),
        )
    )


def _named(spans: pl.DataFrame, on_host: pl.Series, content: Content, name: str) -> _Turns:
    for wanted in (on_host, spans["category"].is_in(DEVICE_WORK)):
        anchor = calls_of(spans, wanted, name)
        if anchor is not None and anchor.starts.size >= 2:
            agreed = agreement(content, anchor.starts)
            return _turns(spans, anchor, agreed, f"{anchor.starts.size} calls of {name}, as asked")
    raise StepscopeError(f"no two calls of {name!r} that could mark cycles", "name a function that the trace has")


def _found(spans: pl.DataFrame, on_host: pl.Series, content: Content) -> _Turns:
    low, high = whole(spans)
    for candidates in (host_anchors(spans, on_host), device_anchors(spans)):
        reaching = (anchor for anchor in candidates if reach(content, anchor.starts) >= _LEAST_REACH)
        scored = [(agreement(content, anchor.starts), anchor) for anchor in reaching]
        best = max((score for score, _ in scored), default=0.0)
        if best >= _LEAST_AGREEMENT:
            good = [(score, anchor) for score, anchor in scored if score >= _AS_GOOD * best]
            most = max(anchor.starts.size for _, anchor in good)
            alike = [(score, anchor) for score, anchor in good if anchor.starts.size > _AS_MANY * most]
            score, anchor = min(alike, key=lambda item: (item[1].rank, -round(item[0], 2), -item[1].total_ns))
            words = f"{anchor.starts.size} calls of {anchor.name}; {score:.0%} of all names come as often in each"
            return _turns(spans, anchor, score, words)
    return _periodic(spans, content, low, high)


def _turns(spans: pl.DataFrame, anchor: Anchor, agreed: float, how: str) -> _Turns:
    """From each start to the next; a turn that waits for long at its end, as for requests, ends with its call."""
    lows, ends = anchor.starts, anchor.ends
    length = np.diff(lows)
    pause = lows[1:] - ends[:-1]
    waits = pause > 5 * np.median(pause) + 0.5 * np.median(length)
    fills = float(np.median((ends[:-1] - lows[:-1]) / length)) >= 0.5
    highs = np.where(waits & fills, ends[:-1], lows[1:])
    # The last one ends with the recording, or when it has lasted as long as the longest; with its call at the earliest.
    last = min(max(whole(spans)[1], int(ends[-1])), int(lows[-1] + length.max()))
    highs = np.append(highs, max(last, int(ends[-1]) if fills else int(lows[-1]) + 1))
    return _Turns(lows, highs, anchor.name, anchor.kind, agreed, how)


def _periodic(spans: pl.DataFrame, content: Content, low: int, high: int) -> _Turns:
    work = spans.select("ts_ns", "dur_ns", "name", "category").filter(spans["category"].is_in(DEVICE_WORK))
    work = work.sort("ts_ns")
    if work.height:
        codes = work["name"].to_physical().rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
        period, alike = sequence_period(codes)
        if period > 1 and alike >= 0.8:
            starts = work["ts_ns"].to_numpy()
            lows = split_sequence(starts, starts + work["dur_ns"].to_numpy(), period)
            agreed = agreement(content, lows)
            if agreed >= _LEAST_AGREEMENT:
                highs = np.append(lows[1:], min(high, int(lows[-1] + np.diff(lows).max())))
                words = f"turns of a sequence of {period} pieces of device work, {alike:.0%} alike from turn to turn"
                return _Turns(lows, highs, f"sequence of {period} kernels", "sequence", agreed, words)
    period_ns, alike = time_period(content.at, low, high)
    if period_ns and alike >= _LEAST_AGREEMENT:
        lows = np.arange(low, high - period_ns, period_ns)
        if _FEWEST_PERIODS <= lows.size <= _MOST_PERIODS:
            pace = f"stretches of {period_ns / 1e6:.3g} ms, after which activity repeats (correlation {alike:.2f})"
            words = f"{pace}; where a turn begins is not known"
            return _Turns(lows, lows + period_ns, "period", "period", alike, words)
    raise StepscopeError("nothing comes again often enough to be the turn of a loop: there are no cycles", _HINT)


ANALYSIS = Analysis(
    name="cycles",
    doc="The turns of the program's main loop: marked steps, or what comes again and again.",
    inputs=(SPANS, TRACKS),
    optional=(STEPS, DEVICES),
    output=CYCLES,
    run=cycles,
)
