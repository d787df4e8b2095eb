"""PaddlePaddle's profiles, 2.x and 3.x: protobuf (.pb) and Chrome-tracing JSON."""

from __future__ import annotations

from stepscope.core.patterns import regex
from stepscope.readers.formats import OBJECT, PACKING, Format, Sign

#: The first field of a profile is the version of its schema, three numbers with dots; then comes the cycle's index.
PADDLE_PROTOBUF = regex(rb"\n[\x05-\x0b]\d{1,3}\.\d{1,3}\.\d{1,3}(?:\x10|\x1a|\"|\*|\Z)")

FORMATS = (
    Format(
        name="paddle",
        doc="PaddlePaddle profiles: .pb and Chrome-tracing .json, also packed; neither Paddle nor protobuf is needed",
        module="paddle.reader",
        signs=(
            Sign(1.0, PADDLE_PROTOBUF),
            Sign(0.99, OBJECT, (b'"schemaVersion"',), regex(rb'"span_ind(?:e)?x"\s*:'), within=4096),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "allocations", "reservations",
            "stacks", "steps", "issues",
        ),
        copies=(regex(r"(?i)\.pb" + PACKING), regex(r"(?i)\.json" + PACKING)),
        cacheable=True,
        endings=(".pb", ".json"),
    ),
)  # fmt: skip
