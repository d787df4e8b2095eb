"""Whether all surfaces say the same of one trace: report, show, SQL, page, one-file page, markdown, JSON.

Each check returns a list of sentences, one for each disagreement; an empty list is good.
"""

from __future__ import annotations

import html
import io
import json
import re
from typing import TYPE_CHECKING

import polars as pl
from starlette.testclient import TestClient

import stepscope
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.common.windows import recorded
from stepscope.analyses.communication.communication import collective_calls
from stepscope.core import units
from stepscope.core.collectives import label_of
from stepscope.core.names import map_names, without_number
from stepscope.renderers import Screen, find
from stepscope.web.app import create_app
from stepscope.web.pages.single_file import report_page
from stepscope.web.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.report import Report

#: Columns of terminals: an old one, a pipe, a wide one.
WIDTHS = (80, 100, 180)
#: Tables that are asked of every surface. Those of a trace that lacks the data are refused alike.
TABLES = (
    "steps", "operators", "kernels", "kernel-classes", "timeline", "overlap", "communication", "idle", "launches",
    "transfers", "memory", "device-utilisation", "step-breakdown", "user-ranges", "recommendations", "counters",
)  # fmt: skip


def plain(text: str) -> str:
    """A page as a person reads it: no tags, no scripts, single spaces."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", " ", text))
    return re.sub(r"\s+", " ", text.replace("\u200b", ""))


def said(report: Report) -> list[str]:
    """What every form of a report must say, in the words and digits of the units."""
    words = []
    for bar in report.bars:
        words += [bar.value, *(note.text for note in bar.notes)]
        words += [f"{part.name} {units.percent(part.ratio)}" for part in bar.parts]
    for finding in report.findings:
        if finding.value_ns is not None:
            words.append(units.duration(finding.value_ns))
        if finding.share_ratio is not None:
            words.append(units.percent(finding.share_ratio))
        words.append(finding.title)
    return [re.sub(r"\s+", " ", word) for word in words]


def lacking(form: str, text: str, words: list[str]) -> list[str]:
    """The words that a form does not say. Layout may put other columns between words, so each must only be there."""
    pieces = set(text.split())
    return [
        f"{form} does not say {word!r}"
        for word in words
        if word not in text and not {piece for piece in word.split() if len(piece) < 30} <= pieces
    ]


def forms(path: Path) -> list[str]:
    """The report in the terminal, as markdown, JSON, page and one file."""
    trace = stepscope.load(path)
    report = stepscope.report(trace)
    words = said(report)
    wrong = []
    for name, width in (*(("terminal", width) for width in WIDTHS), ("markdown", 100)):
        render = find(name).report
        assert render is not None
        text = re.sub(r"\\(?=[^a-zA-Z0-9])", "", render(report, Screen(width=width)))
        wrong += lacking(f"{name} at {width} columns", re.sub(r"\s+", " ", text), words)
    as_json = find("json").report
    assert as_json is not None
    document = json.loads(as_json(report, Screen()))
    ratios = [part["ratio"] for bar in document["bars"] for part in bar["parts"]]
    if ratios != [part.ratio for bar in report.bars for part in bar.parts]:
        wrong.append(f"JSON has parts {ratios}")
    if [f["value_ns"] for f in document["findings"]] != [f.value_ns for f in report.findings]:
        wrong.append("JSON has other costs of findings")
    run = stepscope.load_run(path)
    wrong += lacking("one-file page", plain(report_page(run)), words)
    return wrong


def tables(path: Path) -> list[str]:
    """Tables as `show`, SQL and the page's download give them."""
    wrong = []
    trace = stepscope.load(path)
    session = Session([str(path)])
    client = TestClient(create_app(session), base_url="http://127.0.0.1:8000", headers={"x-stepscope-wait": "1"})
    try:
        words = said(stepscope.report(trace))
        wrong += lacking("page", plain(client.get("/").text), words)
        for name in TABLES:
            answer = client.get(f"/download/{name}.parquet")
            try:
                frame = trace.show(name)
            except stepscope.StepscopeError:
                if answer.status_code == 200:
                    wrong.append(f"the page has {name}, which show refuses")
                continue
            if answer.status_code != 200 or not same(pl.read_parquet(io.BytesIO(answer.content)), frame):
                wrong.append(f"the page's {name} differs from show's")
            by_query = trace.sql(f"SELECT * FROM {name.replace('-', '_')}")
            if not same(by_query.select(c for c in by_query.columns if c in frame.columns), frame):
                wrong.append(f"SQL's {name} differs from show's")
    finally:
        session.close()
    return wrong


def same(left: pl.DataFrame, right: pl.DataFrame) -> bool:
    """Whether frames hold the same rows in any order; texts are texts, however they are stored."""
    if set(left.columns) != set(right.columns) or left.height != right.height:
        return False
    rows = []
    for frame in (left.select(right.columns), right):
        texts = frame.with_columns(pl.col(c).cast(pl.String) for c, t in frame.schema.items() if t in _TEXTS)
        rows.append(sorted(map(repr, texts.rows())))
    return rows[0] == rows[1]


_TEXTS = (pl.Categorical, pl.Enum)


def numbers(path: Path) -> list[str]:
    """Numbers of the report that a table has too."""
    trace = stepscope.load(path)
    report = stepscope.report(trace)
    return [
        *_of_operators(trace, report),
        *_of_kernels(trace, report),
        *_of_steps(trace, report),
        *_of_parts(trace, report),
        *_of_memory(trace, report),
    ]


def _block(report: Report, title: str) -> pl.DataFrame | None:
    return next((block.frame for block in report.tables if block.title == title), None)


