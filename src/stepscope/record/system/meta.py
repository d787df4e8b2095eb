"""meta.json: what was recorded, on what, and what is missing. Replaced as a whole, so that it is never half-written."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from typing import TYPE_CHECKING, Any

from stepscope.record.system.proc import meminfo_bytes, read_once

if TYPE_CHECKING:
    from pathlib import Path

NAME = "meta.json"
#: Inside the recording, while the job runs: messages and counters of its processes.
FOLDER = ".job"
#: Folders inside the recording that are recordings of their own.
DUMPS = "dump-[0-9][0-9][0-9][0-9]-*"
#: Folders inside it that say what the job did when no step ended.
HANGS = "hang-[0-9][0-9][0-9][0-9]"
#: Unfinished files of processes end so.
PART = ".part"


def issue(code: str, example: str, *, severity: str = "warning", count: int = 1) -> dict[str, Any]:
    """A row of the table `issues`."""
    return {"code": code, "severity": severity, "count": count, "example": example}


def clocks() -> dict[str, int]:
    """The clocks at one moment: Unix time, and the two that count from boot. Units: ns.

    The monotonic time is the middle of two readings around that of Unix time; the closest pair of some tries counts.
    """
    tries = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before, unix, after = min(tries, key=lambda times: times[2] - times[0])
    middle = (before + after) // 2
    since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return {
        "unix_ns": unix,
        "monotonic_ns": middle,
        "uncertainty_ns": after - before,
        "boottime_ns": middle + since_boot,
    }


def this_host() -> dict[str, Any]:
    """Name, system, cores and memory of this machine."""
    lines = (read_once("/proc/cpuinfo") or "").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    memory = meminfo_bytes((read_once("/proc/meminfo") or "").encode()).get("MemTotal")
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": model,
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
    }


def write(folder: Path, document: dict[str, Any]) -> None:
    """Replace meta.json. Raises OSError."""
    part = folder / f".{NAME}.{os.getpid()}{PART}"
    try:
        part.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(folder / NAME)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def merge(folder: Path, issues: list[dict[str, Any]] | None = None, **fields: Any) -> None:
    """Set fields of meta.json, and add issues. Raises OSError."""
    document = json.loads((folder / NAME).read_text(encoding="utf-8"))
    document.update(fields)
    document["issues"] = [*document.get("issues", []), *(issues or [])]
    write(folder, document)


def hook_messages(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the start-up hook wrote: facts of each of the job's processes, and issues. An incomplete line is ignored."""
    processes: dict[int, dict[str, Any]] = {}
    issues = []
    for line in (read_once(str(folder / FOLDER / "notes")) or "").splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if "code" in message:
            issues.append(message)
        else:
            processes.setdefault(message["pid"], {}).update(message)
    return list(processes.values()), issues


def remove_leftovers(folder: Path) -> int:
    """Remove what only a running job needs, and unfinished files. Returns the number of the latter."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    parts = [*folder.glob(f".*{PART}"), *folder.glob(f"{DUMPS}/.*{PART}")]
    for part in parts:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
    return len(parts)
