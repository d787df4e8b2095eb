"""Which tables each page shows, and the content of each section: the same on the server and in a one-file report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.query.tables import RANK, TRACE, over_traces
from stepscope.renderers import figures
from stepscope.web.pages.drilldown import address_of_row
from stepscope.web.pages.rows import sheet
from stepscope.web.pages.table_query import Answer, Question, arranged, question_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.errors import StepscopeError
    from stepscope.web.pages.links import Links


class Section(msgspec.Struct, frozen=True):
    """A table on a page: its title, its options, columns at first sight (none: all), whether its figure goes too.

    Rows of several traces that agree in `sums_by` are put together, as the figure does.
    """

    title: str
    table: str
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    columns: tuple[str, ...] = ()
    chart: bool = True
    rows: int = 15
    chart_only: bool = False
    sums_by: tuple[str, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """A page made of tables."""

    title: str
    doc: str
    sections: tuple[Section, ...]


_OPERATOR_COLUMNS = ("rank", "trace", "name", "calls", "device_self_ns", "device_total_ns", "n_kernels", "host_self_ns",
                     "host_total_ns", "host_mean_ns", "tc_self_ratio")  # fmt: skip
_SHAPE_COLUMNS = ("rank", "trace", "name", "input_shapes", *_OPERATOR_COLUMNS[3:])
_CLASS_COLUMNS = ("rank", "trace", "kernel_class", "calls", "total_ns", "share_ratio", "tensor_ratio", "dram_ratio",
                  "sm_ratio", "vague_calls")  # fmt: skip
_KERNEL_COLUMNS = ("rank", "trace", "name", "op", "kernel_class", "calls", "total_ns", "share_ratio", "mean_ns",
                   "p95_ns", "max_ns", "est_occupancy_ratio", "tensor_ratio", "dram_ratio", "sm_ratio")  # fmt: skip
_MODULE_COLUMNS = ("rank", "trace", "path", "calls", "device_total_ns", "device_self_ns", "backward_device_ns",
                   "host_total_ns", "host_self_ns", "backward_host_ns", "n_operators")  # fmt: skip
_PREDICTION_COLUMNS = ("rank", "trace", "scenario", "step_ns", "predicted_ns", "gain_ratio", "low_ns", "high_ns",
                       "basis", "binds_next", "reason")  # fmt: skip
_HOLDER_COLUMNS = ("rank", "trace", "device", "holder", "category", "line", "bytes", "share_ratio", "n_blocks",
                   "confidence_ratio")  # fmt: skip
_LATE_COLUMNS = ("step", "rank", "late_ns", "came_last", "exchanges", "wait_ns", "max_wait_ns", "transfer_ns")
_LEAK_COLUMNS = ("rank", "trace", "device", "line", "bytes", "n_blocks", "n_eighths", "n_freed", "freed_bytes")
PAGES: Mapping[str, Page] = {
    "operators": Page(
        "Operators",
        "What each framework operator cost on the host, and on the device through the work it launched.",
        (
            Section("Operators", "operators", columns=_OPERATOR_COLUMNS, rows=25, sums_by=("name",)),
            Section(
                "By shapes of inputs",
                "operators",
                {"by": "shape"},
                columns=_SHAPE_COLUMNS,
                chart=False,
                sums_by=("name", "input_shapes"),
            ),
            Section("Modules", "modules", columns=_MODULE_COLUMNS, rows=400),
            Section("Named ranges", "user-ranges"),
        ),
    ),
    "kernels": Page(
        "Kernels",
        "What each kernel on the device cost, who launched it, and why the device was idle between them.",
        (
            Section("Kernels", "kernels", columns=_KERNEL_COLUMNS, rows=25, sums_by=("name",)),
            Section("Kinds of kernels", "kernel-classes", columns=_CLASS_COLUMNS, sums_by=("kernel_class",)),
            Section("Idle time by cause", "idle", sums_by=("cause",)),
            Section("Longest idle gaps", "idle", {"by": "gap", "sort": "-dur_ns"}, rows=8),
            Section("Devices over time", "timeline", {"by": "time"}, chart_only=True),
            Section("How well the device is used", "device-utilisation"),
            Section("Device utilisation over time", "device-utilisation", {"by": "time"}, chart_only=True),
            Section("Counters of kernels", "utilisation", {"by": "time"}, chart_only=True),
            Section("Near the device's limits", "roofline"),
            Section("Launches", "launches", sums_by=("name",)),
            Section("Copies and fills", "transfers", sums_by=("kind",)),
        ),
    ),
    "stacks": Page(
        "Stacks",
        "Where time went by call stack: callers above what they called, as wide as the time that they took.",
        (
            Section(
                "Device time, below the calls that queued the work",
                "call-stacks",
                {"of": "device"},
                rows=8,
                sums_by=("stack",),
            ),
            Section("Time of the host", "call-stacks", {"of": "host"}, rows=8, sums_by=("stack",)),
            Section("Python, sampled from outside", "python-stacks", rows=8),
        ),
    ),
    "what-if": Page(
        "What if",
        "How long a step would take with a change: the recorded program is run again with it.",
        (Section("The standard questions", "predictions", columns=_PREDICTION_COLUMNS, rows=30),),
    ),
    "memory": Page(
        "Memory",
        "What tensors and the allocator held, when that was most, and which operators asked for it.",
        (
            Section("Over time", "memory", {"by": "time"}, chart_only=True),
            Section("By device", "memory"),
            Section("Who holds it at the peak", "memory", {"by": "operator"}, rows=20),
            Section("By module", "memory", {"by": "module"}, rows=10),
            Section("What held the peak, of a snapshot", "memory-holders", {"by": "line"}, _HOLDER_COLUMNS, rows=20),
            Section("Never freed, of a snapshot", "memory-leaks", columns=_LEAK_COLUMNS),
            Section("Free memory at the end, of a snapshot", "memory-fragmentation"),
        ),
    ),
    "communication": Page(
        "Communication and ranks",
        "Collectives with other ranks: who waits for whom, how fast they are, and how much computation hides.",
        (
            Section("Ranks over time: waits and transfers", "collectives", {"by": "call"}, chart_only=True),
            Section("Who is late, step by step", "collectives", {"by": "step"}, _LATE_COLUMNS),
            Section("Ranks and links to blame", "stragglers"),
            Section("Sizes and bandwidth", "collectives", chart_only=True),
            Section("How fast each size is", "message-sizes"),
            Section("Collectives of each rank", "communication", rows=20),
            Section("Hidden behind computation", "overlap"),
            Section("Ranks side by side", "timeline", {"by": "rank"}),
            Section("Steps of each rank", "steps", rows=12),
            Section("A job that hangs: how far each rank came", "hang-matrix", rows=12),
        ),
    ),
}


#: Pages in the order of the menu: address, label.
NAVIGATION = (
    ("/overview", "Overview"),
    ("/timeline", "Timeline"),
    *((f"/{name}", "Communication" if name == "communication" else page.title) for name, page in PAGES.items()),
    ("/compare", "Compare"),
    ("/tables", "Tables"),
    ("/sql", "SQL"),
)


def asked_by(section: Section, inputs: tuple[int, ...]) -> Question:
    """The question that a section answers."""
    return question_of(section.table, inputs, _parameters(section))


def filled(section: Section, answer: Answer, links: Links | None, rows: int) -> dict[str, Any]:
    """What the template draws: chart, sheet of `rows` rows, remarks; without `links` no mark leads anywhere."""
    shown, remarks = arranged(answer, asked_by(section, ())), answer.remarks
    grouping = ""
    lead = next((c.name for c in (RANK, TRACE) if c.name in answer.frame.columns), None)
    if section.sums_by and lead is not None and (n_traces := answer.frame[lead].n_unique()) > 1:
        shown = Answer(*over_traces(shown.frame, shown.table, section.sums_by), remarks)
        remarks, grouping = (*remarks, f"Sums over {n_traces:,} traces."), ",".join(section.sums_by)
    columns = answer.frame.columns
    link = None if links is None else address_of_row(links, section.table)
    chart = None
    if section.chart:
        drawn = None if links is None else lambda row: links.events(row, columns)
        chart = figures.drawn(section.table, answer.frame, drawn)
    made = None
    if not (section.chart_only and chart):
        columns_shown = [c for c in section.columns if c in shown.frame.columns] or shown.frame.columns
        made = sheet(shown.frame, shown.table, link=link, limit=rows, columns=columns_shown)
    parameters = {k.replace(".", "__"): v for k, v in _parameters(section).items()} | {"group": grouping}
    more = None if links is None else links.table(section.table, **parameters)
    return {"section": section, "sheet": made, "chart": chart, "error": None, "remarks": remarks, "more": more}


def lacking(section: Section, error: StepscopeError) -> dict[str, Any]:
    """The same for a section whose data was not recorded."""
    return {"section": section, "sheet": None, "chart": None, "error": error, "remarks": (), "more": None}


def _parameters(section: Section) -> dict[str, str]:
    return {k if k == "sort" else f"o.{k}": v for k, v in section.options.items()}
