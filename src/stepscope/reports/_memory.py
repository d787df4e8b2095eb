"""The report of memory snapshots: the peak of each device, what held it, what is never freed, what is of no use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.device_work import label_devices
from stepscope.analyses.memory.growth import MEMORY_GROWTH, grown
from stepscope.analyses.memory.oom import MEMORY_SAVINGS, memory_oom, memory_savings
from stepscope.analyses.memory.snapshots import (
    MEMORY_FRAGMENTATION,
    MEMORY_HOLDERS,
    MEMORY_LEAKS,
    MEMORY_PEAK,
    history_of,
    holders_at_peak,
    left_over,
    memory_fragmentation,
)
from stepscope.core import files
from stepscope.core.report import Bar, Block, Finding, Part, Report
from stepscope.core.table import Column, Table
from stepscope.core.units import counted, percent, size
from stepscope.reports._quality import lacks_of_issues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Trace

_SHOWN, _CHANGES, _MOST_FAILURES = 8, 5, 3
#: Changes that save less of what is needed are no advice.
_LEAST_SAVED_RATIO = 0.001
_BEFORE = "allocated before recording"
_HOLDERS = ("device", "holder", "category", "line", "bytes", "share_ratio", "n_blocks")
_LEAKS = ("device", "line", "bytes", "n_blocks", "n_eighths", "freed_bytes")
_FRAGMENTS = ("device", "pool", "stream", "reserved_bytes", "active_bytes", "cached_bytes", "unusable_bytes",
              "largest_free_bytes")  # fmt: skip
_FILE = Column("file", pl.String(), "the snapshot", key=True)
_PEAKS = replace(MEMORY_PEAK, columns=(_FILE, *MEMORY_PEAK.columns))


def memory_report(trace: Trace) -> Report:
    """The report of a memory snapshot."""
    tables = trace.memory_events, trace.memory_segments, trace.memory_blocks
    history = history_of(*tables, trace.stacks)
    peaks = MEMORY_PEAK.conform(label_devices(history.peaks(), trace.devices))
    holders = holders_at_peak(history, trace.devices)
    by_line = holders.group_by("device", "holder", "category", "line", maintain_order=True).agg(
        pl.col("bytes", "share_ratio", "n_blocks").sum()
    )
    by_line = by_line.sort("bytes", descending=True, maintain_order=True)
    blocks = [_block("What held it at the peak", MEMORY_HOLDERS, by_line, _HOLDERS, "show memory-holders --by line")]
    if not trace.memory_events.is_empty():
        leaks = left_over(history, trace.devices)
        blocks.append(_block("Never freed in the history", MEMORY_LEAKS, leaks, _LEAKS, "show memory-leaks"))
    quality = [lack.text for lack in lacks_of_issues(trace.issues)]
    if not trace.memory_segments.is_empty():
        waste = memory_fragmentation(trace.memory_segments, trace.memory_blocks, trace.devices)
        blocks.append(
            _block("Not in use at the end", MEMORY_FRAGMENTATION, waste, _FRAGMENTS, "show memory-fragmentation")
        )
    if trace.memory_events.height < 2:
        quality.append("There is no history of events: the peak is what was in use when the snapshot was taken.")
    failures = memory_oom(*tables, trace.stacks, trace.devices)
    changes = memory_savings(*tables, trace.stacks, trace.devices) if failures.height else MEMORY_SAVINGS.empty()
    top = peaks.sort("peak_allocated_bytes", descending=True).row(0, named=True)
    facts = [
        "Memory snapshot",
        f"{top['device']} held {size(top['peak_allocated_bytes'])} at its peak",
        f"{size(top['peak_reserved_bytes'])} reserved",
        *([f"{counted(peaks.height, 'device')}"] if peaks.height > 1 else []),
        f"{counted(trace.memory_events.height, 'event')} read",
    ]
    return Report(
        headline=" · ".join(facts),
        bars=tuple(_bar(row, holders) for row in peaks.iter_rows(named=True)),
        findings=tuple(_failure(row, changes) for row in failures.iter_rows(named=True)),
        findings_title="Why it ran out of memory",
        tables=tuple(block for block in blocks if block.frame.height),
        quality=tuple(quality),
        issues=trace.issues,
        meta={"paths": [trace.meta.path]},
        more={"memory": {"devices": _document(peaks, holders), "oom": _oom(failures, changes)}},
    )


def _failure(row: dict[str, Any], changes: pl.DataFrame) -> Finding:
    """Why a device ran out of memory: the kind, the figures that prove it, and what to change."""
    request, free = row["request_bytes"], row["device_free_bytes"]
    idle, most, limit = row["idle_bytes"], row["largest_free_bytes"], row["own_limit_bytes"]
    room = free if limit is None else limit - row["reserved_bytes"]
    evidence = f"{size(row['allocated_bytes'])} in use, {size(idle)} idle in the cache, {size(free)} free on the device"
    whole = "" if row["before_bytes"] is None else f"; no step before needed more than {size(row['before_bytes'])}"
    pieces = f", in pieces of {size(most)} at most" if idle + room >= request else ""
    proof = {
        "fragmentation": f"the idle and the free memory would do, but the largest piece has {size(most)}",
        "one large request": "what was asked for before would still have fit",
        "one large step": f"all that was not in use had {size(idle + room)}{whole}",
        "other process": f"others hold at least {size(row['outside_bytes'])} of the device",
        "too much held": f"all that was not in use had {size(idle + room)}{pieces}",
    }[row["kind"]]
    who = {
        "fragmentation": "it keeps most segments from being given back",
        "one large request": "it asked for that",
        "one large step": "it holds most; look for a larger batch or a longer sequence",
    }.get(row["kind"], "it holds most, or grows")
    own_limit = (
        f"the process has a limit of its own, of {size(limit)} or somewhat more: set_per_process_memory_fraction"
        if limit is not None
        else None
    )
    own = changes.filter(device_id=row["device_id"]).filter(pl.col("saved_bytes") > 0)
    advice = [_advice(change) for change in _by_line(own).head(_CHANGES).iter_rows(named=True)]
    lines = [f"{evidence}; {proof}", own_limit, f"{row['line']}: {who}" if row["line"] else None]
    if row["request_line"] not in (None, row["line"]):
        lines.append(f"{row['request_line']} asked for the {size(request)}")
    title = f"{row['kind'].capitalize()}: {row['device']} had no memory for a request of {size(request)}"
    return Finding(title, (*filter(None, lines), *advice), command="show memory-oom")


def _by_line(changes: pl.DataFrame) -> pl.DataFrame:
    """The changes, those of several stacks of one line together, the one that saves most first."""
    keys = ("change", "line", "event", "available_bytes", "is_at_most")
    base = pl.col("needed_bytes") + pl.col("saved_bytes")
    together = changes.group_by(keys, maintain_order=True).agg(base.first().alias("base"), pl.col("saved_bytes").sum())
    is_enough = pl.col("base") - pl.col("saved_bytes") <= pl.col("available_bytes")
    is_worth_it = pl.col("saved_bytes") >= _LEAST_SAVED_RATIO * pl.col("base")
    worth_it = together.filter(is_worth_it).with_columns(is_enough=is_enough)
    return worth_it.sort("saved_bytes", descending=True, maintain_order=True)


def _advice(change: dict[str, Any]) -> str:
    text = {
        "empty_cache": f"call torch.cuda.empty_cache() before event {change['event']}",
        "keep nothing from step to step": f"keep nothing from step to step in {change['line']}",
        "half the request": "ask for half as much at once",
        "checkpointing": "checkpoint activations",
        "half the batch": "halve the batch",
        "no other process": "have the device alone",
    }.get(change["change"], f"PYTORCH_CUDA_ALLOC_CONF={change['change']}")
    enough = "which is enough for this request" if change["is_enough"] else "which is not enough"
    at_most = "at most " if change["is_at_most"] else ""
    return f"→ {text}: saves {at_most}{size(change['saved_bytes'])}, {enough}"


def _oom(failures: pl.DataFrame, changes: pl.DataFrame) -> dict[str, Any] | None:
    """The last failure of the first device that had one, with what changes would save; None where none had."""
    if failures.is_empty():
        return None
    first = failures.row(0, named=True)
    own = changes.filter(device_id=first["device_id"]).drop("device_id", "device")
    return {**{name: value for name, value in first.items() if name != "device_id"}, "changes": own.to_dicts()}


def with_memory(report: Report | None, snapshots: Sequence[Report]) -> Report:
    """The report of traces with what the snapshots of their folder say; without traces, of the snapshots together."""
    names = files.labels_of([str(path) for one in snapshots for path in _paths_of(one)])
    devices = [
        {"file": name, **device} for name, one in zip(names, snapshots, strict=True) for device in _devices_of(one)
    ]
    failures = [one.more["memory"]["oom"] for one in snapshots]  # type: ignore[index]
    failed = next((failure for failure in failures if failure is not None), None)
    document = {**(report.more if report is not None else {}), "memory": {"devices": devices, "oom": failed}}
    largest = max(snapshots, key=_peak_of)
    more_tables, base = largest.tables, report or largest
    if len(snapshots) > 1:
        peaks = pl.DataFrame([{k: v for k, v in one.items() if k != "holders"} for one in devices])
        more_tables = (
            Block("Peak of each snapshot", _PEAKS, peaks.sort("peak_allocated_bytes", descending=True)),
            *_growth(largest, snapshots, names),
            *largest.tables,
        )
        at_peak = largest.headline.removeprefix("Memory snapshot · ")
        name = dict(zip(map(id, snapshots), names, strict=True))[id(largest)]
        base = report or replace(largest, headline=f"{counted(len(snapshots), 'memory snapshot')} · {name}: {at_peak}")
    findings = _findings(snapshots, names)
    if report is not None:
        more_tables = (*report.tables, *more_tables)
        base = replace(report, bars=(*report.bars, *largest.bars), quality=(*report.quality, *largest.quality))
        findings = (*findings, *report.findings)
    return replace(base, findings=findings, tables=more_tables, more=document)


def _findings(snapshots: Sequence[Report], names: Sequence[str]) -> tuple[Finding, ...]:
    """Why memory ran out, by snapshot. Later snapshots of a process have its failure once more: it is listed once."""
    known: dict[tuple[str, tuple[str, ...]], tuple[str, Finding]] = {}
    for name, one in zip(names, snapshots, strict=True):
        for finding in one.findings:
            known.setdefault((finding.title, finding.details[:1]), (name, finding))
    listed = list(known.values())[:_MOST_FAILURES]
    if len(listed) < 2:
        return tuple(finding for _, finding in listed)
    return tuple(replace(finding, title=f"{name}: {finding.title}") for name, finding in listed)


def _growth(largest: Report, snapshots: Sequence[Report], names: Sequence[str]) -> tuple[Block, ...]:
    """What the largest snapshot holds more than the median one, at the peaks; nothing if their peaks are the same."""
    order = sorted(zip(map(_peak_of, snapshots), names, snapshots, strict=True), key=lambda one: one[:2])
    least, name, median = order[(len(order) - 1) // 2]
    if _peak_of(largest) == least:
        return ()
    growth = grown(*(_holders(one) for one in (median, largest))).filter(pl.col("delta_bytes") != 0)
    title = f"What {order[-1][1]} holds more than {name}, at their peaks"
    columns = ("device", "category", "line", "base_bytes", "other_bytes", "delta_bytes")
    return (_block(title, MEMORY_GROWTH, growth, columns, ""),)


def _holders(report: Report) -> pl.DataFrame:
    """What holds the device with the largest peak, as far as `grown` needs it."""
    device = max(_devices_of(report), key=lambda one: one["peak_allocated_bytes"])
    rows = pl.DataFrame(
        device["holders"], schema_overrides={"line": pl.String, "stack": pl.String}, infer_schema_length=None
    )
    stack = pl.when(pl.col("stack") != _BEFORE).then("stack")
    return rows.with_columns(stack=stack, device=pl.lit("the device"))


def _peak_of(report: Report) -> int:
    return max(int(device["peak_allocated_bytes"]) for device in _devices_of(report))


def _paths_of(report: Report) -> list[str]:
    paths: Any = report.meta["paths"]
    return list(paths)


def _devices_of(report: Report) -> list[dict[str, Any]]:
    memory: Any = report.more["memory"]
    return list(memory["devices"])


def _block(title: str, table: Table, frame: pl.DataFrame, columns: Sequence[str], command: str) -> Block:
    shown = frame.select(columns)
    if frame["device"].n_unique() == 1:
        shown = shown.drop("device")
    return Block(title, table, shown.head(_SHOWN), command)


def _bar(row: dict[str, Any], holders: pl.DataFrame) -> Bar:
    """What held the peak of a device, by category."""
    own = holders.filter(pl.col("device_id") == row["device_id"])
    is_rest = (pl.col("holder") == "before recording") & pl.col("stack_id").is_null()
    name = pl.when(is_rest).then(pl.lit(_BEFORE)).otherwise(pl.col("category").cast(pl.String))
    parts = own.group_by(name=name).agg(pl.col("share_ratio").sum()).sort("share_ratio", "name", descending=True)
    of = f"{size(row['peak_allocated_bytes'])} of {size(row['reserved_at_peak_bytes'])} reserved"
    ratio = row["peak_allocated_bytes"] / max(row["reserved_at_peak_bytes"], 1)
    shown = tuple(Part(name, max(share, 0.0)) for name, share in parts.iter_rows())
    return Bar(f"{row['device']} at its peak", f"{of} ({percent(ratio)})", shown)


def _document(peaks: pl.DataFrame, holders: pl.DataFrame) -> list[dict[str, Any]]:
    text = pl.when(pl.col("stack").is_null()).then(pl.lit(_BEFORE)).otherwise("stack")
    listed = holders.with_columns(stack=text).select(
        "device_id", "stack", "line", "holder", "category", "bytes", "n_blocks"
    )
    return [
        {
            "device": row["device"],
            "peak_allocated_bytes": row["peak_allocated_bytes"],
            "peak_reserved_bytes": row["peak_reserved_bytes"],
            "holders": listed.filter(pl.col("device_id") == row["device_id"]).drop("device_id").to_dicts(),
        }
        for row in peaks.iter_rows(named=True)
    ]
