"""The plugin's lists of names by which it recognises things, as of 2021 to 2023."""

from __future__ import annotations

#: Wrappers of a model, not operators.
EXCLUDED = ("DataParallel.forward", "DistributedDataParallel.forward")
#: The plugin's list, not ours: see `core.collectives`.
_COLLECTIVES = ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
#: Libraries whose host operators count as communication.
LIBRARIES = ("nccl", "gloo", "cncl")

#: Parts of the names of kernels that use tensor cores. Source: the plugin's list, which comes from NVIDIA's PyProf.
TENSOR_CORE_KERNELS = (
    "h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "dgrad_1x1_stride_2x2", "first_layer_wgrad_kernel",
    "conv1x1", "conv2d_c1_k1", "direct_group", "xmma_implicit_gemm", "xmma_sparse_conv",
    "xmma_warp_specialized_implicit_gemm", "xmma_gemm", "xmma_sparse_gemm", "c1688",
)  # fmt: skip
#: Operators that can use tensor cores. Source: the plugin's list, which comes from PyTorch's autocast operators.
TENSOR_CORE_OPERATORS = frozenset((
    *("aten::" + name for name in (
        "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "addmm",
        "addmv", "addr", "matmul", "mm", "mv", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul",
        "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell",
        "rnn_tanh_cell", "rnn_relu_cell", "cudnn_convolution_transpose_backward",
        "cudnn_convolution_backward_weight", "addmm_", "cudnn_convolution_transpose_backward_weight",
        "cudnn_convolution_transpose_backward_input", "cudnn_convolution_backward_input",
        "cudnn_convolution_backward",
    )),
    "CudnnConvolutionBackward", "BmmBackward0", "CudnnConvolutionTransposeBackward", "MmBackward", "AddmvBackward",
    "MvBackward", "AddmmBackward", "AddbmmBackward",
))  # fmt: skip

BACKWARD_PREFIX = "autograd::engine::evaluate_function:"
ACCUMULATE_GRAD = BACKWARD_PREFIX + " torch::autograd::AccumulateGrad"


def is_data_loading(name: str) -> bool:
    """Whether a range is the wait for the next batch."""
    return (name.startswith("enumerate(DataLoader)#") and name.endswith(".__next__")) or name.startswith(
        "enumerate(DataPipe)#"
    )


def is_optimizer(name: str) -> bool:
    """Whether a range is a step of the optimizer."""
    return name.startswith("Optimizer.step")


def library(name: str) -> str | None:
    """The library of a host operator that is a collective; None for all others."""
    prefix, colon, rest = name.partition(":")
    return prefix if colon and prefix in LIBRARIES and rest in _COLLECTIVES else None


def is_collective(name: str) -> bool:
    """Whether a host operator is a collective."""
    return library(name) is not None


def uses_tensor_cores(kernel: str) -> bool:
    """Whether the plugin knows a kernel by its name as one that uses tensor cores."""
    return any(part in kernel for part in TENSOR_CORE_KERNELS)


def is_eligible(operator: str) -> bool:
    """Whether an operator is on the plugin's list of those that can use tensor cores."""
    return operator in TENSOR_CORE_OPERATORS
