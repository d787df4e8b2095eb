"""Who waits for whom in a job that stands still: a graph of ranks and of the calls they wait in.

A rank waits in a call that it made and that has not ended. The call waits for the members of its group that have not
made it. Where these edges lead, and nothing leads on, is what stopped the job. How often a rank is named as missing
says nothing: one stuck rank stops others in many groups, and those name each other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl

from stepscope.core.patterns import regex
from stepscope.core.table import map_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Collectives that no member can complete before every member has made the call.
SYNCHRONISING = regex(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
#: Those of them whose members must agree on the size and the element type.
_EQUAL_SIZES = regex(r"all_?reduce|_all_gather_base|all_gather_into|_reduce_scatter_base|broadcast|^reduce$")
_MESSAGE = regex(r"(send|recv)\D*(\d+)\s*(?:->|<-)\s*(\d+)")
_NUMBER = regex(r"\d+")
#: Above every number of a call.
_BEYOND = 2**62


class Key(NamedTuple):
    """A call of a group: the group, and the number of the collective in it; or a message from a rank to another."""

    group: str
    seq: int
    source: int = -1
    target: int = -1


class Call(msgspec.Struct, frozen=True):
    """One rank's part in a call."""

    record_id: int
    operation: str
    signature: str
    created_ns: int | None
    is_started: bool
    line: str | None
    stack_id: int | None


@dataclass(slots=True)
class Instance:
    """A call that ranks wait in. `absent` have not made it; of `unknown` the data does not say whether they have."""

    key: Key
    desc: str
    calls: dict[int, Call] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    members: tuple[int, ...] = ()

    @property
    def since_ns(self) -> int | None:
        """When the first rank began to wait in it."""
        return min((call.created_ns for call in self.calls.values() if call.created_ns is not None), default=None)

    @property
    def operation(self) -> str:
        """What most of its ranks call."""
        names = [call.operation for call in self.calls.values()]
        return max(set(names), key=lambda name: (names.count(name), name)) if names else ""


class Group(msgspec.Struct, frozen=True):
    """A process group. `members` are those that are named, else those that are seen to take part and may."""

    name: str
    desc: str
    members: tuple[int, ...]


class Waits(msgspec.Struct, frozen=True, eq=False):
    """What is known of all ranks.

    `records` have the column `key`, the group in a unique spelling; `instances` are what ranks wait in, `of_rank` those
    of each rank in the order of its calls. `stalled` has the first call that a rank has not ended although another
    member has. `open_calls` are all collectives that have not ended: also those after the first open one of a group.
    `known` are ranks with a whole dump, `silent` those of which there is no dump or no whole one, with the reason.
    """

    records: pl.DataFrame
    groups: Mapping[str, Group]
    instances: Mapping[Key, Instance]
    of_rank: Mapping[int, tuple[Key, ...]]
    stalled: Mapping[int, Key]
    stalled_calls: Mapping[int, Call]
    open_calls: Mapping[Key, Mapping[int, Call]]
    known: frozenset[int]
    silent: Mapping[int, str]
    world: int


