"""Which process of one run answers to which of the other: by rank, else by what they do. Never by process id alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison.model import Observation, Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Processes = Sequence[Observation]

_ACCELERATOR = re.compile(r"(gpu|npu|mlu|xpu|mtia|tpu)\d+")

__all__ = ["matched", "of_phase", "similarity"]


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
