"""One report with everything that goes wrong in names and numbers, and snapshots of it as files."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from stepscope.core.report import Bar, Block, Finding, Note, Part, Report
from stepscope.core.schema import ISSUES
from stepscope.core.table import Column, Name, Table

NAMES = (
    "[bold red]ampere_sgemm[/bold red] `x` | $y$ *z* __global__ <script>&amp;",
    "\x1b[31mred\x1b[0m\x9b2J\nnext line\ttab\u202eright to left\u2028",
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
        "(int, at::native::CUDAFunctor_add<float>)"
    ),
    "内核_矩阵乘法 é ω 🚀",
    None,
    "",
)  # fmt: skip
WORK = Table(
    "kernels",
    "what each kernel cost",
    (
        Column("name", Name, "kernel", key=True),
        Column("stream", pl.Int64(), "stream", key=True),
        Column("n_calls", pl.Int64(), "how often"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("total_bytes", pl.Int64(), "moved", "bytes"),
        Column("busy_ratio", pl.Float64(), "share", "ratio"),
        Column("exposed_communication_ns", pl.Float64(), "waits", "ns"),
        Column("blocks_per_sm", pl.Float64(), "blocks"),
        Column("tensor_core", pl.Boolean(), "uses matrix units"),
        Column("shapes", pl.List(pl.Int64()), "sizes"),
    ),
)
FRAME = WORK.conform(
    pl.DataFrame(
        {
            "name": NAMES,
            "stream": [7, 0, None, -1, 123456, 7],
            "n_calls": [1, 0, None, 12_345, 2**62, 3],
            "total_ns": [73_000_000, 0, None, 2**63 - 1, 999, 1],
            "total_bytes": [0, 1, 1024, 2**62, None, 3_200_000],
            "busy_ratio": [0.0, 1.0, None, float("nan"), 0.000001, 0.17],
            "exposed_communication_ns": [0.5, float("inf"), None, -5.0, 9e18, 2.5e6],
            "blocks_per_sm": [0.0, 1e-9, None, float("nan"), 1e12, 3.14159],
            "tensor_core": [True, False, None, True, False, None],
            "shapes": [[1, 2], [], None, [None, 2**40], [0], [3]],
        }
    )
)


@pytest.fixture
def block():
    return Block("Kernels", WORK, FRAME, command="show kernels", note="5 of 1,234 kernels; [dim]markup[/dim]")


@pytest.fixture
def report(block):
    issues = {"code": ["bad|ts", "n"], "severity": ["warning", "info"], "count": [1234, 1], "example": ["a\nb", None]}
    return Report(
        headline="PyTorch 2.9 · 8 × NVIDIA H100 80GB · ranks 0–7 · \x1b]0;title\x07[red]run[/red] · 4.31 s recorded · "
        "1.9 M events read in 2.1 s",
        bars=(
            Bar(
                "Step",
                "431 ms ±2.1 %",
                (Part("computation", 0.61), Part("exposed communication", 0.17), Part("idle", 0.22)),
                (
                    Note("device busy 78 % (rank 3: 71 %)", "device use", "show device-utilisation"),
                    Note("peak memory 61 of 80 GiB (rank 0)", "memory", "show memory"),
                ),
            ),
            Bar("Nothing", "0 ns", (Part("computation", 0.0), Part("idle", float("nan")))),
            Bar("Odd", "?", (Part("computation", 0.7), Part("copies", 0.6), Part("idle", -1.0))),
            Bar("Bare", "no parts"),
        ),
        findings=(
            Finding(
                "Exposed all-reduce of gradients, not hidden by the backward pass",
                ("Rank 3 arrives last in 96 % of them: the others wait 58 ms.", "→ overlap it"),
                73_000_000, "per step", 0.17, "show overlap",
            ),
            Finding(f"The kernel {NAMES[0]} costs more than its name, which goes on and on, would let anybody expect",
                    (), 5.5, "per step", None, "show kernels"),
            Finding("No number is known"),
        ),
        tables=(block,),
        quality=("214 kernels have no launch record (0.3 % of device time).", "rank [5] ends 2 steps early."),
        issues=ISSUES.conform(pl.DataFrame(issues)),
        meta={"ranks": [0, 1], "path": Path("run42"), "share": float("nan"), "nested": {1: (2, None)}},
    )  # fmt: skip


@pytest.fixture
def snapshot():
    """Compare with a file; UPDATE_SNAPSHOTS=1 writes it instead, for a human to read before it is kept."""
    folder = Path(__file__).parent / "snapshots"

    def check(text: str, name: str) -> None:
        path = folder / name
        if os.environ.get("UPDATE_SNAPSHOTS"):
            folder.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        assert text == path.read_bytes().decode()

    return check
