"""A Paddle profile in protobuf, as big as wanted.

python make_paddle.py OUT.pb [--events N] [--launches]

Steps of a training loop: ranges of the framework around operators, with the phases inside them, and with --launches a
call and a kernel in every other phase. Names and sizes of records are as in recorded profiles.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from protobuf_writer import content, number, single  # a script has its own folder on the path only

BEGAN_NS = 1_795_233_446_906_786_962
PID = 14538
PHASES = ("infer_meta", "kernel launch", "node_creation")
OPERATORS = ("matmul", "add", "relu", "conv2d", "pool2d", "softmax", "reshape", "transpose", "layer_norm", "dropout")
OPERATOR, STEP, USER_DEFINED, OPERATOR_INNER, KERNEL, LAUNCH = 0, 2, 7, 8, 4, 15
PER_STEP = 1000

Node = tuple[str, int, int, int, list["Node"], bool]


def step(index: int, at: int, n_operators: int) -> Node:
    """A step with that many operators, and where it ends."""
    children: list[Node] = []
    now = at + 1_000
    for i in range(n_operators):
        name = OPERATORS[(i * 7 + index) % len(OPERATORS)]
        phases: list[Node] = []
        began = now
        now += 1_500
        for phase, length in zip(PHASES, (400, 6_000, 300), strict=True):
            kind = LAUNCH if phase == "kernel launch" else OPERATOR_INNER
            phases.append((f"{name} {phase}", kind, now, now + length, [], kind == LAUNCH))
            now += length + 150
        inner: Node = (f"{name} dygraph", OPERATOR, began + 500, now + 200, phases, False)
        children.append((f"{name} pybind_imperative_func", USER_DEFINED, began, now + 700, [inner], False))
        now += 2_000
    return (f"ProfileStep#{index}", STEP, at, now + 5_000, children, False)


def event(node: Node) -> bytes:
    """The host event of a node."""
    name, kind, start, end, _, _ = node
    fields = number(2, kind) + number(3, start) + number(4, end) + number(5, PID) + number(6, PID)
    return content(1, name.encode()) + fields


def launch(node: Node, correlation: int) -> bytes:
    """A call in the node, and the kernel that it launched."""
    at = node[2] + 1_000
    sizes = b"".join(number(i, v) for i, v in enumerate((128, 1, 1, 64, 4, 1, 0, 4096, 40, 0, 0, 0, 0, 0), 1))
    rates = b"".join(single(i, v) for i, v in ((15, 2.5), (16, 20.0), (17, 0.5)))
    times = number(3, at + 9_000) + number(4, at + 14_000)
    where = number(5, 0) + number(6, 1) + number(7, 7) + number(8, correlation)
    kernel = content(1, f"void phi::{node[0].split()[0]}_kernel<float>(float const*, long)".encode())
    kernel += number(2, KERNEL) + times + where + content(9, sizes + rates)
    call = content(1, b"cudaLaunchKernel") + number(2, at) + number(3, at + 4_000) + number(4, PID) + number(5, PID)
    call += number(6, correlation) + number(7, 211)
    return content(4, content(1, call) + content(2, content(1, kernel)))


def nodes(n_events: int, *, launches: bool) -> Iterator[bytes]:
    """Host nodes breadth first, the root first."""
    ids = number(2, USER_DEFINED) + number(3, 0) + number(4, -1) + number(5, 0) + number(6, 0)
    yield content(2, number(1, 0) + number(2, -1) + content(3, content(1, b"root node") + ids))
    n_operators = (PER_STEP - 1) // 5
    at, queue = BEGAN_NS, deque[tuple[int, Node]]()
    for index in range(-(-n_events // (1 + 5 * n_operators))):
        queue.append((0, step(index, at, n_operators)))
        at = queue[-1][1][3] + 20_000
    index = 0
    while queue and index < n_events:
        parent, node = queue.popleft()
        index += 1
        queue.extend((index, child) for child in node[4])
        extra = launch(node, index) if launches and node[5] else b""
        yield content(2, number(1, index) + number(2, parent) + content(3, event(node)) + extra)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000, help="host events")
    parser.add_argument("--launches", action="store_true", help="with calls and kernels")
    given = parser.parse_args()
    tree = number(1, PID) + b"".join(nodes(given.events, launches=given.launches))
    extra = content(4, content(1, str(PID).encode()) + content(2, b"MainThread"))
    given.out.write_bytes(content(1, b"1.0.2") + number(2, 0) + content(3, tree) + extra)


if __name__ == "__main__":
    main()
