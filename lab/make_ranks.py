"""Writes the traces of a simulated job as PyTorch's profiler would: a Kineto file a rank, with NCCL's metadata.

python make_ranks.py FOLDER [--tp 8] [--dp 4] [--pp 1] [--steps 10] [--seed 0] [--late RANK:US] [--compute RANK:US]
    [--data RANK:US] [--clock RANK:RATIO] [--link RANK[-PEER]:RATIO] [--steps-hit FIRST-LAST] [--every N]
    [--offset-us SD] [--drift-ppm SD] [--ranks FIRST-LAST] [--filler N]

What is simulated is in `job_simulator.py`. `--filler` adds so many small operators before each exchange, to make files
larger.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from job_simulator import ELEMENT, UNIX_NS, Fault, Layout, Plan, Simulated, simulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl
    from job_simulator import Kind

LEAD_NS = 12_000  # from a launch on the host to the kernel
HOST, BACKWARD = 1, 2  # threads
COMPUTE_STREAM = 7
_KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
_OPERATORS = {"allreduce": "nccl:all_reduce", "send": "nccl:send", "recv": "nccl:recv"}


def write(job: Simulated, folder: Path, *, ranks: Iterable[int] | None = None, filler: int = 0) -> list[Path]:
    """Write the files of some (or all) ranks; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = {key[0]: rows for key, rows in job.rows.partition_by("rank", as_dict=True).items()}
    written = []
    for rank in range(job.plan.layout.n_ranks) if ranks is None else ranks:
        path = folder / f"rank{rank}.pt.trace.json.gz"
        text = json.dumps(_document(job, rank, frames[rank], filler), separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), 1))
        written.append(path)
    return written


def _document(job: Simulated, rank: int, rows: pl.DataFrame, filler: int) -> dict[str, Any]:
    groups = [
        {"pg_name": name, "pg_desc": text or "undefined", "backend_config": "cuda:nccl", "pg_size": len(members),
         "ranks": list(members)}
        for name, text, members in job.groups if rank in members
    ]  # fmt: skip
    device = {"id": 0, "name": "SIMULATED GPU", "totalGlobalMem": 80 << 30, "numSms": 100}
    hosts = job.plan.hosts_of
    return {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": job.plan.layout.n_ranks, "pg_count": len(groups),
            "pg_config": groups,
        },
        **({"host_name": f"node{rank // hosts}"} if hosts else {}),
        "baseTimeNanoseconds": UNIX_NS,
        "displayTimeUnit": "ms",
        "traceEvents": list(_events(job, rank, rows, filler)),
    }  # fmt: skip


def _events(job: Simulated, rank: int, rows: pl.DataFrame, filler: int) -> Iterator[dict[str, Any]]:
    writer = _Writer(job, rank)
    yield from writer.names()
    starts = job.step_starts[:, rank].tolist()
    for step, (begin, end) in enumerate(pairwise([*starts, rows["end"].to_numpy().max() + 1e6])):
        yield writer.span("user_annotation", f"ProfilerStep#{step}", HOST, begin, end - begin)
    before = 0.0
    for row in rows.sort("start").iter_rows(named=True):
        yield from writer.work(row, before, filler)
        yield from writer.exchange(row)
        before = row["end"] if row["blocks"] else row["start"]


