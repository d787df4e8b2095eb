"""All that the author of a plug-in imports: what a reader, an analysis, a renderer, a figure and an export are.

A plug-in is a value of one of these classes, named in the entry-point group `stepscope.readers`, `.analyses`,
`.renderers`, `.figures` or `.exports` of another package. CONTRIBUTING.md has an example of each.
"""

from __future__ import annotations

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.core.errors import (
    CorruptInput,
    MissingTable,
    StepscopeError,
    UnknownName,
    UnsupportedVersion,
)
from stepscope.core.report import Bar, Block, Finding, Part, Report
from stepscope.core.schema import TABLES, Category
from stepscope.core.table import Column, Name, Table
from stepscope.core.trace import Meta, Result, Results, Run, Trace
from stepscope.exports import Context, Export, Folder, Stream
from stepscope.readers.common.source import Source
from stepscope.readers.formats import Reader
from stepscope.renderers import Renderer, Screen
from stepscope.renderers.figures.figure import Drawn, Figure, Link

__all__ = [
    "TABLES",
    "Analysis",
    "Bar",
    "Block",
    "Category",
    "Column",
    "Context",
    "CorruptInput",
    "Drawn",
    "Export",
    "Figure",
    "Finding",
    "Folder",
    "Link",
    "Meta",
    "MissingTable",
    "Name",
    "Part",
    "RankCalls",
    "Reader",
    "Renderer",
    "Report",
    "Result",
    "Results",
    "Run",
    "Screen",
    "Source",
    "StepscopeError",
    "Stream",
    "Table",
    "Trace",
    "UnknownName",
    "UnsupportedVersion",
]
