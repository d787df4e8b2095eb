"""Ranks that make others wait: the calls that each rank contributes, and the findings made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from stepscope import store
from stepscope.core import files
from stepscope.core.errors import MissingTable
from stepscope.core.report import Finding
from stepscope.core.units import counted, duration, percent, sum_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from stepscope.analyses.ranks.calls import RankCalls
    from stepscope.analyses.ranks.stragglers import Evidence
    from stepscope.core.trace import Trace

#: Collective calls of all ranks that a report analyses: more would take many seconds and over half a gigabyte.
MOST_CALLS = 1_000_000
_SHOWN = 3
SPREAD_EXPERTS = (
    "→ spread experts anew or copy busy ones: --enable-eplb of vLLM and SGLang; in training, a balancing loss"
)
#: Ranks with that much more than the mean of tokens make experts uneven.
UNEVEN = 1.1
_IN_PHASE = {"forward": "in the forward pass", "backward": "in the backward pass", "optimizer": "in the optimizer"}
_FACTS = (
    "rank", "kind", "cause", "lateness_ns", "blame_ns", "share_ratio", "confidence", "pattern", "phase", "since_step",
    "until_step", "period", "peer", "group", "evidence",
)  # fmt: skip


class Stragglers(msgspec.Struct, frozen=True):
    """Ranks that make others wait: as findings, the largest first, and as `facts` for JSON.

    `compared` says whether ranks share collectives. If so each waits for the rest, and step times do not show which
    rank is slow.
    """

    findings: tuple[Finding, ...] = ()
    facts: tuple[Mapping[str, object], ...] = ()
    compared: bool = False


def packed_calls(trace: Trace, most: int, work: pl.DataFrame | None = None) -> bytes | None:
    """The rank's first `most` collective calls, in whole steps, as bytes; None if it has none that can be compared.

    `work` is what `device_work` returns, if that is known already.
    """
    from stepscope.analyses.ranks.calls import first_calls, rank_calls  # a single trace does without

    try:
        calls = rank_calls(trace, work=work)
    except MissingTable:
        return None
    return store.packed(first_calls(calls, most))


def stragglers_among(packs: Sequence[bytes], *, step_ns: float | None) -> Stragglers:
    """The ranks that make others wait, from the `packed_calls` of each rank; empty for a healthy job.

    `step_ns` is the mean time of a step, which turns shares into times; None without steps.
    """
    from stepscope.analyses.ranks.stragglers import straggler_evidence  # a single trace does without

    parts = _unpacked(packs)
    try:
        evidence = straggler_evidence(parts)
    except MissingTable:  # a single rank, or ranks that share no collective
        return Stragglers()
    rows = evidence.stragglers.rows(named=True)
    findings = [_finding(row, evidence, step_ns) for row in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        more = f"and {counted(len(rows) - _SHOWN, 'more rank or link', 'more ranks or links')} that cost less"
        findings[-1] = replace(findings[-1], details=(*findings[-1].details, more))
    findings += _uneven_experts(parts, step_ns)
    return Stragglers(tuple(findings), tuple({name: row[name] for name in _FACTS} for row in rows), compared=True)


def _uneven_experts(parts: Sequence[RankCalls], step_ns: float | None) -> list[Finding]:
    """That experts get uneven loads, if that makes ranks wait."""
    from stepscope.analyses.ranks.experts import experts

    if not any((part.calls["kind"] == "alltoall").any() for part in parts):
        return []
    try:
        layers = experts(parts)
    except MissingTable:
        return []
    waited = sum_of(layers["total_wait_ns"])
    ratio = sum_of(layers["most_bytes"] * layers["n"]) / max(sum_of(layers["received_bytes"] * layers["n"]), 1)
    if ratio < UNEVEN or not waited:
        return []
    n_steps = max(part.calls["step"].drop_nulls().n_unique() for part in parts)
    each_ns = waited / n_steps if n_steps else waited
    worst = layers.row(0, named=True)
    wait = f"Ranks wait {duration(each_ns)} {'a step' if n_steps else 'in all'} for the results of others, on the mean"
    most = f"Layer {worst['layer']} costs most: rank {worst['rank']} gets {worst['imbalance_ratio']:.2f} times"
    title = f"Experts are loaded unevenly: who gets most tokens gets {ratio:.2f} times the mean"
    share = each_ns / step_ns if step_ns and n_steps else None
    label = "per step" if n_steps else "in all"
    return [Finding(title, (wait, f"{most} the mean", SPREAD_EXPERTS), each_ns, label, share, "show experts")]


def _unpacked(packs: Sequence[bytes]) -> list[RankCalls]:
    """The calls of all ranks. Ranks of a group share one tuple of its members, to save memory."""
    from stepscope.analyses.ranks.calls import RankCalls

    members: dict[tuple[int, ...], tuple[int, ...]] = {}
    parts: list[RankCalls] = []
    for pack in packs:
        part = store.unpacked(pack, RankCalls)
        comms = tuple(
            comm if comm.members is None else replace(comm, members=members.setdefault(comm.members, comm.members))
            for comm in part.comms
        )
        parts.append(replace(part, comms=comms))
    return parts


def _finding(row: Mapping[str, Any], evidence: Evidence, step_ns: float | None) -> Finding:
    who = _name(row["rank"], evidence)
    if row["kind"] == "slow rank":
        title = f"{who} makes the others wait"
    elif row["peer"] is not None:
        title = f"The link between {who.lower()} and {_name(row['peer'], evidence).lower()} is slow"
    elif row["rank"] is not None:
        title = f"The links of {who.lower()} are slow"
    else:
        title = f"A link among ranks {row['group']} is slow"
    share = float(row["share_ratio"])
    facts = [_when(row), _IN_PHASE.get(row["phase"] or "", ""), f"confidence {percent(row['confidence'])}"]
    return Finding(
        title=title,
        details=(f"{row['cause'].capitalize()}: {row['evidence']}", ", ".join(filter(None, facts))),
        value_ns=float(row["blame_ns"]) if step_ns is None else share * step_ns,
        value_label="in all" if step_ns is None else "per step",
        share_ratio=share,
        command="show stragglers",
    )


def _name(rank: int | None, evidence: Evidence) -> str:
    """The name of a rank: its number, or its file if the trace does not have the number."""
    if rank is None:
        return ""
    at = evidence.job.ranks.index(rank)
    if evidence.job.parts[at].rank is not None:
        return f"Rank {rank}"
    return files.labels_of([part.label for part in evidence.job.parts])[at]


def _when(row: Mapping[str, Any]) -> str:
    """When the rank makes others wait."""
    first, last = row["since_step"], row["until_step"]
    since = f"since {duration(row['since_ns'])} into the recording" if first is None else f"since step {first}"
    if row["pattern"] == "periodic" and row["period"]:
        return f"every {row['period']} steps, {since}"
    if row["pattern"] == "since":
        return since
    if row["pattern"] == "transient":
        within = f"between {duration(row['since_ns'])} and {duration(row['until_ns'])} of the recording"
        return within if first is None else f"in step {first}" if first == last else f"in steps {first} to {last}"
    pattern = {"steady": "all the time", "irregular": "now and then"}.get(row["pattern"], since)
    steps = "" if first is None else f" of step {first}" if first == last else f" of steps {first} to {last}"
    return f"{pattern}, over {counted(row['exchanges'], 'collective')}{steps}"
