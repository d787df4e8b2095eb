"""What an nsys export says of the machine: processes, threads, devices, when it began, sampled GPU metrics.

Only what is named here is read. Other tables hold the program's environment variables and its output, which
are nobody's business: they are neither read nor kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core.patterns import regex
from stepscope.core.schema import COUNTERS
from stepscope.readers.common.columns import ABSENT, device_table, text_column
from stepscope.readers.common.span_builder import Tracks, unique
from stepscope.readers.common.sqlite import WIDE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.common.sqlite import Database

    Rows = NDArray[np.int64]

#: A thread's global id: 24 bits of thread, 24 of process, 8 of virtual machine, 8 of hardware. A process' own has no
#: thread.
_BITS = 24
_MASK = (1 << _BITS) - 1
_CORRELATION_BITS = 33
_NVTX_THREAD_NAME = 39
_MPI_RANK = regex(r"^MPI Rank (\d{1,9})$")
_BRACKETS = regex(r"^(.*?)\s*\[(.*)\]$")
_GPU_COLUMNS = ("id", "name", "cuDevice", "smCount", "totalMemory", "computeMajor", "computeMinor")


class Target:
    """Names and devices of the machine, and the tracks of its spans."""

    def __init__(self, db: Database) -> None:
        self.tracks = Tracks()
        self._processes: dict[int, int] = {}
        self._process_names = dict(_rows(db, "PROCESSES", "globalPid", "name"))
        self._thread_names = _thread_names(db)
        self._gpus = {row[0]: row[1:] for row in _rows(db, "TARGET_INFO_GPU", *_GPU_COLUMNS)}
        self._ordinals = {
            (pid, ordinal): gpu for gpu, ordinal, pid in _rows(db, "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        }
        self._devices: dict[int, tuple[int, set[int]]] = {}
        self._contexts: dict[tuple[int, int], int] = {}
        starts = _rows(db, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        #: Unix time of the export's time 0.
        self.start_unix_ns: int | None = starts[0][0] if starts else None
        hosts = _rows(db, "TARGET_INFO_SYSTEM_ENV", "value", where="name = 'Hostname'")
        self.host: str | None = hosts[0][0] if hosts else None

    def processes(self, global_ids: Rows) -> Rows:
        """A small number for the process of each global thread or process id, the same in every table."""
        distinct, inverse = unique(global_ids >> _BITS)
        numbers = [self._processes.setdefault(int(key), len(self._processes)) for key in distinct.tolist()]
        return np.array(numbers, np.int64)[inverse]

    def links(self, global_ids: Rows, correlation: Rows) -> Rows:
        """What a call and its work have in common: correlation ids count anew in each process."""
        known = correlation > 0
        return np.where(known, (self.processes(global_ids) << _CORRELATION_BITS) + correlation, ABSENT)

    def thread(self, global_tid: int) -> int:
        """track_id of a thread."""
        pid, tid = global_tid >> _BITS & _MASK, global_tid & _MASK
        label, process = self._thread_names.get(global_tid), self._process(global_tid)
        return self.tracks.id(("thread", global_tid), pid=pid, tid=tid, kind="thread", label=label, process=process)

    def ranges(self, global_tid: int) -> int:
        """track_id of a process' lane of ranges that may cross threads."""
        key, pid = ("ranges", global_tid >> _BITS), global_tid >> _BITS & _MASK
        process = self._process(global_tid)
        return self.tracks.id(key, pid=pid, kind="async", label="NVTX start/end", process=process)

    def stream(self, global_pid: int, device: int, context: int, stream: int, *, is_sure: bool = True) -> int:
        """track_id of a device's stream; ABSENT means no stream, as for a wait for a whole device.

        All waits are recorded as device 0's, which is not reliable: their context gives the device, if
        surer work of the same context came before.
        """
        known = self._contexts.setdefault((global_pid >> _BITS, context), device)
        device = device if is_sure else known
        key = ("stream", global_pid >> _BITS, device, context, stream)
        pid = global_pid >> _BITS & _MASK
        number = None if stream in (ABSENT, 0xFFFFFFFF) else stream
        return self.tracks.id(
            key,
            pid=pid,
            device_id=self.device(pid, device),
            stream=number,
            kind="other" if number is None else "stream",
            label="synchronisation" if number is None else f"stream {number}",
            process=self._process(global_pid),
        )

    def device(self, pid: int, ordinal: int) -> int:
        """device_id of an ordinal as the process counts."""
        gpu = self._ordinals.get((pid, ordinal))
        if gpu is None:
            by_cuda = [i for i, (_, cuda, sms, *_) in self._gpus.items() if cuda == ordinal and sms]
            gpu = by_cuda[0] if len(by_cuda) == 1 else ordinal
        device_id, ordinals = self._devices.setdefault(gpu, (len(self._devices) + 1, set()))
        ordinals.add(ordinal)
        return device_id

    def gpu(self, gpu: int) -> int:
        """device_id of a GPU by its number in the machine."""
        return self._devices.setdefault(gpu, (len(self._devices) + 1, set()))[0]

    def rank(self) -> int | None:
        """Rank of the process, where MPI named a single thread after it."""
        ranks = {int(m[1]) for name in self._thread_names.values() if (m := _MPI_RANK.match(name))}
        return ranks.pop() if len(ranks) == 1 else None

    def devices(self) -> pl.DataFrame:
        """The `devices` table: the host, then those that were used."""
        rows: list[tuple[object, ...]] = [(0, "cpu", None, None, None, None, None)]
        alike = {row[0] for row in self._gpus.values()}
        for gpu, (device_id, ordinals) in self._devices.items():
            name, _, sms, memory, major, minor = self._gpus.get(gpu, (None,) * 6)
            if name is None and len(alike) == 1:
                name, _, sms, memory, major, minor = next(iter(self._gpus.values()))
            index = ordinals.copy().pop() if len(ordinals) == 1 else gpu
            capability = f"{major}.{minor}" if major else None
            rows.append((device_id, "cuda", index, name, sms or None, memory or None, capability))
        return device_table(rows)

    def _process(self, global_id: int) -> str | None:
        return self._process_names.get(global_id & ~_MASK)


