"""Recordings of the gymnasium as small files, one a job and day, with all that compare reads of them.

    python lab/gym_pack.py OUT [--into lab/recordings]

What no rule reads is left out (arrows, strides, ids of calls), times are rounded to a tenth of a microsecond,
and counters to five digits. Paths of the machine on which a recording was made become short ones.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from gym import costs_of

#: Arguments of events that compare does not read.
_UNREAD = ("External id", "Record function id", "Ev Idx", "Sequence number", "Fwd thread id", "Concrete Inputs",
           "Input Strides", "run_id")  # fmt: skip
#: The name under which the file of `costs_of` is packed with its recording.
_COSTS = "costs"
#: Units of packed times in a microsecond.
_TENTHS = 10
_PATH = re.compile(r"(?<![\w.:/])/(?!proc|sys|dev|host:)(?:[\w.\-]+/)+(?=[\w.\-]+)")
#: Folders of paths that stay, with what follows them.
_LIBRARIES = re.compile(r"/(?:site-packages|lib/python[\d.]+)/.*")


def packed_trace(text: bytes) -> bytes:
    """A Chrome trace as a line of JSON, and the starts, durations and kinds of its spans as bytes by significance."""
    whole = json.loads(text)
    kinds: dict[str, int] = {}
    rows, rest = [], []
    for event in whole.pop("traceEvents"):
        if event.get("cat") == "fwdbwd":
            continue
        if event.get("ph") != "X":
            rest.append(event)
            continue
        start, end = (round(t * _TENTHS) for t in (event.pop("ts"), 0))
        end = round((start / _TENTHS + event.pop("dur", 0)) * _TENTHS)
        if "args" in event:
            event["args"] = {key: value for key, value in event["args"].items() if key not in _UNREAD}
        kind = json.dumps(event, separators=(",", ":"))
        rows.append((start, end - start, kinds.setdefault(kind, len(kinds))))
    rows.sort(key=lambda row: (row[0], -row[1]))
    table = np.array(rows, np.int64).reshape(-1, 3)
    first = int(table[0, 0]) if rows else 0
    table[:, 0] = np.diff(table[:, 0], prepend=first)
    head = {"trace": whole, "rest": rest, "kinds": list(kinds), "n": len(rows), "first": first}
    columns = [np.ascontiguousarray(table[:, i], "<i8").view(np.uint8).reshape(-1, 8).T.tobytes() for i in range(3)]
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + b"".join(columns)


def unpacked_trace(data: bytes) -> bytes:
    """The Chrome trace that `packed_trace` made small."""
    line, columns = data.split(b"\n", 1)
    head = json.loads(line)
    n = head["n"]
    planes = np.frombuffer(columns, np.uint8).reshape(3, 8, n)
    starts, lengths, of_kind = (np.ascontiguousarray(each.T).view("<i8").ravel() for each in planes)
    starts = head["first"] + np.cumsum(starts)
    kinds = [kind[:-1] for kind in head["kinds"]]
    spans = [
        f'{kinds[kind]},"ts":{start // _TENTHS}.{start % _TENTHS},"dur":{length / _TENTHS}}}'
        for start, length, kind in zip(starts.tolist(), lengths.tolist(), of_kind.tolist(), strict=True)
    ]
    rest = [json.dumps(event) for event in head["rest"]]
    whole = json.dumps(head["trace"])[:-1]
    events = ",\n".join([*rest, *spans])
    return f'{whole}{"," if len(whole) > 1 else ""}"traceEvents":[{events}]}}'.encode()


def packed_counters(text: str) -> str:
    """Samples with values of five digits."""
    head, *lines = text.splitlines()
    rows = (line.rpartition(",") for line in lines)
    return "\n".join([head, *(f"{start},{float(value):.5g}" for start, _, value in rows)]) + "\n"


def without_places(text: str) -> str:
    """The text without the folders of this machine."""
    return _PATH.sub(lambda found: short.group() if (short := _LIBRARIES.search(found[0])) else "/job/", text)


def packed_file(path: Path) -> tuple[str, bytes]:
    """The name and the bytes of a recorded file, made small."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    name = path.name.removesuffix(".gz")
    if name.endswith(".trace.json"):
        return name + ".packed", packed_trace(without_places(data.decode()).encode())
    if name == "counters.csv":
        return name, packed_counters(data.decode()).encode()
    if name.endswith((".tsv", ".json")):
        return name, without_places(data.decode()).encode()
    return name, data


def pack(recordings: list[Path], into: Path) -> None:
    """All these recordings of a job in one file. Files of a kind stand together, since they have much in common."""
    files = [(folder.name, *packed_file(path)) for folder in recordings for path in sorted(folder.iterdir())]
    costs = [(folder.name, costs_of(folder.parent, folder.name)) for folder in recordings]
    files += [(name, _COSTS, path.read_bytes()) for name, path in costs if path.exists()]
    files.sort(key=lambda file: (re.sub(r"\d+", "", file[1]), file[0]))
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for folder, name, data in files:
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 26}]
    into.write_bytes(lzma.compress(whole.getvalue(), lzma.FORMAT_XZ, filters=filters))


def unpack(packed: Path, out: Path) -> None:
    """Recordings as `stepscope record` writes them, from what `pack` wrote."""
    with tarfile.open(packed, "r:xz") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None:
                continue
            folder, name = member.name.split("/")
            data: Any = file.read()
            if name == _COSTS:
                costs_of(out, folder).write_bytes(data)
                continue
            if name.endswith(".packed"):
                name, data = name.removesuffix(".packed"), unpacked_trace(data)
            if not name.endswith((".steps", "meta.json")):
                name, data = name + ".gz", gzip.compress(data, 1)
            (out / folder).mkdir(parents=True, exist_ok=True)
            (out / folder / name).write_bytes(data)


def names_in(packed: Path) -> set[str]:
    """The recordings that a packed file holds."""
    with tarfile.open(packed, "r:xz") as tar:
        return {member.name.split("/")[0] for member in tar}


def main() -> None:
    """Pack those recordings of a folder that are in no packed file yet, by job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--into", type=Path, default=Path(__file__).with_name("recordings"))
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    by_job: dict[str, list[Path]] = {}
    known = {name for file in given.into.glob("*.tar.xz") for name in names_in(file)}
    for folder in sorted(given.out.iterdir()):
        meta = folder / "meta.json"
        is_whole = meta.exists() and json.loads(meta.read_text(encoding="utf-8")).get("exit_code") == 0
        if is_whole and folder.name not in known:
            by_job.setdefault(folder.name.split(".")[0], []).append(folder)
    for job, recordings in by_job.items():
        target = given.into / f"{job}.{len(list(given.into.glob(f'{job}.*tar.xz')))}.tar.xz"
        pack(recordings, target)
        print(f"{target}: {len(recordings)} recordings, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
