r"""What the name of a kernel, an operator or a runtime call says about it.

Every function here is pure, uses the name alone and is cached. Names are those that CUDA, HIP, Triton, Inductor,
cuBLAS, cuDNN, CUTLASS, Tensile, Composable Kernel, MIOpen, aiter, FlashAttention, xFormers, vLLM, SGLang, DeepEP,
FBGEMM, XLA, CANN and the like give. Rules are tables of patterns, searched in the lower-case name (identifiers inside
mangled names count); what no rule matches is `other`, not a guess.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from stepscope.core.collectives import INDUCTOR_KERNEL, communication_mark, is_communication
from stepscope.core.patterns import regex
from stepscope.core.short_names import demangled, shorten, shorten_column, without_parameters
from stepscope.core.table import map_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "FUSIBLE", "KERNEL_CLASSES", "demangled", "is_dataloader", "is_graph_launch", "is_launch_call", "is_own_code",
    "is_sync_call", "is_tensor_core", "is_tensor_core_eligible", "kernel_class", "kernel_rule", "map_names",
    "mentioned_name", "shorten",
    "shorten_column", "step_number", "transfer_kind", "without_number",
]  # fmt: skip

#: All results of `kernel_class`. `memory` is the work of copy engines (copies and fills), `copy` is a kernel
#: that only moves data (transpose, concatenate, gather), `moe` the routing and fused experts of a mixture of experts.
KERNEL_CLASSES = (
    "gemm", "convolution", "attention", "norm", "softmax", "elementwise", "reduction", "copy", "collective",
    "embedding", "sort", "random", "optimizer", "rope", "quantization", "moe", "memory", "other",
)  # fmt: skip
#: Classes of memory-bound kernels that compilers fuse.
FUSIBLE = (
    "elementwise", "norm", "softmax", "reduction", "copy", "embedding", "random", "rope", "quantization", "optimizer",
)  # fmt: skip

_CACHED = 1 << 16
#: Characters that say what a kernel does. A name of more is one of nested templates, or made to cost time.
_JUDGED = 1000

# One rule a line: the class, the pattern that tells it. The order matters: the first rule that matches decides.
_KERNEL_CLASS_RULES = r"""
# what is left of cutlass::Kernel<…> in a table that cuts names at the first bracket: nearly always a product
gemm          ^kernel2?$
# prefixes and exact words come before words that also occur inside other kernels' names
memory        ^(?:hip)?mem(?:cpy|set)|^\[cuda\smem|copy(?:host|device)to|copybuffer|^dma|memset
memory        fillfunctor|fill_?buffer|^(?:zeroslike|oneslike|fill)(?:d|v\d)?$
elementwise   ^triton_poi_
attention     ^triton_tem_\w*(?:attention|scaled_dot_product)
gemm          ^triton_tem_fused_(?:\w*_)?(?:add|b|baddb)?mm
convolution   ^triton_tem_\w*conv
softmax       ^triton_(?:red|per)_\w*softmax
norm          ^triton_(?:red|per|mix)_\w*(?:_norm|var_mean|mean\w*rsqrt)
reduction     ^triton_(?:red|per|split_scan)_
optimizer     ^triton_for_
# what carries the name of the work that it prepares or ends
copy          nchwtonhwc|nhwctonchw|batched_transpose|transdata|tensormove|copy_tensor
copy          reshape_and_cache|concat_and_cache|store_kv|kv_?cache_copy|copy_blocks|page_indices
reduction     pool(?!ed)
rope          rotary|(?<![pu])rope(?!r|an)
moe           moe|expert|expt_|routing|bitmatrix|dispatch_layout|topk_?(?:gating|forward)|grouped_topk
moe           fused_mapping|expand_to_fused|reduce_fused|unique_group_indices
# fused attention, recurrent and state-space mixers
attention     attn(?!_?mask)|attention|f?mha|flash|sdpa|paged_?kv|(?:batch|single)(?:decode|prefill)|merge_?states?
attention     ^rpa-|(?:^|[_:])mla_|_fwd_(?:grouped_)?kernel_stage|selective_scan|delta_rule|chunk_(?:scan|state|fwd)
embedding     embedding|embed_|_embs?_|indexselect|index_select|^gatherv2|lookup_table
embedding     bounds_check|linearize_index|jagged|fbgemm_gpu::(?:permute|block_bucketize|_offsets)
# products: convolutions first, as they are named after the GEMM inside
gemm          wgrad_gemm|grouped_gemm
convolution   conv(?!ert|ersion)|scudnn|dgrad|wgrad|fprop|winograd|implicit_gemm|igemm_(?:fwd|bwd|wrw)|im2?d?2col|col2im
convolution   bwd_(?:weight|data)|fft2d|cudnn::cnn|compute\w*offsetskernel|precompute_indices
gemm          (?<!fb)gemm|gemv|matmul|(?:^|[_:])(?:add|b|baddb|scaled_|int_)?mm(?:[_.<]|$)|^%?dot(?:[._]|$)
gemm          mul_mat(?:_|$)
gemm          cijk_|nvjet|splitk|dot_kernel|wgmma|magma|cublas|hipblas|epilogue::impl|^bmm_|xmma_
gemm          cutlass[_\w]*(?:tensorop|simt)
# row-wise work
reduction     normtwoops|normops|lpnorm|norm_?clip|isfinite
norm          norm(?!al)|(?:^|[_:])bn_|(?:^|[_:])ln_[fb]wd|(?<![a-z])rms|welford
norm          rowwisemoments|gammabeta|fusedparams|internalgradients
softmax       soft_?max|cross_?entropy
optimizer     adam|adagrad|fused_?sgd|(?<![a-z])sgd|momentum|lamb(?!d)|shampoo|optimizer
optimizer     multi_tensor|foreach|amp_update
elementwise   swiglu|geglu|reglu|act_and_mul|gated_?act
quantization  quant|qparam|fp8\w*_to_float|to_hfp8|(?:cast_)?to_fp8|fp8_cast|cast_(?:back|transpose|and_transpose)
quantization  scaled_(?:fp|int)\d|amax
random        dropout|random|philox|distribution_|bernoulli|uniform|multinomial|(?<!p)(?<!down)sampl
random        curand|rng_|genbitmask
sort          sort|top_?k|histogram|nonzero|unique|searchsorted|kthvalue|onesweep
# data movement, reductions, then what works on one element at a time
copy          copy|catarray|concat|transpose|permute|nchw|gather|scatter|index_elementwise|slice|index_?put
copy          repeat|triu|tril|roll_|flip_|unfold|as_strided|to_dense|compute_cuda_kernel|deviceselect|kv_indices
copy          resolve_future|_to_contiguous|^(?:%?pad|%?reshape|%?bitcast)(?:[._-]|$)
elementwise   elementwise|pointwise|^(?:loop|wrapped)_|broadcast
reduction     reduce|reduction|scan|argm(?:ax|in)|cumsum|cumprod|sum_|_sum|mean|count_
reduction     nll_?loss|nllcriterion|loss_(?:fwd|bwd)
elementwise   gelu|silu|s?elu(?![a-z])|relu|sigmoid|tanh|activation|functor|arange|masked|where|bias_?add|op_?tensor
elementwise   upsample|clamp|scale|cast|convert|subtensorop|axpy|one_?hot|assignadd
elementwise   ^(?:void )?%?(?:add|sub|mul|div|realdiv|neg|pow|exp|log|r?sqrt|abs|max|min)[a-z]*(?:v?\d|[.<_-]|$)
elementwise   ^(?:void )?%?(?:equal|not_?equal|greater|less|compare)[a-z]*(?:v?\d|[.<_-]|$)
"""


def _rules(table: str) -> list[list[str]]:
    """The rows of a table: a name, and a pattern."""
    return [line.split(None, 1) for line in table.splitlines() if line and not line.startswith("#")]


def _any_of(rules: Iterable[Sequence[str]]) -> re.Pattern[str]:
    return regex("|".join(pattern for _, pattern in rules))


#: Neighbouring rows of one class are one pattern.
_KERNEL_CLASS = tuple((name, _any_of(run)) for name, run in groupby(_rules(_KERNEL_CLASS_RULES), key=itemgetter(0)))


#: CANN names a kernel by its origin: a path of scopes, or the operator, its implementation and the kernel.
_ASCEND = regex(r"^(?:.*/(\w+)-op\d+|aclnn\w+_(\w+?))$")


def _kernel_itself(name: str) -> str:
    """The part of a name that says what the kernel does: without the types of its arguments."""
    if match := _ASCEND.match(name):
        return str(match.group(1) or match.group(2).rpartition("_")[2])
    return without_parameters(name)[:_JUDGED]


@lru_cache(_CACHED)
def kernel_class(name: str) -> str:
    """What kind of work a device kernel does: one of KERNEL_CLASSES.

    >>> kernel_class("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn")
    'gemm'
    """
    return kernel_rule(name)[0]


@lru_cache(_CACHED)
def kernel_rule(name: str) -> tuple[str, str]:
    """The class of a device kernel, and the part of its name that decided it; empty for `other`.

    >>> kernel_rule("nvjet_hsh_128x64_64x8_2x1_v_bz_TNN"), kernel_rule("saxpy")
    (('gemm', 'nvjet'), ('elementwise', 'axpy'))
    """
    if is_communication(name):
        return "collective", communication_mark(name)
    lower = _kernel_itself(name).lower()
    matches = ((kind, pattern.search(lower)) for kind, pattern in _KERNEL_CLASS)
    return next(((kind, match.group()) for kind, match in matches if match), ("other", ""))


# A library or two, the parts of its kernels' names by which their use of matrix units shows.
_TENSOR_CORE_RULES = r"""
cublas,cudnn        [hs]884|[hcs]1688|i8816|16816|hmma|xmma_(?:sparse_|warp_specialized_)?(?:implicit_)?(?:gemm|conv)
cudnn               dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group
cutlass,cudnn       tensorop_|wmma|wgmma|gmma_ss|tcgen05|umma|tensor\d+x\d+x\d+
hopper,blackwell    nvjet|sm(?:9|10|12)\d[af]?_(?:\w*gemm|xmma)|(?:gemm|bmm)_\w*sm(?:9|10|12)\d|fp8\w*gemm
flash-attention     flash_(?:fwd|bwd)|flash\w*::\w*(?:fwd|bwd)|flashattn(?:fwd|bwd)|sdpa\w*flash|flash_attention
xformers,tensorrt   fmha_(?:fwd|bwd|v2)|fmhasm\d|fmha_cutlass\w*_sm(?:[789]|1\d)\d
deepseek,triton     grouped_gemm::\w*::\w*fp8|_matmul_ogs_\w*(?:16|fp8|fp4)
tensile,ck,miopen   cijk_\w*_mi\d+x\d|mfma|xdl|gtcx\d|ck_fmha|attn_fwd
"""
_TENSOR_CORE = _any_of(_rules(_TENSOR_CORE_RULES))
#: Kernels around such a kernel that have its name but no matrix product.
_AROUND_TENSOR_CORE = regex(r"preprocess|postprocess|splitkv_combine|combine_kernel|dot_do_o|convert_dq|splitkreduce")


#: What the names of matrix products say that ran on the ordinary units, one multiplication and addition at a time.
_ORDINARY_UNITS = regex(r"(?:^|_)[dfhi]fma2?(?=_|$)|simt")
#: Double precision, and what a name has that says that matrix units did it (A100 and later, MI200 and later).
_DOUBLE = regex(r"\bdouble\b|(?<![a-z0-9])f64|(?<![a-z])[dz](?:gemm|884)|^cijk_\w*_[dz]b_")
_DOUBLE_ON_MATRIX_UNITS = regex(r"tensorop_[dz]|[dz]884|dmma|tensor\d+x\d+x\d+|nvjet_[dz]|_mi\d+x\d+")


@lru_cache(_CACHED)
def is_tensor_core(name: str) -> bool:
    """Whether a kernel's name says that it computes on matrix units (NVIDIA tensor cores, AMD matrix cores).

    True is reliable, False is not: Triton kernels, for one, do not say. Of products in double precision few run there,
    and a name that says nothing of it counts as one that does not.

    Source: the first two rows of the table cover the names that the TensorBoard profiler plugin knows (up to Ampere);
    the others continue them to Hopper, Blackwell and CDNA.
    """
    lower = _kernel_itself(name).lower()
    if _AROUND_TENSOR_CORE.search(lower) or (INDUCTOR_KERNEL.match(lower) and not lower.startswith("triton_tem")):
        return False
    if _ORDINARY_UNITS.search(lower) or (_DOUBLE.search(lower) and not _DOUBLE_ON_MATRIX_UNITS.search(lower)):
        return False
    return _TENSOR_CORE.search(lower) is not None


# What PyTorch's autocast runs in a lower precision (except prelu, which has no product in it), with the operators that
# do it, their backward, and what came later: attention, scaled, grouped and quantised products.
_ELIGIBLE_RULES = r"""
convolution  ^aten::_?(?:slow_|cudnn_|miopen_)?conv(?:olution|_tbc|_?transpose\dd|\dd)(?:_\w+)?$
product      ^aten::_?(?:add|b|badd?b|addb|int_|scaled_|grouped_|scaled_grouped_|cslt_sparse_|weight_int\w+)?mm_?$
product      ^aten::_?(?:addmv|addr|mv|matmul|einsum|tensordot|chain_matmul|linalg_multi_dot|addmm_activation)_?$
product      ^aten::_?(?:linear|matmul)(?:_backward)?$|^aten::_(?:sparse_semi_structured|mixed_dtypes)_\w+$
recurrent    ^aten::_?(?:thnn_fused_)?(?:lstm|gru)_cell$|^aten::rnn_(?:tanh|relu)_cell$
recurrent    ^aten::_(?:cudnn|miopen)_rnn(?:_backward)?$|^(?:cudnn|miopen)rnnbackward\d*$
attention    ^aten::_?(?:scaled_dot_product_|flash_|efficient_|cudnn_|triton_)\w*attention\w*$
attention    ^aten::(?:_native_multi_head_attention|_transformer_encoder_layer_fwd)$
attention    ^flash_attn\w*::|^xformers\w*::\w*attention|^(?:scaleddotproduct|flash)\w*attn?\w*backward\d*$
node         ^(?:cudnn|miopen)?convolution(?:transpose|overrideable)?backward\d*$
node         ^(?:(?:add|b|baddb|addb|scaled)?mm|addmv|mv|addr|linear|matmul)backward\d*$
"""
_ELIGIBLE = _any_of(_rules(_ELIGIBLE_RULES))


@lru_cache(_CACHED)
def is_tensor_core_eligible(name: str) -> bool:
    """Whether an operator computes products that matrix units can do, given a data type for which the device has them.

    Source: PyTorch's list of operators that autocast runs in half precision, as the TensorBoard profiler plugin has it.
    """
    return _ELIGIBLE.search(name.lower()) is not None


_TRANSFER_KIND = tuple(
    (kind, regex(pattern))
    for kind, pattern in (
        ("memset", r"memset|fill_?buffer|usm_?fill"),
        ("HtoD", r"htod|h2d|(?:copy|_|-|\b)host[_-]?to[_-]?device"),
        ("DtoH", r"dtoh|d2h|(?:copy|_|-|\b)device[_-]?to[_-]?host"),
        ("PtoP", r"ptop|p2p|peer"),
        ("DtoD", r"dtod|d2d|(?:copy|_|-|\b)device[_-]?to[_-]?device"),
        ("HtoH", r"htoh|h2h|(?:copy|_|-|\b)host[_-]?to[_-]?host"),
    )
)


@lru_cache(_CACHED)
def transfer_kind(name: str) -> str:
    """Between which memories a copy goes: HtoD DtoH DtoD PtoP HtoH (host, device, peer devices), memset or unknown."""
    lower = name.lower()
    return next((kind for kind, pattern in _TRANSFER_KIND if pattern.search(lower)), "unknown")


_SYNC_CALL = regex(
    r"[Ss]ynchronize|^cn(?:rt)?(?:Queue|Device|Notifier)?(?:Sync|Wait)(?:Device|Queue)?"
    r"|QueueFinish|EventHostSync|WaitForEvents?$"
)
_GRAPH_LAUNCH = regex(r"^(?:\w+@)?(?:cu(?:da)?|hip|musa|mc)GraphLaunch|TaskTopo\w*Invoke|aclmdlRIExecute")
_LAUNCH_CALL = regex(
    r"^(?:\w+@)?(?:"
    r"(?:cuda|hip|musa|mc)(?:Memcpy|Memset|Launch|ExtLaunch|ModuleLaunch|ExtModuleLaunch|HccModuleLaunch|GraphLaunch)"
    r"|cu(?:Launch(?!HostFunc)|GraphLaunch|Memcpy|Memset)"
    r"|cn(?:rt)?(?:Invoke|Memcpy|Memset)"
    r"|acl(?:rtLaunch|rtMemcpy|rtMemset|opExecute|opCompileAndExecute|nn[A-Z][A-Za-z0-9]*$)|rt\w*KernelLaunch"
    r"|(?:ur|pi)Enqueue(?:KernelLaunch|CooperativeKernelLaunch|Mem|USMMem|USMFill)|zeCommandListAppend(?:Launch|Memory)"
    r"|(?:launch$|enqueueCommand memcpy|runFunction - job_prep_and_submit)"
    r")"
)
_NOT_LAUNCH = regex(r"HostFunc|GetWorkspaceSize")


#: Operators of PyTorch that need a value of the device on the host.
SYNC_OPERATORS = (
    "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal",
    "aten::masked_select", "aten::_unique2",
)  # fmt: skip


@lru_cache(_CACHED)
def is_sync_call(name: str) -> bool:
    """Whether a host call only waits for the device: stream, event, device (CUDA, HIP, MLU, NPU, XPU, MTIA).

    Calls that make a stream wait (`cudaStreamWaitEvent`) return at once and do not count; neither do blocking copies.
    """
    return _SYNC_CALL.search(name) is not None


@lru_cache(_CACHED)
def is_graph_launch(name: str) -> bool:
    """Whether a host call launches a whole captured graph."""
    return _GRAPH_LAUNCH.search(name) is not None


@lru_cache(_CACHED)
def is_launch_call(name: str) -> bool:
    """Whether a host call puts a kernel, a graph, a copy or a fill on a device (CUDA, HIP, MLU, NPU, XPU, MTIA)."""
    return (_LAUNCH_CALL.search(name) is not None and _NOT_LAUNCH.search(name) is None) or is_graph_launch(name)


_NUMBER = regex(r"(?:\.\d+)+$")


def without_number(name: str) -> str:
    """The name that variants of a kernel share: XLA numbers them, as in fusion.12 and loop_add_fusion.3.1."""
    return _NUMBER.sub("", name)


_DATALOADER = regex(r"^enumerate\(Data(?:Loader|Pipe)\)|data_?loader.*__next__", re.IGNORECASE)
_STEP = regex(r"^ProfilerStep#(\d{1,18})(?!\d)")


@lru_cache(_CACHED)
def is_dataloader(name: str) -> bool:
    """Whether a range or a Python frame is the wait for the next batch of a PyTorch DataLoader or DataPipe."""
    return _DATALOADER.search(name) is not None


#: Shorter names occur in any sentence.
_LEAST_MENTIONED = 4
_ITERATION = regex(r"Iteration (\d+)")


@lru_cache(_CACHED)
def step_number(name: str) -> int | None:
    """The number in an annotation of a step, whatever follows it; None for other names.

    >>> step_number("ProfilerStep#12"), step_number("aten::mm")
    (12, None)
    """
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


def iteration_number(name: str) -> int | None:
    """The number in the name of a step as Ascend's profiler marks it; None for other names.

    >>> iteration_number("Iteration 12"), iteration_number("Iteration Refresh 12")
    (12, None)
    """
    match = _ITERATION.fullmatch(name)
    return int(match.group(1)) if match else None


_LIBRARY = regex(
    r"^<|^(?:torch|torch_\w+|_pytest|multiprocessing|concurrent|importlib|asyncio)[/\\]|^nn\.Module"
    r"|^## Call CompiledFxGraph|site-packages|dist-packages"
    r"|^(?:threading|contextlib|functools|runpy|queue|_collections_abc|abc|enum|copy|typing|inspect|dataclasses)\.py"
)


def mentioned_name(texts: Iterable[str], names: Iterable[str]) -> str | None:
    """The longest of the names that the first of the texts to mention one mentions; None if none does.

    >>> mentioned_name(("Operator aten::mm_out",), ("aten::mm", "aten::mm_out", "mm"))
    'aten::mm_out'
    """
    longest_first = sorted((name for name in names if len(name) >= _LEAST_MENTIONED), key=len, reverse=True)
    return next((name for text in texts for name in longest_first if name in text), None)


@lru_cache(_CACHED)
def is_own_code(name: str) -> bool:
    """Whether a Python frame or range is the program's own, not the framework's or the standard library's."""
    return _LIBRARY.search(name) is None
