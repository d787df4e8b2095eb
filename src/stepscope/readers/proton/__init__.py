"""Triton Proton's trees of scopes and kernels."""

from __future__ import annotations

from stepscope.core.patterns import regex
from stepscope.readers.formats import KERNEL_METRICS, Format, Sign

FORMATS = (
    Format(
        name="proton",
        doc="Triton Proton: trees of scopes and kernels with times and user metrics (.hatchet)",
        module="proton.reader",
        signs=(
            Sign(
                0.95,
                regex(rb"\s*\["),
                (b'"children"', b'"frame"', b'"metrics"'),
                test=lambda head: b'"ph"' not in head,
            ),
        ),
        provides=KERNEL_METRICS,
        cacheable=True,
        endings=(".hatchet",),
    ),
)  # fmt: skip
