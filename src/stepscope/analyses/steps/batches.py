"""What each batch of an engine that serves a model costs: latency, tokens a second, how well the device is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.batch_names import Batch, batch_of, plain_batches
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.kernel_costs import uses_matrix_units
from stepscope.analyses.costs.op_costs import priced
from stepscope.analyses.costs.roofline import Roofs, roofs_of, with_roofs
from stepscope.core.arrays import distinct_values
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import union_by
from stepscope.core.names import is_graph_launch, map_names
from stepscope.core.schema import DEVICES, KERNELS, OPS, TRACKS
from stepscope.core.table import Column, Table, filtered, is_any_of

By = Literal["batch", "kind", "law"]
Floats = NDArray[np.float64]
_RANGES = ("user_range", "device_range")
#: More are not believed: sums over all batches of a file stay whole numbers of 64 bits.
_MOST_TOKENS = 2**40
#: A law is fitted to at least this many batches of a kind, and checked on parts that it was not fitted to.
_LEAST_BATCHES, _PARTS = 12, 4
_ROUNDS, _EXACT = 30, 1e-3
#: A law is fitted to batches that took at least that part of a first fit: a model that runs reads its weights.
_EMPTY = 0.1
_EMBEDDING = "aten::embedding"
#: A plain range that holds so many others is a loop of batches.
_LOOP = 2
_TERMS = ("n_requests", "n_tokens", "kv_tokens")

BATCHES = Table(
    "batches",
    "what each batch of an engine that serves a model costs",
    (
        Column("batch", pl.Int64(), "number of the batch, in order of time (by batch)", key=True),
        Column("kind", pl.String(), "prefill, decode or mixed", key=True),
        Column("n_batches", pl.Int64(), "batches of that kind (by kind, law)"),
        Column("ts_ns", pl.Int64(), "when the host began it, from the trace's origin (by batch)", "ns"),
        Column("dur_ns", pl.Int64(), "until its device work was done, from its start on the host, or from the end of"
               " the device work before it if that is later (by kind: the median)", "ns"),
        Column("p90_ns", pl.Int64(), "the duration that nine of ten batches do not exceed (by kind)", "ns"),
        Column("tokens_per_s", pl.Float64(), "new tokens over the duration (by kind: of all batches)", "1/s"),
        Column("n_requests", pl.Float64(), "requests in it (by kind: the mean)"),
        Column("n_tokens", pl.Float64(), "new tokens in it (by kind: the mean)"),
        Column("kv_tokens", pl.Float64(), "tokens that it attends to, with those in the cache (by kind: the mean)"),
        Column("busy_ratio", pl.Float64(), "part of the duration in which the device works for it", "ratio"),
        Column("mbu_ratio", pl.Float64(), "time of its bytes at peak bandwidth, over the duration", "ratio"),
        Column("mfu_ratio", pl.Float64(), "time of its matrix products at peak, over the duration", "ratio"),
        Column("known_ratio", pl.Float64(), "part of its device time whose operations and bytes are known", "ratio"),
        Column("host_ns", pl.Int64(), "duration of its range on the host (by kind: the median)", "ns"),
        Column("n_launches", pl.Float64(), "calls that launched its device work (by kind: the mean)"),
        Column("n_graphs", pl.Float64(), "of them, replays of a captured graph (by kind: the mean)"),
        Column("graph_ratio", pl.Float64(), "part of its device time in replayed graphs", "ratio"),
        Column("padded_ratio", pl.Float64(), "part of the stated size that is no token or request", "ratio"),
        Column("flop", pl.Float64(), "operations of it, as far as known (by kind: the mean)", "FLOP"),
        Column("bytes", pl.Float64(), "bytes that it must move, as far as known (by kind: the mean)", "bytes"),
        Column("base_ns", pl.Float64(), "time that does not depend on the batch (by law)", "ns"),
        Column("per_request_ns", pl.Float64(), "time for one more request (by law)", "ns"),
        Column("per_token_ns", pl.Float64(), "time for one more new token (by law)", "ns"),
        Column("per_kv_token_ns", pl.Float64(), "time for one more token to attend to (by law)", "ns"),
        Column("n_empty", pl.Int64(), "of them, those without device work: no model ran (by law)"),
        Column("error_ratio", pl.Float64(), "mean error on batches that it was not fitted to (by law)", "ratio"),
    ),
)  # fmt: skip


def batches(
    spans: pl.DataFrame,
    tracks: pl.DataFrame = TRACKS.empty(),
    ops: pl.DataFrame = OPS.empty(),
    kernels: pl.DataFrame = KERNELS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    *,
    by: By = "batch",
    hardware: str | None = None,
    accelerator: str | None = None,
) -> pl.DataFrame:
    """One row per batch of a serving engine, per kind of batch, or per kind the law of its duration.

    The main columns are `kind`, `dur_ns`, `tokens_per_s`, `busy_ratio` and `mbu_ratio`. A batch is a range that the
    engine names after what it runs: those of vLLM, SGLang, ATOM and TensorRT-LLM are known; without any of these,
    ranges `prefill` and `decode` of a plain loop, whose requests and tokens follow from the shapes of the embedding. Of
    nested ranges the outermost is the batch, and the one that states
    most says what is in it. Device work belongs to the batch in whose range it was launched. Work of the next batch may
    be queued meanwhile: a batch begins when the work before it is done.

    `mfu_ratio` and `mbu_ratio` count operators with a known cost (`known_ratio` is their part of device time), so they
    are lower bounds. They follow from shapes: inside replayed graphs only where a capture of the graph was recorded.

    By law, durations are fitted as base + requests + new tokens + tokens attended to, each with a weight that is not
    negative, so that the sum of absolute relative errors is least. The error is that of a law fitted without the
    quarter of batches that it is tried on. Batches without device work ran no model, if others have some: they are
    counted (`n_empty`), and are no part of the law. Kinds with fewer than 12 batches of a model have no row.

    `hardware` and `accelerator` are those of `roofline`.

    Units: ns, FLOP, bytes, 1/s; ratios 0..1.
    Source: MFU as in `mfu`; MBU (model bandwidth utilisation) as bytes that must be moved over what the memory could.
    Raises MissingTable (no range names a batch, or by law no kind has enough), UnknownName (by, accelerator),
    StepscopeError (hardware).
    """
    rows, work = timed_batches(spans, tracks)
    rows = rows if rows["n_requests"].count() else _with_embedded_tokens(rows, spans, ops)
    work = work.with_columns(tensor_core=uses_matrix_units(work, kernels))
    rows = _costs(rows, work, spans, ops, roofs_of(devices, hardware, accelerator))
    if by == "batch":
        result = rows.with_columns(batch=pl.int_range(pl.len()))
    else:
        result = of_kinds(rows) if by == "kind" else laws(rows)
    if result.is_empty():
        what = f"{_LEAST_BATCHES} batches of one kind"
        raise MissingTable(what, needed_by="the law of their durations", hint="record more steps of the engine")
    result = BATCHES.conform(result)
    return result.select(_COLUMNS[by])


_OF_LAW = ("base_ns", "per_request_ns", "per_token_ns", "per_kv_token_ns", "n_empty", "error_ratio")
_ALL = [column.name for column in BATCHES.columns if column.name not in _OF_LAW]
_COLUMNS: dict[By, list[str]] = {
    "batch": [c for c in _ALL if c not in ("n_batches", "p90_ns")],
    "kind": [c for c in _ALL if c not in ("batch", "ts_ns")],
    "law": ["kind", "n_batches", *_OF_LAW],
}


def timed_batches(spans: pl.DataFrame, tracks: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A row per batch in order with what its name states and its times, and the device work with its batch (`step`).

    `from_ns` is when a batch begins: at its start on the host, or when the device work before it is done. Units: ns.
    Raises MissingTable (no range names a batch).
    """
    ranges = _ranges(spans)  # before the device's work, as most traces have none
    rows, work = _with_work(ranges, spans, device_work(spans, tracks, needed_by=None))
    work = work.filter(pl.col("step").is_not_null())
    return _launched(rows, work, spans), work


