"""Records of the same kind, by column: what a pickle or a JSON file holds as a list of objects with named fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

#: Codes of values that are held as numbers, and of fields that a record does not have.
NUMBER, ABSENT = -1, -2
#: The values of the first codes.
CONSTANTS = (None, True, False)


class Column(NamedTuple):
    """The values of a field: `values[code]`, or the number where the code is `NUMBER`; `ABSENT`: no such field."""

    codes: NDArray[np.int32]
    numbers: NDArray[np.int64]
    values: Sequence[Any]

    @classmethod
    def empty(cls, n: int, values: Sequence[Any]) -> Column:
        """A column of records without the field, whose codes and numbers can be filled."""
        return cls(np.full(n, ABSENT, np.int32), np.zeros(n, np.int64), values)

    @classmethod
    def of(cls, values: Sequence[Any]) -> Column:
        """The column with these values."""
        if set(map(type, values)) <= {int, type(None)}:
            try:
                numbers = np.array([0 if value is None else value for value in values], np.int64)
            except OverflowError:
                pass
            else:
                return cls(np.array([0 if value is None else NUMBER for value in values], np.int32), numbers, CONSTANTS)
        return cls.of_parts(list(map(id, values)), lambda i: values[i])

    @classmethod
    def of_parts(cls, parts: list[Any], value_of: Callable[[int], Any]) -> Column:
        """The column of values that are the same where the parts are; `value_of` is asked for one of each."""
        known: dict[Any, int] = {}
        codes = [known.setdefault(part, len(known)) for part in parts]
        first = dict(zip(reversed(codes), range(len(codes) - 1, -1, -1), strict=True))
        coded = np.array(codes, np.int32) + len(CONSTANTS)
        distinct: list[Any] = [*CONSTANTS, *(value_of(first[code]) for code in range(len(known)))]
        numbers = np.zeros(len(codes), np.int64)
        for code, value in enumerate(distinct):
            if isinstance(value, bool) or value is None:
                coded[coded == code] = CONSTANTS.index(value)
            elif isinstance(value, int) and -(2**63) <= value < 2**63:
                numbers[coded == code] = value
                coded[coded == code] = NUMBER
        return cls(coded, numbers, distinct)

    def tolist(self) -> list[Any]:
        """The values; None where a record lacks the field."""
        values = self.values
        pairs = zip(self.codes.tolist(), self.numbers.tolist(), strict=True)
        return [values[c] if c >= 0 else n if c == NUMBER else None for c, n in pairs]

    def mapped(self, function: Callable[[Any], int | None]) -> NDArray[np.int64]:
        """A number for each value, -1 for None. The function is called once for each distinct value."""
        is_number = self.codes == NUMBER
        codes = np.where(is_number, ABSENT, self.codes) - ABSENT
        used = np.flatnonzero(np.bincount(codes))
        made = np.zeros(len(self.values) - ABSENT, np.int64)
        for code in used.tolist():
            number = function(self.values[code + ABSENT] if code else None)
            made[code] = -1 if number is None else number
        mapped: NDArray[np.int64] = made[codes]
        if is_number.any():
            distinct, inverse = np.unique(self.numbers[is_number], return_inverse=True)
            numbers = [function(number) for number in distinct.tolist()]
            mapped[is_number] = np.array([-1 if n is None else n for n in numbers])[inverse]
        return mapped


class Rows(Sequence[dict[Any, Any]]):
    """Records, held by column."""

    def __init__(self, columns: dict[Any, Column], n: int) -> None:
        self.columns, self._n = columns, n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> dict[Any, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[dict[Any, Any]]: ...
    def __getitem__(self, at: int | slice) -> dict[Any, Any] | Sequence[dict[Any, Any]]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self._n))]
        cells = ((name, Column(c.codes[[at]], c.numbers[[at]], c.values)) for name, c in self.columns.items())
        return {name: one.tolist()[0] for name, one in cells if one.codes[0] != ABSENT}

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        names, has_all = list(self.columns), not any((c.codes == ABSENT).any() for c in self.columns.values())
        rows = zip(*(column.tolist() for column in self.columns.values()), strict=True)
        return (
            (dict(zip(names, row, strict=True)) for row in rows) if has_all else map(self.__getitem__, range(self._n))
        )

    def column(self, name: str) -> Column:
        """A field of all records."""
        return self.columns.get(name) or Column.empty(self._n, CONSTANTS)


class Records:
    """The records in a list of them and of `Rows`; what is no record is left out."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self._blocks: list[Rows | list[dict[Any, Any]]] = []
        for entry in entries:
            if isinstance(entry, Rows):
                self._blocks.append(entry)
            elif isinstance(entry, dict):
                last = self._blocks[-1] if self._blocks else None
                if isinstance(last, list):
                    last.append(entry)
                else:
                    self._blocks.append([entry])
        self._n = sum(map(len, self._blocks))

    def __len__(self) -> int:
        return self._n

    def mapped(self, function: Callable[[Any], int | None], name: str) -> NDArray[np.int64]:
        """A number for each value of a field, -1 for None; the function is called at least once per distinct value."""
        return _joined([column.mapped(function) for column in self._columns(name)])

    def numbers(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The whole numbers in a field, and where there are such."""
        columns = list(self._columns(name))
        return _joined([c.numbers for c in columns]), _joined([c.codes == NUMBER for c in columns], np.bool_)

    def flags(self, name: str) -> NDArray[np.bool_]:
        """Where a field is true."""
        return _joined([column.codes == CONSTANTS.index(True) for column in self._columns(name)], np.bool_)

    def _columns(self, name: str) -> Iterator[Column]:
        """A field of all records, in parts."""
        for block in self._blocks:
            yield block.column(name) if isinstance(block, Rows) else Column.of([one.get(name) for one in block])


def _joined(parts: list[NDArray[Any]], dtype: type[Any] = np.int64) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def integers(numbers: NDArray[np.int64], is_known: NDArray[np.bool_]) -> pl.Series:
    """Whole numbers, null where they are not known."""
    series = pl.Series(numbers, dtype=pl.Int64)
    return series if is_known.all() else series.zip_with(pl.Series(is_known), pl.Series([None], dtype=pl.Int64))
