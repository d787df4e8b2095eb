"""Which of stepscope's categories an event belongs to, by the recorder's category and name."""

from __future__ import annotations

from functools import cache

# What a reader looks for in an event's arguments. Plain numbers: they index arrays.
PLAIN, OPERATOR, CALL, DEVICE, LANE, METRICS, FRAME = range(7)

#: The recorder's category (lower case) → ours.
CATEGORY = {
    "cpu_op": "operator",
    "operator": "operator",
    "user_annotation": "user_range",
    "gpu_user_annotation": "device_range",
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "runtime": "runtime",
    "cuda_sync": "sync",
    "python_function": "python",
    "python": "python",
    "overhead": "overhead",
    "mtia_ccp_events": "kernel",
    "cuda_profiler_range": "device_range",
}


@cache
def category_of(cat: str | None) -> str:
    """Our category for the recorder's; `other` for what is not known."""
    text = (cat or "").lower()
    if text in CATEGORY:
        return CATEGORY[text]
    if text.endswith("_runtime"):
        return "runtime"
    if text.endswith("_driver"):
        return "driver"
    if text.endswith(("_memcpy", "_memset")):
        return text[-len("memcpy") :]
    if text.endswith("_user_annotation"):
        return "device_range"
    return "other"


_KINDS = {
    "operator": OPERATOR, "user_range": OPERATOR, "python": FRAME, "runtime": CALL, "driver": CALL,
    "kernel": DEVICE, "memcpy": DEVICE, "memset": DEVICE, "sync": DEVICE, "device_range": LANE,
}  # fmt: skip


@cache
def kind_of(cat: str | None) -> int:
    """Which arguments to read of events of the recorder's category."""
    text = (cat or "").lower()
    if text == "cuda_profiler_range":
        return METRICS
    if text == "python":  # functions in traces of the autograd profiler, which have an operator's arguments
        return OPERATOR
    return _KINDS.get(category_of(cat), PLAIN)