class _Writer:
    """Events of one rank, on its own clock."""

    def __init__(self, job: Simulated, rank: int) -> None:
        self.job, self.rank = job, rank
        self.pid = 10_000 + rank
        self.correlation = 0
        self.offset, self.pace = float(job.offset_ns[rank]), 1.0 + float(job.drift[rank])
        # Clocks that are behind show no negative time: an hour has passed since the base time.
        self.since = 3_600_000_000_000

    def names(self) -> Iterator[dict[str, Any]]:
        """Names of processes and threads."""
        for pid, name in ((self.pid, "python"), (0, "python")):
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": "GPU 0"}}

    def span(
        self, cat: str, name: str, tid: int, begin: float, length: float, pid: int | None = None, **args: object
    ) -> dict[str, Any]:
        """A complete event from true times in ns; us with three decimals, as Kineto writes them."""
        first = round(begin * self.pace + self.offset) + self.since
        last = round((begin + length) * self.pace + self.offset) + self.since
        return {
            "ph": "X", "cat": cat, "name": name, "pid": self.pid if pid is None else pid, "tid": tid,
            "ts": first / 1000, "dur": (last - first) / 1000, "args": args,
        }  # fmt: skip

    def kernel(
        self, name: str, stream: int, begin: float, length: float, thread: int, launched: float, **args: object
    ) -> Iterator[dict[str, Any]]:
        """A kernel and its launch."""
        self.correlation += 1
        number = self.correlation
        yield self.span("cuda_runtime", "cudaLaunchKernel", thread, launched, 4000, correlation=number)
        yield self.span(
            "kernel", name, stream, begin, length, pid=0, device=0, stream=stream, correlation=number, **args
        )

    def work(self, row: dict[str, Any], before: float, filler: int) -> Iterator[dict[str, Any]]:
        """What was done before an exchange: reading data, nothing, computing."""
        spent = row["data"] + row["idle"] + row["compute"]
        begin = max(row["start"] - spent, before)
        if row["data"] > 0:
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            yield self.span("user_annotation", name, HOST, begin, row["data"])
        begin = row["start"] - row["compute"]
        if row["compute"] <= 0:
            return
        backward, optimizer = row["backward"] > spent / 2, row["optimizer"] > spent / 2
        thread = BACKWARD if backward else HOST
        launched = begin - LEAD_NS
        outer = "autograd::engine::evaluate_function: MmBackward0" if backward else "aten::linear"
        if optimizer:
            outer = "Optimizer.step#AdamW.step"
        kind = "user_annotation" if optimizer else "cpu_op"
        yield self.span(kind, outer, thread, launched - 2000, row["compute"] * 0.9)
        for i in range(filler):
            yield self.span("cpu_op", f"aten::small_{i % 7}", thread, launched + 20_000 + i * 300, 200)
        parts = [("gemm_bf16_128x128", row["compute"] - row["extra"], 0.7), ("flash_attention", row["compute"], 0.3)]
        own = row["compute"] - row["extra"]
        at = begin
        for name, _, share in parts:
            yield from self.kernel(name, COMPUTE_STREAM, at, own * share, thread, launched)
            launched += 5000
            at += own * share
        if row["extra"] > 0:
            yield from self.kernel("extra_kernel", COMPUTE_STREAM, at, row["extra"], thread, launched)

    def exchange(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An exchange: its operators and its kernel, on the stream of its group."""
        name, text, members = self.job.groups[row["group"]]
        shown = ", ".join(map(str, members[:30])) + (", ..." if len(members) > 30 else "")
        size = row["bytes"] // ELEMENT
        told: dict[str, object] = {
            "Collective name": row["kind"], "In msg nelems": size, "Out msg nelems": size, "Group size": len(members),
            "dtype": "BFloat16", "Process Group Name": name, "Process Group Description": text or "undefined",
            "Process Group Ranks": f"[{shown}]",
        }  # fmt: skip
        if row["seq"] is not None:
            told["Seq"] = row["seq"]
        for column, label in (("src", "Src Rank"), ("dst", "Dst Rank")):
            if row[column] is not None:
                told[label] = row[column]
        thread = BACKWARD if row["backward"] > 0 else HOST
        launched = row["start"] - LEAD_NS
        yield self.span("cpu_op", "record_param_comms", thread, launched - 3000, 10_000, **told)
        yield self.span("user_annotation", _OPERATORS[row["kind"]], thread, launched - 1000, 7000)
        length = row["end"] - row["start"]
        stream = 20 + row["group"]
        yield from self.kernel(_KERNELS[row["kind"]], stream, row["start"], length, thread, launched, **told)


def _fault(text: str, kind: Kind, first: int, last: int | None, every: int) -> Fault:
    who, _, much = text.partition(":")
    rank, _, peer = who.partition("-")
    value = float(much)
    ratio, amount = (value, 0.0) if kind in ("clock", "link") else (0.0, value * 1000)
    return Fault(kind, int(rank), amount, ratio, int(peer) if peer else None, first, last, every)


def main() -> None:
    """Read the command line, simulate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("tp", 8), ("dp", 4), ("pp", 1), ("steps", 10), ("seed", 0), ("every", 1), ("filler", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("offset-us", 1000.0), ("drift-ppm", 10.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    for name in ("late", "compute", "data", "clock", "link"):
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("--steps-hit", default="")
    parser.add_argument("--ranks", default="")
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()
    first, _, last = args.steps_hit.partition("-")
    when = int(first or 0), int(last) if last else None, args.every
    kinds: dict[str, Kind] = {
        "late": "late",
        "compute": "compute",
        "data": "data loading",
        "clock": "clock",
        "link": "link",
    }
    faults = tuple(_fault(text, kinds[name], *when) for name in kinds for text in getattr(args, name))
    plan = Plan(
        Layout(args.tp, args.dp, args.pp), steps=args.steps, faults=faults, seed=args.seed, overlap=args.overlap,
        offset_sd_ns=args.offset_us * 1000, drift_sd=args.drift_ppm / 1e6,
    )  # fmt: skip
    low, _, high = args.ranks.partition("-")
    ranks = range(int(low), int(high or low) + 1) if args.ranks else None
    written = write(simulate(plan), args.folder, ranks=ranks, filler=args.filler)
    sys.stderr.write(f"{len(written)} traces in {args.folder}\n")


if __name__ == "__main__":
    main()
