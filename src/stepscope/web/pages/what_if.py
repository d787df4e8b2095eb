"""The page "What if": a control for each standard question, and the changed step drawn next to the recorded one."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import JSONResponse, Response

from stepscope.analyses.critical_path.changes import change_of
from stepscope.analyses.critical_path.predictions import near_median_program, tables_of, with_parts
from stepscope.analyses.critical_path.questions import applicable
from stepscope.api.predicting import of_ranks
from stepscope.core.errors import StepscopeError
from stepscope.core.units import duration, percent
from stepscope.renderers import figures
from stepscope.web.pages.site import Site, ask
from stepscope.web.session import Busy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from starlette.requests import Request

    from stepscope.analyses.critical_path.changes import Change
    from stepscope.analyses.critical_path.replay import Program
    from stepscope.web.session import Session

#: What a slider can be set to, before the last stop: the change that takes all of the time away.
_STOPS = ("1x", "1.25x", "1.5x", "2x", "3x", "5x", "10x")
_LAST = {"kernel": "removed", "op": "removed", "loader": "hidden"}
_LABELS = {
    "launch": "Launching work", "launch: graphs": "Launches as graphs", "loader": "Data loading",
    "sync: removed": "No waiting for the device", "copies": "Copies", "comm": "Communication",
    "comm: overlapped": "Nothing waits for communication", "device": "All device work", "host": "All host time",
    "bandwidth": "Bandwidth of collectives", "device: fused": "Memory-bound kernels fused",
    "padding: removed": "No padding of batches", "prefill: removed": "No prefill between decode steps",
    "sampling": "Sampling",
}  # fmt: skip
_GROUPS = {"kernel": "Kernels", "op": "Operators"}
_COLOURS = {
    "computation": "computation", "communication": "exposed communication", "memcpy": "exposed memcpy",
    "host": "operators", "data loader": "data loading", "launch queue": "launch and runtime calls",
    "gaps between work": "idle",
}  # fmt: skip
_MOST_CHANGES = 32


class Control(msgspec.Struct, frozen=True):
    """A slider over `stops` of a subject; with one stop a checkbox. `group` is the heading that it stands under."""

    label: str
    subject: str
    stops: tuple[str, ...]
    group: str


async def controls(site: Site, request: Request, inputs: Sequence[int]) -> dict[str, Any]:
    """What the template of the page needs for the first of these traces; nothing if its program cannot be run again."""
    index = inputs[0]
    try:
        program = await _program(site, request, index)
    except Busy:
        raise
    except StepscopeError:  # the section of the page says what is missing
        return {}
    made = await asyncio.to_thread(lambda: list(dict.fromkeys(_controls(applicable(program)))))
    known = {f"{one.subject}: {stop}" for one in made for stop in one.stops}
    for change in map(change_of, _asked(request)):
        if str(change) not in known:
            subject = str(change).rpartition(": ")[0]
            made.append(Control(str(change), subject, (change.change,), "From the report"))
    return {"controls": made, "index": index, "on_time": await _on_time(site, request, inputs)} if made else {}


async def _on_time(site: Site, request: Request, inputs: Sequence[int]) -> str:
    """What a step takes if no rank is late; nothing unless these are ranks of one job."""
    session = site.session
    key = ("no rank is late", tuple(inputs), session.stamps(inputs))

    def answer() -> Mapping[str, Any]:
        frame = of_ranks(session.run(inputs), "ranks: no stragglers", None, lambda *_: None)
        return frame.row(0, named=True)

    try:
        row = await ask(site, request, key, answer) if len(inputs) > 1 else {}
    except Busy:
        raise
    except StepscopeError:  # no ranks of one job, or nothing that they share
        row = {}
    if not row:
        return ""
    step_ns, predicted_ns = _number(row["step_ns"]), _number(row["predicted_ns"])
    lengths = f"{duration(step_ns)} → {duration(predicted_ns)}"
    return f"If no rank came late, all ranks together: {lengths} ({_change(step_ns, predicted_ns)})"


async def predicted(site: Site, request: Request) -> Response:
    """The step with the changes of the address (`if`, several), as JSON: texts, and parts in ns of both steps."""
    wanted = [change_of(text) for text in _asked(request)]
    program = await _program(site, request, request.path_params["index"])
    body = await asyncio.to_thread(_answer, program, wanted)
    return JSONResponse(body, headers={"cache-control": "no-store"})


def _asked(request: Request) -> list[str]:
    return list(dict.fromkeys(request.query_params.getlist("if")))[:_MOST_CHANGES]


async def _program(site: Site, request: Request, index: int) -> Program:
    session = site.session
    key = ("near median", index, session.stamps((index,)))
    program: Program = await ask(site, request, key, lambda: _near_median(session, index))
    return program


def _near_median(session: Session, index: int) -> Program:
    return near_median_program(*tables_of(session.trace(index)))


def _controls(asked: Sequence[Sequence[Change]]) -> Iterator[Control]:
    for change in (change for wanted in asked for change in wanted):
        subject = str(change).rpartition(": ")[0]
        name = re.sub(r"\\(.)", r"\1", change.name.removeprefix("^").removesuffix("$").replace(r"\b", ""))
        is_single = change.factor is None or str(change) in _LABELS
        label = _LABELS.get(str(change) if is_single else subject, name or subject)
        stops = (change.change,) if is_single else (*_STOPS, _LAST.get(change.subject, "free"))
        yield Control(label, subject, stops, _GROUPS.get(change.subject, "The job"))


def _answer(program: Program, wanted: Sequence[Change]) -> dict[str, Any]:
    recorded, spent_before = with_parts(program, [])
    row, spent = with_parts(program, wanted)
    step_ns, predicted_ns = _number(recorded["step_ns"]), _number(row["predicted_ns"])
    before, after = _shares(spent_before, step_ns), _shares(spent, predicted_ns)
    return {
        "step": duration(step_ns),
        "predicted": duration(predicted_ns),
        "change": _change(step_ns, predicted_ns) if wanted else "",
        "between": [duration(_number(row["low_ns"])), duration(_number(row["high_ns"]))] if wanted else None,
        "basis": row["basis"],
        "reason": row["reason"],
        "binds_next": row["binds_next"],
        "step_ns": step_ns,
        "predicted_ns": predicted_ns,
        "parts": [
            {
                "name": name,
                "colour": figures.COLOURS.get(_COLOURS.get(name, ""), figures.COLOURS["other"]),
                "recorded_ns": before[name],
                "predicted_ns": after[name],
                "recorded": duration(before[name]),
                "predicted": duration(after[name]),
            }
            for name in before
            if before[name] or after[name]
        ],
    }


def _shares(spent: Mapping[str, float], whole_ns: float) -> dict[str, float]:
    """The parts, stretched so that they add up to the mean step: they are of the median one."""
    total = sum(spent.values())
    return {name: ns * whole_ns / total if total else 0.0 for name, ns in spent.items()}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _change(step_ns: float, ns: float) -> str:
    return f"{'−' if ns <= step_ns else '+'}{percent(abs(1 - ns / step_ns))}" if step_ns else ""