def _of_operators(trace: stepscope.Trace, report: Report) -> list[str]:
    shown = _block(report, "Operators")
    if shown is None:
        return []
    table = trace.show("operators").with_columns(pl.col("name").cast(pl.String))
    rows = set(table.select(shown.columns).rows())
    return [
        f"the report's operator {row} is not in show"
        for row in shown.with_columns(pl.col("name").cast(pl.String)).rows()
        if row not in rows
    ]


def _of_kernels(trace: stepscope.Trace, report: Report) -> list[str]:
    shown = _block(report, "Kernels")
    if shown is None or trace.show("kernels")["total_ns"].is_null().any():
        return []
    table = trace.show("kernels")
    names = map_names(table["name"], without_number, pl.String())
    sums = table.group_by(names.alias("name")).agg(pl.col("calls", "total_ns").sum())
    rows = set(sums.select("name", "calls", "total_ns").rows())
    return [
        f"the report's kernel {row} is not in show"
        for row in shown.select(pl.col("name").cast(pl.String), "calls", "total_ns").rows()
        if row not in rows
    ]


def _of_steps(trace: stepscope.Trace, report: Report) -> list[str]:
    step = next((bar for bar in report.bars if bar.label == "Step"), None)
    if step is None or trace.steps.is_empty():
        return []
    mean = trace.show("steps")["window_ns"].mean()
    return (
        []
        if step.value.startswith(units.duration(mean))
        else [f"Step {step.value}, but show steps has a mean of {units.duration(mean)}"]
    )


def _of_parts(trace: stepscope.Trace, report: Report) -> list[str]:
    step = next((bar for bar in report.bars if bar.label in ("Step", "Device")), None)
    if step is None or not any(part.name == "computation" for part in step.parts):
        return []
    by = "step" if step.label == "Step" else "rank"
    table = trace.show("timeline", by=by)
    # Without steps the bar is the recording, and the table the time from the first to the last device work.
    low, high = recorded(trace.spans)
    whole = table["total_ns"].sum() if by == "step" else (high - low) * table.height
    expected = {
        "computation": table["computation_ns"].sum() / whole,
        "exposed communication": table["exposed_communication_ns"].sum() / whole,
        "exposed memcpy": table["exposed_memcpy_ns"].sum() / whole,
        "idle": 1 - table["busy_ns"].sum() / whole,
    }
    parts = {part.name: part.ratio for part in step.parts}
    return [
        f"{name} is {parts.get(name, 0):.4f} in the report and {ratio:.4f} in show timeline"
        for name, ratio in expected.items()
        if abs(parts.get(name, 0) - ratio) > 1e-9
    ]


def communication(path: Path) -> list[str]:
    """Time, calls and kinds of communication, which many tables have."""
    trace = stepscope.load(path)
    timeline, overlap = trace.show("timeline"), trace.show("overlap")
    kernels, classes = trace.show("kernels"), trace.show("kernel-classes")
    calls = _shown(trace, "communication").filter(pl.col("measured").cast(pl.String) == "device")
    named = _shown(trace, "overlap", by="name")
    merged = {
        "timeline": (timeline["communication_ns"].sum(), timeline["exposed_communication_ns"].sum()),
        "overlap": (overlap["communication_ns"].sum(), overlap["exposed_ns"].sum()),
    }
    is_collective = pl.col("kernel_class").cast(pl.String) == "collective"
    summed = {
        "overlap by name": (named["communication_ns"].sum(), named["calls"].sum()),
        "kernels": (kernels.filter("communication")["total_ns"].sum(), kernels.filter("communication")["calls"].sum()),
        "classes of kernels": tuple(kernels.filter(is_collective).select(pl.col("total_ns", "calls").sum()).row(0)),
        "kernel-classes": tuple(classes.filter(is_collective).select(pl.col("total_ns", "calls").sum()).row(0)),
        "communication": (calls["total_ns"].sum(), summed_calls(trace)),
    }
    wrong = [f"{what} of communication differ: {each}" for what, each in _unequal(merged=merged, summed=summed)]
    kinds = set(map_names(calls["collective"], label_of, pl.String()))
    return wrong + [
        f"the report says {kind!r}, show communication has {sorted(kinds)}"
        for finding in trace.report().findings
        if finding.title.startswith("Exposed communication")
        for kind in re.findall(r"[:,] ([a-z -]+?)(?= \d|,|$)", finding.title.partition("computes")[2])
        if kind not in kinds
    ]


def _unequal(**tables: dict[str, tuple[int, int]]) -> list[tuple[str, dict[str, tuple[int, int]]]]:
    return [(what, each) for what, each in tables.items() if len(set(each.values())) > 1]


def summed_calls(trace: stepscope.Trace) -> int:
    """Kernels of the calls that `communication` counts, which may have several."""
    work = device_work(trace.spans, trace.tracks, needed_by=None)
    parts, _ = collective_calls(trace.spans, trace.tracks, trace.collectives, trace.ops, work)
    return parts.filter(pl.col("measured") == "device").height


def _shown(trace: stepscope.Trace, name: str, **options: str) -> pl.DataFrame:
    """The table; empty if the trace has nothing for it."""
    try:
        return trace.show(name, **options)
    except stepscope.MissingTable:
        columns = ("calls", "communication_ns", "total_ns", "collective", "measured")
        return pl.DataFrame(schema={c: pl.Int64() if c.endswith(("ns", "calls")) else pl.String() for c in columns})


def _of_memory(trace: stepscope.Trace, report: Report) -> list[str]:
    text = next((note.text for bar in report.bars for note in bar.notes if note.about == "memory"), None)
    if text is None:
        return []
    peaks = trace.show("memory")["peak_allocated_bytes"]
    return (
        []
        if any(units.size(peak) in text for peak in peaks if peak)
        else [f"{text}, but show memory has {peaks.to_list()}"]
    )
