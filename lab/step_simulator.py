"""Training steps on a machine that is simulated event by event, so that the effect of a change is known.

A program is what the main thread of each rank does: host time, launches, records and waits of events,
synchronisations, batches of a loader, other threads that it hands work to. The machine runs it: streams in order, a
launch queue of limited length, one lock of the runtime, exchanges that end when the last rank has come,
computation that is slower while an exchange runs. A changed program is simply run again.

    run = simulate(program)
    run.step_ns                       # mean length of the recorded steps once the job runs evenly
    kineto(run.ranks[0])              # `step_recordings.py`: what PyTorch's profiler would write

All times are whole ns. `step_programs.py` makes random programs and changes them. Nothing is shared with stepscope.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Work(NamedTuple):
    """What the device does. `ns` is its length on a device that does nothing else.

    It starts `lag_ns` after its call at the earliest, and `gap_ns` after the work before it in its stream. An exchange
    ends `ns` after its last rank has come.
    """

    name: str
    ns: int
    kind: Literal["kernel", "memcpy", "memset", "exchange"] = "kernel"
    lag_ns: int = 0
    gap_ns: int = 0
    n_bytes: int = 0


class Host(NamedTuple):
    """The thread computes."""

    ns: int


class Open(NamedTuple):
    """A span begins on the thread; `sequence` links a forward operator and its backward."""

    name: str
    category: Literal["cpu_op", "user_annotation"] = "cpu_op"
    sequence: int | None = None


class Close(NamedTuple):
    """The innermost open span of the thread ends."""


class Launch(NamedTuple):
    """A call that takes `ns`, longer if the queue is full, and `after_ns` once the device has the works.

    With `graph` the works are nodes of a CUDA graph. `blocks`: the call returns when the work has ended, as a copy from
    pageable memory does.
    """

    stream: int
    works: tuple[Work, ...]
    ns: int
    graph: int = 0
    blocks: bool = False
    after_ns: int = 0


class Record(NamedTuple):
    """cudaEventRecord: the event holds the end of what the stream has been given so far."""

    event: int
    stream: int
    ns: int


class Wait(NamedTuple):
    """cudaStreamWaitEvent: what the stream is given from now on waits for the event's last record."""

    event: int
    stream: int
    ns: int


class Sync(NamedTuple):
    """The thread waits for a stream, an event or the device: the call takes `ns` or ends `notice_ns` after that."""

    of: Literal["stream", "event", "device"]
    target: int
    ns: int
    notice_ns: int = 0


class Next(NamedTuple):
    """The next batch of the loader; taking it over takes `ns`."""

    ns: int


class Fork(NamedTuple):
    """Other threads run their bodies, and this one waits for all of them. Waking a thread takes `wake_ns`."""

    bodies: tuple[tuple[str, Body], ...]
    wake_ns: int = 0


class Step(NamedTuple):
    """A step of training begins."""


Instruction = Host | Open | Close | Launch | Record | Wait | Sync | Next | Fork | Step
Body = tuple[Instruction, ...]


class Loader(NamedTuple):
    """Worker w of W makes batches w, w + W, …, `prefetch` ahead at most. Without workers the thread does.

    `service_ns` has one row for each rank, one number for each batch.
    """

    workers: int
    service_ns: tuple[tuple[int, ...], ...]
    prefetch: int = 2
    staggered: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """What each rank's main thread does. The steps from `first_step` on are recorded; the last `Step` is an end."""

    ranks: tuple[Body, ...]
    queue: int = 1024
    queue_of: Literal["stream", "device"] = "stream"
    loader: Loader | None = None
    slowdown: float = 1.0  # of computation while an exchange runs on the same device
    first_step: int = 0


class Signal:
    """A moment that is not known yet, and who waits for it."""

    __slots__ = ("at", "waiters")

    def __init__(self) -> None:
        self.at: int | None = None
        self.waiters: list[Callable[[], None]] = []


class Item:
    """A work, or the record of an event (without a work), in the queue of a stream."""

    __slots__ = (
        "available", "call", "ended", "graph", "left", "needs", "node", "number", "rate", "since", "start", "started",
        "step", "stream", "version", "work",
    )  # fmt: skip

    def __init__(self, work: Work | None, stream: int, available: int, step: int, call: int, needs: list[Item]) -> None:
        self.work, self.stream, self.available, self.step, self.call, self.needs = (
            work, stream, available, step, call, needs,
        )  # fmt: skip
        self.started, self.ended = Signal(), Signal()
        self.start = self.since = self.version = self.graph = self.node = self.number = 0
        self.left, self.rate = 0.0, 1.0


