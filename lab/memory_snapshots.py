"""Writes memory snapshots of simulated jobs, of which it is known what went wrong, and scores stepscope's answers.

python memory_snapshots.py FOLDER [--cases 20] [--seed 0]     writes case-N.pickle, and truth.json with what is in them
A job trains a random model on a device with `caching_allocator.CachingAllocator`, with noise: temporary tensors, frees
in any order, a second stream whose frees are late, workspaces, lengths of sequences that vary. A case is one of
`KINDS`.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
from caching_allocator import KIB, MIB, Block, CachingAllocator, Conf, Device, Frames, OutOfMemory

from stepscope.analyses.memory.allocator import Settings
from stepscope.analyses.memory.oom import failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Kind = Literal["leak", "growth", "held", "fragmentation", "large request", "other process", "healthy"]
KINDS: tuple[Kind, ...] = ("leak", "growth", "held", "fragmentation", "large request", "other process", "healthy")
#: What stepscope calls them.
ANSWERS = {
    "leak": "too much held",
    "growth": "too much held",
    "held": "too much held",
    "fragmentation": "fragmentation",
    "large request": "one large request",
    "other process": "other process",
    "healthy": None,
}
#: Memory that CUDA reports for devices in use. Units: MiB.
DEVICES = (
    14_913, 16_151, 22_491, 24_210, 32_494, 40_326, 45_457, 48_514, 65_520, 81_051, 81_079, 95_830, 143_156, 182_638,
)  # fmt: skip
NCCL_STREAM = 94_000_000_000_000
_MAIN = "train.py:main:10"
_PARTS = ("norm", "qkv", "attention", "fc", "gelu", "mask")


@dataclass
class Op:
    """One thing that the job does."""

    do: Literal["malloc", "free", "empty_cache", "step", "optimizer", "others"]
    name: int = 0
    size: int = 0
    stream: int = 0
    stack: tuple[str, ...] = ()
    used_for: int = 0


@dataclass
class Case:
    """A job, the device, and what is true of it."""

    kind: Kind
    ops: list[Op]
    device: Device
    conf: Conf
    #: How the snapshot is written, and the share of its events that it has.
    is_of_2023: bool = False
    n_events: float | None = None
    #: Whether tensors of the step are freed after the failure, before the snapshot is taken.
    unwinds: bool = False
    #: The stack to blame, innermost frame first; none if no stack is.
    guilty: tuple[str, ...] = ()
    snapshot: dict[str, Any] = field(default_factory=dict)
    #: The operation that failed, and number of events when each operation began.
    failed_at: int | None = None
    events_before: list[int] = field(default_factory=list)
    n_dropped: int = 0
    #: What the job could have at most when it failed, and how much of that was reserved and not in use.
    available: int = 0
    idle: int = 0
    #: Bytes by stack when the operation failed.
    held: Counter[tuple[str, ...]] = field(default_factory=Counter)


class Script:
    """The operations of a job, as they are thought up."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ops: list[Op] = []
        self._names = 0

    def malloc(self, size: float, *stack: str, stream: int = 0) -> int:
        """Allocate; returns the name of the tensor."""
        self._names += 1
        self.ops.append(Op("malloc", self._names, max(1, int(size)), stream, (*stack, _MAIN)))
        return self._names

    def free(self, *names: int, used_for: int = 0) -> None:
        """Free tensors."""
        self.ops.extend(Op("free", name, used_for=used_for) for name in names)


