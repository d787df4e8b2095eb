"""The traces that are measured, made once and kept in a cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Real traces that are not part of this repository; what comes from them is measured where they are.
COLLECTION = ROOT.parent / "shared" / "data" / "traces"
MAKER = Path(__file__).with_name("repeat_trace.py")
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """What a command may cost at most."""

    cpu_s: float
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """A trace to measure: `copies` of the file `source` (0: `source` as it is), and what to ask of it.

    `show` is an analysis; `exported` what all views of the TensorBoard plugin may cost, measured where it is set.
    """

    key: str
    source: Path
    copies: int
    indent: bool = False
    show: str = "timeline"
    n_bytes: int | None = None
    target: Target | None = None
    exported: Target | None = None

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        name = self.source.name.partition("__")[0].partition(".")[0]
        where = self.source.name if self.source.is_dir() else f"{self.source.parent.name}/{name}"
        return f"{where} × {self.copies}" if self.copies else f"{where}, as recorded"


@dataclass(frozen=True, slots=True)
class Made:
    """An input on disk."""

    input: Input
    path: Path
    n_bytes: int
    n_events: int | None


class NotMade(Exception):
    """An input could not be made; the message says why."""


@cache
def all_inputs() -> list[Input]:
    """Those from the repository's own recordings, then those from the collection of real traces if it is here."""
    return [*from_examples(), *from_collection()]


def from_examples() -> list[Input]:
    """The recordings under examples/: the first as it is; a rank of each as 100 MB, of the first as 1 GB."""
    ranks = sorted((ROOT / "examples").glob("*/*rank0*.json.gz"))
    if not ranks:
        return []
    found = [Input("recorded", ranks[0].parent, 0, show="operators")]
    for rank in ranks:
        with gzip.open(rank) as lines:
            show = "timeline" if any(b'"cat": "kernel"' in line for line in lines) else "operators"
        for size in (100 * MB, 1000 * MB) if rank is ranks[0] else (100 * MB,):
            copies = -(-size // unpacked_size(rank))
            key = f"{rank.parent.name.removeprefix('demo-')}-x{copies}"
            found.append(Input(key, rank, copies, indent=True, show=show))
    return found


def from_collection() -> list[Input]:
    """The traces for which there are targets."""
    control = COLLECTION / "hta/trace_diff/control/control.json.gz"
    found = [
        Input("a", COLLECTION / "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", 2, indent=True,
              n_bytes=90_335_587, target=Target(1.3, 250 * MB)),
        Input("b", COLLECTION / "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", 8, indent=True,
              n_bytes=363_938_571, target=Target(3.5, 700 * MB)),
        Input("control", control, 0, exported=Target(1.3, 220 * MB)),
        Input("control-x4", control, 4, exported=Target(3, 350 * MB)),
        Input("c", control, 36, n_bytes=1_018_652_820, target=Target(10, 1200 * MB), exported=Target(20, 1600 * MB)),
    ]  # fmt: skip
    return [one for one in found if one.source.exists()]


def cache_folder() -> Path:
    """Where made traces and other tools' environments are kept: BENCH_CACHE, or a folder of the user's cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepscope-bench"
    folder = Path(os.environ.get("BENCH_CACHE") or usual)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unpacked_size(path: Path) -> int:
    """Bytes that a gzip file holds, as its last four say: unpacking it would swell the memory of this process.

    What is measured starts as a copy of this process, and the kernel counts the copy's memory too.
    """
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(), "little")


def make(wanted: Input, folder: Path) -> Made:
    """The input on disk, made unless it is there. Raises NotMade (no space, wrong size, the maker failed)."""
    if not wanted.copies:
        files = [wanted.source] if wanted.source.is_file() else sorted(wanted.source.glob("*.gz"))
        return Made(wanted, wanted.source, sum(map(unpacked_size, files)), None)
    recipe = f"{wanted.copies} {wanted.indent}".encode()
    made_from = hashlib.sha256(wanted.source.read_bytes() + MAKER.read_bytes() + recipe).hexdigest()[:10]
    path = folder / f"{wanted.key}-{made_from}.json"
    facts = path.with_suffix(".facts")
    if not facts.exists():
        for outdated in folder.glob(f"{wanted.key}-*"):
            outdated.unlink()
        facts.write_text(write(wanted, path), encoding="utf-8")
    known = json.loads(facts.read_text(encoding="utf-8"))
    n_bytes = path.stat().st_size
    # Writing strings otherwise than the profiler did moves the size by a few bytes, a changed source by much more.
    expected = wanted.n_bytes or known["n_bytes"]
    if abs(n_bytes - expected) > expected / 200:
        raise NotMade(f"{path} has {n_bytes:,} bytes instead of {expected:,}")
    return Made(wanted, path, n_bytes, known["n_events"])


def write(wanted: Input, path: Path) -> str:
    """Write the trace, in a process of its own since it needs much memory; what it says about the result."""
    likely = wanted.n_bytes or wanted.copies * unpacked_size(wanted.source)
    if shutil.disk_usage(path.parent).free < 1.5 * likely:
        raise NotMade(f"{path.parent} has no room for {likely / MB:,.0f} MB; name another place with BENCH_CACHE")
    partial = path.with_suffix(".partial")
    command = [sys.executable, str(MAKER), str(wanted.source), str(partial), str(wanted.copies)]
    command += ["--indent"] if wanted.indent else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMade(f"{MAKER.name} failed: {done.stderr.strip()[-300:]}")
    partial.rename(path)
    return done.stdout
