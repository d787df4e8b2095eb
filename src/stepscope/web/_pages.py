"""What each page shows: which tables, with which options, and a line that says what the page is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAVIGATION", "PAGES", "Page", "Section"]


@dataclass(frozen=True, slots=True)
class Section:
    """A table on a page: its title, its options, columns at first sight (none: all), whether a chart goes with it."""

    title: str
    table: str
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    chart: bool = False
    rows: int = 15
    chart_only: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page made of tables."""

    title: str
    doc: str
    sections: tuple[Section, ...]


_OPERATOR_COLUMNS = ("rank", "trace", "name", "calls", "device_self_ns", "device_total_ns", "n_kernels", "host_self_ns",
                     "host_total_ns", "host_mean_ns", "tc_self_ratio")  # fmt: skip
_KERNEL_COLUMNS = ("rank", "trace", "name", "op", "kernel_class", "calls", "total_ns", "share_ratio", "mean_ns",
                   "p95_ns", "max_ns", "est_occupancy_ratio", "tensor_ratio", "dram_ratio", "sm_ratio")  # fmt: skip
PAGES: Mapping[str, Page] = {
    "operators": Page(
        "Operators",
        "What each framework operator cost on the host, and on the device through the work it launched.",
        (
            Section("Operators", "operators", columns=_OPERATOR_COLUMNS, chart=True, rows=25),
            Section("By shapes of inputs", "operators", {"by": "shape"}),
            Section("Modules", "modules"),
            Section("Named ranges", "user-ranges"),
        ),
    ),
    "kernels": Page(
        "Kernels",
        "What each kernel on the device cost, who launched it, and why the device stood still between them.",
        (
            Section("Kernels", "kernels", columns=_KERNEL_COLUMNS, chart=True, rows=25),
            Section("Sorts of kernels", "kernel-classes"),
            Section("Idle time by cause", "idle"),
            Section("Longest idle gaps", "idle", {"by": "gap", "sort": "-dur_ns"}, rows=8),
            Section("How well the device is used", "device-utilisation"),
            Section("Near the device's limits", "roofline"),
            Section("Launches", "launches"),
            Section("Copies and fills", "transfers"),
        ),
    ),
    "memory": Page(
        "Memory",
        "What tensors and the allocator held, when that was most, and which operators asked for it.",
        (
            Section("Over time", "memory", {"by": "time"}, chart=True, chart_only=True),
            Section("By device", "memory"),
            Section("Who holds it at the peak", "memory", {"by": "operator"}, rows=20),
            Section("By module", "memory", {"by": "module"}, rows=10),
        ),
    ),
    "communication": Page(
        "Communication and ranks",
        "Exchanges with other ranks: how much of them computation hides, and how the ranks differ.",
        (
            Section("Collectives", "communication", chart=True, rows=20),
            Section("Hidden behind computation", "overlap"),
            Section("Ranks side by side", "timeline", {"by": "rank"}),
            Section("Steps of each rank", "steps", chart=True, rows=12),
        ),
    ),
}
#: Pages in the order of the menu: address, words.
NAVIGATION = (
    ("/overview", "Overview"),
    ("/timeline", "Timeline"),
    *((f"/{name}", "Communication" if name == "communication" else page.title) for name, page in PAGES.items()),
    ("/compare", "Compare"),
    ("/tables", "Tables"),
    ("/sql", "SQL"),
)
