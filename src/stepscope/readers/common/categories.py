"""What a span is, by its name, where the recorder's own category says less: for readers of several formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core import names
from stepscope.core.schema import CATEGORIES
from stepscope.readers.common.span_builder import CODE

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How the names of device records begin that order others or mark something, and do no work.
_SYNC_RECORDS = (
    "event_", "notify", "event sync", "stream_wait", "wait", "write value", "profiling_enable", "profiling_disable",
    "place_holder",
)  # fmt: skip

#: How Ascend's profilers list calls that wait for the device, next to many that only lead to others.
_ASCEND_WAITS = "AscendCL@aclrtSynchronize"

#: HCCL's names of element types, and those that PyTorch records of collectives.
HCCL_TYPES = {
    "FP32": "Float", "FP16": "Half", "BFP16": "BFloat16", "FP64": "Double", "INT8": "Char", "INT16": "Short",
    "INT32": "Int", "INT64": "Long", "UINT8": "Byte", "UINT16": "UInt16", "UINT32": "UInt32", "UINT64": "UInt64",
}  # fmt: skip


def by_name(category: NDArray[np.uint8], name: NDArray[np.unsignedinteger[Any]], texts: list[str]) -> NDArray[np.uint8]:
    """Category codes of spans, refined by their names (codes of `texts`): steps, modules, loaders, copies, waits."""
    unset = 255
    rules = np.full((len(CATEGORIES), len(texts) or 1), unset, np.uint8)
    for i, text in enumerate(texts):
        if text.startswith("ProfilerStep#"):
            rules[[CODE["operator"], CODE["user_range"], CODE["other"]], i] = CODE["step"]
        elif text.startswith("nn.Module: "):
            rules[CODE["python"], i] = CODE["module"]
        elif names.is_dataloader(text):
            rules[[CODE["operator"], CODE["user_range"]], i] = CODE["dataloader"]
        elif text.startswith(_ASCEND_WAITS):
            rules[CODE["other"], i] = CODE["runtime"]
        elif (kind := odd_device_work(text)) is not None:
            rules[CODE["kernel"], i] = CODE[kind]
    refined = rules[category, name]
    return np.where(refined == unset, category, refined)


def odd_device_work(name: str) -> str | None:
    """Device records that are no kernels although listed with them (MTIA, Ascend, rocmProfileData)."""
    lowered = name.lower()
    if lowered.startswith(_SYNC_RECORDS):
        return "sync"
    if lowered.startswith("reduce_async"):  # a step of one of HCCL's collectives
        return "device_range"
    if lowered.startswith(("memcpy", "dma", "sdma", "memory copy", "copyhostto", "copydeviceto")):
        return "memcpy"
    return "memset" if lowered.startswith(("memset", "fillbuffer")) else None


def without_repeats_of_hccl(
    category: NDArray[np.uint8], parent: NDArray[np.int64], name: NDArray[np.unsignedinteger[Any]], texts: list[str]
) -> NDArray[np.uint8]:
    """The categories, where an operator of HCCL that torch_npu records within one of its name is no call of its own."""
    of_hccl = np.array([text.startswith("Hccl") for text in texts], np.bool_)
    rows = np.flatnonzero((category == CODE["operator"]) & (parent >= 0))
    rows = rows[of_hccl[name[rows]] & (name[rows] == name[parent[rows]])]
    repeated = category.copy()
    repeated[rows] = CODE["other"]
    return repeated
