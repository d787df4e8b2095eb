"""Dumps of a flight recorder for tests: as Python values, and as PyTorch's own pickler writes them."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def call(seq: int, name: str = "all_reduce", **facts: Any) -> dict[str, Any]:
    """One record: collective `seq` of the group `group`, which has ended unless `ended` is false."""
    ended = facts.pop("ended", True)
    group = facts.pop("group", "0")
    record = {
        "frames": facts.pop("frames", []),
        "record_id": facts.pop("place", seq),
        "pg_id": int(group),
        "process_group": (group, facts.pop("desc", "default_pg")),
        "collective_seq_id": seq,
        "p2p_seq_id": facts.pop("message", 0),
        "profiling_name": f"nccl:{name}",
        "time_created_ns": START + facts.pop("at_s", seq) * SECOND,
        "input_sizes": facts.pop("sizes", [[16]]),
        "input_dtypes": [facts.pop("dtype", "Float")],
        "output_sizes": [[16]],
        "output_dtypes": ["Float"],
        "state": "completed" if ended else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": START + seq * SECOND + 1 if ended else None,
        "retired": ended,
        "timeout_ms": 600_000,
        "is_p2p": " " in name,
    }
    return record | facts


def dump(calls: list[dict[str, Any]], groups: dict[str, list[int]] | None = None) -> dict[str, Any]:
    """The dump of a rank with these calls, in groups of these ranks."""
    config = {name: {"name": name, "desc": "default_pg", "ranks": str(ranks)} for name, ranks in (groups or {}).items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": calls}


def write(folder: Path, dumps: dict[int, dict[str, Any]], *, as_json: bool = False) -> str:
    """The dumps of ranks in a folder, and its path."""
    for rank, document in dumps.items():
        content = json.dumps(document).encode() if as_json else pickled(document)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
    return str(folder)


def pickled(value: Any) -> bytes:
    """The value as PyTorch pickles it: texts go through the memo, collections do not."""
    memo: dict[str, int] = {}
    return b"\x80\x02" + b"".join(_operations(value, memo)) + b"."


def _operations(value: Any, memo: dict[str, int]) -> Any:
    if value is None or isinstance(value, bool):
        yield {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, int):
        yield _number(value)
    elif isinstance(value, str) and value in memo:
        yield b"h%c" % memo[value] if memo[value] < 256 else b"j" + struct.pack("<I", memo[value])
    elif isinstance(value, str):
        memo[value] = place = len(memo)
        text = value.encode()
        yield b"X" + struct.pack("<I", len(text)) + text
        yield b"q%c" % place if place < 256 else b"r" + struct.pack("<I", place)
    else:
        items = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
        begin, end = {dict: (b"}(", b"u"), list: (b"](", b"e"), tuple: (b"(", b"t")}[type(value)]
        yield begin
        for item in items:
            yield from _operations(item, memo)
        yield end


def _number(value: int) -> bytes:
    for code, form, low, high in ((b"K", "<B", 0, 2**8), (b"M", "<H", 0, 2**16), (b"J", "<i", -(2**31), 2**31)):
        if low <= value < high:
            return code + struct.pack(form, value)
    return b"\x8a\x08" + struct.pack("<q", value)
