"""From an XSpace to the tables of a Trace.

The work of a device is what lies on its streams or, where none are recorded (TPU), on the line `XLA Ops`. All its other
lines show the same time once more (steps, modules, name scopes, overlays) or what runs meanwhile (`Async XLA Ops`), so
they are ranges. An operation that contains others, such as a while loop, is a range too: its parts are the work.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core import intervals
from stepscope.core.arrays import distinct_values
from stepscope.core.hardware import known
from stepscope.core.names import is_tensor_core, transfer_kind
from stepscope.core.patterns import regex
from stepscope.core.schema import ALLOCATIONS, DEVICE_TYPES, DEVICES, HLO_OPS, KERNEL_METRICS, KERNELS, STEPS, TRANSFERS
from stepscope.readers.common.columns import ABSENT, nullable, text_column
from stepscope.readers.common.span_builder import (
    CALLS,
    CODE,
    WORK,
    Tracks,
    believable,
    launches,
    note_coverage,
    operators,
    parents,
    span_table,
    step_column,
    step_of,
    steps_of,
    unique,
)
from stepscope.readers.xplane._decode import instructions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.readers.common.protobuf import Wire
    from stepscope.readers.common.source import IssueLog
    from stepscope.readers.common.span_builder import Sorted
    from stepscope.readers.xplane._decode import Plane, Space

    Rows = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_DEVICE = regex(r"/device:(?P<type>[A-Za-z]+):(?P<index>\d{1,5})(?: .*)?")
_STREAM = regex(r"Stream #(\d{1,9})")
_OPERATIONS, _STEPS = "XLA Ops", "Steps"
_MEMORY = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
_ALLOCATOR = regex(r"(?i)(?:GPU|TPU|device)[_:](\d{1,5})")
_FRAMEWORK_OP = regex(r"[\w.][\w.\\/>-]*:\w+")
_INPUT = regex(r"IteratorGetNext(?:AsOptional)?Op::DoCompute")
_LAUNCH = regex(r"(\w+):([\d.]+(?:,\d+)*)")
_BYTES = regex(r"\bsize:(\d{1,15})")
#: XLA once wrote it without a t.
_BANDWIDTH = ("peak_hbm_bw_gigabytes_per_second", "peak_hbm_bw_gigabyes_per_second")
#: Metrics of a kernel, and the statistics that they come from.
_METRICS = {"flops": ("flops", "FLOP"), "model_flops": ("model_flops", "FLOP"), "bytes": ("bytes_accessed", "bytes")}


class Lines(msgspec.Struct, frozen=True):
    """What each line of the file is: its track, its device (0: the host), and whether it holds the device's work.

    `is_stream`: the work has names of kernels; else it has names of operations. `is_steps`: its events are steps.
    """

    tracks: pl.DataFrame
    devices: pl.DataFrame
    track: NDArray[np.uint32]
    device: Rows
    is_work: Flags
    is_stream: Flags
    is_steps: Flags


def build_lines(space: Space, rank: int | None, host: str | None) -> Lines:
    """Tracks of the lines that have events, and the devices that they belong to."""
    used = np.bincount(space.line, minlength=len(space.lines)) > 0
    tracks = Tracks()
    devices: dict[str, int] = {}
    planes = [_DEVICE.fullmatch(plane.name) for plane in space.planes]
    with_streams = {line.plane for i, line in enumerate(space.lines) if used[i] and _STREAM.match(line.name)}
    rows = []
    for i, line in enumerate(space.lines):
        plane, match = space.planes[line.plane], planes[line.plane]
        stream = _STREAM.match(line.name)
        is_work = match is not None and (stream is not None if line.plane in with_streams else line.name == _OPERATIONS)
        if not used[i]:
            rows.append((0, 0, False, False, False))
            continue
        key = "" if match is None else f"/device:{match['type']}:{match['index']}"
        device = devices.setdefault(key, len(devices) + 1) if match else 0
        track = tracks.id(
            i,
            pid=plane.facts.get("process_id") if isinstance(plane.facts.get("process_id"), int) else None,
            tid=line.id if match is None and 0 < line.id < 1 << 32 else None,
            device_id=device or None,
            stream=int(stream[1]) if match and stream else None,
            kind="thread" if match is None else "stream" if is_work else "annotation",
            process=plane.name,
            label=line.name,
        )
        rows.append((track, device, is_work, stream is not None, match is not None and line.name == _STEPS))
    columns = list(zip(*rows, strict=True)) or [()] * 5
    return Lines(
        tracks.table(rank, host),
        _devices(space.planes, devices),
        np.array(columns[0], np.uint32),
        np.array(columns[1], np.int64),
        *(np.array(flags, np.bool_) for flags in columns[2:]),
    )


def _devices(planes: list[Plane], used: Mapping[str, int]) -> pl.DataFrame:
    rows: list[tuple[Any, ...]] = [(0, "cpu", None, None, None, None, None, None, None)]
    facts = {plane.name: plane.facts for plane in reversed(planes)}
    vendors = {str(plane.facts.get("device_vendor", "")).upper() for plane in planes}
    for name, device_id in used.items():
        match = _DEVICE.fullmatch(name)
        own = facts.get(name, {})
        word = match["type"].lower() if match else ""
        kind = ("rocm" if "AMD" in vendors else "cuda") if word == "gpu" else word
        major, minor = own.get("compute_cap_major"), own.get("compute_cap_minor")
        units = _number(own, "core_count", 2**31) if word == "gpu" else None
        memory, clock_khz = _number(own, "memory_size", 2**62), _number(own, "clock_rate", 2**40)
        clock = None if clock_khz is None else clock_khz * 1e3
        title = own.get("device_type_string") or known().name_of(units=units, clock_hz=clock, memory_bytes=memory)
        rows.append((
            device_id,
            kind if kind in DEVICE_TYPES else "accelerator",
            int(match["index"]) if match else None,
            title if isinstance(title, str) and title else None,
            units,
            memory,
            f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None,
            _rate(own, ("peak_teraflops_per_second", 1e12)),
            _rate(own, ("memory_bandwidth", 1), *((name, 1e9) for name in _BANDWIDTH)),
        ))  # fmt: skip
    return DEVICES.of_rows(rows)


def _number(facts: Mapping[str, Any], name: str, below: int) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and 0 < value < below else None


def _rate(facts: Mapping[str, Any], *names: tuple[str, float]) -> float | None:
    """The first of the rates that the plane has, times its unit."""
    rates = (facts[name] * unit for name, unit in names if isinstance(facts.get(name), int | float))
    return next((rate for rate in rates if 0 < rate < 1e24), None)


def build_tables(
    space: Space, wire: Wire, issues: IssueLog, *, rank: int | None, host: str | None
) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables of the trace, and the origin of its time in ns of the recorder's clock."""
    lines, texts = build_lines(space, rank, host), space.text_list()
    is_memory = np.array([text in _MEMORY for text in texts])[space.name][space.metadata]
    rows = np.flatnonzero(~is_memory)
    shows_operation = (lines.device > 0) & ~lines.is_stream
    name = np.where(
        shows_operation[space.line] & (space.display_name[space.metadata] > 0),
        space.display_name[space.metadata],
        space.name[space.metadata],
    )
    number = space.values("step_num")
    numbers: dict[str, int] = {}
    is_step = np.zeros(name.size, np.bool_)
    if number is not None:
        is_step = (number != ABSENT) & (lines.device[space.line] == 0)
        for place in np.flatnonzero(is_step).tolist():
            text = f"{texts[name[place]]} {number[place]}"
            code = space.texts[text.encode()]
            texts += [text] * (code == len(texts))
            name[place], numbers[text] = code, int(number[place])
    calls = space.values("correlation_id")
    correlation = np.full(name.size, ABSENT, np.int64) if calls is None else calls
    hlo = _operations(space, wire, texts)
    kinds, kind = unique(np.where(hlo.category == ABSENT, 0, hlo.category))
    spans = believable(
        space.ts[rows],
        np.where(space.end == ABSENT, ABSENT, space.end - space.ts)[rows],
        lines.track[space.line[rows]],
        name[rows].astype(np.uint32),
        kind[rows].astype(np.uint32),
        issues,
        "events without a usable time were dropped",
    )
    # Rows of the events that are spans, in the order of the spans.
    order = np.empty(spans.ts.size, np.int64)
    order[spans.position[spans.position >= 0]] = rows[spans.position >= 0]
    line = space.line[order]
    category = _categories(
        spans,
        texts,
        lines,
        line,
        is_call=correlation[order] > 0,
        is_hlo=hlo.operation[order] > 0,
        is_step=is_step[order],
        is_copy=_codes(space, "memcpy_details")[order] > 0,
    )
    is_device, is_call = lines.device[line] > 0, np.isin(category, CALLS)
    is_work = np.isin(category, WORK) & is_device
    launch = launches(correlation[order], is_call, is_work)
    parent = parents(spans.ts, spans.dur, spans.track, ~is_device)
    op = operators(category, is_device, parent, launch)
    steps, step = steps_of(spans, category == CODE["step"], texts, numbers.get, launch, rank)
    if steps.is_empty():
        steps, step = _steps_of_devices(spans, texts, lines, line, rank)
    recorded = [texts[code] or None for code in kinds.tolist()]
    links = {"parent_id": parent, "launch_id": launch, "op_id": op}
    note_coverage(spans.dur, is_work, launch, issues)
    tables = {
        "tracks": lines.tracks,
        "devices": lines.devices,
        "spans": span_table(spans, texts, recorded, category, step, {"correlation": correlation[order]}, links),
        "steps": steps,
        "kernels": _kernels(space, spans, texts, order, np.flatnonzero(is_work & (category == CODE["kernel"]))),
        "transfers": _transfers(space, spans, texts, order, np.flatnonzero(is_work & (category != CODE["kernel"]))),
        "kernel_metrics": _metrics(space, order, np.flatnonzero(is_work)),
        "hlo_ops": hlo.table(space, texts, order, np.flatnonzero(~is_call & ~is_step[order])),
        "allocations": _allocations(space, lines, texts, np.flatnonzero(is_memory), spans.origin_ns),
    }
    return {name: frame for name, frame in tables.items() if not frame.is_empty()}, spans.origin_ns


