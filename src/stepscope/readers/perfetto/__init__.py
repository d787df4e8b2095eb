"""Perfetto's protobuf traces: PyTorch's, rocprofv3's, and what other recorders write as track events."""

from __future__ import annotations

import re

from stepscope.core.patterns import regex
from stepscope.readers.formats import PACKING, Format, Sign

_FILE = regex(r"(?i)\.(?:pftrace|perfetto-trace|perfetto)" + PACKING)
#: A packet begins a trace of Perfetto: its first field is its time, clock, writer, flags or one of the usual contents.
_PACKET = regex(
    rb"\n[\x80-\xff]{0,4}[\1-\x7f](?:[\x40\x50\x18\x68]|[\x5a\x62\x32][\0-\xff]|\xd0\x03|\xe2\x03|\xda\x03|\x8a\x02|\xa2\x02"
    rb"|\x92\x03|\xaa\x08|\xca\x05|\xb8\x05|\xf8\x04|\xc8\x02)",
)


def _is_list_of_packets(head: bytes) -> bool:
    """Whether a message of field 1 follows the one before, as far as the first few are in the bytes."""
    at = 0
    for _ in range(4):
        size = re.compile(rb"\n([\x80-\xff]{0,4}[\0-\x7f])").match(head, at)
        if size is None:
            return at >= len(head)
        at = size.end() + sum((byte & 127) << 7 * i for i, byte in enumerate(size[1]))
    return True


FORMATS = (
    Format(
        name="perfetto",
        doc="Perfetto's protobuf (.pftrace, .perfetto-trace), also packed: PyTorch, rocprofv3, and other track events",
        module="perfetto.reader",
        signs=(
            Sign(0.95, _PACKET, path=_FILE),
            Sign(0.9, _PACKET, test=_is_list_of_packets),
            Sign(0.5, regex(rb"\n"), path=_FILE),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "allocations", "counters",
            "stacks", "steps", "issues",
        ),
        cacheable=True,
        endings=(".pftrace", ".perfetto-trace", ".perfetto"),
    ),
)  # fmt: skip
