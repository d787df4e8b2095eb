"""The jobs of the gymnasium: six kinds of job, each with faults of three severities. They know no profiler.

    python lab/gym_jobs.py JOB [--fault NAME] [--severity 1] [--steps N] [--seed N]

Faults that any job can have are in `Trouble`; those that belong to a kind of job are in it. `NONE` is a healthy run.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NONE = "none"
#: How hard each fault is, by severity: milliseconds, counts, MiB or factors, as its code says.
HARD: dict[str, tuple[float, float, float]] = {
    "core_hogs": (1, 2, 4),
    "gil_hog": (1, 2, 3),
    "fsync": (1, 4, 12),
    "garbage": (4_000, 15_000, 50_000),
    "memory_growth": (1, 4, 12),
    "checkpoint": (40, 120, 400),
    "slow_tail": (40, 100, 300),
    "growing": (300, 1_000, 3_000),
    "lock": (4, 10, 25),
    "bandwidth": (1, 2, 3),
    "logging": (60, 200, 600),
    "slow_data": (4, 12, 30),
    "slow_decode": (2, 5, 10),
    "tiny_syncs": (60, 200, 800),
    "float64": (1, 2, 4),
    "larger_batch": (1.25, 1.5, 2),
    "longer_input": (1.25, 1.5, 2),
    "many_threads": (4, 8, 16),
    "layout": (2, 5, 12),
    "recompile": (20, 8, 3),
    "slow_rank": (4, 10, 25),
    "no_cache": (1, 2, 3),
    "more_requests": (1.3, 1.7, 2.5),
    "large_messages": (1, 4, 12),
    "slow_optimizer": (1, 2, 3),
    "sleep": (3, 8, 25),
    "float32": (1, 3, 6),
    "gpu_neighbour": (1, 2, 3),
    "copies_back": (1, 3, 8),
    "empty_cache": (1, 2, 4),
    "no_graph": (1, 2, 3),
}

BUSY = "while True: pass"
#: A neighbour that reads and writes far more memory than caches hold.
STREAM = """
import numpy
a, b = numpy.zeros(8 << 20), numpy.ones(8 << 20)
while True:
    numpy.copyto(a, b)
    numpy.copyto(b, a)
"""
#: A neighbour on the device.
MULTIPLY = """
import torch
a = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""


class Trouble:
    """The faults of a job, mostly one: what they do from the start, and what after each step."""

    def __init__(self, faults: list[str], severity: int, seed: int) -> None:
        self.hard = {fault: HARD[fault][severity - 1] for fault in faults if fault != NONE}
        self.chance = random.Random(seed)
        self.n = 0
        self.kept: list[Any] = []
        self.lock = threading.Lock()
        self.block = os.urandom(1 << 20)
        self.file = tempfile.TemporaryFile(dir=".")  # noqa: SIM115  closed with the process
        self.text = tempfile.TemporaryFile("w+", dir=".")  # noqa: SIM115
        self.log = logging.getLogger("job")

    def of(self, fault: str, otherwise: float = 0.0) -> float:
        """How hard this fault is, if the job has it."""
        return self.hard.get(fault, otherwise)

    def is_(self, *faults: str) -> bool:
        """Whether the job has one of these faults."""
        return any(fault in self.hard for fault in faults)

    def begin(self) -> None:
        """What goes on in other threads of the job."""
        for _ in range(int(self.of("gil_hog"))):
            threading.Thread(target=count, daemon=True).start()
        if self.is_("lock"):
            threading.Thread(target=self._hold, daemon=True).start()
        if self.is_("logging"):
            self.log.addHandler(logging.StreamHandler(self.text))
            self.log.setLevel(logging.DEBUG)

    def _hold(self) -> None:
        """Holds the lock that each step needs, as a thread that saves or reports while it holds it."""
        while True:
            with self.lock:
                time.sleep(self.of("lock") / 1000)
            time.sleep(0.001)

    def after_step(self) -> None:  # noqa: C901  one branch a fault
        """What goes wrong in each step."""
        self.n += 1
        if self.is_("fsync"):
            for _ in range(int(self.of("fsync"))):
                self.file.write(self.block)
                self.file.flush()
                os.fsync(self.file.fileno())
        if self.is_("garbage"):
            for _ in range(int(self.of("garbage"))):
                itself: list[Any] = []
                itself.append(itself)
                self.kept.append(itself)
            del self.kept[: -4 * int(self.of("garbage"))]
        if self.is_("memory_growth"):
            self.kept.append(bytearray(os.urandom(1 << 10) * int(self.of("memory_growth") * 1024)))
        if self.is_("checkpoint") and self.n % 12 == 0:
            work_for(self.of("checkpoint"))
        if self.is_("slow_tail") and self.chance.random() < 0.04:
            time.sleep(self.of("slow_tail") / 1000 * self.chance.uniform(0.7, 1.3))
        if self.is_("growing"):
            self.kept.extend(range(int(self.of("growing"))))
            sum(x & 1 for x in self.kept)
        if self.is_("lock"):
            with self.lock:
                pass
        if self.is_("logging"):
            for i in range(int(self.of("logging"))):
                self.log.debug("step %d value %d of %s", self.n, i, "logging")
        if self.is_("sleep"):
            time.sleep(self.of("sleep") / 1000)


