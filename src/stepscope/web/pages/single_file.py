"""A report as one file that opens without a server: same templates, styles and scripts, all of it inside."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import replace

from stepscope.api import verbs
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.renderers import figures
from stepscope.web.pages.first_tables import Frames
from stepscope.web.pages.highlights import cards
from stepscope.web.pages.links import Links
from stepscope.web.pages.rows import sheet
from stepscope.web.pages.sections import PAGES, Section, asked_by, filled, lacking
from stepscope.web.pages.site import environment, static_path
from stepscope.web.pages.table_query import answered
from stepscope.web.session import Session, snapshots_of
from stepscope.web.timeline.drawing import draw_stretch
from stepscope.web.timeline.memory_levels import draw_levels, memory_layout
from stepscope.web.timeline.scene import layout, scene_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.report import Report
    from stepscope.core.trace import Run, Trace
    from stepscope.web.timeline.drawing import Part
    from stepscope.web.timeline.memory_levels import Axis
    from stepscope.web.timeline.scene import Scene


_TIMELINE = ("layout.js", "marks.js", "panel.js", "timeline.js")
_IMPORT = regex(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = regex(r"^export ", re.MULTILINE)
_PAGE_MODULES = ("source.js", "sorting.js", "charts.js", "page.js")
_MOST_SPANS = 30_000
_MOST_POINTS = 60_000
_MOST_TRACES = 4
_LEVEL_PIXELS = 1_200
_ROWS = 50


def report_page(run: Run) -> str:
    """The report of a run as the text of an HTML file: overview, pages, charts, and the slowest step as a timeline.

    Raises StepscopeError.
    """
    session = Session(run.paths, run=run)
    inputs = tuple(range(len(run.paths)))
    report = replace(verbs.report(session.run(inputs)), arguments=run.named or run.paths)
    for index in inputs:
        session.rank(index)  # a cached report does not tell the session the rank
    links = Links("", inputs, len(inputs), session.of_rank(inputs))
    pages = [
        (name, page, [_part(session, inputs, section) for section in page.sections]) for name, page in PAGES.items()
    ]
    # Pages without recorded data are left out.
    pages = [
        (name, page, parts) for name, page, parts in pages if any(part["sheet"] or part["chart"] for part in parts)
    ]
    steps = next((part["chart"] for _, _, parts in pages for part in parts if part["section"].table == "steps"), None)
    timeline, levels = _timeline(session, inputs), _levels(session, inputs)
    highlights = cards(Frames(session, inputs, {}), links)
    session.close()
    return _rendered(
        report, run.paths, _modules(timeline, levels), title="Report", cards=highlights, chart=steps,
        links=links, pages=pages, timeline=timeline, embedded=levels,
        snapshots=levels["labels"] if levels else [],
    )  # fmt: skip


def comparison_page(report: Report, paths: Sequence[str]) -> str:
    """The report of a comparison as the text of an HTML file, with its figure. Raises StepscopeError."""
    return _rendered(
        report,
        paths,
        _PAGE_MODULES,
        title="Comparison",
        cards=None,
        chart=None,
        links=Links(),
        pages=[],
        timeline=None,
        embedded=None,
    )


def _modules(timeline: object, levels: object) -> tuple[str, ...]:
    """The scripts that a report needs."""
    drawing = ("draw.js",) if timeline or levels else ()
    more = (*drawing, *(_TIMELINE if timeline else ()), *(("memory.js",) if levels else ()))
    return (_PAGE_MODULES[0], *more, *_PAGE_MODULES[1:])


def _rendered(report: Report, paths: Sequence[str], modules: Sequence[str], **content: Any) -> str:
    """The filled template, with everything that it needs inside, and a policy that lets nothing else run."""
    theme = _script(static_path().joinpath("light_or_dark.js").read_text("utf-8"))
    module = _script(bundle(modules))
    plotly, packed = figures.plotly_script()
    style = static_path().joinpath("page.css").read_text("utf-8")
    return environment().get_template("one_file.html").render(
        one_file=True, report=report, blocks=[(block, sheet(block.frame, block.table)) for block in report.tables],
        colours=figures.COLOURS, policy=_policy([theme, module, plotly], style), style=style, theme=theme,
        module=module, plotly=packed, chosen=(),
        paths=[path.replace("\\", "/").rsplit("/", 1)[-1] for path in paths[:20]], **content,
    )  # fmt: skip


def bundle(names: Sequence[str]) -> str:
    """Our modules as one script: what they export is in one scope, and those that export nothing have their own."""
    texts = [_IMPORT.sub("", static_path().joinpath(name).read_text("utf-8")) for name in names]
    return "\n".join(_EXPORT.sub("", text) if _EXPORT.search(text) else f"{{\n{text}}}" for text in texts)


def _script(text: str) -> str:
    # What would end the element, in a string or a comment, is spelt otherwise.
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: list[str], style: str) -> str:
    own = " ".join(map(_hash, scripts))
    return (
        f"default-src 'none'; script-src {own}; style-src {_hash(style)} {_hash('')}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(session: Session, inputs: tuple[int, ...], section: Section) -> dict[str, Any]:
    try:
        answer = answered(session, asked_by(section, inputs))
    except StepscopeError as error:
        return lacking(section, error)
    return filled(section, answer, None, _ROWS)


def _timeline(session: Session, inputs: tuple[int, ...]) -> dict[str, Any] | None:
    """The slowest step of each of the first traces: the data to draw it, and what was left out."""
    layouts, parts, remarks = [], [], []
    shared = min(len(inputs), _MOST_TRACES)
    for index in inputs[:_MOST_TRACES]:
        try:
            scene = scene_of(session.trace(index))
        except StepscopeError:  # the report says what could not be read
            continue
        low, high, about = _hot(scene)
        part = draw_stretch(scene, low, high, _MOST_SPANS // shared, _MOST_POINTS // shared)
        parts.append(base64.b64encode(zlib.compress(part.data, 9)).decode())
        layouts.append(_layout_of(scene, low, high, part))
        merged = f"; {part.n_merged:,} shorter spans are drawn as bars" if part.n_merged else ""
        remarks.append(f"{layouts[-1]['label']}: {about}{merged}")
    if len(inputs) > _MOST_TRACES:
        remarks.append(f"{len(inputs) - _MOST_TRACES:,} more traces are not drawn")
    return {"layouts": layouts, "parts": "\n".join(parts), "remarks": remarks} if parts else None


def _levels(session: Session, inputs: tuple[int, ...]) -> dict[str, Any] | None:
    """Memory over time of the first snapshots, all of it at the width of a screen, by device and way of stacking."""
    layouts: list[dict[str, Any]] = []
    parts: list[str] = []
    for index in snapshots_of(session, inputs)[:_MOST_TRACES]:
        scene = session.memory_scene(index)
        layouts.append(memory_layout(scene))
        for device in scene.devices:
            axis: Axis = "event" if device.times is None else "time"
            low, high = device.ends(axis)
            windows = [draw_levels(device, low, high, _LEVEL_PIXELS, by, axis) for by in device.groupings]
            parts += [base64.b64encode(zlib.compress(window, 9)).decode() for window in windows]
    return (
        {"layouts": layouts, "parts": "\n".join(parts), "labels": [(i, one["label"]) for i, one in enumerate(layouts)]}
        if layouts
        else None
    )


def _layout_of(scene: Scene, low: int, high: int, part: Part) -> dict[str, Any]:
    """The layout of what the part holds: its tracks with their lanes, its lines, its steps."""
    stretch = {**layout(scene), "first_ns": low, "last_ns": high}
    stretch["lines"] = [stretch["lines"][i] for i in part.lines]
    stretch["steps"] = [list(step) for step in stretch["steps"] if step[1] < high and step[1] + step[2] > low]
    groups = [
        {**group, "tracks": [
            {**track, "lanes": part.lanes[track["id"]]} for track in group["tracks"] if track["id"] in part.lanes
        ]}
        for group in stretch["groups"]
    ]  # fmt: skip
    stretch["groups"] = [group for group in groups if group["tracks"]]
    return stretch


def _hot(scene: Scene) -> tuple[int, int, str]:
    """The slowest step with a little around it; all of a recording without steps."""
    steps = scene.trace.steps.drop_nulls(["ts_ns", "dur_ns"])
    if steps.is_empty():
        return scene.first_ns, max(scene.last_ns, scene.first_ns + 1), "the whole recording"
    number, start, length = steps.sort("dur_ns", descending=True).select("step", "ts_ns", "dur_ns").row(0)
    margin = length // 20
    end = max(start + length, _end_of_work(scene.trace, number))
    word = "the slowest step" if steps.height > 1 else "step"
    return start - margin, max(end + margin, start + 1), f"{word}, {number}"


def _end_of_work(trace: Trace, step: int) -> int:
    last = trace.spans.filter(pl.col("step") == step).select((pl.col("ts_ns") + pl.col("dur_ns")).max()).item()
    return 0 if last is None else int(last)
