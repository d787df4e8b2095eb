"""Tracks and devices from the (process, thread, device, stream) keys that a Chrome trace's events carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import distinct_values, numbered
from stepscope.core.patterns import regex
from stepscope.core.schema import TRACKS
from stepscope.readers.common.columns import device_table, whole_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns

#: Device types of torch.c10 (`Device Type` of memory events): 0 is the host, all others are the trace's accelerator.
_HOST_TYPE = 0
#: PrivateUse1: of the makers that use it, only Cambricon writes memory events of Kineto's.
_MLU_TYPE = 20
_XLA_PROCESS = regex(r"/device:(?P<type>[A-Za-z]+):(?P<index>\d+)")
#: Processes and threads of rocmProfileData's rpd2tracing: GPU2, its queues as threads, and `Hip 4711` for API calls.
_RPD_PROCESS, _RPD_CALLS = regex(r"GPU(\d+)"), regex(r"Hip \d+")
_STREAM = regex(r"(?i)stream\s*#?(\d+)")
#: Processes of an Ascend device; HCCL's lanes with whole collectives. Those called `Plane 0` and so on show the parts.
_ASCEND_FILE = regex(r"(?:/device_|(?:msprof|hccl|task_time|step_trace)_)(\d{1,4})[/_]")
_ASCEND = ("Ascend Hardware", "HCCL", "Overlap Analysis", "Step Trace")
_ASCEND_COLLECTIVES = regex(r"Group .* Communication|Communication (?:OP|Kernel)")


class Tracks(msgspec.Struct, frozen=True):
    """The two tables, the track of each key of `Columns.tracks`, and the category of each track's plain events.

    `has_collectives` says which tracks hold nothing but collectives.
    """

    tracks: pl.DataFrame
    devices: pl.DataFrame
    of_key: NDArray[np.uint32]
    category: list[str | None]
    is_device: NDArray[np.bool_]
    has_collectives: NDArray[np.bool_]
    device_of_index: dict[int, int]


def _too_large(tid: object) -> str:
    """The number of a thread as text if no column holds it; else empty."""
    return str(tid) if isinstance(tid, int) and whole_number(tid) is None else ""


def device_type(
    meta: Mapping[str, Any],
    cats: Iterable[str | None],
    names: Iterable[str | None],
    memory_types: Collection[int] = (),
) -> str:
    """Kind of accelerator, by the recorder's own words: metadata keys, categories, product and API names.

    Where these say nothing, the device types (torch.c10's) of memory events may.
    """
    keys = " ".join(meta).lower()
    products = " ".join(str(p.get("name", "")) for p in _properties(meta)).lower()
    lowered = {(c or "").lower() for c in cats}
    rules = (
        ("mtia", any("mtia" in c for c in lowered) or "mtia" in products),
        ("mlu", any("mlu" in c for c in lowered) or "mlu" in products),
        ("npu", "ascend" in products or any(c in lowered for c in ("async_npu", "enqueue", "hosttodevice"))),
        ("xpu", any("xpu" in c for c in lowered) or "intel" in products),
        ("rocm", "hip_" in keys or "roctracer" in keys or "rocm" in keys or "amd" in products or "gfx" in products),
        (
            "cuda",
            "cuda" in keys or "cupti" in keys or any(w in products for w in ("nvidia", "tesla", "geforce", "quadro")),
        ),
    )
    for kind, holds in rules:
        if holds:
            return kind
    for name in names:
        if name and name.startswith(("hip", "cuda", "cu", "cn")):
            if name.startswith("hip"):
                return "rocm"
            if name.startswith(("cudaL", "cudaM", "cudaS", "cudaD", "cudaE", "cudaG", "cuLaunch")):
                return "cuda"
            if name.startswith(("cnrt", "cnInvoke", "cnMem")):
                return "mlu"
    if any(c.startswith("cuda") for c in lowered):
        return "cuda"
    return "mlu" if _MLU_TYPE in memory_types else "accelerator"


def _properties(meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    properties = meta.get("deviceProperties")
    return [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []


def capability_of(properties: Mapping[str, Any]) -> str | None:
    """CUDA's compute capability, as in '9.0', where the properties of a device say it."""
    major, minor = (whole_number(properties.get(key), 8) for key in ("computeMajor", "computeMinor"))
    return None if major is None or minor is None or min(major, minor) < 0 else f"{major}.{minor}"


def npu_in(path: str) -> int:
    """The device of a file that Ascend's profiler wrote, from its folder or name, 0 if they do not say.

    >>> npu_in("PROF_1/device_3/timeline/msprof_3_0_1.json"), npu_in("msprof_1_0_6.json.gz"), npu_in("trace_view.json")
    (3, 1, 0)
    """
    numbers = _ASCEND_FILE.findall(path.replace("\\", "/"))
    return int(numbers[-1]) if numbers else 0


def build_tracks(
    columns: Columns, meta: Mapping[str, Any], rank: int | None, host: str | None, path: str = ""
) -> Tracks:
    """Tables `tracks` and `devices`. Keys that differ only in the type of a number (7 and "7") share a track.

    `path` may say which device an Ascend file is of, which its events do not.
    """
    labels = {_plain(key): texts for key, texts in columns.threads.items()}
    process = {pid: t for (pid, _), texts in labels.items() if (t := texts.get("process_name"))}
    process_label = {pid: t for (pid, _), texts in labels.items() if (t := texts.get("process_labels"))}
    memory_types = {int(t) for block in columns.memory["type"].blocks for t in distinct_values(block)}
    kind_of_device = device_type(meta, columns.cats, columns.names, memory_types)
    # Ascend lists the calls of its libraries as a process of its own, by the threads that called them.
    caller = {tid: pid for pid, tid in (_plain(key[:2]) for key in columns.tracks) if process.get(pid) == "Python"}
    rows: dict[tuple[Any, ...], int] = {}
    of_key = np.empty(len(columns.tracks), np.uint32)
    keys = list(columns.tracks)
    for i in columns.track_order or range(len(keys)):
        key = keys[i]
        lane = key[2] if len(key) == 3 else None
        device, stream = (_ordinal(key[2]), key[3]) if len(key) == 4 else (None, None)
        pid, tid = _plain(key[:2])
        pid = caller.get(tid, pid) if process.get(pid) == "CANN" else pid
        of_key[i] = rows.setdefault((pid, tid, device, stream, lane), len(rows))
    named_lanes = _NamedLanes(
        npus={pid for pid, text in process_label.items() if text == "NPU"},
        npu=npu_in(path),
        xla_streams={pid for pid, tid in labels if "stream" in labels[pid, tid].get("thread_name", "").lower()},
        has_rpd=any(_RPD_PROCESS.fullmatch(name) and pid not in process_label for pid, name in process.items()),
    )
    devices = _Devices(kind_of_device, _properties(meta))
    table: list[tuple[Any, ...]] = []
    category: list[str | None] = []
    of_collectives: list[bool] = []
    for i, (pid, tid, device, stream, lane) in enumerate(rows):
        texts = labels.get((pid, tid), {})
        label = texts.get("thread_name") or (tid if isinstance(tid, str) else _too_large(tid)) or None
        name = process.get(pid) or (pid if isinstance(pid, str) else "") or None
        kind, plain, device_id, queue, talks = "thread", None, None, None, False
        if lane == "counter":
            kind, label = "other", str(tid or "")
        elif lane == "async":
            kind = "async"
        elif device is not None or stream is not None:
            kind, queue = "stream", whole_number(stream)
            device_id = devices.find(device if device is not None else _ordinal(pid) or 0)
        elif named := named_lanes.find(pid, tid, name or "", label or "", devices):
            kind, plain, device_id, queue, talks = named
        elif lane == "range":
            kind, device_id = "annotation", devices.find(_ordinal(pid) or 0)
        elif isinstance(pid, str):
            kind = "annotation"
        table.append((i, rank, host, whole_number(pid), whole_number(tid), device_id, queue, kind, name, label))
        category.append(plain)
        of_collectives.append(talks)
    memory_index = {
        int(i)
        for kind, index in zip(columns.memory["type"].blocks, columns.memory["index"].blocks, strict=True)
        for i in distinct_values(index[kind != _HOST_TYPE])
        if _ordinal(int(i)) is not None
    }
    devices.own_memory(memory_index)
    tracks = pl.DataFrame(table, schema=dict(TRACKS.dtypes), orient="row")
    is_device = tracks["device_id"].is_not_null().to_numpy()
    talking = np.array(of_collectives, np.bool_)
    return Tracks(tracks, devices.table(), of_key, category, is_device, talking, devices.by_index())


def by_appearance(columns: Columns) -> list[int]:
    """The numbers of the tracks: first those of complete events, in the order of their first ones, then the others.

    The order in which a block of events gave the numbers depends on where the text was cut into blocks.
    """
    groups = (columns.spans, columns.edges, columns.samples, columns.memory, columns.flows)
    used = dict.fromkeys(int(i) for group in groups for block in group["track"].blocks for i in _first_ones(block))
    return list(used | dict.fromkeys(range(len(columns.tracks))))  # of the rest nothing is left, as of empty counters


def _first_ones(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Each value once, in order of appearance."""
    return values[numbered(values)[0]]


class _NamedLanes(msgspec.Struct, frozen=True):
    """What the names of processes and threads say where events carry no device: XLA, Ascend, rocmProfileData.

    `npus` are processes labelled NPU, `npu` the number of their device, `xla_streams` processes with threads called
    stream; `has_rpd`: processes are GPUs.
    """

    npus: set[Any]
    npu: int
    xla_streams: set[Any]
    has_rpd: bool

    def find(
        self, pid: Any, tid: Any, process: str, label: str, devices: _Devices
    ) -> tuple[str, str | None, int | None, int | None, bool] | None:
        """Kind, category, device_id, queue and whether it holds collectives only; None where names say nothing."""
        if xla := _XLA_PROCESS.match(process):
            kind, plain = _xla_lane(label, has_streams=pid in self.xla_streams)
            return kind, plain, devices.find(_ordinal(xla["index"]) or 0, xla["type"].lower()), None, False
        if self.has_rpd and (gpu := _RPD_PROCESS.fullmatch(process)):
            return "stream", "kernel", devices.find(int(gpu[1])), whole_number(tid), False
        if self.has_rpd and _RPD_CALLS.fullmatch(label):
            return "thread", "runtime", None, None, False
        if pid in self.npus or process in _ASCEND:
            talks = _ASCEND_COLLECTIVES.fullmatch(label) is not None
            is_stream = process == "Ascend Hardware" and _STREAM.match(label) is not None
            kind, plain = ("stream", "kernel") if is_stream or talks else ("annotation", "device_range")
            return kind, plain, devices.find(self.npu, "npu"), whole_number(tid) if is_stream else None, talks
        return None


def _plain(key: tuple[Any, ...]) -> tuple[Any, Any]:
    pid, tid = (v if (n := whole_number(v)) is None else n for v in key)
    return pid, tid


def _ordinal(value: object) -> int | None:
    number = whole_number(value)
    return number if number is not None and 0 <= number < 1 << 16 else None


def _xla_lane(label: str, *, has_streams: bool) -> tuple[str, str]:
    """Kind and category of a lane of an XLA device: its operations are the work where no streams are recorded."""
    if _STREAM.search(label):
        return "stream", "kernel"
    if label == "XLA Ops" and not has_streams:
        return "stream", "kernel"
    return "annotation", "device_range"


class _Devices:
    """Devices in order of first use; row 0 is the host."""

    def __init__(self, kind: str, properties: list[dict[str, Any]]) -> None:
        self._kind = kind
        self._properties = {i: p for p in properties if (i := whole_number(p.get("id"))) is not None}
        self._rows: dict[int, tuple[int, str]] = {}
        self._alias: dict[int, int] = {}

    def find(self, index: int, kind: str | None = None) -> int:
        """device_id of an ordinal."""
        known = kind if kind in ("tpu", "npu") else self._kind
        return self._rows.setdefault(index, (len(self._rows) + 1, known))[0]

    def own_memory(self, indices: set[int]) -> None:
        """Devices of memory events. ROCm numbers kernels by node and memory by ordinal: one of each is one device."""
        self._alias = {}
        if self._kind == "rocm" and len(indices) == len(self._rows) == 1:
            self._alias = {index: next(iter(self._rows)) for index in indices}
        for index in sorted(indices - set(self._alias)):
            self.find(index)

    def by_index(self) -> dict[int, int]:
        own = {index: device_id for index, (device_id, _) in self._rows.items()}
        return own | {index: own[target] for index, target in self._alias.items()}

    def table(self) -> pl.DataFrame:
        rows: list[tuple[Any, ...]] = [(0, "cpu", None, None, None, None, None)]
        alike = {str(p.get("name")) for p in self._properties.values()}
        default = next(iter(self._properties.values())) if len(alike) == 1 else {}
        for index, (device_id, kind) in self._rows.items():
            p = self._properties.get(index, default)
            capability = capability_of(p)
            name = p.get("name")
            mebibytes = whole_number(p.get("totalMem(MiB)"), 31)
            memory = whole_number(p.get("totalGlobalMem")) or (mebibytes and mebibytes << 20)
            units = whole_number(p.get("numSms"), 31)
            rows.append((device_id, kind, index, str(name).strip() if name else None, units, memory, capability))
        return device_table(rows)
