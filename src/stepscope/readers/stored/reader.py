"""Traces that stepscope stored itself: a folder with a Parquet file for each table and a meta.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import store
from stepscope.core import files
from stepscope.core.errors import CorruptInput

if TYPE_CHECKING:
    from stepscope.core.trace import Trace
    from stepscope.readers.common.source import Source


def read(source: Source) -> Trace:
    """The trace; its tables are read on first use. Raises UnsupportedVersion, CorruptInput."""
    text = b"".join(source.chunks())
    document = store.parse_document(text, source.label, kind="trace")
    if document is None:
        raise CorruptInput("it does not say what it stores", path=source.label)
    folder, _ = files.split(source.path)
    return store.read_folder(folder or ".", document, label=folder or ".")
