"""The cycles of the program's main loop: its marked steps, or else what repeats in the events."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.processes import of_each
from stepscope.analyses.common.windows import (
    HOST,
    counted_at,
    cycle_of,
    device_of_tracks,
    queued_work,
    step_windows,
    whole,
)
from stepscope.analyses.cycles.anchors import Anchor, calls_of, device_anchors, host_anchors
from stepscope.analyses.cycles.content import Content, agreement, content_of, counts, is_whole, phases, reach
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.intervals import Ints
from stepscope.core.result_tables import CYCLES
from stepscope.core.schema import DEVICE_WORK, DEVICES, STEPS

Floats = NDArray[np.float64]

#: The anchor of cycles that are marked steps, whatever marked them.
STEP = "ProfilerStep"
_HINT = "mark the steps of the program, or name a function that is called in each, with anchor"
#: Calls mark cycles if the turns agree at least this well and the calls cover at least this much of the events.
_LEAST_AGREEMENT, _LEAST_REACH = 0.55, 0.5
#: Fewer periods may be chance; more are the rhythm of single events.
_FEWEST_PERIODS, _MOST_PERIODS = 4, 500
#: Of the candidates that agree nearly as well as the best, the one with most turns wins: work that is done in every
#: tenth turn, such as saving a checkpoint, must not merge ten turns into one.
_AS_GOOD = 0.9
#: Candidates whose numbers of turns are this close divide alike; of these the most meaningful name wins.
_AS_MANY = 0.8
_LONGEST = 1 << 18
_BINS = 1 << 14
_SEED = 20
#: A shift is a period if it repeats nearly as much of the sequence as the best shift does.
_AS_GOOD_A_PERIOD = 0.97


class Cycles(msgspec.Struct, frozen=True):
    """The cycles of one process: a frame of `result_tables.CYCLES`, what marks them, and how they were detected."""

    frame: pl.DataFrame
    anchor: str
    source: Literal["annotation", "detected"]
    how: str


class _Turns(msgspec.Struct, frozen=True):
    """Starts and ends of turns. The recording may have ended during the last one."""

    lows: Ints
    highs: Ints
    anchor: str
    source: str
    agreement: float
    how: str


def cycles(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame = STEPS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    anchor: str = "auto",
) -> pl.DataFrame:
    """One row per cycle, process by process and in order of time: its duration, phase, and what marks it.

    Of a file with more than 16 processes, the 16 with most host spans are searched.

    Cycles are the marked steps. If there are none, they are detected: the calls of a function or kernel mark cycles if
    they divide the recording into turns of equal content, each name as often in one turn as in the next
    (`agreement_ratio` is the share of names for which that holds). Parts of a turn, such as layers, do not qualify, as
    what is outside them is missing. Of several candidates the one with most turns is used. If there is none, it is the
    shortest period of the sequence of kernels, or else of the activity over time. A cycle lasts from one call of its
    anchor to the next.

    `anchor` names the function, range or kernel whose calls mark the cycles. `is_complete` is false for the last cycle
    if its end was not recorded, and for cycles at either end that lack much of what others contain.

    Units: ns; ratios 0..1.
    Source: our own; LatencyPrism takes the function with most time and few calls at depth 0.
    Raises MissingTable, StepscopeError (nothing repeats; no call of `anchor`).
    """
    tables = {"spans": spans, "tracks": tracks, "steps": steps}
    results = of_each(tables, lambda mine: find_cycles(mine["spans"], tracks, mine["steps"], devices, anchor))
    return pl.concat(one.frame for _, _, one in results)


_NO_STEPS = "choose another anchor than the steps, which have no length"


def find_cycles(
    spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, devices: pl.DataFrame, anchor: str = "auto"
) -> Cycles:
    """The cycles, of which there is one at least, and what marks them; see `cycles`.

    The anchor `ProfilerStep` means the marked steps. Raises as `cycles` does.
    """
    if spans.is_empty():
        raise MissingTable("spans", needed_by="cycles")
    device = device_of_tracks(tracks, devices).gather(spans["track_id"])
    on_host = (device == HOST).fill_null(value=False)
    at = counted_at(spans)
    wanted = on_host & ~spans["category"].is_in(("step", "overhead", "sched_oncpu", "sched_runq", "io"))
    wanted |= spans["category"].is_in(DEVICE_WORK)
    content = content_of(at, spans["name"], spans["dur_ns"], wanted)
    if not steps.is_empty() and anchor in ("auto", STEP):
        made = _marked(spans, tracks, steps, at, on_host, content)
    else:
        turns = _named(spans, on_host, content, anchor) if anchor != "auto" else _anchored(spans, on_host, content)
        made = _as_cycles(spans, tracks, turns, at, on_host, content)
    if made.frame.is_empty():
        raise StepscopeError("no step has a length, so there are no cycles", _HINT)
    return made


def host_bounds(frame: pl.DataFrame) -> tuple[Ints, Ints]:
    """Starts and ends of cycles on the host, which decide what belongs to each. Units: ns."""
    lows = frame["host_ts_ns"].to_numpy()
    return lows, lows + frame["host_dur_ns"].to_numpy()


def _marked(
    spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, at: Ints, on_host: pl.Series, content: Content
) -> Cycles:
    rows = step_windows(steps, queued_work(spans, tracks)).filter(pl.col("window_ns") > 0)
    if rows.is_empty():
        raise MissingTable("steps that take time", needed_by="cycles", hint=_NO_STEPS)
    frame = rows.select(
        "ts_ns", "host_ts_ns", cycle=pl.col("step").cast(pl.Int64), dur_ns="window_ns", host_dur_ns="host_window_ns"
    ).with_columns(anchor=pl.lit(STEP), found_by=pl.lit("annotation"))
    frame = _described(frame, spans, tracks, at, on_host, counts(content, *host_bounds(frame)))
    return Cycles(frame, STEP, "annotation", f"{frame.height} marked steps")


def _as_cycles(
    spans: pl.DataFrame, tracks: pl.DataFrame, turns: _Turns, at: Ints, on_host: pl.Series, content: Content
) -> Cycles:
    frame = pl.DataFrame(
        {"cycle": np.arange(1, turns.lows.size + 1), "ts_ns": turns.lows, "dur_ns": turns.highs - turns.lows}
    ).with_columns(anchor=pl.lit(turns.anchor), found_by=pl.lit(turns.source), agreement_ratio=pl.lit(turns.agreement))
    frame = frame.with_columns(host_ts_ns="ts_ns", host_dur_ns="dur_ns")
    frame = _described(frame, spans, tracks, at, on_host, counts(content, turns.lows, turns.highs))
    # The end of the last turn is unknown, as nothing followed it.
    frame = frame.with_columns(is_complete=pl.col("is_complete") & (pl.int_range(pl.len()) < pl.len() - 1))
    return Cycles(frame, turns.anchor, "detected", turns.how)


def _described(
    frame: pl.DataFrame,
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    at: Ints,
    on_host: pl.Series,
    occurrences: NDArray[np.float64],
) -> pl.DataFrame:
    """Adds the process, the phase, and whether each was recorded completely."""
    row = cycle_of(at, *host_bounds(frame))
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
            is_complete=pl.Series(is_whole(occurrences, kinds)),
        )
    )


def _named(spans: pl.DataFrame, on_host: pl.Series, content: Content, name: str) -> _Turns:
    for wanted in (on_host, spans["category"].is_in(DEVICE_WORK)):
        anchor = calls_of(spans, wanted, name)
        if anchor is not None and anchor.starts.size >= 2:
            agreed = agreement(content, anchor.starts)
            return _turns(spans, anchor, agreed, f"{anchor.starts.size} calls of {name}, as asked")
    raise StepscopeError(
        f"no two calls of {name!r} that could mark cycles",
        "name a function, range or kernel that the trace has",
    )


def _anchored(spans: pl.DataFrame, on_host: pl.Series, content: Content) -> _Turns:
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
            how = f"{anchor.starts.size} calls of {anchor.name}; {score:.0%} of all names occur equally often in each"
            return _turns(spans, anchor, score, how)
    return _periodic(spans, content, low, high)


def _turns(spans: pl.DataFrame, anchor: Anchor, agreed: float, how: str) -> _Turns:
    """From each start to the next; a turn that waits long at its end, as for requests, ends with its call."""
    lows, ends = anchor.starts, anchor.ends
    length = np.diff(lows)
    pause = lows[1:] - ends[:-1]
    waits = pause > 5 * np.median(pause) + 0.5 * np.median(length)
    fills = float(np.median((ends[:-1] - lows[:-1]) / length)) >= 0.5
    highs = np.where(waits & fills, ends[:-1], lows[1:])
    # The last one ends with the recording, but lasts at most as long as the longest and at least as long as its call.
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
                how = f"a sequence of {period} pieces of device work; {alike:.0%} of them are equal from turn to turn"
                return _Turns(lows, highs, f"sequence of {period} kernels", "sequence", agreed, how)
    period_ns, alike = time_period(content.at, low, high)
    if period_ns and alike >= _LEAST_AGREEMENT:
        lows = np.arange(low, high - period_ns, period_ns)
        if _FEWEST_PERIODS <= lows.size <= _MOST_PERIODS:
            pace = f"activity repeats every {period_ns / 1e6:.3g} ms (correlation {alike:.2f})"
            how = f"{pace}; where a turn begins is unknown"
            return _Turns(lows, lows + period_ns, "period", "period", alike, how)
    raise StepscopeError("nothing repeats often enough to be the turn of a loop, so there are no cycles", _HINT)


def sequence_period(codes: Ints) -> tuple[int, float]:
    """The shortest shift at which a sequence of names repeats, and the part that does (0..1); 0 if it is too short.

    Of all shifts up to a third of the length, this is the shortest that repeats nearly as much as the best one. How
    often names agree at each shift is the autocorrelation of the names as random points on the unit circle: equal names
    add up, different ones cancel.
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
    """Start times of the turns: every `period`-th event, beginning after the longest pause in a turn.

    A pause lasts from the latest end so far to the next start; its median over all turns counts.
    """
    pause = np.maximum(starts[1:] - np.maximum.accumulate(ends)[:-1], 0)
    n_turns = pause.size // period
    typical = np.median(pause[: n_turns * period].reshape(n_turns, period), axis=0)
    offset = (int(np.argmax(typical)) + 1) % period
    return starts[offset::period]


def time_period(times: Ints, low: int, high: int) -> tuple[int, float]:
    """The time after which activity repeats, and the correlation at that shift (0..1); 0 if none.

    Starts are counted in bins. Of the shifts from 8 bins to a quarter of the time, this is the shortest at which their
    autocorrelation has a peak nearly as high as the highest. Units: ns.
    """
    if times.size < 32 or high <= low:
        return 0, 0.0
    n = min(_BINS, max(256, times.size))
    counts = np.histogram(times, bins=n, range=(low, high))[0].astype(np.float64)
    # Smoothed, so that a turn may be late by a bin.
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


ANALYSIS = analysis_of(
    cycles, CYCLES, "The cycles of the program's main loop: marked steps, or what repeats in the events."
)
