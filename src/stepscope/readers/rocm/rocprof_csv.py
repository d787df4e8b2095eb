"""rocprofv3's CSV files: a file for each kind of record, which belong together by the beginning of their names."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.core.patterns import regex
from stepscope.readers.common.source import Source
from stepscope.readers.rocm.rocprof_files import family, has_header, kind_of
from stepscope.readers.rocm.rocprof_records import AGENTS, AXES, CALLS, COPIES, DISPATCHES, METRICS, Records, stacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.readers.common.source import IssueLog

_AGENT = regex(r"^(?:Agent|GPU)\s+")
#: Columns of rocprof-compute's table that are no counters.
_PMC_FACTS = regex(
    r"^(?:Dispatch_ID|Kernel_Name|GPU_ID|Grid_Size|Workgroup_Size|LDS_Per_Workgroup|Scratch_Per_Workitem|Arch_VGPR"
    r"|Accum_VGPR|SGPR|queue-\w+|[pt]id|sig|\w+Ns|(?:Start|End)_Timestamp|(?:wave_size|obj|Correlation_ID)(?:_\d+)?)$"
)


def read_csv(source: Source, issues: IssueLog) -> Records:
    """The records of a file and of those that belong to it. Raises CorruptInput, UnknownFormat, StepscopeError."""
    paths = family(source.path) if source.member is None else [source.path]
    frames: dict[str, list[pl.DataFrame]] = {"dispatches": [], "calls": [], "copies": [], "metrics": [], "agents": []}
    for path in paths:
        text = source if path == source.path else Source(path, None, source.max_bytes)
        raw, kind = _table(text)
        for name, read in _READ[kind].items():
            frames[name].append(read(raw))
    if all(frame.is_empty() for name, frames_of in frames.items() if name != "agents" for frame in frames_of):
        hint = "rocprofv3 recorded nothing: trace the process that uses the device, with --kernel-trace"
        raise CorruptInput("a header and no rows", hint, path=source.label)
    known = stacked(DISPATCHES, frames["dispatches"]).unique("dispatch", keep="first", maintain_order=True)
    timed = known.drop_nulls(["start", "end"])
    sound = known if timed.is_empty() else timed  # counters alone may come without any times
    calls, copies = stacked(CALLS, frames["calls"]), stacked(COPIES, frames["copies"])
    whole = [frame.drop_nulls(["start", "end"]) for frame in (calls, copies)]
    lost = sum(a.height - b.height for a, b in zip((known, calls, copies), (sound, *whole), strict=True))
    issues.add("incomplete_rows", "warning", lost, "rows without a start or an end were dropped")
    return Records(
        dispatches=sound,
        calls=whole[0],
        copies=whole[1],
        metrics=stacked(METRICS, frames["metrics"]).drop_nulls(),
        agents=stacked(AGENTS, frames["agents"]),
    )


def _table(source: Source) -> tuple[pl.DataFrame, str]:
    text = b"".join(source.chunks())
    kind = kind_of(text[: 1 << 16])
    if source.damage or kind is None:
        what = source.damage or "its first line is not a header of rocprofv3"
        raise CorruptInput(what, "copy the file again", path=source.label)
    if kind == "stats":
        what = f"{source.label} is a summary by name, without single launches"
        raise UnknownFormat(what, "read the _trace.csv files that rocprofv3 wrote next to it")
    try:
        frame = pl.read_csv(io.BytesIO(text), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))  # a blank line at the end
    except pl.exceptions.PolarsError as error:
        raise CorruptInput(str(error).splitlines()[0], "copy the file again", path=source.label) from None
    if not has_header(kind, frame.columns):  # quotes that end elsewhere
        raise CorruptInput("its header is damaged", "copy the file again", path=source.label)
    return frame, kind


def _number(raw: pl.DataFrame, *names: str) -> pl.Expr:
    """The first of these columns that exists, as whole numbers; null if none does."""
    name = next((n for n in names if n in raw.columns), None)
    return pl.lit(None, pl.Int64) if name is None else pl.col(name).cast(pl.Int64, strict=False)


def _agent(raw: pl.DataFrame, *names: str) -> pl.Expr:
    name = next((n for n in names if n in raw.columns), None)
    return pl.lit(None, pl.String) if name is None else pl.col(name).str.replace(_AGENT.pattern, "")


def _window(raw: pl.DataFrame) -> dict[str, pl.Expr]:
    """What all records of work have."""
    columns = {"start": "Start_Timestamp", "end": "End_Timestamp", "correlation": "Correlation_Id"}
    return {name: _number(raw, column) for name, column in columns.items()}


def _launches(raw: pl.DataFrame) -> pl.DataFrame:
    return raw.select(
        **_window(raw),
        name=pl.col("Kernel_Name"),
        agent=_agent(raw, "Agent_Id"),
        queue=_number(raw, "Queue_Id"),
        stream=_number(raw, "Stream_Id"),
        pid=_number(raw, "Process_Id"),
        dispatch=_number(raw, "Dispatch_Id"),
        **{f"group_{a}": _number(raw, f"Workgroup_Size_{a.upper()}") for a in AXES},
        **{f"grid_{a}": _number(raw, f"Grid_Size_{a.upper()}") for a in AXES},
        registers=_number(raw, "VGPR_Count"),
        shared_bytes=_number(raw, "LDS_Block_Size", "Group_Segment_Size"),
    )


def _counted(raw: pl.DataFrame) -> pl.DataFrame:
    """The launches that counters are of: these know their whole size only, not its three parts."""
    return raw.select(
        **_window(raw),
        name=pl.col("Kernel_Name"),
        agent=_agent(raw, "Agent_Id", "GPU_ID"),
        queue=_number(raw, "Queue_Id", "queue-id"),
        dispatch=_number(raw, "Dispatch_Id", "Dispatch_ID"),
        group_x=_number(raw, "Workgroup_Size"),
        grid_x=_number(raw, "Grid_Size"),
        **{f"{what}_{a}": pl.lit(1, pl.Int64) for what in ("group", "grid") for a in "yz"},
        registers=_number(raw, "VGPR_Count", "Arch_VGPR"),
        shared_bytes=_number(raw, "LDS_Block_Size", "LDS_Per_Workgroup"),
    )


def _metrics(raw: pl.DataFrame) -> pl.DataFrame:
    if "Counter_Name" in raw.columns:
        value = pl.col("Counter_Value").cast(pl.Float64, strict=False)
        return raw.select(dispatch=_number(raw, "Dispatch_Id"), metric="Counter_Name", value=value)
    names = [name for name in raw.columns if not _PMC_FACTS.match(name)]
    wide = raw.select(pl.col(names).cast(pl.Float64, strict=False), dispatch=_number(raw, "Dispatch_ID"))
    wide = wide.unique("dispatch", keep="first", maintain_order=True)  # as of the dispatches themselves
    return wide.unpivot(index="dispatch", variable_name="metric", value_name="value")


def _calls(raw: pl.DataFrame) -> pl.DataFrame:
    where = {"pid": _number(raw, "Process_Id"), "tid": _number(raw, "Thread_Id")}
    return raw.select(**_window(raw), **where, name="Function", domain="Domain")


def _copies(raw: pl.DataFrame) -> pl.DataFrame:
    source, target = _agent(raw, "Source_Agent_Id"), _agent(raw, "Destination_Agent_Id")
    return raw.select(
        **_window(raw),
        kind="Direction",
        bytes=_number(raw, "Size", "Bytes"),
        agent=pl.when(pl.col("Direction").str.contains("DEVICE_TO_HOST")).then(source).otherwise(target),
        stream=_number(raw, "Stream_Id"),
    )


def _agents(raw: pl.DataFrame) -> pl.DataFrame:
    product = [name for name in ("Product_Name", "Model_Name") if name in raw.columns]
    return raw.filter(pl.col("Agent_Type") == "GPU").select(
        agent="Node_Id",
        index=pl.int_range(pl.len(), dtype=pl.Int64),
        name=pl.coalesce([*product, "Name"]),
        arch="Name",
        cu_count=_number(raw, "Cu_Count"),
    )


_COUNTERS: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {"dispatches": _counted, "metrics": _metrics}
#: What each kind of file holds, by the table that it is a part of.
_READ: dict[str, dict[str, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    "kernel_trace": {"dispatches": _launches},
    "counter_collection": _COUNTERS,
    "pmc_perf": _COUNTERS,
    "memory_copy_trace": {"copies": _copies},
    "api_trace": {"calls": _calls},
    "agent_info": {"agents": _agents},
}
