"""The order in which ranks make their calls: who departs from its own habit, from its peers, from most ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.analyses.communication.wait_graph import Instance, Waits

#: Earlier calls of a rank from which its next call is foretold.
_CONTEXT = 3
_SEQUENCE = 400


def departures(waits: Waits, rank: int) -> int:
    """How many calls of a rank, in the last part of its records, never followed the calls before them until then."""
    rows = waits.records.filter(pl.col("rank") == rank).sort("record_id").tail(_SEQUENCE)
    tokens = rows.select(pl.col("group_desc").cast(pl.String).fill_null("") + "|" + pl.col("signature")).to_series()
    sequence = tokens.to_list()
    followers: dict[tuple[str, ...], set[str]] = defaultdict(set)
    n = 0
    for i in range(_CONTEXT, len(sequence)):
        context = tuple(sequence[i - _CONTEXT : i])
        n += bool(followers[context]) and sequence[i] not in followers[context] and i > len(sequence) // 2
        followers[context].add(sequence[i])
    return n


def unlike_their_peers(waits: Waits, component: Sequence[int]) -> list[int]:
    """The ranks whose calls between two calls of a group are not those of all other members there, and were before."""
    records = waits.records.filter(pl.col("rank").is_in(component)).sort("rank", "record_id")
    token = pl.col("group_desc").cast(pl.String).fill_null("") + "|" + pl.col("signature")
    last_ones = records.group_by("rank", maintain_order=True).tail(_SEQUENCE)
    calls: dict[int, list[tuple[str, int, bool, str]]] = defaultdict(list)
    for rank, *call in last_ones.select("rank", "key", "seq", "is_p2p", token).iter_rows():
        calls[rank].append(tuple(call))
    parts: dict[tuple[str, int], dict[int, list[str]]] = defaultdict(
        dict
    )  # by group, and number of the call at the end
    for rank, own in calls.items():
        last: dict[str, int] = {}
        for i, (key, seq, is_message, _) in enumerate(own):
            if not is_message and seq is not None:
                if key in last:
                    parts[key, seq][rank] = [text for _, _, _, text in own[last[key] + 1 : i]]
                last[key] = i
    blamed = set()
    for group in {key for key, _ in parts}:
        odd_ones = [_odd_one(parts[key, seq]) for key, seq in sorted(parts) if key == group]
        for i, odd in enumerate(odd_ones):
            was_like_them = any(one != odd for one in odd_ones[:i])
            if odd is not None and (was_like_them or len(odd_ones) == 1):
                blamed.add(odd)
    return sorted(blamed)


def _odd_one(calls: Mapping[int, list[str]]) -> int | None:
    """The rank whose calls differ from those of at least two other ones, which agree."""
    counts = Counter(map(tuple, calls.values()))
    if len(counts) != 2 or len(calls) < 3 or min(counts.values()) != 1:
        return None
    odd = min(counts, key=lambda texts: counts[texts])
    return next(rank for rank, texts in calls.items() if tuple(texts) == odd)


def against_the_order(waits: Waits, component: Sequence[int]) -> list[int]:
    """The ranks of a circle that made their open call before the one they miss, where other ranks did the reverse."""
    blamed = []
    for rank in component:
        own = waits.instances[waits.of_rank[rank][0]] if rank in waits.of_rank else None
        missed = [one for one in waits.instances.values() if rank in one.absent and set(one.calls) & set(component)]
        if own is None or not missed:
            continue
        votes = Counter(vote for one in missed for vote in _order(waits, own, one))
        if votes["after"] > votes["before"]:
            blamed.append(rank)
    return blamed


def _order(waits: Waits, first: Instance, second: Instance) -> Iterable[str]:
    """For each rank with a call like each of the two: whether its first one comes before or after its second."""
    records = waits.records.filter(~pl.col("is_p2p"))
    desc = pl.col("group_desc").cast(pl.String)
    made = [
        records.filter((desc == one.desc) & (pl.col("seq") == one.key.seq)).select(
            "rank", pl.col("record_id").alias(name)
        )
        for one, name in ((first, "a"), (second, "b"))
    ]
    both = made[0].join(made[1], on="rank", how="full", coalesce=True)
    for a, b in both.select("a", "b").iter_rows():
        if b is not None and (a is None or b < a):
            yield "after"
        elif a is not None and b is not None:
            yield "before"
