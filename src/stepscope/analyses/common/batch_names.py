"""What an engine that serves a model ran at once, from the name of the range around it.

- vLLM: `execute_context_2(512)_generation_3(3)`, or with sums `execute_515_context_2(sq…sk…sqsq…sqsk…)_generation_3(…)`
- SGLang: `step[DECODE bs=32]`, `step[EXTEND bs=2 toks=512]`, `step[MIXED bs=5 c=2 g=3 …]`, with sums as in `c_sk=512`
- ATOM: `prefill[bs=2 tok=512]`, `decode[bs=32 tok=32 d=32]`
- TensorRT-LLM: `[Executor] _forward_step 7: 2 ctx reqs, 512 ctx tokens, 3 gen reqs`, `executeStep: 2 ctx reqs, …`

Source: the names that these engines give their ranges, as of 2026 (SGLang's from its own tests).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Kind = Literal["prefill", "decode", "mixed"]

_JUDGED = 1_000  # characters of a name; more would only cost time
_N = r"(\d{1,15})"
_SUMS = re.compile(rf"^sq{_N}sk{_N}sqsq{_N}sqsk{_N}$")
_VLLM = re.compile(rf"^execute_(?:{_N}_)?(?:\w*?_)?context_{_N}\(([a-z\d]*)\)_generation_{_N}\(([a-z\d]*)\)")
_BRACKETS = re.compile(r"^(?:(step)\[(\w+)|(?:eager_)?(prefill|decode)\[)((?:\s*\w+=\d{1,15}(?!\w))*)\s*\]")
_PAIR = re.compile(rf"(\w+)={_N}")
_TENSORRT = re.compile(rf"(?:_forward_step \d+|^executeStep): {_N} ctx reqs, (?:{_N} ctx tokens, )?{_N} gen reqs")
_CONTEXT_MODES = ("EXTEND", "PREFILL", "SPLIT_PREFILL")
_GENERATION_MODES = ("DECODE", "TARGET_VERIFY")


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of a batch that are in prefill (context), or those in decode (generation); None is not stated.

    `q` is the sum of their lengths in new tokens, `kv` that of all tokens that they attend to, `q_q` and `q_kv` the
    sums over requests of the products of these.
    """

    requests: int
    q: int | None = None
    kv: int | None = None
    q_q: int | None = None
    q_kv: int | None = None

    @property
    def has_sums(self) -> bool:
        """Whether what attention costs follows from it."""
        return self.requests == 0 or None not in (self.q, self.kv, self.q_q, self.q_kv)


@dataclass(frozen=True, slots=True)
class Batch:
    """What ran at once. `size` is the stated number of tokens, or of requests, with what fills it up to a graph's."""

    context: Part
    generation: Part
    size: int | None = None

    @property
    def kind(self) -> Kind:
        """Requests in prefill only, in decode only, or both."""
        if self.context.requests and self.generation.requests:
            return "mixed"
        return "prefill" if self.context.requests else "decode"

    @property
    def tokens(self) -> int | None:
        """New tokens of all requests."""
        if self.context.q is None or self.generation.q is None:
            return None
        return self.context.q + self.generation.q


_SAMPLING = re.compile(
    r"(?i)(?:^|[./ _(])(?:sampler?|sampling|sample_tokens?|logits_processors?|apply_penalties|apply_\w*bitmask)"
    r"(?:$|[./: (])"
)


def is_sampling(name: str) -> bool:
    """Whether an operator, function or range of this name chooses tokens.

    >>> is_sampling("vllm/v1/sample/sampler.py(55): forward"), is_sampling("resample")
    (True, False)
    """
    return _SAMPLING.search(name[:_JUDGED]) is not None


_NOTHING = Part(0, 0, 0, 0, 0)


@lru_cache(1 << 14)
def batch_of(name: str) -> Batch | None:
    """The batch that a range of this name ran; None if the name states none.

    >>> batch_of("execute_context_1(512)_generation_3(3)").tokens
    515
    >>> batch_of("step[DECODE bs=32]").kind
    'decode'
    >>> batch_of("forward") is None
    True
    """
    if match := _VLLM.match(name):
        size, n_context, context, n_generation, generation = match.groups()
        return Batch(_vllm_part(n_context, context), _vllm_part(n_generation, generation), int(size) if size else None)
    if match := _BRACKETS.match(name):
        fields = {key: int(value) for key, value in _PAIR.findall(match[4])}
        return _in_brackets((match[2] or match[3]).upper(), fields)
    if match := _TENSORRT.search(name):
        n_context, n_generation = int(match[1]), int(match[3])
        context_part = Part(n_context, None if match[2] is None else int(match[2])) if n_context else _NOTHING
        return Batch(context_part, Part(n_generation, n_generation) if n_generation else _NOTHING)
    return None


def _vllm_part(requests: str, content: str) -> Part:
    n = int(requests)
    if match := _SUMS.match(content):
        return Part(n, *map(int, match.groups()))
    return Part(n, int(content) if content.isdigit() else None) if n else _NOTHING


def _in_brackets(mode: str, fields: dict[str, int]) -> Batch | None:
    """SGLang leaves out sums that follow from the batch: of a pure decode its tokens, of a pure prefill `c_sq`."""
    n, tokens = fields.get("bs", 0), fields.get("toks", fields.get("tok"))
    if mode in _GENERATION_MODES:
        return Batch(_NOTHING, _sglang_part("g", n, n if tokens is None else tokens, fields), n)
    if mode in _CONTEXT_MODES:
        n_generation = fields.get("d", 0)
        left = None if tokens is None else tokens - n_generation
        generation = Part(n_generation, n_generation) if n_generation else _NOTHING
        return Batch(_sglang_part("c", n - n_generation, left, fields), generation, n)
    if mode == "MIXED" and {"c", "g"} <= fields.keys():
        return Batch(_sglang_part("c", fields["c"], None, fields), _sglang_part("g", fields["g"], None, fields), n)
    return None


def _sglang_part(prefix: str, requests: int, tokens: int | None, fields: dict[str, int]) -> Part:
    sums = (fields.get(f"{prefix}_{name}") for name in ("sk", "sqsq", "sqsk"))
    return Part(requests, fields.get(f"{prefix}_sq", tokens), *sums) if requests else _NOTHING
