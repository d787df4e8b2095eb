"""Which process of one run answers to which of the other: by rank, else by what they do. Never by process id alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison.model import (
    FUNCTIONS,
    OBSERVED_CYCLES,
    OTHER,
    PARTS,
    PYTHON,
    RESOURCES,
    WORKLOAD,
    Observation,
    Pair,
)
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Processes = Sequence[Observation]


_ACCELERATOR = re.compile(r"(gpu|npu|mlu|xpu|mtia|tpu)\d+")


def matched(base: Sequence[Processes], other: Sequence[Processes]) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """Pairs of processes, and in words what found no partner. `base` and `other` hold the processes of each repeat.

    The processes of the first base run are looked for in every other run: by rank where all have one of their own and
    the runs have ranks in common, else the most alike ones (time by function, devices) go together. Cycles of several
    phases (prefill, decode) are cut down to the phase that has most time in both.
    """
    runs = [*base, *other]
    first = list(base[0])
    by_rank = all(_has_ranks(run) for run in runs) and _share_ranks(runs)
    notes: list[str] = []
    columns: list[dict[int, Observation]] = []
    for run in runs[1:]:
        found = _by_rank(first, run) if by_rank else _by_likeness(first, run)
        columns.append(found)
        if len(found) < len(run):
            notes.append(_left_out(list(run), list(found.values())))
    pairs = []
    for i, process in enumerate(first):
        mine = [process, *(column[i] for column in columns if i in column)]
        if len(mine) < len(runs):
            notes.append(f"{_label(process, i)} has no partner in every run and is left out")
            continue
        mine, phase_note = _one_phase(mine)
        notes += [phase_note] if phase_note else []
        mine, device_note = _same_devices(mine)
        notes += [device_note] if device_note else []
        how = "rank" if by_rank else "only process" if len(first) == 1 else "similarity"
        pairs.append(Pair(_label(process, i), tuple(mine[: len(base)]), tuple(mine[len(base) :]), how))
    return tuple(pairs), tuple(dict.fromkeys(notes))


def similarity(a: Observation, b: Observation) -> float:
    """How alike two processes are, 0..1: the cosine of their times by device and function."""
    joined = _profile(a).join(_profile(b), on=["device", "name"], how="full", suffix="_b").fill_null(0.0)
    left, right = joined["total_ns"].to_numpy(), joined["total_ns_b"].to_numpy()
    norm = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / norm if norm else 0.0


def of_phase(observed: Observation, phase: str) -> Observation:
    """The same with cycles of one phase only."""
    cycles = observed.cycles.filter(pl.col("phase").cast(pl.String) == phase)

    def cut(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(cycles.select("cycle"), on="cycle", how="semi", maintain_order="left")

    return replace(
        observed,
        cycles=cycles,
        functions=cut(observed.functions),
        parts=cut(observed.parts),
        resources=cut(observed.resources),
    )


def _has_ranks(run: Processes) -> bool:
    ranks = [process.rank for process in run]
    return None not in ranks and len(set(ranks)) == len(ranks)


def _share_ranks(runs: Sequence[Processes]) -> bool:
    """Whether any rank is in every run: of two jobs with one process each, ranks need not agree."""
    return bool(set.intersection(*({process.rank for process in run} for run in runs)))


def _by_rank(first: Processes, run: Processes) -> dict[int, Observation]:
    of_rank = {process.rank: process for process in run}
    return {i: of_rank[process.rank] for i, process in enumerate(first) if process.rank in of_rank}


def _by_likeness(first: Processes, run: Processes) -> dict[int, Observation]:
    if len(first) == len(run) == 1:
        return {0: run[0]}
    from scipy.optimize import linear_sum_assignment

    scores: NDArray[np.float64] = np.array([[_likeness(a, b) for b in run] for a in first])
    rows, columns = linear_sum_assignment(-scores)
    return {int(i): run[int(j)] for i, j in zip(rows, columns, strict=True) if scores[i, j] > 0}


def _likeness(a: Observation, b: Observation) -> float:
    """Similarity; where it cannot tell, the same id or rank speaks for the same place in the job."""
    same = (a.rank is not None and a.rank == b.rank) + (a.pid is not None and a.pid == b.pid)
    return similarity(a, b) + 0.01 * same


def _profile(observed: Observation) -> pl.DataFrame:
    names = pl.col("device", "name").cast(pl.String)
    return observed.functions.group_by(names).agg(pl.col("total_ns").sum().cast(pl.Float64))


def _one_phase(processes: list[Observation]) -> tuple[list[Observation], str]:
    of_each = []
    for process in processes:
        times = process.cycles.group_by(pl.col("phase").cast(pl.String)).agg(pl.col("dur_ns").sum())
        of_each.append({phase: ns for phase, ns in times.iter_rows() if phase is not None})
    shared = set(of_each[0]).intersection(*of_each[1:])
    if not shared or all(len(found) == 1 and None not in found for found in of_each):
        return processes, ""
    phase = max(sorted(shared), key=lambda name: sum(found[name] for found in of_each))
    cut = [of_phase(process, phase) for process in processes]
    n = sum(process.cycles.height for process in processes) - sum(process.cycles.height for process in cut)
    return cut, f"only {phase} cycles are compared; {n} others are not" if n else ""


def _same_devices(processes: list[Observation]) -> tuple[list[Observation], str]:
    """Accelerators called as in the last run (the one to act on) where the others ran on as many of other numbers."""
    used = [_accelerators(process) for process in processes]
    if len({len(names) for names in used}) > 1 or len({tuple(names) for names in used}) == 1:
        return processes, ""
    names = used[-1]
    renamed = [
        _with_devices(run, dict(zip(mine, names, strict=True))) for run, mine in zip(processes, used, strict=True)
    ]
    others = sorted({name for mine in used for name in mine} - set(names))
    return renamed, f"ran on other devices: {', '.join(others)} stands under {', '.join(names)}"


def _accelerators(process: Observation) -> list[str]:
    names = process.functions["device"].cast(pl.String).unique().drop_nulls().to_list()
    return sorted(name for name in names if _ACCELERATOR.fullmatch(name))


def _with_devices(process: Observation, names: dict[str, str]) -> Observation:
    def called(frame: pl.DataFrame) -> pl.DataFrame:
        dtype = frame.schema["device"]
        return frame.with_columns(pl.col("device").cast(pl.String).replace(names).cast(dtype))

    return replace(
        process,
        functions=called(process.functions),
        resources=called(process.resources),
        counters=called(process.counters),
        workload=called(process.workload),
    )


def _label(process: Observation, i: int) -> str:
    if process.rank is not None:
        return f"rank {process.rank}"
    return process.label or (f"pid {process.pid}" if process.pid is not None else f"process {i}")


def _left_out(run: list[Observation], found: list[Observation]) -> str:
    kept = {id(process) for process in found}
    words = [_label(process, i) for i, process in enumerate(run) if id(process) not in kept]
    return f"{', '.join(words)} of {run[0].meta.path} without partner: left out"


def as_repeats(files: Sequence[Processes]) -> list[list[Observation]]:
    """Runs of the job, each with its processes, in order. `files` holds the processes found in each file.

    Processes of one job differ in rank, or were recorded at the same time; what has the rank of another, or was
    recorded at another time, is a repeat. Files that say neither are processes of one job.

    Every run has as many processes as the first, else the last ones are a run of their own with fewer.
    """
    runs: list[list[Observation]] = []
    for found in files:
        home = next((run for run in runs if _belongs(found, run)), None)
        if home is None:
            runs.append(list(found))
        else:
            home.extend(found)
    return runs


def _belongs(found: Processes, run: Sequence[Observation]) -> bool:
    ranks = {process.rank for process in run}
    mine = {process.rank for process in found}
    if None not in ranks | mine:
        return ranks.isdisjoint(mine)
    times = [_recorded(process) for process in (*found, *run)]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return True
    return max(start for start, _ in known) < min(end for _, end in known)


def _recorded(observed: Observation) -> tuple[int, int] | None:
    """When the cycles were recorded, in Unix time. Units: ns. None where the recording does not say."""
    origin = observed.meta.origin_unix_ns
    if origin is None or observed.cycles.is_empty():
        return None
    starts = observed.cycles["ts_ns"].to_numpy()
    ends = starts + observed.cycles["dur_ns"].to_numpy()
    return origin + int(starts.min()), origin + int(ends.max())


#: A function counts as part of every cycle if it comes in so many of them.
_IN_NEARLY_ALL = 0.9
#: Functions whose calls agree on one ratio: how many there must be, what share of all, and how closely.
_FEWEST, _MOST_PART, _CLOSE = 3, 0.7, 0.1
#: Time after the cycles of a group, as a share of it, that cannot be left out of the last one.
_MUCH = 0.1
_HINT = "record both with steps marked, or name a function that both call once per step, with --anchor"


def align(base: Sequence[Observation], other: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Both sides of one process in cycles of the same kind; those that were of a finer kind regrouped, with a note.

    All repeats of a side come in one call. Raises StepscopeError if the cycles are of different kinds that cannot be
    brought together, with what they are.
    """
    coarsest = [*base, *other][0]
    for one in (*base, *other):
        ratio, _ = _times_finer(one, coarsest)
        if ratio is not None and ratio < 1:
            coarsest = one
    return [_as(one, coarsest) for one in base], [_as(one, coarsest) for one in other]


