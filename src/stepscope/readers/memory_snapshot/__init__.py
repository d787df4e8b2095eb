"""Memory snapshots of PyTorch."""

from __future__ import annotations

from stepscope.readers.formats import PICKLE, Format, Sign

FORMATS = (
    Format(
        name="memory-snapshot",
        doc="memory snapshots of PyTorch (.pickle), also packed, read as plain data; see memory.md",
        module="memory_snapshot.reader",
        signs=(Sign(1.0, PICKLE, (b"segments", b"total_size")), Sign(0.3, PICKLE)),
        provides=("devices", "memory_events", "memory_segments", "memory_blocks", "stacks", "issues"),
        cacheable=True,
        endings=(".pickle", ".pkl"),
    ),
)  # fmt: skip
