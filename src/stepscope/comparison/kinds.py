"""What differs in kind between two runs: the machine, versions, options of the recorder, ranks, program, shapes.

A change of time means something else if the runs are not alike in kind, so these facts come before any cause.
`setup_of` reads what a recording states about itself; `kind_differences` sets the facts of both runs side by side. A
fact that one run does not state is unknown, not different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.comparison.diagnosis.change import fold
from stepscope.comparison.diagnosis.operators import types_of
from stepscope.comparison.diagnosis.python import graph_launches, graphs_differ
from stepscope.comparison.diagnosis.sizes import kernels_of_same_size, most_telling
from stepscope.comparison.diagnosis.workload import is_other, other_work, strangers, unit_of
from stepscope.comparison.model import KINDS, SETUP
from stepscope.core import units
from stepscope.core.names import shorten
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import Observation, Pair
    from stepscope.core.trace import Meta, Trace


#: What each kind of difference means for the comparison of times.
_MEANING = {
    "hardware": "times belong to the machine: a slower call is no sign of a fault",
    "driver": "another version may choose other kernels, or run the same ones at another speed",
    "framework": "another version may choose other kernels, or dispatch operators at another speed",
    "recorder": "what is recorded costs time on the host",
    "job": "each rank's share of the work, and its collectives, depend on it",
    "program": "the steps do not do the same: only work that both do can be compared",
    "kernels": "libraries chose other kernels, or the program is another",
    "shapes": "a step has another amount of work: compare times per sample or token",
}
#: Facts of Kineto and of `stepscope record` under their names in a report.
_FACTS = {
    "cuda_driver_version": ("driver", "CUDA driver"),
    "cuda_runtime_version": ("driver", "CUDA runtime"),
    "cupti_version": ("driver", "CUPTI"),
    "hip_driver_version": ("driver", "HIP driver"),
    "hip_runtime_version": ("driver", "HIP runtime"),
    "nsys_version": ("recorder", "Nsight Systems"),
    "backend": ("job", "backend of collectives"),
    "system": ("driver", "operating system"),
    "cpu": ("hardware", "processor"),
    "cores": ("hardware", "cores"),
}
_GIB = 2**30
#: Share of a run's time in operators or kernels that only it has, from which on the programs differ.
_STRANGE = 0.1


def setup_of(trace: Trace) -> pl.DataFrame:
    """SETUP of a recording: what it states about its machine, its versions and its options."""
    rows = [*_of_meta(trace.meta), *_of_devices(trace.devices)]
    spans = trace.spans["category"]
    # What was recorded, not which switch was set: that is known in all formats.
    contents = {
        "input shapes": trace.ops["input_shapes"].count() > 0,
        "Python functions": bool((spans == "python").any()),
        "allocations": trace.allocations.height > 0,
        "operators": bool((spans == "operator").any()),
        "device work": bool(spans.is_in(DEVICE_WORK).any()),
    }
    rows += [("recorder", fact, "recorded" if is_there else "not recorded") for fact, is_there in contents.items()]
    return _frame(rows)


def setup_of_results(meta: Meta) -> pl.DataFrame:
    """SETUP of results that another program computed."""
    return _frame(_of_meta(meta))


def _frame(rows: Iterable[tuple[str, str, str]]) -> pl.DataFrame:
    return SETUP.conform(pl.DataFrame(list(rows), schema=SETUP.dtypes, orient="row"))


def _of_meta(meta: Meta) -> list[tuple[str, str, str]]:
    rows = [("recorder", "format", meta.format)]
    rows += [("framework", "framework", meta.framework)] if meta.framework else []
    rows += [("framework", "version", meta.framework_version)] if meta.framework_version else []
    rows += [("job", "ranks", str(meta.world_size))] if meta.world_size else []
    for key, value in meta.facts.items():
        known = _FACTS.get(key)
        if known is not None:
            rows.append((*known, _version(value) if known[1].startswith("CUDA") else value))
        elif key.endswith("_version") and "schema" not in key and value != meta.framework_version:
            rows.append(("framework", key.removesuffix("_version"), value))
    return rows


def _version(value: str) -> str:
    """CUDA's version numbers as people write them.

    >>> _version("12080"), _version("12.8")
    ('12.8', '12.8')
    """
    return f"{int(value) // 1000}.{int(value) % 1000 // 10}" if value.isdigit() and len(value) > 3 else value


def _of_devices(devices: pl.DataFrame) -> list[tuple[str, str, str]]:
    accelerators = devices.filter(pl.col("type").cast(pl.String) != "cpu")
    columns = {
        "kind of accelerator": pl.col("type").cast(pl.String),
        "accelerator": pl.col("name"),
        "compute units": pl.col("sm_count").cast(pl.String),
        # Drivers reserve more or less of it.
        "memory": pl.format("{} GiB", (pl.col("memory_bytes") / _GIB).round(0).cast(pl.Int64)),
    }
    values = accelerators.select(**columns)
    return [
        ("hardware", fact, " and ".join(sorted(distinct)))
        for fact in columns
        if (distinct := values[fact].drop_nulls().unique().to_list())
    ]


def kind_differences(pairs: Sequence[Pair], all_views: Sequence[View]) -> pl.DataFrame:
    """KINDS of two runs: first what their recordings state, then what their programs do."""
    rows = [*_of_setup(pairs), *_of_use(pairs)]
    if any(row[0] == "hardware" for row in rows):
        rows = [(*row[:4], _on_hardware(all_views)) if row[0] == "hardware" else row for row in rows]
    rows += _of_work(all_views)
    order = list(_MEANING)
    rows.sort(key=lambda row: order.index(row[0]))
    return KINDS.conform(pl.DataFrame(rows, schema=KINDS.dtypes, orient="row"))


def other_hardware(kinds: pl.DataFrame) -> str:
    """The accelerators or processors of both runs as text ('A100 → V100'); empty if they are the same or unknown."""
    rows = kinds.filter(pl.col("kind") == "hardware")
    return f"{rows['base'][0]} → {rows['other'][0]}" if rows.height else ""


def _row(kind: str, fact: str, base: str, other: str) -> tuple[str, str, str, str, str]:
    return kind, fact, base, other, _MEANING[kind]


def _of_setup(pairs: Sequence[Pair]) -> list[tuple[str, str, str, str, str]]:
    stated = [_stated([run for pair in pairs for run in getattr(pair, side)]) for side in ("base", "other")]
    rows = [
        _row(*key, stated[0][key], stated[1][key])
        for key in stated[0]
        if key in stated[1] and stated[0][key] != stated[1][key]
    ]
    # Another product has other properties, which need not be listed too.
    different = {fact for _, fact, *_ in rows}
    implied = {"kind of accelerator", "compute units", "memory"} if "accelerator" in different else set()
    if "format" in different:
        implied |= {fact for kind, fact, *_ in rows if kind == "recorder"} - {"format"}
    return [row for row in rows if row[1] not in implied]


def _stated(runs: Iterable[Observation]) -> dict[tuple[str, str], str]:
    """Each fact's values in the runs of a side; a fact that some of them do not state is left out."""
    values: dict[tuple[str, str], set[str]] = {}
    n_stated: dict[tuple[str, str], int] = {}
    n_runs = 0
    for run in runs:
        n_runs += 1
        for kind, fact, value in run.setup.iter_rows():
            values.setdefault((kind, fact), set()).add(value)
            n_stated[kind, fact] = n_stated.get((kind, fact), 0) + 1
    return {key: " and ".join(sorted(values[key])) for key in values if n_stated[key] == n_runs}


