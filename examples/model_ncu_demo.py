"""Writes demo-ncu/decoder.csv.gz: what `ncu --csv --metrics …` prints, for a decoder of two layers on an H100.

    python model_ncu_demo.py demo-ncu/decoder.csv.gz

The kernels are those of an unfused model in PyTorch's eager mode (RMSNorm, rotary embedding, FlashAttention, gated MLP;
4 × 1,024 tokens, width 2,048, bfloat16). Nothing was measured: durations and counters follow from what each kernel
computes and moves, and from how near to the device's peaks kernels of its kind usually come.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS, WIDTH, HEADS, HIDDEN, VOCABULARY, LAYERS = 4096, 2048, 16, 5632, 32000, 2
DEVICE, PEAK, BANDWIDTH, FLOOR_NS = "NVIDIA H100 80GB HBM3", 989.4e12, 3.35e12, 1_800.0
#: Of what was just written so much is read from the cache.
CACHED = 0.3
N = TOKENS * WIDTH

HEADER = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
)  # fmt: skip
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}<{}>, std::array<char *, {}ul>>(int, T2, T3)"
)
CONVERTED = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda({} x)], std::array<char *, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>>(int, T1, T2, T4, T5, T6, T7)"  # noqa: E501
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4>>(T3)"  # noqa: E501
CAT = "void at::native::<unnamed>::CatArrayBatchedCopy_vectorized<at::native::<unnamed>::OpaqueType<2>, unsigned int, 4, 128, 1>(char *, at::native::<unnamed>::CatArrInputTensorMetadata<T1, T2, T4, T5>, at::native::<unnamed>::TensorSizeStride<T2, 4>, int, T2)"  # noqa: E501
GEMM = "nvjet_tst_{}_64x4_2x1_v_bz_coopA_TNT"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, 0, 0, cutlass::bfloat16_t>, 0, 1, 0, 0, 1, 1, 0, 0>(pytorch_flash::Flash_fwd_params)"  # noqa: E501
BF16, FP32 = "c10::BFloat16", "float"


@dataclass(frozen=True)
class Kernel:
    """One launch: operations (on tensor cores or not), bytes read and written, how near its kind comes to the peaks."""

    name: str
    read: float
    written: float
    flop: float = 0.0
    tensor: bool = False
    of_peak: float = 0.8

    @property
    def dur_ns(self) -> float:
        """The longer of computing and moving, at its share of the peaks, on top of what any launch takes."""
        compute = self.flop / (PEAK if self.tensor else 66.9e12)
        return FLOOR_NS + 1e9 * max(compute, self.moved / BANDWIDTH) / self.of_peak

    @property
    def moved(self) -> float:
        """Bytes between the device and its memory."""
        return self.read * (1 - CACHED) + self.written


def pointwise(functor: str, kind: str, inputs: int, size: float = N) -> Kernel:
    """A kernel that works on one element at a time."""
    element = 2 if kind == BF16 else 4
    return Kernel(POINTWISE.format(functor, kind, inputs + 1), inputs * size * element, size * element, size)


def product(tile: str, rows: int, columns: int, depth: int, of_peak: float = 0.72) -> Kernel:
    """A product of matrices in bfloat16."""
    read = 2 * (rows * depth + depth * columns)
    return Kernel(GEMM.format(tile), read, 2 * rows * columns, 2 * rows * columns * depth, tensor=True, of_peak=of_peak)


def norm() -> Iterator[Kernel]:
    """RMSNorm as models write it: in float32, an operator for each operation."""
    yield Kernel(CONVERTED.format(BF16), 2 * N, 4 * N, N)
    yield pointwise("pow_tensor_scalar_kernel_impl", FP32, 1)
    yield Kernel(MEAN, 4 * N, 4 * TOKENS, N, of_peak=0.7)
    yield pointwise("CUDAFunctorOnSelf_add", FP32, 1, TOKENS)
    yield pointwise("rsqrt_kernel_cuda", FP32, 1, TOKENS)
    yield pointwise("MulFunctor", FP32, 2)
    yield Kernel(CONVERTED.format(FP32), 4 * N, 2 * N, N)
    yield pointwise("MulFunctor", BF16, 2)


def rotary() -> Iterator[Kernel]:
    """Rotary embedding of queries and of keys: x · cos + rotated x · sin."""
    for _ in range(2):
        yield pointwise("MulFunctor", BF16, 2)
        yield pointwise("neg_kernel_cuda", BF16, 1, N / 2)
        yield Kernel(CAT, 2 * N, 2 * N, of_peak=0.45)
        yield pointwise("MulFunctor", BF16, 2)
        yield pointwise("CUDAFunctor_add", BF16, 2)


def model() -> Iterator[Kernel]:
    """All launches in order."""
    for _ in range(LAYERS):
        yield from norm()
        for _ in range(3):
            yield product("128x128", TOKENS, WIDTH, WIDTH, 0.55)
        yield from rotary()
        pairs = TOKENS * 1024 / 2 * HEADS
        yield Kernel(FLASH, 6 * N, 2 * N, 4 * pairs * 128, tensor=True, of_peak=0.4)
        yield product("128x128", TOKENS, WIDTH, WIDTH, 0.55)
        yield pointwise("CUDAFunctor_add", BF16, 2)
        yield from norm()
        for _ in range(2):
            yield product("128x256", TOKENS, HIDDEN, WIDTH)
        yield pointwise("silu_kernel", BF16, 1, TOKENS * HIDDEN)
        yield pointwise("MulFunctor", BF16, 2, TOKENS * HIDDEN)
        yield product("128x256", TOKENS, WIDTH, HIDDEN)
        yield pointwise("CUDAFunctor_add", BF16, 2)
    yield from norm()
    yield product("128x256", TOKENS, VOCABULARY, WIDTH, 0.78)
    yield Kernel(CONVERTED.format(BF16), 2 * TOKENS * VOCABULARY, 4 * TOKENS * VOCABULARY, TOKENS * VOCABULARY)


def metrics(kernel: Kernel) -> Iterator[tuple[str, str, str]]:
    """Name, unit and value of each counter, as printed."""
    seconds = kernel.dur_ns / 1e9
    tensor = kernel.flop / PEAK / seconds if kernel.tensor else 0.0
    dram = kernel.moved / BANDWIDTH / seconds
    plain = 0.0 if kernel.tensor else kernel.flop
    yield "device__attribute_display_name", "", DEVICE
    yield "gpu__time_duration.sum", "ns", f"{kernel.dur_ns:,.0f}"
    yield "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "%", f"{100 * tensor:.2f}"
    yield "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%", f"{100 * dram:.2f}"
    yield "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", f"{100 * max(tensor, 0.6 * dram):.2f}"
    yield "dram__bytes_read.sum", "byte", f"{kernel.read * (1 - CACHED):,.0f}"
    yield "dram__bytes_write.sum", "byte", f"{kernel.written:,.0f}"
    yield "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", f"{kernel.flop if kernel.tensor else 0:,.0f}"
    yield "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", f"{plain:,.0f}"


def main() -> None:
    """Write the file that was named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="the file to write, gzipped CSV")
    text = io.StringIO()
    text.write("==PROF== Connected to process 4242 (/usr/bin/python3.11)\n")
    rows = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    rows.writerow(HEADER)
    for i, kernel in enumerate(model()):
        blocks = max(int(kernel.written) // 65_536, 1)
        launch = (i, 4242, "python3.11", "127.0.0.1", kernel.name, 1, 7, "(128, 1, 1)", f"({blocks}, 1, 1)", 0, "9.0")
        rows.writerows((*launch, "Command line profiler metrics", *metric) for metric in metrics(kernel))
    text.write("==PROF== Disconnected from process 4242\n")
    with gzip.GzipFile(parser.parse_args().output, "wb", mtime=0) as file:
        file.write(text.getvalue().encode())


if __name__ == "__main__":
    main()
