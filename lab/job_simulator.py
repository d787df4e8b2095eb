"""A training job of many ranks, simulated: what each rank's trace would say of its exchanges, the truth being known.

Ranks compute, exchange (tensor, data and pipeline parallel groups, in the order of Megatron-LM: tensor-parallel
neighbours first, then data parallel, then stages of the pipeline) and wait for each other, step after step, with noise.
Their clocks are off by constants and drift. Faults make chosen ranks late or links slow.

    plan = Plan(Layout(dp=32), steps=50, faults=(Fault("late", rank=16, amount_ns=400_000),), offset_sd_ns=1e6)
    parts = tables(simulate(plan))  # as stepscope.analyses.ranks.calls.rank_calls would make them of trace files

`make_ranks.py` writes the same as trace files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.ranks.calls import CALLS, WORK, RankCalls, own_base
from stepscope.analyses.ranks.groups import Comm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.float64]

Kind = Literal["late", "host", "compute", "data loading", "clock", "link"]
UNIX_NS = 1_750_000_000_000_000_000
ELEMENT = 2  # bytes of bfloat16
WORKED = ("compute", "data", "idle", "backward", "optimizer", "extra")
COLUMNS = ("compute_ns", "data_ns", "backward_ns", "optimizer_ns")


class Layout(msgspec.Struct, frozen=True):
    """How many ranks work together in which way."""

    tp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def n_ranks(self) -> int:
        """All ranks of the job."""
        return self.tp * self.dp * self.pp

    def rank(self, stage: int, replica: int, place: int) -> int:
        """Number of a rank."""
        return (stage * self.dp + replica) * self.tp + place


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong, with which rank, how much, from which step to which, in every how many steps.

    `late` and `host` add idle time before each exchange with a group, `compute` adds work there, `data loading` time at
    the start of a step, all `amount_ns`; `clock` makes all work of the rank slower by `ratio`; `link` makes exchanges
    slower by `ratio`, those of the rank's groups, or only of those that hold `peer` too.
    """

    kind: Kind
    rank: int
    amount_ns: float = 0.0
    ratio: float = 0.0
    peer: int | None = None
    first_step: int = 0
    last_step: int | None = None
    every: int = 1

    def holds(self, step: int) -> bool:
        """Whether the step is hit."""
        return self.first_step <= step <= (self.last_step if self.last_step is not None else step) and (
            (step - self.first_step) % self.every == 0
        )


class Plan(msgspec.Struct, frozen=True):
    """What is simulated. Times in ns, rates in bytes/s; noise is exponential, jitter relative to the work.

    `memory` is the correlation of a rank's jitter from one exchange to the next; `uneven` how far the speeds of ranks
    are apart for good (standard deviation). `heavy_tails` makes large delays common, with the same mean and deviation
    of jitter.
    """

    layout: Layout = msgspec.field(default_factory=lambda: Layout(dp=8))
    steps: int = 20
    layers: int = 4  # per stage; an exchange of the tensor-parallel group each way
    buckets: int = 4  # exchanges of the data-parallel group per step
    microbatches: int = 4
    layer_ns: float = 1_000_000.0
    layer_bytes: int = 32 << 20
    bucket_bytes: int = 64 << 20
    bytes_per_s: float = 150e9
    latency_ns: float = 15_000.0
    jitter: float = 0.01
    memory: float = 0.0
    uneven: float = 0.0
    heavy_tails: bool = False  # jitter of Student's t with 3 degrees of freedom, noise of a Pareto tail of power 2.5
    arrival_noise_ns: float = 10_000.0
    end_noise_ns: float = 3_000.0
    transfer_noise_ns: float = 5_000.0
    overlap: bool = False  # data-parallel exchanges run beside the backward pass
    offset_sd_ns: float = 0.0
    drift_sd: float = 0.0  # seconds per second
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    hosts_of: int | None = 8  # ranks on a host


