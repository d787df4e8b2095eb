"""MFU at a glance: one ratio for the report's bar, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analyses.common.device_steps import windows_of
from stepscope.analyses.costs.mfu import NO_PRODUCTS, mfu_of
from stepscope.analyses.costs.roofline import roofs_of
from stepscope.core.units import percent
from stepscope.reports._summary import Lack

if TYPE_CHECKING:
    import polars as pl

    from stepscope.core.trace import Trace

#: With less of the products' time known the figure would say more of the recording than of the run.
_LEAST_KNOWN = 0.5


def mfu_at_a_glance(trace: Trace, work: pl.DataFrame) -> tuple[dict[str, float], tuple[Lack, ...]]:
    """`mfu_ratio` and `mfu_known_ratio` over all steps, as in `show mfu --by all`; or a sentence that tells why not.

    Neither where no kernel is a product of matrices. `work` is what `device_work` returns.
    """
    if trace.ops.is_empty() or not (work["category"] == "kernel").any():
        return {}, ()
    windows = windows_of(trace.spans, trace.tracks, trace.steps, work)
    roofs = roofs_of(trace.devices, None, None)
    found = mfu_of(work, windows, trace.spans, trace.ops, trace.kernels, roofs, by="all").row(0, named=True)
    ratio, known, reason = found["mfu_ratio"], found["known_ratio"], found["reason"]
    if reason == NO_PRODUCTS or not found["window_ns"]:
        return {}, ()
    if ratio is not None and known is not None and known >= _LEAST_KNOWN:
        return {"mfu_ratio": ratio, "mfu_known_ratio": known}, ()
    if ratio is not None:
        reason = f"the operations of {percent(known)} of the time in products of matrices are known"
    return {}, (Lack("mfu", f"MFU is not told (show mfu): {reason}."),)