def _of_use(pairs: Sequence[Pair]) -> list[tuple[str, str, str, str, str]]:
    """The number of accelerators that a process works on, if it differs."""
    used = [
        max((_n_accelerators(run) for pair in pairs for run in getattr(pair, side)), default=0)
        for side in ("base", "other")
    ]
    if not all(used) or used[0] == used[1]:
        return []
    return [_row("hardware", "accelerators of a process", str(used[0]), str(used[1]))]


def _n_accelerators(run: Observation) -> int:
    device = run.functions.filter(pl.col("category").cast(pl.String).is_in(DEVICE_WORK))["device"]
    return device.cast(pl.String).drop_nulls().n_unique()


def _on_hardware(all_views: Sequence[View]) -> str:
    """The meaning of other hardware, with the part of the change that is in kernels of the same size."""
    times = [kernels_of_same_size(view.pair) for view in all_views if view.same_cycles]
    base, other, delta = sum(t[0] for t in times), sum(t[1] for t in times), sum(view.delta_ns for view in all_views)
    text = _MEANING["hardware"]
    if not base or not delta:
        return f"{text}; no kernel has the same name and grid in both" if times else text
    took = f"kernels of the same name and grid take {units.duration(base)} → {units.duration(other)} per step"
    share = (other - base) / delta
    part = f"{units.percent(share)} of the change" if 0 <= share <= 1 else "more than" if share > 1 else "against"
    return f"{text}; {took}, {part if '%' in part else f'{part} the change'}"


def _of_work(all_views: Sequence[View]) -> list[tuple[str, str, str, str, str]]:
    """Differences of the program, of the sizes of its work, and of element types, in the process with most of them."""
    rows: dict[tuple[str, str], tuple[str, str, str, str, str]] = {}
    for view in all_views:
        for row in (*_of_program(view), *_of_shapes(view)):
            rows.setdefault((row[0], row[1]), row)
    return list(rows.values())


def _of_program(view: View) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for kind, category in (("program", "operator"), ("kernels", "kernel")):
        shares = strangers(view, category)
        if shares is not None and max(shares) >= _STRANGE:
            base, other = (f"{units.percent(share)} of their time" for share in shares)
            rows.append(_row(kind, f"{category}s of this run only", base, other))
    if graphs_differ(view):
        rows.append(_row("program", "graph launches per step", *map(units.number, graph_launches(view))))
    types = view.retyped
    if types:
        more = f" and {len(types) - 1} more" if len(types) > 1 else ""
        rows.append(_row("program", f"types of {shorten(types[0])}{more}", *types_of(view, types[0])))
    return rows


def _of_shapes(view: View) -> list[tuple[str, str, str, str, str]]:
    work = other_work(view)
    if work is None or not is_other(work) or not view.same_cycles:
        return []
    rows = most_telling(view.sizes)
    if rows.is_empty():
        return [_row("shapes", "calls of kernels per step", "1×", fold(work[1]))]
    first = rows.row(0, named=True)
    base, other = (units.render(first[f"volume_{side}"], "count") for side in ("base", "other"))
    return [_row("shapes", f"{shorten(first['name'])}, {unit_of(first['name'])}", base, other)]