class Simulated(msgspec.Struct, frozen=True):
    """Exchanges of all ranks in true time, a row per rank and exchange, sorted by rank and start; clocks of the ranks.

    `rows` has rank, group (index of `groups`), kind, bytes, step, seq, src, dst, start, end, and what was done since
    the exchange before: compute, data, idle; of these backward, optimizer and what a fault added (extra), in ns. A
    rank's clock shows t × (1 + drift) + offset.
    """

    plan: Plan
    rows: pl.DataFrame
    groups: tuple[tuple[str, str, tuple[int, ...]], ...]
    offset_ns: Times
    drift: Times
    step_starts: Times  # [step, rank]
    injected_ns: Times  # by which faults made each rank late in all

    def clock(self, rank: NDArray[np.int64], true_ns: Times) -> NDArray[np.int64]:
        """What the clocks of ranks show."""
        shown: NDArray[np.int64] = np.rint(true_ns * (1 + self.drift[rank]) + self.offset_ns[rank]).astype(np.int64)
        return shown


class _Stage:
    """One stage of the pipeline: all its ranks as an array [replica, place]."""

    def __init__(self, job: _Job, stage: int) -> None:
        self.job, self.stage = job, stage
        layout = job.plan.layout
        self.shape = (layout.dp, layout.tp)
        self.ranks = np.array([[layout.rank(stage, d, t) for t in range(layout.tp)] for d in range(layout.dp)])
        self.now = np.zeros(self.shape)
        self.comm_end = np.zeros(self.shape)
        self.ops: list[dict[str, object]] = []
        self.wander = np.zeros(self.shape)
        self.done: dict[str, Times] = dict.fromkeys(WORKED, np.zeros(self.shape))

    def work(self, ns: float, step: int, phase: str, *, first: bool = False, joins: bool = True) -> None:
        """Compute for about so long, before an exchange with a group if it `joins` one."""
        plan, rng = self.job.plan, self.job.rng
        fresh = rng.standard_t(3, self.shape) / np.sqrt(3) if plan.heavy_tails else rng.normal(size=self.shape)
        self.wander = plan.memory * self.wander + np.sqrt(1 - plan.memory**2) * fresh
        compute = ns * np.maximum(1 + plan.jitter * self.wander + self.job.speed[self.ranks], 0.1)
        # A Pareto (Lomax) variable of power 2.5 has the mean 1 / 1.5.
        noise = 1.5 * rng.pareto(2.5, self.shape) if plan.heavy_tails else rng.exponential(1.0, self.shape)
        idle = plan.arrival_noise_ns * noise
        data = np.full(self.shape, 50_000.0 if first else 0.0)
        plain = data + idle + compute
        extra = np.zeros(self.shape)
        for fault in plan.faults:
            if fault.kind == "link" or not fault.holds(step):
                continue
            hit = self.ranks == fault.rank
            if fault.kind in ("late", "host"):
                idle = idle + hit * fault.amount_ns * joins
            elif fault.kind == "compute":
                extra = extra + hit * fault.amount_ns * joins
                compute = compute + hit * fault.amount_ns * joins
            elif fault.kind == "clock":
                compute = compute * (1 + hit * fault.ratio)
            elif first:
                data = data + hit * fault.amount_ns
        self.now = self.now + data + idle + compute
        np.add.at(self.job.injected, self.ranks, data + idle + compute - plain)
        backward, optimizer = (float(phase == name) for name in ("backward", "optimizer"))
        parts = (compute, data, idle, (compute + idle) * backward, (compute + idle) * optimizer, extra)
        for name, part in zip(WORKED, parts, strict=True):
            self.done[name] = self.done[name] + part

    def exchange(self, kind: str, axis: str, size: int, step: int, *, beside: bool) -> None:
        """An exchange of every tensor- or data-parallel group of the stage; `beside`: work goes on meanwhile."""
        start = np.maximum(self.now, self.comm_end) if beside else self.now.copy()
        along = 1 if axis == "tp" else 0
        members = self.ranks if axis == "tp" else self.ranks.T
        took = self.job.transfer(kind, members, size, step)
        end = start.max(axis=along) + took
        end = np.expand_dims(end, along) + np.abs(self.job.rng.normal(0, self.job.plan.end_noise_ns, self.shape))
        self.add(kind, axis, size, step, start, end, blocks=not beside)
        if beside:
            self.comm_end = end
        else:
            self.now = end

    def add(
        self, kind: str, axis: str, size: int, step: int, start: Times, end: Times, **more: object
    ) -> dict[str, object]:
        """Note an exchange, and what was worked since the one before."""
        op = {"blocks": True, "kind": kind, "axis": axis, "bytes": size, "step": step, "start": start, "end": end}
        self.ops.append(op | self.done | more)
        self.done = dict.fromkeys(WORKED, np.zeros(self.shape))
        return self.ops[-1]


