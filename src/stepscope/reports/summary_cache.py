"""Summaries kept on disk: the report of the same ranks need not read them again.

What was made of a file is kept as pickled values, of which only those of a summary are ever made again.
"""

from __future__ import annotations

import importlib
import io
import pickle
import zlib
from typing import Any

from stepscope import store
from stepscope.reports._summary import Summary

__all__ = ["WHAT", "keep_summary", "kept_summary"]

WHAT = "summary"

#: All that a summary is made of, by module.
_KNOWN = {
    "polars.dataframe.frame": {"DataFrame"},
    "stepscope.core.schema": {"Table", "Column"},
    "stepscope.core.trace": {"Meta"},
    "stepscope.core.report": {"Block", "Note"},
    "stepscope.reports._summary": {"Summary", "Cost", "Lack", "Memory"},
}
#: Element types, all of whose names begin with a capital.
_TYPES = "polars.datatypes.classes"


def kept_summary(ticket: store.Ticket) -> Summary | None:
    """The summary that was kept with that ticket; None if there is none, or none that can be read."""
    content = store.noted(ticket)
    if content is None:
        return None
    try:
        found = _Careful(io.BytesIO(zlib.decompress(content))).load()
    except (zlib.error, pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError):
        return None
    return found if isinstance(found, Summary) else None


def keep_summary(ticket: store.Ticket, summary: Summary) -> None:
    """Keep a summary of a file that was read after the ticket was made; only of formats that are one file each."""
    content = zlib.compress(pickle.dumps(summary, protocol=pickle.HIGHEST_PROTOCOL), level=1)
    store.keep_noted(ticket, content, summary.meta, what=WHAT)


class _Careful(pickle.Unpickler):
    """Makes values of summaries and nothing else, whatever the bytes ask for."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """A class that is known. Raises UnpicklingError for all others."""
        is_type = module_name == _TYPES and global_name[:1].isupper()
        if not is_type and global_name not in _KNOWN.get(module_name, ()):
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is no part of a summary")
        return getattr(importlib.import_module(module_name), global_name)
