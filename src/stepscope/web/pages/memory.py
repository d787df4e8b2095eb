"""Memory over time of memory snapshots: which inputs have it, and the answers to the page's script."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import JSONResponse, Response

from stepscope.core.errors import StepscopeError
from stepscope.core.report import printable
from stepscope.web.pages.calls import MOST_PIXELS, NO_STORE, number_of, range_of
from stepscope.web.pages.site import Site, ask
from stepscope.web.session import companion_of, snapshots_of
from stepscope.web.timeline.memory_levels import draw_levels, memory_layout, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from stepscope.web.session import Session
    from stepscope.web.timeline.memory_levels import Axis, By, MemoryScene

_MOST_STEPS = 1_000


async def controls(site: Site, request: Request, inputs: Sequence[int]) -> dict[str, Any]:
    """What the template needs to draw memory over time; nothing if no input is a snapshot."""
    session = site.session
    key = ("snapshots", tuple(inputs), session.stamps(inputs))
    snapshots: list[int] = await ask(site, request, key, lambda: snapshots_of(session, inputs))
    labels = {one.index: one.label for one in session.inputs()}
    return {"snapshots": [(i, labels[i]) for i in snapshots]} if snapshots else {}


async def _scene(site: Site, request: Request) -> MemoryScene:
    index = request.path_params["index"]
    key = ("memory scene", index, site.session.stamps((index,)))
    await ask(site, request, key, lambda: bool(site.session.memory_scene(index)))
    return await asyncio.to_thread(site.session.memory_scene, index)


async def layout(site: Site, request: Request) -> Response:
    """Devices, groups and bounds, and the steps of the trace next to the snapshot, as JSON."""
    scene = await _scene(site, request)
    steps = await asyncio.to_thread(_steps, site.session, request.path_params["index"])
    return JSONResponse({**memory_layout(scene), **steps}, headers=NO_STORE)


def _steps(session: Session, index: int) -> dict[str, Any]:
    """The steps of the trace of the snapshot, on the snapshot's clock."""
    trace = companion_of(session, index)
    if trace is None:
        return {"steps": [], "trace": None}
    recording, snapshot = session.trace(trace), session.trace(index)
    shift = (recording.meta.origin_unix_ns or 0) - (snapshot.meta.origin_unix_ns or 0)
    rows = recording.steps.drop_nulls(["ts_ns", "dur_ns"]).sort("ts_ns").head(_MOST_STEPS)
    last = snapshot.memory_events["ts_ns"].max()
    steps = [
        (step, start + shift, length)
        for step, start, length in rows.select("step", "ts_ns", "dur_ns").iter_rows()
        if isinstance(last, int) and start + shift + length > 0 and start + shift < last
    ]
    return {"steps": steps, "trace": trace}


def _device_and_way(request: Request) -> tuple[int, By, Axis]:
    by, axis = request.query_params.get("by", "category"), request.query_params.get("axis", "event")
    if by not in ("category", "stack") or axis not in ("time", "event"):
        raise StepscopeError(f"memory is not drawn by {by[:40]} over {axis[:40]}", "by=category|stack, axis=time|event")
    return number_of(request, "device", 0), cast("By", by), cast("Axis", axis)


async def window(site: Site, request: Request) -> Response:
    """What is in use between two points of the axis, by pixel."""
    low, high = range_of(request)
    pixels = min(max(number_of(request, "px", 1_000), 16), MOST_PIXELS)
    number, by, axis = _device_and_way(request)
    scene = await _scene(site, request)
    data = await asyncio.to_thread(draw_levels, scene.device(number), low, high, pixels, by, axis)
    return Response(data, media_type="application/octet-stream", headers=NO_STORE)


async def at_moment(site: Site, request: Request) -> Response:
    """The memory after the event of a place, or up to a point of the axis (`x`), as JSON."""
    number, by, axis = _device_and_way(request)
    scene = await _scene(site, request)
    device = scene.device(number)
    place = number_of(request, "place", -1)
    if place < 0:
        place = int(device.axis(axis).searchsorted(number_of(request, "x", 0), side="right")) - 1
    return JSONResponse(await asyncio.to_thread(moment, scene, device, place, by), headers=NO_STORE)


async def stack(site: Site, request: Request) -> Response:
    """The frames of a stack, outermost first, as JSON."""
    scene = await _scene(site, request)
    frames = scene.frames.get(request.path_params["stack"])
    if frames is None:
        raise StepscopeError("the snapshot has no such stack", "stacks have the numbers of the table `stacks`")
    return JSONResponse({"frames": [printable(frame) for frame in frames]}, headers=NO_STORE)