class _Job:
    """The state of a simulation."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = np.random.default_rng(plan.seed)
        self.speed = self.rng.normal(0, plan.uneven, plan.layout.n_ranks)
        self.stages = [_Stage(self, s) for s in range(plan.layout.pp)]
        self.injected = np.zeros(plan.layout.n_ranks)
        self.posted: dict[tuple[int, int, int, str], dict[str, object]] = {}

    def transfer(self, kind: str, members: NDArray[np.int64], size: int, step: int) -> Times:
        """How long the exchange takes each group once all have come; `members` has a line per group."""
        n = members.shape[1]
        times = {"allreduce": 2 * (n - 1) / n, "reduce_scatter": (n - 1) / n, "allgather": (n - 1) / n}.get(kind, 1.0)
        took = self.plan.latency_ns + times * size / self.plan.bytes_per_s * 1e9
        slow = np.ones(len(members))
        for fault in self.plan.faults:
            if fault.kind == "link" and fault.holds(step):
                hit = (members == fault.rank).any(axis=1)
                if fault.peer is not None:
                    hit &= (members == fault.peer).any(axis=1)
                slow = slow * (1 + fault.ratio * hit)
        noise: Times = took * slow + self.rng.exponential(self.plan.transfer_noise_ns, len(members))
        return noise

    def run(self) -> Times:
        """All steps; when each began on each rank."""
        begun: list[Times] = []
        for step in range(self.plan.steps):
            begun.append(np.concatenate([stage.now.ravel() for stage in self.stages]))
            self.pipeline(step)
            for stage in self.stages:
                self.reduce_gradients(stage, step)
            self.finish(step)
        return np.array(begun)

    def pipeline(self, step: int) -> None:
        """Forward and backward passes of all microbatches, one forward one backward (1F1B)."""
        p, m = self.plan.layout.pp, self.plan.microbatches if self.plan.layout.pp > 1 else 1
        waiting = []
        for s in range(p):
            warm = min(p - 1 - s, m)
            todo = [("forward", i) for i in range(warm)]
            for i in range(m - warm):
                todo += [("forward", warm + i), ("backward", i)]
            waiting.append([*todo, *(("backward", i) for i in range(m - warm, m))])
        first = [True] * p
        while any(waiting):
            for s, todo in enumerate(waiting):
                while todo and self.pass_(s, *todo[0], step, first=first[s]):
                    todo.pop(0)
                    first[s] = False
        self.posted.clear()

    def pass_(self, s: int, phase: str, batch: int, step: int, *, first: bool) -> bool:
        """One pass of one microbatch through a stage; False if what it needs has not been sent yet."""
        stage, p = self.stages[s], self.plan.layout.pp
        before, after = (s - 1, s + 1) if phase == "forward" else (s + 1, s - 1)
        if 0 <= before < p:
            sent = self.posted.get((before, s, batch, phase))
            if sent is None:
                return False
            self.receive(stage, self.stages[before], sent, step)
        times = 1 if phase == "forward" else 2
        for layer in range(self.plan.layers):
            beside = phase == "backward" and self.plan.overlap and self.plan.layout.dp > 1 and layer < self.plan.buckets
            joins = beside or self.plan.layout.tp > 1
            stage.work(times * self.plan.layer_ns, step, phase, first=first and layer == 0, joins=joins)
            if self.plan.layout.tp > 1:
                stage.exchange("allreduce", "tp", self.plan.layer_bytes, step, beside=False)
            if beside:
                stage.exchange("allreduce", "dp", self.plan.bucket_bytes, step, beside=True)
        if 0 <= after < p:
            far = self.stages[after].ranks
            self.posted[s, after, batch, phase] = stage.add(
                "send", "pp", self.plan.layer_bytes, step, stage.now.copy(), stage.now.copy(), dst=far, blocks=False
            )
        return True

    def receive(self, stage: _Stage, sender: _Stage, sent: dict[str, object], step: int) -> None:
        """Wait for a message; the sender's side ends with it."""
        start = stage.now.copy()
        pairs = np.stack((sender.ranks.ravel(), stage.ranks.ravel()), axis=1)
        took = self.transfer("send", pairs, self.plan.layer_bytes, step).reshape(stage.shape)
        end = np.maximum(start, np.asarray(sent["start"])) + took
        sent["end"] = end
        stage.add("recv", "pp", self.plan.layer_bytes, step, start, end, src=sender.ranks)
        stage.now = end.copy()

    def reduce_gradients(self, stage: _Stage, step: int) -> None:
        """The data-parallel exchanges after the backward pass, unless they ran beside it."""
        if self.plan.layout.dp > 1 and not self.plan.overlap:
            for _ in range(self.plan.buckets):
                stage.work(self.plan.layer_ns / 2, step, "backward")
                stage.exchange("allreduce", "dp", self.plan.bucket_bytes, step, beside=False)
        elif stage.ops and self.plan.layout.dp > 1:
            # Nothing is left to compute beside the last one.
            next(op for op in reversed(stage.ops) if op["axis"] == "dp")["blocks"] = True
        stage.now = np.maximum(stage.now, stage.comm_end)

    def finish(self, step: int) -> None:
        """The optimizer, and where there are several stages the norm of all gradients before it."""
        if len(self.stages) > 1:
            for stage in self.stages:
                stage.work(self.plan.layer_ns / 10, step, "optimizer")
            last = max(float(stage.now.max()) for stage in self.stages)
            everyone = np.arange(self.plan.layout.n_ranks)[None, :]
            end = last + float(self.transfer("allreduce", everyone, 4, step)[0])
            for stage in self.stages:
                ends = end + np.abs(self.rng.normal(0, self.plan.end_noise_ns, stage.shape))
                stage.add("allreduce", "world", 4, step, stage.now.copy(), ends)
                stage.now = ends
        for stage in self.stages:
            stage.work(self.plan.layer_ns / 2, step, "optimizer", joins=False)


