"""One named table of one trace or many: an analysis' result or a raw table, filtered, grouped, sorted, limited.

A name is that of an analysis, or `trace.X` for table X as the reader made it (just `X` where no analysis is called so),
or of a table that files of results hold, which is returned as the file has it.
Results of several traces are stacked. Their first column is `rank`, or `trace` (from the file's name) if ranks are
missing or not unique. Analyses of ranks take all traces together.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl
import polars.selectors as cs

from stepscope import analyses
from stepscope.core import files
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.patterns import regex
from stepscope.core.result_tables import RESULTS
from stepscope.core.schema import ISSUES, TABLES
from stepscope.core.table import Column, Table
from stepscope.core.trace import Run, Trace
from stepscope.query.map_files import calls_of_ranks, results_of
from stepscope.renderers import figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analyses import Analysis
    from stepscope.query.map_files import Each, OnMissing

RAW = "trace."
RANK = Column("rank", pl.Int32(), "rank of the process in its job", key=True)
TRACE = Column("trace", pl.String(), "the file of the row", key=True)
#: Means, each with the sum and the count that it is made of.
_MEANS = (("mean_ns", "total_ns", "calls"), ("mean_ns", "total_ns", "n_gaps"), ("mean_bytes", "bytes", "calls"),
          ("host_mean_ns", "host_total_ns", "calls"))  # fmt: skip
#: Ratios that are means, weighted by a duration.
_WEIGHTED = {"tc_self_ratio": "device_self_ns", "tc_total_ratio": "device_total_ns", "est_occupancy_ratio": "total_ns",
             "tensor_ratio": "total_ns", "dram_ratio": "total_ns", "sm_ratio": "total_ns"}  # fmt: skip
ROWS = Column("n_rows", pl.Int64(), "rows that were combined")

#: Columns that cannot be added up: points in time, levels, averages, shares.
_POINT = regex(
    r"(^|_)(ts|start|end|first|last)_ns$|(^|_)(mean|avg|median|std|p\d+|late)_|^total_(allocated|reserved)_bytes$"
)
_LEAST, _MOST = regex(r"(^|_)min_"), regex(r"(^|_)(max|peak)_")
#: Units by the ends of column names, longer ends first.
_UNITS = {"_bytes_per_s": "bytes/s", "_ns": "ns", "_bytes": "bytes", "_ratio": "ratio"}
_ADDS_UP = regex(r"^n_|^(calls|count|bytes)$|_(ns|bytes|flop)$")


def names() -> list[tuple[str, str]]:
    """Names that `find` knows, each with its kind.

    Kinds are 'analysis' (of one trace), 'ranks' (an analysis of all ranks together), 'comparison' (of two traces),
    'result' (a table that only files of results hold) and 'table' (a table of the trace).
    """
    of_traces, of_ranks = analyses.names("trace"), analyses.names("ranks")
    return [
        *((name, "analysis") for name in of_traces),
        *((name, "ranks") for name in of_ranks),
        *((name, "comparison") for name in analyses.names("pair")),
        *((name, "result") for name in RESULTS if name not in of_traces),
        *((RAW + name if name in (*of_traces, *of_ranks) else name, "table") for name in TABLES),
    ]


def find(name: str) -> Analysis:
    """The analysis of that name, or one that returns a table as it is; `-` and `_` are equal. Raises UnknownName."""
    if name.removeprefix(RAW) in TABLES and name.startswith(RAW):
        return _raw(TABLES[name.removeprefix(RAW)])
    for spelling in dict.fromkeys((name, name.replace("_", "-"), name.replace("-", "_"))):
        if spelling in analyses.ANALYSES:
            return analyses.find(spelling)
        if spelling in TABLES:
            return _raw(TABLES[spelling])
        if spelling in RESULTS:
            return _result_table(RESULTS[spelling])
    raise UnknownName("table", name, [known for known, _ in names()], listed_by="stepscope tables")


def collect(
    source: Trace | Run,
    analysis: Analysis,
    *,
    where: str | None = None,
    on_missing: OnMissing,
    each: Each | None = None,
    **options: Any,
) -> tuple[pl.DataFrame, Table]:
    """The analysis' result for all traces, which are read one at a time, and the schema of its columns.

    `each` applies a function to the files of a run, if they are not to be read here one after the other. `where` is a
    condition in SQL over the result's columns (and `rank`, `trace`). A trace that cannot be read, or lacks what the
    analysis needs, is reported to `on_missing` and left out. Raises its error if that is true of all; UnknownName,
    StepscopeError. A comparison takes exactly two traces, the base first. An analysis of ranks takes all.
    """
    if analysis.scope == "pair":
        return filtered(_compared(source, analysis, options), where), analysis.output
    labels = files.labels_of(source.paths) if isinstance(source, Run) else [source.meta.path]
    if analysis.scope == "ranks":
        parts_of_ranks = calls_of_ranks(source, labels, on_missing=on_missing, each=each)
        return filtered(analysis(parts_of_ranks, **options), where), analysis.output
    if analysis.run is _as_it_is:
        each = None  # a table as it is takes longer to send than to read
    parts: list[tuple[int | None, str, pl.DataFrame]] = []
    missing: list[tuple[str, StepscopeError]] = []
    for label, (rank, result) in zip(labels, results_of(source, analysis, options, each), strict=True):
        if isinstance(result, StepscopeError):
            missing.append((label, result))
        else:
            parts.append((rank, label, filtered(result, where, rank=rank, trace=label)))
    if not parts:
        raise missing[0][1] if missing else StepscopeError("no traces given")
    for label, error in missing:
        on_missing(label, error)
    if len(labels) == 1:
        return parts[0][2], analysis.output
    return stacked(parts, analysis.output)


def drawn(
    source: Trace | Run, analysis: Analysis, frame: pl.DataFrame, *, each: Each | None = None, **options: Any
) -> pl.DataFrame | None:
    """The rows for the figure of a table: `frame` if it fits, else those that the figure asks for; None without figure.

    `frame` is what `collect` returned; traces without the table are not reported again. Raises as `collect` does.
    """
    if analysis.name not in figures.names():
        return None
    figure = figures.find(analysis.name)
    if figure.fits(frame) or not figure.options:
        return frame if figure.fits(frame) else None
    rows, _ = collect(source, analysis, on_missing=lambda *_: None, each=each, **{**options, **figure.options})
    return rows


#: A query in a condition could read files, which Polars begins as it parses.
_QUERY = regex(r"\b(select|from|table|with|values)\b|\b(read|scan)_\w+\s*\(", re.IGNORECASE)
#: These words are harmless in plain quotes, if nothing in the text lets Polars see their ends elsewhere.
_QUOTED, _OTHER_QUOTES = regex(r"'[^']*'|\"[^\"]*\""), regex(r"[\\`$#]|--|/\*")


def filtered(frame: pl.DataFrame, where: str | None, **extra: Any) -> pl.DataFrame:
    """Rows for which a condition in SQL holds; it may name `extra` constants. Raises UnknownName, StepscopeError."""
    if where is None:
        return frame
    wide = frame.with_columns(pl.lit(v).alias(k) for k, v in extra.items() if k not in frame.columns)
    hint = "write a condition in SQL, as in \"total_ns > 1000000 AND name LIKE '%gemm%'\""
    if _QUERY.search(where if _OTHER_QUOTES.search(where) else _QUOTED.sub("''", where)):
        raise StepscopeError(f"not a condition: {where!r} (a condition reads its own table, and asks no other)", hint)
    try:
        mask = _truth(wide, pl.sql_expr(where))
        if mask.dtype == pl.Boolean:
            return frame.filter(mask if mask.len() == frame.height else pl.lit(bool(mask.item())))
        reason = f"it gives {mask.dtype}, not true or false"
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
    raise StepscopeError(f"not a condition: {where!r} ({reason})", hint)


def _truth(frame: pl.DataFrame, condition: pl.Expr) -> pl.Series:
    """The condition's value for each row, or a single value if it uses no column."""
    if not condition.meta.eq(condition.meta.undo_aliases()):  # SQL reads "10ms" as 10 with the name ms
        raise ValueError("a word follows its end: numbers have no units, as in dur_ns > 10000000 for 10 ms")
    used = list(dict.fromkeys(condition.meta.root_names()))
    for name in used:
        if name not in frame.columns:
            raise UnknownName("column", name, frame.columns)
    # As text, as LIKE and the like do not work on categories.
    operands = frame.select(used).with_columns((cs.categorical() | cs.enum()).cast(pl.String)) if used else frame
    return operands.select(keep=condition)["keep"]


