"""How the plugin and its vendors' forks call an accelerator: the words of titles, keys and texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

_NOUNS = {"mlu": "MLU", "npu": "NPU", "xpu": "XPU", "mtia": "MTIA", "tpu": "TPU"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """`noun` is GPU for NVIDIA and AMD; `kind` is the device type of the trace."""

    kind: str

    @property
    def noun(self) -> str:
        """The word for one device, as in "GPU Utilization"."""
        return _NOUNS.get(self.kind, "GPU")

    @property
    def is_mlu(self) -> bool:
        """Whether Cambricon's fork would have been used."""
        return self.kind == "mlu"

    @property
    def uses_own_categories(self) -> bool:
        """Whether device work carries categories that no version of the plugin knew."""
        return self.kind in ("npu", "tpu")


def dialect_of(trace: Trace) -> Dialect:
    """The dialect of a trace, by the type of its accelerators; of a trace without any, the plugin's own."""
    kinds = trace.devices.filter(trace.devices["type"] != "cpu")["type"].cast(str).to_list()
    return Dialect(kinds[0] if kinds else "cuda")
