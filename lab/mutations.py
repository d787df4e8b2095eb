"""Traces to begin with, and ways to damage them, all from one random.Random, so that it can be repeated."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import json
import lzma
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Document = dict[str, Any]

EXAMPLES = Path(__file__).parents[1] / "examples"
EVENTS_KEPT = 150

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**53 + 1, 2**63, 2**64, -(2**62), 10**30, 0.5, -0.25, 1e300, -1e300,
    1e15 + 0.001, 5e-324,
    float("nan"), float("inf"), "", "x", "7", "-3", "1.5", "NaN", "1e999", "0x10", "\u0663", "\ud800", "a\0b", "},{",
    "é" * 300, "-", "--5",
    [], {}, [[]], [1, [2, 3]], {"a": {"b": [{}]}}, [2**40, 1, 1], "[2, 3]", [[2, 3], "x", None],
)  # fmt: skip
ODD_BYTES = (
    b"NaN", b"-Infinity", b"null", b"true", b'""', b"-1", b"1e400", b"1e999999", b"[]", b"{}", b"},{", b"]", b"[",
    b"}", b"{", b'"', b",", b":",
    b"\\", b"\\ud800", b"\\u00", b"\xff", b"\xc3", b"\0", b"\x1b", b"9" * 40, b'"ts":', b'"args":{', b"/* */",
    b"\xef\xbb\xbf", b" " * 5000,
    b"[" * 3000, b'{"a":' * 3000,
)  # fmt: skip
PHASES = ("X", "B", "E", "b", "e", "n", "i", "I", "C", "M", "s", "t", "f", "P", "N", "", "XX")
CATS = (
    "cpu_op", "Operator", "user_annotation", "gpu_user_annotation", "kernel", "Kernel", "gpu_memcpy", "gpu_memset",
    "cuda_runtime", "cuda_driver",
    "cuda_sync", "python_function", "overhead", "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_npu", "mtia_ccp_events",
    "cuda_profiler_range",
    "Trace", "", None,
)  # fmt: skip
NAMES = (
    "", "ProfilerStep#5", "ProfilerStep#99999999999999999999", "ProfilerStep#-1", "ProfilerStep#", "[memory]",
    "nccl:all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "void at::native::elementwise_kernel<4, foo<(int)3>>(int, foo)",
    "cudaGraphLaunch",
    "cudaStreamSynchronize", "cudaMemcpyAsync", "hipMemcpyWithStream", "Memcpy HtoD (Pageable -> Device)", "Memcpy (",
    "nn.Module: A_0",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "aten::mm",
    "autograd::engine::evaluate_function: AddmmBackward0",
    "process_name", "thread_name", "process_labels", "x" * 5000, "a\nb\tc", "\u202e", "<b>&amp;|`", "$(HOME)",
    "[red]x[/red]", "}, {",
)  # fmt: skip
META: dict[str, tuple[Any, ...]] = {
    "distributedInfo": ({"rank": 3, "world_size": 8, "backend": "nccl"}, {"rank": "x"}, [1], None),
    "deviceProperties": (
        [{"id": 0, "name": "NVIDIA H100", "numSms": 132, "totalGlobalMem": 85 << 30}],
        [{"id": "x"}, 7],
        {},
    ),
    "baseTimeNanoseconds": (1_700_000_000_000_000_000, -1, "x", 2**80, 1.5),
    "schemaVersion": (1, "x", None),
    "traceEvents": ([], {}, None),
    "displayTimeUnit": ("ms", 3),
    "host_name": ("node", "\ud800", 7),
    "pytorch_version": ("2.9.0", None),
}


def seeds(also: Path | None = None) -> list[Document | bytes]:
    """Recorded traces cut down to some events, `also` those below a folder, and made ones with what no other has.

    Of protobuf files below that folder only bytes are changed.
    """
    paths = [*sorted(EXAMPLES.glob("*/*.json.gz")), *(sorted(also.rglob("*.json.gz")) if also else ())]
    found = [document for path in paths if (document := _shrunk(path, EVENTS_KEPT)) is not None]
    binary = [path.read_bytes() for path in sorted(also.rglob("*.pb"))] if also else []
    return [*binary, *found, *made()]


def made() -> list[Document]:
    """Documents with what no recorded one has: of CUDA, HIP, Ascend, XLA, and events that begin and end."""
    return [*map(_on_device, ("cuda", "hip")), _ascend(), _xla(), _pairs()]


def _shrunk(path: Path, n: int) -> Document | None:
    """The metadata, and from each part of the recording a run of events; None if it is no trace."""
    with gzip.open(path) as file:
        document: Document = json.loads(file.read().decode("utf-8", "replace"), strict=False)
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        return None
    stride = max(len(events) // 5, 1)
    document["traceEvents"] = [e for start in range(0, len(events), stride) for e in events[start : start + n // 5]]
    return document


def _x(name: str, ts: float, dur: float, cat: str | None, pid: Any = 1, tid: Any = 1, **args: Any) -> Document:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _on_device(vendor: str) -> Document:
    """Two steps of operators, launches, kernels, copies, a graph, a collective, memory and a counter."""
    stream = 7 if vendor == "cuda" else 0
    events: list[Document] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    ]
    for step in range(2):
        t, c = 1000.0 * step, 10 * step
        on = {"device": 0, "stream": stream}
        shape = {
            "grid": [8, 1, 1],
            "block": [128, 1, 1],
            "registers per thread": 64,
            "shared memory": 0,
            "est. achieved occupancy %": 40,
        }
        group = {
            "Collective name": "allreduce",
            "In msg nelems": 99,
            "Out msg nelems": 99,
            "Group size": 8,
            "dtype": "Float",
        }
        events += [
            _x(f"ProfilerStep#{step + 3}", t, 990, "user_annotation"),
            _x("train.py(3): loop", t + 1, 900, "python_function", **{"Python id": step, "Python module id": 0}),
            _x("aten::mm", t + 5, 40, "cpu_op",
            **{"External id": c + 1, "Input Dims": [[4, 8], [8, 2]], "Sequence number": c}),
            _x(f"{vendor}LaunchKernel", t + 10, 5, "cuda_runtime", **{"External id": c + 1, "correlation": c + 1}),
            _x("gemm_kernel", t + 30, 200, "kernel", 0, stream, **on, **shape, correlation=c + 1),
            _x(f"{vendor}MemcpyAsync", t + 60, 9, "cuda_runtime", correlation=c + 2),
            _x("Memcpy HtoD (Pinned -> Device)", t + 240, 30, "gpu_memcpy", 0, stream, **on, correlation=c + 2,
            bytes=4096),
            _x(f"{vendor}GraphLaunch", t + 80, 20, "cuda_runtime", correlation=c + 3),
            *(_x(f"node{i}", t + 300 + 9 * i, 8, "kernel", 0, stream, **on, **shape,
            correlation=c + 3) for i in range(3)),
            _x("nccl:all_reduce", t + 100, 30, "cpu_op", tid=2, **group),
            _x(f"{vendor}LaunchKernel", t + 110, 5, "cuda_runtime", tid=2, correlation=c + 4),
            _x("ncclDevKernel_AllReduce", t + 320, 300, "kernel", 0, 9, device=0, stream=9, **group, correlation=c + 4),
            _x(f"{vendor}DeviceSynchronize", t + 150, 700, "cuda_runtime", correlation=c + 5),
            {"ph": "s", "id": c + 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": t + 10},
            {"ph": "f", "id": c + 1, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": stream, "ts": t + 30, "bp": "e"},
            {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": t + 6, "args": {
                "Device Type": 1, "Device Id": 0, "Bytes": 512 * (1 - 2 * step), "Addr": 4096, "Total Allocated": 512,
                "Total Reserved": 2048,
            }},
            {"ph": "C", "name": "GPU use", "pid": 0, "ts": t, "args": {"percent": 5}},
        ]  # fmt: skip
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "X", "numSms": 8}], "traceEvents": events}


def _ascend() -> Document:
    lanes = {901: "Ascend Hardware", 902: "Overlap Analysis", 903: "CANN"}
    events: list[Document] = [
        {"ph": "M", "name": "process_name", "pid": p, "args": {"name": n}} for p, n in lanes.items()
    ]
    events += [{"ph": "M", "name": "process_labels", "pid": p, "args": {"labels": "NPU"}} for p in (901, 902)]
    events.append({"ph": "M", "name": "thread_name", "pid": 901, "tid": 2, "args": {"name": "Stream 2"}})
    for i in range(6):
        t = f"{1712345678901000 + 20 * i}.{i:03}"
        events += [
            _x("aten::mul", t, 5, "cpu_op", 900), _x("Mul", t, 9.5, None, 901, 2, **{"Task Type": "AI_CORE"}),
            _x("Computing", t, 9.5, None, 902),
            {"ph": "s", "id": str(i), "cat": "async_npu", "name": "to_npu", "pid": 900, "tid": 1, "ts": t},
            {"ph": "f", "id": str(i), "cat": "async_npu", "name": "to_npu", "pid": 901, "tid": 2, "ts": t},
        ]  # fmt: skip
    return {"traceEvents": events}


def _xla() -> Document:
    events: list[Document] = [
        {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "name": "thread_name", "pid": 3, "tid": 1, "args": {"name": "XLA Ops"}},
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "/host:CPU"}},
    ]
    for i in range(8):
        events += [
            _x(f"fusion.{i}", 10 * i, 6, None, 3, 1, hlo_op=f"fusion.{i}"),
            _x("Execute", 10 * i - 2, 3, None, 7),
        ]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _pairs() -> Document:
    events: list[Document] = []
    for i in range(12):
        at = {"name": f"f{i % 3}", "pid": 1, "tid": i % 2, "ts": 5 * i, "cat": "a"}
        events += [
            {"ph": "B", **at},
            {"ph": "E", **at, "ts": 5 * i + 4},
            {"ph": "b", "id": i, **at},
            {"ph": "e", "id": i, **at, "ts": 5 * i + 9},
        ]
    return {"traceEvents": events}


def mutated(document: Document | bytes, random: Random) -> bytes:
    """The document with some values changed, written in one of several ways, some bytes changed, packed or not."""
    level = random.choice(("values", "bytes", "both", "packing"))
    if isinstance(document, bytes):
        data, level = document, "packing" if level == "packing" else "bytes"
    elif level in ("values", "both"):
        document = {**document, "traceEvents": copy.deepcopy(document["traceEvents"])}
        for _ in range(_few(random)):
            random.choice(VALUE_CHANGES)(document, random)
    if not isinstance(document, bytes):
        data = _written(document, random)
    if level in ("bytes", "both"):
        for _ in range(_few(random)):
            data = random.choice(BYTE_CHANGES)(data, random)
    pack = random.choice(PACKINGS) if level == "packing" or random.random() < 0.2 else bytes
    data = pack(data)
    if level == "packing":
        for _ in range(_few(random)):
            data = random.choice(BYTE_CHANGES)(data, random)
    return data


def _few(random: Random) -> int:
    return min(1 + int(random.expovariate(0.4)), 12)


def _written(document: Document, random: Random) -> bytes:
    style = random.choice(({}, {"separators": (",", ":")}, {"indent": 1}, {"indent": 2, "ensure_ascii": False}))
    if random.random() < 0.2:
        text = json.dumps(document.get("traceEvents"), **style)
    elif random.random() < 0.5:
        text = json.dumps(document, **style)
    else:
        text = json.dumps(dict(reversed(document.items())), **style)
    return text.encode("utf-8", "surrogatepass")


def _events(document: Document) -> list[Any]:
    found = document.get("traceEvents")
    return found if isinstance(found, list) else []


def _one_event(document: Document, random: Random) -> Document:
    found = [e for e in _events(document) if isinstance(e, dict)]
    return random.choice(found) if found else {}


def _odd_field(document: Document, random: Random) -> None:
    event = _one_event(document, random)
    event[random.choice(("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "bp", "s"))] = random.choice(
        ODD_VALUES
    )


def _odd_argument(document: Document, random: Random) -> None:
    args = _one_event(document, random).get("args")
    if isinstance(args, dict) and args:
        args[random.choice(list(args))] = random.choice(ODD_VALUES)


def _known_value(document: Document, random: Random) -> None:
    key, values = random.choice((("ph", PHASES), ("cat", CATS), ("name", NAMES)))
    _one_event(document, random)[key] = random.choice(values)


def _moved(document: Document, random: Random) -> None:
    event = _one_event(document, random)
    key = random.choice(("ts", "dur"))
    value = event.get(key)
    by = random.choice((-1e6, -100, -1, -0.001, 0.0005, 1, 1e3, 1e9, 1e15, 1e18))
    event[key] = value + by if isinstance(value, int | float) else by


def _borrowed(document: Document, random: Random) -> None:
    """Fields of one event in another: ids, tracks and times that clash."""
    event, other = _one_event(document, random), _one_event(document, random)
    for key in random.sample(("pid", "tid", "ts", "dur", "id", "args", "cat", "ph"), 3):
        if key in other:
            event[key] = copy.deepcopy(other[key])


def _renamed(document: Document, random: Random) -> None:
    event = _one_event(document, random)
    place = event.get("args") if random.random() < 0.5 else event
    if isinstance(place, dict) and place:
        key = random.choice(list(place))
        place[random.choice((key.lower(), key.upper(), "correlation", "stream", "device", "bytes", "", "x"))] = (
            place.pop(key)
        )


def _dropped(document: Document, random: Random) -> None:
    event = _one_event(document, random)
    place = event.get("args") if random.random() < 0.5 else event
    if isinstance(place, dict) and place:
        del place[random.choice(list(place))]


def _shuffled(document: Document, random: Random) -> None:
    random.shuffle(_events(document))


def _repeated(document: Document, random: Random) -> None:
    events = _events(document)
    at = random.randrange(len(events) + 1)
    events[at:at] = copy.deepcopy(events[at : at + random.randrange(20)])


def _removed(document: Document, random: Random) -> None:
    events = _events(document)
    at = random.randrange(len(events) + 1)
    del events[at : at + random.randrange(1, len(events) + 2)]


def _odd_event(document: Document, random: Random) -> None:
    events = _events(document)
    events.insert(random.randrange(len(events) + 1), random.choice(ODD_VALUES))


def _odd_meta(document: Document, random: Random) -> None:
    key = random.choice(list(META))
    if key != "traceEvents" or random.random() < 0.1:
        document[key] = random.choice((*META[key], *META[key], random.choice(ODD_VALUES)))


VALUE_CHANGES: tuple[Callable[[Document, Random], None], ...] = (
    _odd_field, _odd_argument, _odd_argument, _known_value, _known_value, _moved, _moved, _borrowed, _borrowed,
    _renamed, _dropped, _shuffled,
    _repeated, _removed, _odd_event, _odd_meta,
)  # fmt: skip


def _place(data: bytes, random: Random) -> int:
    return random.randrange(len(data) + 1)


def _flip(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + bytes(b ^ random.randrange(1, 256) for b in data[at : at + 1]) + data[at + 1 :]


def _insert(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + random.choice(ODD_BYTES) + data[at:]


def _overwrite(data: bytes, random: Random) -> bytes:
    at, odd = _place(data, random), random.choice(ODD_BYTES)
    return data[:at] + odd + data[at + len(odd) :]


def _delete(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + data[at + int(random.expovariate(0.02)) :]


def _splice(data: bytes, random: Random) -> bytes:
    """A piece of it once more, elsewhere."""
    at, start = _place(data, random), _place(data, random)
    return data[:at] + data[start : start + int(random.expovariate(0.005))] + data[at:]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


BYTE_CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    _flip,
    _flip,
    _insert,
    _insert,
    _overwrite,
    _delete,
    _splice,
    _cut,
)


def _zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("trace.json"), data, zipfile.ZIP_DEFLATED)  # of no time of day
    return file.getvalue()


PACKINGS: tuple[Callable[[bytes], bytes], ...] = (
    partial(gzip.compress, mtime=0),
    partial(gzip.compress, mtime=0),
    zstandard.compress,
    lzma.compress,
    bz2.compress,
    _zipped,
)
