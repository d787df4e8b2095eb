"""Finds the processes of two runs that belong together, and brings their cycles to the same kind.

Processes are matched by rank, else by what they do, never by process id alone. If one run's cycles are finer (a decoder
layer instead of a scheduler's step), they are grouped: the calls of functions that run in every cycle of both show how
many make up one of the other kind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

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
from stepscope.core.patterns import regex
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Processes = Sequence[Observation]


_ACCELERATOR = regex(r"(gpu|npu|mlu|xpu|mtia|tpu)\d+")
#: Share of the cycles in which a function must run to count as part of every cycle.
_IN_NEARLY_ALL = 0.9
#: Functions whose calls agree on one ratio: least number, least share of all, and largest relative difference.
_FEWEST, _MOST_PART, _CLOSE = 3, 0.7, 0.1
#: Time after the cycles of a group, as a share of it, from which on the last group counts as incomplete.
_MUCH = 0.1
_HINT = "record both with steps marked, or name a function that both call once per step, with --anchor"
_PER_CYCLE = ("calls_per_cycle", "total_ns_per_cycle", "self_ns_per_cycle")


def matched(base: Sequence[Processes], other: Sequence[Processes]) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """Pairs of processes, and remarks on those without a partner. `base` and `other` hold the processes of each repeat.

    Each process of the first base run gets a partner in every other run: by rank if ranks are unique and the runs have
    some in common, else the most similar process (time by function and device). Of cycles with several phases (prefill,
    decode), only the phase with most time in all runs remains.
    """
    runs = [*base, *other]
    first = list(base[0])
    by_rank = all(_has_ranks(run) for run in runs) and _share_ranks(runs)
    remarks: list[str] = []
    columns: list[dict[int, Observation]] = []
    for run in runs[1:]:
        partners = _by_rank(first, run) if by_rank else _by_likeness(first, run)
        columns.append(partners)
        if len(partners) < len(run):
            remarks.append(_left_out(list(run), list(partners.values())))
    pairs = []
    for i, process in enumerate(first):
        mine = [process, *(column[i] for column in columns if i in column)]
        if len(mine) < len(runs):
            remarks.append(f"{_label(process, i)} has no partner in every run and is left out")
            continue
        mine, phase_note = _one_phase(mine)
        remarks += [phase_note] if phase_note else []
        mine, device_note = _same_devices(mine)
        remarks += [device_note] if device_note else []
        how = "rank" if by_rank else "only process" if len(first) == 1 else "similarity"
        pairs.append(Pair(_label(process, i), tuple(mine[: len(base)]), tuple(mine[len(base) :]), how))
    return tuple(pairs), tuple(dict.fromkeys(remarks))


def similarity(a: Observation, b: Observation) -> float:
    """Similarity of two processes, 0..1: the cosine of their times by device and function."""
    joined = _profile(a).join(_profile(b), on=["device", "name"], how="full", suffix="_b").fill_null(0.0)
    left, right = joined["total_ns"].to_numpy(), joined["total_ns_b"].to_numpy()
    norm = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / norm if norm else 0.0


def of_phase(observed: Observation, phase: str) -> Observation:
    """The observation with the cycles of one phase only."""
    cycles = observed.cycles.filter(pl.col("phase").cast(pl.String) == phase)

    def only(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(cycles.select("cycle"), on="cycle", how="semi", maintain_order="left")

    return replace(
        observed,
        cycles=cycles,
        functions=only(observed.functions),
        parts=only(observed.parts),
        resources=only(observed.resources),
    )


def _has_ranks(run: Processes) -> bool:
    ranks = [process.rank for process in run]
    return None not in ranks and len(set(ranks)) == len(ranks)


def _share_ranks(runs: Sequence[Processes]) -> bool:
    """Whether the runs have a rank in common; two jobs with one process each may have different ranks."""
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
    """Similarity; the same id or rank decides between equally similar processes."""
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
    if not shared or all(len(times) == 1 and None not in times for times in of_each):
        return processes, ""
    phase = max(sorted(shared), key=lambda name: sum(times[name] for times in of_each))
    chosen = [of_phase(process, phase) for process in processes]
    n = sum(process.cycles.height for process in processes) - sum(process.cycles.height for process in chosen)
    return chosen, f"only {phase} cycles are compared; {n} others are not" if n else ""


def _same_devices(processes: list[Observation]) -> tuple[list[Observation], str]:
    """Renames accelerators as in the last run if the runs used the same number of them under different names."""
    used = [_accelerators(process) for process in processes]
    if len({len(names) for names in used}) > 1 or len({tuple(names) for names in used}) == 1:
        return processes, ""
    names = used[-1]
    renamed = [
        _with_devices(run, dict(zip(mine, names, strict=True))) for run, mine in zip(processes, used, strict=True)
    ]
    former = sorted({name for mine in used for name in mine} - set(names))
    return renamed, f"runs used different devices: {', '.join(former)} is shown as {', '.join(names)}"


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


def _left_out(run: list[Observation], partners: list[Observation]) -> str:
    matched_ids = {id(process) for process in partners}
    labels = [_label(process, i) for i, process in enumerate(run) if id(process) not in matched_ids]
    return f"{', '.join(labels)} of {run[0].meta.path} without partner: left out"


def as_repeats(files: Sequence[Processes]) -> list[list[Observation]]:
    """Repeats of the job, each with its processes, in order. `files` holds the processes of each file.

    Files with the same rank, or recorded at different times, are repeats. Files with different ranks, or recorded at
    the same time, belong to one repeat, and so do files without both.
    """
    runs: list[list[Observation]] = []
    for processes in files:
        home = next((run for run in runs if _belongs(processes, run)), None)
        if home is None:
            runs.append(list(processes))
        else:
            home.extend(processes)
    return runs


def has_no_profile(processes: Processes) -> bool:
    """Whether nothing but timed steps and counters is known of the processes of a recording."""
    return all(one.anchor == "steps" and one.functions.is_empty() for one in processes)


def with_profiles(
    left: Sequence[tuple[Observation, ...]], right: Sequence[tuple[Observation, ...]]
) -> tuple[list[tuple[Observation, ...]], list[tuple[Observation, ...]]] | None:
    """Both runs without the recordings that have timed steps alone; None if that leaves nothing of one of them."""
    base, other = ([one for one in side if not has_no_profile(one)] for side in (left, right))
    return (base, other) if base and other else None


def _belongs(processes: Processes, run: Sequence[Observation]) -> bool:
    ranks = {process.rank for process in run}
    mine = {process.rank for process in processes}
    if None not in ranks | mine:
        return ranks.isdisjoint(mine)
    times = [_recorded(process) for process in (*processes, *run)]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return True
    return max(start for start, _ in known) < min(end for _, end in known)


def _recorded(observed: Observation) -> tuple[int, int] | None:
    """First start and last end of the cycles in Unix time (ns); None if the recording does not have it."""
    origin = observed.meta.origin_unix_ns
    if origin is None or observed.cycles.is_empty():
        return None
    starts = observed.cycles["ts_ns"].to_numpy()
    ends = starts + observed.cycles["dur_ns"].to_numpy()
    return origin + int(starts.min()), origin + int(ends.max())


def align(base: Sequence[Observation], other: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """All repeats of one process with cycles of the same kind. Finer cycles are grouped, and a remark says so.

    Raises StepscopeError if the cycles are of different kinds that do not fit together.
    """
    coarsest = [*base, *other][0]
    for one in (*base, *other):
        ratio, _ = _timesfiner(one, coarsest)
        if ratio is not None and ratio < 1:
            coarsest = one
    return [_as(one, coarsest) for one in base], [_as(one, coarsest) for one in other]


def _as(one: Observation, coarsest: Observation) -> Observation:
    if _same_anchor(one.anchor, coarsest.anchor):
        return one if one.anchor == coarsest.anchor else replace(one, anchor=coarsest.anchor)
    ratio, reason = _timesfiner(one, coarsest)
    if ratio is None:
        kinds = f"cycles are calls of {one.anchor} in one and of {coarsest.anchor} in the other"
        raise StepscopeError(f"the two recordings cannot be compared: {kinds}, and {reason}", _HINT)
    if ratio == 1:
        note = f"cycles are marked by {one.anchor}, not {coarsest.anchor}; same work"
        return replace(one, anchor=coarsest.anchor, remarks=(*one.remarks, note))
    return regrouped(one, round(ratio), coarsest.anchor)


def _same_anchor(one: str, other: str) -> bool:
    # The line number of a Python function may differ between the runs.
    return re.sub(r"\(\d+\)", "", one) == re.sub(r"\(\d+\)", "", other)


def _timesfiner(one: Observation, coarsest: Observation) -> tuple[float | None, str]:
    """How many cycles of `one` make up one of `coarsest` (a fraction for the reverse), or None and the reason."""
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
    """How many times more often functions are called in a cycle of `other`: median, share near it, number of functions.

    Functions that run in at least 9 of 10 complete cycles of both count; only device work if there is any.
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
    """Median calls per cycle of functions that run in nearly every complete cycle; `kind` is true for device work."""
    whole = one.cycles.filter("is_complete").select("cycle")
    rows = one.functions.join(whole, on="cycle", how="semi").with_columns(
        kind=pl.col("category").is_in(DEVICE_WORK), name=pl.col("name").cast(pl.String)
    )
    per_cycle = rows.group_by("cycle", "kind", "name").agg(pl.col("calls").sum())
    calls = per_cycle.group_by("kind", "name").agg(pl.col("calls").median(), n=pl.len())
    return calls.filter(pl.col("n") >= _IN_NEARLY_ALL * whole.height).drop("n")


