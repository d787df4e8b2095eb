"""The jobs of the gymnasium: six kinds of job, each with faults of three severities. They know no profiler.

    python lab/gym_jobs.py JOB [--fault NAME] [--severity 1] [--steps N] [--seed N] [--costs FILE]

Faults that any job can have are in `gym_faults.py`; those that belong to a kind of job are here. `NONE` is a healthy
run. `--costs` writes what each fault took of a step, by the job's own clock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import queue
import random
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_faults import HARD, NONE, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable


#: How often the server calls its model for each request.
N_CALLS = 9


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
        if trouble.is_("layout"):
            with trouble.timed("layout"):
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
        with trouble.timed("tiny_syncs"):
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
            if trouble.is_("layout"):
                with trouble.timed("layout"):
                    for _ in range(int(trouble.of("layout"))):
                        hidden = hidden.transpose(0, 1).contiguous().transpose(0, 1).contiguous()
            for _ in range(int(trouble.of("float64", 1))):
                hidden = hidden + self.wide(hidden.double() if trouble.is_("float64") else hidden).float()
            return self.head(hidden)

    model = Model()
    learner = torch.optim.AdamW(model.parameters(), foreach=not trouble.is_("slow_optimizer"))
    for n in range(n_steps):
        if trouble.is_("slow_data"):
            with trouble.timed("slow_data"):
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
                with trouble.timed("slow_data"):
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
    n_prompt, n_new = int(32 * trouble.of("longer_input", 1)), N_CALLS - 1

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
                if trouble.is_("layout"):
                    with trouble.timed("layout"):
                        # The keys of all words: with that of a single one, another order would be no copy.
                        for _ in range(int(trouble.of("layout"))):
                            k = k.transpose(1, 2).contiguous().transpose(1, 2).contiguous()
                attended = F.scaled_dot_product_attention(q, k, v, is_causal=tokens.shape[1] > 1)
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
                with trouble.timed("slow_data"):
                    time.sleep(trouble.of("slow_data") / 1000)
            more = n // int(trouble.of("recompile")) if trouble.is_("recompile") else 0
            x = jnp.asarray(numbers.random((batch + more, width)).astype(kind))
            weights, value = step(weights, x)
            if trouble.is_("tiny_syncs"):
                with trouble.timed("tiny_syncs"):
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
    parser.add_argument("--costs", type=Path, help="a JSON file of what each fault took of a step (ns)")
    given = parser.parse_args()
    trouble = Trouble(given.fault, given.severity, given.seed)
    trouble.begin()
    JOBS[given.job](trouble, given.steps, given.seed)
    if given.costs and os.environ.get("RANK", "0") == "0":
        parts = N_CALLS if given.job == "server" else 1  # whose steps are calls of its model
        costs = {fault: ns / parts for fault, ns in trouble.costs().items()}
        given.costs.write_text(json.dumps(costs), encoding="utf-8")


if __name__ == "__main__":
    main()
