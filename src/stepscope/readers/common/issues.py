"""Counts what a reader dropped, guessed or repaired; becomes the `issues` table."""

from __future__ import annotations

import polars as pl

from stepscope.core.schema import ISSUES


class IssueLog:
    """Counts by code, each with its severity and one example."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, int, str]] = {}

    def add(self, code: str, severity: str, count: int, example: str) -> None:
        """Count something; the first example given stays. Does nothing for a count of 0."""
        if count:
            _, before, first = self._rows.get(code, (severity, 0, example))
            self._rows[code] = (severity, before + int(count), first)

    def has(self, severity: str) -> bool:
        """Whether anything of that severity was counted."""
        return any(known == severity for known, _, _ in self._rows.values())

    def table(self) -> pl.DataFrame:
        """The `issues` table, worst first."""
        rank = {"error": 0, "warning": 1, "info": 2}
        rows = sorted(((c, s, n, e) for c, (s, n, e) in self._rows.items()), key=lambda r: (rank[r[1]], -r[2]))
        return pl.DataFrame(rows, schema=dict(ISSUES.dtypes), orient="row")