def simulate(plan: Plan) -> Simulated:
    """Run the plan. The same plan gives the same result."""
    job = _Job(plan)
    begun = job.run()
    groups, index = _groups(plan.layout)
    frame = pl.concat([_rows(stage, index) for stage in job.stages]).sort("rank", "start", maintain_order=True)
    seq = (
        pl.when(pl.col("kind").is_in(("send", "recv")))
        .then(None)
        .otherwise(pl.int_range(pl.len()).over("rank", "group", pl.col("kind").is_in(("send", "recv"))) + 1)
    )
    n = plan.layout.n_ranks
    clocks = np.random.default_rng((plan.seed, 1))
    return Simulated(
        plan,
        frame.with_columns(seq=seq),
        groups,
        clocks.normal(0, 1, n) * plan.offset_sd_ns,
        clocks.normal(0, 1, n) * plan.drift_sd,
        begun,
        job.injected,
    )


def _groups(layout: Layout) -> tuple[tuple[tuple[str, str, tuple[int, ...]], ...], dict[tuple[str, int], int]]:
    """Name, description and ranks of each group, and by axis and rank which it is."""
    every = np.arange(layout.n_ranks).reshape(layout.pp, layout.dp, layout.tp)
    found: list[tuple[str, str, tuple[int, ...]]] = [("0", "default_pg", tuple(range(layout.n_ranks)))]
    index = {("world", rank): 0 for rank in range(layout.n_ranks)}
    for axis, name, text in ((2, "tp", "TENSOR"), (1, "dp", "DATA"), (0, "pp", "PIPELINE")):
        lines = np.moveaxis(every, axis, -1).reshape(-1, every.shape[axis])
        if lines.shape[1] < 2:
            continue
        for line in lines.tolist():
            index |= {(name, rank): len(found) for rank in line}
            found.append((str(len(found)), f"{text}_PARALLEL_GROUP" if text != "DATA" else "", tuple(line)))
    return tuple(found), index


