"""All ranks of a job replayed together: a collective ends when the last rank has come, so a change on one moves others.

The graphs of the ranks become one. A collective that several ranks share has a node of its own, the arrival of the last
rank, and what follows it on each rank follows that node after the time that the transfer took there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.device_work import COMMUNICATION, COMPUTATION
from stepscope.analyses.critical_path.changes import OF_RANKS, change_of
from stepscope.analyses.critical_path.forward_pass import SOURCE, Floats, Shape, shape_of
from stepscope.analyses.critical_path.predictions import (
    PREDICTIONS,
    Scenario,
    both_ends,
    most_saved,
    with_parts,
)
from stepscope.analyses.critical_path.replay import MEDIAN, SETTLED, TURNS, Changes, Edges, Program, Replay
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.analyses.ranks.clocks import clocks_of
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Ints

#: A rank whose computation takes less than this share longer than that of the typical rank is no straggler.
_SAME_PACE = 0.03


class JointGraph(msgspec.Struct, frozen=True):
    """The graphs of all ranks, and the collectives that they share.

    Times of a rank's recording plus its `shift` are on one clock. Row i of the calls is the work `work[i]` of the graph
    `rank[i]`, which is part of the collective `collective[i]`; it ended `transfer[i]` after the last rank had come.
    """

    programs: tuple[Program, ...]
    shift: Ints
    rank: Ints
    work: Ints
    collective: Ints
    transfer: Ints
    last: Ints  # when the last rank came to each collective, on the one clock; LONG_AGO for those not shared
    shape: list[Shape] = msgspec.field(default_factory=list)

    def run(self, changes: Sequence[Changes], spare: float) -> list[Replay]:
        """All ranks with their changes. Times in ns, on the clock of each rank."""
        wanted, now = changes, list(changes)
        runs = self._run(now, spare)
        for _ in range(TURNS):
            factors = [self._slowed(i, one.work, run) for i, (one, run) in enumerate(zip(wanted, runs, strict=True))]
            took = [program.work.end - program.work.start for program in self.programs]
            moved = sum(np.abs((new - one.work) * ns).sum() for new, one, ns in zip(factors, now, took, strict=True))
            if moved <= SETTLED * sum(ns.sum() for ns in took):
                break
            now = [replace(one, work=new) for one, new in zip(now, factors, strict=True)]
            runs = self._run(now, spare)
        return runs

    def _slowed(self, rank: int, wanted: Floats, run: Replay) -> Floats:
        """The factors of a rank's work once what communicates beside it has moved."""
        program = self.programs[rank]
        contention = program.graph.contention
        if contention is None or not contention.share:
            return wanted
        return contention.factors(program.work, wanted, run.times[1 : program.work.start.size + 1], run.ended)

    def _run(self, changes: Sequence[Changes], spare: float) -> list[Replay]:
        graphs = [replace(program.graph, spare=spare) for program in self.programs]
        n_work = np.array([graph.work.start.size for graph in graphs])
        n_moments = np.array([graph.moments.at.size for graph in graphs])
        first_work = 1 + np.cumsum(n_work) - n_work
        first_moment = 1 + int(n_work.sum()) + np.cumsum(n_moments) - n_moments
        first_arrival = 1 + int(n_work.sum() + n_moments.sum())
        starts = [graph.origin + int(shift) for graph, shift in zip(graphs, self.shift, strict=True)]
        origin = min(starts)
        parts, local, nodes = list[Edges](), [], []
        for i, graph in enumerate(graphs):
            reached = graph.reached(changes[i])
            edges, ends = graph.edges(changes[i], reached)
            of_work, of_moments = np.arange(n_work[i]) + first_work[i], np.arange(n_moments[i]) + first_moment[i]
            node = np.concatenate(([SOURCE], of_work, of_moments))
            mine = self.rank == i
            arrival, transfer = np.full(n_work[i], -1), np.zeros(n_work[i])
            arrival[self.work[mine]] = first_arrival + self.collective[mine]
            took = (graph.work.end - graph.work.start) * changes[i].work
            transfer[self.work[mine]] = self.transfer[mine] * changes[i].work[self.work[mine]]
            from_, to, after = node[edges[0]], node[edges[1]], edges[2].copy()
            rows = np.flatnonzero(ends)
            one = edges[0][rows] - 1
            rows, one = rows[arrival[one] >= 0], one[arrival[one] >= 0]
            from_[rows] = arrival[one]
            after[rows] += transfer[one] - took[one]
            after[from_ == SOURCE] += starts[i] - origin
            comes = self.work[mine]
            parts += [(from_, to, after), (of_work[comes], arrival[comes], np.zeros(comes.size))]
            local.append((reached, edges, rows, one))
            nodes.append((node, arrival, transfer))
        from_, to, after = (np.concatenate(column) for column in zip(*parts, strict=True))
        if not self.shape:
            self.shape.append(self._shape(from_, to, origin))
        times = self.shape[0].earliest(after, float(origin))
        return [
            self._of_rank(i, changes[i], times, local[i], nodes[i])
            for i in range(len(graphs))
        ]  # fmt: skip

    def _shape(self, from_: Ints, to: Ints, origin: int) -> Shape:
        """The shape of the joint graph."""
        pairs = list(zip((p.graph for p in self.programs), self.shift, strict=True))
        recorded = np.concatenate(
            [[origin - 1], *(g.work.start + s for g, s in pairs), *(g.moments.at + s for g, s in pairs), self.last]
        )
        return shape_of(from_, to, recorded, sum(g.work.start.size for g, _ in pairs))

    def _of_rank(
        self,
        i: int,
        changes: Changes,
        times: Floats,
        local: tuple[Floats, Edges, Ints, Ints],
        nodes: tuple[Ints, Ints, Floats],
    ) -> Replay:
        """The run of one rank, on its own clock."""
        graph = self.programs[i].graph
        (reached, (from_, to, after), rows, one), (node, arrival, transfer) = local, nodes
        mine = times[node] - self.shift[i]
        mine[SOURCE] = graph.origin
        shared = np.flatnonzero(arrival >= 0)
        ended = times[arrival] - self.shift[i] + transfer
        after = after.copy()
        took = (graph.work.end - graph.work.start) * changes.work
        after[rows] += (ended - mine[1 : arrival.size + 1] - took)[one]
        run = graph.replay(changes, reached, mine, (from_, to, after))
        run.ended[shared] = ended[shared]
        return run