def _categories(
    spans: Sorted,
    texts: list[str],
    lines: Lines,
    line: NDArray[np.int32],
    *,
    is_call: Flags,
    is_hlo: Flags,
    is_step: Flags,
    is_copy: Flags,
) -> NDArray[np.uint8]:
    """Category codes: what the line is, then what the event has, then what its name says."""
    is_work, is_host = lines.is_work[line], lines.device[line] == 0
    category = np.where(is_work, CODE["kernel"], np.where(is_host, CODE["other"], CODE["device_range"])).astype(
        np.uint8
    )
    category[is_host & is_hlo] = CODE["operator"]
    used = distinct_values(spans.name)
    on_host, on_device = (np.full(len(texts), 255, np.uint8) for _ in range(2))
    for code in used.tolist():
        text = texts[code]
        if text.startswith("$"):
            on_host[code] = CODE["python"]
        elif _INPUT.match(text):
            on_host[code] = CODE["dataloader"]
        elif _FRAMEWORK_OP.fullmatch(text):
            on_host[code] = CODE["operator"]
        if (kind := transfer_kind(text)) != "unknown" and text.lower().startswith(("memcpy", "memset")):
            on_device[code] = CODE["memset" if kind == "memset" else "memcpy"]
    category[is_work & is_copy] = CODE["memcpy"]
    for rows, by_name in ((is_host, on_host[spans.name]), (is_work, on_device[spans.name])):
        category = np.where(rows & (by_name != 255), by_name, category)
    category[is_host & is_call] = CODE["runtime"]
    category[is_step] = CODE["step"]
    operations = np.flatnonzero(is_work & ~lines.is_stream[line])
    if operations.size:  # an operation around others
        outer = intervals.enclosing(
            spans.ts[operations],
            spans.ts[operations] + spans.dur[operations],
            spans.track[operations].astype(np.int64),
        )
        category[operations[outer[outer >= 0]]] = CODE["device_range"]
    return category


