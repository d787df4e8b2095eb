"""A memory snapshot for tests, with one device and four blocks, as PyTorch writes it."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
FORWARD = [
    {"name": "forward", "filename": "/home/me/model.py", "line": 7},
    {"name": "<module>", "filename": "/home/me/train.py", "line": 3},
]
INIT = [{"name": "__init__", "filename": "/home/me/model.py", "line": 2}]


def event(action: str, address: int, size: int, **facts: Any) -> dict[str, Any]:
    """An event of stream 0, a millisecond after that of the address before."""
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000} | facts


def snapshot(every_us: int = 0) -> dict[str, Any]:
    """Events are `every_us` apart.

    10 MiB from before the history; 4 MiB and 8 MiB allocated, of which the 8 are freed; a free segment of 20 MiB.
    """
    a, b, c = (address * MIB for address in (64, 74, 78))
    history = [
        event("alloc", b, 4 * MIB - 100, frames=FORWARD),
        event("alloc", c, 8 * MIB, frames=FORWARD),
        event("free_requested", c, 8 * MIB, frames=FORWARD),
        event("free_completed", c, 8 * MIB, frames=FORWARD),
    ]
    for i, one in enumerate(history):
        one["time_us"] += i * every_us
    blocks = [
        {"address": a, "size": 10 * MIB, "requested_size": 10 * MIB, "state": "active_allocated", "frames": INIT},
        {
            "address": b,
            "size": 4 * MIB,
            "requested_size": 4 * MIB - 100,
            "state": "active_allocated",
            "frames": FORWARD,
        },
        {"address": c, "size": 8 * MIB, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    idle = [_block(128 * MIB, 20 * MIB, 0, [])]
    return {
        "segments": [_segment(a, 22, blocks), _segment(128 * MIB, 20, idle)],
        "device_traces": [history],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }


def _block(address: int, size: int, asked: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    state = "active_allocated" if asked else "inactive"
    return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": frames}


def _segment(address: int, mib: int, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "device": 0, "address": address, "total_size": mib * MIB, "active_size": 0, "requested_size": 0, "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def limited(large: int, *, fragmented: bool = False) -> dict[str, Any]:
    """A process that may not have what the device has: five steps of 20 MiB, and a sixth that fails.

    Each step holds 20 MiB for itself; the sixth has `large` MiB more when a request of 60 MiB fails. `fragmented`: of
    ten more blocks of 20 MiB in one segment, every second was freed before.
    """
    history, blocks = [], []
    base, step, big = (address << 30 for address in (1, 2, 3))
    segments = [(base, 200)] if fragmented else []
    for number in range(10 if fragmented else 0):
        at = base + number * 20 * MIB
        blocks.append(_block(at, 20 * MIB, 20 * MIB if number % 2 else 0, INIT))
    segments.append((step, 20))
    for number in range(6):
        history.append(event("alloc", step, 20 * MIB, frames=FORWARD))
        if number < 5:
            history.append(event("free_requested", step, 20 * MIB, frames=FORWARD))
            history.append(event("free_completed", step, 20 * MIB, frames=FORWARD))
    if large:
        history.append(event("segment_alloc", big, large * MIB, frames=FORWARD))
        history.append(event("alloc", big, large * MIB, frames=FORWARD))
        segments.append((big, large))
    request = {"action": "oom", "size": 60 * MIB, "device_free": 100 << 30, "stream": 0, "frames": FORWARD}
    history.append({**request, "time_us": history[-1]["time_us"]})
    held = {base: blocks, step: [_block(step, 20 * MIB, 20 * MIB, FORWARD)]}
    held[big] = [_block(big, large * MIB, large * MIB, FORWARD)]
    return {
        "segments": [_segment(at, mib, held[at]) for at, mib in segments],
        "device_traces": [history],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }
