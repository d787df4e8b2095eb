"""Writes a big CSV as `ncu --csv --metrics …` prints it: kernels of a training step, again and again, seeded.

python make_ncu.py OUT [--launches 500000] [--metrics 4] [--page details|raw]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC",
)  # fmt: skip
LONG = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
#: The four of CASIO's recipe, then four that are often asked for too.
METRICS = (
    ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("gpu__time_duration.sum", "ns"),
    ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "%"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    ("dram__bytes.sum", "byte"),
    ("launch__registers_per_thread", "register/thread"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%"),
    ("smsp__inst_executed.sum", "inst"),
)
#: Names as long as those of a framework: a template, what it is made for, arguments.
TEMPLATES = (
    "ampere_fp16_s16816gemm_fp16_{n}x128_ldg8_relu_f2f_stages_64x3_tn",
    "void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm_f16_{n}x64_32x6_nn_align8>(T1::Params)",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::MulFunctor<float>, at::detail::Array<{n}>>(T3)",
    (
        "void at::native::elementwise_kernel<(int)128, void at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<"
        "float>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance {n})]>(int, T3)"
    ),
    "void at::native::reduce_kernel<(int){n}, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(T3)",
    "void <unnamed>::softmax_warp_forward<float, float, float, (int){n}, (bool)0, (bool)0>(T2 *, const T1 *, int, int)",
)
PREAMBLE = "==PROF== Connected to process 4711 (/usr/bin/python3.11)\n"


def main() -> None:
    """Writes the file, and prints what is in it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--launches", type=int, default=500_000)
    parser.add_argument("--metrics", type=int, default=4, choices=range(1, len(METRICS) + 1))
    parser.add_argument("--page", choices=("details", "raw"), default="details")
    given = parser.parse_args()
    total_ns = 0
    with given.out.open("w", encoding="utf-8", newline="\n") as out:
        out.write(PREAMBLE)
        for text, ns in (long_rows if given.page == "details" else wide_rows)(given.launches, METRICS[: given.metrics]):
            out.write(text)
            total_ns += ns
    facts = {"n_launches": given.launches, "total_ns": total_ns, "n_bytes": given.out.stat().st_size}
    print(json.dumps(facts))


def launches(n: int) -> Iterator[tuple[str, dict[str, str], int]]:
    """The quoted fields of each launch, its values by metric as printed, and its duration in ns."""
    draw = random.Random(1)
    names = [template.format(n=1 << k) for template in TEMPLATES for k in range(5, 10)]
    for i in range(n):
        name, ns = draw.choice(names), draw.randrange(3_000, 2_000_000)
        fields = (i, 4711, "python3.11", "127.0.0.1", name, 1, 7, f"({draw.choice((128, 256, 512))}, 1, 1)",
                  f"({draw.randrange(1, 5000)}, {draw.choice((1, 1, 8))}, 1)", 0, "8.0")  # fmt: skip
        values = {
            metric: f"{ns:,}" if unit == "ns" else f"{draw.random() * 100:.2f}" if unit == "%"
            else f"{draw.randrange(16, 10**4 if metric.startswith('launch') else 10**9):,}"
            for metric, unit in METRICS
        }  # fmt: skip
        yield ",".join(f'"{field}"' for field in fields), values, ns


def long_rows(n: int, metrics: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, int]]:
    """A row for each metric of each launch, below a header; and the duration of the launch."""
    yield ",".join(f'"{column}"' for column in (*COLUMNS, *LONG)) + "\n", 0
    for start, values, ns in launches(n):
        rows = (f'{start},"Command line profiler metrics","{m}","{unit}","{values[m]}"\n' for m, unit in metrics)
        yield "".join(rows), ns


def wide_rows(n: int, metrics: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, int]]:
    """A row for each launch, below a header and a row of units; and the duration of the launch."""
    yield ",".join(f'"{column}"' for column in (*COLUMNS, *(m for m, _ in metrics))) + "\n", 0
    yield ",".join(f'"{unit}"' for unit in (*[""] * len(COLUMNS), *(unit for _, unit in metrics))) + "\n", 0
    for start, values, ns in launches(n):
        yield start + "".join(f',"{values[m]}"' for m, _ in metrics) + "\n", ns


if __name__ == "__main__":
    main()
