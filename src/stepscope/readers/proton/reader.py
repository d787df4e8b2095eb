"""Triton's Proton: a tree of scopes whose leaves are kernels, each with its number of launches and its total time.

Format: Hatchet's literal JSON, a list of trees and, last, the devices. It knows no clock and no single launch: a kernel
launched n times becomes n launches of the mean duration, whose sum is exact.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.errors import CorruptInput
from stepscope.core.names import is_tensor_core
from stepscope.core.schema import KERNEL_METRICS, KERNELS, SPANS, TRACKS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.columns import device_table
from stepscope.readers.common.source import IssueLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.readers.common.source import Source

_TIME, _COUNT = "time (ns)", "count"
_NOT_METRICS = {_TIME, _COUNT, "device_id", "device_type"}
_TYPES = {"CUDA": "cuda", "HIP": "rocm"}
_HOST_TRACK = 0
#: More launches than any recording of Proton's has: a larger number is damage.
_MOST_LAUNCHES = 10**8

Node = dict[str, Any]


def read(source: Source) -> Trace:
    """Scopes and kernels in the order of the tree, without start times. Raises CorruptInput, StepscopeError."""
    issues = IssueLog()
    text = b"".join(source.chunks())
    try:
        parts = json.loads(text)
        roots = [node for node in parts if isinstance(node, dict) and "children" in node]
        machine = next((n for n in reversed(parts) if isinstance(n, dict) and "frame" not in n), {})
        rows = _Rows(machine, issues)
        for root in roots:
            rows.add(root, None)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        what = source.damage or f"not a tree of Proton: {type(error).__name__} {error}"
        raise CorruptInput(what, "copy or record it again", path=source.label) from None
    tables = rows.tables()
    tables["issues"] = issues.table()
    meta = Meta(source.label, "proton", n_events=len(rows.spans), size_bytes=source.n_bytes, framework="Triton")
    return Trace(meta, {name: frame for name, frame in tables.items() if not frame.is_empty()})


class _Rows:
    """Rows of the tables, as the tree is walked."""

    def __init__(self, machine: Node, issues: IssueLog) -> None:
        self.spans: list[dict[str, Any]] = []
        self._metrics: list[tuple[int, str, str | None, float]] = []
        self._tensor_core: list[tuple[int, bool]] = []
        self._devices: dict[tuple[str, str], int] = {}
        self._machine = machine
        self._issues = issues

    def add(self, root: Node, parent: int | None) -> None:
        """A node and all its descendants. Not by recursion: trees of Python frames are deep."""
        open_: list[tuple[Node, int | None]] = [(root, parent)]
        while open_:
            node, above = open_.pop()
            scope = above
            if _TIME in node["metrics"] and not node["children"]:
                self._kernel(node, above)
            elif node["frame"]["name"] != "ROOT":
                scope = len(self.spans)
                name = _text(node["frame"]["name"])
                self.spans.append({"track_id": _HOST_TRACK, "name": name, "category": "user_range"})
                self.spans[-1]["parent_id"] = above
            open_ += [(child, scope) for child in reversed(node["children"])]

    def _kernel(self, node: Node, scope: int | None) -> None:
        metrics, name = node["metrics"], _text(node["frame"]["name"])
        n = int(metrics.get(_COUNT) or 1)
        if not 0 < n <= _MOST_LAUNCHES:
            raise ValueError(f"{name} was launched {n} times")
        if n > 1:
            what = "launches are recorded as totals: each gets the mean of its kernel"
            self._issues.add("mean_durations", "info", n, what)
        key = (_text(metrics.get("device_type", "")), _text(metrics.get("device_id", "0")))
        track = self._devices.setdefault(key, len(self._devices) + 1)
        whole, rest = divmod(int(metrics[_TIME]), n)
        for i in range(n):
            span_id = len(self.spans)
            row = {"track_id": track, "name": name, "category": "kernel", "dur_ns": whole + (i < rest), "op_id": scope}
            self.spans.append(row)
            self._tensor_core.append((span_id, is_tensor_core(name)))
            self._metrics += [
                (span_id, _text(key), _unit(key), float(value) / n)
                for key, value in metrics.items()
                if key not in _NOT_METRICS and isinstance(value, int | float)
            ]

    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables of the trace."""
        spans = pl.DataFrame(self.spans, infer_schema_length=None).with_row_index("span_id")
        tracks: list[dict[str, Any]] = [{"track_id": _HOST_TRACK, "kind": "thread", "label": "scopes"}]
        tracks += [
            {"track_id": track, "kind": "stream", "label": f"device {index}", "device_id": track}
            for (_, index), track in self._devices.items()
        ]
        columns = {"span_id": pl.UInt32, "tensor_core": pl.Boolean}
        kernels = pl.DataFrame(self._tensor_core, schema=columns, orient="row")
        schema = {"span_id": pl.UInt32, "metric": pl.String, "unit": pl.String, "value": pl.Float64}
        return {
            "devices": device_table(self._device_rows()),
            "tracks": TRACKS.conform(pl.DataFrame(tracks, infer_schema_length=None)),
            "spans": SPANS.conform(spans) if self.spans else SPANS.empty(),
            "kernels": KERNELS.conform(kernels),
            "kernel_metrics": KERNEL_METRICS.conform(pl.DataFrame(self._metrics, schema=schema, orient="row")),
        }

    def _device_rows(self) -> Iterator[tuple[Any, ...]]:
        yield (0, "cpu", None, None, None, None, None)
        for (kind, index), device_id in self._devices.items():
            about = (self._machine.get(kind) or {}).get(index) or {}
            arch = _text(about.get("arch") or "")
            version = f"{arch[:-1]}.{arch[-1]}" if arch.isdecimal() else arch or None
            number = int(index) if index.isdecimal() else None
            yield device_id, _TYPES.get(kind, "accelerator"), number, None, about.get("num_sms"), None, version


def _text(value: object) -> str:
    """A text of the tree; JSON can hold halves of characters, which no table can."""
    return str(value).encode("utf-8", "replace").decode()


def _unit(metric: str) -> str | None:
    if metric.startswith("flops"):
        return "FLOP"
    return "bytes" if metric == "bytes" else None
