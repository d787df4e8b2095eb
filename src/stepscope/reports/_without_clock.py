"""The report of kernels whose order alone is known: their classes, what limits each, what fusing would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analyses.costs.fusion import fusion
from stepscope.analyses.kernels.kernel_classes import KERNEL_CLASS_SUMMARY, kernel_classes
from stepscope.analyses.kernels.kernels import kernels
from stepscope.analyses.kernels.utilisation import utilisation, with_limits
from stepscope.core.errors import MissingTable
from stepscope.core.names import shorten
from stepscope.core.remedies import Recording, remedy
from stepscope.core.report import Block, Note
from stepscope.core.units import counted, percent
from stepscope.reports._summary import Cost, Lack, Summary
from stepscope.reports._tables import kernel_block
from stepscope.reports.at_a_glance import MEASURED, hardware_use

if TYPE_CHECKING:
    import polars as pl

    from stepscope.core.trace import Trace


_NO_CLOCK = "The file knows in which order kernels ran, but not when: idle time, overlap and steps are unknown."
_LEAST_SAVED = 0.01
_JUDGED = 3
_LIMITS = {"memory": "memory-bound", "compute": "compute-bound", "latency": "latency-bound"}
_CLASSES, _OTHER = 6, "other"


def summary_without_clock(trace: Trace, quality: tuple[Lack, ...]) -> Summary:
    """Kernel time by class, hardware use, and the costliest kernels. `quality` lists what else the data lacks."""
    lacks = (Lack("no_clock", _NO_CLOCK), *quality)
    n = trace.spans.height
    devices = tuple(trace.devices["name"].drop_nulls().to_list())
    try:
        classes = kernel_classes(trace.spans, trace.kernel_metrics)
    except MissingTable:  # no kernel or no durations, which the reader has reported
        return Summary(trace.meta, 0, devices, quality=lacks, issues=trace.issues, n_launches=n)
    whole = int(classes["total_ns"].sum())
    vague = int(classes["vague_calls"].sum())
    if vague:
        what = f"{counted(vague, 'launch', 'launches')} with a name cut short, as Kernel, counted as matrix products."
        lacks = (*lacks, Lack("vague_names", what))
    shown = classes.select("kernel_class", "calls", "total_ns", "share_ratio")
    costly = kernel_block(kernels(trace.spans, trace.tracks, trace.kernels))
    return Summary(
        trace.meta,
        recorded_ns=whole,
        devices=devices,
        windows_ns=(whole,),
        costs=_verdicts(trace),
        parts=parts_by_class(classes),
        notes=(*hardware_use(trace), *_fusible(trace, whole)),
        tables=(Block("Classes of kernels", KERNEL_CLASS_SUMMARY, shown, "show kernel-classes"), costly),
        quality=lacks,
        issues=trace.issues,
        n_launches=n,
    )


def _verdicts(trace: Trace) -> tuple[Cost, ...]:
    """A cost for each of the kernels that take most time: what limits it, and what would help."""
    if trace.kernel_metrics.is_empty():
        return ()
    try:
        used = utilisation(trace.spans, trace.kernel_metrics, by="name")
    except MissingTable:
        return ()
    costs: list[Cost] = []
    for row in with_limits(used.sort("total_ns", descending=True).head(_JUDGED)).iter_rows(named=True):
        limit = row["limit"]
        if limit is None or not row["total_ns"]:
            continue
        facts = [f"{what} {percent(row[ratio])}" for ratio, what in MEASURED.items() if row[ratio] is not None]
        name = str(row["name"])
        title = f"{shorten(name)}: {_LIMITS[limit]}" + (", near its limit" if row["near_limit"] else "")
        advice = f"→ {remedy(f'{limit}_bound', Recording())}"
        given = any(advice in cost.details for cost in costs)  # once is enough
        details = (", ".join(facts),) if given else (", ".join(facts), advice)
        costs.append(Cost(f"kernel {name}", title, row["total_ns"], details, "show utilisation --by name"))
    return tuple(costs)


def parts_by_class(classes: pl.DataFrame) -> dict[str, int]:
    """The time of the costliest classes and of all the rest together. `classes` are sorted, longest first."""
    times = dict(classes.select("kernel_class", "total_ns").iter_rows())
    parts = {name: times.pop(name) for name in list(times)[:_CLASSES] if name != _OTHER}
    return parts | {_OTHER: sum(times.values())}


def _fusible(trace: Trace, whole_ns: int) -> tuple[Note, ...]:
    """A note on what fusing memory-bound kernels would save; none if their traffic is not known."""
    tables = (trace.spans, trace.tracks, trace.ops, trace.kernel_metrics, trace.devices, trace.kernels)
    saving = fusion(*tables, by="all").row(0, named=True)
    low, high = saving["saved_low_ns"], saving["saved_high_ns"]
    if not whole_ns or high is None or high < _LEAST_SAVED * whole_ns:
        return ()
    text = f"fusing runs of memory-bound kernels would save {percent(low / whole_ns)} to {percent(high / whole_ns)}"
    return (Note(text, "fusion", "show fusion"),)