@dataclass
class Model:
    """A random transformer; sizes in bytes."""

    n_layers: int
    parameters: tuple[int, ...]  # of a layer
    embedding: int
    activations: tuple[int, ...]  # of a layer, for the mean length
    logits: int
    has_adam: bool

    @classmethod
    def at_random(cls, rng: random.Random) -> Model:
        """Of 4 to 32 layers."""
        hidden, width = rng.choice([768, 1024, 1536, 2048, 4096]), rng.choice([2, 4])
        tokens = rng.choice([2048, 4096, 8192, 16384])
        return cls(
            n_layers=rng.choice([4, 6, 8, 12, 16, 24]),
            parameters=(*(n * hidden * hidden * width for n in (3, 1, 4, 4)), hidden * width, hidden * width),
            embedding=rng.choice([32_000, 50_257]) * hidden * width,
            activations=(*(n * tokens * hidden * width for n in (1, 3, 1, 4, 4)), tokens * 4),
            logits=tokens * rng.choice([8_000, 32_000]) * width,
            has_adam=rng.random() < 0.8,
        )

    def scaled(self, ratio: float) -> Model:
        """With all sizes so many times as large."""

        def times(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(max(256, int(size * ratio)) for size in sizes)

        return replace(
            self,
            parameters=times(self.parameters),
            activations=times(self.activations),
            embedding=int(self.embedding * ratio),
            logits=int(self.logits * ratio),
        )


def _stack_of(part: str, layer: int) -> tuple[str, ...]:
    line = 40 + 7 * _PARTS.index(part)
    return (
        f"torch/nn/functional.py:{part}:{line + 1000}",
        f"model.py:{part}:{line}",
        f"model.py:block:{200 + layer % 2}",
    )


class Training:
    """Writes the script of a training: set-up, then steps with a hook where a fault acts."""

    def __init__(self, script: Script, model: Model) -> None:
        self.script, self.model = script, model
        self.has_stepped = False

    def set_up(self) -> None:
        """Parameters and workspaces."""
        script, model = self.script, self.model
        script.malloc(8 * MIB + 512 * KIB, "torch/nn/functional.py:linear:114", "model.py:forward:88")
        script.malloc(model.embedding, "torch/nn/modules/sparse.py:__init__:144", "model.py:__init__:12")
        for _ in range(model.n_layers):
            for size in model.parameters:
                script.malloc(size, "torch/nn/modules/linear.py:__init__:96", "model.py:__init__:20")

    def step(self, hook: Callable[[str], None] = lambda _: None) -> None:
        """One step. The hook is called in the middle of forward and after the optimizer."""
        script, model, rng = self.script, self.model, self.script.random
        length = rng.uniform(0.7, 1.0)
        script.ops.append(Op("step"))
        batch = script.malloc(rng.randint(4, 64) * KIB, "torch/utils/data/dataloader.py:to:55", "train.py:load:31")
        layers: list[list[int]] = []
        for number in range(model.n_layers):
            tensors = []
            for part, size in zip(_PARTS, model.activations, strict=True):
                tensors.append(script.malloc(size * length, *_stack_of(part, number)))
                if rng.random() < 0.3:
                    self._temporary(size * length, "forward")
            layers.append(tensors)
            if number == model.n_layers // 2:
                hook("forward")
        head = [
            script.malloc(model.logits * length, "torch/nn/functional.py:linear:1025", "model.py:head:140"),
            script.malloc(model.logits * length, "torch/nn/functional.py:cross_entropy:3104", "train.py:loss:52"),
        ]
        script.free(*head)
        for tensors in reversed(layers):
            self._temporary(max(model.activations) * length, "backward")
            if not self.has_stepped:
                for size in model.parameters:
                    script.malloc(size, "torch/autograd/graph.py:_engine_run_backward:823", "train.py:step:60")
            if rng.random() < 0.3:  # gradients are reduced on another stream
                size = sum(model.parameters) // 4
                bucket = script.malloc(size, "torch/nn/parallel/distributed.py:_reduce:77", stream=NCCL_STREAM)
                script.free(bucket, used_for=rng.randint(1, 5))
            rng.shuffle(tensors)
            script.free(*tensors)
        script.free(batch)
        script.ops.append(Op("optimizer", name=1))
        if not self.has_stepped:
            self._first_step()
        self._temporary(model.embedding, "optimizer")
        script.ops.append(Op("optimizer", name=0))
        self.has_stepped = True
        hook("end")

    def _first_step(self) -> None:
        model = self.model
        sizes = [*(size for _ in range(model.n_layers) for size in model.parameters), model.embedding]
        for line in (150, 154) if model.has_adam else ():
            for size in sizes:
                self.script.malloc(size, f"torch/optim/adam.py:_init_group:{line}", "torch/optim/adam.py:step:225")

    def _temporary(self, size: float, where: str) -> None:
        rng = self.script.random
        stack = f"torch/_ops.py:{where}:{rng.choice([11, 22, 33])}", f"model.py:{where}:66"
        names = [self.script.malloc(size * rng.uniform(0.1, 0.6), *stack) for _ in range(rng.choice([1, 1, 2]))]
        self.script.free(*names)


def make(kind: Kind, seed: int) -> Case:
    """The case of that kind and seed, with its snapshot."""
    for attempt in range(20):
        case = _planned(kind, (seed * 10 + KINDS.index(kind)) * 100 + attempt)
        run(case)
        if _is_as_meant(case):
            return case
    raise RuntimeError(f"no case of {kind} with seed {seed}")


def _is_as_meant(case: Case) -> bool:
    """Whether the job failed or not as it should, and for the reason that it should."""
    if case.kind == "healthy" or case.failed_at is None:
        return (case.failed_at is None) == (case.kind == "healthy")
    failed = case.ops[case.failed_at]
    if case.kind in _REQUEST:
        return failed.stack[:-1] == _REQUEST[case.kind]
    if case.kind == "held" and failed.size > 2 * max(op.size for op in case.ops[: case.failed_at] if op.do == "malloc"):
        return False  # this is a large request
    fits = needed(case, Conf(expandable_segments=True))
    is_fragmented = fits is not None and fits <= case.available
    # A job that both grows and wastes has two causes; of such only those where growth is the larger one are taken.
    return not is_fragmented or (case.kind in ("leak", "growth") and case.held[case.guilty] > 1.5 * case.idle)


#: What the device has left for a job's usual peak, as a share: from and to.
_SHARES: dict[Kind, tuple[float, float]] = {
    "leak": (0.35, 0.75), "growth": (0.3, 0.6), "held": (1.15, 1.7), "fragmentation": (0.15, 0.3),
    "large request": (0.3, 0.6), "other process": (0.4, 0.8), "healthy": (0.4, 0.85),
}  # fmt: skip
_REQUEST = {
    "large request": ("torch/nn/functional.py:scaled_dot_product_attention:5501", "model.py:attention:77"),
    "fragmentation": ("torch/functional.py:cat:12", "serve.py:gather:44"),
}
_LEAK, _GROWTH, _PIN = ("train.py:log:71", "train.py:step:58"), ("cache.py:append:19", "model.py:decode:31"), (
    "cache.py:keep:33", "serve.py:answer:91"
)  # fmt: skip


def _planned(kind: Kind, seed: int) -> Case:
    rng = random.Random(seed)
    total, context = rng.choice(DEVICES) * MIB, rng.randint(350, 900) * MIB
    available = total - context
    model = Model.at_random(rng)
    peak = rng.uniform(*_SHARES[kind]) * available
    for _ in range(2):
        trial = Training(Script(seed), model)
        trial.set_up()
        trial.step()
        trial.step()
        model = model.scaled(peak / _held(trial.script.ops)[0])
    training = Training(Script(seed), model)
    training.set_up()
    case = Case(kind, training.script.ops, Device(total, others=context), _conf(rng, kind))
    case.is_of_2023, case.n_events = rng.random() < 0.15, rng.choice([None, None, None, 0.8])
    case.unwinds = rng.random() < 0.3
    _FAULTS[kind](training, case, available)
    return case


def _conf(rng: random.Random, kind: Kind) -> Conf:
    pick = rng.random()
    if kind == "fragmentation":
        return Conf()
    if pick < 0.1:
        return Conf(roundup_power2_divisions=rng.choice([4, 8]))
    if pick < 0.4:
        return rng.choice([Conf(expandable_segments=True), Conf(max_split_size=rng.choice([64, 128, 512]) * MIB)])
    return Conf()


def _held(ops: list[Op]) -> tuple[int, int]:
    """The most that tensors of a script hold at once, and what they hold at its end."""
    sizes: dict[int, int] = {}
    now = most = 0
    for op in ops:
        if op.do == "malloc":
            sizes[op.name] = op.size
            now += op.size
            most = max(most, now)
        elif op.do == "free":
            now -= sizes.pop(op.name)
    return most, now


def _healthy(training: Training, _case: Case, _available: int) -> None:
    for _ in range(training.script.random.randint(4, 9)):
        training.step()


def _too_large(training: Training, _case: Case, _available: int) -> None:
    for _ in range(2):
        training.step()


def _leak(training: Training, case: Case, available: int) -> None:
    script = training.script
    n_steps, n_tensors = script.random.randint(7, 22), script.random.randint(1, 4)
    for _ in range(2):
        training.step()
    size = (available - _held(script.ops)[0]) / n_steps / n_tensors
    case.guilty = (*_LEAK, _MAIN)

    def hook(when: str) -> None:
        if when == "end":
            for _ in range(n_tensors):
                script.malloc(size * script.random.uniform(0.8, 1.2), *_LEAK)

    for _ in range(3 * n_steps):
        training.step(hook)


def _growth(training: Training, case: Case, available: int) -> None:
    script = training.script
    n_steps = script.random.randint(7, 22)
    for _ in range(2):
        training.step()
    size = (available - _held(script.ops)[0]) / n_steps
    case.guilty = (*_GROWTH, _MAIN)
    caches = [0] * script.random.randint(2, 6)
    steps = iter(range(1, 10_000))

    def hook(when: str) -> None:
        if when == "end":
            number = next(steps)
            for at, old in enumerate(caches):
                caches[at] = script.malloc(size * number / len(caches), *_GROWTH)
                if old:
                    script.free(old)

    for _ in range(2 * n_steps):
        training.step(hook)


def _fragmentation(training: Training, case: Case, available: int) -> None:
    """Small tensors stay in segments of large ones, which are freed: no segment is free as a whole."""
    script, rng = training.script, training.script.random
    for _ in range(rng.randint(1, 3)):
        training.step()
    left = available - _held(script.ops)[1]
    case.guilty = (*_PIN, _MAIN)
    script.ops.append(Op("empty_cache"))
    fillers, sizes = [], []
    while left > sum(sizes) + 0.07 * left:
        # What is left of its segment is the smallest free block into which the tensor that stays fits.
        size = (int(rng.uniform(0.02, 0.06) * left / MIB) // 2 * 2 + rng.uniform(0.3, 0.45)) * MIB
        fillers.append(script.malloc(size, "serve.py:answer:88"))
        script.malloc(rng.uniform(1.1, 1.5) * MIB, *_PIN)
        sizes.append(size)
    script.free(*fillers)
    request = max(*sizes, left - sum(sizes)) * rng.uniform(1.1, 2)
    script.malloc(request, *_REQUEST["fragmentation"])


def _large_request(training: Training, case: Case, available: int) -> None:
    script = training.script
    for _ in range(script.random.randint(1, 4)):
        training.step()
    case.guilty = (*_REQUEST["large request"], _MAIN)
    size = (available - _held(script.ops)[1]) * script.random.uniform(1.05, 2)
    training.step(lambda when: when == "forward" and script.malloc(size, *_REQUEST["large request"]) and None)


def _other_process(training: Training, case: Case, available: int) -> None:
    script, rng = training.script, training.script.random
    peak = None
    for _ in range(rng.randint(1, 4)):
        training.step()
        peak = _held(script.ops)[0]
    more = int(available - (peak or 0) * rng.uniform(0.6, 0.9))
    if rng.random() < 0.35:
        case.device.others += more
    else:
        script.ops += [Op("empty_cache"), Op("others", size=more)]
        for _ in range(4):
            training.step()


_FAULTS: dict[Kind, Callable[[Training, Case, int], None]] = {
    "leak": _leak, "growth": _growth, "held": _too_large, "fragmentation": _fragmentation,
    "large request": _large_request, "other process": _other_process, "healthy": _healthy,
}  # fmt: skip


class Job:
    """Does operations with an allocator."""

    def __init__(self, case: Case, conf: Conf | None = None) -> None:
        self.case = case
        device = replace(case.device, returned={})
        self.allocator = CachingAllocator(device, conf or case.conf, with_time=not case.is_of_2023)
        self.live: dict[int, tuple[Block, tuple[str, ...], int]] = {}
        self.annotations: list[dict[str, Any]] = []
        self.n_steps = 0
        self._frames: dict[tuple[str, ...], Frames] = {}

    def do(self, op: Op) -> None:
        """Raises OutOfMemory."""
        allocator = self.allocator
        allocator.clock_us += 40 + 13 * op.name % 100
        if op.do == "malloc":
            block = allocator.malloc(op.size, op.stream, self._frames.setdefault(op.stack, _frames(op.stack)))
            self.live[op.name] = block, op.stack, self.n_steps
        elif op.do == "free":
            allocator.free(self.live.pop(op.name)[0], op.used_for)
        elif op.do == "empty_cache":
            allocator.empty_cache()
        elif op.do == "others":
            allocator.device.others += op.size
        elif op.do == "step":
            self.n_steps += 1
        else:
            stage = "START" if op.name else "END"
            about = {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": allocator.clock_us}
            self.annotations.append(about)

    def needs(self, op: Op) -> int:
        """Bytes that the job would need for a request now: all idle memory is given back first."""
        allocator = self.allocator
        allocator.empty_cache()
        allocator.device.total += 1 << 50
        self.do(op)
        return allocator.reserved


def run(case: Case) -> None:
    """Do the job until it fails or ends, and take the snapshot."""
    job = Job(case)
    case.events_before = []
    for number, op in enumerate(case.ops):
        case.events_before.append(len(job.allocator.events))
        try:
            job.do(op)
        except OutOfMemory:
            case.failed_at = number
            break
    if case.failed_at is not None:
        for block, stack, _ in job.live.values():
            case.held[stack] += block.size
        device = job.allocator.device
        case.available = device.ours + device.free
        case.idle = device.ours - case.held.total()
        if case.kind == "held":
            case.guilty = case.held.most_common(1)[0][0]
        if case.unwinds:
            ours = [name for name, (_, _, step) in job.live.items() if step == job.n_steps]
            for name in ours[len(ours) // 2 :]:
                job.do(Op("free", name))
    events = job.allocator.events
    case.n_dropped = 0 if case.n_events is None else int(len(events) * (1 - case.n_events))
    case.snapshot = _snapshot(job, case)


def needed(case: Case, conf: Conf | None = None, empty_cache_before: int | None = None) -> int | None:
    """Bytes that the job needs for the request that failed; None if it fails before, with other settings.

    `empty_cache_before` is the number of the event of the real job before which it empties the cache.
    """
    job = Job(case, conf)
    failed = case.failed_at or 0
    at = next((n for n, before in enumerate(case.events_before) if before >= (empty_cache_before or 0)), failed)
    try:
        for number, op in enumerate(case.ops[:failed]):
            if number == at and empty_cache_before is not None:
                job.allocator.empty_cache()
            job.do(op)
    except OutOfMemory:
        return None
    return job.needs(case.ops[failed])


def _frames(stack: tuple[str, ...]) -> Frames:
    parts = (frame.rsplit(":", 2) for frame in stack)
    native = {"name": "c10::cuda::CUDACachingAllocator::malloc", "filename": "??", "line": 0}
    return [native, *({"name": name, "filename": f"/job/{file}", "line": int(line)} for file, name, line in parts)]


def _snapshot(job: Job, case: Case) -> dict[str, Any]:
    segments, events = job.allocator.segments(), job.allocator.events[case.n_dropped :]
    if not case.is_of_2023:
        settings = case.conf.settings()
        return {"segments": segments, "device_traces": [events], "allocator_settings": settings,
                "external_annotations": job.annotations}  # fmt: skip
    for segment in segments:
        del segment["frames"], segment["segment_pool_id"]
        for block in segment["blocks"]:
            frames = block.pop("frames")
            if frames:
                block["history"] = [{"addr": block["address"], "real_size": block["requested_size"], "frames": frames}]
            del block["address"]
    return {"segments": segments, "device_traces": [events]}


def write(case: Case, path: Path) -> None:
    """Write the snapshot as torch.cuda.memory._dump_snapshot does."""
    with path.open("wb") as file:
        pickle.dump(case.snapshot, file)


def cases(n: int, seed: int = 0) -> Iterator[Case]:
    """So many cases, the kinds in turn."""
    for number in range(n):
        yield make(KINDS[number % len(KINDS)], seed + number // len(KINDS))


@dataclass
class Score:
    """How many answers were right, of how many."""

    kinds: list[bool] = field(default_factory=list)
    stacks: list[bool] = field(default_factory=list)
    #: Of whole histories: whether what a change of settings saves was predicted within 5 %, or a segment of 20 MiB.
    savings: list[bool] = field(default_factory=list)
    confusions: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def text(self) -> str:
        """The shares, and what was taken for what."""
        lines = [
            f"{name}: {sum(right)} of {len(right)} right ({sum(right) / max(1, len(right)):.1%})"
            for name, right in (("kind", self.kinds), ("first stack", self.stacks), ("savings", self.savings))
        ]
        wrong = [f"  {n} of {kind}: {got}" for (kind, got), n in sorted(self.confusions.items(), key=str)]
        return "\n".join([*lines, *wrong])


def score(case: Case, into: Score) -> None:
    """Ask stepscope about a case."""
    events, segments, blocks, stacks = tables(case.snapshot)
    settings = None
    if not case.is_of_2023:
        parts = case.conf.roundup_power2_divisions
        settings = Settings(case.conf.max_split_size, divisions={1 << n: parts for n in range(16)} if parts else {})
    answer = next(iter(failures(events, segments, blocks, settings)), None)
    kind = None if answer is None else answer.kind
    into.kinds.append(kind == ANSWERS[case.kind])
    if kind != ANSWERS[case.kind]:
        into.confusions[case.kind, kind] += 1
    if answer is None:
        return
    if case.guilty:
        first = answer.stacks["stack_id"][0]
        into.stacks.append(first is not None and stacks[first][1:] == tuple(f"/job/{frame}" for frame in case.guilty))
    real = needed(case)
    for saving in answer.savings[1:]:
        conf = case.conf
        if saving.change.startswith("expandable"):
            conf = replace(conf, expandable_segments=True, max_split_size=None)
        elif saving.change.startswith("max_split"):
            conf = replace(conf, max_split_size=int(saving.change.partition(":")[2]) * MIB)
        there = needed(case, conf, saving.event)
        if there is not None and real is not None and not case.n_dropped:
            saved, predicted = real - there, answer.savings[0].needed_bytes - saving.needed_bytes
            into.savings.append(abs(saved - predicted) <= max(0.05 * abs(saved), 20 * MIB))


EVENTS = {
    "device_id": pl.UInt32, "action": pl.String, "address": pl.Int64, "bytes": pl.Int64, "stream": pl.Int64,
    "stack_id": pl.UInt32, "device_free_bytes": pl.Int64,
}  # fmt: skip
SEGMENTS = {
    "device_id": pl.UInt32, "address": pl.Int64, "bytes": pl.Int64, "stream": pl.Int64, "pool": pl.String,
    "is_expandable": pl.Boolean,
}  # fmt: skip
BLOCKS = {
    "device_id": pl.UInt32, "address": pl.Int64, "bytes": pl.Int64, "requested_bytes": pl.Int64, "state": pl.String,
    "stack_id": pl.UInt32,
}  # fmt: skip


def tables(snapshot: dict[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, list[tuple[str, ...]]]:
    """Events, segments and blocks of device 0, and the stacks by id, innermost frame first."""
    stacks: dict[tuple[str, ...], int] = {}

    def stack_id(frames: list[dict[str, Any]] | None) -> int | None:
        names = tuple(f"{frame['filename']}:{frame['name']}:{frame['line']}" for frame in frames or ())
        return stacks.setdefault(names, len(stacks)) if names else None

    events = [
        (0, event["action"], event.get("addr", 0), event["size"], event["stream"], stack_id(event.get("frames")),
         event.get("device_free"))
        for event in snapshot["device_traces"][0]
    ]  # fmt: skip
    segments, blocks = [], []
    for segment in snapshot["segments"]:
        at = segment["address"]
        is_expandable = bool(segment.get("is_expandable"))
        segments.append((0, at, segment["total_size"], segment["stream"], segment["segment_type"], is_expandable))
        for block in segment["blocks"]:
            frames = block.get("frames") or (block.get("history") or [{}])[0].get("frames")
            blocks.append((0, at, block["size"], block["requested_size"], block["state"], stack_id(frames)))
            at += block["size"]
    frames = (
        pl.DataFrame(rows, schema=schema, orient="row")
        for rows, schema in ((events, EVENTS), (segments, SEGMENTS), (blocks, BLOCKS))
    )
    return (*frames, list(stacks))


def main() -> None:
    """Write cases and what is true of them, or score answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--score", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.score:
        result = Score()
        for case in cases(options.score, options.seed):
            score(case, result)
        print(result.text())
    if options.folder is None:
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    truth = {}
    for number, case in enumerate(cases(options.cases, options.seed)):
        write(case, options.folder / f"case-{number}.pickle")
        truth[f"case-{number}"] = {"kind": case.kind, "answer": ANSWERS[case.kind], "stack": case.guilty}
    (options.folder / "truth.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
