"""A simulated run as PyTorch's profiler writes it: Kineto JSON, with any field left out.

    write(run.ranks[0], run.first_step, "trace.json", without="cuda_sync")

`FIELDS` says what can be left out: each is absent from some real traces.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from step_simulator import Item, RankRun, Span, Waited

#: What can be left out, and what the recording then lacks.
FIELDS = {
    "correlation": "numbers of calls, on calls and device work",
    "ac2g": "arrows from calls to device work",
    "External id": "numbers of operators, on operators, calls and device work",
    "cuda_sync": "records of synchronisations",
    "event ids": "which record of an event a wait meant: −1, as CUDA 12.9 leaves it",
    "Sequence number": "what links a forward operator and its backward",
    "fwdbwd": "arrows from forward to backward",
    "graph": "numbers of CUDA graphs and their nodes",
    "exchange": "name, group and number of an exchange, on its kernel and its host operator",
    "shapes": "grid, block and input shapes",
    "thread names": "names of threads and streams",
}
_FIRST_US = 1_700_000_000
_STREAM_ARGS = {"device": 0, "context": 1}


def world_size(run: RankRun) -> int:
    """How many ranks the job has; one rank that exchanges is one of eight, the others not being recorded."""
    exchanges = any(item.work and item.work.kind == "exchange" for item in run.items)
    return 8 if exchanges and run.n_ranks == 1 else run.n_ranks


def _us(ns: int) -> float:
    return _FIRST_US + ns / 1000


class _Writer:
    """The events of one rank."""

    def __init__(self, run: RankRun, first_step: int, without: str | None) -> None:
        self.run, self.without = run, without
        self.begin, self.end = run.begins[first_step], run.begins[-1]
        self.first_step = first_step
        self.world = world_size(run)
        self.pid = 1000 + run.rank
        self.threads = {name: self.pid + i for i, name in enumerate(dict.fromkeys(s.thread for s in run.spans))}
        self.threads["main"] = self.pid
        self.events: list[dict[str, Any]] = []
        self.operators: dict[int, int] = {}  # of a call: the operator around it

    def has(self, field: str) -> bool:
        return self.without != field

    def write(self) -> list[dict[str, Any]]:
        for number, (begin, end) in enumerate(pairwise(self.run.begins[self.first_step :]), self.first_step):
            self.add("user_annotation", f"ProfilerStep#{number}", self.pid, self.pid, begin, end, {})
        for span in self.run.spans:
            if self.begin <= span.begin < self.end:
                self.span(span)
        for item in self.run.items:
            if self.begin <= item.start and (item.call in self.operators or item.start < self.end):
                self.item(item)
        self.stop()
        for waited in self.run.waited if self.has("cuda_sync") else ():
            if self.begin <= waited.begin < self.end:
                self.waited(waited)
        self.arrows()
        self.names()
        return self.events

    def add(self, category: str, name: str, pid: int, tid: int, begin: int, end: int, args: dict[str, Any]) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": _us(begin)}
        self.events.append({**event, "dur": (end - begin) / 1000, "args": args})

    def ids(self, call: int, operator: int) -> dict[str, Any]:
        args = {"External id": operator} if operator and self.has("External id") else {}
        return {**args, "correlation": call} if self.has("correlation") else args

    def span(self, span: Span) -> None:
        args: dict[str, Any]
        if span.category == "cuda_runtime":
            self.operators[span.call] = span.operator
            args = {"cbid": 0, **self.ids(span.call, span.operator)}
            if self.has("ac2g") and ("Launch" in span.name or "Mem" in span.name):
                self.arrow("s", "ac2g", span.call, self.pid, self.threads[span.thread], span.begin)
        else:
            args = {"External id": span.ident} if self.has("External id") else {}
            if span.sequence is not None and self.has("Sequence number"):
                args |= {"Fwd thread id": 0 if span.thread == "main" else 1, "Sequence number": span.sequence}
            if self.has("shapes") and span.category == "cpu_op":
                args |= {"Input Dims": [[64, 256]], "Input type": ["float"]}
            if span.name == "record_param_comms" and self.has("exchange"):
                args |= {"Collective name": "allreduce", "Process Group Name": "0", "Group size": self.world}
        self.add(span.category, span.name, self.pid, self.threads[span.thread], span.begin, span.end, args)

    def arrow(self, phase: str, name: str, ident: int, pid: int, tid: int, time: int) -> None:
        more = {"bp": "e"} if phase == "f" else {}
        event = {"ph": phase, "id": ident, "cat": name, "name": name, "pid": pid, "tid": tid, "ts": _us(time)}
        self.events.append({**event, **more})

    def item(self, item: Item) -> None:
        work = item.work
        assert work is not None
        assert item.ended.at is not None
        args = {**_STREAM_ARGS, "stream": item.stream, **self.ids(item.call, self.operators.get(item.call, 0))}
        category = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}.get(work.kind, "kernel")
        if category == "kernel" and self.has("shapes"):
            args |= {"grid": [work.n_bytes // 4096 + 1, 1, 1], "block": [256, 1, 1]}
        if category != "kernel":
            args |= {"bytes": work.n_bytes}
        if item.graph and self.has("graph"):
            args |= {"graph id": item.graph, "graph node id": item.graph * 1000 + item.node}
        if work.kind == "exchange" and self.has("exchange"):
            args |= {
                "Collective name": "allreduce", "In msg nelems": work.n_bytes // 4, "Out msg nelems": work.n_bytes // 4,
                "Group size": self.world, "dtype": "Float", "Process Group Name": "0",
                "Process Group Description": "default_pg", "Seq": item.number,
                "Process Group Ranks": str(list(range(self.world))),
            }  # fmt: skip
        self.add(category, work.name, 0, item.stream, item.start, item.ended.at, args)
        if self.has("ac2g") and item.call in self.operators and item.node == 0:
            self.arrow("f", "ac2g", item.call, 0, item.stream, item.start)

    def stop(self) -> None:
        """The profiler waits for the device when it stops."""
        last = max((item.ended.at or 0 for item in self.run.items if item.call in self.operators), default=self.end)
        args = {"cbid": 0, **self.ids(10**7, 0)}
        end = max(last, self.end + 5000) + 1000
        self.add("cuda_runtime", "cudaDeviceSynchronize", self.pid, self.pid, self.end + 2000, end, args)

    def waited(self, waited: Waited) -> None:
        args = {"cuda_sync_kind": waited.of, "stream": waited.stream, **_STREAM_ARGS, **self.ids(waited.call, 0)}
        if waited.event >= 0:
            known = self.has("event ids")
            args |= {
                "wait_on_stream": waited.on_stream if known else -1,
                "wait_on_cuda_event_record_corr_id": waited.recorded if known else -1,
                "wait_on_cuda_event_id": waited.event if known else -1,
            }
        self.add("cuda_sync", waited.of, 0, waited.stream, waited.begin, waited.end, args)

    def arrows(self) -> None:
        """From each forward operator to its backward: the innermost spans with the same number."""
        if not self.has("fwdbwd"):
            return
        forward: dict[int, Span] = {}
        backward: dict[int, Span] = {}
        for span in self.run.spans:
            if span.sequence is not None and self.begin <= span.begin < self.end:
                (forward if span.thread == "main" else backward).setdefault(span.sequence, span)
        for number in forward.keys() & backward.keys():
            for phase, span in (("s", forward[number]), ("f", backward[number])):
                self.arrow(phase, "fwdbwd", number, self.pid, self.threads[span.thread], span.begin)

    def names(self) -> None:
        if not self.has("thread names"):
            return
        tracks = {(self.pid, tid): f"thread {tid} (python)" for tid in self.threads.values()}
        tracks |= {(0, stream): f"stream {stream} " for stream in {item.stream for item in self.run.items}}
        for (pid, tid), name in tracks.items():
            event = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": _us(self.begin)}
            self.events.append({**event, "args": {"name": name}})


def kineto(run: RankRun, first_step: int, without: str | None = None) -> dict[str, Any]:
    """The document of one rank, its recorded steps only. `without` is one of `FIELDS`."""
    assert without is None or without in FIELDS
    world = world_size(run)
    ranks = list(range(world))
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": ranks}
    info = {"backend": "nccl", "rank": run.rank, "world_size": world, "pg_config": [group]}
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000, "numSms": 108}
    return {
        "schemaVersion": 1,
        "deviceProperties": [device],
        **({"distributedInfo": info} if world > 1 else {}),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_730_000_000_000_000_000,
        "traceEvents": _Writer(run, first_step, without).write(),
    }


def write(run: RankRun, first_step: int, path: str | Path, without: str | None = None) -> None:
    """Write the document of one rank."""
    Path(path).write_text(json.dumps(kineto(run, first_step, without)), encoding="utf-8")
