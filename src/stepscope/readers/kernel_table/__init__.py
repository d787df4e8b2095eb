"""Tables of kernels as text."""

from __future__ import annotations

from stepscope.core.patterns import regex
from stepscope.readers.formats import KERNEL_METRICS, Format, Sign

FORMATS = (
    Format(
        name="kernel-table",
        doc="tables of kernels as text: `Kernel | Latency Tensor DRAM`, a line for each launch",
        module="kernel_table.reader",
        signs=(Sign(1.0, regex(rb"[^\S\n]*Kernel[^\S\n]+Latency[^\S\n]+Tensor[^\S\n]+DRAM[ \t\r]*(?:\n|\Z)")),),
        provides=KERNEL_METRICS,
        cacheable=True,
    ),
)  # fmt: skip
