"""The spans of a trace as the TensorBoard plugin saw its events, and which runtime call launched which device work.

The plugin calculates with the numbers in the file: whole µs as integers, all others as doubles, whose rounding shows
in its results. This module reproduces both from exact ns, so that no other module has to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]


#: Kinds of events that the plugin distinguishes.
(
    IGNORED, OPERATOR, ANNOTATION, STEP, PYTHON, MODULE, FRAME, RUNTIME, KERNEL, MEMCPY, MEMSET, TRACE, PL_PROFILE,
    PL_MODULE,
) = range(14)  # fmt: skip
#: An id that is not recorded.
NONE = -(2**62)

_KINDS = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION, "gpu_user_annotation": ANNOTATION,
    "mlu_user_annotation": ANNOTATION, "python": PYTHON, "python_function": FRAME, "trace": TRACE,
    "kernel": KERNEL, "memcpy": MEMCPY, "gpu_memcpy": MEMCPY, "mlu_memcpy": MEMCPY, "memset": MEMSET,
    "gpu_memset": MEMSET, "mlu_memset": MEMSET, "runtime": RUNTIME, "cuda_runtime": RUNTIME, "mtia_runtime": RUNTIME,
    "glow_runtime": RUNTIME, "xpu_runtime": RUNTIME, "privateuse1_runtime": RUNTIME, "mlu_runtime": RUNTIME,
}  # fmt: skip
#: Recorders that the plugin does not know have no Kineto categories for device work. These of ours replace them.
_OURS = {"kernel": KERNEL, "memcpy": MEMCPY, "memset": MEMSET, "runtime": RUNTIME}
_PL_PROFILE, _PL_MODULE = "[pl][profile]", "[pl][module]"


@dataclass(frozen=True, slots=True)
class Events:
    """One row per span of the trace, in the order of its table; `order` has the rows that count, by time.

    Times are µs of the recorder's clock: int64 if the file spells every time as a whole number, else float64.
    `name` indexes `names`; `thread` indexes `threads`, the recorded thread ids.
    """

    kind: NDArray[np.uint8]
    ts: Times
    end: Times
    dur: Times
    name: NDArray[np.uint32]
    names: list[str]
    thread: Ints
    threads: list[int | str]
    external: Ints
    correlation: Ints
    order: Ints
    trace: Trace
    dialect: Dialect
    lightning: bool
    properties: list[dict[str, Any]] = field(repr=False)

    def rows(self, *kinds: int) -> Ints:
        """Rows of these kinds, by time."""
        return self.order[np.isin(self.kind[self.order], kinds)]

    def where(self, holds: Callable[[str], bool], rows: Ints) -> Bools:
        """Whether each row's name fulfils the condition, which is called once per name."""
        used = np.zeros(len(self.names), bool)
        used[self.name[rows]] = True
        flags = np.zeros(len(self.names), bool)
        for i in np.flatnonzero(used).tolist():
            flags[i] = holds(self.names[i])
        return flags[self.name[rows]]

    def us(self, ns: Ints) -> Times:
        """Times of the trace (ns from its origin) as µs of the recorder's clock."""
        return _us(ns + self.trace.meta.origin_recorded_ns, whole=self.ts.dtype == np.int64)


def read_events(trace: Trace) -> Events:
    """The events of a trace. Units: µs."""
    spans = trace.spans
    origin = trace.meta.origin_recorded_ns
    start, dur = spans["ts_ns"].to_numpy() + origin, spans["dur_ns"].to_numpy()
    points = trace.table("allocations")["ts_ns"].to_numpy() + origin
    whole = not trace.meta.decimal_times
    whole = whole and not ((start % 1000).any() or (dur % 1000).any() or (points % 1000).any())
    name, names = _coded(spans["name"])
    lightning = trace.meta.facts.get("Framework") == "pytorch-lightning"
    dialect = dialect_of(trace)
    kind = _kinds(trace, name, names, dialect, lightning=lightning)
    if lightning:
        names = [_without_mark(name) for name in names]
    thread, threads = _threads(trace)
    ts, length = _us(start, whole=whole), _us(dur, whole=whole)
    known = np.flatnonzero(kind != IGNORED)
    order = known[np.argsort(ts[known], kind="stable")]
    given = json.loads(trace.meta.facts.get("deviceProperties", "[]"))
    return Events(
        kind=kind, ts=ts, end=ts + length, dur=length, name=name, names=names, thread=thread, threads=threads,
        external=_ids(spans["external_id"]), correlation=_ids(spans["correlation"]), order=order, trace=trace,
        dialect=dialect, lightning=lightning,
        properties=[_numbers_and_name(p) for p in given if isinstance(p, dict)] if isinstance(given, list) else [],
    )  # fmt: skip


def _numbers_and_name(properties: dict[str, Any]) -> dict[str, Any]:
    """The properties of a device that can be: a text as its name, and whole numbers."""
    return {k: v for k, v in properties.items() if isinstance(v, str if k == "name" else int) and v is not True}


def _us(ns: Ints, *, whole: bool) -> Times:
    """µs as the file spells them. Doubles of up to 2**53 ns round once, as reading the file's text does."""
    if whole:
        return ns // 1000
    if ns.size == 0 or np.abs(ns).max() < 2**53:
        return ns / 1000.0
    us: Times = ns // 1000 + ns % 1000 / 1000.0
    return us


def _ids(series: pl.Series) -> Ints:
    return series.fill_null(NONE).to_numpy()