def _steps_of_devices(
    spans: Sorted, texts: list[str], lines: Lines, line: NDArray[np.int32], rank: int | None
) -> tuple[pl.DataFrame, pl.Series]:
    """Steps as the devices have them, where the host marked none: each as long as on the device that took longest."""
    frames = []
    for device in distinct_values(lines.device[lines.is_steps]).tolist():
        rows = np.flatnonzero(lines.is_steps[line] & (lines.device[line] == device))
        rows = rows[[texts[code].isdecimal() and len(texts[code]) < 10 for code in spans.name[rows].tolist()]]
        number = np.array([int(texts[code]) for code in spans.name[rows].tolist()], np.int64)
        frames.append(pl.DataFrame({"step": number, "ts_ns": spans.ts[rows], "dur_ns": spans.dur[rows]}))
    if not frames:
        return STEPS.empty(), pl.repeat(None, spans.ts.size, dtype=pl.Int32, eager=True)
    longest = pl.concat(frames).sort("dur_ns", descending=True, maintain_order=True).unique("step", keep="first")
    own = longest.sort("ts_ns").with_columns(rank=pl.lit(rank, pl.Int32), source=pl.lit("annotation"))
    starts, ends = own["ts_ns"].to_numpy(), (own["ts_ns"] + own["dur_ns"]).to_numpy()
    ends = np.minimum(ends, np.append(starts[1:], np.iinfo(np.int64).max))
    return STEPS.conform(own), step_column(step_of(spans.ts, starts, ends, own["step"].to_numpy()))


class _Operations(msgspec.Struct, frozen=True):
    """The operation of each event and what is known of it, as codes; 0 or ABSENT: unknown."""

    operation: Rows
    module: Rows
    program: Rows
    category: Rows
    framework_op: Rows
    source: Rows

    def table(self, space: Space, texts: list[str], order: Rows, wanted: Rows) -> pl.DataFrame:
        """The `hlo_ops` table of the spans that execute an operation."""
        rows = wanted[self.operation[order[wanted]] > 0]
        if not rows.size:
            return HLO_OPS.empty()
        at = order[rows]
        shape = _codes(space, "shape_with_layout")
        columns = {
            "operation": self.operation, "module": self.module, "framework_op": self.framework_op,
            "source": self.source, "shape": shape,
        }  # fmt: skip
        frame = pl.DataFrame({
            "span_id": rows.astype(np.uint32),
            "program_id": nullable(self.program[at], pl.Int64()),
            **{name: text_column(codes[at].astype(np.uint32), texts) for name, codes in columns.items()},
        })  # fmt: skip
        return HLO_OPS.conform(frame)


def _codes(space: Space, *names: str) -> Rows:
    """The first of the texts that each event has, as codes; 0 for none."""
    codes = np.zeros(space.ts.size, np.int64)
    for name in names:
        values = space.values(name)
        if values is not None:
            codes = np.where((codes == 0) & (values != ABSENT), values, codes)
    return codes


def _operations(space: Space, wire: Wire, texts: list[str]) -> _Operations:
    """Operations by the statistics of events and, where these lack something, by the modules in the file."""
    operation, module, category = (_codes(space, name) for name in ("hlo_op", "hlo_module", "hlo_category"))
    # An operation of a TPU has its category, and its own name is that of the event.
    shown = np.where(space.display_name > 0, space.display_name, space.name)[space.metadata]
    operation = np.where((operation == 0) & (category > 0), shown, operation)
    xla = space.texts.get(b"XlaModule:", -1)
    given = _codes(space, "tf_op")
    framework_op = np.where((given > 0) & (given != xla), given, _codes(space, "name", "annotation"))
    source, program = _codes(space, "source"), space.values("program_id")
    program = np.full(operation.size, ABSENT, np.int64) if program is None else program
    bare = np.flatnonzero((operation > 0) & ((category == 0) | (source == 0)) & (program != ABSENT))
    if bare.size and space.modules:
        pairs, inverse = np.unique(np.stack([program[bare], operation[bare]]), axis=1, return_inverse=True)
        known: dict[int, dict[str, tuple[str, str, str]]] = {}
        rows = []
        for number, code in pairs.T.tolist():
            if number not in known:
                known[number] = instructions(wire, space.modules[number]) if number in space.modules else {}
            rows.append([space.texts[text.encode()] for text in known[number].get(texts[code], ("", "", ""))])
        texts += [text.decode("utf-8", "replace") for text in list(space.texts)[len(texts) :]]
        of_module = np.array(rows, np.int64)[inverse.ravel()]
        for column, i in ((category, 0), (source, 2)):
            column[bare] = np.where(column[bare] == 0, of_module[:, i], column[bare])
        # Events name the operation of one of the parts that a fusion has; its own is that of the module.
        framework_op[bare] = np.where(of_module[:, 1] > 0, of_module[:, 1], framework_op[bare])
    return _Operations(operation, module, program, category, framework_op, source)


def _kernels(space: Space, spans: Sorted, texts: list[str], order: Rows, rows: Rows) -> pl.DataFrame:
    """The `kernels` table: every kernel span, with its launch configuration where recorded."""
    if not rows.size:
        return KERNELS.empty()
    details, place = unique(_codes(space, "kernel_details")[order[rows]])
    launch = pl.DataFrame([_launch(texts[code]) for code in details.tolist()], schema=_LAUNCH_TYPES, orient="row")
    names, of_name = unique(spans.name[rows].astype(np.int64))
    tensor_core = pl.Series([is_tensor_core(texts[code]) for code in names.tolist()], dtype=pl.Boolean)
    own = pl.DataFrame({"span_id": rows.astype(np.uint32), "tensor_core": tensor_core.gather(of_name)})
    return KERNELS.conform(own.hstack(launch[place]))


_LAUNCH_TYPES = {
    name: KERNELS.dtypes[name]
    for name in (
        "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes",
        "est_occupancy_ratio",
    )
}  # fmt: skip