class Span(NamedTuple):
    """What a thread did, as a profiler sees it. `call` is the correlation id, `operator` is around it."""

    thread: str
    name: str
    category: str
    begin: int
    end: int
    call: int = 0
    operator: int = 0
    sequence: int | None = None
    ident: int = 0


class Waited(NamedTuple):
    """A `cuda_sync` record: who waited for what. `recorded` is the call that recorded the event."""

    of: str
    stream: int
    begin: int
    end: int
    call: int
    on_stream: int = -1
    recorded: int = -1
    event: int = -1


@dataclass(slots=True)
class RankRun:
    """What one rank did."""

    rank: int
    n_ranks: int
    spans: list[Span] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    waited: list[Waited] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    loader_waits: list[int] = field(default_factory=list)
    queue_waits: list[int] = field(default_factory=list)  # one for each launch; `launch_steps` says in which step
    launch_steps: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """What all ranks did, and between which steps the profiler recorded."""

    ranks: list[RankRun]
    first_step: int

    @property
    def host_step_ns(self) -> float:
        """Mean length of a recorded step by when it begins."""
        begins = self.ranks[0].begins
        return (begins[-1] - begins[self.first_step]) / (len(begins) - 1 - self.first_step)

    @property
    def device_step_ns(self) -> float:
        """Mean length of a recorded step by when the last work that it launched ends."""
        rank = self.ranks[0]
        ends = [0] * len(rank.begins)
        for item in rank.items:
            ends[item.step] = max(ends[item.step], item.ended.at or 0)
        first, last = self.first_step - 1, len(ends) - 2
        return (ends[last] - ends[first]) / (last - first) if first >= 0 and ends[first] else 0.0

    @property
    def step_ns(self) -> float:
        """Mean length of a recorded step in the long run: of the slower one of host and device."""
        return max(self.host_step_ns, self.device_step_ns)


class _Stream:
    __slots__ = ("busy", "exchanges", "free", "given", "number", "queue", "slots", "waits")

    def __init__(self, number: int) -> None:
        self.number, self.busy, self.exchanges, self.free = number, False, 0, -(10**15)
        self.queue: deque[Item] = deque()
        self.given: list[Item] = []  # works, without records of events
        self.slots: list[Item] = []  # those that hold a place in the queue: of a graph only the first node
        self.waits: list[Item] = []  # what the next item given must wait for


class _World:
    """The clock, and the exchanges that several ranks take part in."""

    def __init__(self, program: Program) -> None:
        self.program, self.now = program, 0
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.arrived: dict[tuple[int, int], list[tuple[_Machine, Item]]] = {}
        self.machines = [_Machine(self, rank) for rank in range(len(program.ranks))]

    def at(self, time: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (time, next(self.order), action))

    def fire(self, signal: Signal) -> None:
        signal.at = self.now
        waiters, signal.waiters = signal.waiters, []
        for action in waiters:
            action()

    def run(self) -> None:
        for machine, body in zip(self.machines, self.program.ranks, strict=True):
            machine.begin("main", body, None)
        while self.heap:
            self.now, _, action = heapq.heappop(self.heap)
            action()


