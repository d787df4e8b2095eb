"""The fixtures that make literal traces."""

from __future__ import annotations

from literal_traces import new_rows, rows

__all__ = ["new_rows", "rows"]