def _as(one: Observation, coarsest: Observation) -> Observation:
    if _same_anchor(one.anchor, coarsest.anchor):
        return one if one.anchor == coarsest.anchor else replace(one, anchor=coarsest.anchor)
    ratio, reason = _times_finer(one, coarsest)
    if ratio is None:
        kinds = f"cycles are calls of {one.anchor} in one and of {coarsest.anchor} in the other"
        raise StepscopeError(f"the two recordings cannot be compared: {kinds}, and {reason}", _HINT)
    if ratio == 1:
        note = f"cycles are marked by {one.anchor}, not {coarsest.anchor}; same work"
        return replace(one, anchor=coarsest.anchor, remarks=(*one.remarks, note))
    return regrouped(one, round(ratio), coarsest.anchor)


def _same_anchor(one: str, other: str) -> bool:
    # A Python function may have moved by some lines between the two.
    return re.sub(r"\(\d+\)", "", one) == re.sub(r"\(\d+\)", "", other)


def _times_finer(one: Observation, coarsest: Observation) -> tuple[float | None, str]:
    """How many cycles of `one` make one of `coarsest` (a fraction if it is the other way round), or why none do."""
    if _same_anchor(one.anchor, coarsest.anchor):
        return 1.0, ""
    ratio, share, n = work_ratio(one, coarsest)
    if n < _FEWEST:
        return None, f"only {n} functions come in every cycle of both"
    whole = max(1, round(max(ratio, 1 / ratio)))
    if share < _MOST_PART or abs(max(ratio, 1 / ratio) / whole - 1) > _CLOSE:
        return None, f"the work of one is not a whole multiple of the other's ({share:.0%} of functions agree on one)"
    return (float(whole) if ratio >= 1 else 1 / whole), ""


