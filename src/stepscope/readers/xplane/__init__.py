"""XPlane profiles (`.xplane.pb`) of JAX, TensorFlow and PyTorch/XLA."""

from __future__ import annotations

from stepscope.core.patterns import regex
from stepscope.readers.formats import OBJECT, PACKING, Format, Sign

#: A message of a plane (its id, which may be missing, and its name) begins a profile of XLA.
_XPLANE = regex(rb"\n[\x80-\xff]{0,4}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12[\1-\x7f]/(?:host|device):")

_GPU = regex(rb'"/device:GPU:\d{1,5}"')

FORMATS = (
    Format(
        name="xplane",
        doc="XPlane of JAX, TensorFlow and PyTorch/XLA (.xplane.pb), also packed: GPU and CPU; TPU by its schema alone",
        module="xplane.reader",
        signs=(Sign(1.0, _XPLANE), Sign(0.9, regex(rb"\n"), path=regex(r"\.xplane\.pb"))),
        provides=(
            "devices", "tracks", "spans", "kernels", "transfers", "hlo_ops", "kernel_metrics", "allocations", "steps",
            "issues",
        ),
        copies=(regex(r"(?i)\.xplane\.pb" + PACKING), regex(r"(?i)\.trace\.json" + PACKING)),
        cacheable=True,
        endings=(".pb",),
    ),
    Format(
        name="xla_trace",
        doc="trace.json of JAX, TensorFlow and PyTorch/XLA on GPUs, also packed",
        module="xplane.trace_json",
        signs=(Sign(0.99, OBJECT, (b'"traceEvents"', b'"correlation_id"'), _GPU),),
        provides=("devices", "tracks", "spans", "kernels", "transfers", "hlo_ops", "steps", "issues"),
        cacheable=True,
        endings=(".json",),
    ),
)  # fmt: skip
