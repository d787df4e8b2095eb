"""Answers to the scripts of the pages: JSON, and windows of the timeline in binary."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from stepscope.core.errors import StepscopeError
from stepscope.web.pages.site import Site, ask
from stepscope.web.session import companion_of, snapshots_of
from stepscope.web.timeline import inspection
from stepscope.web.timeline.drawing import draw_window
from stepscope.web.timeline.scene import KINDS, layout

if TYPE_CHECKING:
    from starlette.requests import Request

    from stepscope.web.timeline.scene import Scene

MOST_PIXELS = 8_192
_MOST_TRACKS = 2_000
NO_STORE = {"cache-control": "no-store"}


async def progress(site: Site, request: Request) -> Response:  # noqa: ARG001  every handler gets one
    """How far each file has been read, as JSON."""
    reading = [{"name": name, "ratio": ratio} for name, ratio in site.session.progress()]
    body = {"reading": reading, "inputs": [one.label for one in site.session.inputs()]}
    return JSONResponse(body, headers=NO_STORE)


async def scene_for(site: Site, request: Request) -> Scene:
    """The trace of the address laid out, without the kinds that are hidden. Raises Waiting, StepscopeError."""
    index = request.path_params["index"]
    stamps = site.session.stamps((index,))
    hidden = KINDS.intersection(request.query_params.get("hide", "").split(","))
    # The answer is whether there is one: the session holds the scene itself as long as its trace.
    await ask(site, request, ("scene", index, stamps, hidden), lambda: bool(site.session.scene(index, hidden)))
    return await asyncio.to_thread(site.session.scene, index, hidden)


async def layout_of(site: Site, request: Request) -> Response:
    """Rows and tracks of the timeline, as JSON."""
    session, index = site.session, request.path_params["index"]
    key = ("snapshot", index, session.stamps((index,)))
    if await ask(site, request, key, lambda: snapshots_of(session, (index,))):
        return JSONResponse({"snapshot": True}, headers=NO_STORE)
    scene = await scene_for(site, request)
    memory = await asyncio.to_thread(companion_of, session, index)
    return JSONResponse({**await asyncio.to_thread(layout, scene), "memory": memory}, headers=NO_STORE)


async def window(site: Site, request: Request) -> Response:
    """What the timeline draws between two times, at a width in pixels."""
    low, high = range_of(request)
    pixels = min(max(number_of(request, "px", 1_000), 16), MOST_PIXELS)
    scene = await scene_for(site, request)
    tracks, flat = _numbers(request, "tracks"), _numbers(request, "flat")
    data = await asyncio.to_thread(draw_window, scene, low, high, pixels, tracks, flat)
    return Response(data, media_type="application/octet-stream", headers=NO_STORE)


async def span(site: Site, request: Request) -> Response:
    """Everything that is known about one span, as JSON."""
    scene = await scene_for(site, request)
    return JSONResponse(await asyncio.to_thread(inspection.span_details, scene, request.path_params["span"]))


async def statistics(site: Site, request: Request) -> Response:
    """Sums over the spans of a range of time, as JSON."""
    low, high = range_of(request)
    tracks = _numbers(request, "tracks") if request.query_params.get("tracks") else None
    scene = await scene_for(site, request)
    return JSONResponse(await asyncio.to_thread(inspection.statistics, scene, low, high, tracks))


async def search(site: Site, request: Request) -> Response:
    """Spans whose name contains a text, as JSON."""
    text = request.query_params.get("q", "")
    if not text:
        raise StepscopeError("nothing to search for", "give a part of a name")
    scene = await scene_for(site, request)
    exact = bool(request.query_params.get("exact"))
    return JSONResponse(await asyncio.to_thread(partial(inspection.matching_spans, exact=exact), scene, text))


def number_of(request: Request, name: str, default: int | None = None) -> int:
    """A whole number of the address. Raises StepscopeError."""
    text = request.query_params.get(name, "")
    if not text and default is not None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise StepscopeError(f"{name}={text[:40]!r} is not a whole number", "times are in ns")
    return int(text)


def range_of(request: Request) -> tuple[int, int]:
    """`from` and `to` of the address. Raises StepscopeError (no numbers, or nothing between them)."""
    low, high = number_of(request, "from"), number_of(request, "to")
    if high <= low:
        raise StepscopeError("the window is empty", "`to` must be after `from`")
    return low, high


def _numbers(request: Request, name: str) -> list[int]:
    numbers = [word for word in request.query_params.get(name, "").split(",") if word][:_MOST_TRACKS]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in numbers):
        raise StepscopeError(f"{name} is not a list of track numbers", "as in tracks=0,3")
    return [int(word) for word in numbers]