def _rows(db: Database, table: str, *columns: str, where: str = "1") -> list[tuple[Any, ...]]:
    """Some columns of a small table; null for those it lacks; no rows if it is not there."""
    have = db.columns_of(table)
    if not have:
        return []
    selected = ", ".join(c if c in have else "NULL" for c in columns)
    return db.rows(f"SELECT {selected} FROM {table} WHERE {where}")  # noqa: S608  the names are ours


def _thread_names(db: Database) -> dict[int, str]:
    ids = _rows(db, "ThreadNames", "globalTid", "nameId")
    texts = db.texts("StringIds", (name for _, name in ids))
    names = {tid: texts[name] for tid, name in ids if name in texts}
    if "text" in db.columns_of("NVTX_EVENTS"):  # what the program calls its threads goes before what the system does
        given = _rows(db, "NVTX_EVENTS", "globalTid", "text", where=f"eventType = {_NVTX_THREAD_NAME}")
        names |= {tid: text for tid, text in given if text}
    return names


def gpu_metrics(db: Database, target: Target, origin_ns: int) -> pl.DataFrame:
    """The `counters` table: the sampled hardware metrics. The low byte of a sample's typeId is the GPU's number."""
    if not {"timestamp", "typeId", "metricId", "value"} <= set(db.columns_of("GPU_METRICS")):
        return COUNTERS.empty()
    cols = db.columns("GPU_METRICS", {"timestamp": WIDE, "typeId": WIDE, "metricId": WIDE})
    value = np.array(db.column("GPU_METRICS", "value"), np.float64)
    title = dict(_rows(db, "TARGET_INFO_GPU_METRICS", "metricId", "metricName"))
    gpus, of_gpu = unique(cols["typeId"] & 0xFF)
    metric, of_metric = unique(cols["metricId"])
    named = [title.get(i) or f"metric {i}" for i in metric.tolist()]
    parts = [match.groups() if (match := _BRACKETS.match(name)) else (name, None) for name in named]
    device_ids = np.array([target.gpu(int(gpu)) for gpu in gpus.tolist()], np.uint32)
    frame = pl.DataFrame({
        "ts_ns": cols["timestamp"] - origin_ns,
        "device_id": device_ids[of_gpu],
        "device": text_column(of_gpu, [f"gpu{i}" for i in gpus.tolist()]),
        "metric": text_column(of_metric, [name for name, _ in parts]),
        "unit": text_column(of_metric, [unit for _, unit in parts]),
        "value": value,
    })  # fmt: skip
    return COUNTERS.conform(frame).sort("ts_ns", maintain_order=True)
