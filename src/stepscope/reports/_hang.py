"""The report of a job that stands still: the ranks to blame and why, who waits for them, what the dumps lack."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import replace

from stepscope.analyses.communication.hang import HANG_GRAPH, graph_of, hang_of
from stepscope.analyses.communication.hang_from_stacks import doing_now, hang_of_processes
from stepscope.analyses.communication.hang_verdict import verdict_on
from stepscope.core import files, units
from stepscope.core.errors import StepscopeError
from stepscope.core.report import Block, Finding, Report
from stepscope.core.schema import COUNTERS, PROCESSES
from stepscope.core.units import counted, percent, ranges
from stepscope.reports._quality import lacks_of_issues

if TYPE_CHECKING:
    from stepscope.core.trace import Run, Trace

_TITLES = {
    "never arrived": "never arrived",
    "arrived late": "arrived late",
    "other operation": "calls another operation than the others",
    "other size": "calls with another size than the others",
    "other dtype": "calls with another element type than the others",
    "other order": "calls things in another order than the others",
    "process gone": "is gone: its process has ended",
    "dump missing": "left no dump: its process is probably gone",
    "link": "is at one end of a link on which nothing moves",
}
_ADVICE = {
    "never arrived": "look at what this process does: py-spy dump --pid N on its host, nvidia-smi for its device",
    "arrived late": "find what delayed it before that call: data loading, checkpoints, a stalled host",
    "other operation": "compare the branches of the program that the ranks take before that call",
    "other size": "compare shapes before that call: the last batch, padding, uneven shards",
    "other dtype": "compare element types before that call: autocast, the dtype of a parameter",
    "other order": "make all ranks enqueue the collectives of these groups in one order",
    "process gone": "look into its log and the kernel's (dmesg): out of memory, a signal, a lost node",
    "dump missing": "look into its log and the kernel's (dmesg): out of memory, a signal, a lost node",
    "link": "test the network between the two hosts (nccl-tests, ib_write_bw), and their error counters",
}
_NOW_KNOWN = "find out why that call does not end: data, a lock, a file system, a device; the stacks are in the folder"
_NOBODY = "Nobody to blame: no process stands in a collective"
_CHAINS_SHOWN = 8
_SHOWN = ("rank", "waits_for", "culprit", "hops", "operation", "seq", "group_desc", "line")
_MOST_FRAMES = 12
#: So many times that a job stood still are told in the report of its recording.
_MOST_HANGS = 2
_PROCESSES, _COUNTERS = 16, 24
_PROCESSES_SHOWN = ("rank", "pid", "state", "cores_used", "awaits", "function", "line")


def hang_report(trace: Trace) -> Report:
    """The report of a job that stands still: of its dumps, or else of its processes alone."""
    return processes_report(trace) if trace.group_status.is_empty() else dumps_report(trace)


def with_hangs(report: Report, source: Run) -> Report:
    """The report of a recording with who was to blame, first, when no step ended and its processes were asked."""
    if report.issues is None:
        return report
    noted = report.issues.filter(pl.col("code").cast(pl.String) == "hang")["example"].cast(pl.String)
    names = noted.str.extract(r"\b(hang-\d{1,9})$").drop_nulls().unique().sort().head(_MOST_HANGS)
    folders = list(dict.fromkeys(files.split(str(path))[0] for path in source.paths))
    findings: list[Finding] = []
    for folder, name in ((folder, name) for name in names for folder in folders):
        path = files.joined(files.joined(folder, name), "processes.json")
        if not files.exists(path):
            continue
        try:
            asked = hang_report(source.open_trace(path))
        except StepscopeError:  # an issue says where to look
            continue
        where = f"asked then: stepscope report {shlex.quote(files.joined(folder, name))}"
        findings += [replace(one, title=f"Hung: {one.title}", details=(*one.details, where), command="")
                     for one in asked.findings]  # fmt: skip
    return replace(report, findings=(*findings, *report.findings)) if findings else report


def processes_report(trace: Trace) -> Report:
    """The report of processes that were asked while they ran, without dumps."""
    processes = trace.processes
    table = hang_of_processes(processes)
    culprits = table.drop_nulls("rank")
    blamed = culprits["rank"].to_list()
    ranks = processes["rank"].drop_nulls().unique().sort().to_list()
    innocent = [rank for rank in ranks if rank not in blamed]
    verdict, text = table.select("verdict", "text").row(0)
    world = max([*processes["world_size"].drop_nulls(), len(ranks)])
    asked = [f"{counted(processes.height, 'process', 'processes')} asked"]
    asked += [f"{len(ranks)} of {world:,} ranks"] if ranks else []
    now = {row["rank"]: doing_now(row) for row in processes.iter_rows(named=True)}
    unknown = processes.filter(pl.col("problem").is_not_null())
    lacks = [
        f"The stacks of {counted(unknown.height, 'process', 'processes')} are not known: {problem}."
        for problem in unknown["problem"].head(1)
    ]
    shown = processes.select(_PROCESSES_SHOWN).head(_PROCESSES)
    return Report(
        headline=" · ".join([_NOBODY if verdict == "healthy" else _verdict(verdict, blamed), *asked]),
        findings=tuple(_finding(row, now.get(row["rank"], "")) for row in culprits.iter_rows(named=True)),
        tables=(Block("What each process does", PROCESSES, shown, "show processes"), *_devices(trace)),
        quality=(*([text] if not blamed else []), *([f"Innocent: {_ranks(innocent)}."] if blamed and innocent else []),
                 *lacks, *_lacks(trace)),
        issues=trace.issues,
        meta={"paths": [trace.meta.path], "world_size": world, "n_processes": processes.height},
        findings_title="Who is to blame",
        more={"hang": _document(trace, table, HANG_GRAPH.empty(), innocent, {})},
    )  # fmt: skip


def dumps_report(trace: Trace) -> Report:
    """The report of the dumps of a flight recorder, with what the processes were doing if they were asked."""
    outcome = verdict_on(trace.collective_records, trace.group_status)
    table = hang_of(outcome, trace.collective_records)
    graph = graph_of(outcome)
    origin = trace.meta.origin_unix_ns
    culprits = table.drop_nulls("rank")
    waits = outcome.waits
    blamed = set(culprits["rank"].to_list())
    innocent = [rank for rank in sorted(waits.known) if rank not in blamed]
    n_dumps = len(waits.known) + sum(why != "its dump is missing" for why in waits.silent.values())
    since = culprits["since_ns"].min()
    facts = [_verdict(outcome.verdict, sorted(blamed)), f"dumps of {n_dumps:,} of {waits.world:,} ranks"]
    if isinstance(since, int):
        facts.append(f"since {units.instant(origin + since) if origin is not None else units.duration(since)}")
    facts.append(f"{units.count(trace.collective_records.height)} records read")
    who = [f"Innocent: {_ranks(innocent)}."] if blamed and innocent else []
    chains = graph.select(_SHOWN)
    now = {row["rank"]: doing_now(row) for row in trace.processes.iter_rows(named=True)}
    blocks = [Block("Who waits for whom", HANG_GRAPH, chains.head(_CHAINS_SHOWN), "show hang-graph")]
    return Report(
        headline=" · ".join(facts),
        findings=tuple(_finding(row, now.get(row["rank"], "")) for row in culprits.iter_rows(named=True)),
        tables=(*(blocks if graph.height else ()), *_devices(trace)),
        quality=(*([outcome.text] if outcome.text else []), *who, *_silent(waits.silent, blamed), *_lacks(trace)),
        issues=trace.issues,
        meta={"paths": [trace.meta.path], "world_size": waits.world, "n_dumps": n_dumps},
        findings_title="Who is to blame",
        more={"hang": _document(trace, table, graph, innocent, waits.silent)},
    )


def _devices(trace: Trace) -> tuple[Block, ...]:
    """What the accelerators reported when the job was asked."""
    rows = trace.counters.select("device", "metric", "unit", "value")
    block = Block("What the devices report", COUNTERS, rows.head(_COUNTERS), "show counters")
    return (block,) if rows.height else ()


def _verdict(verdict: str, blamed: list[int]) -> str:
    if verdict == "healthy":
        return "Healthy: no rank waits in vain"
    return f"{verdict.capitalize()}: {_ranks(blamed) + ' to blame' if blamed else 'no single rank to blame'}"


def _ranks(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"


def _finding(row: dict[str, Any], now: str) -> Finding:
    title = f"Rank {row['rank']} {_TITLES[row['reason']]} ({percent(row['confidence_ratio'])} sure)"
    details = [row["text"], *([now] if now else [])]
    if row["line"] and row["group"] is not None:
        details.append(f"Its last recorded call is at {row['line']}.")
    if row["awaited_line"] and row["awaited_line"] != row["line"]:
        details.append(f"The others are at {row['awaited_line']}.")
    if row["n_waiting"]:
        details.append(f"{counted(row['n_waiting'], 'rank waits', 'ranks wait')} for it, directly or through others.")
    command = "show processes" if row["group"] is None and now else "show hang-graph"
    # Its stack is in the lines above.
    advice = _NOW_KNOWN if now and row["reason"] in ("never arrived", "arrived late") else _ADVICE[row["reason"]]
    return Finding(title, (*details, f"→ {advice}"), command=command)


def _silent(silent: Any, blamed: set[int]) -> list[str]:
    """Sentences on the ranks of which there is no whole dump."""
    by_reason: dict[str, list[int]] = {}
    for rank, why in silent.items():
        by_reason.setdefault(why.removeprefix("its dump is "), []).append(rank)
    sentences = []
    for why, ranks in by_reason.items():
        free = [rank for rank in ranks if rank not in blamed]
        doubt = f"; {_ranks(free)} cannot be excluded" if blamed and free else ""
        dumps = "The dump" if len(ranks) == 1 else "The dumps"
        sentences.append(f"{dumps} of {_ranks(sorted(ranks))} {'is' if len(ranks) == 1 else 'are'} {why}{doubt}.")
    return sentences


def _lacks(trace: Trace) -> list[str]:
    with_ranks = ("missing_dumps", "empty_dumps")  # said with their ranks
    return [lack.text for lack in lacks_of_issues(trace.issues.filter(~pl.col("code").is_in(with_ranks)))]


def _document(
    trace: Trace, table: pl.DataFrame, graph: pl.DataFrame, innocent: list[int], silent: Any
) -> dict[str, Any]:
    """The verdict as data."""
    frames = dict(trace.stacks.select("stack_id", "frames").iter_rows())
    culprits = [
        {
            **{name: row[name] for name in ("rank", "reason")},
            "confidence": row["confidence_ratio"],
            **{name: row[name] for name in ("group", "group_desc", "operation", "seq", "since_ns", "n_waiting")},
            **{name: row[name] for name in ("line", "awaited_line", "text")},
            "stack": (frames.get(row["stack_id"]) or [])[-_MOST_FRAMES:],
        }
        for row in table.drop_nulls("rank").iter_rows(named=True)
    ]
    return {
        "verdict": table["verdict"][0],
        "text": "" if culprits else table["text"][0],
        "culprits": culprits,
        "waiting": graph.drop("stack_id").to_dicts(),
        "innocent": innocent,
        "without_dump": {str(rank): why for rank, why in silent.items()},
    }