def waits_of(records: pl.DataFrame, status: pl.DataFrame) -> Waits:
    """What all ranks of a job wait in, from the tables `collective_records` and `group_status`."""
    status = status.with_columns(pl.col("group", "group_desc", "members").cast(pl.String))
    keyed = _keyed(records, status).drop("backend", "input_dtypes", "output_dtypes")
    silent = _silent(records, status)
    groups, world = _groups(keyed, status, silent)
    silent = {**{r: "its dump is missing" for r in range(world) if r not in silent}, **silent}
    have = set(status["rank"].to_list()) | set(records["rank"].unique().to_list())
    silent = {rank: why for rank, why in silent.items() if why != "its dump is missing" or rank not in have}
    known = frozenset(have - set(silent))
    keyed, status = _without_given_up(keyed, status, groups, known)
    sent = keyed.select("key", "rank", "p2p_seq", "operation", "is_p2p", ended=_ended()).filter("is_p2p")
    messages = set(sent["key"].unique().to_list())
    reached = _reached(keyed, status, messages)
    open_rows = _open(keyed, status, messages)
    instances: dict[Key, Instance] = {}
    stalled: dict[int, tuple[int, Key, Call]] = {}
    firsts: dict[tuple[int, str], int] = {}
    open_calls: dict[Key, dict[int, Call]] = defaultdict(dict)
    calls = open_rows.filter(~pl.col("is_p2p")).drop_nulls("seq").sort("rank", "record_id")
    for row in calls.iter_rows(named=True):
        rank, key = row["rank"], Key(row["key"], row["seq"])
        call = _call(row)
        if reached.completed.get(key.group, -1) >= key.seq and SYNCHRONISING.search(call.operation):
            if rank not in stalled or call.record_id < stalled[rank][0]:
                stalled[rank] = (call.record_id, key, call)
            continue
        open_calls[key][rank] = call
        if firsts.setdefault((rank, key.group), key.seq) < key.seq:
            continue  # it cannot have begun before the earlier one of the same group
        instance = instances.setdefault(key, Instance(key, row["group_desc"] or ""))
        instance.calls[rank] = call
    for instance in instances.values():
        _place(instance, groups[instance.key.group], reached, known)
    _messages(_Messages(sent, groups, status), open_rows, groups, instances, stalled, known)
    of_rank: dict[int, list[tuple[int, Key]]] = defaultdict(list)
    for key, instance in instances.items():
        for rank, call in instance.calls.items():
            of_rank[rank].append((call.record_id, key))
    return Waits(
        keyed,
        groups,
        instances,
        {rank: tuple(key for _, key in sorted(own)) for rank, own in of_rank.items()},
        {rank: key for rank, (_, key, _) in stalled.items()},
        {rank: call for rank, (_, _, call) in stalled.items()},
        open_calls,
        known,
        silent,
        world,
    )


def _call(row: Mapping[str, object]) -> Call:
    def integer(name: str) -> int | None:
        value = row[name]
        return value if isinstance(value, int) else None

    return Call(
        integer("record_id") or 0,
        str(row["operation"] or ""),
        str(row["signature"] or ""),
        integer("created_ns"),
        row["state"] == "started" or row["started_ns"] is not None,
        None if row["line"] is None else str(row["line"]),
        integer("stack_id"),
    )


def _keyed(records: pl.DataFrame, status: pl.DataFrame) -> pl.DataFrame:
    """The records with `key`: the group, spelled with its members where several groups have one name."""
    named = status.drop_nulls(["group", "members"]).select("rank", "group", "members").unique()
    several = named.group_by("group").agg(pl.col("members").n_unique()).filter(pl.col("members") > 1)["group"].to_list()
    group = pl.col("group").cast(pl.String).fill_null("")
    if not several:
        return records.with_columns(key=group, signature=_signature(records))
    spelled = named.filter(pl.col("group").is_in(several))
    joined = records.with_columns(group_text=group, signature=_signature(records)).join(
        spelled.rename({"group": "group_text"}), on=["rank", "group_text"], how="left", maintain_order="left"
    )
    key = pl.when(pl.col("members").is_null()).then("group_text").otherwise(pl.format("{} {}", "group_text", "members"))
    return joined.with_columns(key=key).drop("group_text", "members")


def _signature(records: pl.DataFrame) -> pl.Series:
    """What the members of a call must agree on, as text: the operation; where sizes must be equal, those and types."""
    strict = map_names(records["operation"], lambda name: _EQUAL_SIZES.search(name) is not None, pl.Boolean())
    gathers = map_names(records["operation"], lambda name: "all_gather" in name, pl.Boolean())
    single = ~records["output_sizes"].cast(pl.String).str.contains(", ", literal=True)
    elements = map_names(records["input_sizes"], _elements, pl.String())
    frame = pl.DataFrame(
        {
            "operation": records["operation"].cast(pl.String),
            "elements": elements,
            "dtypes": records["input_dtypes"].cast(pl.String),
            "strict": (strict | (gathers & single)).fill_null(value=False),
        }
    )
    whole = pl.concat_str(["operation", "elements", "dtypes"], separator="|", ignore_nulls=True)
    return frame.select(signature=pl.when("strict").then(whole).otherwise("operation"))["signature"]


def _elements(shapes: str) -> str:
    """The number of elements of all tensors together, as text."""
    total = 0
    for shape in shapes.split(", "):
        product = 1
        for axis in _NUMBER.findall(shape):
            product *= int(axis)
        total += product
    return str(total)


