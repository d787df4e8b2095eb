"""The headline, bars and findings of a report: summaries of all ranks as means, and how much the ranks differ."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from stepscope.core import files
from stepscope.core.report import Bar, Block, Finding, Gain, Note, Part, Report
from stepscope.core.schema import ISSUES
from stepscope.core.step_parts import IDLE
from stepscope.core.table import Column, Table
from stepscope.core.units import count, counted, duration, percent, ranges, size
from stepscope.reports._job import devices_of, measured, owners, runs_of
from stepscope.reports._stragglers import Stragglers, stragglers_among
from stepscope.reports._summary import AHEAD, ENDS, LEAST_SHARE, NO_DEVICE, SLOWEST_STEPS, TALK, gain_text, what_changes
from stepscope.reports._tables import merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.reports._summary import Cost, Summary

_TOOLS = {
    "kineto": "Chrome trace", "perfetto": "Perfetto trace", "ncu-csv": "Nsight Compute", "ncu-text": "Nsight Compute",
    "ncu-rep": "Nsight Compute", "kernel-table": "Kernel table", "nsys": "Nsight Systems",
    "nsys-stats": "Nsight Systems", "requests": "Requests", "metrics": "Engine metrics",
    "expert-hotspots": "Tokens by expert", "expert-counts": "Tokens by expert",
}  # fmt: skip
#: What issues of severity error say about a file, the first that it has.
_LOSSES = {
    "truncated": "Truncated file", "damaged_packing": "Damaged archive", "no_samples": "Recording without samples",
    "": "Damaged file",
}  # fmt: skip
_FACTS = 6  # of the headline of unrelated files
FILES = Table(
    "files",
    "figures of files that are of no one run",
    (
        Column("trace", pl.String(), "the file", key=True),
        Column("n_steps", pl.Int64(), "its steps"),
        Column("mean_ns", pl.Float64(), "mean length of a step; without steps, the time that the bar would show", "ns"),
        Column("busy_ratio", pl.Float64(), "share of it in which a device worked", "ratio"),
        Column("costs_most", pl.String(), "what costs most of it"),
        Column("share_ratio", pl.Float64(), "share of it that this costs", "ratio"),
    ),
)
_DEVICE_USE = "show device-utilisation"
_SHOWN = 3
_LEAST_OF_BAR = 0.005  # of the bar
_APART = 0.03  # smaller differences between ranks are not mentioned
_NEARLY_ALL = 0.98
_LEAST_SLOWDOWN = 0.01  # of the step
_GOOD_PART = 0.1


def overview_of_ranks(summaries: Sequence[Summary], *more_quality: str) -> Report:
    """The report of all ranks of a job, or of a single trace."""
    names = files.labels_of([summary.meta.path for summary in summaries])
    named = [replace(summary, name=name) for summary, name in zip(summaries, names, strict=True)]
    summaries = sorted(named, key=lambda s: (s.meta.rank is None, s.meta.rank or 0))
    n_runs = len(set(runs_of(summaries)))
    if n_runs > 1:
        return _unrelated(summaries, n_runs, more_quality)
    late = _stragglers(summaries)
    chosen = measured(summaries)
    return Report(
        headline=_headline(summaries),
        bars=_bars(chosen, wait_for_each_other=late.compared),
        findings=_findings(chosen, late.findings),
        tables=merged([summary.tables for summary in summaries]),
        quality=(*_quality(summaries), *_partial(len(chosen), len(summaries)), *more_quality),
        issues=_issues(summaries),
        meta=_meta(summaries) | ({"stragglers": [dict(row) for row in late.facts]} if late.compared else {}),
    )


def _unrelated(summaries: Sequence[Summary], n_runs: int, more_quality: Sequence[str]) -> Report:
    """The report of files of several runs: the figures of each file, and nothing over all of them."""
    meta, n = _meta(summaries), len(summaries)
    summaries = [replace(summary, meta=replace(summary.meta, rank=None)) for summary in summaries]  # no ranks of a job
    whose = f"{n} unrelated files" if n_runs == n else f"{n} files of at least {n_runs} unrelated runs"
    facts = [*dict.fromkeys(map(_recorder, summaries)), *dict.fromkeys(name for s in summaries for name in s.devices)]
    read = f"{count(sum(summary.meta.n_events for summary in summaries))} events read"
    rows = []
    for summary in summaries:
        timed = [cost for cost in summary.costs if cost.ns is not None]
        cost = max(timed, key=lambda c: c.ns or 0.0, default=None)
        whole = sum(summary.windows_ns)
        rows.append(
            {
                "trace": summary.label,
                "n_steps": len(summary.numbers),
                "mean_ns": whole / len(summary.windows_ns) if summary.windows_ns else None,
                "busy_ratio": statistics.fmean(summary.busy.values()) if summary.busy else None,
                "costs_most": None if cost is None else cost.title,
                "share_ratio": cost.ns / whole if cost is not None and cost.ns is not None and whole else None,
            }
        )
    note = "These recordings share no job, process, time or program: there are no means or sums over them."
    return Report(
        headline=" · ".join([*facts[:_FACTS], whose, read]),
        tables=(Block("Files", FILES, FILES.conform(pl.DataFrame(rows)), note=note),),
        quality=(*_quality(summaries), *more_quality),
        issues=_issues(summaries),
        meta=meta,
    )


def _partial(n: int, of: int) -> list[str]:
    """A sentence if bar and findings are of some of the files only."""
    rest = "the same devices without steps or with counters, or steps alone"
    text = f"Bar and costs are of {n} of {of} files; the rest show {rest}."
    return [text] if n < of else []


def _stragglers(summaries: Sequence[Summary]) -> Stragglers:
    packs = [summary.calls for summary in summaries if summary.calls is not None]
    if len(packs) < 2:
        return Stragglers()
    steps = [length for summary in summaries if summary.numbers for length in summary.windows_ns]
    return stragglers_among(packs, step_ns=statistics.fmean(steps) if steps else None)


def _quality(summaries: Sequence[Summary]) -> list[str]:
    """A sentence for each kind of lack: that of the first rank that has it."""
    sentences = []
    for kind in dict.fromkeys(lack.kind for summary in summaries for lack in summary.quality):
        having = [(summary, lack.text) for summary in summaries for lack in summary.quality if lack.kind == kind]
        (first, text), n = having[0], len(having)
        if len(summaries) > 1 and (n < len(summaries) or len({each_text for _, each_text in having}) > 1):
            also = f", alike on {counted(n - 1, 'other')}" if n > 1 else ""
            text = f"{text.removesuffix('.')} (on {first.label}{also})."
        sentences.append(text)
    return sentences


def _headline(summaries: Sequence[Summary]) -> str:
    damage = _damage(summaries)
    facts = [damage] if damage else []
    facts += [_recorder(summaries[0])]
    devices = devices_of(summaries)
    facts += [name if n == 1 else f"{n} × {name}" for name, n in devices.items()]
    launches = [summary.n_launches for summary in summaries if summary.n_launches is not None]
    if not devices and not launches and any(summary.parts for summary in summaries):
        unknown = [] if damage else ["device work not recorded"]
        facts += unknown if damage or _lacks_device(summaries) else ["CPU only"]
    facts += filter(None, [_whose(summaries), _steps(summaries)])
    facts += next(
        (summary.facts for summary in summaries if summary.facts), ()
    )  # ranks of a model run the same batches
    if len(launches) == len(summaries):
        whole = sum(summary.recorded_ns for summary in summaries)
        facts += [f"{duration(whole)} in kernels"] if whole else []
        facts.append(f"{counted(sum(launches), 'launch', 'launches')} read")
        return " · ".join(facts)
    longest = max(summary.recorded_ns for summary in summaries)
    is_of_sums = not longest and any(summary.tables for summary in summaries)
    facts += [] if is_of_sums else [f"{duration(longest)} recorded"]
    facts.append(f"{count(sum(summary.meta.n_events for summary in summaries))} events read")
    return " · ".join(facts)


def _recorder(summary: Summary) -> str:
    """The framework that was recorded, else the tool that recorded."""
    meta = summary.meta
    if meta.facts.get("rocpd_schema") == "2":
        return " · ".join(filter(None, ("rocmProfileData", meta.framework)))
    version = (meta.framework_version or "").partition("+")[0]
    return f"{meta.framework} {version}".strip() if meta.framework else _TOOLS.get(meta.format, meta.format)


def _unit(summaries: Sequence[Summary]) -> str:
    """What the files of a job are: ranks, or no more than files."""
    return "rank" if all(summary.meta.rank is not None for summary in summaries) else "file"


def _damage(summaries: Sequence[Summary]) -> str:
    """What is wrong with the files, and what the loss may have changed; '' if nothing was lost."""
    codes = [_codes_of_loss(summary) for summary in summaries]
    damaged = [summary for summary, lost in zip(summaries, codes, strict=True) if lost]
    if not damaged:
        return ""
    what = next(text for code, text in _LOSSES.items() if any(code in lost for lost in codes) or not code)
    if len(summaries) > 1:
        what = f"{what} ({len(damaged)} of {len(summaries)} files)"
    if any(summary.devices or summary.n_launches for summary in damaged):
        missing = "later events may be missing"
    else:
        missing = "device work is missing" if _lacks_device(damaged) else "device work may be missing"
    steps = ", the last step may be incomplete" if any(summary.numbers for summary in damaged) else ""
    return f"{what}: {missing}{steps}"


def _codes_of_loss(summary: Summary) -> set[str]:
    """The codes of issues with which events were lost."""
    if summary.issues is None or summary.issues.is_empty():
        return set()
    return set(summary.issues.filter(pl.col("severity") == "error")["code"].cast(pl.String).to_list())


def _lacks_device(summaries: Sequence[Summary]) -> bool:
    """Whether the host launched device work of which nothing was recorded."""
    return any(lack.kind == NO_DEVICE for summary in summaries for lack in summary.quality)


def _whose(summaries: Sequence[Summary]) -> str:
    ranks = [summary.meta.rank for summary in summaries if summary.meta.rank is not None]
    world = summaries[0].meta.world_size
    if len(summaries) == 1:
        if not ranks or (world or 1) == 1:
            return ""
        return f"rank {ranks[0]} of {world}"
    files = Counter(owners(summaries))
    n, n_owners, each = len(summaries), len(files), set(files.values())
    if len(ranks) < n:
        if n_owners == 1:
            shared = set.intersection(*(set(summary.pids) for summary in summaries))
            return f"{n} files of one process" if shared else f"{n} files"
        of = "device" if sum(devices_of(summaries).values()) == n_owners else "process"
        return f"{n} files" + (f", {each.pop()} of each {of}" if len(each) == 1 and n_owners < n else "")
    distinct = len(set(ranks))
    whose = f"ranks {ranges(ranks)}" if distinct > 1 else f"rank {ranks[0]}"
    of_world = f" of {world}" if world and world != distinct else ""
    if distinct == n:
        return whose + of_world
    return f"{whose}{of_world}, {f'{each.pop()} files each' if len(each) == 1 and distinct > 1 else f'{n} files'}"


def _steps(summaries: Sequence[Summary]) -> str:
    numbers = sorted({number for summary in summaries for number in summary.numbers})
    if not numbers:
        return ""
    clock = " on the device's clock" if _host_ahead(summaries) else ""
    return (f"steps {ranges(numbers)} ({len(numbers)})" if len(numbers) > 1 else f"step {numbers[0]}") + clock


def _host_ahead(summaries: Sequence[Summary]) -> float | None:
    """How long the host takes to queue a step, mean, where it runs ahead of the device; else None. Units: ns."""
    host = [length for summary in summaries for length in summary.host_ns]
    windows = [length for summary in summaries if summary.host_ns for length in summary.windows_ns]
    if not host or statistics.fmean(host) >= AHEAD * statistics.fmean(windows):
        return None
    return statistics.fmean(host)


def _bars(summaries: Sequence[Summary], *, wait_for_each_other: bool) -> tuple[Bar, ...]:
    timed = [summary for summary in summaries if summary.parts]
    if not timed:
        return ()
    whole = sum(sum(summary.windows_ns) for summary in timed)
    names = dict.fromkeys(name for summary in timed for name in summary.parts)
    parts = [Part(name, sum(s.parts.get(name, 0) for s in timed) / whole) for name in names] if whole else []
    lengths = [length for summary in timed for length in summary.windows_ns]
    stepped = any(summary.numbers for summary in timed)
    value = duration(statistics.fmean(lengths))
    if stepped and len(lengths) > 2 and whole:
        value += f" ±{percent(statistics.stdev(lengths) / statistics.fmean(lengths))}"
    whole_label = "Device" if timed[0].devices else "Recording"
    label = "Step" if stepped else whole_label if timed[0].n_launches is None else "Kernels"
    ahead = _host_ahead(timed)
    clock = "" if ahead is None else f"step on the device's clock: the host queues one in {duration(ahead)}"
    notes = [Note(clock, "steps", SLOWEST_STEPS)] if clock else []
    notes += [*_apart(timed, named=not wait_for_each_other), *_busy(timed), *_mfu(timed), *_use(timed), *_memory(timed)]
    if len(summaries) == 1:
        notes += summaries[0].notes
    notes += _while_idle(timed, whole)
    if not timed[0].devices and (_damage(summaries) or _lacks_device(summaries)):
        notes.insert(0, Note("time of the host alone: the file holds no device work", "data", "show issues"))
    return (Bar(label, value, tuple(part for part in parts if part.ratio > 0), tuple(notes)),)


def _apart(summaries: Sequence[Summary], *, named: bool) -> list[Note]:
    """How much the mean steps of ranks differ. With `named` it says which ranks are slowest and fastest."""
    lengths: dict[str, list[int]] = {}
    for s in summaries:
        if s.numbers:
            lengths.setdefault(s.label, []).extend(s.windows_ns)
    means = {label: statistics.fmean(own) for label, own in lengths.items()}
    if len(means) < 2:
        return []
    slow, fast = max(means, key=lambda k: means[k]), min(means, key=lambda k: means[k])
    if means[slow] < means[fast] * (1 + _APART):
        return []
    if not named:
        text = f"mean steps of {_unit(summaries)}s from {duration(means[fast])} to {duration(means[slow])}"
    else:
        text = f"slowest {slow}: {duration(means[slow])}, fastest {fast}: {duration(means[fast])}"
    return [Note(text, "steps", SLOWEST_STEPS)]


def _busy(summaries: Sequence[Summary]) -> list[Note]:
    one = len(summaries) == 1
    busy = {
        " ".join(filter(None, ("" if one else s.label, name if len(s.busy) > 1 else ""))): ratio
        for s in summaries
        for name, ratio in s.busy.items()
    }
    if not busy:
        return []
    mean = _weighted(summaries, {i: statistics.fmean(s.busy.values()) for i, s in enumerate(summaries) if s.busy})
    several = any(len(s.busy) > 1 for s in summaries)
    of = f", mean of {sum(devices_of(summaries).values()) or len(busy)} devices" if several else ""
    least = min(busy, key=lambda k: busy[k])
    apart = f" (least: {least}, {percent(busy[least])})" if mean - busy[least] > _APART else ""
    return [Note(f"device busy {percent(mean)}{of}{apart}", "device use", _DEVICE_USE)]


def _mfu(summaries: Sequence[Summary]) -> list[Note]:
    """MFU, mean over ranks; a lower bound if not all matrix products are known."""
    ratios = {i: s.use["mfu_ratio"] for i, s in enumerate(summaries) if "mfu_ratio" in s.use}
    if not ratios:
        return []
    known = min(s.use["mfu_known_ratio"] for s in summaries if "mfu_known_ratio" in s.use)
    least = "" if known > _NEARLY_ALL else "≥ "
    return [Note(f"MFU {least}{percent(_weighted(summaries, ratios))}", "MFU", "show mfu")]


def _weighted(summaries: Sequence[Summary], ratios: Mapping[int, float]) -> float:
    """The mean of shares of the time, by the place of their summary: each counts by its time, as in the bar."""
    wholes = [sum(summaries[i].windows_ns) for i in ratios]
    return statistics.fmean(ratios.values(), wholes if any(wholes) else None)


def _use(summaries: Sequence[Summary]) -> list[Note]:
    """How well kernels use the devices, means over ranks."""
    measures = ("est_sm_efficiency_ratio", "est_occupancy_ratio", "tensor_core_ratio")
    known = [{i: s.use[name] for i, s in enumerate(summaries) if name in s.use} for name in measures]
    efficiency, occupancy, on_units = (percent(_weighted(summaries, ratios)) if ratios else "" for ratios in known)
    estimates = [
        f"{name} {value}" for name, value in (("SM efficiency", efficiency), ("occupancy", occupancy)) if value
    ]
    notes = [Note(f"est. {', '.join(estimates)}", "device use", _DEVICE_USE)] if estimates else []
    of_amd = any(place.startswith("rocm") for s in summaries for place in s.places)
    if not on_units or (of_amd and on_units == "0 %"):  # names of AMD's kernels seldom say what units they use
        return notes
    return [*notes, Note(f"{'matrix' if of_amd else 'tensor'} cores {on_units}", "tensor cores", "show kernel-classes")]


def _while_idle(summaries: Sequence[Summary], whole_ns: int) -> list[Note]:
    """What the hosts do while the devices are idle, as shares of the bar."""
    sums = Counter[str]()
    for summary in summaries:
        sums.update(summary.while_idle)
    activities = [
        f"{what} {percent(ns / whole_ns)}" for what, ns in sums.most_common(3) if ns > _LEAST_OF_BAR * whole_ns
    ]
    if not activities:
        return []
    idle = sum(summary.parts.get(IDLE, 0) for summary in summaries)
    text = f"host during the {percent(idle / whole_ns)} idle: {', '.join(activities)}"
    return [Note(text, "idle time", "show idle")]


def _memory(summaries: Sequence[Summary]) -> list[Note]:
    known = [summary for summary in summaries if summary.memory is not None]
    if not known:
        return []
    top = max(known, key=lambda s: s.memory.peak_bytes if s.memory else 0)
    if top.memory is None:
        return []
    of = f" of {size(top.memory.capacity_bytes)}" if top.memory.capacity_bytes else ""
    whose = f" ({top.label})" if len(summaries) > 1 else " on the host" if top.memory.device == "cpu" else ""
    return [Note(f"peak memory {size(top.memory.peak_bytes)}{of}{whose}", "memory", "show memory")]


def _findings(summaries: Sequence[Summary], late: Sequence[Finding]) -> tuple[Finding, ...]:
    """The largest costs, and the ranks that make others wait (`late`)."""
    with_time = [summary for summary in summaries if sum(summary.windows_ns)]
    if not with_time:
        return tuple(late)
    whole = sum(sum(summary.windows_ns) for summary in with_time)
    kinds = dict.fromkeys(cost.kind for summary in with_time for cost in summary.costs)
    # A recording that begins long before the device's work, and ends long after it, hides no cost of that work.
    unmarked = [cost for summary in with_time if not summary.numbers for cost in summary.costs]
    between = 1 - sum(cost.ns or 0.0 for cost in unmarked if cost.kind == ENDS) / whole
    candidates = []
    for kind in kinds:
        of_rank = {i: cost for i, summary in enumerate(with_time) for cost in summary.costs if cost.kind == kind}
        finding = _finding(with_time, of_rank, whole)
        if finding.share_ratio is None or finding.share_ratio >= LEAST_SHARE * between:
            candidates.append((kind, finding))
    by_worth = sorted(((k, f) for k, f in candidates if f.value_ns is not None), key=lambda kf: _worth(kf[1]))
    timed = by_worth[:_SHOWN]
    if by_worth and (largest := max(by_worth, key=lambda kf: kf[1].value_ns or 0.0)) not in timed:
        timed = [*timed[:-1], largest]  # it says what keeps its gain small
    shown = {kind for kind, _ in timed}
    covered_by = {cost.kind: set(cost.covered_by) for summary in with_time for cost in summary.costs}
    # Findings without a time come last, and only if no finding above covers them.
    more = [finding for kind, finding in candidates if finding.value_ns is None and not covered_by[kind] & shown]
    return (*_causes_first(timed, late), *more)


def _causes_first(timed: Sequence[tuple[str, Finding]], late: Sequence[Finding]) -> list[Finding]:
    """Findings by cost, except that a rank that makes others wait comes before the communication time that it causes.

    It does so if it causes a good part of that time: a cause comes before its effect.
    """
    talk = next((f for kind, f in timed if kind == TALK), None)
    waits = 0.0 if talk is None else talk.value_ns or 0.0
    places = [(_worth(f), 1, f) for _, f in timed]
    for straggler in late:
        cost = straggler.value_ns or 0.0
        cause, facts, *more = straggler.details
        facts += "; part of the communication time" if waits else ""
        finding = replace(straggler, details=(cause, facts, *more))
        is_cause = talk is not None and cost >= _GOOD_PART * waits
        own = _worth(finding)
        places.append((min(own, _worth(talk)) if is_cause and talk is not None else own, 0, finding))
    places.sort(key=lambda place: (*place[:2], -(place[2].value_ns or 0.0)))
    return [finding for _, _, finding in places]


def _worth(finding: Finding) -> tuple[float, float]:
    """Where a finding comes in the order of gains, then of costs. Its share stands for a gain that is not known."""
    gained = finding.share_ratio if finding.gain is None else finding.gain.gain_ratio
    return -round(gained or 0.0, 3), -(finding.value_ns or 0.0)


def _finding(summaries: Sequence[Summary], of_rank: dict[int, Cost], whole_ns: int) -> Finding:
    """One finding for the same cost on several ranks: the mean over all, with the details of the most costly rank."""
    stepped = any(summary.numbers for summary in summaries)
    each = {i: (of_rank[i].ns or 0.0) / summaries[i].n if i in of_rank else 0.0 for i in range(len(summaries))}
    most, least = max(of_rank, key=lambda i: each[i]), min(each, key=lambda i: each[i])
    cost = of_rank[most]
    details = list(cost.details)
    if len(summaries) > 1 and each[most] - each[least] > 0.3 * each[most]:
        much, little = duration(each[most]), duration(each[least]) if each[least] else ""
        if cost.kind == TALK:  # who waits least need not be late: that is for `show stragglers` to find
            lengths = f"{little} to {much}" if little else f"Up to {much}"
            details = [f"{lengths} by {_unit(summaries)}, waits for one another included", *details]
        else:
            few = f"{summaries[least].label}: {little}" if little else f"none on {summaries[least].label}"
            far = f"{summaries[most].label}: {much}, {few}"
            details = [far, f"On {summaries[most].label}: {details[0]}", *details[1:]] if details else [far]
    if cost.ns is None:
        return Finding(cost.title, tuple(details), command=cost.command)
    total = sum(c.ns or 0.0 for c in of_rank.values())
    gain = _mean_gain([c.gain for c in of_rank.values() if c.gain is not None])
    if gain is not None:
        at = next((i for i, detail in enumerate(details) if detail.startswith("→")), len(details))
        details.insert(at, gain_text(gain, what_changes(cost.kind, gain)))
        if gain.slowdown_ns >= _LEAST_SLOWDOWN * gain.step_ns:
            slowed = duration(gain.slowdown_ns)
            details.insert(
                at + 1, f"Up to {slowed} of that is computation that communication beside it slows no longer"
            )
    return Finding(
        title=cost.title,
        details=tuple(details),
        value_ns=total / sum(summary.n for summary in summaries),  # as the bar: a mean over steps, not over ranks
        value_label="per step" if stepped else "in all",
        share_ratio=total / whole_ns if whole_ns else None,
        command=cost.command,
        gain=gain,
    )


def _mean_gain(gains: Sequence[Gain]) -> Gain | None:
    """The mean over ranks; a bound if it is one on any of them."""
    if not gains:
        return None
    times = ("step_ns", "predicted_ns", "low_ns", "high_ns", "slowdown_ns")
    means = {name: statistics.fmean(getattr(gain, name) for gain in gains) for name in times}
    first = next((gain for gain in gains if gain.reason), gains[0])
    ratio = 1 - means["predicted_ns"] / means["step_ns"] if means["step_ns"] else 0.0
    return Gain(first.question, means["step_ns"], means["predicted_ns"], ratio, means["low_ns"], means["high_ns"],
                first.basis, first.reason, first.binds_next, means["slowdown_ns"])  # fmt: skip


def _issues(summaries: Sequence[Summary]) -> pl.DataFrame:
    parts = [summary.issues for summary in summaries if summary.issues is not None]
    if not parts:
        return ISSUES.empty()
    every = pl.concat(parts)
    sums = every.group_by("code", maintain_order=True).agg(
        pl.col("severity").first(), pl.col("count").sum(), pl.col("example").first()
    )
    return ISSUES.conform(sums)


def _meta(summaries: Sequence[Summary]) -> dict[str, object]:
    first = summaries[0].meta
    return {
        "paths": [summary.meta.path for summary in summaries],
        "ranks": [summary.meta.rank for summary in summaries],
        "framework": first.framework,
        "framework_version": first.framework_version,
        "world_size": first.world_size,
        "n_events": sum(summary.meta.n_events for summary in summaries),
        "n_steps": len({number for summary in summaries for number in summary.numbers}),
        "recorded_ns": max(summary.recorded_ns for summary in summaries),
    }