class _Machine:
    """One rank: its threads, its device."""

    def __init__(self, world: _World, rank: int) -> None:
        self.world, self.rank, self.program = world, rank, world.program
        self.run = RankRun(rank, len(world.program.ranks))
        self.streams: dict[int, _Stream] = {}
        self.events: dict[int, tuple[Item, int]] = {}  # the last record and its call
        self.lock: Signal | None = None
        self.slot = Signal()
        self.pending = 0
        self.ids = itertools.count(1 + 100_000 * rank)
        self.step = -1
        self.running: set[Item] = set()
        self.exchanging = 0
        self.batches: list[int] = []  # when each was ready
        self.received: list[int] = []

    # Threads

    def begin(self, thread: str, body: Body, done: Signal | None) -> None:
        program = self.thread(thread, body)

        def resume() -> None:
            for wanted in program:
                if isinstance(wanted, Signal):
                    if wanted.at is None:
                        wanted.waiters.append(resume)
                        return
                elif wanted > self.world.now:
                    self.world.at(wanted, resume)
                    return
            if done is not None:
                self.world.fire(done)

        resume()

    def thread(self, name: str, body: Body) -> Generator[int | Signal, None, None]:
        """Yields the time or signal at which it goes on; its own time may be ahead of the world's between calls."""
        world, spans = self.world, self.run.spans
        t = world.now
        opened: list[tuple[Open, int, int]] = []
        for instruction in body:
            kind = type(instruction)
            if kind is Host:
                t += instruction.ns
            elif kind is Open:
                opened.append((instruction, t, next(self.ids)))
            elif kind is Close:
                span, begin, ident = opened.pop()
                spans.append(Span(name, span.name, span.category, begin, t, 0, 0, span.sequence, ident))
            elif kind is Step:
                yield t
                self.step += 1
                self.run.begins.append(t)
            elif kind is Next:
                yield t
                t = self.batch(t) + instruction.ns
            elif kind is Fork:
                yield t + instruction.wake_ns
                dones = [Signal() for _ in instruction.bodies]
                for (other, inner), done in zip(instruction.bodies, dones, strict=True):
                    self.begin(other, inner, done)
                for done in dones:
                    yield done
                t = max(done.at or 0 for done in dones) + instruction.wake_ns
            else:
                operator = next((ident for span, _, ident in reversed(opened) if span.category == "cpu_op"), 0)
                t = yield from self.call(instruction, name, t, operator)
        yield t

    def call(
        self, instruction: Launch | Record | Wait | Sync, thread: str, begin: int, operator: int
    ) -> Generator[int | Signal, None, int]:
        """One call of the runtime; the result is when it ended."""
        yield begin
        while self.lock is not None:
            yield self.lock
        call = next(self.ids)
        self.lock = lock = Signal()
        t = self.world.now + instruction.ns
        yield t
        if isinstance(instruction, Launch):
            t = (yield from self.launch(instruction, call, t)) + instruction.after_ns
            yield t
        self.lock = None
        self.world.fire(lock)
        if isinstance(instruction, Sync):
            return (yield from self.wait_for(instruction, begin, call, operator, thread))
        if not isinstance(instruction, Launch):
            self.event(instruction, begin, t, call, operator, thread)
            return t
        if instruction.blocks:
            yield self.streams[instruction.stream].given[-1].ended
            t = self.world.now
        self.run.spans.append(Span(thread, _call_name(instruction), "cuda_runtime", begin, t, call, operator))
        return t

    def batch(self, now: int) -> int:
        """When the thread has the next batch."""
        loader = self.program.loader
        assert loader is not None
        k, service = len(self.batches), loader.service_ns[self.rank]
        if loader.workers == 0:
            self.batches.append(now + service[k])
            return self.batches[-1]
        begun = self.batches[k - loader.workers] if k >= loader.workers else 0
        if k < loader.workers and loader.staggered:
            begun = k * service[k] // loader.workers
        if k >= loader.workers * loader.prefetch:
            begun = max(begun, self.received[k - loader.workers * loader.prefetch])
        self.batches.append(begun + service[k])
        got = max(now, self.batches[-1])
        self.run.loader_waits.append(got - now)
        self.received.append(got)
        return got

    def launch(self, launch: Launch, call: int, t: int) -> Generator[int | Signal, None, int]:
        """Give the works to the stream, once the queue has room."""
        stream, world, limit = self.stream(launch.stream), self.world, self.program.queue
        if self.program.queue_of == "stream":
            if len(stream.slots) >= limit and (head := stream.slots[-limit]).started.at is None:
                yield head.started
        else:
            while self.pending >= limit:
                yield self.slot
        self.run.queue_waits.append(world.now - t)
        self.run.launch_steps.append(self.step)
        t = max(t, world.now)
        for node, work in enumerate(launch.works):
            item = Item(work, launch.stream, t + work.lag_ns, self.step, call, stream.waits)
            item.graph, item.node = launch.graph, node
            stream.waits = []
            stream.queue.append(item)
            stream.given.append(item)
            self.run.items.append(item)
            if node == 0:
                stream.slots.append(item)
                self.pending += 1
        self.kick(stream)
        return t

    def event(self, instruction: Record | Wait, begin: int, t: int, call: int, operator: int, thread: str) -> None:
        stream = self.stream(instruction.stream)
        if isinstance(instruction, Record):
            item = Item(None, instruction.stream, t, self.step, call, stream.waits)
            stream.waits = []
            stream.queue.append(item)
            self.events[instruction.event] = (item, call)
            self.kick(stream)
            self.run.spans.append(Span(thread, "cudaEventRecord", "cuda_runtime", begin, t, call, operator))
            return
        item, recorded = self.events[instruction.event]
        if item.ended.at is None:
            stream.waits = [*stream.waits, item]
        self.run.spans.append(Span(thread, "cudaStreamWaitEvent", "cuda_runtime", begin, t, call, operator))
        self.run.waited.append(
            Waited("Stream Wait Event", instruction.stream, begin, t, call, item.stream, recorded, instruction.event)
        )

    def wait_for(self, sync: Sync, begin: int, call: int, operator: int, thread: str) -> Generator[Signal, None, int]:
        """Wait; the result of this generator is when the call ended."""
        names = {"stream": "cudaStreamSynchronize", "event": "cudaEventSynchronize", "device": "cudaDeviceSynchronize"}
        more = {}
        if sync.of == "event":
            item, recorded = self.events[sync.target]
            awaited = [item]
            more = {"on_stream": item.stream, "recorded": recorded, "event": sync.target}
        else:
            streams = [self.stream(sync.target)] if sync.of == "stream" else list(self.streams.values())
            awaited = [stream.given[-1] for stream in streams if stream.given]
        for item in awaited:
            yield item.ended
        ends = [item.ended.at + sync.notice_ns for item in awaited if item.ended.at is not None]
        end = max([self.world.now, *ends])
        kind = {"stream": "Stream Sync", "event": "Event Sync", "device": "Context Sync"}[sync.of]
        self.run.spans.append(Span(thread, names[sync.of], "cuda_runtime", begin, end, call, operator))
        stream = sync.target if sync.of == "stream" else -1
        self.run.waited.append(Waited(kind, stream, begin, end, call, **more))
        return end

    # The device

    def stream(self, number: int) -> _Stream:
        return self.streams.setdefault(number, _Stream(number))

    def kick(self, stream: _Stream) -> None:
        """Start what the stream may start now."""
        world = self.world
        while stream.queue and not stream.busy:
            item = stream.queue[0]
            for needed in item.needs:
                if needed.ended.at is None:
                    needed.ended.waiters.append(lambda: self.kick(stream))
                    return
            gap = item.work.gap_ns if item.work else 0
            after = max((needed.ended.at for needed in item.needs), default=-(10**15))
            ready = max(item.available, max(stream.free, after) + gap)
            if ready > world.now:
                world.at(ready, lambda: self.kick(stream))
                return
            stream.queue.popleft()
            item.start = world.now
            if item.work is None:
                world.fire(item.ended)
                continue
            stream.busy = True
            world.fire(item.started)
            self.pending -= item.node == 0
            slot, self.slot = self.slot, Signal()
            self.begin_work(item)
            world.fire(slot)

    def begin_work(self, item: Item) -> None:
        assert item.work is not None
        if item.work.kind == "exchange":
            self.exchanging += 1
            self.change_rates()
            stream = self.streams[item.stream]
            stream.exchanges += 1
            item.number = stream.exchanges
            come = self.world.arrived.setdefault((item.stream, stream.exchanges), [])
            come.append((self, item))
            if len(come) == self.run.n_ranks:
                end = self.world.now + max(one.work.ns for _, one in come if one.work)
                for machine, one in come:
                    self.world.at(end, lambda m=machine, i=one: m.end_work(i, i.version))
            return
        item.left = float(item.work.ns)
        item.since = self.world.now
        item.rate = self.rate(item)
        self.running.add(item)
        self.schedule_end(item)

    def rate(self, item: Item) -> float:
        assert item.work is not None
        return self.program.slowdown if self.exchanging and item.work.kind == "kernel" else 1.0

    def schedule_end(self, item: Item) -> None:
        item.version += 1
        version = item.version
        self.world.at(self.world.now + round(item.left * item.rate), lambda: self.end_work(item, version))

    def change_rates(self) -> None:
        for item in self.running if self.program.slowdown != 1.0 else ():
            if (rate := self.rate(item)) != item.rate:
                item.left = max(0.0, item.left - (self.world.now - item.since) / item.rate)
                item.since, item.rate = self.world.now, rate
                self.schedule_end(item)

    def end_work(self, item: Item, version: int) -> None:
        if item.version != version:
            return
        stream = self.streams[item.stream]
        stream.busy, stream.free = False, self.world.now
        if item.work and item.work.kind == "exchange":
            self.exchanging -= 1
            self.change_rates()
        else:
            self.running.discard(item)
        self.world.fire(item.ended)
        self.kick(stream)


def _call_name(launch: Launch) -> str:
    if launch.graph:
        return "cudaGraphLaunch"
    names = {"memcpy": "cudaMemcpyAsync", "memset": "cudaMemsetAsync", "exchange": "cudaLaunchKernelExC"}
    return names.get(launch.works[0].kind, "cudaLaunchKernel")


def simulate(program: Program) -> Run:
    """Run the program. The same program gives the same run."""
    world = _World(program)
    world.run()
    return Run([machine.run for machine in world.machines], program.first_step)