def with_work(spans: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A row per batch in order with its times, and the work with its batch (`step`, null outside of all).

    `launch_id` of the work is a row of `spans`. Raises MissingTable (no range names a batch).
    """
    return _with_work(_ranges(spans), spans, work)


def _with_work(ranges: pl.DataFrame, spans: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    work = work.with_columns(step=_batch_of_work(work, spans, ranges))
    return _timed(ranges, work.drop_nulls("step")), work


def _ranges(spans: pl.DataFrame) -> pl.DataFrame:
    """What `_named_ranges` returns. Raises MissingTable if that is nothing."""
    rows = _named_ranges(spans)
    if rows.is_empty():
        hint = "record the engine with its annotations on, as docs/serving.md says"
        raise MissingTable("ranges of batches", needed_by="batches", hint=hint)
    return rows


def _named_ranges(spans: pl.DataFrame) -> pl.DataFrame:
    """A row per batch in order: ts_ns, end_ns, track_id, and what its name states."""
    ranges = filtered(spans[["name", "category", "track_id", "ts_ns", "dur_ns"]], is_any_of(spans["category"], _RANGES))
    names = ranges["name"].unique().cast(pl.String)
    stated = {name: batch for name in names if (batch := batch_of(name)) is not None}
    is_plain = not stated
    stated = stated or plain_batches(names)
    if not stated:
        return ranges.clear()
    named = ranges.with_columns(pl.col("name").cast(pl.String)).filter(pl.col("name").is_in(list(stated)))
    on_host = named.filter(pl.col("category") == "user_range")
    named = on_host if on_host.height else named
    if named.is_empty():
        return named
    named = named.with_columns(end_ns=pl.col("ts_ns") + pl.col("dur_ns")).sort(
        "ts_ns", "end_ns", descending=[False, True]
    )
    named = _without_loops(named) if is_plain else named
    reached = pl.col("end_ns").cum_max().shift().over("track_id")
    named = named.with_columns(outer=(pl.col("ts_ns") >= reached).fill_null(value=True).cum_sum())
    facts = [_facts(stated[name]) for name in named["name"]]
    named = pl.concat([named, pl.DataFrame(facts, _FACTS)], how="horizontal")
    n_known = pl.sum_horizontal(pl.col(list(_FACTS)).is_not_null())
    best = named.with_columns(n_known=n_known).sort("outer", "n_known", descending=[False, True], maintain_order=True)
    outer = named.group_by("outer", maintain_order=True).agg(pl.col("ts_ns", "end_ns", "track_id").first())
    return (
        outer.join(best.unique("outer", keep="first").select("outer", *_FACTS), on="outer").sort("ts_ns").drop("outer")
    )


def _without_loops(named: pl.DataFrame) -> pl.DataFrame:
    """The ranges, in order of their starts, without those around several others: these are loops of batches."""
    starts, ends, tracks = (named[c].to_numpy() for c in ("ts_ns", "end_ns", "track_id"))
    n_inside = np.zeros(named.height, np.int64)
    for track in distinct_values(tracks):
        at = np.flatnonzero(tracks == track)
        n_inside[at] = np.searchsorted(starts[at], ends[at], "left") - np.arange(at.size) - 1
    return named.filter(pl.Series(n_inside < _LOOP))


_FACTS = {
    "kind": pl.String(), "n_requests": pl.Int64(), "n_tokens": pl.Int64(), "kv_tokens": pl.Int64(), "size": pl.Int64(),
    "filled": pl.Int64(),
}  # fmt: skip


def _facts(batch: Batch) -> dict[str, str | int | None]:
    whole = batch.whole
    numbers = {
        "n_requests": whole.requests, "n_tokens": whole.q, "kv_tokens": whole.kv, "size": batch.size,
        "filled": batch.filled,
    }  # fmt: skip
    return {"kind": batch.kind, **{name: n if n is None or n <= _MOST_TOKENS else None for name, n in numbers.items()}}


def _batch_of_work(work: pl.DataFrame, spans: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """The batch in whose range each piece of work was launched, or without a launch ran; null outside of all."""
    queued = spans["ts_ns"].gather(work["launch_id"])
    at = pl.DataFrame({"ts_ns": work["ts_ns"], "queued": queued}).select(pl.coalesce("queued", "ts_ns")).to_series()
    starts, ends = (rows[c].to_numpy() for c in ("ts_ns", "end_ns"))
    row = np.searchsorted(starts, at.to_numpy(), side="right") - 1
    inside = (row >= 0) & (at.to_numpy() < ends[np.maximum(row, 0)])
    return pl.select(pl.when(pl.Series(inside)).then(pl.Series(row.astype(np.int32)))).to_series()


def _timed(rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The batches with from_ns, dur_ns, host_ns, busy_ratio and tokens_per_s."""
    batch, starts, ends = (work[c].to_numpy().astype(np.int64) for c in ("step", "ts_ns", "end_ns"))
    order = np.lexsort((starts, batch))
    groups, lows, highs = union_by(batch[order], starts[order], ends[order])
    busy = np.bincount(groups, highs - lows, minlength=rows.height).astype(np.int64)
    began, host_end = (rows[c].to_numpy() for c in ("ts_ns", "end_ns"))
    has_work = busy > 0
    done = host_end.copy()
    if work.height:
        done[has_work] = 0
        np.maximum.at(done, batch, ends)
    before = np.concatenate((began[:1], np.maximum.accumulate(done)[:-1]))
    start = np.maximum(began, np.where(has_work, before, began))
    duration = np.maximum(done - start, 0)
    timed = rows.with_columns(
        from_ns=pl.Series(start),
        dur_ns=pl.Series(duration),
        host_ns=pl.Series(host_end - began),
        busy_ns=pl.Series(busy),
    )
    size = pl.when(pl.col("size") > 0).then("size")
    has_length = pl.col("dur_ns") > 0
    return timed.with_columns(
        _tokens_per_s(),
        busy_ratio=pl.when(has_length & (pl.col("busy_ns") > 0)).then(pl.col("busy_ns") / pl.col("dur_ns")).clip(0, 1),
        padded_ratio=(1 - pl.col("filled") / size).clip(0, 1),
    )


def _tokens_per_s() -> pl.Expr:
    return pl.when(pl.col("dur_ns") > 0).then(pl.col("n_tokens") / pl.col("dur_ns") * 1e9).alias("tokens_per_s")


def _with_embedded_tokens(rows: pl.DataFrame, spans: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """The batches with the requests and tokens whose embedding is the first in each: of loops that state none.

    They are the rows and the numbers of the indices of the operator, where shapes were recorded.
    """
    embeds = spans.filter((pl.col("category") == "operator") & (pl.col("name").cast(pl.String) == _EMBEDDING))
    shapes = embeds.join(ops.drop_nulls("input_shapes"), on="span_id").sort("ts_ns").select("ts_ns", "input_shapes")
    at = shapes["ts_ns"].to_numpy()
    first = np.searchsorted(at, rows["ts_ns"].to_numpy())
    is_inside = (first < at.size) & (np.append(at, 0)[np.minimum(first, at.size)] < rows["end_ns"].to_numpy())
    texts = shapes["input_shapes"].gather(np.where(is_inside, first, 0)) if at.size else pl.Series([None] * rows.height)
    ids = pl.Series(texts, dtype=pl.String).str.extract(r"^\[\[[\d,\s]*\],\s*\[(\d{1,9}(?:,\s*\d{1,9})?)\]")
    sizes = ids.str.split(",").list.eval(pl.element().str.strip_chars().cast(pl.Int64, strict=False)).to_frame("sizes")
    known = pl.Series(is_inside)
    n = sizes.select(
        n_requests=pl.when(known & (pl.col("sizes").list.len() == 2)).then(pl.col("sizes").list.first()),
        n_tokens=pl.when(known).then(pl.col("sizes").list.eval(pl.element().product()).list.first()),
    )
    return rows.with_columns(n).with_columns(_tokens_per_s())


def _launched(rows: pl.DataFrame, work: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The batches with n_launches, n_graphs and graph_ratio; null without work that is tied to its launch."""
    tied = work.drop_nulls("launch_id").with_columns(
        of_graph=map_names(spans["name"].gather(work["launch_id"].drop_nulls()), is_graph_launch, pl.Boolean())
    )
    dur = pl.col("end_ns") - pl.col("ts_ns")
    sums = tied.group_by("step").agg(
        n_launches=pl.col("launch_id").n_unique(),
        n_graphs=pl.col("launch_id").filter("of_graph").n_unique(),
        graph_ratio=dur.filter("of_graph").sum() / dur.sum(),
    )
    numbered = rows.with_columns(step=pl.int_range(pl.len(), dtype=pl.Int32))
    return numbered.join(sums.cast({"step": pl.Int32}), on="step", how="left", maintain_order="left").drop("step")


def _costs(
    rows: pl.DataFrame, work: pl.DataFrame, spans: pl.DataFrame, ops: pl.DataFrame, roofs: Roofs
) -> pl.DataFrame:
    """The batches with what they compute and move, and how near to the device's peaks."""
    _, calls = priced(work, spans, ops)
    calls = with_roofs(calls, roofs)
    is_known = pl.col("bytes").is_not_null()
    of_matrix = pl.col("compute_ns").filter(pl.col("matrix").fill_null(value=False))
    sums = calls.group_by("step").agg(
        flop=pl.when(is_known.any()).then(pl.col("flop").filter(is_known).sum()),
        bytes=pl.when(is_known.any()).then(pl.col("bytes").sum()),
        at_peak_ns=pl.when(of_matrix.count() > 0).then(of_matrix.sum()),
        at_bandwidth_ns=pl.when(pl.col("memory_ns").count() > 0).then(pl.col("memory_ns").sum()),
        known_ns=pl.col("device_ns").filter(is_known).sum(),
        device_ns=pl.col("device_ns").sum(),
    )
    numbered = rows.with_columns(step=pl.int_range(pl.len(), dtype=pl.Int32))
    joined = numbered.join(sums.cast({"step": pl.Int32}), on="step", how="left", maintain_order="left")
    long = pl.when(pl.col("dur_ns") > 0).then(pl.col("dur_ns"))
    return joined.with_columns(
        mfu_ratio=pl.col("at_peak_ns") / long,
        mbu_ratio=pl.col("at_bandwidth_ns") / long,
        known_ratio=pl.col("known_ns") / pl.when(pl.col("device_ns") > 0).then(pl.col("device_ns")),
    )


def of_kinds(rows: pl.DataFrame) -> pl.DataFrame:
    """The batches, as by batch, with a row per kind, that with most time first."""
    whole = pl.col("dur_ns").sum()
    ratios = ("busy_ratio", "mfu_ratio", "mbu_ratio", "graph_ratio")
    lasting = {c: pl.col("dur_ns").filter(pl.col(c).is_not_null()).sum() for c in ratios}
    weighted = [pl.when(ns > 0).then((pl.col(c) * pl.col("dur_ns")).sum() / ns).alias(c) for c, ns in lasting.items()]
    means = [
        pl.col(c).mean()
        for c in (
            "n_requests",
            "n_tokens",
            "kv_tokens",
            "padded_ratio",
            "flop",
            "bytes",
            "known_ratio",
            "n_launches",
            "n_graphs",
        )
    ]
    tokens = pl.when(pl.col("n_tokens").null_count() == 0).then(pl.col("n_tokens").sum() / whole * 1e9)
    return rows.group_by("kind").agg(
        *weighted,
        *means,
        n_batches=pl.len().cast(pl.Int64),
        total_ns=whole,
        median_ns=pl.col("dur_ns").median().round().cast(pl.Int64),
        p90_ns=pl.col("dur_ns").quantile(0.9, "equiprobable").cast(pl.Int64),
        host_ns=pl.col("host_ns").median().round().cast(pl.Int64),
        tokens_per_s=tokens,
    ).rename({"median_ns": "dur_ns"}).sort("total_ns", "kind", descending=[True, False])  # fmt: skip


def empty_places() -> pl.Expr:
    """How many places of a batch are filled up to the stated size, of requests in decode."""
    padded = pl.when(pl.col("padded_ratio") < 1).then("padded_ratio")
    return pl.col("n_requests") * padded / (1 - padded)


def factors_without(what: str, spans: pl.DataFrame, work: pl.DataFrame) -> tuple[Floats, pl.DataFrame]:
    """Factors of the device work of batches without `padding` or without `prefill`, and the batches that are gone.

    Of a decode batch, empty places take what a request takes by the law of its duration. Without prefill, batches that
    read prompts are gone, and those that do both take as long as the median decode batch. All factors are 1 where no
    range names a batch. `work` is as in `with_work`.
    """
    try:
        rows, work = with_work(spans, work)
    except MissingTable:
        return np.ones(work.height), spans.clear().select("track_id", "ts_ns", end_ns="ts_ns")
    length = pl.col("end_ns") - pl.col("ts_ns")
    sums = work.drop_nulls("step").group_by("step").agg(work_ns=length.sum().cast(pl.Float64))
    rows = rows.with_row_index("step").cast({"step": pl.Int32}).join(sums, "step", how="left", maintain_order="left")
    rows = rows.with_columns(factor=_without_padding(rows) if what == "padding" else _without_prefill(rows))
    of_work = work.join(rows.select("step", "factor"), on="step", how="left", maintain_order="left")
    return of_work["factor"].fill_null(1.0).to_numpy(), rows.filter((pl.col("factor") == 0) & (what == "prefill"))


def _without_padding(rows: pl.DataFrame) -> pl.Expr:
    law = laws(rows).filter((pl.col("kind") == "decode") & pl.col("per_request_ns").is_not_null())
    each_ns = 0.0 if law.is_empty() else float(law["per_request_ns"][0])
    is_known = (pl.col("kind") == "decode") & (pl.col("work_ns") > 0)
    saved = empty_places() * each_ns / pl.col("work_ns")
    return pl.when(is_known).then((1 - saved).clip(0, 1)).otherwise(1.0).fill_null(1.0)


def _without_prefill(rows: pl.DataFrame) -> pl.Expr:
    usual = rows.filter(pl.col("kind") == "decode")["work_ns"].median()
    if not isinstance(usual, float):  # no decode batch, which would gain
        return pl.lit(1.0)
    mixed = (usual / pl.col("work_ns")).clip(0, 1).fill_null(1.0)
    return pl.when(pl.col("kind") == "prefill").then(0.0).when(pl.col("kind") == "mixed").then(mixed).otherwise(1.0)


def laws(rows: pl.DataFrame) -> pl.DataFrame:
    """Of the batches, as by batch, a row per kind: the weights of its law, and its error on batches left out."""
    laws = []
    ran = rows["busy_ratio"].is_not_null()
    ran |= not ran.any()  # nothing is known of the device
    for (kind,), every in sorted(rows.with_columns(ran=ran).partition_by("kind", as_dict=True).items()):
        part = every.filter("ran")
        terms = [c for c in _TERMS if part[c].null_count() == 0 and part[c].n_unique() > 1]
        if "n_requests" in terms and part["n_tokens"].equals(part["n_requests"]):  # a token for each: one weight
            terms.remove("n_tokens")
        if part.height < _LEAST_BATCHES or not (part["dur_ns"] > 0).all():
            continue
        y = part["dur_ns"].to_numpy().astype(np.float64)
        # Parts are runs of batches, not every fourth one: neighbours are alike.
        part_of = np.arange(part.height) * _PARTS // part.height
        expected = np.zeros(part.height)
        for k in range(_PARTS):
            weights = law_of(part.filter(part_of != k), terms)
            expected[part_of == k] = expected_ns(part.filter(part_of == k), terms, weights)
        weights = law_of(part, terms)
        of_term = dict(zip(("base_ns", *terms), weights.tolist(), strict=True))
        laws.append({
            "kind": kind, "n_batches": every.height, "base_ns": of_term["base_ns"],
            "per_request_ns": of_term.get("n_requests"), "per_token_ns": of_term.get("n_tokens"),
            "per_kv_token_ns": of_term.get("kv_tokens"), "n_empty": every.height - part.height,
            "error_ratio": float(np.abs(expected / y - 1).mean()),
        })  # fmt: skip
    schema = {name: BATCHES.column(name).dtype for name in _COLUMNS["law"]}
    return pl.DataFrame(laws, schema)


def law_of(rows: pl.DataFrame, terms: Sequence[str]) -> Floats:
    """The base and the weight of each term, in ns, with which durations (`dur_ns`, above 0) are met best.

    Batches that took hardly any time would count most among relative errors, so those of a first fit are absolute.
    """
    x, y = _design(rows, terms), rows["dur_ns"].to_numpy().astype(np.float64)
    ran = y >= _EMPTY * (x @ _weights(x, y, y))
    ran |= ~ran.any()
    return _weights(x[ran], y[ran], np.ones(int(ran.sum())))


def expected_ns(rows: pl.DataFrame, terms: Sequence[str], weights: Floats) -> Floats:
    """How long batches should take by a law."""
    expected: Floats = _design(rows, terms) @ weights
    return expected


def _design(rows: pl.DataFrame, terms: Sequence[str]) -> Floats:
    return np.column_stack([np.ones(rows.height), *(rows[c].to_numpy().astype(np.float64) for c in terms)])


def _weights(x: Floats, y: Floats, importance: Floats) -> Floats:
    """The weights, none negative, with the least sum of absolute relative errors: a term that would be is left out.

    Least squares would follow single batches that took ten times as long, or hardly any time.
    """
    used = list(range(x.shape[1]))
    while True:
        scaled = x[:, used] / y[:, None]
        scale = np.where((largest := np.abs(scaled).max(axis=0)) > 0, largest, 1.0)
        solution = _least_absolute(scaled / scale, importance)
        if (solution >= 0).all() or len(used) == 1:
            weights: Floats = np.zeros(x.shape[1])
            weights[used] = solution / scale
            return weights
        del used[int(np.argmin(solution))]


def _least_absolute(terms: Floats, importance: Floats) -> Floats:
    """The factors with which the terms are nearest to 1 by absolute error: least squares, weighted again and again."""
    weight = importance**2  # least squares of what is important
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        solution, *_ = np.linalg.lstsq(terms * root[:, None], root, rcond=None)
        weight = importance / np.maximum(np.abs(terms @ solution - 1), _EXACT)
    return np.asarray(solution)


ANALYSIS = analysis_of(batches, BATCHES, "Latency, tokens a second and use of the device of each batch of a server.")