def _silent(records: pl.DataFrame, status: pl.DataFrame) -> dict[int, str]:
    """Ranks of whose dump nothing, or not all, could be read."""
    have = set(records["rank"].unique().to_list())
    facts = status.group_by("rank").agg(
        whole=pl.col("is_whole").fill_null(value=True).all(),
        says=(pl.col("enqueued").is_not_null() | pl.col("group").is_not_null()).any(),
    )
    silent = {}
    for rank, whole, says in facts.iter_rows():
        if not whole:
            silent[rank] = "its dump is torn" if rank in have or says else "its dump is empty or unreadable"
        elif rank not in have and not says:
            silent[rank] = "its dump is empty"
    return silent


def _groups(keyed: pl.DataFrame, status: pl.DataFrame, silent: Mapping[int, str]) -> tuple[dict[str, Group], int]:
    """The groups by key, and the number of ranks of the job."""
    texts = status.drop_nulls(["group", "members"]).select("group", "members", "group_desc").unique().iter_rows()
    named: dict[str, tuple[tuple[int, ...], str]] = {}
    for group, members, desc in texts:
        ranks = tuple(int(n) for n in _NUMBER.findall(members))
        named[group] = named[f"{group} {members}"] = (ranks, desc or "")
    taking_part = keyed.group_by("key").agg(
        pl.col("rank").unique().sort(), pl.col("group_desc").cast(pl.String).first(), size=_group_size()
    )
    dumps = {*status["rank"].to_list(), *keyed["rank"].unique().to_list()}
    sizes = [size for size in taking_part["size"].to_list() if size]
    world = max([0, *(max(ranks) + 1 for ranks, _ in named.values() if ranks), *(r + 1 for r in dumps), *sizes])
    absent = [rank for rank in range(world) if rank not in dumps or rank in silent]
    groups = {key: Group(key, desc, ranks) for key, (ranks, desc) in named.items()}
    for key, ranks, desc, size in taking_part.iter_rows():
        if key not in groups:
            # Those without a dump belong to it too if the group is that much larger.
            more = [rank for rank in absent if rank not in ranks] if size and len(ranks) < size else []
            groups[key] = Group(key, desc or "", tuple(sorted([*ranks, *more])))
    return groups, world


def _group_size() -> pl.Expr:
    """How many ranks a group has, by how much larger the output of a gather is than its input."""
    gathers = pl.col("operation").cast(pl.String).str.contains("all_gather") & ~pl.col("is_p2p")
    first = pl.col("output_sizes").cast(pl.String).filter(gathers).first()
    inner = pl.col("input_sizes").cast(pl.String).filter(gathers).first()
    return pl.struct(first.alias("out"), inner.alias("in")).map_elements(_ratio, return_dtype=pl.Int64)


def _ratio(sizes: Mapping[str, str | None]) -> int | None:
    if not sizes["out"] or not sizes["in"]:
        return None
    out, inner = int(_elements(sizes["out"])), int(_elements(sizes["in"]))
    return out // inner if inner and out % inner == 0 and out // inner < 2**20 else None


class _Reached(NamedTuple):
    """The last collective of a group that a rank enqueued, and that any member completed."""

    enqueued: Mapping[tuple[str, int], int]
    completed: Mapping[str, int]


def _reached(keyed: pl.DataFrame, status: pl.DataFrame, messages: set[str]) -> _Reached:
    collectives = keyed.select("key", "rank", "seq", is_p2p="is_p2p", ended=_ended()).filter(~pl.col("is_p2p"))
    enqueued = {
        (key, rank): seq
        for key, rank, seq in collectives.group_by("key", "rank").agg(pl.col("seq").max()).iter_rows()
        if seq is not None
    }
    ended = collectives.filter("ended").group_by("key").agg(pl.col("seq").max())
    completed = {key: seq for key, seq in ended.iter_rows() if seq is not None}
    several = {key.partition(" ")[0] for key in keyed["key"].unique().to_list() if " " in key}
    rows = status.drop_nulls("group").select("group", "members", "rank", "enqueued", "completed")
    for group, members, rank, last, done in rows.iter_rows():
        key = f"{group} {members}" if group in several else group
        if key in messages:
            continue  # numbers of messages and of collectives are mixed there
        if last is not None:
            enqueued[key, rank] = max(last, enqueued.get((key, rank), -1))
        if done is not None:
            completed[key] = max(done, completed.get(key, -1))
    return _Reached(enqueued, completed)


