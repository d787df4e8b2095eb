"""What a Paddle profile holds, in columns and before any of stepscope's own words: the same from protobuf and JSON.

Times are ns on the recorder's clock (Unix time in all files seen). Rows of `host` are in the order of the file: thread
by thread, each breadth first. A link is a row of the table that it points into, −1 for the root of its thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Columns = Mapping[str, NDArray[Any]]

#: Event types by their number in protobuf; JSON has these names. In Paddle 2.x number 15 was MluRuntime.
TYPES = (
    "Operator", "Dataloader", "ProfileStep", "CudaRuntime", "Kernel", "Memcpy", "Memset", "UserDefined",
    "OperatorInner", "Forward", "Backward", "Optimization", "Communication", "PythonOp", "PythonUserDefined",
    "DygraphKernelLaunch", "StaticKernelLaunch",
)  # fmt: skip
MEMORY_TYPES = ("Allocate", "Free", "ReservedAllocate", "ReservedFree")

#: The columns of each table. Those of names, types and texts are numbers of `Recording.names`, `.types` and `.texts`,
#: rates are fractions, the others whole numbers; ABSENT and NaN stand for what is unknown.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "host": ("name", "type", "start", "end", "pid", "tid", "parent"),
    "runtime": ("name", "type", "start", "end", "pid", "tid", "correlation", "host"),
    "device": ("name", "type", "start", "end", "device", "stream", "correlation", "runtime"),
    "kernels": (
        "device", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes",
        "blocks_per_sm", "warps_per_sm", "est_occupancy_ratio",
    ),
    "transfers": ("device", "bytes", "src", "dst", "bytes_per_s"),
    "memory": (
        "ts", "type", "address", "bytes", "pid", "tid", "place", "allocated", "reserved", "peak_allocated",
        "peak_reserved", "host",
    ),
    "arguments": ("host", "shapes", "types", "stack"),
}  # fmt: skip


@dataclass(slots=True)
class Recording:
    """One recorded cycle: tables of COLUMNS, the texts that they number (the first one empty), what the file says."""

    host: Columns
    runtime: Columns
    device: Columns
    kernels: Columns
    transfers: Columns
    memory: Columns
    arguments: Columns
    names: list[str]
    types: list[str]
    texts: list[str]
    version: str | None = None
    span_index: int | None = None
    extra: dict[str, str] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)

    @property
    def n_events(self) -> int:
        """Events of all kinds."""
        return sum(int(table["type"].size) for table in (self.host, self.runtime, self.device, self.memory))