def joint_graph(programs: Sequence[Program], parts: Sequence[RankCalls]) -> JointGraph | None:
    """The joint graph of programs of ranks and their collectives; None if they share none that runs on devices."""
    try:
        job = job_of(parts)
    except MissingTable:
        return None
    if len(job.parts) != len(parts) or len(job.ranks) < 2:
        return None
    order = [next(i for i, part in enumerate(parts) if part.label == one.label) for one in job.parts]
    clocks = clocks_of(job)
    middle = float(np.median(job.start))
    every = np.arange(len(job.ranks))
    shown = np.full(every.size, round(middle), np.int64)
    offset = np.rint(clocks.true(every, shown)).astype(np.int64) - shown
    offsets = np.array(job.shifts, np.int64) + offset
    shift = np.zeros(len(programs), np.int64)
    shift[order] = offsets
    row, work = _works(job, [programs[i] for i in order])
    rank = job.rank[row]
    start = job.start[row] + offset[rank]
    end = job.end[row] + offset[rank]
    collective = job.collective[row]
    n = job.collectives.height
    last = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(last, collective, start)
    transfer = end - last[collective]
    least = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(least, collective, transfer)
    waits = job.of_kind(*SYNCHRONISING, *POINT_TO_POINT) & (np.bincount(collective, minlength=n) > 1) & (least > 0)
    is_shared = waits[collective]
    if not is_shared.any():
        return None
    number = np.cumsum(waits) - 1
    return JointGraph(
        tuple(programs),
        shift,
        np.array(order)[rank[is_shared]],
        work[is_shared],
        number[collective[is_shared]],
        transfer[is_shared],
        last[waits],
    )


