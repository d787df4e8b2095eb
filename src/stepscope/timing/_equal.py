"""How far a result is from a reference: share of equal elements, largest errors, and whether a tolerance holds."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from stepscope.core.errors import StepscopeError
from stepscope.timing._arrays import as_numpy, leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Array = np.ndarray[Any, Any]

#: Relative and absolute tolerance of an element type. Source: the defaults of torch.testing.assert_close (PyTorch 2),
#: where types that are not listed, whole numbers among them, must be equal.
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
EXACT = (0.0, 0.0)
#: Elements compared at once, which bounds the memory that the comparison takes.
_CHUNK = 1 << 22


class Difference(msgspec.Struct, frozen=True):
    """How a result differs from its reference, over all elements of all arrays in it.

    Elements are equal if they have the same value or both are NaN. If only one is NaN or infinite, the error is
    infinite. The relative error covers elements whose reference is not 0. Errors are null if no element is a number.
    `tolerances` are those that applied, by element type.
    """

    n_elements: int = 0
    n_equal: int = 0
    n_outside: int = 0
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    tolerances: tuple[tuple[str, float, float], ...] = ()

    @property
    def equal_ratio(self) -> float | None:
        """The share of equal elements, 0..1; null if there are no elements."""
        return self.n_equal / self.n_elements if self.n_elements else None

    @property
    def within_tolerance(self) -> bool | None:
        """Whether no element differs by more than atol + rtol * |reference|; null if there are no elements."""
        return self.n_outside == 0 if self.n_elements else None


def difference(result: Any, reference: Any, tolerances: Mapping[str, tuple[float, float]] | None = None) -> Difference:
    """Compare two results, which may be arrays or tensors, numbers, or tuples, lists and mappings of them.

    `tolerances` replace those of TOLERANCES, by the name of an element type: (relative, absolute). Of two element types
    the wider tolerance applies. Raises StepscopeError if the results differ in shape or structure.
    """
    known = {**TOLERANCES, **(tolerances or {})}
    mine, theirs = dict(leaves(result)), dict(leaves(reference))
    if list(mine) != list(theirs):
        first = next(iter([p for p in mine if p not in theirs] + [p for p in theirs if p not in mine]), "")
        what = f"only one of them has {first}" if first else "they hold different things"
        raise StepscopeError(f"the results differ in structure: {what}", "both functions must return the same arrays")
    return reduce(_joined, (_leaf(path, mine[path], theirs[path], known) for path in mine), Difference())


def _leaf(path: str, value: Any, reference: Any, known: Mapping[str, tuple[float, float]]) -> Difference:
    if value is None and reference is None:
        return Difference()
    where = f" at {path}" if path else ""
    if value is None or reference is None:
        which = "the function" if value is None else "the reference"
        raise StepscopeError(f"{which} returns nothing{where}, the other does", "let both return their result")
    (mine, own), (theirs, other) = as_numpy(value), as_numpy(reference)
    if mine.shape != theirs.shape:
        raise StepscopeError(
            f"the results differ in shape{where}: {mine.shape} and {theirs.shape} of the reference",
            "only results of the same shape can be compared",
        )
    rtol, atol = (max(both) for both in zip(known.get(own, EXACT), known.get(other, EXACT), strict=True))
    if not (_numeric(mine) and _numeric(theirs)):
        n_equal = int(np.count_nonzero(np.atleast_1d(mine == theirs)))
        return Difference(mine.size, n_equal, mine.size - n_equal)
    name = own if own == other else f"{own} and {other}"
    differences = (_chunk(a, b, rtol, atol) for a, b in _chunks(mine, theirs))
    return replace(reduce(_joined, differences, Difference()), tolerances=((name, rtol, atol),))


def _numeric(array: Array) -> bool:
    # Types of other packages, such as ml_dtypes.bfloat16, are of kind V but can be cast as well.
    return array.dtype.kind in "biufc" or (array.dtype.kind == "V" and array.dtype.names is None)


def _chunks(mine: Array, theirs: Array) -> Iterator[tuple[Array, Array]]:
    mine, theirs = mine.reshape(-1), theirs.reshape(-1)
    for at in range(0, mine.size, _CHUNK):
        yield mine[at : at + _CHUNK], theirs[at : at + _CHUNK]


def _chunk(mine: Array, theirs: Array, rtol: float, atol: float) -> Difference:
    with np.errstate(all="ignore"):
        equal = mine == theirs
        error = _distance(mine, theirs)
        wide = theirs.astype(np.complex128 if theirs.dtype.kind == "c" else np.float64)
        equal |= np.isnan(error) & np.isnan(wide) & (mine != mine)  # noqa: PLR0124  NaN in any type
        error = np.where(equal, 0.0, np.where(np.isfinite(error), error, np.inf))
        size = np.abs(wide)
        outside = ~equal & ~(np.isfinite(error) & (error <= atol + rtol * size))
        relative = np.where(np.isfinite(error), error / size, error)[size != 0]
    return Difference(
        n_elements=mine.size,
        n_equal=int(equal.sum()),
        n_outside=int(outside.sum()),
        max_abs_error=float(error.max()),
        max_rel_error=float(relative.max()) if relative.size else None,
    )


def _distance(mine: Array, theirs: Array) -> Array:
    """|mine - theirs| as float64, without overflow of narrow types; exact for whole numbers but for the rounding."""
    if mine.dtype == theirs.dtype and mine.dtype.kind in "iu":
        # The difference may not fit the type, but its bits are right when read as unsigned.
        unsigned = np.dtype(f"u{mine.dtype.itemsize}")
        return (np.maximum(mine, theirs) - np.minimum(mine, theirs)).view(unsigned).astype(np.float64)
    wide = np.complex128 if "c" in mine.dtype.kind + theirs.dtype.kind else np.float64
    return np.asarray(np.abs(mine.astype(wide) - theirs.astype(wide)))


def _joined(one: Difference, other: Difference) -> Difference:
    return Difference(
        one.n_elements + other.n_elements,
        one.n_equal + other.n_equal,
        one.n_outside + other.n_outside,
        _larger(one.max_abs_error, other.max_abs_error),
        _larger(one.max_rel_error, other.max_rel_error),
        tuple(dict.fromkeys([*one.tolerances, *other.tolerances])),
    )


def _larger(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None and not math.isnan(value)]
    return max(known, default=None)
