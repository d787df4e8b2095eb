"""AMD's two databases: rocpd of ROCm 7 (schema 3), and the .rpd of rocmProfileData (schema 2)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import UnknownFormat, UnsupportedVersion
from stepscope.core.patterns import regex
from stepscope.readers.rocm.rocprof_records import AGENTS, AXES, CALLS, COPIES, DISPATCHES, METRICS, Records, stacked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.readers.common.sqlite import Database

_OPERATOR = regex(r"^aten::\w+$")


def read_database(db: Database, label: str) -> Records:
    """The records of either. Raises UnknownFormat, UnsupportedVersion."""
    if "rocpd_op" in db and "rocpd_api" in db:
        return _rpd(db)
    table = _physical(db, "rocpd_kernel_dispatch")
    if table is None:
        hint = "see `stepscope formats` for what can be read"
        raise UnknownFormat(f"{label} is an SQLite database, but not of AMD's profilers", hint)
    if "start" not in db.columns_of(table):
        what = f"{label} is a rocpd database of an unknown version"
        raise UnsupportedVersion(what, "convert it: rocpd convert -i FILE --output-format csv")
    return _rocpd(db)


def _physical(db: Database, name: str) -> str | None:
    """The view of that name over all processes, or the table of the only process, whose name has an id."""
    tables = [table for table in db.tables if table == name or re.fullmatch(rf"{name}_[0-9a-f_]{{8,}}", table)]
    return min(tables, key=len) if tables else None


def _frame(db: Database, name: str, columns: Mapping[str, str], texts: Sequence[str] = ()) -> pl.DataFrame:
    """Some columns of the table of that name under our names; empty if there is none."""
    return db.frame(_physical(db, name) or name, columns, texts)


def _named(frame: pl.DataFrame, key: str, of: pl.DataFrame, column: str) -> pl.DataFrame:
    """The frame with a column of keys replaced by their texts or numbers, under the same name."""
    other = of.select(pl.col("id").alias(key), pl.col(column).alias("_found")).unique(key, keep="first")
    joined = frame.join(other, on=key, how="left", maintain_order="left")
    return joined.drop(key).rename({"_found": key})


def _rocpd(db: Database) -> Records:
    strings = _frame(db, "rocpd_string", {"id": "id", "text": "string"}, ["text"])
    symbols = {"id": "id", "text": "display_name", "raw": "kernel_name", "registers": "arch_vgpr_count"}
    symbols_of = _frame(db, "rocpd_info_kernel_symbol", symbols, ["text", "raw"])
    symbols_of = symbols_of.with_columns(text=pl.coalesce("text", "raw"))
    events = _frame(db, "rocpd_event", {"id": "id", "stack": "stack_id", "category": "category_id"})
    processes = _frame(db, "rocpd_info_process", {"id": "id", "pid": "pid"})
    threads = _frame(db, "rocpd_info_thread", {"id": "id", "tid": "tid"})
    agents = _frame(
        db,
        "rocpd_info_agent",
        {"agent": "id", "index": "type_index", "name": "product_name", "arch": "name", "kind": "type"},
        ["name", "arch", "kind"],
    ).filter(pl.col("kind") == "GPU")
    both = {"start": "start", "end": "end", "pid": "pid", "correlation": "event_id"}
    sizes = {f"{new}_{a}": f"{old}_size_{a}" for new, old in (("group", "workgroup"), ("grid", "grid")) for a in AXES}
    launches = _frame(db, "rocpd_kernel_dispatch", both | sizes | {
        "agent": "agent_id", "queue": "queue_id", "stream": "stream_id", "name": "kernel_id", "registers": "kernel_id",
        "dispatch": "dispatch_id", "event": "event_id", "shared_bytes": "group_segment_size",
    })  # fmt: skip
    launches = _named(_named(launches, "name", symbols_of, "text"), "registers", symbols_of, "registers")
    copies = _frame(db, "rocpd_memory_copy", both | {
        "kind": "name_id", "bytes": "size", "dst": "dst_agent_id", "src": "src_agent_id", "stream": "stream_id",
        "queue": "queue_id",
    })  # fmt: skip
    gpus = agents["agent"].implode()
    from_gpu = pl.col("src").is_in(gpus) & ~pl.col("dst").is_in(gpus)
    copies = _named(copies.with_columns(agent=pl.when(from_gpu).then("src").otherwise("dst")), "kind", strings, "text")
    calls = _frame(db, "rocpd_region", both | {"tid": "tid", "name": "name_id", "domain": "event_id"})
    calls = _named(calls, "name", strings, "text")
    calls = _named(_named(calls, "tid", threads, "tid"), "domain", events, "category")
    calls = _named(calls, "domain", strings, "text")
    metrics = _frame(db, "rocpd_pmc_event", {"event": "event_id", "metric": "pmc_id"})
    values = db.column(table, "value") if (table := _physical(db, "rocpd_pmc_event")) else []
    counters = _frame(db, "rocpd_info_pmc", {"id": "id", "text": "symbol"}, ["text"])
    metrics = metrics.with_columns(value=pl.Series(values, dtype=pl.Float64, strict=False))
    of_event = launches.select("event", "dispatch").drop_nulls().unique("event", keep="first")
    metrics = _named(metrics, "metric", counters, "text").join(of_event, on="event", how="left", maintain_order="left")
    tied = [_named(frame, "correlation", events, "stack") for frame in (launches, copies, calls)]
    tied = [_named(frame, "pid", processes, "pid") for frame in tied]
    hosts = db.column(table, "hostname") if (table := _physical(db, "rocpd_info_node")) else []
    return Records(
        dispatches=stacked(DISPATCHES, [tied[0]]),
        copies=stacked(COPIES, [tied[1]]),
        calls=stacked(CALLS, [tied[2]]),
        metrics=stacked(METRICS, [metrics]),
        agents=stacked(AGENTS, [agents]),
        host=hosts[0] if hosts else None,
        facts={"rocpd_schema": "3"},
    )


def _rpd(db: Database) -> Records:
    strings = _frame(db, "rocpd_string", {"id": "id", "text": "string"}, ["text"])
    work = _frame(db, "rocpd_op", {
        "op": "id", "agent": "gpuId", "queue": "queueId", "start": "start", "end": "end", "name": "description_id",
        "kind": "opType_id",
    })  # fmt: skip
    work = _named(_named(work, "name", strings, "text"), "kind", strings, "text")
    links = _frame(db, "rocpd_api_ops", {"op": "op_id", "correlation": "api_id"}).unique("op", keep="first")
    work = work.join(links, on="op", how="left", maintain_order="left")
    grid = {"api": "api_ptr_id", "shared_bytes": "groupSegmentSize"}
    sizes = {f"{new}_{a}": f"{old}{a.upper()}" for new, old in (("group", "workgroup"), ("grid", "grid")) for a in AXES}
    launches = _frame(db, "rocpd_kernelapi", grid | sizes).unique("api", keep="first")
    is_copy = pl.col("kind").fill_null("").str.contains("^(?:Copy|Fill)")
    of_call = pl.col("correlation")
    # A graph's launch is one call with one size, which is not that of the kernels in it.
    kernels = work.filter(~is_copy & (pl.col("name").fill_null("") != "")).with_columns(graph=pl.col("kind") == "Task")
    kernels = kernels.join(launches, left_on=of_call, right_on="api", how="left", maintain_order="left")
    sized = {c: pl.when(~pl.col("graph")).then(c) for c in ("shared_bytes", *sizes)}
    in_groups = {f"grid_{a}": pl.when(~pl.col("graph")).then(pl.col(f"grid_{a}") * pl.col(f"group_{a}")) for a in AXES}
    kernels = kernels.with_columns(**(sized | in_groups))
    copied = _frame(db, "rocpd_copyapi", {"api": "api_ptr_id", "bytes": "size"}).unique("api", keep="first")
    copies = work.filter(is_copy).join(copied, left_on="correlation", right_on="api", how="left", maintain_order="left")
    calls = _frame(db, "rocpd_api", {
        "correlation": "id", "pid": "pid", "tid": "tid", "start": "start", "end": "end", "name": "apiName_id",
        "text": "args_id",
    })  # fmt: skip
    calls = _named(_named(calls, "name", strings, "text"), "text", strings, "text")
    shapes = _frame(db, "ext_autogradapi", {"api": "api_ptr_id", "shapes": "sizes"}, ["shapes"]).unique("api")
    calls = calls.join(shapes, left_on="correlation", right_on="api", how="left", maintain_order="left")
    mark = pl.col("name") == "UserMarker"
    plain = pl.col("text").fill_null("")
    domain = pl.when(~mark).then(pl.lit("HIP")).when(plain.str.contains(_OPERATOR.pattern)).then(pl.lit("operator"))
    calls = calls.with_columns(
        domain=domain.otherwise(pl.lit("ROCTX")),
        name=pl.when(mark).then("text").otherwise("name"),
        shapes=pl.when(plain.str.contains(_OPERATOR.pattern) & (pl.col("shapes") != "")).then(
            pl.col("shapes").str.replace_all(" ", "", literal=True)
        ),
    )
    agents = work.select(agent=pl.col("agent"), index=pl.col("agent")).unique("agent").drop_nulls()
    return Records(
        dispatches=stacked(DISPATCHES, [kernels]),
        copies=stacked(COPIES, [copies]),
        calls=stacked(CALLS, [calls]),
        agents=stacked(AGENTS, [agents]),
        facts={"rocpd_schema": "2"},
    )
