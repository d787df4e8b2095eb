"""Requests to an engine one by one: a row of the table `requests` for each, from JSON or JSON lines.

Read are the results of benchmarks that hold a list for each measure (vLLM's with `--save-result --save-detailed`,
SGLang's with `--output-details`), and an object for each request: as lines, as a list, or as a list within an object
(GuideLLM's and GenAI-Perf's have several, one for each run).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.request_tables import REQUESTS
from stepscope.core.trace import Meta, Trace, extent_ns
from stepscope.readers.common.source import IssueLog, with_issues
from stepscope.readers.formats import BYTE_ORDER_MARK
from stepscope.readers.requests.fields import (
    COUNTS,
    LENGTHS,
    LISTS,
    SECOND,
    TIMES,
    TYPES,
    Place,
    fields_of,
    places_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.readers.common.source import Source

FORMAT = "requests"
#: Lists of requests within an object, and of runs that have such lists.
_LISTS = ("requests", "results", "records", "per_request", "details", "data", "outputs")
_RUNS = ("benchmarks", "experiments")
_SUCCESSFUL = "successful"
#: A text that is not empty, in a part of a streamed answer.
_TEXT, _SOME_TEXT = regex(r'"(?:content|text|reasoning\w*)"\s*:\s*"[^"]'), '"text": "a"'
_OF_LISTS = ("ttfts", "itls", "input_lens", "output_lens", "latencies", "e2e_latencies")
_SAMPLES, _SAMPLED_BYTES, _MOST_LETTERS = 8, 1 << 16, 300
#: A text with a line that is not as it should be is divided into so many parts, unless it is so small.
_PARTS, _SMALL = 64, 1 << 16
_TORN = "lines that are no whole object"
#: From here on a time is one since 1970 (2001); and the longest that a request can take: 10 days.
_UNIX_NS, _LONGEST_S = 10**18, 864_000.0
_HINT = "see docs/serving.md for the fields that are read"
_AVERAGES = "record single requests too: --save-result --save-detailed (vLLM), --output-details (SGLang)"


def read(source: Source) -> Trace:
    """The requests of a file. Raises CorruptInput (not one of them), StepscopeError (size limit)."""
    issues = IssueLog()
    text = b"".join(source.chunks()).removeprefix(BYTE_ORDER_MARK).lstrip()
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    frame, has_averages = _frame(text, issues)
    table, origin = _requests(frame)
    lengths = pl.col(name for name in table.columns if name.endswith("_ns") and name != "ts_ns")
    sound = table.filter(pl.any_horizontal(lengths.is_not_null()) | ~pl.col("is_ok").fill_null(value=True))
    if sound.is_empty():
        reason = "it has averages and no single requests" if has_averages else "not one request can be read"
        raise CorruptInput(reason, _AVERAGES if has_averages else _HINT, path=source.label)
    issues.add("requests_dropped", "warning", table.height - sound.height, "rows without any time that can be")
    issues.add("requests_failed", "info", int((~sound["is_ok"]).sum() or 0), "requests without an answer")
    meta = Meta(source.label, FORMAT, n_events=sound.height, size_bytes=source.n_bytes, origin_unix_ns=origin)
    return Trace(meta, {"requests": sound, "issues": issues.table()})


def _frame(text: bytes, issues: IssueLog) -> tuple[pl.DataFrame, bool]:
    """The fields of all requests by name, and whether there are averages in their place."""
    end = text.find(b"\n")
    first = _object(text if end < 0 else text[:end])
    whole = first
    if first is None and (whole := _whole(text)) is not None:
        text = text.replace(b"\n", b" ")  # which no text of JSON holds
    rows = whole if isinstance(whole, list) else None if whole is None else _list_within(whole)
    if rows is not None:
        return _of_lines(b"\n".join(bytes(row).replace(b"\n", b" ") for row in rows), issues), False
    if whole is not None and (any(name in whole for name in _OF_LISTS) or "request_throughput" in whole):
        lines = text.split(b"\n")
        runs = [run for run in map(_object, lines) if run is not None]
        issues.add("torn_lines", "warning", sum(map(bool, lines)) - len(runs), _TORN)
        return pl.concat([_of_lists(run, issues) for run in runs], how="diagonal"), True
    return _of_lines(text, issues), False


def _object(text: bytes) -> dict[str, Any] | None:
    fields: dict[str, Any] | None = _decoded(text, dict[str, msgspec.Raw])
    return fields


def _whole(text: bytes) -> Any:
    """A document of several lines: its list of rows, or its fields; None if it is neither."""
    return _decoded(text, list[msgspec.Raw]) if text.startswith(b"[") else _object(text)


def _decoded(text: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _list_within(document: dict[str, Any]) -> list[bytes] | None:
    """The requests in an object, if it has a list of them, or runs that have some."""
    for name in _RUNS:
        runs = _decoded(document[name], list[dict[str, msgspec.Raw]]) if name in document else None
        lists = [rows for run in runs or () if (rows := _list_within(run)) is not None]
        if lists:
            return [_with_text(row) for rows in lists for row in rows]
    for name in _LISTS:
        if name in document and (rows := _rows(document[name])):
            return rows
    return None


class _Streamed(msgspec.Struct):
    """What GenAI-Perf notes of a request whose answer came in parts."""

    timestamp: float
    response_timestamps: list[float]
    response_outputs: list[dict[str, Any]]


def _with_text(row: bytes) -> bytes:
    """The request without those parts of its answer that hold no text: the role before it, and the end after it."""
    streamed = _decoded(row, _Streamed)
    if streamed is None or len(streamed.response_outputs) != len(streamed.response_timestamps):
        return row
    parts = zip(streamed.response_timestamps, streamed.response_outputs, strict=True)
    whole = [at for at, part in parts if _TEXT.search(str(part.get("response", _SOME_TEXT)))]
    return msgspec.json.encode({"timestamp": streamed.timestamp, "response_timestamps": whole})


def _rows(raw: Any) -> list[bytes]:
    """The objects of a list, or of a list for each outcome: those of others than `successful` got no answer."""
    rows = _decoded(raw, list[msgspec.Raw])
    if rows is not None:
        return [bytes(row) for row in rows] if rows and bytes(rows[0]).lstrip().startswith(b"{") else []
    outcomes = _decoded(raw, dict[str, list[msgspec.Raw] | None]) or {}
    if _SUCCESSFUL not in outcomes:
        return []
    of = {name: [bytes(row).strip() for row in rows or ()] for name, rows in outcomes.items()}
    failed = [b'{"is_ok":false,' + row[1:] for name, rows in of.items() if name != _SUCCESSFUL for row in rows]
    return of[_SUCCESSFUL] + failed


def _of_lists(run: dict[str, Any], issues: IssueLog) -> pl.DataFrame:
    """The requests of one run of a benchmark, which holds a list for each measure."""
    kinds: dict[str, Any] = {
        **dict.fromkeys(TYPES, list[float | None]), **dict.fromkeys(LISTS, list[list[float] | None]),
        "error": list[str | None], "id": list[str | None], "is_ok": list[bool | None],
    }  # fmt: skip
    columns: dict[str, list[Any]] = {}
    for name, raw in run.items():
        if not bytes(raw).lstrip().startswith(b"["):
            continue
        for field, factor, _ in fields_of(name):
            values = _decoded(raw, kinds[field])
            if values is not None and field not in columns:
                columns[field] = values if factor == SECOND else _scaled(values, factor / SECOND)
    n = max(map(len, columns.values()), default=0)
    uneven = sum(len(values) != n for values in columns.values())
    issues.add("uneven_lists", "warning", uneven, f"lists with other lengths than {n:,}: the rest is unknown")
    return pl.DataFrame(
        {name: [*values, *[None] * (n - len(values))] for name, values in columns.items()},
        schema={name: TYPES[name] for name in columns},
        strict=False,
    )


def _scaled(values: list[Any], factor: float) -> list[Any]:
    """Numbers, or lists of them, in another unit."""
    return [
        v * factor if isinstance(v, int | float) else [one * factor for one in v] if isinstance(v, list) else v
        for v in values
    ]


def _of_lines(text: bytes, issues: IssueLog) -> pl.DataFrame:
    """The fields of requests, each an object on a line of its own, times in seconds."""
    places = _places(text)
    schema = _schema(places, 0)
    if not schema:
        return pl.DataFrame()
    rows = pl.concat([pl.DataFrame(schema=schema), *_read(text, schema, issues)])
    columns: dict[str, pl.Expr] = {}
    for path, field, factor in places:
        value = pl.col(path[0])
        for name in path[1:]:
            value = value.struct.field(name)
        scale = factor / SECOND
        if field in (*TIMES, *LENGTHS) and scale != 1:
            value = value * scale
        elif field in LISTS and scale != 1:
            value = value.list.eval(pl.element() * scale)
        columns[field] = pl.coalesce(columns[field], value) if field in columns else value
    return rows.select(**columns)


def _schema(places: Sequence[Place], depth: int) -> dict[str, Any]:
    """The types of what is at these places, by the name at that depth."""
    schema: dict[str, Any] = {}
    for name in dict.fromkeys(place.path[depth] for place in places):
        at = [place for place in places if place.path[depth] == name]
        ends = [TYPES[place.field] for place in at if len(place.path) == depth + 1]
        schema[name] = ends[0] if ends else pl.Struct(_schema(at, depth + 1))
    return schema


def _places(text: bytes) -> list[Place]:
    """Where fields are, by samples of the text."""
    n = len(text)
    pieces = (text[at : at + _SAMPLED_BYTES] for at in range(0, n, max(n // _SAMPLES, _SAMPLED_BYTES)))
    lines = (line for piece in pieces for line in piece.split(b"\n"))
    return places_of(row for line in lines if (row := _decoded(line, dict[str, Any])))


def _read(text: bytes, schema: dict[str, Any], issues: IssueLog) -> Iterator[pl.DataFrame]:
    """The rows of the lines. Where one is not as it should be, parts of the text are read by themselves."""
    try:
        if text.strip():
            yield pl.read_ndjson(text, schema=schema)
    except (pl.exceptions.PolarsError, UnicodeError):
        if len(text) <= _SMALL:
            yield _one_by_one(text.split(b"\n"), schema, issues)
            return
        start, length = 0, max(len(text) // _PARTS, _SMALL)
        while start < len(text):
            end = text.find(b"\n", start + length) + 1 or len(text)
            yield from (
                _read(text[start:end], schema, issues)
                if end - start < len(text)
                else (_one_by_one(text.split(b"\n"), schema, issues),)
            )
            start = end


def _one_by_one(lines: Sequence[bytes], schema: dict[str, Any], issues: IssueLog) -> pl.DataFrame:
    """The lines that are objects by themselves: slow, but each value counts that can be."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    rows: list[dict[str, Any]] = []
    torn = 0
    for line in lines:
        try:
            rows.append(decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            torn += bool(line.strip())
    issues.add("torn_lines", "warning", torn, _TORN)
    columns = {name: [_as(row.get(name), dtype) for row in rows] for name, dtype in schema.items()}
    return pl.DataFrame(columns, schema=schema)


def _as(value: Any, dtype: Any) -> Any:
    """The value as that type; None if it is of another one."""
    if isinstance(dtype, pl.Struct):
        return {f.name: _as(value.get(f.name), f.dtype) for f in dtype.fields} if isinstance(value, dict) else None
    if isinstance(dtype, pl.List):
        return [_as(one, pl.Float64()) for one in value] if isinstance(value, list) else None
    if dtype == pl.Boolean:
        return value if isinstance(value, bool) else None
    if dtype == pl.String:
        return str(value)[:_MOST_LETTERS] if isinstance(value, str | int) else None
    return _number(value)


def _number(value: Any) -> float | None:
    """The number, or the one that a text states."""
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        return None if isinstance(value, bool) else float(value)
    return None


def _requests(frame: pl.DataFrame) -> tuple[pl.DataFrame, int | None]:
    """The table `requests` of fields in seconds, and its origin if the times are those of 1970."""
    frame = frame.with_columns(
        pl.lit(None, dtype).alias(name) for name, dtype in TYPES.items() if name not in frame.columns
    )
    frame = frame.with_columns(_from_1970(pl.col(name)).alias(name) for name in TIMES)
    frame = frame.with_columns(_of_answers(frame))
    itls = pl.col("itls").list.drop_nulls()
    spent = {
        "e2e": ("finished", "arrived"), "ttft": ("first_token", "arrived"), "queue": ("scheduled", "arrived"),
        "prefill": ("first_token", "scheduled"), "decode": ("finished", "first_token"),
    }  # fmt: skip
    frame = frame.with_columns(_possible(pl.col(name)).alias(name) for name in LENGTHS)
    # Engines note when a request arrived on one clock, and what follows on another: a difference may mean nothing.
    frame = frame.with_columns(
        pl.coalesce(name, *(_possible(pl.col(end) - pl.col(one)) for one in starts)).alias(name)
        for name, (end, start) in spent.items()
        for starts in [(start, "queued") if start == "arrived" else (start,)]
    )
    has_all = (itls.list.len() > 0) | (pl.col("output_tokens") <= 1)
    frame = frame.with_columns(
        ttft=pl.coalesce("ttft", pl.col("queue") + pl.col("prefill")),
        decode=pl.coalesce("decode", _possible(pl.col("e2e") - pl.col("ttft")), pl.when(has_all).then(itls.list.sum())),
        longest_itl=itls.list.max(),
        itl=pl.coalesce("itl", itls.list.mean()),
    )
    frame = frame.with_columns(e2e=pl.coalesce("e2e", pl.col("ttft") + pl.col("decode")))
    frame = frame.with_columns(decode=pl.coalesce("decode", _possible(pl.col("e2e") - pl.col("ttft"))))
    n_more = pl.col("output_tokens") - 1
    frame = frame.with_columns(
        prefill=pl.coalesce("prefill", _possible(pl.col("ttft") - pl.col("queue"))),
        itl=pl.coalesce("itl", pl.col("decode") / pl.when(n_more > 0).then(n_more)),
    )
    error = pl.when(pl.col("error").str.len_chars() > 0).then(pl.col("error").str.slice(0, _MOST_LETTERS))
    is_ok = pl.coalesce("is_ok", pl.when(frame["error"].is_not_null().any()).then(error.is_null()))
    got_answer = is_ok.fill_null(value=True)  # benchmarks write 0 for the times of others
    began = frame.select(_in_ns("arrived").min()).item() or 0
    names = (*LENGTHS, "longest_itl")
    table = frame.select(
        "id",
        request=pl.int_range(pl.len()),
        ts_ns=_in_ns("arrived") - began,
        **{f"{name}_ns": pl.when(got_answer).then(_whole_ns(name)) for name in names},
        **{name: pl.when(pl.col(name).is_between(0, 2.0**53)).then(name).round() for name in COUNTS},
        is_ok=is_ok,
        error=error,
    )
    return REQUESTS.conform(table), began if began >= _UNIX_NS else None


def _of_answers(frame: pl.DataFrame) -> list[pl.Expr]:
    """What follows from when each answer came: the first token, the last one, and the times between."""
    if frame["answers"].null_count() == frame.height:
        return []
    answers = pl.col("answers").list.eval(_from_1970(pl.element()))
    return [
        pl.coalesce("first_token", answers.list.first()).alias("first_token"),
        pl.coalesce("finished", answers.list.last()).alias("finished"),
        pl.coalesce("itls", answers.list.diff(null_behavior="drop")).alias("itls"),
    ]


def _in_ns(name: str) -> pl.Expr:
    """A point in time as whole ns, exact to the µs: a double has no more digits."""
    return (pl.col(name) * 1e6).round().cast(pl.Int64) * 1000


def _whole_ns(name: str) -> pl.Expr:
    length = pl.col(name) * SECOND
    return length if name == "itl" else length.round()


def _from_1970(time: pl.Expr) -> pl.Expr:
    """A point in time in seconds: one since 1970 may be written in ms, µs or ns, which its size says."""
    value = pl.when(time.is_between(0, 1e19)).then(time)
    scaled = pl.when(value > 1e17).then(value / 1e9).when(value > 1e14).then(value / 1e6)
    return scaled.when(value > 1e11).then(value / 1e3).otherwise(value)


def _possible(seconds: pl.Expr) -> pl.Expr:
    """A duration, null if none can be so."""
    return pl.when(seconds.is_between(0, _LONGEST_S)).then(seconds)


def with_requests(trace: Trace, path: str, opened: Callable[[str], Trace], *, required: bool) -> Trace:
    """The trace with the requests, histograms and counters of a file on its own time axis.

    With `required` (the user named the file) a file that cannot be read raises; otherwise it is an issue.
    """
    issues = IssueLog()
    try:
        of_engine = opened(path)
    except StepscopeError as error:
        if required:
            raise
        issues.add("requests_unreadable", "warning", 1, error.message)
        return with_issues(trace, issues)
    if of_engine.requests.is_empty() and of_engine.histograms.is_empty() and of_engine.counters.is_empty():
        raise StepscopeError(f"{path} holds no requests", _HINT)
    origins = trace.meta.origin_unix_ns, of_engine.meta.origin_unix_ns
    later = None if None in origins else int(origins[1] or 0) - int(origins[0] or 0)
    n_placed = of_engine.requests["ts_ns"].count() + of_engine.histograms.height
    whose = "the trace" if origins[0] is None else path
    issues.add("requests_unplaced", "warning", 0 if later is not None else n_placed,
               f"{whose} does not say when it began, in Unix time")  # fmt: skip
    at = pl.lit(None, pl.Int64) if later is None else pl.col("ts_ns") + later
    requests = pl.concat([trace.requests, of_engine.requests.with_columns(ts_ns=at)])
    is_timed = trace.has_clock and not trace.spans.is_empty()
    low, high = extent_ns(trace.spans) if is_timed else (0, 0)
    inside = requests.filter((pl.col("ts_ns") < high) & (pl.col("ts_ns") + pl.col("e2e_ns").fill_null(0) > low))
    n_elsewhere = requests["ts_ns"].count() if inside.is_empty() and not trace.spans.is_empty() else 0
    issues.add("requests_elsewhere", "warning", n_elsewhere, "no request runs while the trace was recorded")
    moved = (
        {} if later is None else {"counters": pl.concat([trace.counters, of_engine.counters.with_columns(ts_ns=at)])}
    )
    histograms = of_engine.histograms.with_columns(ts_ns=pl.col("ts_ns") + (later or 0))
    histograms = pl.concat([trace.histograms, histograms])
    with_both = trace.with_tables(
        requests=requests, histograms=histograms, issues=pl.concat([trace.issues, of_engine.issues]), **moved
    )
    return with_issues(with_both, issues)
