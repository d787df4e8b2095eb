"""Questions beside those about one table: what is written, changes together, files beside others, stores, agents."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver.exceptions import ToolError

import stepscope
from stepscope import renderers
from stepscope.agents.answers import MOST_BYTES
from stepscope.agents.roots import Runs
from stepscope.agents.server import server
from stepscope.api import comparing
from stepscope.api.history import add_to_history, compare_last_change, history
from stepscope.comparison.history.series import rows_of
from stepscope.core.errors import StepscopeError
from stepscope.core.report import Block
from stepscope.core.trace import Run
from stepscope.query import tables
from stepscope.reports.comparison import comparison

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Question = tuple[str, Callable[[], object]]

#: Made together.
CHANGES = (
    ("class gemm: 2x", "loader: hidden", "comm: overlapped"),
    ("device: fused",), ("padding: removed",), ("prefill: removed",), ("sampling: 2x",), ("bandwidth: 1e300x",),
    ("self ~ .: 2x",), ("launch: graphs", "padding: removed", "prefill: removed"), ("device: 1e-300x", "host: 1e-300x"),
    ("ranks: no stragglers",), (),
)  # fmt: skip
SIDES = ("counters", "capture", "requests", "kernel_counters")
#: What no text that people see may hold, but line ends and tabs.
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_FORMULA = re.compile(r'(^|,)"?[=+@-](?![\d.]+([eE][+-]?\d+)?("|,|$))[^,\n]', re.MULTILINE)


def questions(run: Run, one: Run, sound: Run) -> Iterator[Question]:
    """What else can be asked about a run, the first of its files, and a sound file."""
    for name, kind in tables.names():
        if kind in ("analysis", "ranks", "table"):
            yield f"write {name}", partial(_written, run, name)
    both = Run((*one.paths, *sound.paths), lambda path: (one if path in one.paths else sound).open_trace(path))
    for changes in CHANGES:
        yield f"predict {' and '.join(changes)}", partial(stepscope.predict, run, changes)
    yield "predict of two ranks", partial(stepscope.predict, both, ["comm: free", "class gemm: 2x"])
    for name, kind in tables.names():
        if kind == "ranks":
            yield f"show {name} of two", partial(stepscope.show, both, name)
    for kind in SIDES:
        yield f"beside as {kind}", partial(_beside, sound.paths[0], one.paths[0], kind)
    yield "compare repeats", lambda: str(comparison(comparing.compare_two_runs(both, both)))
    yield (
        "compare by table",
        lambda: [
            comparing.compare_table(sound, one, name, on_missing=lambda *_: None)
            for name in ("kernels", "steps", "idle")
        ],
    )
    yield "roles", lambda: comparing.group(both)
    yield "history", partial(_remembered, one, sound)
    for tool, given in _TOOLS:
        yield f"agent {tool} {given.get('table', '')}", partial(_told, tool, given, one.paths[0], sound.paths[0])


def _written(run: Run, name: str) -> None:
    """A table in every format, grouped and sorted too."""
    analysis = tables.find(name)
    frame, schema = tables.collect(run, analysis, on_missing=lambda *_: None)
    tables.ordered(frame, schema, frame.columns[:2])
    if len(frame.columns) > 1:
        tables.grouped(frame, schema, frame.columns[:1])
    block = Block(name, schema, frame.head(200))
    for kind in renderers.RENDERERS.names():
        renderer = renderers.find(kind)
        if renderer.table is None:
            continue
        text = renderer.table(block, renderers.Screen())
        if isinstance(text, str) and kind in ("terminal", "csv") and (found := _RAW.search(text)):
            raise AssertionError(f"{kind} holds {found.group()!r}")
        if kind == "json":
            json.loads(text, parse_constant=_refused)
        if kind == "csv" and (found := _FORMULA.search(text)):
            raise AssertionError(f"{kind} holds {found.group()!r}")


def _refused(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def _beside(path: str, side: str, kind: str) -> None:
    files: dict[str, Any] = {kind: side}
    trace = stepscope.load(path, **files)
    str(stepscope.report(trace))
    for name in ("counters", "requests", "batches", "kernels", "operators", "utilisation"):
        try:
            stepscope.show(trace, name)
        except StepscopeError:
            continue


def _remembered(one: Run, sound: Run) -> None:
    """A store with both."""
    with tempfile.TemporaryDirectory() as folder:
        for run in (sound, one):
            add_to_history(run, folder, label="a")
        series = history(folder, on_damage=_raised)
        rows_of(series)
        compare_last_change(series)


def _raised(error: StepscopeError) -> None:
    raise AssertionError(f"what was just written cannot be read: {error.message}")


_TOOLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("open", {"paths": ["ONE"]}), ("report", {"run": "ONE"}), ("compare", {"base": "SOUND", "other": "ONE"}),
    ("predict", {"run": "ONE", "changes": ["launch: graphs"]}), ("predict", {"run": "ONE"}),
    *(("explain", {"run": "ONE", "finding": number}) for number in (1, 2, 3)),
    ("explain", {"run": "ONE", "finding": 1, "base": "SOUND"}),
    *(("show", {"run": "ONE", "table": name, "limit": 1000}) for name in ("spans", "kernels", "requests", "issues")),
    ("sql", {"run": "ONE", "query": "SELECT * FROM spans"}),
)  # fmt: skip


def _told(tool: str, arguments: dict[str, Any], path: str, base: str) -> None:
    """A call of an agent, whose answer must be JSON of a bounded length."""
    names = {"ONE": path, "SOUND": base}
    given = {
        key: [names.get(one, one) for one in value] if isinstance(value, list) else names.get(value, value)
        if isinstance(value, str) else value
        for key, value in arguments.items()
    }  # fmt: skip
    agent = server(Runs((Path("/"),)))
    try:
        result = asyncio.run(agent.call_tool(tool, given))
    except ToolError as error:
        cause: BaseException | None = error
        while isinstance(cause, ToolError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise StepscopeError(str(error), "another call") from None
    text = json.dumps(result.structured_content, ensure_ascii=False, allow_nan=False)
    text.encode()
    if len(text) > MOST_BYTES:
        raise AssertionError(f"an answer of {len(text)} characters")