def regrouped(one: Observation, size: int, anchor: str) -> Observation:
    """Each `size` consecutive cycles as one: times and calls add up, resources are averaged by time.

    The first group starts where most groups hold complete cycles only. It may start anywhere in a coarser cycle, but
    each group covers one of them. A group lasts until the next one starts; the time between its cycles belongs to the
    part that takes the rest. The last group is incomplete if much time usually follows a group's cycles.
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
    note = f"{size} consecutive cycles ({one.anchor}) count as one of {anchor}, by the calls of the same functions"
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
    """The groups with `dur_ns`, which lasts to the start of the next group, or to the end of the last one."""
    after = pl.col("ts_ns").shift(-1) - pl.col("end_ns")
    merged = merged.with_columns(
        dur_ns=pl.col("ts_ns").shift(-1).fill_null(pl.col("end_ns")) - pl.col("ts_ns"), after_ratio=after
    ).with_columns(pl.col("after_ratio") / pl.col("dur_ns"))
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    is_open = is_last & (pl.col("after_ratio").median() > _MUCH)
    return merged.with_columns(is_complete=pl.col("is_complete") & ~is_open.fill_null(value=False))


def _summed_functions(functions: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    rows = functions.join(place.select("cycle", "group"), on="cycle")
    known = {c: pl.when(pl.col(c).count() > 0).then(pl.col(c).sum()) for c in ("self_ns", "exposed_ns")}
    sums = rows.group_by("group", "device", "name", maintain_order=True).agg(
        pl.col("category").first(), pl.col("calls").sum(), pl.col("total_ns").sum(), **known
    )
    return FUNCTIONS.conform(sums.rename({"group": "cycle"}))


def _summed_parts(parts: pl.DataFrame, place: pl.DataFrame, merged: pl.DataFrame) -> pl.DataFrame:
    rows = parts.join(place.select("cycle", "group"), on="cycle").with_columns(pl.col("part").cast(pl.String))
    rest = PYTHON if (rows["part"] == PYTHON).any() else OTHER
    between = merged.select("group", total_ns=pl.col("dur_ns") - pl.col("within_ns"), part=pl.lit(rest))
    rows = pl.concat([rows.select("group", "part", "total_ns"), between.select("group", "part", "total_ns")])
    sums = rows.group_by("group", "part").agg(pl.col("total_ns").sum()).sort("group", "part")
    return PARTS.conform(sums.rename({"group": "cycle"}))


def _averaged(resources: pl.DataFrame, place: pl.DataFrame) -> pl.DataFrame:
    rows = resources.join(place, on="cycle")
    averages = rows.group_by("group", "device", "metric", "name", maintain_order=True).agg(
        pl.col("unit").first(),
        mu=(pl.col("mu") * pl.col("dur_ns")).sum() / pl.col("dur_ns").sum(),
        n_samples=pl.col("n_samples").sum(),
    )
    return RESOURCES.conform(averages.rename({"group": "cycle"}))