def _coded(series: pl.Series) -> tuple[NDArray[np.uint32], list[str]]:
    """Numbers of the values from 0 on, and the values."""
    physical = series.to_physical()
    codes = physical.to_numpy()
    distinct = physical.unique().drop_nulls().to_numpy()
    place = np.zeros(int(distinct.max()) + 1 if distinct.size else 1, np.uint32)
    place[distinct] = np.arange(distinct.size)
    first = np.zeros(max(distinct.size, 1), np.int64)
    coded = place[codes]
    first[coded[::-1]] = np.arange(codes.size - 1, -1, -1)
    values = series.gather(first[: distinct.size]).cast(pl.String).to_list()
    return coded, [v or "" for v in values]


def _kinds(
    trace: Trace, name: NDArray[np.uint32], names: list[str], dialect: Dialect, *, lightning: bool
) -> NDArray[np.uint8]:
    spans = trace.spans
    recorded, cats = _coded(spans["recorded_category"].fill_null(""))
    kind = np.array([_KINDS.get(c.lower(), IGNORED) for c in cats] or [IGNORED], np.uint8)[recorded]
    if dialect.uses_own_categories:
        own, categories = _coded(spans["category"].cast(pl.Categorical()))
        fallback = np.array([_OURS.get(c, IGNORED) for c in categories] or [IGNORED], np.uint8)[own]
        kind = np.where(kind == IGNORED, fallback, kind)
    is_step = np.array([n.startswith("ProfilerStep#") for n in names] or [False])[name]
    kind[is_step & np.isin(kind, (OPERATOR, ANNOTATION))] = STEP
    if lightning:
        kind[kind == FRAME] = IGNORED
        for prefix, special in ((_PL_PROFILE, PL_PROFILE), (_PL_MODULE, PL_MODULE)):
            starts = np.array([n.startswith(prefix) for n in names] or [False])[name]
            kind[starts & (kind == OPERATOR)] = special
    else:
        frames = trace.table("frames")
        is_module = frames["module_id"].is_not_null().to_numpy()
        rows = frames["span_id"].to_numpy()[is_module]
        kind[rows[kind[rows] == FRAME]] = MODULE
    return kind


def _without_mark(name: str) -> str:
    """A name without Lightning's mark; of a module also without its class."""
    if name.startswith(_PL_MODULE):
        rest = name.removeprefix(_PL_MODULE)
        return rest.partition(": ")[2] or rest
    return name.replace(_PL_PROFILE, "")


def _threads(trace: Trace) -> tuple[Ints, list[int | str]]:
    """Thread of each span by its recorded id alone, whatever its process."""
    tracks = trace.tracks
    number: dict[int | str, int] = {}
    of_track = [
        number.setdefault(tid if tid is not None else label or "", len(number))
        for tid, label in tracks.select("tid", "label").iter_rows()
    ]
    place = np.zeros(int(tracks["track_id"].to_numpy().max(initial=0)) + 1, np.int64)
    place[tracks["track_id"].to_numpy()] = of_track
    return place[trace.spans["track_id"].to_numpy()], list(number)


_NOUNS = {"mlu": "MLU", "npu": "NPU", "xpu": "XPU", "mtia": "MTIA", "tpu": "TPU"}


class Dialect(msgspec.Struct, frozen=True):
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


class Launches(msgspec.Struct, frozen=True):
    """`calls` and `work` are rows of runtime calls and of device work, by time; `call_of` indexes `calls`, −1: none.

    `by_call` orders `work` by call; those of call i are at `first[i] : first[i + 1]` of it.
    """

    calls: Ints
    work: Ints
    call_of: Ints
    by_call: Ints
    first: Ints

    def work_of(self, calls: Ints) -> tuple[Ints, Ints]:
        """All pairs of the calls (indices, repeats allowed) with their work: places in `calls` given, and in `work`."""
        counts = self.first[calls + 1] - self.first[calls]
        place = np.repeat(np.arange(calls.size), counts)
        start = np.repeat(self.first[calls] - (np.cumsum(counts) - counts), counts)
        return place, self.by_call[start + np.arange(place.size)]

    def summed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Per call the sum of a value of its work."""
        total = np.zeros(self.calls.size, values.dtype)
        tied = self.call_of >= 0
        np.add.at(total, self.call_of[tied], values[tied])
        return total


def find_launches(events: Events) -> Launches:
    """Device work belongs to the latest call so far with its correlation id, or to the next call if there was none."""
    both = events.rows(RUNTIME, KERNEL, MEMCPY, MEMSET)
    is_call = events.kind[both] == RUNTIME
    calls, work = both[is_call], both[~is_call]
    number = np.cumsum(is_call) - 1
    order = np.argsort(events.correlation[both], kind="stable")
    ids, is_call, number = events.correlation[both][order], is_call[order], number[order]
    is_first = np.ones(order.size, bool)
    is_first[1:] = ids[1:] != ids[:-1]
    start = np.maximum.accumulate(np.where(is_first, np.arange(order.size), 0))
    before = np.maximum.accumulate(np.where(is_call, np.arange(order.size), -1))
    before[before < start] = -1
    # The first call of each id gets the work that came before it.
    nothing = order.size
    after = np.minimum.accumulate(np.where(is_call, np.arange(order.size), nothing)[::-1])[::-1]
    is_last = np.roll(is_first, -1)
    stop = np.minimum.accumulate(np.where(is_last, np.arange(order.size), nothing)[::-1])[::-1]
    at = np.where(before >= 0, before, np.where(after <= stop, after, -1))
    owner = np.where(at >= 0, number[at], -1)
    call_of = np.full(both.size, -1, np.int64)
    call_of[order] = owner
    call_of = call_of[events.kind[both] != RUNTIME]
    by_call = np.argsort(call_of, kind="stable")
    first = np.searchsorted(call_of[by_call], np.arange(calls.size + 1))
    return Launches(calls, work, call_of, by_call, first)
