"""The report as one file that opens without a server: same templates, styles and scripts, all of it inside."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope import api, charts
from stepscope.errors import StepscopeError
from stepscope.web._highlights import cards
from stepscope.web._links import Links
from stepscope.web._pages import PAGES, Section
from stepscope.web._questions import answered
from stepscope.web._rows import sheet
from stepscope.web._scene import layout, scene_of
from stepscope.web._sections import asked_by, filled, lacking
from stepscope.web._session import Session
from stepscope.web._site import environment, plotly_path, static_path
from stepscope.web._timeline import short, shortened
from stepscope.web._wire import pack

if TYPE_CHECKING:
    from stepscope.trace import Run, Trace
    from stepscope.web._scene import Scene

__all__ = ["report_page"]

_MODULES = ("source.js", "layout.js", "draw.js", "panel.js", "timeline.js", "sorting.js", "charts.js", "page.js")
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_MOST_SPANS = 30_000
_MOST_TRACES = 4
_ROWS = 50
_NO_LAUNCH = 2**32 - 1


def report_page(run: Run) -> str:
    """The report of a run as the text of an HTML file: overview, pages, charts, and the slowest step as a timeline.

    Raises StepscopeError.
    """
    session = Session(run.paths, run=run)
    inputs = tuple(range(len(run.paths)))
    report = api.report(session.run(inputs))
    links = Links("", inputs, len(inputs), session.of_rank(inputs))
    pages = [
        (name, page, [_part(session, inputs, section) for section in page.sections]) for name, page in PAGES.items()
    ]
    # A page of which nothing was recorded says nothing.
    pages = [(name, page, parts) for name, page, parts in pages if any(part["sheet"] for part in parts)]
    steps = next((part["chart"] for _, _, parts in pages for part in parts if part["section"].table == "steps"), None)
    templates = environment()
    scripts = [
        _script(static_path().joinpath("theme.js").read_text("utf-8")),
        _script(plotly_path().read_text("utf-8")),
    ]
    timeline = _timeline(session, inputs)
    modules = [name for name in _MODULES if timeline or name in ("sorting.js", "charts.js", "page.js")]
    module = _script(bundle(modules))
    style = static_path().joinpath("page.css").read_text("utf-8")
    text = templates.get_template("one_file.html").render(
        title="Report", one_file=True, report=report, cards=cards(session, inputs, links), chart=steps,
        blocks=[(block, sheet(block.frame, block.table)) for block in report.tables], colours=charts.COLOURS,
        links=links, pages=pages, policy=_policy([*scripts, module], style), style=style, scripts=scripts,
        module=module, timeline=timeline, chosen=(),
        paths=[path.replace("\\", "/").rsplit("/", 1)[-1] for path in run.paths[:20]],
    )  # fmt: skip
    session.close()
    return text


def bundle(names: list[str]) -> str:
    """Our modules as one script: what they import of each other lies in one scope."""
    text = "\n".join(static_path().joinpath(name).read_text("utf-8") for name in names)
    return _EXPORT.sub("", _IMPORT.sub("", text))


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
        found = answered(session, asked_by(section, inputs))
    except StepscopeError as error:
        return lacking(section, error)
    return filled(section, found, None, _ROWS)


def _timeline(session: Session, inputs: tuple[int, ...]) -> dict[str, Any] | None:
    """The slowest step of each of the first traces: what the browser needs to draw it, and what was left out."""
    layouts, parts, notes = [], [], []
    for index in inputs[:_MOST_TRACES]:
        try:
            scene = scene_of(session.trace(index))
        except StepscopeError:  # the report says what could not be read
            continue
        low, high, about = _hot(scene)
        data, left_out = _spans(scene, low, high, _MOST_SPANS // min(len(inputs), _MOST_TRACES))
        parts.append(base64.b64encode(zlib.compress(data, 9)).decode())
        kept = {**layout(scene), "first_ns": low, "last_ns": high, "lines": []}
        kept["steps"] = [list(step) for step in kept["steps"] if step[1] < high and step[1] + step[2] > low]
        layouts.append(kept)
        notes.append(f"{kept['label']}: {about}" + (f"; {left_out:,} shorter spans are left out" if left_out else ""))
    if len(inputs) > _MOST_TRACES:
        notes.append(f"{len(inputs) - _MOST_TRACES:,} more traces are not drawn")
    return {"layouts": layouts, "parts": "\n".join(parts), "notes": notes} if parts else None


def _hot(scene: Scene) -> tuple[int, int, str]:
    """The slowest step with a little around it; all of a recording without steps."""
    steps = scene.trace.steps.drop_nulls(["ts_ns", "dur_ns"])
    if steps.is_empty():
        return scene.first_ns, scene.last_ns, "the whole recording"
    number, start, length = steps.sort("dur_ns", descending=True).select("step", "ts_ns", "dur_ns").row(0)
    margin = length // 20
    end = max(start + length, _end_of_work(scene.trace, number))
    word = "the slowest step" if steps.height > 1 else "step"
    return start - margin, end + margin, f"{word}, {number}"


def _end_of_work(trace: Trace, step: int) -> int:
    last = trace.spans.filter(pl.col("step") == step).select((pl.col("ts_ns") + pl.col("dur_ns")).max()).item()
    return 0 if last is None else int(last)


def _spans(scene: Scene, low: int, high: int, most: int) -> tuple[bytes, int]:
    """The spans of [low, high), packed like a window in which all are in full; the longest if they are too many.

    Sampled lines are left to the page of memory.
    """
    lanes = scene.lanes
    inside = np.flatnonzero((lanes.start < high) & (lanes.end > low))
    left_out = max(inside.size - most, 0)
    if left_out:
        length = lanes.end[inside] - lanes.start[inside]
        inside = np.sort(inside[np.argpartition(length, left_out)[left_out:]])
    lane = np.searchsorted(lanes.first, inside, side="right") - 1
    used, lane = np.unique(lane, return_inverse=True)
    ids = lanes.row[inside]
    codes, names = np.unique(scene.codes[ids], return_inverse=True)
    launches = scene.trace.spans["launch_id"].gather(ids).cast(pl.Int64).fill_null(_NO_LAUNCH).to_numpy()
    header = {
        "low": low, "high": high, "pixels": 1, "names": [shortened(scene.names[code]) for code in codes],
        "short": [short(scene.names[code]) for code in codes],
        "lanes": [[int(lanes.tracks[k]), int(lanes.depths[k])] for k in used], "before": [],
    }  # fmt: skip
    none = {name: np.empty(0, kind) for name, kind in (
        ("bar_lane", "u4"), ("bar_pixel", "u2"), ("bar_busy", "f4"), ("bar_count", "u4"), ("bar_id", "u4"),
        ("bar_category", "u1"), ("line", "u2"), ("line_pixel", "u2"), ("line_min", "f8"), ("line_max", "f8"),
        ("line_last", "f8"),
    )}  # fmt: skip
    arrays = {
        "lane": lane.astype("u4"), "id": ids.astype("u4"), "start": (lanes.start[inside] - low).astype("f8"),
        "dur": (lanes.end[inside] - lanes.start[inside]).astype("f8"), "name": names.astype("u4"),
        "category": scene.categories[ids], "launch": launches.astype("u4"), **none,
    }  # fmt: skip
    return pack(header, arrays), left_out
