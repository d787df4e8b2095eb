"""What an engine that serves a model ran at once, from the name of the range around it.

- vLLM: `execute_context_2(512)_generation_3(3)`; with sums `execute_515_context_2(sq…sk…sqsq…sqsk…)_generation_3(…)`;
  0.10 to 0.12: `execute_new_2_cached_3`; on TPU: `execute_model: 5 reqs, 515 toks`
- SGLang: `step[DECODE bs=32]`, `step[EXTEND bs=2 toks=512]`, `step[MIXED bs=5 c=2 g=3 …]`, with sums as in `c_sk=512`
- ATOM: `prefill[bs=2 tok=512 ctx=[256, 256]]`, `decode[bs=30/32 tok=30 d=30]`, with sums as in `sk=512`
- TensorRT-LLM: `[Executor] _forward_step 7: 2 ctx reqs, 512 ctx tokens, 3 gen reqs`, `executeStep: 2 ctx reqs, …`
- loops without an engine: `prefill`, `decode`, `decode_step_7`

Source: the names that these engines give their ranges, as of 2026 (SGLang's from its own tests).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["prefill", "decode", "mixed"]

_JUDGED = 1_000  # characters of a name; more would only cost time
_N = r"(\d{1,15})"
_SUMS = regex(rf"^sq{_N}sk{_N}sqsq{_N}sqsk{_N}$")
_VLLM = regex(rf"^execute_(?:{_N}_)?(?:\w*?_)?context_{_N}\(([a-z\d]{{0,99}})\)_generation_{_N}\(([a-z\d]{{0,99}})\)")
_VLLM_NEW = regex(rf"^execute_new_{_N}_cached_{_N}$")
_VLLM_TPU = regex(rf"^execute_model: {_N} reqs, {_N} toks")
_BRACKETS = regex(r"^(?:(step)\[(\w+)|(?:eager_)?(prefill|decode)\[)([^\n]*)\]")
_PAIR = regex(rf"(?<!\w)(\w+)={_N}(?:/{_N})?(?=[\s\]]|$)")
_TENSORRT = regex(rf"(?:_forward_step(?: \d+)?|^executeStep): {_N} ctx reqs, (?:{_N} ctx tokens, )?{_N} gen reqs")
_CONTEXT_MODES = ("EXTEND", "PREFILL", "SPLIT_PREFILL")
_GENERATION_MODES = ("DECODE", "TARGET_VERIFY", "VERIFY")
_PLAIN = regex(
    r"(?i)^(?:\w+[./:])?(prefill|decode)(?:[ _.-]?(step|token|iter|iteration|one|forward|pass))?(?:[ _.-]?\d+)?$"
)


class Part(msgspec.Struct, frozen=True):
    """The requests of a batch that are in prefill (context), or those in decode (generation); None is not stated.

    `q` is the sum of their lengths in new tokens, `kv` that of all tokens that they attend to, `q_q` and `q_kv` the
    sums over requests of the products of these. If `requests` is not stated, there are some.
    """

    requests: int | None
    q: int | None = None
    kv: int | None = None
    q_q: int | None = None
    q_kv: int | None = None

    @property
    def has_sums(self) -> bool:
        """Whether what attention costs follows from it."""
        return self.requests == 0 or None not in (self.q, self.kv, self.q_q, self.q_kv)

    def __add__(self, other: Part) -> Part:
        """Both together, as far as both state it."""
        return Part(*(None if a is None or b is None else a + b for a, b in zip(self._sums, other._sums, strict=True)))

    @property
    def _sums(self) -> tuple[int | None, ...]:
        sums = (self.q, self.kv, self.q_q, self.q_kv)
        return (0, *[n or 0 for n in sums]) if self.requests == 0 else (self.requests, *sums)


class Batch(msgspec.Struct, frozen=True):
    """What ran at once.

    `size` is the number of places, of tokens or requests, with what fills it up to a graph's; `filled` are those in
    use. `total` is stated of both parts together where it does not follow from them.
    """

    context: Part
    generation: Part
    size: int | None = None
    filled: int | None = None
    total: Part | None = None

    @property
    def kind(self) -> Kind:
        """Requests in prefill only, in decode only, or both."""
        if self.context.requests != 0 and self.generation.requests != 0:
            return "mixed"
        return "prefill" if self.context.requests != 0 else "decode"

    @property
    def whole(self) -> Part:
        """All requests."""
        return self.total or self.context + self.generation


_SAMPLING = regex(
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
_SOME = Part(None)


@lru_cache(1 << 14)
def batch_of(name: str) -> Batch | None:
    """The batch that a range of this name ran; None if the name states none.

    >>> batch_of("execute_context_1(512)_generation_3(3)").whole.q
    515
    >>> batch_of("step[DECODE bs=32]").kind
    'decode'
    >>> batch_of("forward") is None
    True
    """
    if match := _VLLM.match(name):
        size, n_context, context, n_generation, generation = match.groups()
        batch = Batch(_vllm_part(n_context, context), _vllm_part(n_generation, generation))
        return batch if size is None else Batch(batch.context, batch.generation, int(size), batch.whole.q)
    if match := _VLLM_NEW.match(name):  # the rest of a long prompt is cached, too
        new, cached = (Part(int(n)) if int(n) else _NOTHING for n in match.groups())
        return Batch(new, cached)
    if match := _VLLM_TPU.match(name):
        n, tokens = map(int, match.groups())
        return Batch(_NOTHING, Part(n, n)) if n == tokens else Batch(_SOME, _SOME, total=Part(n, tokens))
    if match := _BRACKETS.match(name):
        pairs = _PAIR.findall(match[4])
        places = next((int(size) for key, _, size in pairs if key == "bs" and size), None)
        return _in_brackets((match[2] or match[3]).upper(), {key: int(n) for key, n, _ in pairs}, places)
    if match := _TENSORRT.search(name):
        n_context, n_generation = int(match[1]), int(match[3])
        context_part = Part(n_context, None if match[2] is None else int(match[2])) if n_context else _NOTHING
        return Batch(context_part, Part(n_generation, n_generation) if n_generation else _NOTHING)
    return None


def plain_batches(names: Iterable[str]) -> dict[str, Batch]:
    """The batches of a loop that names its ranges prefill and decode, by name; of other decoders there are none.

    >>> sorted(plain_batches(["prefill", "decode_step_1", "decoder_layer_1"]))
    ['decode_step_1', 'prefill']
    >>> plain_batches(["encode", "decode"])
    {}
    """
    matches = {name: match for name in names if (match := _PLAIN.match(name))}
    kinds = {match[1].lower() for match in matches.values()}
    if "prefill" not in kinds and not any(match[2] for match in matches.values()):
        return {}
    batches = {"prefill": Batch(_SOME, _NOTHING), "decode": Batch(_NOTHING, _SOME)}
    return {name: batches[match[1].lower()] for name, match in matches.items()}


def _vllm_part(requests: str, content: str) -> Part:
    n = int(requests)
    if match := _SUMS.match(content):
        return Part(n, *map(int, match.groups()))
    return Part(n, int(content) if content.isdigit() else None) if n else _NOTHING


def _in_brackets(mode: str, fields: dict[str, int], places: int | None) -> Batch | None:
    """SGLang leaves out sums that follow from the batch: of a pure decode its tokens, of a pure prefill `c_sq`."""
    n, tokens = fields.get("bs", 0), fields.get("toks", fields.get("tok"))
    if mode == "MIXED" and {"c", "g"} <= fields.keys():
        return Batch(_part("c_", fields["c"], None, fields), _part("g_", fields["g"], None, fields), n, n)
    if mode == "MIXED":
        return Batch(_SOME, _SOME, n, n, Part(n, tokens)) if n else None
    if fields.get("p") and fields.get("d"):  # both, with sums of both together
        return Batch(Part(fields["p"]), Part(fields["d"]), places or n, n, _part("", n, tokens, fields))
    if mode in _GENERATION_MODES:
        if tokens is None and mode == "DECODE":
            tokens = n  # several for each request only where guessed tokens are verified
        return Batch(_NOTHING, _part("g_", n, tokens, fields), places or n, n)
    if mode in _CONTEXT_MODES:
        return Batch(_part("c_", n, tokens, fields), _NOTHING, places or n, n)
    return None


def _part(prefix: str, requests: int, tokens: int | None, fields: dict[str, int]) -> Part:
    """Sums are those of one part by its prefix (SGLang), or have none (ATOM)."""
    sq, *sums = (fields.get(f"{prefix}{name}", fields.get(name)) for name in ("sq", "sk", "sqsq", "sqsk"))
    return Part(requests, tokens if sq is None else sq, *sums) if requests else _NOTHING
