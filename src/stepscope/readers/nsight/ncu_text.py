"""What Nsight Compute prints for people (`ncu` without --csv): a title for each launch, sections of metrics below it.

Format: files of its versions since 2020. As with CSV the order of launches is known, and no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.nsight import ncu_trace
from stepscope.readers.nsight.ncu_lines import as_utf8
from stepscope.readers.nsight.ncu_values import PRINTED, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.trace import Trace
    from stepscope.readers.common.source import Source

#: `name (grid)x(block), Context 1, Stream 7, Device 0, CC 8.0`; old versions say the date instead of grid and block.
_TITLE = re.compile(
    r"^ {1,4}(?P<name>\S.*?)(?: (?P<grid>\([\d., ]+\))x(?P<block>\([\d., ]+\)))?(?:, \d{4}-\w{3}-\d{2} [\d:]+)?"
    r", Context (?P<context>\d+), Stream (?P<stream>\d+)(?:, Device (?P<device>\d+))?(?:, CC (?P<cc>[\d.]+))?\s*$"
)
_PROCESS = re.compile(r"^\[(?P<pid>\d+)\] (?P<process>.*)@(?P<host>\S+)\s*$")
_SECTION = re.compile(r"^ {2,}Section: (?P<section>.*\S)")
_RULER = re.compile(r"^ *(-{3,}) (-{3,}) (-{3,})\s*$")


def read(source: Source) -> Trace:
    """Every launch with its metrics in base units; numbers are as rounded by the text.

    Raises CorruptInput (no launches, numbers written in two ways), StepscopeError.
    """
    issues, page = IssueLog(), _Page()
    for line in _lines(source):
        page.add(line)
    if not page.launches:
        raise CorruptInput("no launches of kernels", "print the report again", path=source.label)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    what = "the text rounds to two decimals; `ncu --csv` does not scale units first"
    issues.add("rounded", "info", len(page.launches), what)
    launches = pl.DataFrame(page.launches, schema=dict.fromkeys(ncu_trace.LAUNCHES, pl.String()))
    printed = pl.DataFrame(page.metrics, schema=PRINTED, orient="row")
    metrics, texts = measured([printed], source.label, issues)
    return ncu_trace.build(source, "ncu-text", launches, metrics, texts, issues)


def _lines(source: Source) -> Iterator[str]:
    rest = b""
    for chunk in as_utf8(source.chunks()):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    yield rest.decode("utf-8", "replace")


@dataclass(slots=True)
class _Page:
    """What stands above the line being read, and all launches and metrics so far."""

    launches: list[dict[str, str | None]] = field(default_factory=list)
    metrics: list[tuple[int, str | None, str, str, str]] = field(default_factory=list)
    process: dict[str, str | None] = field(default_factory=dict)
    section: str | None = None
    columns: tuple[int, int] | None = None

    def add(self, line: str) -> None:
        """One line, of whatever kind."""
        if not line.strip():
            self.columns = None
        elif ruler := _RULER.match(line):
            self.columns = ruler.end(1), ruler.end(2)
        elif self.columns is not None and self.launches and line.startswith("    "):
            self._metric(line, *self.columns)
        elif found := _SECTION.match(line):
            self.section, self.columns = found["section"], None
        elif found := _PROCESS.match(line):
            self.process = found.groupdict()
        elif ", Context " in line and (found := _TITLE.match(line)):
            self.launches.append(self.process | found.groupdict())
            self.section = self.columns = None

    def _metric(self, line: str, first: int, second: int) -> None:
        name, unit, value = line[:first].strip(), line[first:second].strip(), line[second:].strip()
        if name and name != "Metric Name":
            self.metrics.append((len(self.launches) - 1, self.section, name, unit, value))