def neighbours(faults: tuple[str, ...], severity: int) -> list[subprocess.Popen[bytes]]:
    """The processes beside a job with these faults. The job does not start them, or they would be its workers."""
    return [
        subprocess.Popen([sys.executable, option, "-c", program])
        for fault, option, program in (
            ("core_hogs", "-S", BUSY),
            ("bandwidth", "-s", STREAM),
            ("gpu_neighbour", "-s", MULTIPLY),
        )
        if fault in faults
        for _ in range(int(HARD[fault][severity - 1]))
    ]


def count() -> None:
    """Keeps the interpreter's lock from the others, for half of the time: else a step of a large job takes minutes."""
    while True:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
        time.sleep(0.02)


def work_for(ms: float) -> None:
    """Computes, as what a checkpoint packs."""
    until = time.perf_counter() + ms / 1000
    data = bytes(1 << 16)
    while time.perf_counter() < until:
        data = zlib.compress(data * 4)[: 1 << 16]


def image(trouble: Trouble, n_steps: int, seed: int) -> None:
    """A small convolutional network learns from images that two worker processes decode."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    torch.set_num_threads(int(trouble.of("many_threads", 1)))
    batch = int(24 * trouble.of("larger_batch", 1))
    size = int(32 * trouble.of("longer_input", 1))
    torch.manual_seed(seed)

    class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return batch * n_steps

        def __getitem__(self, i: int) -> tuple[Any, int]:
            picture = torch.rand(3, size, size, generator=torch.Generator().manual_seed(i))
            for _ in range(int(trouble.of("slow_decode"))):
                picture = picture.sort(-1).values.flip(-1).sqrt()
            if trouble.is_("slow_data"):
                time.sleep(trouble.of("slow_data") / 1000)
            return picture, i % 10

    def block(n_in: int, n_out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU())

    model = nn.Sequential(
        block(3, 16),
        block(16, 32),
        nn.MaxPool2d(2),
        block(32, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    if trouble.is_("float64"):
        model.double()
    learner = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    workers = 1 if trouble.is_("slow_data", "slow_decode") else 2
    loader = torch.utils.data.DataLoader(Images(), batch, num_workers=workers, prefetch_factor=4)
    for loaded, labels in loader:
        pictures = loaded.double() if trouble.is_("float64") else loaded
        for _ in range(int(trouble.of("layout"))):
            pictures = swapped_twice(pictures)
        learner.zero_grad()
        F.cross_entropy(model(pictures), labels).backward()
        learner.step()
        read_values(trouble, model)
        trouble.after_step()


def swapped_twice(pictures: Any) -> Any:
    """The same pictures, copied into the other order of memory and back."""
    return pictures.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).contiguous()


def read_values(trouble: Trouble, model: Any) -> None:
    """Single values that somebody wants to see after each step."""
    if trouble.is_("tiny_syncs"):
        for i in range(int(trouble.of("tiny_syncs"))):
            next(model.parameters()).detach().flatten()[i % 8].item()


def transformer(trouble: Trouble, n_steps: int, seed: int) -> None:  # noqa: C901  a branch for each fault
    """A small transformer learns to predict tokens."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    torch.set_num_threads(int(trouble.of("many_threads", 1)))
    torch.manual_seed(seed)
    width, words = 96, 400
    batch, length = int(8 * trouble.of("larger_batch", 1)), int(48 * trouble.of("longer_input", 1))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(words, width)
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.wide = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])
            if trouble.is_("float64"):
                self.wide.double()
            self.head = nn.Linear(width, words)

        def forward(self, tokens: Any) -> Any:
            hidden = self.layers(self.embed(tokens))
            for _ in range(int(trouble.of("layout"))):
                hidden = hidden.transpose(0, 1).contiguous().transpose(0, 1).contiguous()
            for _ in range(int(trouble.of("float64", 1))):
                hidden = hidden + self.wide(hidden.double() if trouble.is_("float64") else hidden).float()
            return self.head(hidden)

    model = Model()
    learner = torch.optim.AdamW(model.parameters(), foreach=not trouble.is_("slow_optimizer"))
    for n in range(n_steps):
        if trouble.is_("slow_data"):
            time.sleep(trouble.of("slow_data") / 1000)
        tokens = torch.randint(0, words, (batch, length + 1))
        learner.zero_grad()
        logits = model(tokens[:, :-1])
        if trouble.is_("recompile"):
            if n % int(trouble.of("recompile")) == 0:
                torch.compiler.reset()
                scale = torch.compile(lambda x, n: (x * n).tanh() + x, backend="aot_eager", dynamic=False)
            scale(logits[0], 2)
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for _ in range(int(trouble.of("slow_optimizer"))):
            for parameter in model.parameters():
                torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        learner.step()
        read_values(trouble, model)
        trouble.after_step()


