"""What `stepscope record` writes: counters, stacks, scheduling, and the notes about the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepscope.readers.formats import RECORDING


def recording_of(path: str) -> dict[str, Any]:
    """The meta.json of a recording in the folder of a trace; empty if there is none."""
    try:
        recording = json.loads((Path(path).parent / RECORDING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return recording if isinstance(recording, dict) and recording.get("recorder") == "stepscope" else {}