def work_ratio(one: Observation, other: Observation) -> tuple[float, float, int]:
    """How much more often functions are called in a cycle of `other`: median, share of them near it, how many.

    Those that come in at least 9 of 10 complete cycles of both count, device work if there is any, each once.
    """
    both = _typical(one).join(_typical(other), on=["kind", "name"], suffix="_other")
    if both["kind"].any():
        both = both.filter("kind")
    ratios = (both["calls_other"] / both["calls"]).to_numpy()
    if ratios.size == 0:
        return 1.0, 0.0, 0
    middle = float(np.median(ratios))
    return middle, float((np.abs(ratios / middle - 1) <= _CLOSE).mean()), ratios.size


def _typical(one: Observation) -> pl.DataFrame:
    """Typical calls per cycle of the functions of nearly every complete cycle; `kind`: device work."""
    whole = one.cycles.filter("is_complete").select("cycle")
    rows = one.functions.join(whole, on="cycle", how="semi").with_columns(
        kind=pl.col("category").is_in(DEVICE_WORK), name=pl.col("name").cast(pl.String)
    )
    per_cycle = rows.group_by("cycle", "kind", "name").agg(pl.col("calls").sum())
    found = per_cycle.group_by("kind", "name").agg(pl.col("calls").median(), n=pl.len())
    return found.filter(pl.col("n") >= _IN_NEARLY_ALL * whole.height).drop("n")


