"""One Chrome-trace event: the fields that stepscope reads, and its category. Other fields are not decoded."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from math import isfinite
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from stepscope.readers.common.columns import ABSENT

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
    # rocprofv3's, in Perfetto's files
    "kernel_dispatch": "kernel",
    "memory_copy": "memcpy",
    "hip_api": "runtime",
    "hsa_api": "driver",
    "marker_api": "user_range",
}
_KINDS = {
    "operator": OPERATOR, "user_range": OPERATOR, "python": FRAME, "runtime": CALL, "driver": CALL,
    "kernel": DEVICE, "memcpy": DEVICE, "memset": DEVICE, "sync": DEVICE, "device_range": LANE,
}  # fmt: skip
#: Stands for an absent value that is kept as JSON.
NOTHING = Raw(b"")
_TEXT = {"ph", "cat", "name"}
_TIMES = {"ts", "dur"}


@cache
def category_of(cat: str | None) -> str:
    """Our category for the recorder's; `other` if it is unknown."""
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


@cache
def kind_of(cat: str | None) -> int:
    """Which arguments to read of events of the recorder's category."""
    text = (cat or "").lower()
    if text == "cuda_profiler_range":
        return METRICS
    if text == "python":  # functions in traces of the autograd profiler, which have an operator's arguments
        return OPERATOR
    return _KINDS.get(category_of(cat), PLAIN)


class Args(Struct, gc=False, frozen=True):
    """`args` of an event. The order is that of Kineto's writer, which lets the decoder match keys in sequence."""

    external_id: int = field(name="External id", default=ABSENT)
    external_id_old: int = field(name="external id", default=ABSENT)
    concrete_inputs: Raw = field(name="Concrete Inputs", default=NOTHING)
    input_types: Raw = field(name="Input type", default=NOTHING)
    input_dims: Raw = field(name="Input Dims", default=NOTHING)
    input_dims_old: Raw = field(name="Input dims", default=NOTHING)
    sequence: int = field(name="Sequence number", default=ABSENT)
    forward_thread: int = field(name="Fwd thread id", default=ABSENT)
    call_stack: str = field(name="Call stack", default="")
    kernel: str | None = None  # of launches, by ROCm
    device: int | str | None = None
    stream: int | str | None = None
    correlation: int | None = ABSENT
    awaited_stream: int | None = field(name="wait_on_stream", default=None)
    awaited_record: int | None = field(name="wait_on_cuda_event_record_corr_id", default=None)
    registers: int = field(name="registers per thread", default=ABSENT)
    shared_bytes: int = field(name="shared memory", default=ABSENT)
    blocks_per_sm: float | None = field(name="blocks per SM", default=None)
    warps_per_sm: float | None = field(name="warps per SM", default=None)
    grid: Raw = NOTHING
    block: Raw = NOTHING
    occupancy: float | None = field(name="est. achieved occupancy %", default=None)
    size_bytes: int | str | None = field(name="bytes", default=None)
    bandwidth: float | str | None = field(name="memory bandwidth (GB/s)", default=None)
    total_reserved: int | None = field(name="Total Reserved", default=None)
    total_allocated: int | None = field(name="Total Allocated", default=None)
    alloc_bytes: int | str | None = field(name="Bytes", default=None)
    device_index: int | None = field(name="Device Id", default=None)
    device_type: int | None = field(name="Device Type", default=None)
    address: int | None = field(name="Addr", default=None)
    python_parent_id: int | None = field(name="Python parent id", default=None)
    python_id: int | None = field(name="Python id", default=None)
    module_id: int | None = field(name="Python module id", default=None)
    collective: str | None = field(name="Collective name", default=None)
    dtype: str | None = None
    in_elements: int | None = field(name="In msg nelems", default=None)
    out_elements: int | None = field(name="Out msg nelems", default=None)
    group: str | None = field(name="Process Group Name", default=None)
    group_size: int | None = field(name="Group size", default=None)
    group_ranks: str | None = field(name="Process Group Ranks", default=None)
    group_description: str | None = field(name="Process Group Description", default=None)
    src_rank: int | None = field(name="Src Rank", default=None)
    dst_rank: int | None = field(name="Dst Rank", default=None)
    seq: int | None = field(name="Seq", default=None)
    algorithm: Raw = field(name="alg_type", default=NOTHING)  # of HCCL's collectives, as are the next two
    elements: Raw = field(name="count", default=NOTHING)
    element_type: Raw = field(name="data_type", default=NOTHING)
    kind: Raw = NOTHING
    name: str | None = None
    labels: str | None = None


_NO_ARGS = Args()


class Event(Struct, gc=False):
    """One element of `traceEvents`. `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    id: int | str | None = None
    args: Args = _NO_ARGS


class ExactEvent(Struct, gc=False):
    """As Event, with times as decimals: a double cannot hold a Unix time in µs with three decimals."""

    ph: str = ""
    cat: str | None = None
    name: str | None = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    id: int | str | None = None
    args: Args = _NO_ARGS


class RawEvent(Struct, gc=False):
    """An event's `args` undecoded, for events whose keys are data (counters, hardware metrics)."""

    args: Raw = NOTHING


AnyEvent = Event | ExactEvent

#: The attribute of `Args` that holds an argument, by the argument's name.
ATTRIBUTES = {f.encode_name: f.name for f in msgspec.structs.fields(Args)}
_ARG_TYPES = {f.encode_name: f.type for f in msgspec.structs.fields(Args)}


def coerce(raw: dict[str, Any], kind: type[AnyEvent]) -> AnyEvent:
    """An event from untyped JSON, field by field: what does not fit its type is left out."""
    fields: dict[str, Any] = {}
    for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id"):
        value = raw.get(key)
        if value is None or isinstance(value, bool | dict | list):
            continue
        if key in _TEXT:
            fields[key] = str(value)
        elif key in _TIMES:
            fields[key] = _exact(value) if kind is ExactEvent else _number(value)
        else:
            fields[key] = value if isinstance(value, int | str) else str(value)
    args = raw.get("args")
    if isinstance(args, dict):
        fields["args"] = _coerce_args(args)
    return kind(**fields)


def _exact(value: float | str) -> Decimal | None:
    """The decimal that prints like the value; None if it is no finite number."""
    try:
        number = Decimal(value.strip() if isinstance(value, str) else repr(value))
    except ArithmeticError:
        return None
    return number if number.is_finite() else None


def _number(value: float | str) -> float | None:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _coerce_args(args: dict[str, Any]) -> Args:
    fields: dict[str, Any] = {}
    for key, value in args.items():
        name = ATTRIBUTES.get(key)
        if name is None or value is None:
            continue
        try:
            fields[name] = msgspec.json.decode(msgspec.json.encode(value), type=_ARG_TYPES[key], strict=False)
        except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeError):
            continue
    return Args(**fields)
