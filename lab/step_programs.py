"""Random training programs for `step_simulator.py`, and what a change makes of them.

    case = random_case(seed)
    case.program, case.traits            # traits: "queue full", "loader-bound", "two streams", …
    for change in case.changes: change.texts, change.apply(case.program)

A change is applied to the program, not to a recording, so a second simulation gives its true effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, count
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from step_simulator import (
    Close,
    Fork,
    Host,
    Instruction,
    Launch,
    Loader,
    Next,
    Open,
    Program,
    Record,
    Step,
    Sync,
    Wait,
    Work,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from step_simulator import Body, Run

COMPUTE, COPY, EXCHANGE, BRANCH = 7, 13, 20, 24
WARM_UP, RECORDED = 6, 8  # recorded: a multiple of the number of workers, which deliver in bursts
#: Name, class, and length relative to others.
KERNELS = {
    "linear": (("ampere_sgemm_128x64_tn", 4.0),),
    "attention": (("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", 3.0),),
    "conv2d": (("cudnn_infer_ampere_scudnn_128x64_relu_interior_nn_v1", 5.0), ("void add_bias_kernel<float>", 0.4)),
    "layer_norm": (("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", 0.7),),
    "gelu": (("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", 0.5),),
    "softmax": (("void softmax_warp_forward<float, float, float, 8, false, false>", 0.6),),
    "dropout": (("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float>", 0.4),),
}
BACKWARD = {"linear": "Addmm", "attention": "ScaledDotProductFlashAttention", "conv2d": "Convolution"}
GEMM = "ampere_sgemm_128x64_tn"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdam>"
NEXT = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"


@dataclass(frozen=True, slots=True)
class Traits:
    """What is drawn once for a program."""

    layers: tuple[str, ...]
    host_ns: float  # of an operator
    kernel_ns: float  # of a kernel of length 1
    call_ns: float
    noise: float
    queue: int
    queue_of: str
    ranks: int
    buckets: int
    exchange_ns: float
    slowdown: float
    workers: int | None  # None: no loader
    service_ns: float
    copies: str  # "", "pageable", "pinned", "stream"
    ends: str  # "", "item", "blocking", "device", "event"
    graph: int  # operators in a row that are one CUDA graph, forward
    branch: bool
    threads: bool  # the forward pass on two threads
    straggler: float  # rank 0 computes that much longer


@dataclass(slots=True)
class _Builder:
    """Writes the body of one rank's main thread, with its noise."""

    traits: Traits
    rng: np.random.Generator
    rank: int
    sequence: int = 0
    events: Iterable[int] = field(default_factory=lambda: count(1))

    def noisy(self, ns: float) -> int:
        return max(1, round(ns * float(np.exp(self.rng.normal(0, self.traits.noise)))))

    def work(self, name: str, relative: float) -> Work:
        slow = self.traits.straggler if self.rank == 0 else 1.0
        ns = self.noisy(max(1200.0, relative * self.traits.kernel_ns * slow))
        return Work(name, ns, "kernel", self.noisy(2500), self.noisy(900), round(relative * 2**20))

    def launch(self, *works: Work, stream: int = COMPUTE, graph: int = 0, blocks: bool = False) -> Launch:
        return Launch(stream, works, self.noisy(self.traits.call_ns), graph, blocks)

    def copy(self, name: str, ns: float, stream: int, *, blocks: bool = False) -> Launch:
        work = Work(name, self.noisy(ns), "memcpy", self.noisy(2500), self.noisy(900), round(ns * 10))
        return Launch(stream, (work,), self.noisy(self.traits.call_ns), 0, blocks)

    def host(self, share: float = 1.0) -> Host:
        return Host(self.noisy(self.traits.host_ns * share))

    def record(self, event: int, stream: int) -> Record:
        return Record(event, stream, self.noisy(1500))

    def wait(self, event: int, stream: int) -> Wait:
        return Wait(event, stream, self.noisy(1200))

    def forward(self, kind: str, stream: int) -> list[Instruction]:
        self.sequence += 1
        body: list[Instruction] = [Open(f"aten::{kind}", "cpu_op", self.sequence), self.host(0.4)]
        for name, relative in KERNELS[kind]:
            inner = "aten::addmm" if kind == "linear" else f"aten::_{kind}"
            body += [Open(inner), self.host(0.3), self.launch(self.work(name, relative), stream=stream)]
            body += [self.host(0.1), Close()]
        return [*body, self.host(0.2), Close(), self.host(0.2)]

    def backward(self, kind: str, sequence: int) -> list[Instruction]:
        node = BACKWARD.get(kind, kind.title().replace("_", "")) + "Backward0"
        body: list[Instruction] = [Open(f"autograd::engine::evaluate_function: {node}", "cpu_op", sequence)]
        body += [self.host(0.2), Open(node, "cpu_op", sequence), self.host(0.2)]
        for name, relative in KERNELS[kind] * (2 if kind == "linear" else 1):
            body += [Open("aten::mm" if kind == "linear" else f"aten::{kind}_backward"), self.host(0.2)]
            body += [self.launch(self.work(name.replace("fwd", "bwd"), 1.3 * relative)), Close()]
        return [*body, Close(), self.host(0.1), Close(), self.host(0.1)]

    def exchange(self, ready: int, done: int, n_bytes: int) -> list[Instruction]:
        ns = self.noisy(self.traits.exchange_ns)
        work = Work(ALL_REDUCE, ns, "exchange", self.noisy(3000), self.noisy(1500), n_bytes)
        body: list[Instruction] = [self.record(ready, COMPUTE), self.wait(ready, EXCHANGE)]
        body += [Open("c10d::allreduce_"), self.host(0.3), Open("record_param_comms"), self.host(0.2)]
        return [*body, self.launch(work, stream=EXCHANGE), Close(), Close(), self.record(done, EXCHANGE)]

    def inputs(self) -> list[Instruction]:
        """The batch, and its way to the device."""
        traits, body = self.traits, cast("list[Instruction]", [])
        if traits.workers is not None:
            name = NEXT.format("MultiProcessing" if traits.workers else "SingleProcess")
            body += [Open(name, "user_annotation"), Next(self.noisy(60_000 if traits.workers else 500)), Close()]
        if traits.copies:
            pageable = traits.copies == "pageable"
            title = f"Memcpy HtoD ({'Pageable' if pageable else 'Pinned'} -> Device)"
            stream = COPY if traits.copies == "stream" else COMPUTE
            body += [Open("aten::to"), Open("aten::copy_"), self.host(0.5)]
            body += [self.copy(title, 12 * traits.kernel_ns, stream, blocks=pageable)]
            if pageable:
                body += [Sync("stream", COMPUTE, self.noisy(2000))]
            body += [Close(), Close()]
            if stream == COPY:
                body += [self.record(901, COPY), self.wait(901, COMPUTE)]
        return [*body, self.host()]

    def model(self) -> list[Instruction]:
        traits, body = self.traits, cast("list[Instruction]", [])
        body.append(Open("forward", "user_annotation"))
        half = len(traits.layers) // 2
        if traits.threads:
            # As DataParallel does: each half on a thread and a stream of its own, joined by an event.
            bodies = [[i for kind in part for i in self.forward(kind, stream)] for part, stream in
                      ((traits.layers[:half], COMPUTE), (traits.layers[half:], BRANCH))]  # fmt: skip
            body += [Open("DataParallel.forward"), self.record(902, COMPUTE), self.wait(902, BRANCH)]
            body += [Fork((("worker 1", tuple(bodies[0])), ("worker 2", tuple(bodies[1]))), self.noisy(9000)), Close()]
            body += [self.record(903, BRANCH), self.wait(903, COMPUTE)]
        elif traits.graph:
            works = [self.work(*kernel) for kind in traits.layers[: traits.graph] for kernel in KERNELS[kind]]
            self.sequence += traits.graph
            call = graph_launch(tuple(works), 1)
            body += [Open("CUDAGraph.replay"), self.host(), call, Close()]
            body += [i for kind in traits.layers[traits.graph :] for i in self.forward(kind, COMPUTE)]
        elif traits.branch:
            body += [self.record(902, COMPUTE), self.wait(902, BRANCH)]
            for kind in traits.layers[:half]:
                body += self.forward(kind, BRANCH)
            for kind in traits.layers[half:]:
                body += self.forward(kind, COMPUTE)
            body += [self.record(903, BRANCH), self.wait(903, COMPUTE)]
        else:
            body += [i for kind in traits.layers for i in self.forward(kind, COMPUTE)]
        return [*body, Close(), self.host()]

    def gradients(self) -> list[Instruction]:
        """On autograd's thread; exchanges run on a stream of their own, and the optimizer waits for them."""
        traits, body = self.traits, cast("list[Instruction]", [])
        last = self.sequence
        every = max(1, len(traits.layers) // max(1, traits.buckets))
        dones = []
        for i, kind in enumerate(reversed(traits.layers)):
            body += self.backward(kind, last - i)
            if traits.buckets and (i + 1) % every == 0 and len(dones) < traits.buckets:
                dones.append(920 + i)
                body += self.exchange(950 + i, dones[-1], 2**20)
        out: list[Instruction] = [Fork((("autograd", tuple(body)),), self.noisy(12_000))]
        return [*out, *(self.wait(done, COMPUTE) for done in dones), self.host(0.5)]

    def step(self, number: int) -> list[Instruction]:
        traits = self.traits
        body: list[Instruction] = [Step(), Host(self.noisy(4000)), *self.inputs(), *self.model(), *self.gradients()]
        body += [Open("Optimizer.step#AdamW.step", "user_annotation"), self.host(2)]
        for _ in range(1 + len(traits.layers) // 6):
            body += [Open("aten::_fused_adamw_"), self.host(0.5), self.launch(self.work(ADAM, 1.5)), Close()]
        body += [Close(), self.host(0.5)]
        if traits.ends == "event":
            # Wait for the step before this one, as a throttle does.
            body += [self.record(905 + number % 2, COMPUTE)]
            if number:
                body += [Sync("event", 905 + (number - 1) % 2, self.noisy(2000), self.noisy(2000))]
        elif traits.ends == "device":
            body += [Sync("device", 0, self.noisy(3000), self.noisy(3000))]
        elif traits.ends:
            body += [Open("aten::item"), Open("aten::_local_scalar_dense"), self.host(0.2)]
            body += [self.copy("Memcpy DtoH (Device -> Pageable)", 1200, COMPUTE, blocks=traits.ends == "blocking")]
            body += [Sync("stream", COMPUTE, self.noisy(2000), self.noisy(2500)), Close(), Close()]
        return [*body, self.host()]


def _pick(rng: np.random.Generator, **chances: float) -> str:
    names = list(chances)
    return str(rng.choice(names, p=np.array(list(chances.values())) / sum(chances.values())))


def random_traits(seed: int) -> Traits:
    """Sizes and kinds of a job; about a third is bound by the device, a third by the host, a third by its loader."""
    rng = np.random.default_rng((seed, 0))
    layers = tuple(
        str(kind)
        for kind in rng.choice(list(KERNELS), int(rng.integers(8, 30)), p=[0.3, 0.1, 0.1, 0.15, 0.15, 0.1, 0.1])
    )
    host = float(rng.uniform(15_000, 60_000))
    balance = float(rng.choice([0.2, 0.5, 0.9, 1.3, 2.5]))  # of device to host
    kernel = host * balance * 0.6
    length = len(layers) * 3 * host * max(1.0, balance)  # of a step, about
    workers = {"none": None, "inline": 0, "two": 2, "four": 4}[_pick(rng, none=3, inline=1, two=2, four=2)]
    service = length * float(rng.choice([0.3, 0.7, 1.2, 2.0])) * (workers or 0.3)
    exchanges = rng.random() < 0.4
    shape = _pick(rng, plain=6, graph=1, branch=1, threads=0.6)
    return Traits(
        layers, host, kernel, float(rng.uniform(4000, 9000)), float(rng.choice([0.01, 0.03, 0.1])),
        int(rng.choice([16, 24, 40, 64, 1024])), "stream" if rng.random() < 0.8 else "device",
        int(rng.choice([1, 2, 4], p=[0.6, 0.3, 0.1])) if exchanges else 1,
        int(rng.integers(1, 5)) if exchanges else 0,
        length * float(rng.uniform(0.02, 0.3)),
        float(rng.choice([1.0, 1.0, 1.15, 1.3])) if exchanges else 1.0,
        workers, service,
        _pick(rng, none=2, pageable=1, pinned=2, stream=1).replace("none", ""),
        _pick(rng, none=2, item=2, blocking=1, device=1, event=1).replace("none", ""),
        int(rng.integers(3, len(layers))) if shape == "graph" else 0, shape == "branch", shape == "threads",
        float(rng.choice([1.0, 1.2])) if exchanges else 1.0,
    )  # fmt: skip


def build(traits: Traits, seed: int) -> Program:
    """The program; the same seed gives the same noise."""
    bodies = []
    for rank in range(traits.ranks):
        builder = _Builder(traits, np.random.default_rng((seed, 1, rank)), rank)
        steps = [i for number in range(WARM_UP + RECORDED) for i in builder.step(number)]
        bodies.append((*steps, Step()))
    loader = None
    if traits.workers is not None:
        rng = np.random.default_rng((seed, 2))
        noise = np.exp(rng.normal(0, traits.noise, (traits.ranks, WARM_UP + RECORDED)))
        rows = tuple(tuple(int(v) for v in row) for row in (traits.service_ns * noise).tolist())
        loader = Loader(traits.workers, rows)
    queue_of = "device" if traits.queue_of == "device" else "stream"
    return Program(tuple(bodies), traits.queue, queue_of, loader, traits.slowdown, WARM_UP)


# Changes


def graph_launch(works: tuple[Work, ...], number: int) -> Launch:
    """A CUDA graph begins after some 20 µs, and its call takes 1.0 to 2.2 µs a node (RTX 3080, V100)."""
    return Launch(COMPUTE, works, 20_000, number, after_ns=1500 * len(works))


def rewrite(body: Body, change: Callable[[Instruction, tuple[str, ...]], Instruction | None]) -> Body:
    """Each instruction changed, given the names of the spans around it; None drops it."""
    out, around = [], list[str]()
    for instruction in body:
        if isinstance(instruction, Open):
            around.append(instruction.name)
        elif isinstance(instruction, Close):
            around.pop()
        new = change(instruction, tuple(around))
        if isinstance(new, Fork):
            inner = partial(_inside, change, tuple(around))
            new = new._replace(bodies=tuple((thread, rewrite(part, inner)) for thread, part in new.bodies))
        if new is not None:
            out.append(new)
    return tuple(out)


def _inside(
    change: Callable[[Instruction, tuple[str, ...]], Instruction | None],
    outer: tuple[str, ...],
    instruction: Instruction,
    around: tuple[str, ...],
) -> Instruction | None:
    return change(instruction, outer + around)


class Change(NamedTuple):
    """What `stepscope predict --if` is given, and what it means for the program."""

    texts: tuple[str, ...]
    apply: Callable[[Program], Program]


def _each(change: Callable[[Instruction, tuple[str, ...]], Instruction | None]) -> Callable[[Program], Program]:
    return lambda program: replace(program, ranks=tuple(rewrite(body, change) for body in program.ranks))


def works_scaled(chosen: Callable[[Work], bool], factor: float) -> Callable[[Program], Program]:
    """Chosen works last `factor` times as long."""

    def change(i: Instruction, _: tuple[str, ...]) -> Instruction:
        if not isinstance(i, Launch):
            return i
        works = tuple(w._replace(ns=round(w.ns * factor)) if chosen(w) else w for w in i.works)
        return i._replace(works=works)

    return _each(change)


def calls_scaled(factor: float) -> Callable[[Program], Program]:
    """Launching calls, and the delays from them to their work, take `factor` times as long."""

    def change(i: Instruction, _: tuple[str, ...]) -> Instruction:
        if not isinstance(i, Launch):
            return i
        works = tuple(w._replace(lag_ns=round(w.lag_ns * factor)) for w in i.works)
        return i._replace(ns=round(i.ns * factor), works=works, after_ns=round(i.after_ns * factor))

    return _each(change)


def host_scaled(factor: float) -> Callable[[Program], Program]:
    """All time of host threads but for waits and data loading."""

    def change(i: Instruction, _: tuple[str, ...]) -> Instruction:
        if isinstance(i, Fork):
            return i._replace(wake_ns=round(i.wake_ns * factor))
        if isinstance(i, Launch):
            return i._replace(ns=round(i.ns * factor), after_ns=round(i.after_ns * factor))
        return i._replace(ns=round(i.ns * factor)) if isinstance(i, Host | Record | Wait | Sync) else i

    return _each(change)


def spans_scaled(pattern: str, factor: float) -> Callable[[Program], Program]:
    """What runs in chosen spans, on the host and on the device."""
    regex = re.compile(pattern)

    def change(i: Instruction, around: tuple[str, ...]) -> Instruction:
        if not any(regex.search(name) for name in around):
            return i
        if isinstance(i, Launch):
            works = tuple(w._replace(ns=round(w.ns * factor)) for w in i.works)
            return i._replace(ns=round(i.ns * factor), works=works, after_ns=round(i.after_ns * factor))
        return i._replace(ns=round(i.ns * factor)) if isinstance(i, Host) else i

    return _each(change)


def without_syncs(program: Program) -> Program:
    """No call waits for the device: synchronisations are gone, copies return at once."""

    def change(i: Instruction, _: tuple[str, ...]) -> Instruction | None:
        if isinstance(i, Sync):
            return None
        return i._replace(blocks=False) if isinstance(i, Launch) and i.blocks else i

    return _each(change)(program)


def loader_scaled(factor: float) -> Callable[[Program], Program]:
    """Batches take `factor` times as long to make."""

    def change(program: Program) -> Program:
        assert program.loader is not None
        rows = tuple(tuple(round(ns * factor) for ns in row) for row in program.loader.service_ns)
        return replace(program, loader=program.loader._replace(service_ns=rows))

    return change


def as_graphs(program: Program) -> Program:
    """What is launched between two waits becomes one launch of a graph, and the host time between those launches goes.

    Batches, copies, synchronisations and the host time around them stay.
    """
    return replace(program, ranks=tuple(_captured(body) for body in program.ranks))


def _captured(body: Body) -> Body:
    awaited = {i.target for i in body if isinstance(i, Sync) and i.of == "event"}
    out: list[Instruction] = []
    run: list[tuple[list[Instruction], tuple[Work, ...]]] = []

    def flush() -> None:
        launching = [k for k, (_, works) in enumerate(run) if works]
        first, last = (launching[0], launching[-1]) if launching else (len(run), len(run))
        out.extend(i for unit, _ in run[:first] for i in unit)
        if launching:
            out.append(graph_launch(tuple(work for _, works in run for work in works), 77))
        out.extend(i for unit, _ in run[last + 1 :] for i in unit)
        run.clear()

    for unit in _units(body):
        works = tuple(work for i in _flat(unit) if isinstance(i, Launch) for work in i.works)
        stays = any(isinstance(i, Sync | Next | Step) or (isinstance(i, Record) and i.event in awaited) for i in unit)
        if stays or any(work.kind == "memcpy" for work in works):
            flush()
            out.extend(unit)
        else:
            run.append((unit, works))
    flush()
    return tuple(out)


def _units(body: Body) -> Iterator[list[Instruction]]:
    """Outermost spans with all that is in them, and single instructions outside of any."""
    unit, depth = cast("list[Instruction]", []), 0
    for i in body:
        unit.append(i)
        depth += isinstance(i, Open) - isinstance(i, Close)
        if not depth:
            yield unit
            unit = []


def _flat(unit: Iterable[Instruction]) -> Iterator[Instruction]:
    for i in unit:
        yield i
        for _, inner in i.bodies if isinstance(i, Fork) else ():
            yield from _flat(inner)


def both(*changes: Callable[[Program], Program]) -> Callable[[Program], Program]:
    """One change after the other."""

    def change(program: Program) -> Program:
        for one in changes:
            program = one(program)
        return program

    return change


def _kernels(program: Program) -> dict[str, int]:
    totals: dict[str, int] = {}

    def add(i: Instruction, _: tuple[str, ...]) -> Instruction:
        for work in i.works if isinstance(i, Launch) else ():
            if work.kind == "kernel":
                totals[work.name] = totals.get(work.name, 0) + work.ns
        return i

    rewrite(program.ranks[0], add)
    return totals


def possible_changes(traits: Traits, program: Program) -> list[Change]:
    """Questions that make sense for the program, as the command line writes them, with what they do."""
    largest = sorted(_kernels(program).items(), key=lambda item: -item[1])
    changes: dict[str, Callable[[Program], Program]] = {}
    for name, _ in largest[:3]:
        for factor in (2, 5):
            changes[f"kernel ~ ^{re.escape(name)}$: {factor}x"] = works_scaled(partial(_is_named, name), 1 / factor)
    changes |= {
        "class gemm: 2x": works_scaled(partial(_is_named, GEMM), 0.5),
        "launch: 2x": calls_scaled(0.5),
        "host: 2x": host_scaled(0.5),
        "device: 2x": works_scaled(lambda _: True, 0.5),
        "range Optimizer.step#AdamW.step: 2x": spans_scaled(r"^Optimizer\.step#AdamW\.step$", 0.5),
        "op ~ aten::linear: 2x": spans_scaled("aten::linear", 0.5),
    }
    if traits.ends or traits.copies == "pageable":
        changes["sync: removed"] = without_syncs
    if traits.workers is not None:
        changes |= {"loader: hidden": loader_scaled(0.0), "loader: 2x": loader_scaled(0.5)}
    if traits.buckets:
        changes |= {"comm: free": works_scaled(_is_exchange, 0.0), "comm: 2x": works_scaled(_is_exchange, 0.5)}
    elif not (traits.branch or traits.threads or traits.copies == "stream"):
        changes["launch: graphs"] = as_graphs
    if traits.straggler > 1 and traits.ranks > 1:
        changes["ranks: no stragglers"] = partial(_first_rank_faster, traits.straggler)
    return [Change((text,), apply) for text, apply in changes.items()]


def _first_rank_faster(factor: float, program: Program) -> Program:
    faster = works_scaled(lambda work: work.kind == "kernel", 1 / factor)(program)
    return replace(program, ranks=(faster.ranks[0], *program.ranks[1:]))


def _is_named(name: str, work: Work) -> bool:
    return work.name == name


def _is_exchange(work: Work) -> bool:
    return work.kind == "exchange"


@dataclass(frozen=True, slots=True)
class Case:
    """A program, its run, and questions about it."""

    seed: int
    traits: Traits
    program: Program
    run: Run
    changes: tuple[Change, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """What is special in the run."""
        rank, program = self.run.ranks[0], self.program
        least = 0.02 * self.run.step_ns * RECORDED
        waits = sum(wait for wait, step in zip(rank.queue_waits, rank.launch_steps, strict=True) if step >= WARM_UP)
        kinds = {
            "queue full": waits > least,
            "loader-bound": sum(rank.loader_waits[WARM_UP:]) > least,
            "inline loader": self.traits.workers == 0,
            "ranks": self.traits.ranks > 1,
            "exchanges": self.traits.buckets > 0,
            "contention": program.slowdown > 1,
            "two streams": self.traits.branch or self.traits.threads or self.traits.copies == "stream",
            "two threads": self.traits.threads,
            "graph": self.traits.graph > 0,
            f"ends with {self.traits.ends or 'nothing'}": True,
        }
        return frozenset(kind for kind, holds in kinds.items() if holds)


def _scales(change: Change) -> set[str]:
    """What a change scales; two that scale the same are not asked together. Spans hold work of host and device."""
    subject = change.texts[0].split(":")[0].split(" ")[0]
    parts = {"launch": {"host"}, "host": {"host"}, "loader": {"loader"}, "sync": {"sync"}}
    return parts.get(subject, {"host", "device"} if subject in ("op", "range") else {"device"})


def random_case(seed: int, n_changes: int = 10) -> Case:
    """A program whose recorded steps are those of the long run, with that many questions about it."""
    traits = random_traits(seed)
    program = build(traits, seed)
    run = simulate(program)
    if abs(run.host_step_ns - run.device_step_ns) > 0.003 * run.step_ns and not traits.ends:
        # The host still runs ahead of the device: the recording would not show how long a step takes.
        traits = replace(traits, ends="item")
        program = build(traits, seed)
        run = simulate(program)
    rng = np.random.default_rng((seed, 3))
    changes = possible_changes(traits, program)
    order = rng.permutation(len(changes))[: n_changes - 1].tolist()
    chosen = [changes[i] for i in sorted(order)]
    pairs = [pair for pair in combinations(chosen, 2) if not _scales(pair[0]) & _scales(pair[1])]
    if pairs:
        first, second = pairs[int(rng.integers(len(pairs)))]
        chosen.append(Change(first.texts + second.texts, both(first.apply, second.apply)))
    return Case(seed, traits, program, run, tuple(chosen))
