"""Other tools on the same traces, each in an environment of its own, and plain JSON decoding as the floor."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from inputs import MB

SCRIPTS = Path(__file__).with_name("peer_scripts")


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool: what to install, the script that runs it on a trace, and the largest trace it is tried on by default."""

    name: str
    does: str
    script: str
    requirements: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    max_input_bytes: int = 200 * MB


PEERS = (
    Peer("HTA 0.5.0", "TraceAnalysis of one rank, get_temporal_breakdown", "hta_breakdown.py",
         ("HolisticTraceAnalysis==0.5.0", "pandas==2.2.3")),
    Peer("torch-tb-profiler 0.4.3", "the TensorBoard plugin's parser and all its views, without the server",
         "tensorboard_views.py", ("torch-tb-profiler==0.4.3", "pandas==2.2.3")),
    Peer("orjson.loads", "the text, unpacked if it is packed, to Python objects, and nothing else",
         "decode_only.py", ("orjson==3.11.4",), ("orjson",), 500 * MB),
    Peer("json.loads", "the same with the standard library", "decode_only.py", (), ("json",), 500 * MB),
)  # fmt: skip


class NotInstalled(Exception):
    """A tool's environment could not be made; the message says why."""


def command(peer: Peer, cache: Path, trace: Path) -> list[str]:
    """What runs the tool on the trace; its environment is made unless it is there. Raises NotInstalled."""
    python = environment(peer, cache) if peer.requirements else Path(sys.executable)
    return [str(python), str(SCRIPTS / peer.script), *peer.arguments, str(trace)]


def environment(peer: Peer, cache: Path) -> Path:
    """The interpreter of an environment that holds what the tool needs. Raises NotInstalled."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256("\n".join((version, *peer.requirements)).encode()).hexdigest()[:10]
    folder = cache / f"env-{peer.requirements[0].partition('=')[0]}-{key}"
    python = folder / "bin" / "python"
    stamp = folder / "complete"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *peer.requirements]
        done = subprocess.run(pip, capture_output=True, text=True, check=False, env=clean_environment())
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
            raise NotInstalled(errors[0] if errors else done.stderr.strip()[-200:])
        stamp.touch()
    return python


def clean_environment() -> dict[str, str]:
    """Environment variables without those that would let one interpreter see another's packages."""
    return {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