def recurrent(trouble: Trouble, n_steps: int, seed: int) -> None:
    """A recurrent network learns on two ranks that add their gradients after every second batch."""
    import torch
    from torch import distributed, nn

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    distributed.init_process_group("gloo")
    width = 64
    batch, length = int(8 * trouble.of("larger_batch", 1)), int(16 * trouble.of("longer_input", 1))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(width, width, 2, batch_first=True), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            return self.head(self.cell(x)[0])

    model = nn.parallel.DistributedDataParallel(Model().double() if trouble.is_("float64") else Model())
    learner = torch.optim.Adam(model.parameters())
    kind = torch.float64 if trouble.is_("float64") else torch.float32
    for _ in range(n_steps):
        learner.zero_grad()
        for part in range(2):
            if trouble.is_("slow_data"):
                time.sleep(trouble.of("slow_data") / 1000)
            x = torch.rand(batch, length, width, dtype=kind)
            if part == 0:
                with model.no_sync():
                    (model(x) - x).square().mean().backward()
            else:
                (model(x) - x).square().mean().backward()
        if trouble.is_("slow_rank") and rank == 1:
            y = torch.rand(128, 128)
            for _ in range(int(trouble.of("slow_rank"))):
                y = torch.tanh(y @ y)
        learner.step()
        read_values(trouble, model)
        if rank == 0 or not trouble.is_("fsync", "checkpoint", "slow_tail"):
            trouble.after_step()
    distributed.barrier()
    distributed.destroy_process_group()


