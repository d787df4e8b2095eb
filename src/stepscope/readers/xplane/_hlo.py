"""What an HLO module of an XSpace says of its instructions: category, framework operation, source.

Format: hlo.proto of openxla/xla. GPU events name only module and instruction; their module holds the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.protobuf import BYTES, INT

if TYPE_CHECKING:
    from stepscope.readers.common.protobuf import Contents, Wire

MANY = BYTES + "*"
_PROTO = {1: ("module", BYTES)}
_MODULE = {3: ("computations", MANY), 17: ("frames", BYTES)}
_COMPUTATION = {2: ("instructions", MANY)}
_INSTRUCTION = {1: ("name", BYTES), 2: ("opcode", BYTES), 7: ("metadata", BYTES), 11: ("fusion_kind", BYTES)}
_METADATA = {2: ("op_name", BYTES), 3: ("file", BYTES), 4: ("line", INT), 15: ("frame", INT)}
_FRAMES = {1: ("files", MANY), 3: ("locations", MANY), 4: ("frames", MANY)}
_LOCATION = {1: ("file", INT), 3: ("line", INT)}
_FRAME = {1: ("location", INT)}


def instructions(wire: Wire, module: tuple[int, int]) -> dict[str, tuple[str, str, str]]:
    """Category (`loop fusion`, or the opcode), framework operation and `file:line` of each instruction, by name."""
    proto = wire.columns((np.array([module[0]]), np.array([module[1]])), _PROTO)
    top = wire.columns(_there(proto["module"]), _MODULE, clip=True)
    computations = wire.columns(top["computations"][1:], _COMPUTATION)
    fields = wire.columns(computations["instructions"][1:], _INSTRUCTION)
    metadata = wire.columns(_there(fields["metadata"]), _METADATA)
    frames = _frames(wire, top["frames"])
    columns = [fields["name"], fields["opcode"], fields["fusion_kind"], metadata["op_name"], metadata["file"]]
    texts = [[text.decode("utf-8", "replace") for text in wire.slices(column)] for column in columns]
    numbers = (metadata["line"].tolist(), metadata["frame"].tolist())
    return {
        name: (_category(opcode, kind), op_name, f"{file}:{line}" if file else frames.get(frame, ""))
        for name, opcode, kind, op_name, file, line, frame in zip(*texts, *numbers, strict=True)
    }


def _category(opcode: str, fusion_kind: str) -> str:
    """A fusion's kind (`kLoop`) in XProf's words; else the opcode."""
    return f"{fusion_kind[1:].lower()} fusion" if opcode == "fusion" and fusion_kind.startswith("k") else opcode


def _there(contents: Contents) -> Contents:
    """Contents, empty where they are missing."""
    return np.maximum(contents[0], 0), np.maximum(contents[1], 0)


def _frames(wire: Wire, index: Contents) -> dict[int, str]:
    """`file:line` of each stack frame, by its number; numbers in this index count from 1."""
    fields = wire.columns(_there(index), _FRAMES)
    files = [text.decode("utf-8", "replace") for text in wire.slices(fields["files"][1:])]
    locations = wire.columns(fields["locations"][1:], _LOCATION)
    texts = [
        f"{files[file - 1]}:{line}" if 0 < file <= len(files) and line != ABSENT else ""
        for file, line in zip(locations["file"].tolist(), locations["line"].tolist(), strict=True)
    ]
    of_frame = wire.columns(fields["frames"][1:], _FRAME)["location"].tolist()
    return {i: texts[at - 1] for i, at in enumerate(of_frame, 1) if 0 < at <= len(texts)}
