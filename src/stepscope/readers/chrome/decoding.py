"""From the text of a trace to columns: by one process, block for block."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.readers.chrome.event_columns import Columns
from stepscope.readers.chrome.events import ExactEvent
from stepscope.readers.chrome.json import Document

if TYPE_CHECKING:
    from stepscope.readers.chrome.events import AnyEvent
    from stepscope.readers.chrome.json import Text
    from stepscope.readers.common.source import IssueLog

_DURATION = re.compile(rb'"dur"\s*:\s*-?[0-9]+(\.)?')


@dataclass(slots=True)
class Decoded:
    """The columns of a document, or of a part of it, and its other fields.

    `has_decimals` says whether the first duration has any; None without durations. Elements that are not valid JSON are
    lost, the first one at byte `lost_at`.
    """

    columns: Columns
    meta: dict[str, Any]
    has_decimals: bool | None
    kind: type[AnyEvent]
    is_bare: bool
    n_lost: int
    lost_at: int | None


def decode(text: Text, issues: IssueLog, kind: type[AnyEvent] | None = None) -> Decoded:
    """The whole text, in columns. Memory: one block of events and the columns so far.

    Raises UnknownFormat, CorruptInput, StepscopeError (size limit).
    """
    document = Document(text, issues, kind)
    columns: Columns | None = None
    duration: re.Match[bytes] | None = None
    for events, block in document.blocks():
        if columns is None:
            columns = Columns(issues, exact=document.kind is ExactEvent)
        duration = duration or _DURATION.search(block)
        columns.add(events, block)
    return Decoded(
        columns or Columns(issues, exact=False),
        document.meta,
        None if duration is None else bool(duration[1]),
        document.kind,
        document.bare,
        document.n_lost,
        document.lost_at,
    )
