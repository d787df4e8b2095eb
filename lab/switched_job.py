"""A training job whose fault is switched on and off while it runs: the file FAULT names the one of now.

    python lab/switched_job.py FAULT_FILE STEPS_FILE [--seconds 600] [--pause 0.1]

The model and the faults are those of `fault_job.py`, each so strong that a step takes about twice as long or longer;
with `float64` the whole model is in double precision.
STEPS_FILE gets a line for each step: when it ended (seconds since 1970), how long it took (seconds), and the fault
that was on. The job knows no profiler.
"""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING

import torch
from fault_job import CYCLES, LENGTH, VOCABULARY, Model, after_step
from switches import COLLATE_S, Switch, arguments
from torch.nn import functional as F  # noqa: N812  as everybody calls it

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH, LARGER = 16, 48
#: How often in a step the fault of `fault_job.py` comes.
TIMES = {"tiny_syncs": 60, "fsync": 3, "garbage": 2}


class Rows(torch.utils.data.IterableDataset):
    """Random sequences without an end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randint(0, VOCABULARY, (LENGTH + 1,))


def main() -> None:
    """Train until the time is over."""
    given = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    switch = Switch(given.fault_file)

    def collate(rows: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(given.pause + (COLLATE_S if switch.fault == "slow_loader" else 0))
        return torch.stack(rows if switch.fault == "larger_batch" else rows[:BATCH])

    model = Model(slow=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = iter(torch.utils.data.DataLoader(Rows(), LARGER, collate_fn=collate))
    began = before = time.time()
    with tempfile.TemporaryFile(dir=".") as file, given.steps_file.open("a", buffering=1, encoding="utf-8") as steps:
        while before - began < given.seconds:
            before_this, fault = switch.fault, switch.read()
            if fault != before_this:
                CYCLES.clear()
            model.to(torch.float64 if fault == "float64" else torch.float32)
            tokens = next(loader)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            for _ in range(TIMES.get(fault, 1)):
                after_step(fault, model, file)
            now = time.time()
            steps.write(f"{now:.6f} {now - before:.6f} {fault}\n")
            before = now


if __name__ == "__main__":
    main()
