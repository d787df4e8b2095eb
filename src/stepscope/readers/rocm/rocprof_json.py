"""rocprofv3's JSON: one document, which holds every process' records under `rocprofiler-sdk-tool`."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from stepscope.core.errors import CorruptInput
from stepscope.readers.rocm.rocprof_records import AGENTS, CALLS, COPIES, DISPATCHES, METRICS, Records, stacked

_GPU = 2
_CALLS = ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api")


class _Handle(msgspec.Struct):
    handle: int = 0


class _Correlation(msgspec.Struct):
    internal: int = 0


class _Dims(msgspec.Struct):
    x: int = 0
    y: int = 0
    z: int = 0


class _Info(msgspec.Struct):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int = 0
    dispatch_id: int = 0
    group_segment_size: int | None = None
    workgroup_size: _Dims = msgspec.field(default_factory=_Dims)
    grid_size: _Dims = msgspec.field(default_factory=_Dims)


class _Dispatch(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    dispatch_info: _Info
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    stream_id: _Handle | None = None


class _Call(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    thread_id: int | None = None
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)


class _Copy(_Call):
    src_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    bytes: int | None = None
    stream_id: _Handle | None = None


class _Buffers(msgspec.Struct):
    kernel_dispatch: list[_Dispatch] = []
    memory_copy: list[_Copy] = []
    hip_api: list[_Call] = []
    hsa_api: list[_Call] = []
    marker_api: list[_Call] = []
    rccl_api: list[_Call] = []
    rocdecode_api: list[_Call] = []
    rocjpeg_api: list[_Call] = []


class _Value(msgspec.Struct):
    counter_id: _Handle = msgspec.field(default_factory=_Handle)
    value: float = 0.0


class _DispatchData(msgspec.Struct):
    dispatch_info: _Info = msgspec.field(default_factory=_Info)


class _Collection(msgspec.Struct):
    dispatch_data: _DispatchData = msgspec.field(default_factory=_DispatchData)
    records: list[_Value] = []


class _Callbacks(msgspec.Struct):
    counter_collection: list[_Collection] = []


class _Bank(msgspec.Struct):
    size_in_bytes: int = 0


class _Agent(msgspec.Struct):
    id: _Handle
    type: int = 0
    name: str | None = None
    product_name: str | None = None
    cu_count: int | None = None
    logical_node_type_id: int | None = None
    mem_banks: list[_Bank] = []


class _Symbol(msgspec.Struct):
    kernel_id: int
    formatted_kernel_name: str | None = None
    kernel_name: str | None = None
    arch_vgpr_count: int | None = None


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _Counter(msgspec.Struct):
    id: _Handle
    name: str = ""


class _Node(msgspec.Struct):
    hostname: str | None = None


class _Metadata(msgspec.Struct):
    node: _Node = msgspec.field(default_factory=_Node)
    pid: int | None = None


class _Tool(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_Agent] = []
    counters: list[_Counter] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    callback_records: _Callbacks = msgspec.field(default_factory=_Callbacks)
    buffer_records: _Buffers = msgspec.field(default_factory=_Buffers)


class _Document(msgspec.Struct):
    tools: list[_Tool] = msgspec.field(name="rocprofiler-sdk-tool")


def read_json(text: bytes, label: str) -> Records:
    """The records of a document. Raises CorruptInput (not JSON, or not of that shape)."""
    try:
        tools = msgspec.json.decode(text, type=_Document).tools
    except (ValueError, RecursionError) as error:
        raise CorruptInput(f"rocprofv3 JSON that cannot be read: {error}", "copy it again", path=label) from None
    parts = [_records(tool) for tool in tools]
    return Records(
        dispatches=stacked(DISPATCHES, [p["dispatches"] for p in parts]),
        calls=stacked(CALLS, [p["calls"] for p in parts]),
        copies=stacked(COPIES, [p["copies"] for p in parts]),
        metrics=stacked(METRICS, [p["metrics"] for p in parts]),
        agents=stacked(AGENTS, [p["agents"] for p in parts]).unique("agent", keep="first", maintain_order=True),
        host=next((tool.metadata.node.hostname for tool in tools), None),
    )


def _records(tool: _Tool) -> dict[str, pl.DataFrame]:
    pid = tool.metadata.pid
    agents = [
        (str(a.id.handle), a.logical_node_type_id, a.product_name, a.name, a.cu_count, _memory(a))
        for a in tool.agents
        if a.type == _GPU
    ]
    return {
        "agents": _frame(agents, AGENTS.dtypes),
        "dispatches": _dispatches(tool, pid),
        "copies": _copies(tool, pid, {row[0] for row in agents}),
        "calls": _calls(tool, pid),
        "metrics": _metrics(tool),
    }


def _frame(rows: list[tuple[Any, ...]], schema: Any) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(schema), orient="row")


def _memory(agent: _Agent) -> int | None:
    return sum(bank.size_in_bytes for bank in agent.mem_banks) or None


def _dispatches(tool: _Tool, pid: int | None) -> pl.DataFrame:
    symbols = {s.kernel_id: s for s in tool.kernel_symbols}
    none = _Symbol(0)
    rows = []
    for record in tool.buffer_records.kernel_dispatch:
        info = record.dispatch_info
        symbol, group, grid = symbols.get(info.kernel_id, none), info.workgroup_size, info.grid_size
        rows.append((
            record.start_timestamp, record.end_timestamp, symbol.formatted_kernel_name or symbol.kernel_name,
            str(info.agent_id.handle), info.queue_id.handle, record.stream_id and record.stream_id.handle, pid,
            record.correlation_id.internal, info.dispatch_id, group.x, group.y, group.z, grid.x, grid.y, grid.z,
            symbol.arch_vgpr_count, info.group_segment_size,
        ))  # fmt: skip
    return _frame(rows, DISPATCHES.dtypes)


def _calls(tool: _Tool, pid: int | None) -> pl.DataFrame:
    kinds = tool.strings.buffer_records
    texts = {text.key: text.value for text in tool.strings.marker_api}
    rows = []
    for table in _CALLS:
        for call in getattr(tool.buffer_records, table):
            kind = kinds[call.kind] if call.kind < len(kinds) else _Kind()
            name = kind.operations[call.operation] if call.operation < len(kind.operations) else table
            if table == "marker_api":
                name = texts.get(call.correlation_id.internal, name)
            domain = kind.kind or table
            corr = call.correlation_id.internal
            rows.append((call.start_timestamp, call.end_timestamp, name, domain, pid, call.thread_id, corr, None))
    return _frame(rows, CALLS.dtypes)


def _copies(tool: _Tool, pid: int | None, gpus: set[str]) -> pl.DataFrame:
    kinds = tool.strings.buffer_records
    rows = []
    for copy in tool.buffer_records.memory_copy:
        kind = kinds[copy.kind] if copy.kind < len(kinds) else _Kind()
        word = kind.operations[copy.operation] if copy.operation < len(kind.operations) else "memory copy"
        target, source = str(copy.dst_agent_id.handle), str(copy.src_agent_id.handle)
        agent = source if source in gpus and target not in gpus else target
        stream = copy.stream_id and copy.stream_id.handle
        corr = copy.correlation_id.internal
        rows.append((copy.start_timestamp, copy.end_timestamp, word, copy.bytes, agent, stream, None, pid, corr))
    return _frame(rows, COPIES.dtypes)


def _metrics(tool: _Tool) -> pl.DataFrame:
    names = {counter.id.handle: counter.name for counter in tool.counters}
    rows = [
        (collection.dispatch_data.dispatch_info.dispatch_id, names.get(v.counter_id.handle), v.value)
        for collection in tool.callback_records.counter_collection
        for v in collection.records
    ]
    return _frame(rows, METRICS.dtypes)