def _launch(details: str) -> tuple[float | None, ...]:
    """Grid, block, registers, shared memory and occupancy of `regs:38 shm:0 grid:160,1,1 block:1024,1,1`."""
    have = {key: value.split(",") for key, value in _LAUNCH.findall(details)}

    def sizes(key: str, n: int) -> list[int | None]:
        numbers = have.get(key, [])
        sound = len(numbers) == n and all(number.isdecimal() and len(number) < 10 for number in numbers)
        return [int(number) for number in numbers] if sound else [None] * n

    shared = [sizes(key, 1)[0] for key in ("shm", "static_shared", "dynamic_shared", "group_mem")]
    known = [size for size in shared if size is not None]
    share = have.get("occ_pct", ["0"])[0]
    occupancy = float(share) if re.fullmatch(r"\d{1,3}(?:\.\d*)?", share) else 0.0
    return (
        *sizes("grid", 3), *sizes("block", 3), *sizes("regs", 1), sum(known) if known else None,
        occupancy / 100 or None,  # 0 is written where it was not computed
    )  # fmt: skip


def _transfers(space: Space, spans: Sorted, texts: list[str], order: Rows, rows: Rows) -> pl.DataFrame:
    """The `transfers` table: every copy and fill."""
    if not rows.size:
        return TRANSFERS.empty()
    details, place = unique(_codes(space, "memcpy_details")[order[rows]])
    sizes = [int(match[1]) if (match := _BYTES.search(texts[code])) else ABSENT for code in details.tolist()]
    names, of_name = unique(spans.name[rows].astype(np.int64))
    frame = pl.DataFrame({
        "span_id": rows.astype(np.uint32),
        "bytes": nullable(np.array(sizes, np.int64)[place], pl.Int64()),
        "kind": text_column(of_name, [transfer_kind(texts[code]) for code in names.tolist()]),
    })  # fmt: skip
    return TRANSFERS.conform(frame)


def _metrics(space: Space, order: Rows, rows: Rows) -> pl.DataFrame:
    """The `kernel_metrics` table: the operations and bytes that XLA counts for each kernel."""
    frames = [KERNEL_METRICS.empty()]
    for metric, (stat, unit) in _METRICS.items():
        values = space.values(stat)
        if values is not None:
            have = rows[values[order[rows]] >= 0]
            frame = pl.DataFrame({"span_id": have.astype(np.uint32), "value": values[order[have]].astype(np.float64)})
            named = frame.with_columns(metric=pl.lit(metric), unit=pl.lit(unit))
            frames.append(KERNEL_METRICS.conform(named))
    return pl.concat(frames).sort("span_id", maintain_order=True)


def _allocations(space: Space, lines: Lines, texts: list[str], rows: Rows, origin_ns: int) -> pl.DataFrame:
    """The `allocations` table of the allocators' events, in order of time."""
    columns = {
        name: space.values(name) for name in ("allocation_bytes", "bytes_allocated", "peak_bytes_in_use", "addr")
    }
    size = columns["allocation_bytes"]
    if size is None or not rows.size:
        return ALLOCATIONS.empty()
    rows = rows[(size[rows] != ABSENT) & (space.ts[rows] != ABSENT)]
    rows = rows[np.argsort(space.ts[rows], kind="stable")]
    absent = np.full(space.ts.size, ABSENT, np.int64)
    of = {name: (absent if column is None else column)[rows] for name, column in columns.items()}
    names = [texts[code] for code in space.name[space.metadata[rows]].tolist()]
    place = _codes(space, "allocator_name")[rows]
    allocators, of_allocator = unique(place)
    by_index = {
        index: device_id for device_id, index in lines.devices.select("device_id", "index").rows() if index is not None
    }
    owners = [
        by_index.get(int(match[1]), -1) if (match := _ALLOCATOR.search(texts[code])) else 0
        for code in allocators.tolist()
    ]
    frame = pl.DataFrame({
        "ts_ns": space.ts[rows] - origin_ns,
        "track_id": lines.track[space.line[rows]],
        "device_id": nullable(np.array(owners, np.int64)[of_allocator], pl.UInt32(), -1),
        "address": nullable(of["addr"].view(np.uint64), pl.UInt64(), ABSENT % 2**64),
        "bytes": of["allocation_bytes"] * np.array([_MEMORY[text] for text in names], np.int64),
        "total_allocated_bytes": nullable(of["bytes_allocated"], pl.Int64()),
        "recorded_category": pl.Series(names),
        "place": text_column(place.astype(np.uint32), texts),
        "peak_allocated_bytes": nullable(of["peak_bytes_in_use"], pl.Int64()),
    })  # fmt: skip
    return ALLOCATIONS.conform(frame)
