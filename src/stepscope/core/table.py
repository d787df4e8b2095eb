"""What a table is: named columns with types, units and a line of description each, and how frames get these types.

Tables in files stay there until somebody asks for them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

#: The type of texts that recur.
Name = pl.Categorical()


def no_number(dtype: pl.DataType) -> int:
    """The value of a whole type that no column can hold (see `soundness.limits_of`): it is noticed, and counted."""
    ends = np.iinfo(str(dtype).lower())
    return int(ends.min or ends.max)


def fitted(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    """The values in that type. Numbers that do not fit a whole type become its `no_number`; NaN becomes null."""
    if values.dtype == dtype:
        return values
    if not (dtype.is_integer() and values.dtype.is_numeric()):
        return values.cast(dtype)
    values = values.fill_nan(None) if values.dtype.is_float() else values
    cast = values.cast(dtype, strict=False)
    if cast.null_count() == values.null_count():
        return cast
    end = pl.lit(no_number(dtype), dtype)
    return pl.select(pl.coalesce(cast, pl.when(values.is_not_null()).then(end)).alias(values.name)).to_series()


class Column(msgspec.Struct, frozen=True):
    """One column: its type, what it means, its unit, and whether it identifies a row (key) or measures it."""

    name: str
    dtype: pl.DataType
    doc: str
    unit: str | None = None
    key: bool = False


class Table(msgspec.Struct, frozen=True, dict=True):
    """A named list of columns: the contract between readers, analyses and renderers.

    Values of the columns `never_null` are always known.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    never_null: tuple[str, ...] = ()

    @cached_property
    def dtypes(self) -> dict[str, pl.DataType]:
        """The type of each column, in their order."""
        return {c.name: c.dtype for c in self.columns}

    def column(self, name: str) -> Column:
        """The column of that name; KeyError if there is none."""
        return next(c for c in self.columns if c.name == name)

    @cached_property
    def _empty(self) -> pl.DataFrame:
        return pl.DataFrame([pl.Series(name, [], dtype) for name, dtype in self.dtypes.items()])

    def empty(self) -> pl.DataFrame:
        """A frame of this table without rows."""
        return self._empty.clear()  # making one of a schema takes thirty times as long

    def of_rows(self, rows: Sequence[tuple[object, ...]]) -> pl.DataFrame:
        """A frame of rows with a value for each of the first columns; the last ones may be left out."""
        missing = (None,) * (len(self.columns) - len(rows[0])) if rows else ()
        return pl.DataFrame([(*row, *missing) for row in rows], schema=dict(self.dtypes), orient="row")

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with exactly this table's columns, in order and type (see `fitted`); absent ones become null."""
        present = set(frame.columns)
        return pl.DataFrame(
            [
                fitted(frame[name], dtype) if name in present else _unknown(name, dtype, frame.height)
                for name, dtype in self.dtypes.items()
            ]
        ).rechunk()  # Polars takes columns of a frame to have chunks of the same lengths


def _unknown(name: str, dtype: pl.DataType, n: int) -> pl.Series:
    return pl.Series(name, [None], dtype=dtype).new_from_index(0, n)  # unlike `clear(n)` it plans no query


def without(frame: pl.DataFrame, *names: str) -> pl.DataFrame:
    """The frame without these columns, as from `drop`, for which a query is planned."""
    return frame[[name for name in frame.columns if name not in names]]


def filtered(frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """The rows for which the mask is true, as from `filter`, for which a query is planned."""
    return pl.DataFrame([column.filter(mask) for column in frame.get_columns()])


def is_any_of(series: pl.Series, values: Iterable[object]) -> pl.Series:
    """A mask of the rows that have one of a few values, as from `is_in`, for which a query is planned."""
    return reduce(operator.or_, (series == value for value in values))


def integers(series: pl.Series, absent: int = -1) -> NDArray[np.int64]:
    """Whole numbers of any type as an array, with `absent` for null. Where nothing is null no query is planned."""
    values = series.cast(pl.Int64)
    numbers: NDArray[np.int64] = (values.fill_null(absent) if values.null_count() else values).to_numpy()
    return numbers


#: Of fewer names a list is made faster than a query is planned.
_FEW_NAMES = 1_000


def map_names(series: pl.Series, fn: Callable[[str], Any], dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    """`fn` of every name in a Categorical, Enum or String series, called once per distinct name; null stays null."""
    if series.len() <= _FEW_NAMES:
        names = series.to_list()
        results = {name: None if name is None else fn(name) for name in dict.fromkeys(names)}
        return pl.Series(series.name, [results[name] for name in names], dtype=dtype)
    series = series.cast(pl.Categorical()) if isinstance(series.dtype, pl.String) else series
    # By the categories' numbers, in NumPy: joining a table of names to the column is several times slower.
    codes = series.to_physical()
    codes = (codes.cast(pl.UInt32) + 1).fill_null(0) if codes.null_count() else codes
    first, number = numbered(codes.to_numpy())
    mapped = [None if name is None else fn(name) for name in series[first].to_list()]
    if dtype == pl.Boolean() and None not in mapped:
        return pl.Series(series.name, np.array(mapped, np.bool_)[number])
    values = pl.Series(series.name, mapped, dtype=dtype)
    # `gather` is planned as a query, which takes longer than the work.
    row_by_row: pl.Series = values[number]
    return row_by_row


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