def server(trouble: Trouble, n_steps: int, seed: int) -> None:  # noqa: C901  a branch for each fault
    """Two threads answer requests that come at random times: a prompt, then tokens with what the model has kept."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    torch.set_num_threads(int(trouble.of("many_threads", 1)))
    torch.manual_seed(seed)
    width, heads, words = 128, 4, 500
    n_prompt, n_new = int(32 * trouble.of("longer_input", 1)), 8

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
            self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3))
            self.out = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(3)
            )

        def forward(self, tokens: Any, kept: list[Any]) -> Any:
            x = self.embed(tokens)
            for i, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
                q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, -1))
                if kept[i] is not None:
                    k, v = torch.cat([kept[i][0], k], 2), torch.cat([kept[i][1], v], 2)
                kept[i] = (k, v)
                attended = F.scaled_dot_product_attention(q, k, v, is_causal=tokens.shape[1] > 1)
                for _ in range(int(trouble.of("layout"))):
                    attended = attended.transpose(1, 2).contiguous().transpose(1, 2).contiguous()
                x = x + out(attended.transpose(1, 2).flatten(2))
            return self.head(x[:, -1])

    model = Model().eval()
    requests: queue.Queue[float | None] = queue.Queue()

    def answer() -> None:
        chance = torch.Generator().manual_seed(seed)
        while requests.get() is not None:
            with torch.inference_mode():
                tokens, kept = torch.randint(0, words, (1, n_prompt), generator=chance), [None] * 3
                new = model(tokens, kept).argmax(-1, keepdim=True)
                for _ in range(n_new):
                    if trouble.is_("no_cache"):
                        tokens = torch.cat([tokens, new], 1)
                        new = model(tokens, [None] * 3).argmax(-1, keepdim=True)
                    else:
                        new = model(new, kept).argmax(-1, keepdim=True)
                    read_values(trouble, model)
            trouble.after_step()

    workers = [threading.Thread(target=answer) for _ in range(2)]
    for worker in workers:
        worker.start()
    chance = random.Random(seed)
    for _ in range(n_steps):
        time.sleep(chance.expovariate(1 / (0.03 / trouble.of("more_requests", 1))))
        requests.put(time.perf_counter())
    for _ in workers:
        requests.put(None)
    for worker in workers:
        worker.join()


def pool(trouble: Trouble, n_steps: int, seed: int) -> None:
    """Two processes clean and hash pieces of text for a parent that counts them; there is no framework."""
    import stepscope

    size = int(240_000 * trouble.of("larger_batch", 1))
    words = random.Random(seed).choices(["alpha", "beta", "gamma", "delta"], k=size // 5)
    text = " ".join(words)
    message = os.urandom(int(trouble.of("large_messages") * (1 << 20)))
    with multiprocessing.get_context("fork").Pool(2) as processes:
        for _ in range(n_steps):
            pieces = [(text[i::4], message, trouble.of("slow_data")) for i in range(4)]
            found = processes.map(clean, pieces, chunksize=1)
            trouble.kept[:] = trouble.kept if trouble.is_("garbage", "memory_growth", "growing") else found[:1]
            trouble.after_step()
            stepscope.step()


def clean(piece: tuple[str, bytes, float]) -> tuple[str, int, bytes]:
    """What a worker of `pool` does with a piece."""
    text, message, wait_ms = piece
    time.sleep(wait_ms / 1000)
    packed = zlib.compress(text.upper().encode(), 6)
    return hashlib.sha256(packed).hexdigest(), len(packed), message


def compiled(trouble: Trouble, n_steps: int, seed: int) -> None:
    """A network of three layers learns in JAX, which compiles the whole step."""
    import jax
    import numpy as np
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", trouble.is_("float64"))
    kind = np.float64 if trouble.is_("float64") else np.float32
    numbers = np.random.default_rng(seed)
    width, batch = 512, int(256 * trouble.of("larger_batch", 1))
    weights = [jnp.asarray(numbers.normal(size=(width, width)).astype(kind) / 16) for _ in range(4)]

    def loss(weights: list[Any], x: Any) -> Any:
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight)
        return ((y - x) ** 2).mean()

    @jax.jit
    def step(weights: list[Any], x: Any) -> tuple[list[Any], Any]:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return [w - 0.01 * slope for w, slope in zip(weights, slopes, strict=True)], value

    for n in range(n_steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=n):
            if trouble.is_("slow_data"):
                time.sleep(trouble.of("slow_data") / 1000)
            more = n // int(trouble.of("recompile")) if trouble.is_("recompile") else 0
            x = jnp.asarray(numbers.random((batch + more, width)).astype(kind))
            weights, value = step(weights, x)
            for i in range(int(trouble.of("tiny_syncs"))):
                float(weights[0][0, i % 8])
            value.block_until_ready()
            trouble.after_step()


def on_gpu(trouble: Trouble, n_steps: int, seed: int) -> None:
    """A training on a GPU, in mixed precision."""
    import gym_gpu_jobs

    gym_gpu_jobs.gpu(trouble, n_steps, seed)


def graphs(trouble: Trouble, n_steps: int, seed: int) -> None:
    """A server of tokens that replays a captured CUDA graph."""
    import gym_gpu_jobs

    gym_gpu_jobs.graphs(trouble, n_steps, seed)


JOBS: dict[str, Callable[[Trouble, int, int], None]] = {
    "image": image, "transformer": transformer, "recurrent": recurrent, "server": server, "pool": pool, "jax": compiled,
    "gpu": on_gpu, "graphs": graphs,
}  # fmt: skip


def main() -> None:
    """Run a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--fault", nargs="*", choices=[NONE, *HARD], default=[])
    parser.add_argument("--severity", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    trouble = Trouble(given.fault, given.severity, given.seed)
    trouble.begin()
    JOBS[given.job](trouble, given.steps, given.seed)


if __name__ == "__main__":
    main()
