"""Traces that stepscope stored itself."""

from __future__ import annotations

from stepscope.core.patterns import regex
from stepscope.core.result_tables import RESULTS
from stepscope.core.schema import TABLES
from stepscope.readers.formats import Format, Sign

FORMATS = (
    Format(
        name="stepscope",
        doc="what `stepscope export --to parquet` wrote: a folder of Parquet files for each trace",
        module="stored.reader",
        signs=(Sign(1.0, holds=(b'"stepscope": "trace"',), within=200, path=regex(r"(?:^|[/\\])meta\.json\Z")),),
        provides=(*TABLES, *RESULTS),
        endings=(".json",),
    ),
)  # fmt: skip
