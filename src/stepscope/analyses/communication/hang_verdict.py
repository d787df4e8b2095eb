"""The verdict on a job that may stand still: the ranks at the ends of all waits, and what each of them did."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec
import polars as pl

from stepscope.analyses.communication.call_order import against_the_order, departures, unlike_their_peers
from stepscope.analyses.communication.wait_graph import Call, Instance, Key, Waits, components, waits_of
from stepscope.core.units import counted, duration, ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Verdict = Literal["hung", "crashed", "healthy"]
#: A job whose dumps were written this soon after the newest record is still at work.
_AT_WORK_NS = 10**9
_LATE_NS = 10**9
#: A rank is late if it comes this many times later than ranks usually differ.
_UNUSUAL = 20


class Culprit(msgspec.Struct, frozen=True):
    """A rank to blame: why, how sure that is, and the call in which others wait for it."""

    rank: int
    reason: str
    confidence: float
    instance: Instance | None
    text: str


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """The verdict on a job, with all that it rests on."""

    verdict: Verdict
    culprits: tuple[Culprit, ...]
    waits: Waits
    edges: Mapping[int, Mapping[int, Key]]
    text: str = ""


def verdict_on(records: pl.DataFrame, status: pl.DataFrame) -> Outcome:
    """The verdict on a job, from the tables `collective_records` and `group_status` of all ranks."""
    waits = waits_of(records, status)
    if not waits.instances and not waits.stalled:
        return Outcome("healthy", (), waits, {}, "Every collective that was recorded has ended.")
    age = _age_ns(records, status)
    if age is not None and 0 <= age < _AT_WORK_NS:
        text = f"Collectives are under way, and the dumps were written {duration(age)} after the newest call."
        return Outcome("healthy", (), waits, {}, text)
    deviants = {key: ranks for key in waits.instances if (ranks := _deviants(waits, key))}
    edges, stuck = _edges(waits, deviants)
    culprits = _ends(waits, edges, stuck, deviants)
    if not culprits:
        culprits = _earlier_mismatch(waits)
    gone = bool(culprits) and all(one.reason in ("dump missing", "process gone") for one in culprits.values())
    ordered = tuple(culprits[rank] for rank in sorted(culprits))
    return Outcome("crashed" if gone else "hung", ordered, waits, edges, "" if ordered else _no_culprit(waits, stuck))


def _age_ns(records: pl.DataFrame, status: pl.DataFrame) -> int | None:
    """How long after the newest record the last dump was written; None if unknown."""
    written = status["dumped_ns"].max()
    newest = records.select(pl.max_horizontal(pl.col("created_ns", "completed_ns").max())).item()
    return written - newest if isinstance(written, int) and isinstance(newest, int) else None


def _deviants(waits: Waits, key: Key) -> dict[int, str]:
    """The ranks whose call is not the one that the others make there, with the reason."""
    calls = waits.instances[key].calls
    if key.source >= 0 or len({call.signature for call in calls.values()}) < 2:
        return {}
    return _minority({rank: call.signature for rank, call in calls.items()}, waits, key)


def _minority(signatures: Mapping[int, str], waits: Waits, key: Key) -> dict[int, str]:
    counts = Counter(signatures.values())
    (most, n), (_, second), *_ = counts.most_common(2)
    if n == second:
        most = _by_other_groups(waits, key, [s for s, count in counts.items() if count == n]) or ""
        if not most:
            unusual = {rank for rank in signatures if departures(waits, rank)}
            fitting = {signatures[rank] for rank in signatures if rank not in unusual}
            if len(fitting) != 1:
                return {}
            most = fitting.pop()
    return {rank: _difference(own, most) for rank, own in signatures.items() if own != most}


def _difference(own: str, usual: str) -> str:
    mine, theirs = own.split("|"), usual.split("|")
    if mine[0] != theirs[0]:
        return "other operation"
    return "other dtype" if mine[1:2] == theirs[1:2] else "other size"


def _by_other_groups(waits: Waits, key: Key, choices: Sequence[str]) -> str | None:
    """Which of the calls the groups of the same kind make under the same number."""
    desc = waits.groups[key.group].desc
    same_kind = [group for group, one in waits.groups.items() if one.desc == desc and group != key.group]
    rows = waits.records.filter(
        pl.col("key").is_in(same_kind)
        & (pl.col("seq") == key.seq)
        & ~pl.col("is_p2p")
        & pl.col("signature").is_in(choices)
    )
    votes = Counter(rows["signature"].to_list()).most_common(2)
    return votes[0][0] if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]) else None


def _edges(
    waits: Waits, deviants: Mapping[Key, Mapping[int, str]]
) -> tuple[dict[int, dict[int, Key]], dict[int, list[Key]]]:
    """Whom each rank waits for, with the call; and the calls that all members made and that do not end."""
    edges: dict[int, dict[int, Key]] = defaultdict(dict)
    stuck: dict[int, list[Key]] = defaultdict(list)
    blamed = {rank for ranks in deviants.values() for rank in ranks}
    for key, instance in waits.instances.items():
        targets = set(instance.absent) | set(deviants.get(key, {}))
        complete = not targets and not instance.unknown
        if complete:
            targets = {rank for rank in instance.calls if _is_held_up(waits, rank, instance)}
        for rank, call in instance.calls.items():
            stalled = waits.stalled_calls.get(rank)
            if stalled is not None and stalled.record_id < call.record_id:
                continue  # its device has not come so far
            if rank in blamed or _is_no_excuse(waits, rank, key):
                continue
            for target in targets - {rank}:
                edges[rank].setdefault(target, key)
            if complete and not targets and call is not None:
                stuck[rank].append(key)
    return edges, stuck


def _is_held_up(waits: Waits, rank: int, instance: Instance) -> bool:
    """Whether a rank that made the call still has an earlier one to end."""
    mine = instance.calls[rank].record_id
    if rank in waits.stalled and waits.stalled_calls[rank].record_id < mine:
        return True
    first = waits.of_rank[rank][0]
    return waits.instances[first].calls[rank].record_id < mine


def _is_no_excuse(waits: Waits, rank: int, key: Key) -> bool:
    """Whether a rank is missing elsewhere although its open call did not stop its peers from getting there.

    Peers are the ranks that made the call from which it is missing. If most of them made it while the call of the same
    kind and number was open for them too, then that call is not what holds up the rank.
    """
    missing_from = [one for one in waits.instances.values() if rank in one.absent and one.key.source < 0]
    if not missing_from:
        return False
    desc, is_message = waits.instances[key].desc, key.source >= 0
    for one in missing_from:
        passed = 0
        for peer, call in one.calls.items():
            for other in waits.of_rank[peer]:
                if (
                    other.seq == key.seq
                    and (other.source >= 0) == is_message
                    and waits.instances[other].desc == desc
                    and other != key
                    and waits.instances[other].calls[peer].record_id < call.record_id
                ):
                    passed += 1
                    break
        if passed and passed * 2 >= len(one.calls):
            return True
    return False


def _ends(
    waits: Waits,
    edges: Mapping[int, Mapping[int, Key]],
    stuck: Mapping[int, list[Key]],
    deviants: Mapping[Key, Mapping[int, str]],
) -> dict[int, Culprit]:
    """The culprits: where the waits end."""
    made = [
        _deviant(waits.instances[key], rank, reason, len(ranks))
        for key, ranks in sorted(deviants.items(), key=lambda item: _time(waits.instances[item[0]]))
        for rank, reason in ranks.items()
    ]
    culprits = {one.rank: one for one in reversed(made)}
    nodes = sorted({*edges, *(target for targets in edges.values() for target in targets)})
    numbered = {rank: tuple(targets) for rank, targets in edges.items()}
    idle = _idle_beyond_timeout(waits)
    for component in components(numbered, nodes):
        inside = set(component)
        if any(target not in inside for rank in component for target in edges.get(rank, ())):
            continue
        if any(_waits_for_unknown(waits, rank) for rank in component):
            continue  # a rank without a dump explains it
        if len(component) > 1 and idle:
            continue  # others gave up when a rank was late, and their calls no longer say who waits for whom
        if len(component) > 1:
            culprits.update(_in_a_circle(waits, edges, component))
        elif component[0] not in culprits and not stuck.get(component[0]):
            culprits[component[0]] = _absent(waits, edges, component[0])
    for key in sorted({key for keys in stuck.values() for key in keys}, key=lambda k: _time(waits.instances[k])):
        culprits = {**_of_a_whole_call(waits, waits.instances[key]), **culprits}
    culprits = {**{rank: _without_dump(waits, rank) for rank in _unknown(waits, culprits)}, **culprits}
    # What follows is seen in the records of a rank whatever others wait for.
    culprits = {**_later_deviants(waits, culprits), **idle, **culprits}
    confident = 0.8 if culprits else 0.6
    stalled = {
        rank: Culprit(rank, "never arrived", confident, None, _stalled_text(key, waits.stalled_calls[rank]))
        for rank, key in waits.stalled.items()
    }
    return {**stalled, **culprits}


def _later_deviants(waits: Waits, known: Mapping[int, Culprit]) -> dict[int, Culprit]:
    """The ranks that differ from most members in a call that waits for earlier ones of its group."""
    made: dict[int, Culprit] = {}
    for key, calls in waits.open_calls.items():
        signatures = {rank: call.signature for rank, call in calls.items()}
        if len(set(signatures.values())) < 2 or (len(calls) == 2 and known.keys() & calls.keys()):
            continue
        blamed = _minority(signatures, waits, key)
        group = waits.groups[key.group]
        instance = Instance(key, group.desc, dict(calls), members=group.members)
        for rank, reason in blamed.items():
            made.setdefault(rank, _deviant(instance, rank, reason, len(blamed)))
    return made


def _idle_beyond_timeout(waits: Waits) -> dict[int, Culprit]:
    """The ranks that called nothing for longer than others wait, and then made a call that others had given up."""
    last = pl.max_horizontal("created_ns", "completed_ns").cum_max().shift().over("rank")
    columns = waits.records.select("rank", "record_id", "timeout_ns", idle_ns=pl.col("created_ns") - last)
    idle = columns.filter(pl.col("idle_ns") > pl.col("timeout_ns")).sort("record_id")
    made: dict[int, Culprit] = {}
    for rank, record, timeout, _ in idle.iter_rows():
        for instance in (waits.instances[key] for key in waits.of_rank.get(rank, ())):
            own, first = instance.calls[rank], instance.since_ns
            if own.record_id < record or own.created_ns is None or first is None or own.created_ns - first < timeout:
                continue
            by = duration(own.created_ns - first)
            text = f"It made {_named(instance)} {by} after the others, which had given up by then."
            made.setdefault(rank, Culprit(rank, "arrived late", 0.9, instance, text))
    return made


def _time(instance: Instance) -> int:
    return instance.since_ns if instance.since_ns is not None else 0


def _named(instance: Instance) -> str:
    key = instance.key
    group = f"group {key.group.partition(' ')[0]}" + (f" ({instance.desc})" if instance.desc else "")
    return f"{instance.operation} #{key.seq} of {group}"


def _deviant(instance: Instance, rank: int, reason: str, n: int) -> Culprit:
    own = instance.calls[rank]
    usual = next((c for r, c in instance.calls.items() if c.signature != own.signature), own)
    parts = [text.replace("|", " of ", 1).replace("|", " elements of ") for text in (own.signature, usual.signature)]
    text = f"It calls {parts[0]} where the others call {parts[1]}, as call #{instance.key.seq} of {instance.desc}."
    confident = 0.95 if len(instance.calls) - n > n else 0.7
    return Culprit(rank, reason, confident, instance, text)


def _absent(waits: Waits, edges: Mapping[int, Mapping[int, Key]], rank: int) -> Culprit:
    """A rank that others wait for and that waits for nobody."""
    keys = {targets[rank] for targets in edges.values() if rank in targets}
    instances = sorted((waits.instances[key] for key in keys), key=_time)
    missing = [one for one in instances if rank in one.absent]
    first = (missing or instances)[0]
    text = f"{_who(first.calls)} in {_named(first)}; it has not made that call."
    if rank in waits.stalled:
        text += " " + _stalled_text(waits.stalled[rank], waits.stalled_calls[rank])
    else:
        text += " It waits for nobody."
    return Culprit(rank, "never arrived", 0.95 if missing else 0.85, first, text)


def _who(ranks: Iterable[int]) -> str:
    ranks = sorted(ranks)
    return f"Rank {ranks[0]} waits" if len(ranks) == 1 else f"Ranks {ranges(ranks)} wait"


def _stalled_text(key: Key, call: Call) -> str:
    return f"Its device has not ended {call.operation} #{key.seq} of group {key.group}, which other ranks have ended."


def _in_a_circle(waits: Waits, edges: Mapping[int, Mapping[int, Key]], component: Sequence[int]) -> dict[int, Culprit]:
    """Of ranks that wait for each other, those that call things in another order than until then, or than others.

    A call that two ranks share, that both have made, and that is the first open one of both, waits for the link alone.
    """
    links = [one for one in waits.instances.values() if set(one.calls) <= set(component) and _is_first(waits, one)]
    if len(links) == 1:
        return _of_a_whole_call(waits, links[0])
    blamed, confidence = unlike_their_peers(waits, component), 0.8
    if not blamed:
        blamed = [rank for rank in component if departures(waits, rank)]
    if not blamed or len(blamed) == len(component):
        blamed, confidence = against_the_order(waits, component), 0.6
    if len(blamed) == len(component):
        blamed = _elsewhere(waits, component)
    made = {}
    for rank in blamed:
        keys = [targets[rank] for targets in edges.values() if rank in targets]
        instance = min((waits.instances[key] for key in keys), key=_time)
        own = waits.instances[waits.of_rank[rank][0]] if rank in waits.of_rank else instance
        text = f"It waits in {_named(own)}, while {_who(instance.calls).lower()} for it in {_named(instance)}."
        made[rank] = Culprit(rank, "other order", confidence, instance, text)
    return made


def _elsewhere(waits: Waits, component: Sequence[int]) -> list[int]:
    """The rank that waits in another call than all others, of which there are at least two."""
    first = {rank: waits.of_rank[rank][0] for rank in component if rank in waits.of_rank}
    counts = Counter(first.values())
    odd = [rank for rank, key in first.items() if counts[key] == 1]
    return odd if len(counts) == 2 and len(odd) == 1 else []


def _is_first(waits: Waits, call: Instance) -> bool:
    """Whether this is a call of two ranks that both have made, before all else that is open there."""
    is_whole = len(call.calls) == 2 and not (call.absent or call.unknown)
    return is_whole and all(waits.of_rank[rank][0] == call.key for rank in call.calls)


def _of_a_whole_call(waits: Waits, instance: Instance) -> dict[int, Culprit]:
    """Culprits of a call that all members made and that does not end: one that came late, or did not start; a link."""
    calls = instance.calls
    idle = [rank for rank, call in calls.items() if not call.is_started]
    if 0 < len(idle) * 2 < len(calls):
        text = f"The others have started {_named(instance)}; its device has not."
        return {rank: Culprit(rank, "never arrived", 0.8, instance, text) for rank in idle}
    late = _late(waits, instance)
    if late:
        return late
    if len(instance.members) == 2 and len(calls) == 2:
        stalled = [rank for rank in instance.members if rank in waits.stalled]
        if len(stalled) == 1:
            text = _stalled_text(waits.stalled[stalled[0]], waits.stalled_calls[stalled[0]])
            return {stalled[0]: Culprit(stalled[0], "never arrived", 0.8, instance, text)}
        text = f"Both ends have made {_named(instance)}, and it does not end: look at the network between the two."
        return {rank: Culprit(rank, "link", 0.6, instance, text) for rank in instance.members}
    return {}


def _late(waits: Waits, instance: Instance) -> dict[int, Culprit]:
    """The ranks that came to a call so late that the others had given up."""
    times = {rank: call.created_ns for rank, call in instance.calls.items() if call.created_ns is not None}
    if len(times) < 2:
        return {}
    usual, spread = _usual(waits, instance)
    times = {rank: at - usual.get(rank, 0) for rank, at in times.items()}
    first = min(times.values())
    limit = max(_LATE_NS, _UNUSUAL * spread)
    late = {rank: at - first for rank, at in times.items() if at - first > limit}
    if not late or 2 * len(late) > len(times):
        return {}
    text = f"It made {_named(instance)} {{}} after the others, which had waited in vain by then."
    return {r: Culprit(r, "arrived late", 0.85, instance, text.format(duration(by))) for r, by in late.items()}


def _usual(waits: Waits, instance: Instance) -> tuple[dict[int, int], int]:
    """How much later than the median each member usually comes, as its clock says, and how much that varies."""
    rows = waits.records.filter(
        (pl.col("key") == instance.key.group) & ~pl.col("is_p2p") & (pl.col("seq") < instance.key.seq)
    ).drop_nulls(["created_ns", "seq"])
    apart = pl.col("created_ns") - pl.col("created_ns").median().over("seq")
    rows = rows.with_columns(apart=apart)
    own = rows.group_by("rank").agg(
        pl.col("apart").median(), spread=(pl.col("apart") - pl.col("apart").median()).abs().median()
    )
    usual = {rank: int(apart) for rank, apart, _ in own.iter_rows() if apart is not None}
    return usual, int(median(spreads)) if (spreads := [s for _, _, s in own.iter_rows() if s is not None]) else 0


def _waits_for_unknown(waits: Waits, rank: int) -> bool:
    return any(waits.instances[key].unknown for key in waits.of_rank.get(rank, ()))


def _unknown(waits: Waits, culprits: Mapping[int, Culprit]) -> list[int]:
    """Ranks without a dump for which others wait, where nothing that is known explains the wait."""
    blamed: list[int] = []
    pending = [one for one in waits.instances.values() if one.unknown and not one.absent]
    for one in sorted(pending, key=lambda one: (len(one.unknown), _time(one))):
        explained = any(rank in culprits for rank in one.members) or set(one.unknown) & set(blamed)
        if not explained:
            blamed += one.unknown
    return blamed


def _without_dump(waits: Waits, rank: int) -> Culprit:
    instances = sorted((one for one in waits.instances.values() if rank in one.unknown), key=_time)
    first = next((one for one in instances if not one.absent), instances[0])
    why = waits.silent.get(rank, "its dump is missing")
    text = f"{_who(first.calls)} in {_named(first)}; all members with a dump have made that call, and {why}."
    # A recorder that does not tell calls that failed from those that ended leaves it open whether there is a wait.
    is_plain = len(first.unknown) == 1 and waits.records["completed_ns"].null_count() < waits.records.height
    return Culprit(rank, "dump missing", 0.85 if is_plain else 0.6, first, text)


def _earlier_mismatch(waits: Waits) -> dict[int, Culprit]:
    """Without another explanation: the first call of a group at which its members called different things."""
    stuck = {key.group for key in waits.instances if key.source < 0}
    rows = waits.records.filter(pl.col("key").is_in(list(stuck)) & ~pl.col("is_p2p")).drop_nulls("seq")
    apart = rows.group_by("key", "seq").agg(pl.col("signature").n_unique(), pl.col("created_ns").min())
    apart = apart.filter(pl.col("signature") > 1).sort("created_ns")
    if apart.is_empty():
        return {}
    group, seq = apart.select("key", "seq").row(0)
    there = rows.filter((pl.col("key") == group) & (pl.col("seq") == seq))
    key = Key(group, seq)
    signatures = dict(there.select("rank", "signature").iter_rows())
    made = {}
    for rank, reason in _minority(signatures, waits, key).items():
        usual = next(s for r, s in signatures.items() if s != signatures[rank])
        mine, theirs = (signature.split("|")[0] for signature in (signatures[rank], usual))
        text = f"It called {mine} where others called {theirs}, as call #{seq} of group {group}."
        made[rank] = Culprit(rank, reason, 0.6, None, text)
    return made


def _no_culprit(waits: Waits, stuck: Mapping[int, list[Key]]) -> str:
    keys = sorted({key for keys in stuck.values() for key in keys}, key=lambda k: _time(waits.instances[k]))
    if not keys:
        return "Ranks wait for each other, and the records do not say which of them is to blame."
    first = waits.instances[keys[0]]
    return (
        f"All {counted(len(first.calls), 'member')} have made {_named(first)}, the same one, and it does not end: "
        "look at the network and the devices of these ranks."
    )
