"""Tables of a memory snapshot, as literal as its dict: one device, one row per event, segment, block and stack."""

from __future__ import annotations

from typing import Any

import polars as pl

EVENTS = {
    "device_id": pl.UInt32, "action": pl.String, "address": pl.Int64, "bytes": pl.Int64, "stream": pl.Int64,
    "stack_id": pl.UInt32, "device_free_bytes": pl.Int64,
}  # fmt: skip
SEGMENTS = {
    "device_id": pl.UInt32, "address": pl.Int64, "bytes": pl.Int64, "stream": pl.Int64, "pool": pl.String,
    "is_expandable": pl.Boolean,
}  # fmt: skip
BLOCKS = {
    "device_id": pl.UInt32, "address": pl.Int64, "bytes": pl.Int64, "requested_bytes": pl.Int64, "state": pl.String,
    "stack_id": pl.UInt32,
}  # fmt: skip


def tables(snapshot: dict[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, list[tuple[str, ...]]]:
    """Events, segments and blocks of device 0, and the stacks by id, innermost frame first."""
    stacks: dict[tuple[str, ...], int] = {}

    def stack_id(frames: list[dict[str, Any]] | None) -> int | None:
        names = tuple(f"{frame['filename']}:{frame['name']}:{frame['line']}" for frame in frames or ())
        return stacks.setdefault(names, len(stacks)) if names else None

    events = [
        (0, event["action"], event.get("addr", 0), event["size"], event["stream"], stack_id(event.get("frames")),
         event.get("device_free"))
        for event in snapshot["device_traces"][0]
    ]  # fmt: skip
    segments, blocks = [], []
    for segment in snapshot["segments"]:
        at = segment["address"]
        is_expandable = bool(segment.get("is_expandable"))
        segments.append((0, at, segment["total_size"], segment["stream"], segment["segment_type"], is_expandable))
        for block in segment["blocks"]:
            frames = block.get("frames") or (block.get("history") or [{}])[0].get("frames")
            blocks.append((0, at, block["size"], block["requested_size"], block["state"], stack_id(frames)))
            at += block["size"]
    frames = (
        pl.DataFrame(rows, schema=schema, orient="row")
        for rows, schema in ((events, EVENTS), (segments, SEGMENTS), (blocks, BLOCKS))
    )
    return (*frames, list(stacks))
