"""What a change is worth: how long a step would take, with an interval, and what would hold it up next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.critical_path.changes import BOUNDED, Change, change_of, changed
from stepscope.analyses.critical_path.critical_path import recorded_work
from stepscope.analyses.critical_path.forward_pass import SOURCE, Floats
from stepscope.analyses.critical_path.questions import applicable, concerns
from stepscope.analyses.critical_path.replay import (
    LOADER,
    MEDIAN,
    QUEUE,
    Changes,
    Graph,
    Lags,
    Program,
    Replay,
    program_of,
    unchanged,
)
from stepscope.analyses.critical_path.threads import LONG_AGO, Threads, host_threads
from stepscope.analyses.critical_path.windows import RECORDING, Windows, near_median, path_windows
from stepscope.analyses.critical_path.work import KERNEL_WAIT, NOTHING
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Ints, covered
from stepscope.core.report import PACE_UNKNOWN, Gain
from stepscope.core.schema import ARROWS, DEVICES, EVENT_WAITS, OPS, STEPS
from stepscope.core.table import Column, Table
from stepscope.core.trace import Trace
from stepscope.core.units import parse_duration

BASES = {
    "replayed": "the recorded program was run again with the change",
    "modelled": "the replay, with durations from a model of the changed part",
    "bound": "the recording does not say; the step takes between low_ns and high_ns",
}
PREDICTIONS = Table(
    "predictions",
    "what a change is worth: how long a step would take",
    (
        Column("scenario", pl.String(), "the change, as --if takes it; several are joined by ' + '", key=True),
        Column("step_ns", pl.Float64(), "mean length of the recorded steps", "ns"),
        Column("predicted_ns", pl.Float64(), "mean length of a step with the change; at best, if it is a bound", "ns"),
        Column("gain_ratio", pl.Float64(), "what it saves of a step; at best, if it is a bound", "ratio"),
        Column("low_ns", pl.Float64(), "lower end of the interval in which the step should lie", "ns"),
        Column("high_ns", pl.Float64(), "upper end of that interval", "ns"),
        Column("basis", pl.Enum(list(BASES)), "; ".join(f"{name}: {doc}" for name, doc in BASES.items())),
        Column("binds_next", pl.String(), "what takes most of the changed step's critical path"),
        Column("n_inferred", pl.Int64(), "dependencies that no field of the recording names"),
        Column("reason", pl.String(), "why it is a bound"),
    ),
)


def predictions(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame = STEPS.empty(),
    ops: pl.DataFrame = OPS.empty(),
    arrows: pl.DataFrame = ARROWS.empty(),
    event_waits: pl.DataFrame = EVENT_WAITS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    changes: str | None = None,
    measured_step: str | None = None,
) -> pl.DataFrame:
    """One row per scenario: how long a step would take. Without `changes`, the standard questions, best first.

    `changes` are the changes of one scenario, one a line, as in 'class gemm: 2x'. `measured_step` is the length of
    a step without the profiler, as in 1.9ms: all times are scaled to that clock.

    Units: ns; ratios 0..1.
    Source: a forward pass over the recorded graph of dependencies, as in Daydream (ATC 2020) and Lumos (MLSys 2025).
    Raises MissingTable (no host side), StepscopeError (no such change, or nothing that it changes).
    """
    measured_ns = None if measured_step is None else parse_duration(measured_step, default_unit="ms")
    program = recorded_program(spans, tracks, steps, ops, arrows, event_waits, devices)
    wanted = [change_of(text) for text in (changes or "").splitlines() if text.strip()]
    rows = [scenario(program, wanted)] if wanted else standard(program)
    frame = PREDICTIONS.conform(pl.DataFrame(rows)) if rows else PREDICTIONS.empty()
    return scaled(frame, measured_ns)


def replayed_steps(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame = STEPS.empty(),
    ops: pl.DataFrame = OPS.empty(),
    arrows: pl.DataFrame = ARROWS.empty(),
    event_waits: pl.DataFrame = EVENT_WAITS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    lags: Lags,
) -> pl.DataFrame:
    """How well the dependencies explain a recording: its steps, replayed without a change but with other lags.

    step (Int32), recorded_ns (Int64), replayed_ns (Float64); `lags` as in `make`. Raises MissingTable (no host side).
    """
    program = recorded_program(spans, tracks, steps, ops, arrows, event_waits, devices, lags=lags)
    graph, windows = program.graph, program.windows
    lengths = graph.lengths(graph.run(unchanged(program.work, program.threads.track.size)))
    return pl.DataFrame({"step": windows.step, "recorded_ns": windows.high - windows.low, "replayed_ns": lengths})


def tables_of(trace: Trace) -> tuple[pl.DataFrame, ...]:
    """The tables of a trace that predictions are made from, in the order in which functions here take them."""
    return trace.spans, trace.tracks, trace.steps, trace.ops, trace.arrows, trace.event_waits, trace.devices


def recorded_program(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame,
    ops: pl.DataFrame,
    arrows: pl.DataFrame,
    event_waits: pl.DataFrame,
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    lags: Lags = "recorded",
    work: pl.DataFrame | None = None,
) -> Program:
    """The program of a trace's tables; without steps the recording is one. Raises MissingTable (no host side).

    `work` is what `device_work` returns, if that is known already.
    """
    threads = host_threads(spans, tracks)
    if not threads.n_active.any():
        raise MissingTable("operators and the calls that queue work", needed_by="predictions", topic="host")
    recorded = recorded_work(spans, tracks) if work is None else work
    within = RECORDING if steps.is_empty() else None
    windows, _ = path_windows(spans, tracks, steps, recorded, threads, within=within, step=None)
    if recorded.is_empty() and _is_quiet(threads, windows):
        raise MissingTable("what the threads that mark steps do", needed_by="predictions", topic="host")
    program = program_of(spans, tracks, ops, arrows, event_waits, recorded, threads, windows, lags=lags)
    if program.work.call.size and (program.work.call < 0).all():
        # The device would then seem to need nothing of the host, nor the host anything of the device.
        raise MissingTable("the calls that queued the device's work", needed_by="predictions", topic="host")
    return replace(program, ops=ops, devices=devices)


#: A thread that is active for less of its steps is not recorded, but for a few events.
_LEAST_ACTIVE = 0.01


def _is_quiet(threads: Threads, windows: Windows) -> bool:
    """Whether next to nothing is recorded of the threads that steps belong to."""
    active = sum(
        int(covered(threads.active[main], windows.begin[[i]], windows.end[[i]]).sum())
        for i, main in enumerate(windows.main.tolist())
    )
    return active < _LEAST_ACTIVE * int((windows.end - windows.begin).sum())


#: Quantiles of the lags of dependencies that held nothing up: the median for the prediction, these for its interval.
_SPARE = (0.1, 0.9)
#: Half the width of intervals at least, in relation to the step: so much differ two runs of the same program. Where a
#: model stands for a part, such as for graphs, it is twice that.
_LEAST_WIDTH = 0.03
#: What a step may still take for batches of workers that a loader without workers never had: it takes them over.
_TAKE_OVER = 0.05
#: Smaller gains need no bounds of their own.
_NO_GAIN = 0.01
_TRAFFIC_UNKNOWN = "the recording does not say how much the memory of the device holds these kernels up"
_WAIT_UNKNOWN = "fetching a batch may be waiting for it or taking it over: the recording does not say"
_CALLS_UNKNOWN = "the recording does not say which calls queued the work of the device"


def _unknown(program: Program, wanted: Sequence[Change], changes: Changes, *, is_gain: bool) -> str | None:
    """What the recording does not say and an answer needs; None if nothing."""
    if any(change.subject == "bandwidth" or change.change == "fused" for change in wanted):
        return _TRAFFIC_UNKNOWN
    took = program.work.end - program.work.start
    is_of_device = (changes.work != 1).any() or changes.detached is not None
    if is_of_device and 2 * took[program.work.call < 0].sum() > took.sum():
        return _CALLS_UNKNOWN
    if is_gain and not all(program.loader_known.values()):
        return _WAIT_UNKNOWN if any(change.subject == "loader" for change in wanted) else PACE_UNKNOWN
    return None


class Scenario(msgspec.Struct, frozen=True):
    """Changes of one program, what they save of a step at most in ns, and the replay with them.

    The replay is given the quantile of the lags of dependencies that held nothing up. If one recording only bounds what
    the changes do, these are the changes at best; `at_worst` are the others, and `worst` replays them.
    """

    changes: Changes
    most_ns: float
    replay: Callable[[float], Replay]
    at_worst: Changes | None = None
    worst: Callable[[], Replay] | None = None


def scenario_of(program: Program, wanted: Sequence[Change]) -> Scenario:
    """The scenario of a program that is replayed alone. Raises StepscopeError if a change concerns nothing in it."""
    changes, at_worst = both_ends(program, wanted)

    @cache
    def settled() -> tuple[Changes, Replay]:
        return program.graph.settled(changes)

    @cache
    def reached() -> Floats:
        return program.graph.reached(settled()[0])

    def replay(spare: float) -> Replay:
        return settled()[1] if spare == MEDIAN else replace(program.graph, spare=spare).once(settled()[0], reached())

    worst = None if at_worst is None else partial(program.graph.run, at_worst)
    return Scenario(changes, most_saved(program, changes), replay, at_worst, worst)


def both_ends(program: Program, wanted: Sequence[Change]) -> tuple[Changes, Changes | None]:
    """The changes, and what they do at worst if one recording only bounds it.

    Raises StepscopeError if one of them concerns nothing in the recording.
    """
    is_bounded = any(change.subject in BOUNDED for change in wanted)
    return changed(program, wanted), changed(program, wanted, at_worst=True) if is_bounded else None


def scenario(program: Program, wanted: Sequence[Change]) -> dict[str, object]:
    """The row of one scenario."""
    return with_parts(program, wanted)[0]


def with_parts(
    program: Program, wanted: Sequence[Change], played: Scenario | None = None
) -> tuple[dict[str, object], dict[str, float]]:
    """The row of one scenario, and how the critical path of its median step divides into _PARTS, in ns."""
    played = scenario_of(program, wanted) if played is None else played
    graph, windows = program.graph, program.windows
    recorded = windows.high - windows.low
    step_ns = float(recorded.mean())
    # What was queued before the recording shortens the first steps of a replay, so the later ones are measured.
    steady = slice(recorded.size // 2, None)

    # In the long run steps take no less than their batches; the few that were measured may.
    pace_ns = graph.loader_pace() * played.changes.loader if all(program.loader_known.values()) else 0.0

    def mean_of(run: Replay) -> float:
        ns = max(step_ns * graph.period(run, steady), min(pace_ns, step_ns))
        return ns if played.at_worst is not None else _within_reason(step_ns, ns, played.most_ns)

    run = played.replay(MEDIAN)
    means = [mean_of(run)]
    is_gain = means[0] < (1 - _NO_GAIN) * step_ns
    means += [mean_of(played.replay(spare)) for spare in _SPARE] if is_gain else []
    is_model = any(change.change == "graphs" or change.subject == "padding" for change in wanted)
    reason = _unknown(program, wanted, played.changes, is_gain=is_gain)
    if reason == _CALLS_UNKNOWN:
        means[0] = max(step_ns - played.most_ns, 0.0)
    predicted, ratio = means[0], _width(recorded[steady]) * (1 + is_model)
    low, high = max(min(means) - ratio * predicted, 0.0), max(means) + ratio * predicted
    if "loader" in {change.subject for change in wanted} and not program.loader_known:
        high += _TAKE_OVER * predicted
    if is_model and recorded.size == 1:
        # What a single step does for the first time, such as loading code, cannot be separated from what each does.
        idle = graph.run(changed(program, [change_of("host: free")]))
        low = min(low, step_ns * graph.period(idle, steady))
    high = max(high, step_ns) if reason else high
    if played.at_worst is not None and played.worst is not None:
        worst = mean_of(played.worst())
        if not all(program.loader_known.values()):  # the workers may have been just as fast as the step
            worst = max(worst, played.at_worst.loader * step_ns)
        high = max(high, (1 + ratio) * worst)
        bounded = (BOUNDED[change.subject] for change in wanted if change.subject in BOUNDED)
        reason = "; ".join((*dict.fromkeys(bounded), *([reason] if reason else [])))
    spent = _binding(graph, run, int(np.argsort(recorded)[recorded.size // 2]))
    row: dict[str, object] = {
        "scenario": " + ".join(map(str, wanted)),
        "step_ns": step_ns,
        "predicted_ns": predicted,
        "gain_ratio": 1 - predicted / step_ns if step_ns else None,
        "low_ns": low,
        "high_ns": high,
        "basis": "bound" if reason else "modelled" if is_model else "replayed",
        "binds_next": max(spent, key=lambda part: spent[part]),
        "n_inferred": graph.n_inferred,
        "reason": reason,
    }
    return row, spent


def most_saved(program: Program, changes: Changes) -> float:
    """The time that the changes take away from a mean step: its work, its host time and its waits, in ns.

    No step can gain more, as its longest path loses no more than what is taken away.
    """
    work, held, moments, windows = program.work, program.graph.held, program.graph.moments, program.windows
    took, gaps = work.end - work.start, np.where(held.by == NOTHING, 0, work.start - held.at)
    saved = ((1 - changes.work) * took).sum() + ((1 - changes.waits[held.wait]) * np.maximum(gaps, 0)).sum()
    if changes.detached is not None:
        saved += took[changes.detached].sum()
    if changes.captured is not None:
        saved += np.maximum(gaps, 0)[changes.captured & (held.wait != KERNEL_WAIT)].sum()
    waited = np.where(moments.since == LONG_AGO, 0, moments.at - moments.since)
    saved += np.minimum(waited, (1 - changes.loader) * moments.lag)[moments.kind == LOADER].sum()
    saved += waited[np.isin(moments.kind, changes.without_waiting)].sum()
    for on_thread in changes.host:
        for factor, times in on_thread:
            saved += (1 - factor) * covered(times, windows.begin, windows.end).sum()
    if program.graph.contention is not None and saved > 0:
        saved += program.graph.contention.lost_ns
    return float(saved) / max(windows.low.size, 1)


def _within_reason(step_ns: float, predicted_ns: float, most_ns: float) -> float:
    """The prediction, which saves no more than that. Ends of a replay can say otherwise, where few steps are replayed.

    A negative `most_ns` is a change that adds time.
    """
    return min(max(predicted_ns, step_ns - most_ns), step_ns) if most_ns >= 0 else predicted_ns


def of_ratio(wanted: Change, step_ns: float, ratio: float) -> dict[str, object]:
    """The row of a change that makes a step of this length so many times as long.

    The interval has a tenth of what the change saves on either side.
    """
    predicted = step_ns * ratio
    width = max(_LEAST_WIDTH * step_ns, 0.1 * (step_ns - predicted))
    row = {"scenario": str(wanted), "step_ns": step_ns, "predicted_ns": predicted, "gain_ratio": 1 - ratio}
    return {**row, "low_ns": predicted - width, "high_ns": predicted + width, "basis": "replayed", "n_inferred": 0}


def replayed_program(tables: tuple[pl.DataFrame, ...], work: pl.DataFrame | None = None) -> Program | None:
    """What `gains` replays: the program of the median step and those around it. `tables` is what `tables_of` returns.

    `work` is what `device_work` returns, if that is known already. None of a recording with very many threads, as only
    damaged files have. Raises MissingTable (no host side).
    """
    return None if tables[0]["track_id"].n_unique() > _MOST_TRACKS else near_median_program(*tables, work=work)


def gains(program: Program | None, questions: Sequence[Sequence[str]], step_ns: float) -> list[Gain | None]:
    """What each question, a few changes as text, is worth for a step of this length; None where nothing was recorded.

    `program` is what `replayed_program` returns: without one no question is answered. Without steps the gain is the
    time that is saved of the whole. Units: ns.
    """
    if not questions or program is None:
        return [None] * len(questions)
    asked = ([change for text in texts if concerns(change := change_of(text), program)] for texts in questions)
    rows = ((scenario(program, wanted), wanted) if wanted else None for wanted in asked)
    contention, n_steps = program.graph.contention, max(program.windows.low.size, 1)
    lost_ns = 0.0 if contention is None else contention.lost_ns / n_steps
    return [None if row is None else _gain(*row, step_ns, lost_ns) for row in rows]


def near_median_program(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame,
    ops: pl.DataFrame,
    arrows: pl.DataFrame,
    event_waits: pl.DataFrame,
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    work: pl.DataFrame | None = None,
) -> Program:
    """The program of the median step and its neighbours. Raises MissingTable (no host side).

    `work` is what `device_work` returns, if that is known already. `spans` are not filtered: ids are row numbers.
    """
    steps, is_near = near_median(spans, steps)
    if is_near is not None:
        ops = ops.filter(pl.Series(is_near.take(ops["span_id"].to_numpy(), mode="clip")))
        work = None if work is None else work.filter(pl.Series(is_near.take(work["span_id"].to_numpy(), mode="clip")))
        spans = spans.filter(pl.Series(is_near))
    return recorded_program(spans, tracks, steps, ops, arrows, event_waits, devices, work=work)


def _gain(row: Mapping[str, Any], wanted: Sequence[Change], step_ns: float, lost_ns: float) -> Gain:
    """`lost_ns` is what communication costs computation beside it, in a replayed step."""
    # Of a step that is longer than the replayed ones, the change concerns no more than it did there.
    scale = min(step_ns / row["step_ns"], 1.0) if row["step_ns"] else 1.0
    times = (row[name] for name in ("predicted_ns", "low_ns", "high_ns"))
    predicted_ns, low_ns, high_ns = (step_ns - scale * (row["step_ns"] - ns) for ns in times)
    question = "\n".join(map(str, wanted))
    basis = row["basis"], row["reason"], row["binds_next"]
    gained = 1 - predicted_ns / step_ns if step_ns else 0.0
    is_free = any((change.subject, change.change) == ("comm", "free") for change in wanted)
    slowdown_ns = min(scale * lost_ns, step_ns - predicted_ns) if is_free else 0.0
    return Gain(question, step_ns, predicted_ns, gained, low_ns, high_ns, *basis, slowdown_ns)


_MOST_TRACKS = 2_000
#: What can take up the time of a path.
_PARTS = ("computation", "communication", "memcpy", "host", "data loader", "launch queue", "gaps between work")


def _binding(graph: Graph, run: Replay, window: int) -> dict[str, float]:
    """How long each of _PARTS takes on the path that ends a window, from the end back to its begin. Units: ns."""
    from_, to, after = run.edges
    is_last = run.times[from_] + after >= run.times[to] - 0.5
    last = np.full(run.times.size, -1, np.int64)
    last[to[is_last]] = from_[is_last]
    spent, n_work = dict.fromkeys(_PARTS, 0.0), graph.work.start.size
    mine = np.flatnonzero(graph.windows.queued == window)
    end, node = float(run.end[window]), -1
    if mine.size and run.ended[mine].max() >= end:
        node = 1 + int(mine[run.ended[mine].argmax()])
        end = float(run.ended[node - 1])
    else:
        last_on = int(graph.last["bounds"][graph.windows.main.size + window])
        node = last_on + 1 + n_work if last_on >= 0 else SOURCE
        spent["host"] += end - float(run.times[node])
    last[run.times <= run.begin[window]] = -1
    last[SOURCE] = -1
    follows, path = last.tolist(), [node]
    # Events at one moment can form a circle.
    while (node := follows[node]) >= 0 and len(path) < len(follows):
        path.append(node)
    now, before = np.array(path[:-1], np.int64), np.array(path[1:], np.int64)
    kinds = np.concatenate((np.full(1 + n_work, -1), graph.moments.kind))
    ended = np.append(-np.inf, run.ended)
    is_work, after_work = now <= n_work, (before >= 1) & (before <= n_work)
    since = np.where(is_work & after_work, ended[np.minimum(before, n_work)], run.times[before])
    waited, work = run.times[now] - since, now[is_work]
    took = np.minimum(ended[work], np.append(end, run.times[now])[:-1][is_work]) - run.times[work]
    sorts = np.bincount(graph.work.sort[work - 1], np.maximum(took, 0.0), minlength=3)
    part = np.select(
        (is_work & after_work, (kinds[now] == LOADER) & (kinds[before] == LOADER), ~after_work, kinds[now] == QUEUE),
        [_PARTS.index(name) for name in ("gaps between work", "data loader", "host", "launch queue")],
        len(_PARTS),
    )
    waits = np.bincount(part, np.where(is_work, np.maximum(waited, 0.0), waited), minlength=len(_PARTS) + 1)
    for name, one in zip(_PARTS, (*(sorts + waits[:3]), *waits[3:]), strict=False):
        spent[name] += float(one)
    return spent


def _width(lengths: Ints) -> float:
    """The half width of the interval in which the mean of so many steps lies, in relation to it."""
    if lengths.size < 2 or not lengths.mean():
        return _LEAST_WIDTH
    return max(_LEAST_WIDTH, 2 * float(lengths.std(ddof=1) / lengths.mean()) / float(np.sqrt(lengths.size)))


#: Questions that only bound what others can gain.
_LIMITS = ("device: free", "host: free")


def standard(program: Program) -> list[dict[str, object]]:
    """The rows of the standard questions that apply, and of the best two of them together: gains do not add up.

    By gain: first what was replayed, then models and bounds, then limits that no change can reach. The pair is last.
    """
    asked = [(wanted, scenario(program, wanted)) for wanted in applicable(program)]
    asked.sort(key=lambda one: (_group(one[1]), -float(str(one[1]["gain_ratio"] or 0.0))))
    rows = [row for _, row in asked]
    best = [wanted for wanted, row in asked if _group(row) == 0][:2]
    return [*rows, scenario(program, [*best[0], *best[1]])] if len(best) == 2 else rows


def _group(row: Mapping[str, Any]) -> int:
    return 2 if row["scenario"] in _LIMITS else int(row["basis"] == "modelled" or row["reason"] == _TRAFFIC_UNKNOWN)


def scaled(rows: pl.DataFrame, measured_ns: int | None) -> pl.DataFrame:
    """The rows with their times on the clock of a step that takes this long; as they are if it is None."""
    if measured_ns is None:
        return rows
    times = [c.name for c in PREDICTIONS.columns if c.unit == "ns"]
    return rows.with_columns(pl.col(times) * (measured_ns / pl.col("step_ns")))


ANALYSIS = analysis_of(predictions, PREDICTIONS, "What a change is worth: how long a step would take.")
