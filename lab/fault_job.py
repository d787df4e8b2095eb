"""The job of the fault lab: a small transformer learns, with one fault or none. It knows no profiler.

Alone, or as one of the ranks that torchrun starts, which then add up their gradients through gloo.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import BinaryIO

import torch
from torch import distributed, nn
from torch.nn import functional as F  # noqa: N812  as everybody calls it

VOCABULARY, LENGTH, WIDTH = 512, 64, 128


class Model(nn.Module):
    """Two layers of a transformer, with `slow` two linear layers in double precision besides."""

    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.slow = slow
        if slow:
            self.wide.double()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        hidden = self.layers(self.embed(tokens))
        wide = self.wide(hidden.double()).float() if self.slow else self.wide(hidden)
        return self.head(hidden + wide)


class Tokens(torch.utils.data.Dataset):
    """Random sequences."""

    def __init__(self, n: int, seed: int) -> None:
        self.data = torch.randint(0, VOCABULARY, (n, LENGTH + 1), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.data[i]


def slow_collate(rows: list[torch.Tensor]) -> torch.Tensor:
    """As a loader whose decoding or network takes its time."""
    time.sleep(0.03)
    return torch.stack(rows)


def busy() -> None:
    """Keeps the interpreter's lock from the others."""
    n = 0
    while True:
        n += 1


KEPT: list[torch.Tensor] = []
CYCLES: list[list] = []
BLOCK = os.urandom(1 << 20)
#: Of several ranks, the slow one.
SLOW = 2


def after_step(fault: str, model: nn.Module, file: BinaryIO) -> None:
    """What goes wrong at the end of each step."""
    if fault == "fsync":
        for _ in range(16):
            file.write(BLOCK)
            file.flush()
            os.fsync(file.fileno())
    elif fault == "tiny_syncs":
        for parameter in model.parameters():
            for number in parameter.detach().flatten()[:40]:
                number.item()
    elif fault == "garbage":
        for _ in range(60_000):
            itself: list = []
            itself.append(itself)
            CYCLES.append(itself)
        del CYCLES[:-200_000]
    elif fault == "memory_growth":
        KEPT.append(torch.ones(4 << 20))


def more_work(hidden: torch.Tensor) -> None:
    """What one rank alone does: products of matrices whose results nobody needs."""
    for _ in range(60):
        hidden = torch.tanh(hidden @ hidden)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    fault = given.fault
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    model: nn.Module = Model(slow=fault == "float64")
    rank = int(os.environ.get("RANK", "-1"))
    if rank >= 0:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = 24 if fault == "larger_batch" else 16
    collate = slow_collate if fault == "slow_loader" else torch.stack
    loader = torch.utils.data.DataLoader(Tokens(batch * given.steps, given.seed), batch, collate_fn=collate)
    hogs = []
    if fault == "core_contention":
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    if fault == "gil_hog":
        threading.Thread(target=busy, daemon=True).start()
    with tempfile.TemporaryFile(dir=".") as file:
        for tokens in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            if fault == "slow_rank" and rank == SLOW:
                more_work(torch.rand(256, 256))
            loss.backward()
            optimizer.step()
            after_step(fault, model, file)
    for hog in hogs:
        hog.kill()
        hog.wait()
    if rank >= 0:
        distributed.barrier()  # or the group of one that is done goes while another still sends
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