def grouped(frame: pl.DataFrame, table: Table, by: Sequence[str]) -> tuple[pl.DataFrame, Table]:
    """Rows that agree in `by` put together: counts, durations and bytes are summed, min_ and max_ stay what they are.

    Averages, shares, points in time and texts are left out, as they do not add up; n_rows is the number of rows.
    Raises UnknownName (column).
    """
    by = [column_named(name, frame.columns) for name in by]
    numbers = [name for name in frame.select(cs.numeric()).columns if name not in by and name != ROWS.name]
    folded = {name: expr for name in numbers if (expr := _folded(name)) is not None}
    result = frame.group_by(by, maintain_order=True).agg(pl.len().cast(pl.Int64).alias(ROWS.name), **folded)
    summed = [name for name in folded if _ADDS_UP.search(name)]
    summed = [*(name for name in summed if name.endswith(("_ns", "bytes"))), *summed, ROWS.name]
    result = result.sort(summed[0], descending=True, nulls_last=True, maintain_order=True)
    declared = {c.name: c for c in table.columns} | {ROWS.name: ROWS}
    return result, Table(table.name, table.doc, tuple(declared[c] for c in result.columns if c in declared))


def over_traces(frame: pl.DataFrame, table: Table, by: Sequence[str]) -> tuple[pl.DataFrame, Table]:
    """Rows of several traces that agree in `by` put together, as `grouped` does, in the order of the table's columns.

    Means and shares that follow from sums are computed anew. A text stays where all rows have the same one.
    """
    sums = grouped(frame, table, by)[0]
    places = (TRACE.name, "device")
    texts = frame.select((cs.string() | cs.categorical() | cs.enum()) - cs.by_name(*by, *places, require_all=False))
    alike = [pl.when(pl.col(c).n_unique() == 1).then(pl.col(c).first()).alias(c) for c in texts.columns]
    weighted = [
        ((pl.col(c) * pl.col(by_ns)).sum() / pl.when(pl.col(c).is_not_null()).then(pl.col(by_ns)).sum()).alias(c)
        for c, by_ns in _WEIGHTED.items() if {c, by_ns} <= set(frame.columns)
    ]  # fmt: skip
    more = frame.group_by(by).agg(*alike, *weighted).fill_nan(None)
    sums = sums.join(more, on=list(by), how="left", nulls_equal=True, maintain_order="left")
    means = [(pl.col(a) / pl.col(n)).alias(c) for c, a, n in _MEANS if {c, a, n} <= set(frame.columns)]
    sums = sums.with_columns(means)
    whole = next((name for name in ("total_ns", "self_ns") if {"share_ratio", name} <= set(frame.columns)), None)
    if whole is not None:
        sums = sums.with_columns(share_ratio=pl.col(whole) / pl.col(whole).sum())
    declared = tuple(column for column in table.columns if column.name in sums.columns)
    return sums.select(column.name for column in declared), Table(table.name, table.doc, declared)


