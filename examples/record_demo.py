"""Records the demo traces: a small language model that trains on one or more ranks, or that writes text token by token.

    python record_demo.py train demo-cpu-2ranks --ranks 2
    python record_demo.py decode demo-cpu-decode --no-stacks
    python record_demo.py train demo-slow-loader/abnormal --no-stacks --no-memory --steps 16 --sample-ms 3
    python record_demo.py train demo-gpu --device cuda
    python record_demo.py decode demo-gpu-decode --device cuda --no-stacks

Needs PyTorch and nothing else. Each rank writes FOLDER/rankN.pt.trace.json.gz. The last step of a recording replaces
what would name the machine it was made on: the folders of the interpreter, of its packages and of this script, and
the host's name. Nothing else in the profiler's file is touched.
"""

from __future__ import annotations

import argparse
import gzip
import re
import socket
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 512
WIDTH = 128
HEADS = 4
LAYERS = 2
CONTEXT = 128
BATCH = 8
WAIT, WARMUP = 2, 2
Cache = list[tuple[Tensor, Tensor]]


class Text(Dataset[Tensor]):
    """Made-up text: every token follows from the two before it, so that there is something to learn."""

    def __init__(self, length: int, sample_ms: float = 0.0) -> None:
        self.length, self.sample_ms = length, sample_ms

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        tokens = [index % VOCABULARY, (index * 7 + 3) % VOCABULARY]
        while len(tokens) < CONTEXT + 1:
            tokens.append((tokens[-1] * 5 + tokens[-2] + 1) % VOCABULARY)
        if self.sample_ms:
            time.sleep(self.sample_ms / 1000)  # as reading it from a slow disk would
        return torch.tensor(tokens)


class Attention(nn.Module):
    """Causal self-attention that can go on from a cache of earlier keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What each token takes from the ones before it, and the cache grown by these tokens."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH)), (k, v)


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The tokens after this layer, and its cache."""
        y, past = self.attention(self.norm1(x), past)
        x = x + y
        return x + self.ffn(self.norm2(x)), past


class LanguageModel(nn.Module):
    """Tokens in, a score for every next token out."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Scores (batch, tokens, vocabulary), and every layer's cache."""
        start = cache[0][0].shape[2] if cache else 0
        x = self.token(tokens) + self.position(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        grown: Cache = []
        for i, block in enumerate(self.blocks):
            x, past = block(x, cache[i] if cache else None)
            grown.append(past)
        return self.head(self.norm(x)), grown


def train(rank: int, wanted: argparse.Namespace, device: torch.device, profiler: profile, steps: int) -> None:
    """Some steps of training; the loss is read every other step, as many training loops do."""
    ranks: int = wanted.ranks
    model: nn.Module = LanguageModel().to(device)
    if ranks > 1:
        ids = [device.index] if device.type == "cuda" else None
        model = DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=1)
    optimizer = AdamW(model.parameters(), lr=3e-4)
    shards = torch.utils.data.DistributedSampler(range(4096), ranks, rank, shuffle=True)
    batches = iter(DataLoader(Text(4096, wanted.sample_ms), BATCH, sampler=shards, pin_memory=device.type == "cuda"))
    with profiler:
        for step in range(steps):
            text = next(batches).to(device, non_blocking=True)
            with record_function("forward"), torch.autocast(device.type, torch.bfloat16, device.type == "cuda"):
                scores, _ = model(text[:, :-1])
                loss = functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
            with record_function("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 2:
                loss.item()
            profiler.step()


@torch.inference_mode()
def decode(device: torch.device, profiler: profile, steps: int) -> None:
    """A prompt is read at once, then one token at a time is written; a step is a token."""
    model = LanguageModel().to(device).eval()
    prompt = torch.stack([Text(BATCH)[i] for i in range(BATCH)])[:, : CONTEXT // 2].to(device)
    with record_function("prefill"):
        scores, cache = model(prompt)
    written = []
    with profiler:
        for _ in range(steps):
            with record_function("sample"):
                odds = torch.softmax(scores[:, -1] / 0.8, dim=-1)
                token = torch.multinomial(odds, 1)
                written.append(token.cpu())
            with record_function("decode"):
                scores, cache = model(token, cache)
            profiler.step()


def record(rank: int, wanted: argparse.Namespace, rendezvous: str) -> None:
    """One rank: set up, run under the profiler, write its trace."""
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    gpu = wanted.device == "cuda"
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if wanted.ranks > 1:
        backend = "nccl" if gpu else "gloo"
        dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=wanted.ranks)
    profiler = profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])],
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=wanted.steps, repeat=1),
        on_trace_ready=lambda p: write(p, wanted.folder / f"rank{rank}.pt.trace.json.gz"),
        record_shapes=True,
        profile_memory=wanted.memory,
        with_stack=wanted.stacks,
        with_modules=True,
    )
    steps = WAIT + WARMUP + wanted.steps
    if wanted.what == "train":
        train(rank, wanted, device, profiler, steps)
    else:
        decode(device, profiler, steps)
    if wanted.ranks > 1:
        dist.destroy_process_group()


def write(profiler: profile, path: Path) -> None:
    """The profiler's trace, without the names of the machine it was made on."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(raw))
        text = without_machine(raw.read_text(encoding="utf-8")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0) as packed:
        packed.write(text)
    sys.stderr.write(f"{path}: {path.stat().st_size / 1000:,.0f} kB\n")


def without_machine(text: str) -> str:
    """The text with folders of this machine shortened, and its name replaced."""
    folders = {
        sysconfig.get_path("purelib"): "site-packages",
        sysconfig.get_path("platlib"): "site-packages",
        sysconfig.get_path("stdlib"): "python",
        str(Path(__file__).resolve().parent): "",
        str(Path.cwd()): "",
    }
    for folder, short in sorted(folders.items(), key=lambda item: -len(item[0])):
        text = text.replace(f"{folder}/", f"{short}/" if short else "")
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/[^\"\s:(]*/", "", text)
    return text.replace(f'"{socket.gethostname()}"', '"demo-host"')


def main() -> None:
    """Reads the command line and starts every rank."""
    parser = argparse.ArgumentParser(description="Records a demo trace of a small language model.")
    parser.add_argument("what", choices=("train", "decode"))
    parser.add_argument("folder", type=Path, help="where rankN.pt.trace.json.gz go")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    parser.add_argument("--steps", type=int, default=4, help="steps recorded")
    parser.add_argument("--sample-ms", type=float, default=0.0, help="time that loading a sample takes longer")
    parser.add_argument("--no-stacks", dest="stacks", action="store_false", help="leave Python stacks out")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave allocations out")
    wanted = parser.parse_args()
    if wanted.ranks > 1 and wanted.what == "decode":
        parser.error("decode runs on one rank")
    if wanted.what == "decode" and WAIT + WARMUP + wanted.steps > CONTEXT // 2:
        parser.error(f"decode writes at most {CONTEXT // 2 - WAIT - WARMUP} tokens")
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder, "rendezvous"))
        if wanted.ranks == 1:
            record(0, wanted, rendezvous)
        else:
            mp.spawn(record, (wanted, rendezvous), nprocs=wanted.ranks)


if __name__ == "__main__":
    main()