def _rows(stage: _Stage, index: dict[tuple[str, int], int]) -> pl.DataFrame:
    n = stage.ranks.size
    ranks = stage.ranks.ravel()
    axes = {str(op["axis"]) for op in stage.ops}
    groups = {axis: np.array([index[axis, rank] for rank in ranks.tolist()]) for axis in axes}

    def column(name: str, kind: type = float) -> NDArray[Any]:
        values = np.empty((len(stage.ops), *stage.shape), kind)
        for i, op in enumerate(stage.ops):
            values[i] = op.get(name, -1)  # one value, or one for each rank
        return values.ravel()

    frame = pl.DataFrame({
        "rank": np.tile(ranks, len(stage.ops)),
        "group": np.concatenate([groups[str(op["axis"])] for op in stage.ops]),
        "kind": np.repeat([str(op["kind"]) for op in stage.ops], n),
        "bytes": np.repeat([int(str(op["bytes"])) for op in stage.ops], n),
        "step": np.repeat([int(str(op["step"])) for op in stage.ops], n),
        "blocks": np.repeat([bool(op["blocks"]) for op in stage.ops], n),
        "src": column("src", np.int64),
        "dst": column("dst", np.int64),
        **{name: column(name) for name in ("start", "end", *WORKED)},
    })  # fmt: skip
    return frame.with_columns(pl.col("src", "dst").replace(-1, None))


def tables(job: Simulated) -> list[RankCalls]:
    """What `rank_calls` would make of each rank's trace."""
    rows = job.rows
    rank = rows["rank"].to_numpy()
    start, end = (job.clock(rank, rows[c].to_numpy()) for c in ("start", "end"))
    comms = [Comm(name, text or None, len(ranks), ranks) for name, text, ranks in job.groups]
    own = (
        rows.select("rank", "group")
        .unique(maintain_order=True)
        .with_columns(comm=pl.int_range(pl.len()).over("rank").cast(pl.Int32))
    )
    frame = rows.join(own, on=["rank", "group"], how="left", maintain_order="left").with_columns(
        start_ns=pl.Series(start),
        end_ns=pl.Series(end),
        collective="kind",
        dtype=pl.lit("BFloat16"),
        in_bytes="bytes",
        out_bytes="bytes",
        measured=pl.lit("device"),
        **{name: pl.col(name.removesuffix("_ns")).round().cast(pl.Int64) for name in COLUMNS},
    )
    bounds = np.searchsorted(rank, np.arange(job.plan.layout.n_ranks + 1))
    parts = []
    for number, (low, high) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        part = frame[low:high]
        starts, ends = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        base = own_base(starts, ends, part["blocks"].to_numpy())
        at = np.maximum(base, 0) >> 1
        since = np.where(base >= 0, np.where(base & 1 == 0, ends[at], starts[at]), starts)
        part = part.with_columns(work_ns=pl.Series(starts - since))
        mine = own.filter(pl.col("rank") == number)["group"].to_list()
        hosts = job.plan.hosts_of
        parts.append(
            RankCalls(
                rank=number,
                label=f"rank{number}.json.gz",
                calls=CALLS.conform(part),
                comms=tuple(comms[g] for g in mine),
                host=f"node{number // hosts}" if hosts else None,
                world_size=job.plan.layout.n_ranks,
                origin_unix_ns=UNIX_NS,
                steps=_steps(job, number),
                work=_work(job, part, number),
            )
        )
    return parts


def _steps(job: Simulated, rank: int) -> pl.DataFrame:
    starts = job.step_starts[:, rank]
    shown = job.clock(np.full(starts.size, rank), starts)
    lengths = np.diff(np.append(shown, shown[-1] + (np.diff(shown).mean() if shown.size > 1 else 0))).astype(np.int64)
    return pl.DataFrame({"step": np.arange(shown.size, dtype=np.int32), "ts_ns": shown, "dur_ns": lengths})


def _work(job: Simulated, part: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Two kernels of all work, and a third one for what a fault adds."""
    extra = job.rows.filter(pl.col("rank") == rank)["extra"]
    calls, added = int((extra > 0).sum()), float(extra.sum())
    total = float(part["compute_ns"].sum()) - added
    names = [("gemm", part.height, 0.7 * total), ("attention", part.height, 0.3 * total)]
    names += [("extra", calls, added)] if calls else []
    return WORK.conform(pl.DataFrame(names, schema=["name", "calls", "total_ns"], orient="row", strict=False))
