"""Reports of Nsight Compute (`.ncu-rep`), read by NVIDIA's own package `ncu-report`: the extra `ncu`.

Format: closed; the package's interface is documented as Nsight Compute's Python Report Interface.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, MissingExtra
from stepscope.readers.common.source import IssueLog
from stepscope.readers.nsight import ncu_trace
from stepscope.readers.nsight.ncu_trace import DEVICE_NAME, MEASURED, TEXTS, base_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.trace import Trace
    from stepscope.readers.common.source import Source

_MAGIC = b"NVR\0"
_KERNEL = 0  # of workload types
#: Facts of a launch that CSV has columns for.
_FACTS = {
    "context": "launch__context_id", "stream": "launch__stream_id", "device": "launch__device_id",
}  # fmt: skip
_CC = ("device__attribute_compute_capability_major", "device__attribute_compute_capability_minor")


def read(source: Source) -> Trace:
    """Every kernel of every range, with all metrics that are numbers. Raises MissingExtra, CorruptInput."""
    try:
        ncu_report = import_module("ncu_report")
    except ImportError:
        raise MissingExtra("reading .ncu-rep files", "ncu") from None
    issues = IssueLog()
    launches: list[dict[str, str | None]] = []
    values: list[tuple[int, str, str, float | None]] = []
    text_rows: list[tuple[int, str, str]] = []
    n_not_kernels = 0
    with _on_disk(source) as path:
        for action in _actions(ncu_report, path, source):
            if action.workload_type() != _KERNEL:
                n_not_kernels += 1
                continue
            i = len(launches)
            measured = {name: action.metric_by_name(name) for name in action.metric_names()}
            launches.append(_launch(action, measured))
            for name, metric in measured.items():
                value = metric.value() if metric is not None and metric.has_value() else None
                if isinstance(value, str):
                    text_rows.append((i, name, value))
                else:
                    unit, factor = base_unit(metric.unit() or "") if metric is not None else ("", 1.0)
                    values.append((i, name, unit, None if value is None else float(value) * factor))
    if not launches:
        raise CorruptInput("no kernel launches", "profile again", path=source.label)
    issues.add("not_kernels", "warning", n_not_kernels, "profiled graphs, ranges or command lists are not read")
    text_metrics = {name for _, name, _ in text_rows if name != DEVICE_NAME}
    issues.add(
        "metrics_in_words",
        "info",
        len(text_metrics),
        f"metrics whose values are words, as {min(text_metrics, default='')}",
    )
    frame = pl.DataFrame(launches, schema=dict.fromkeys(ncu_trace.LAUNCHES, pl.String()))
    metrics = pl.DataFrame(values, schema=MEASURED, orient="row")
    metrics = metrics.with_columns(pl.when(pl.col("value").is_finite()).then("value"))
    texts = pl.DataFrame(text_rows, schema=TEXTS, orient="row")
    return ncu_trace.build(source, "ncu-rep", frame, metrics, texts, issues)


def _actions(package: Any, path: str, source: Source) -> Iterator[Any]:
    try:
        report = package.load_report(path)
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        msg = f"ncu-report cannot read it: {error}"
        raise CorruptInput(msg, "copy the file again", path=source.label) from None
    for i in range(report.num_ranges()):
        part = report.range_by_idx(i)
        yield from (part.action_by_idx(j) for j in range(part.num_actions()))


def _launch(action: Any, measured: dict[str, Any]) -> dict[str, str | None]:
    def fact(name: str) -> str | None:
        metric = measured.get(name)
        value = None if metric is None or not metric.has_value() else metric.value()
        if isinstance(value, float):
            return str(int(value)) if math.isfinite(value) else None
        return None if value is None else str(value)

    major, minor = (fact(name) for name in _CC)
    facts = {column: fact(name) for column, name in _FACTS.items()}
    for what in ("grid", "block"):
        sizes = [fact(f"launch__{what}_dim_{axis}") for axis in "xyz"]
        facts[what] = f"({', '.join(size or '' for size in sizes)})"
    facts["cc"] = None if major is None else f"{major}.{minor or 0}"
    facts["name"] = action.name(action.NameBase_DEMANGLED) or action.name(action.NameBase_FUNCTION)
    return facts


@contextmanager
def _on_disk(source: Source) -> Iterator[str]:
    """The report as a file of its own: the package opens files only, and only unpacked ones."""
    with files.opened(source.path) as file, files.reaching(source.path):
        is_plain = file.read(len(_MAGIC)) == _MAGIC
    if is_plain and not files.is_url(source.path):
        source.n_bytes = files.size_of(source.path)
        yield source.path
        return
    with tempfile.NamedTemporaryFile(suffix=".ncu-rep") as copy:
        for chunk in source.chunks():
            copy.write(chunk)
        copy.flush()
        yield copy.name
