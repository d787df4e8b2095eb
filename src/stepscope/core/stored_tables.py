"""Tables that stay in their files until somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl


@dataclass(frozen=True, slots=True, eq=False)
class StoredTables(Mapping[str, "pl.DataFrame"]):
    """Tables in files, which are read on first use and stay in memory.

    `files` has the Parquet file of each table, `n_rows` its length, `read` makes the frame of one; `made` are frames
    that replace files or have none. `lease` keeps the files from being deleted. `verify` raises CorruptInput if the
    file of a table is not as it was written.
    """

    files: Mapping[str, str]
    n_rows: Mapping[str, int]
    read: Callable[[str], pl.DataFrame]
    made: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    lease: object = None
    verify: Callable[[str], object] = bool
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name in self.made:
            return self.made[name]
        if name not in self._frames:
            if name not in self.files:
                raise KeyError(name)
            self._frames[name] = self.read(name)
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.files, *self.made)))

    def __len__(self) -> int:
        return len({*self.files, *self.made})

    def __contains__(self, name: object) -> bool:
        return name in self.made or name in self.files

    def file(self, name: str) -> str | None:
        """The file of the table, which is as it was written; None if it is not in a file. Raises CorruptInput."""
        if name in self.made or name not in self.files:
            return None
        self.verify(name)
        return self.files[name]

    def height(self, name: str) -> int:
        """Rows of the table, without reading it."""
        return self.made[name].height if name in self.made else self.n_rows[name]

    def with_made(self, tables: Mapping[str, pl.DataFrame]) -> StoredTables:
        """The same with frames in place of some files, sharing what was read."""
        return replace(self, made={**self.made, **tables})
