"""Real jobs of gloo in which one rank fails: `python lab/hangs.py --real 14` makes and scores them.

All ranks are forked from this process, which needs PyTorch. Each has a thread that writes the dump of its flight
recorder once the job stands still, as PyTorch does where a collective times out.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as recorder

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = ("never", "loader", "late", "operation", "size", "dtype", "crash", "healthy")
_STEPS, _TIMEOUT_S, _LATE_S, _DUMP_S = 12, 6, 9, 14


def run_job(folder: Path, seed: int) -> dict:
    """Run a job of 2 to 8 ranks, write its dumps, and return the truth."""
    rng = random.Random(seed)
    kind = FAULTS[seed % len(FAULTS)]
    size = (
        rng.choice([2, 3, 4, 8]) if kind in ("never", "loader", "late", "crash", "healthy") else rng.choice([3, 4, 8])
    )
    culprit, step = rng.randrange(size), rng.randrange(3, _STEPS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            status = 1
            try:
                _run_rank(folder, rank, size, port, kind if rank == culprit else "none", step)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    ranks = [] if kind == "healthy" else [culprit]
    return {"seed": seed, "ranks": ranks, "kinds": dict.fromkeys(ranks, f"real {kind}"), "size": size, "ahead": 1}


def _run_rank(folder: Path, rank: int, size: int, port: int, kind: str, failing: int) -> None:
    os.environ.update(TORCH_FR_BUFFER_SIZE="2000", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    limit = timedelta(seconds=_TIMEOUT_S)
    groups = [
        dist.new_group(list(ranks), timeout=limit) for ranks in (range(size), range(size // 2), range(size // 2, size))
    ]
    mine = groups[2 if rank >= size // 2 else 1]
    dist.barrier()

    def dump() -> None:
        time.sleep(_DUMP_S)
        (folder / f"comm_lib_trace_rank_{rank}").write_bytes(recorder._dump_fr_trace())
        os._exit(0)

    threading.Thread(target=dump, daemon=True).start()
    with suppress(RuntimeError):  # what others do not do, or too late
        _train(groups[0], mine, rank, kind, failing)
    time.sleep(100)


def _train(world: object, mine: object, rank: int, kind: str, failing: int) -> None:
    values = torch.ones(1024)
    for step in range(_STEPS):
        fails = kind if step == failing else "none"
        _load(fails)
        dist.all_reduce(values, group=mine)
        if fails == "crash":
            os._exit(1)
        if fails == "never":
            time.sleep(100)
        if fails == "operation":
            dist.broadcast(values, src=rank, group=world)
        elif fails == "size":
            dist.all_reduce(torch.ones(2048), group=world)
        elif fails == "dtype":
            dist.all_reduce(values.double(), group=world)
        else:
            dist.all_reduce(values, group=world)
        gathered = torch.empty(dist.get_world_size() * 256)
        dist.all_gather_into_tensor(gathered, torch.ones(256), group=world)


def _load(fails: str) -> None:
    if fails in ("loader", "late"):
        time.sleep(100 if fails == "loader" else _LATE_S)
