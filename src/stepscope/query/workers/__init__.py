"""One function applied to the files of a job: in this process, in workers of this machine, or on a Dask cluster.

The outcome is the same everywhere: results in the order of the files, and an error for each file without a result.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.core.errors import MissingExtra, MissingTable, StepscopeError, UnknownFormat, UnsupportedVersion
from stepscope.query.workers.dask_pool import LOCAL, on_dask
from stepscope.query.workers.pool import Died, Plan, plan, pooled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    T = TypeVar("T")

__all__ = ["LOCAL", "Plan", "mapped", "plan"]

#: Errors that reading once more cannot cure.
_FINAL = (UnknownFormat, UnsupportedVersion, MissingExtra, MissingTable)


def mapped(
    function: Callable[[str], T | StepscopeError],
    paths: Sequence[str],
    *,
    how: Plan,
    dask: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> list[T | StepscopeError]:
    """The function's result for each file, in order. The function returns StepscopeErrors instead of raising them.

    A file that failed is tried once more at the end, as its disk or its writer may have been busy; if its worker died,
    it then has the memory to itself. `on_done` is called with the number of files done and of all files. A function
    that cannot be pickled is called in this process.

    Raises MissingExtra (dask), StepscopeError (no scheduler).
    """
    results: list[Any] = [None] * len(paths)
    packed = None if how.n_workers == 0 and dask is None else _packed(function)
    first = _through(function, packed, list(enumerate(paths)), how, dask)
    for n_done, (number, result) in enumerate(first, 1):
        results[number] = result
        if on_done is not None:
            on_done(n_done, len(paths))
    again = [(number, paths[number]) for number, result in enumerate(results) if _is_worth_another_try(result)]
    one_worker = Plan(min(how.n_workers, 1), how.worker_bytes)
    for number, result in _through(function, packed, again, one_worker, dask):
        results[number] = _explained(result, paths[number])
    return results


def _through(
    function: Callable[[str], Any], packed: bytes | None, items: list[tuple[int, str]], how: Plan, dask: str | None
) -> Iterator[tuple[int, Any]]:
    if not items:
        return iter(())
    if packed is None:
        return ((number, function(path)) for number, path in items)
    if dask is not None:
        return on_dask(packed, items, address=dask, plan=how)
    return pooled(packed, items, n_workers=how.n_workers)


def _packed(function: Callable[..., object]) -> bytes | None:
    try:
        return pickle.dumps(function, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):  # a closure, or an object with an open file
        return None


def _is_worth_another_try(result: object) -> bool:
    return isinstance(result, Died) or (isinstance(result, StepscopeError) and not isinstance(result, _FINAL))


def _explained(result: Any, path: str) -> Any:
    if isinstance(result, Died):
        msg = f"the process that read {path} {result.ending}, twice"
        return StepscopeError(msg, "read it by itself, or give fewer workers more memory with --workers 1")
    return result
