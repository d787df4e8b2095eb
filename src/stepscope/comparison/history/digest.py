"""What is left of a run when its recording is gone: a few kilobytes that say how long a step took, and of what it was.

A `Head` is all that a list of runs and its change points need. A `Digest` adds what names the reason of a change: the
functions, the sizes of the work, and the resources of a typical step.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison.statistics import inflation, moments_of
from stepscope.comparison.verdict import cycle_times
from stepscope.core.errors import CorruptInput, StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Observation

SCHEMA = "stepscope.digest/1"
#: Functions, sizes and resources that a digest lists, those with most time first: it stays far below 200 kB.
_MOST_ROWS = 150
#: Names of C++ templates may have thousands of letters. What tells two kernels apart comes earlier.
_MOST_LETTERS = 240
#: A digest of ours is smaller. More is not ours, and is not decoded.
_MOST_BYTES = 1 << 20
_HINT = "remove the file, and add the run again"
T = TypeVar("T", "Head", "Digest")


class Head(msgspec.Struct, frozen=True):
    """A run in a list. Times are in ns, clocks in ns since 1970.

    `step_ns` is the mean cycle, over the ranks and the complete cycles, as `compare` has it. `error_ns` is the
    standard error of that mean, with the correlation of neighbouring cycles; None with one cycle. `spread_ratio` is the
    standard deviation of a cycle over the mean.
    """

    key: str
    recorded_unix_ns: int | None
    added_unix_ns: int
    label: str
    commit: str | None
    paths: tuple[str, ...]
    n_ranks: int
    n_cycles: int
    anchor: str
    step_ns: float
    error_ns: float | None
    spread_ratio: float
    schema: str = SCHEMA


class Function(msgspec.Struct, frozen=True, array_like=True):
    """A function's calls and own time in a cycle, the mean over ranks and cycles."""

    device: str
    name: str
    calls: float
    self_ns: float


class Size(msgspec.Struct, frozen=True, array_like=True):
    """How often a cycle does work of a size, and the time of it, the mean over the ranks."""

    name: str
    shapes: str
    calls: float
    total_ns: float


class Digest(msgspec.Struct, frozen=True):
    """All that a store keeps of a run. `setup` has rows of kind, fact, value; `resources` of device, metric, mean."""

    head: Head
    parts: dict[str, float]
    functions: tuple[Function, ...]
    sizes: tuple[Size, ...]
    resources: tuple[tuple[str, str, float], ...]
    setup: tuple[tuple[str, str, str], ...]


def digest_of(
    processes: Sequence[Observation], *, paths: Sequence[str], added_unix_ns: int, label: str = "", commit: str = ""
) -> Digest:
    """The digest of a run from the observations of its processes.

    Raises StepscopeError if no complete cycle was recorded.
    """
    times = cycle_times(processes)
    if not times.size:
        raise StepscopeError("this run has no complete step, so it cannot be part of a history", "record more steps")
    moments = moments_of([times])
    variance = moments.within(inflation(moments.squares, moments.products, moments.cycles, moments.runs))
    mean = float(times.mean())
    starts = [run.meta.origin_unix_ns for run in processes if run.meta.origin_unix_ns is not None]
    facts = {key: value for run in processes for key, value in run.meta.facts.items()}
    head = Head(
        key="",
        recorded_unix_ns=min(starts, default=None),
        added_unix_ns=added_unix_ns,
        label=label,
        commit=commit or facts.get("git_commit"),
        paths=tuple(paths[:64]),
        n_ranks=len(processes),
        n_cycles=times.size,
        anchor=processes[0].anchor,
        step_ns=mean,
        error_ns=float(np.sqrt(variance[0])) if times.size > 1 else None,
        spread_ratio=float(times.std(ddof=1) / mean) if times.size > 1 and mean else 0.0,
    )
    digest = Digest(head, _parts(processes), _functions(processes), _sizes(processes), _resources(processes),
                    _setup(processes))  # fmt: skip
    # The same recording has the same key whenever and wherever it is added, so that it counts once.
    content = msgspec.structs.replace(digest, head=msgspec.structs.replace(head, paths=(), added_unix_ns=0, label=""))
    key = hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:24]
    return msgspec.structs.replace(digest, head=msgspec.structs.replace(head, key=key))


def encode(value: Head | Digest) -> bytes:
    """A head or a digest as JSON."""
    return msgspec.json.encode(value)


