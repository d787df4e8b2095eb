"""A Perfetto trace as PyTorch writes it, as big as wanted, with its packets in any order.

python make_perfetto.py OUT.pftrace [--spans N]

An operator and a kernel for each launch, tied by a flow and by their correlation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from protobuf_writer import content, fixed, number  # a script has its own folder on the path only

HOST, GPU = 2, 4  # tracks
OPERATOR, KERNEL = 1, 2  # names
BEGIN, END = 1, 2


def descriptor(uuid: int, parent: int, pid: int, name: str, tid: int | None = None) -> bytes:
    """The packet that describes a process, or with `tid` a thread."""
    if tid is None:
        about = content(3, number(1, pid) + content(6, name.encode()))
    else:
        about = content(4, number(1, pid) + number(2, tid) + content(5, name.encode()))
    return content(60, number(1, uuid) + (number(5, parent) if parent else b"") + about)


def event(ts: int, kind: int, track: int, more: bytes = b"") -> bytes:
    """The packet of a begin or an end."""
    return number(8, ts) + number(10, 1) + number(13, 2) + content(11, number(9, kind) + number(11, track) + more)


def launched(i: int) -> list[bytes]:
    """The packets of an operator and its kernel."""
    tied = fixed(47, i + 1) + content(4, content(10, b"correlation") + number(4, i + 1))
    packets = []
    for track, name, start, length in ((HOST, OPERATOR, 1000 * i, 400), (GPU, KERNEL, 1000 * i + 100, 700)):
        packets.append(event(start, BEGIN, track, number(10, name) + tied))
        packets.append(event(start + length, END, track))
    return packets


def packets_of(n_spans: int) -> list[bytes]:
    """All packets, shuffled."""
    names = ((OPERATOR, b"aten::mm"), (KERNEL, b"gemm_kernel"))
    entries = b"".join(content(2, number(1, iid) + content(2, name)) for iid, name in names)
    packets = [
        descriptor(1, 0, 100, "python"), descriptor(HOST, 1, 100, "thread main", 101),
        descriptor(3, 0, 0, "GPU 0"), descriptor(GPU, 3, 0, "stream 7", 7),
        number(10, 1) + number(13, 1) + content(12, entries),
    ]  # fmt: skip
    for i in range(n_spans // 2):
        packets += launched(i)
    Random(3).shuffle(packets)
    return packets


def main() -> None:
    """Write the trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--spans", type=int, default=1_000_000, help="how many (1000000)")
    given = parser.parse_args()
    given.out.write_bytes(b"".join(content(1, packet) for packet in packets_of(given.spans)))


if __name__ == "__main__":
    main()
