"""Tokens by expert: a row of the table `expert_tokens` for each expert, layer, rank and phase.

A hotspot file of MindIE has a row for each layer with experts and a column for each expert of its rank. Every few steps
the engine appends a block with all layers. Counts run on from block to block, so the last whole block has the totals.
No file says how many layers there are: it is the smallest number of rows after which no count of any rank has fallen.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput
from stepscope.core.request_tables import EXPERT_TOKENS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.source import IssueLog, Source
from stepscope.readers.expert_counts import hotspots_of, phase_and_rank, recorded_of
from stepscope.readers.expert_counts.torch_file import tensor_of
from stepscope.readers.formats import BYTE_ORDER_MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

_AGAIN = "copy the file again; docs/serving.md says what it should hold"
#: So many rows tell how many layers a block has; no model has half as many.
_LOOKED_AT = 8192
#: The sum over all experts of any file stays a whole number of 64 bits.
_MOST_TOKENS, _MOST_PLACES = 2**40, 1 << 24


def read_hotspots(source: Source) -> Trace:
    """All hotspot files that were dumped with one. Raises CorruptInput (not one whole row), StepscopeError (size)."""
    issues = IssueLog()
    paths = [source.path] if source.member else hotspots_of(source.path)
    by_phase: dict[str, dict[int, Counts]] = {}
    for path in paths:
        phase, rank = phase_and_rank(source.label if source.member else path)
        one = source if path == source.path else Source(path, None, source.max_bytes)
        counts = _rows(one, issues)
        source.n_bytes += one.n_bytes if one is not source else 0
        if counts.size:
            by_phase.setdefault(phase, {})[rank] = counts
    if not by_phase:
        raise CorruptInput("it holds no row of counts", _AGAIN, path=source.label)
    frames = [_last_blocks(phase, ranks, issues) for phase, ranks in sorted(by_phase.items())]
    return _trace(source, "expert-hotspots", pl.concat(frames), issues)


def _rows(source: Source, issues: IssueLog) -> Counts:
    """The counts of a file up to the first row that is none, one row for each layer."""
    text = b"".join(source.chunks()).removeprefix(BYTE_ORDER_MARK)
    _note_damage(source, issues)
    if not text.strip():
        issues.add("empty_files", "warning", 1, f"{source.label} is empty")
        return np.zeros((0, 0), np.int64)
    try:
        frame = pl.read_csv(
            io.BytesIO(text), has_header=False, infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy"
        )
    except pl.exceptions.PolarsError as error:
        raise CorruptInput(str(error).splitlines()[0], _AGAIN, path=source.label) from None
    values = frame.select(pl.all().str.strip_chars().cast(pl.Int64, strict=False))
    is_sound = values.select(pl.all_horizontal(pl.all().is_between(0, _MOST_TOKENS).fill_null(value=False))).to_series()
    n_sound = int(is_sound.cum_prod().sum())
    what = f"{source.label}: rows from the first on that is torn, or no list of counts"
    issues.add("rows_dropped", "warning", values.height - n_sound, what)
    return values.head(n_sound).to_numpy().astype(np.int64)


def _last_blocks(phase: str, ranks: Mapping[int, Counts], issues: IssueLog) -> pl.DataFrame:
    """EXPERT_TOKENS of a phase: the last whole block of each rank."""
    n_layers = layers_of(list(ranks.values()))
    frames = []
    for rank, counts in sorted(ranks.items()):
        n_blocks, torn = divmod(len(counts), n_layers)
        issues.add("rows_dropped", "warning", torn, f"{phase} of rank {rank}: rows of a block that is not whole")
        if not n_blocks:
            continue
        last = counts[(n_blocks - 1) * n_layers : n_blocks * n_layers]
        if (last < counts[:n_layers]).any():
            what = f"{phase} of rank {rank}: counts fell, so they began anew; they are those since then"
            issues.add("counts_began_anew", "warning", 1, what)
        layer, expert = np.indices(last.shape).reshape(2, -1)
        columns = {"phase": phase, "layer": layer, "rank": rank, "expert": expert, "n_tokens": last.ravel()}
        frames.append(EXPERT_TOKENS.conform(pl.DataFrame(columns)))
    return pl.concat(frames) if frames else EXPERT_TOKENS.empty()


def layers_of(ranks: Sequence[Counts]) -> int:
    """How many rows a block has: the smallest number after which no count of any rank falls; else all rows are one.

    At least two blocks are needed to see it. Each rank has a matrix of rows by experts.
    """
    n_rows = min(len(counts) for counts in ranks)
    rows = np.hstack([counts[: min(n_rows, _LOOKED_AT)] for counts in ranks])
    likely = 1 + np.flatnonzero((rows[1 : len(rows) // 2 + 1] >= rows[0]).all(axis=1))
    return next((int(n) for n in likely if (rows[n:] >= rows[:-n]).all()), n_rows)


def read_recorded(source: Source) -> Trace:
    """All dumps of SGLang's recorder in a folder, added up. Raises CorruptInput (no counts), StepscopeError (size).

    Counts are of the model's own experts, copies together, and of all ranks: which rank has which is not recorded.
    """
    issues = IssueLog()
    total: Counts | None = None
    for path in recorded_of(source.path):
        try:
            counts = _of_steps(tensor_of(path, "logical_count"))
        except CorruptInput as error:
            if path == source.path:
                raise
            issues.add("files_dropped", "warning", 1, error.message)
            continue
        source.n_bytes += files.size_of(path)
        if total is not None and total.shape != counts.shape:
            issues.add("files_dropped", "warning", 1, f"{path}: layers and experts of another model")
            continue
        total = counts if total is None else total + counts
    if total is None or not total.size:
        raise CorruptInput("it holds no counts", _AGAIN, path=source.label)
    layer, expert = np.indices(total.shape).reshape(2, -1)
    frame = pl.DataFrame({"layer": layer, "expert": expert, "n_tokens": total.ravel()})
    return _trace(source, "expert-recorder", EXPERT_TOKENS.conform(frame), issues)


def _of_steps(counts: NDArray[Any]) -> Counts:
    """The tokens of each layer and expert, of all steps. Raises CorruptInput."""
    if counts.ndim not in (2, 3) or math.prod(counts.shape[-2:]) > _MOST_PLACES:
        raise CorruptInput(f"counts of shape {counts.shape} are none of layers and experts", _AGAIN)
    summed = counts.astype(np.float64).sum(axis=0) if counts.ndim == 3 else counts.astype(np.float64)
    if not (np.isfinite(summed).all() and (summed >= 0).all() and (summed <= _MOST_TOKENS).all()):
        raise CorruptInput("its counts are no numbers of tokens", _AGAIN)
    return summed.round().astype(np.int64)


def read_table(source: Source) -> Trace:
    """A table as CSV. Raises CorruptInput (not one row with a layer, an expert and its tokens), StepscopeError."""
    issues = IssueLog()
    text = b"".join(source.chunks()).removeprefix(BYTE_ORDER_MARK)
    _note_damage(source, issues)
    try:
        raw = pl.read_csv(io.BytesIO(text), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
    except pl.exceptions.PolarsError as error:
        raise CorruptInput(str(error).splitlines()[0], _AGAIN, path=source.label) from None
    raw = raw.rename({"tokens": "n_tokens"}, strict=False)
    if not {"layer", "expert", "n_tokens"} <= set(raw.columns):
        raise CorruptInput("its header is damaged", _AGAIN, path=source.label)
    whole = [pl.col(name).str.strip_chars().cast(pl.Int64, strict=False) for name in ("layer", "expert", "n_tokens")]
    rank = pl.col("rank").cast(pl.Int32, strict=False) if "rank" in raw.columns else pl.lit(0, pl.Int32)
    phase = pl.col("phase") if "phase" in raw.columns else pl.lit(None, pl.String)
    rows = raw.select(*whole, rank=rank, phase=phase)
    is_sound = pl.all_horizontal(
        *(pl.col(name).is_between(0, _MOST_TOKENS) for name in ("layer", "expert", "n_tokens")), pl.col("rank") >= 0
    )
    sound = rows.filter(is_sound)
    issues.add("rows_dropped", "warning", rows.height - sound.height, "rows without a layer, an expert or its tokens")
    keys = ["phase", "layer", "rank", "expert"]
    sums = sound.group_by(keys, maintain_order=True).agg(pl.col("n_tokens").sum()).sort(keys)
    if sums.is_empty():
        raise CorruptInput("not one row has a layer, an expert and its tokens", _AGAIN, path=source.label)
    return _trace(source, "expert-counts", EXPERT_TOKENS.conform(sums), issues)


def _note_damage(source: Source, issues: IssueLog) -> None:
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")


def _trace(source: Source, name: str, frame: pl.DataFrame, issues: IssueLog) -> Trace:
    meta = Meta(source.label, name, n_events=frame.height, size_bytes=source.n_bytes)
    return Trace(meta, {"expert_tokens": frame, "issues": issues.table()})
