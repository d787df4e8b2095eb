"""The jobs of the gymnasium that need a GPU: a training in mixed precision, and tokens from a captured graph.

They are started by `gym_jobs.py`; faults that any job can have are in `gym_faults.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from gym_faults import Trouble

WORDS, HEADS = 8_000, 16


class Block(nn.Module):
    """Attention and a network of two layers. With `keep`, keys and values of earlier tokens are there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any, n_layouts: int = 0, kept: Any = None, at: Any = None) -> Any:
        """Of x, batch × tokens × width."""
        q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in self.qkv(self.first(x)).chunk(3, -1))
        if kept is not None:
            kept[0].index_copy_(2, at, k)
            kept[1].index_copy_(2, at, v)
            k, v = kept
        y = F.scaled_dot_product_attention(q, k, v, is_causal=kept is None)
        for _ in range(n_layouts):
            y = y.transpose(1, 2).contiguous().transpose(1, 2).contiguous()
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.wide(self.second(x))


class Model(nn.Module):
    """Tokens to scores of the next ones."""

    def __init__(self, width: int, n_layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.layers = nn.ModuleList(Block(width) for _ in range(n_layers))


class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random tokens, which take some work to make."""

    def __init__(self, n: int, length: int, trouble: Trouble) -> None:
        self.n, self.length, self.trouble = n, length, trouble

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        tokens = torch.randint(0, WORDS, (self.length,), generator=torch.Generator().manual_seed(i))
        for _ in range(int(self.trouble.of("slow_decode"))):
            tokens = (torch.sort(tokens.repeat(40)).values + 7).flip(0)[: self.length] % WORDS
        if self.trouble.is_("slow_data"):
            time.sleep(self.trouble.of("slow_data") / 1000)
        return tokens


def gpu(trouble: Trouble, n_steps: int, seed: int) -> None:  # noqa: C901  a branch for each fault
    """A transformer learns in mixed precision from what loader workers make. Its loss is read every tenth step."""
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    batch, length = int(16 * trouble.of("larger_batch", 1)), int(512 * trouble.of("longer_input", 1))
    model = Model(1024, 6).cuda()
    learner = torch.optim.AdamW(model.parameters(), foreach=not trouble.is_("slow_optimizer"))
    texts = Texts(batch * n_steps, length + 1, trouble)
    n_workers = 1 if trouble.is_("slow_data", "slow_decode") else 2
    n_plain = int(trouble.of("float32"))
    for n, tokens in enumerate(torch.utils.data.DataLoader(texts, batch, num_workers=n_workers, pin_memory=True)):
        tokens = tokens.cuda(non_blocking=True)  # noqa: PLW2901
        learner.zero_grad()
        x = model.embed(tokens[:, :-1])
        for i, layer in enumerate(model.layers):
            with torch.autocast("cuda", torch.bfloat16, enabled=i >= n_plain):
                x = layer(x, int(trouble.of("layout")))
        with torch.autocast("cuda", torch.bfloat16):
            scores = model.head(x)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        if trouble.is_("recompile"):
            if n % int(trouble.of("recompile")) == 0:
                torch.compiler.reset()
                scale = torch.compile(lambda x, n: (x * n).tanh() + x, backend="aot_eager", dynamic=False)
            scale(x.detach()[0], 2)
        loss.backward()
        for _ in range(int(trouble.of("slow_optimizer"))):
            for parameter in model.parameters():
                nn.utils.clip_grad_norm_([parameter], 1.0)
        learner.step()
        for _ in range(int(trouble.of("copies_back"))):
            x.detach().float().cpu()
        if trouble.is_("empty_cache"):
            del scores, loss
            for _ in range(int(trouble.of("empty_cache"))):
                torch.cuda.empty_cache()
                kept = [torch.empty(1 << 24, device="cuda") for _ in range(4)]
                del kept
        elif n % 10 == 0:
            loss.item()
        for i in range(int(trouble.of("tiny_syncs"))):
            model.head.bias[i % 8].item()
        trouble.after_step()


@torch.inference_mode()
def graphs(trouble: Trouble, n_steps: int, seed: int) -> None:
    """A server makes token after token for a batch of requests with a captured graph, and reads each."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    batch, length = int(16 * trouble.of("larger_batch", 1)), int(512 * trouble.of("longer_input", 1))
    kind = torch.float32 if trouble.is_("float32") else torch.bfloat16
    model = Model(1024, 6).cuda().to(kind).eval()
    kept = [
        [torch.zeros(batch, HEADS, length, 1024 // HEADS, device="cuda", dtype=kind) for _ in range(2)]
        for _ in model.layers
    ]
    tokens, at = torch.zeros(batch, 1, device="cuda", dtype=torch.long), torch.zeros(1, device="cuda", dtype=torch.long)

    class Decode(nn.Module):
        def forward(self) -> Any:
            if captured is not None:
                captured.replay()
                return chosen
            return choose()

    def choose() -> Any:
        x = model.embed(tokens)
        for layer, pair in zip(model.layers, kept, strict=True):
            x = layer(x, int(trouble.of("layout")), pair, at)
        return model.head(x[:, -1]).argmax(-1, keepdim=True)

    captured, chosen = None, None
    choose()
    torch.cuda.synchronize()
    if not trouble.is_("no_graph"):
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            chosen = choose()
    decode = Decode()
    for _ in range(n_steps):
        new = decode()
        tokens.copy_(new)
        at.add_(1).remainder_(length)
        new.cpu()
        for i in range(int(trouble.of("tiny_syncs"))):
            model.head.bias[i % 8].item()
        trouble.after_step()