def head_from(data: bytes, path: str, key: str) -> Head:
    """The head of the run with that key, from its file. Raises CorruptInput."""
    head = _decoded(data, path, Head)
    _check(head, path, key)
    return head


def digest_from(data: bytes, path: str, key: str) -> Digest:
    """The digest of the run with that key, from its file. Raises CorruptInput."""
    digest = _decoded(data, path, Digest)
    _check(digest.head, path, key)
    return digest


def _decoded(data: bytes, path: str, kind: type[T]) -> T:
    if len(data) > _MOST_BYTES:
        raise CorruptInput(f"a digest has less than {_MOST_BYTES >> 20} MB", _HINT, path=path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise CorruptInput(f"no digest of a run: {error}", _HINT, path=path) from None


def _check(head: Head, path: str, key: str) -> None:
    if head.key != key:
        raise CorruptInput(f"this is the digest of another run, {head.key}", _HINT, path=path)
    is_time = all(value is None or 0 <= value < 2**63 for value in (head.recorded_unix_ns, head.added_unix_ns))
    if head.schema != SCHEMA or not is_time or not (np.isfinite(head.step_ns) and 0 < head.step_ns < 2**63):
        raise CorruptInput(f"no {SCHEMA} with a step", _HINT, path=path)


def _parts(processes: Sequence[Observation]) -> dict[str, float]:
    """Time of each part of a cycle, the mean over ranks and complete cycles."""
    rows = []
    for run in processes:
        cycles = run.complete_cycles
        mine = run.parts.filter(pl.col("cycle").is_in(cycles["cycle"].implode()))
        rows.append(mine.group_by(pl.col("part").cast(pl.String)).agg(pl.col("total_ns").sum() / cycles.height))
    means = pl.concat(rows).group_by("part").agg(pl.col("total_ns").sum() / len(processes))
    return dict(means.sort("total_ns", "part", descending=[True, False]).iter_rows())


def _functions(processes: Sequence[Observation]) -> tuple[Function, ...]:
    rows = []
    for run in processes:
        cycles = run.complete_cycles
        mine = run.functions.filter(pl.col("cycle").is_in(cycles["cycle"].implode()))
        own = pl.coalesce("self_ns", "total_ns").sum() / cycles.height
        place = pl.col("device").cast(pl.String).fill_null("host"), pl.col("name").cast(pl.String)
        rows.append(mine.group_by(*place).agg(calls=pl.col("calls").sum() / cycles.height, self_ns=own))
    means = pl.concat(rows).group_by("device", "name").agg(pl.col("calls", "self_ns").sum() / len(processes))
    largest = means.sort("self_ns", "device", "name", descending=[True, False, False]).head(_MOST_ROWS)
    return tuple(Function(device, name[:_MOST_LETTERS], calls, own) for device, name, calls, own in largest.iter_rows())


def _sizes(processes: Sequence[Observation]) -> tuple[Size, ...]:
    keys = pl.col("name").cast(pl.String), pl.col("shapes").fill_null("")
    work = pl.concat([run.workload for run in processes]).group_by(*keys)
    sums = work.agg(pl.col("calls_per_cycle", "total_ns_per_cycle").sum() / len(processes))
    largest = sums.sort("total_ns_per_cycle", "name", "shapes", descending=[True, False, False]).head(_MOST_ROWS)
    return tuple(
        Size(name[:_MOST_LETTERS], shapes[:_MOST_LETTERS], calls, total)
        for name, shapes, calls, total in largest.iter_rows()
    )


def _resources(processes: Sequence[Observation]) -> tuple[tuple[str, str, float], ...]:
    """Means over whole cycles and ranks."""
    whole = pl.concat([run.resources for run in processes]).filter(pl.col("name").is_null() & pl.col("mu").is_finite())
    means = whole.group_by(pl.col("device", "metric").cast(pl.String)).agg(pl.col("mu").mean())
    return tuple(means.drop_nulls().sort("device", "metric").head(_MOST_ROWS).iter_rows())


def _setup(processes: Sequence[Observation]) -> tuple[tuple[str, str, str], ...]:
    facts = pl.concat([run.setup for run in processes]).unique().sort("kind", "fact", "value")
    ranks = ("job", "processes", str(len(processes)))
    return (*((kind, fact, value[:_MOST_LETTERS]) for kind, fact, value in facts.head(_MOST_ROWS).iter_rows()), ranks)