def _works(job: Job, programs: Sequence[Program]) -> tuple[Ints, Ints]:
    """Rows of the calls of a job that are one piece of device work each, and which."""
    rows, works = [], []
    for i, program in enumerate(programs):
        talks = np.flatnonzero(program.work.sort == COMMUNICATION)
        mine = np.flatnonzero(job.rank == i)
        known = pl.DataFrame(
            {"start": program.work.start[talks] + job.shifts[i], "end": program.work.end[talks] + job.shifts[i],
             "work": talks}
        ).unique(["start", "end"], keep="first")  # fmt: skip
        calls = pl.DataFrame({"start": job.start[mine], "end": job.end[mine], "row": mine})
        both = calls.join(known, on=["start", "end"]).unique("work", keep="first", maintain_order=True)
        rows.append(both["row"].to_numpy())
        works.append(both["work"].to_numpy())
    return np.concatenate(rows), np.concatenate(works)


def job_predictions(graph: JointGraph, texts: Sequence[str]) -> list[pl.DataFrame]:
    """The prediction of a scenario for each rank, as `predictions` makes it; all ranks have the changes.

    Raises StepscopeError (no such change, or nothing that it changes).
    """
    wanted = [change_of(text) for text in texts]
    own = [one for one in wanted if one.subject != OF_RANKS]
    ends = [both_ends(program, own) for program in graph.programs]
    changes, worst = [best for best, _ in ends], [worst for _, worst in ends if worst is not None]
    if any(one.subject == OF_RANKS for one in wanted):
        changes, worst = _without_stragglers(graph, changes), _without_stragglers(graph, worst)
    most = sum(most_saved(program, one) for program, one in zip(graph.programs, changes, strict=True))

    @cache
    def runs(spare: float) -> list[Replay]:
        return graph.run(changes, spare)

    @cache
    def worst_runs() -> list[Replay]:
        return graph.run(worst, MEDIAN)

    rows = []
    for i, (program, one) in enumerate(zip(graph.programs, changes, strict=True)):
        played = Scenario(one, most, partial(lambda i, spare: runs(spare)[i], i))
        if worst:
            played = replace(played, at_worst=worst[i], worst=partial(lambda i: worst_runs()[i], i))
        rows.append(with_parts(program, wanted, played)[0])
    return [PREDICTIONS.conform(pl.DataFrame([row])) for row in rows]


def _without_stragglers(graph: JointGraph, changes: Sequence[Changes]) -> list[Changes]:
    """The changes of each rank, with computation that is as fast as that of the typical rank."""
    return (
        [
            replace(one, work=np.where(program.work.sort == COMPUTATION, one.work * pace, one.work))
            for one, program, pace in zip(changes, graph.programs, paces(graph.programs), strict=True)
        ]
        if changes
        else []
    )


def answers(graph: JointGraph, texts: Sequence[str]) -> bool:
    """Whether these questions are for the joint graph: stragglers only if their computation is what is slow."""
    asks = any(change_of(text).subject == OF_RANKS for text in texts)
    return not asks or len(texts) > 1 or min(paces(graph.programs)) < 1


def paces(programs: Sequence[Program]) -> list[float]:
    """What each rank's computation would take if it were as fast as that of the typical rank, in relation to now.

    Kernels of one name are compared by their median, without what communication cost them. The typical rank is the
    median one, of two the faster.
    """
    parts = []
    for i, program in enumerate(programs):
        mine = np.flatnonzero(program.work.sort == COMPUTATION)
        names = program.spans["name"].gather(program.work.row[mine]).cast(pl.String)
        took = program.work.end[mine] - program.work.start[mine]
        if (contention := program.graph.contention) is not None:
            took = took - contention.share * contention.overlapped[mine]
        frame = pl.DataFrame({"rank": np.full(mine.size, i), "name": names, "took": took})
        parts.append(frame.group_by("rank", "name").agg(pl.col("took").median(), n=pl.len()))
    kinds = pl.concat(parts)
    usual = pl.col("took").quantile(0.5, interpolation="lower").over("name")
    kinds = kinds.with_columns(usual=usual).group_by("rank").agg(
        pace=(pl.col("usual") * pl.col("n")).sum() / (pl.col("took") * pl.col("n")).sum()
    )  # fmt: skip
    of_rank = dict(kinds.select("rank", "pace").iter_rows())
    return [pace if (pace := of_rank.get(i, 1.0)) < 1 - _SAME_PACE else 1.0 for i in range(len(programs))]