def ordered(frame: pl.DataFrame, table: Table, by: Sequence[str]) -> pl.DataFrame:
    """Sorted by columns: measures from the largest, keys, texts and times of day from the smallest.

    `-column` is from the largest in any case, `+column` from the smallest. Unknown values come last.
    Raises UnknownName.
    """
    if not by:
        return frame
    keys = {c.name for c in table.columns if c.key}
    numbers = set(frame.select(cs.numeric()).columns)
    exprs, descending = [], []
    for word in by:
        name = column_named(word.lstrip("+-"), frame.columns)
        is_text = isinstance(frame.schema[name], (pl.Categorical, pl.Enum))
        exprs.append(pl.col(name).cast(pl.String) if is_text else pl.col(name))
        measure = name in numbers and name not in keys and not _is_point(name)
        descending.append(word[0] == "-" or (word[0] != "+" and measure))
    return frame.sort(exprs, descending=descending, nulls_last=True, maintain_order=True)


def chosen(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Only these columns, in this order; all if none are named. Raises UnknownName."""
    return frame.select(column_named(name, frame.columns) for name in columns) if columns else frame


def column_named(name: str, columns: Sequence[str]) -> str:
    """The column of that name, whose unit may be left out: dur for dur_ns. Raises UnknownName (none, or several)."""
    if name in columns:
        return name
    like = [c for c in columns if re.fullmatch(rf"(n_)?{re.escape(name)}(_(ns|bytes|ratio))?", c)]
    if len(like) != 1:
        raise UnknownName("column", name, columns)
    return like[0]


def described(name: str, frame: pl.DataFrame) -> Table:
    """A schema for a frame that no analysis declared: the ends of column names give their units."""
    columns = [Column(column, dtype, column, _unit(column, dtype)) for column, dtype in frame.schema.items()]
    return Table(name, name, tuple(columns))


def _unit(name: str, dtype: pl.DataType) -> str | None:
    if not dtype.is_numeric():
        return None
    return next((unit for end, unit in _UNITS.items() if name == end.lstrip("_") or name.endswith(end)), None)


def _raw(table: Table) -> analyses.Analysis:
    # No issues is good news, not a lack of data.
    always = table is ISSUES
    inputs, optional = ((), (table,)) if always else ((table,), ())
    return analyses.Analysis(table.name, table.doc, inputs, table, _as_it_is, optional, needs_clock=False)


def _as_it_is(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def _result_table(table: Table) -> analyses.Analysis:
    """A table that only files of results hold; for a recording it raises MissingTable."""

    def run() -> pl.DataFrame:
        """The frame as the file of results has it."""
        raise MissingTable(f"{table.name} ({table.doc})", hint="only files of results have it; see `stepscope formats`")

    return analyses.Analysis(table.name, table.doc, (), table, run)


def _compared(source: Trace | Run, pair: Analysis, options: dict[str, Any]) -> pl.DataFrame:
    paths = source.paths if isinstance(source, Run) else (source.meta.path,)
    if not isinstance(source, Run) or len(paths) != 2:
        hint = f"name two files, the base first: stepscope show {pair.name} BASE OTHER"
        raise StepscopeError(f"{pair.name} compares two traces, {len(paths)} were given", hint)
    base, other = source
    return pair(base, other, **options)


def stacked(parts: Sequence[tuple[int | None, str, pl.DataFrame]], table: Table) -> tuple[pl.DataFrame, Table]:
    """The rows of several traces, given with rank and label of each, and the schema of all columns."""
    ranks = [rank for rank, _, _ in parts]
    by_rank = None not in ranks and len(set(ranks)) == len(ranks)
    lead = RANK if by_rank else TRACE
    if by_rank:
        parts = sorted(parts, key=lambda part: part[0] or 0)
    frames = []
    for rank, label, frame in parts:
        value = pl.lit(rank if by_rank else label, lead.dtype).alias(lead.name)
        frames.append(frame if lead.name in frame.columns else frame.select(value, pl.all()))
    frame = pl.concat(frames, how="diagonal_relaxed")
    declared = {lead.name: lead} | {c.name: c for c in table.columns}
    return frame.select(lead.name, pl.exclude(lead.name)), Table(table.name, table.doc, tuple(declared.values()))


def _is_point(name: str) -> bool:
    return _POINT.search(name) is not None


def _folded(name: str) -> pl.Expr | None:
    if _is_point(name):
        return None
    if _LEAST.search(name):
        return pl.col(name).min()
    if _MOST.search(name):
        return pl.col(name).max()
    # The sum of nothing known is unknown, not 0.
    known = pl.col(name).count() > 0
    return pl.when(known).then(pl.col(name).sum()) if _ADDS_UP.search(name) else None