def _without_given_up(
    keyed: pl.DataFrame, status: pl.DataFrame, groups: Mapping[str, Group], known: frozenset[int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables without `retired` and `completed` for collectives that have failed.

    gloo retires a call that it gave up, as one that ended. Such a call cannot have ended well: a member has not made
    it, or came later than the first one waits, or made another one. Nor has it if it is the last one of all its
    members, and one of them left no dump.
    """
    retired = pl.col("retired") & ~pl.col("is_p2p") & pl.col("completed_ns").is_null()
    rows = keyed.filter(retired & (pl.col("state").cast(pl.String) != "completed")).drop_nulls("seq")
    if rows.is_empty():
        return keyed, status
    made = keyed.filter(~pl.col("is_p2p")).group_by("key", "rank").agg(pl.col("seq").max())
    ends = {(key, rank): seq for key, rank, seq in made.iter_rows()}
    least = {key: min((ends.get((key, r), -1) or 0 for r in groups[key].members if r in known), default=-1)
             for key in rows["key"].unique()}  # fmt: skip
    calls = rows.group_by("key", "seq").agg(
        n_kinds=pl.col("signature").n_unique(),
        apart=pl.col("created_ns").max() - pl.col("created_ns").min(),
        timeout=pl.col("timeout_ns").min(),
    )
    is_short = pl.col("seq") > pl.col("key").replace_strict(least, return_dtype=pl.Int64)
    last = keyed.sort("record_id").group_by("rank").agg(pl.col("key", "seq").last())
    ends_all = last.filter(pl.col("rank").is_in(list(known))).group_by("key", "seq").agg(ranks=pl.col("rank"))
    left = {
        (key, seq)
        for key, seq, ranks in ends_all.iter_rows()
        if set(groups[key].members) & known == set(ranks) and not set(groups[key].members) <= known
    }
    is_left = pl.Series([pair in left for pair in calls.select("key", "seq").iter_rows()], dtype=pl.Boolean)
    failed = calls.filter(is_left | (pl.col("n_kinds") > 1) | (pl.col("apart") > pl.col("timeout")) | is_short)
    if failed.is_empty():
        return keyed, status
    first = failed.group_by("key").agg(given_up=pl.col("seq").min())
    keyed = keyed.join(first, on="key", how="left", maintain_order="left")
    still = pl.col("retired") & (pl.col("is_p2p") | pl.col("completed_ns").is_not_null() | pl.col("given_up").is_null())
    keyed = keyed.with_columns(retired=still | (pl.col("retired") & (pl.col("seq") < pl.col("given_up"))))
    by_group = first.select(pl.col("key").str.split(" ").list.first().alias("group"), "given_up").unique("group")
    status = status.join(by_group, on="group", how="left", maintain_order="left").with_columns(
        completed=pl.when(pl.col("completed").is_not_null()).then(
            pl.min_horizontal("completed", pl.col("given_up") - 1)
        )
    )
    return keyed.drop("given_up"), status.drop("given_up")


def _ended() -> pl.Expr:
    return pl.col("retired") | (pl.col("state").cast(pl.String) == "completed") | pl.col("completed_ns").is_not_null()


def _open(keyed: pl.DataFrame, status: pl.DataFrame, messages: set[str]) -> pl.DataFrame:
    """The calls that have not ended, by their own record and by what their rank says of the group."""
    names = ("group", "group_desc", "operation", "state", "line", "input_sizes")
    rows = keyed.filter(~_ended()).with_columns(pl.col(names).cast(pl.String))
    done = status.drop_nulls(["group", "completed"]).select("rank", "group", "completed").unique(["rank", "group"])
    rows = rows.join(done, on=["rank", "group"], how="left", maintain_order="left")
    by_status = ~pl.col("key").is_in(list(messages)) & (pl.col("seq") <= pl.col("completed"))
    return rows.filter(~by_status.fill_null(value=False))


def _place(instance: Instance, group: Group, reached: _Reached, known: frozenset[int]) -> None:
    """Sort the members of the group into those that made the call, did not make it, and those of whom it is unknown."""
    here = set(instance.calls)
    members = tuple(sorted({*group.members, *here}))
    late = [
        r for r in members if r not in here and reached.enqueued.get((instance.key.group, r), -1) < instance.key.seq
    ]
    instance.members = members
    instance.absent = tuple(rank for rank in late if rank in known)
    instance.unknown = tuple(rank for rank in late if rank not in known)


class _Messages:
    """How many messages between two ranks each of them has ended."""

    def __init__(self, rows: pl.DataFrame, groups: Mapping[str, Group], status: pl.DataFrame) -> None:
        self._last = {
            (group, rank): last
            for group, rank, last in status.drop_nulls(["group", "completed"])
            .select("group", "rank", "completed")
            .iter_rows()
        }
        self._ended: dict[tuple[str, int, int, int], int] = {}
        firsts = rows.group_by("key", "rank").agg(pl.col("p2p_seq").min())
        self._whole = {(key, rank) for key, rank, first in firsts.iter_rows() if first is not None and first <= 1}
        counts = rows.group_by("key", "rank", pl.col("operation").cast(pl.String)).agg(pl.col("ended").sum())
        for key, rank, operation, ended in counts.iter_rows():
            ends = ends_of(operation, rank, groups[key].members)
            if ends is not None:
                self._ended[key, *ends, rank] = ended

    def is_ended(self, row: Mapping[str, object], ends: tuple[int, int], rank: int, place: int, size: int) -> bool:
        """Whether `rank` has ended the message of a row, the open one of that `place` at the other end."""
        key, other = str(row["key"]), ends[0] if rank == ends[1] else ends[1]
        number = row["p2p_seq"]
        if size == 2 and isinstance(number, int) and self._last.get((str(row["group"]), rank), -1) >= number > 0:
            return True
        if not {(key, rank), (key, other)} <= self._whole:
            return False  # a ring buffer has lost the first ones
        return self._ended.get((key, *ends, rank), 0) > self._ended.get((key, *ends, other), 0) + place


def ends_of(operation: str | None, rank: int, members: Sequence[int]) -> tuple[int, int] | None:
    """The ranks at the two ends of a message of a rank, source first; None for what is no message."""
    match = _MESSAGE.search(operation or "")
    if match is None:
        return None
    here, there = (members[i] if i < len(members) else i for i in (int(match[2]), int(match[3])))
    if here != rank:
        here, there = rank, (there if there != rank else here)
    return (here, there) if match[1] == "send" else (there, here)


def _messages(
    messages: _Messages,
    rows: pl.DataFrame,
    groups: Mapping[str, Group],
    instances: dict[Key, Instance],
    stalled: dict[int, tuple[int, Key, Call]],
    known: frozenset[int],
) -> None:
    """Add the messages that have not ended: the n-th one of a pair of ranks meets the n-th one of the other side."""
    pairs: dict[tuple[str, int, int], dict[int, list[tuple[int, Call, str]]]] = defaultdict(lambda: defaultdict(list))
    places: dict[tuple[str, int, int, int], int] = defaultdict(int)
    for row in rows.filter("is_p2p").sort("rank", "record_id").iter_rows(named=True):
        rank, group = row["rank"], row["key"]
        members = groups[group].members
        ends = ends_of(row["operation"], rank, members)
        if ends is None:
            continue
        other, number = ends[0] if rank == ends[1] else ends[1], row["p2p_seq"] or 0
        place = places[group, *ends, rank]
        places[group, *ends, rank] += 1
        if messages.is_ended(row, ends, other, place, len(members)):
            if rank not in stalled or row["record_id"] < stalled[rank][0]:
                stalled[rank] = (row["record_id"], Key(group, number, *ends), _call(row))
            continue
        pairs[group, *ends][rank].append((number, _call(row), row["group_desc"] or ""))
    for (group, source, target), calls in pairs.items():
        firsts = {rank: own[0] for rank, own in calls.items()}  # later ones of the pair wait for the first
        number, _, desc = next(iter(firsts.values()))
        instance = Instance(Key(group, number, source, target), desc, {r: call for r, (_, call, _) in firsts.items()})
        missing = {source, target} - set(firsts)
        instance.members = (source, target)
        instance.absent = tuple(missing & known)
        instance.unknown = tuple(missing - known)
        instances.setdefault(instance.key, instance)


def components(edges: Mapping[int, Iterable[int]], nodes: Sequence[int]) -> list[list[int]]:
    """The strongly connected components of a graph, those that edges lead to first."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open: set[int] = set()
    made: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(edges.get(root, ())))]
        index[root] = low[root] = len(index)
        open_nodes.append(root)
        is_open.add(root)
        while work:
            node, following = work[-1]
            for after in following:
                if after not in index:
                    index[after] = low[after] = len(index)
                    open_nodes.append(after)
                    is_open.add(after)
                    work.append((after, iter(edges.get(after, ()))))
                    break
                if after in is_open:
                    low[node] = min(low[node], index[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = open_nodes.index(node)
                    made.append(open_nodes[at:])
                    is_open.difference_update(made[-1])
                    del open_nodes[at:]
    return made
