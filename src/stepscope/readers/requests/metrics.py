"""Metrics of an engine as Prometheus text: one scrape, or those of a folder in order of time.

Buckets of histograms become the table `histograms`, other samples `counters`. A scrape's time is that of its samples
if they have one, else that of the mark before it (`# scraped UNIX_NS`, where a file holds several), else a time since
1970 in its file's name, else when the file was last written.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput
from stepscope.core.patterns import regex
from stepscope.core.prometheus import EXEMPLAR, OF_NAME, SAMPLE, SCRAPED
from stepscope.core.request_tables import HISTOGRAMS
from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.source import IssueLog, Source
from stepscope.readers.requests import scrapes_of

FORMAT = "metrics"
_LE = r'(?:^|,)\s*le="([^"]*)"'
_OF_NAME = rf'(?:^|,)\s*(?:{"|".join(OF_NAME)})="([^"]*)"'
_HISTOGRAM = r"_(?:bucket|sum|count)$"
_TIME = regex(r"(?<!\d)(1\d{9}|1\d{12}|1\d{15}|1\d{18})(?!\d)")
_MOST_SCRAPES, _MOST_S, _MOST_MS = 100_000, 1e11, 1e13


def read(source: Source) -> Trace:
    """The scrapes in the folder of one. Raises CorruptInput (not one sample), StepscopeError (size limit)."""
    issues = IssueLog()
    paths = [source.path] if source.member else scrapes_of(source.path)[:_MOST_SCRAPES]
    parts = []
    scrapes: list[tuple[str, int | None]] = []
    for path in paths:
        one = Source(path, source.member, source.max_bytes)
        samples, marks = _samples(one, issues)
        source.n_bytes += one.n_bytes
        parts.append(samples.with_columns(scrape=pl.col("part") + len(scrapes)))
        scrapes += [(path, at) for at in marks]
    samples = pl.concat(parts)
    if samples.is_empty():
        raise CorruptInput("not one of its lines is a sample", "scrape again: curl URL/metrics", path=source.label)
    samples, origin = _timed(samples, scrapes, issues)
    histograms, counters = _tables(samples, issues)
    meta = Meta(source.label, FORMAT, n_events=samples.height, size_bytes=source.n_bytes, origin_unix_ns=origin,
                facts={"scrapes": str(samples["scrape"].n_unique())})  # fmt: skip
    return Trace(meta, {"histograms": histograms, "counters": counters, "issues": issues.table()})


def _samples(source: Source, issues: IssueLog) -> tuple[pl.DataFrame, list[int | None]]:
    """The samples of a file: name, labels, value, time (ns since 1970, perhaps null), part; and the time of each part.

    Part 0 is what stands before the first mark, and usually all of the file.
    """
    text = b"".join(source.chunks()).decode("utf-8", "replace")
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    lines = pl.Series("line", text.split("\n"), pl.String).str.strip_chars()
    mark = lines.str.extract(SCRAPED).cast(pl.Int64, strict=False)
    is_sample = (lines != "") & ~lines.str.starts_with("#")
    part = mark.is_not_null().cum_sum().cast(pl.Int64).alias("part").filter(is_sample)
    lines = lines.filter(is_sample).str.replace(EXEMPLAR, "")
    rows = lines.str.extract_groups(SAMPLE).struct.unnest() if lines.len() else pl.DataFrame(schema=_TEXTS)
    rows = rows.with_columns(part, pl.col("value").str.strip_prefix("+").cast(pl.Float64, strict=False))
    sound = rows.filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan())
    bad = lines.filter(rows["value"].is_null())
    for example in bad.head(1):
        issues.add("lines_dropped", "warning", bad.len(), f"lines that are no samples, as {example[:60]!r}")
    issues.add("values_unknown", "info", rows.height - bad.len() - sound.height, "samples that are no number (NaN)")
    single = sound.unique(["part", "name", "labels"], keep="last", maintain_order=True)
    issues.add("samples_doubled", "warning", sound.height - single.height, "samples twice in a scrape: the last counts")
    time = pl.col("time").cast(pl.Float64, strict=False)
    time = pl.when(time.is_between(0, _MOST_MS)).then(time)
    # Prometheus writes whole milliseconds, OpenMetrics seconds: as µs both are exact in a double.
    in_us = pl.when(time > _MOST_S).then(time * 1e3).otherwise(time * 1e6)
    return single.with_columns(time=in_us.round().cast(pl.Int64) * 1000), [None, *mark.drop_nulls()]


_TEXTS = dict.fromkeys(("name", "labels", "value", "time"), pl.String())


def _timed(
    samples: pl.DataFrame, scrapes: list[tuple[str, int | None]], issues: IssueLog
) -> tuple[pl.DataFrame, int | None]:
    """The samples with ts_ns from the first scrape on, in order of time; and when that was, in Unix time.

    `scrapes` are the file of each, and the time of its mark.
    """
    present = samples["scrape"].unique().sort().to_list()
    samples = samples.with_columns(pl.col("scrape").rank("dense").cast(pl.Int64) - 1)
    paths = [scrapes[scrape][0] for scrape in present]
    marks = [scrapes[scrape][1] for scrape in present]
    stated = samples.group_by("scrape").agg(at=pl.col("time").min())
    at = dict(stated.drop_nulls().filter(pl.col("at") > 0).iter_rows())
    times = [at.get(i) or mark or _time_of_name(path) for i, (path, mark) in enumerate(zip(paths, marks, strict=True))]
    if None in times:
        written = [Path(path).stat().st_mtime_ns if not files.is_url(path) else 0 for path in paths]
        if all(a < b for a, b in pairwise(written)) and written[0]:
            times = [*written]
            issues.add(
                "scrape_times", "info", len(paths), "times of scrapes are those at which their files were written"
            )
    known = [time for time in times if time is not None]
    if len(known) < len(times) or len(set(known)) < len(known):
        issues.add("scrape_times", "warning", len(paths), "only the order of scrapes is known, by their names")
        return samples.with_columns(ts_ns=pl.col("scrape").cast(pl.Int64)), None
    ts_ns = pl.col("scrape").replace_strict(dict(enumerate(known)), return_dtype=pl.Int64) - min(known)
    return samples.with_columns(ts_ns=ts_ns).sort("ts_ns", maintain_order=True), min(known)


def _time_of_name(path: str) -> int | None:
    match = _TIME.search(files.split(path)[1])
    return None if match is None else int(match[1]) * 10 ** (19 - len(match[1]))


def _tables(samples: pl.DataFrame, issues: IssueLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables `histograms` and `counters`."""
    labels = pl.col("labels").fill_null("")
    rest = labels.str.replace_all(_LE, "").str.replace(_OF_NAME, "").str.replace_all('"', "").str.strip_chars(", ")
    base = pl.col("name").str.replace(_HISTOGRAM, "")
    up_to = labels.str.extract(_LE).str.strip_prefix("+").cast(pl.Float64, strict=False)
    named = samples.with_columns(base=base, engine=rest.str.slice(0, 300), up_to=up_to)
    named = named.with_columns(of_histogram=pl.col("up_to").is_not_null().any().over("base") & (base != pl.col("name")))
    keys = ["ts_ns", "base", "engine"]
    parts = named.filter("of_histogram")
    is_bucket = pl.col("name").str.ends_with("_bucket")
    totals = parts.filter(~is_bucket).group_by(keys).agg(
        n_all=pl.col("value").filter(pl.col("name").str.ends_with("_count")).first(),
        total=pl.col("value").filter(pl.col("name").str.ends_with("_sum")).first(),
    )  # fmt: skip
    buckets = parts.filter(is_bucket & pl.col("up_to").is_not_nan() & pl.col("value").is_between(0, 1e15))
    buckets = buckets.sort(*keys, "up_to").join(totals, on=keys, how="left", maintain_order="left")
    falls = (pl.col("value").diff() < 0).any().over(keys)
    differs = ((pl.col("up_to") == math.inf) & (pl.col("value") != pl.col("n_all"))).any().over(keys)
    unsound = buckets.select(pl.col("base"), bad=falls | differs)
    for example in unsound.filter("bad")["base"].head(1):
        n = buckets.filter(unsound["bad"]).select(keys).unique().height
        issues.add("histograms_dropped", "warning", n, f"histograms whose buckets contradict each other, as {example}")
    buckets = buckets.filter(~unsound["bad"])
    is_last = pl.col("up_to") == math.inf
    histograms = buckets.select(
        "ts_ns", "engine", metric="base", n="value",
        up_to=pl.when(~is_last).then("up_to"), total=pl.when(is_last & pl.col("total").is_finite()).then("total"),
    )  # fmt: skip
    is_date = pl.col("name").str.ends_with("_created")  # when the client began to count
    plain = named.filter(~pl.col("of_histogram") & ~is_date & pl.col("value").is_finite())
    device = pl.when(pl.col("engine") != "").then("engine").otherwise(pl.lit("engine"))
    what = ("_" + pl.col("labels").str.extract(_OF_NAME)).fill_null("")
    counters = plain.select("ts_ns", "value", metric=pl.col("name") + what, device=device)
    return HISTOGRAMS.conform(histograms), COUNTERS.conform(counters)