def regrouped(one: Observation, size: int, anchor: str) -> Observation:
    """Each `size` cycles in succession as one: times and calls add up, resources are averaged by time.

    Groups are laid so that as many as can be hold complete cycles only. Where in a turn they begin is not known, but
    each holds all of one. A group lasts until the next one begins; what lies between its cycles and after them belongs
    to it, as the part that takes the rest. The last one is incomplete if much comes after the others.
    Raises StepscopeError if there are fewer than `size` cycles.
    """
    cycles = one.cycles.sort("ts_ns")
    n_groups = cycles.height // size
    if n_groups == 0:
        reason = f"only {cycles.height} cycles of {one.anchor} were recorded, and {size} make one of {anchor}"
        raise StepscopeError(f"the two recordings cannot be compared: {reason}", "record for longer")
    complete = cycles["is_complete"].to_numpy()
    offsets = range(cycles.height - n_groups * size + 1)
    whole = [complete[at : at + n_groups * size].reshape(n_groups, size).all(axis=1).sum() for at in offsets]
    start = max(offsets, key=lambda at: (whole[at], at))
    chosen = cycles.slice(start, n_groups * size).with_columns(group=pl.int_range(pl.len()) // size + 1)
    merged = chosen.group_by("group", maintain_order=True).agg(
        pl.col("ts_ns").first(),
        end_ns=(pl.col("ts_ns") + pl.col("dur_ns")).max(),
        within_ns=pl.col("dur_ns").sum(),
        phase=pl.when(pl.col("phase").n_unique() == 1).then(pl.col("phase").first()),
        is_complete=pl.col("is_complete").all(),
    )
    merged = _to_the_next(merged).with_columns(cycle="group")
    place = chosen.select("cycle", "group", "dur_ns")
    note = (
        f"{size} cycles in succession ({one.anchor}) are taken as one of {anchor}, by the calls of the same functions"
    )
    return replace(
        one,
        anchor=anchor,
        cycles=OBSERVED_CYCLES.conform(merged),
        functions=_summed_functions(one.functions, place),
        parts=_summed_parts(one.parts, place, merged),
        resources=_averaged(one.resources, place),
        workload=WORKLOAD.conform(one.workload.with_columns(pl.col(c) * size for c in _PER_CYCLE)),
        remarks=(*one.remarks, note),
    )


def _to_the_next(merged: pl.DataFrame) -> pl.DataFrame:
    """With `dur_ns`: to the start of the next group, of the last one to its own end."""
    after = pl.col("ts_ns").shift(-1) - pl.col("end_ns")
    merged = merged.with_columns(
        dur_ns=pl.col("ts_ns").shift(-1).fill_null(pl.col("end_ns")) - pl.col("ts_ns"), after_ratio=after
    ).with_columns(pl.col("after_ratio") / pl.col("dur_ns"))
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    cut = is_last & (pl.col("after_ratio").median() > _MUCH)
    return merged.with_columns(is_complete=pl.col("is_complete") & ~cut.fill_null(value=False))


_PER_CYCLE = ("calls_per_cycle", "total_ns_per_cycle", "self_ns_per_cycle")


def _summed_functions(functions: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    rows = functions.join(place.select("cycle", "group"), on="cycle")
    known = {c: pl.when(pl.col(c).count() > 0).then(pl.col(c).sum()) for c in ("self_ns", "exposed_ns")}
    found = rows.group_by("group", "device", "name", maintain_order=True).agg(
        pl.col("category").first(), pl.col("calls").sum(), pl.col("total_ns").sum(), **known
    )
    return FUNCTIONS.conform(found.rename({"group": "cycle"}))


def _summed_parts(parts: pl.DataFrame, place: pl.DataFrame, merged: pl.DataFrame) -> pl.DataFrame:
    rows = parts.join(place.select("cycle", "group"), on="cycle").with_columns(pl.col("part").cast(pl.String))
    rest = PYTHON if (rows["part"] == PYTHON).any() else OTHER
    between = merged.select("group", total_ns=pl.col("dur_ns") - pl.col("within_ns"), part=pl.lit(rest))
    rows = pl.concat([rows.select("group", "part", "total_ns"), between.select("group", "part", "total_ns")])
    found = rows.group_by("group", "part").agg(pl.col("total_ns").sum()).sort("group", "part")
    return PARTS.conform(found.rename({"group": "cycle"}))


def _averaged(resources: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    rows = resources.join(place, on="cycle")
    found = rows.group_by("group", "device", "metric", "name", maintain_order=True).agg(
        pl.col("unit").first(),
        mu=(pl.col("mu") * pl.col("dur_ns")).sum() / pl.col("dur_ns").sum(),
        n_samples=pl.col("n_samples").sum(),
    )
    return RESOURCES.conform(found.rename({"group": "cycle"}))
