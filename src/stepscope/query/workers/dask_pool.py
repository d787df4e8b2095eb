"""The same as `pool` on Dask: on a cluster that is already running, or on a local one that ends with the work."""

from __future__ import annotations

import os
import pickle
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import MissingExtra, StepscopeError
from stepscope.core.machine import cores_at_most
from stepscope.query.workers.pool import Died

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.query.workers.pool import Plan

#: The address that means a new cluster on this machine.
LOCAL = "local"
_TIMEOUT_S = 30


def on_dask(
    function: bytes, items: Sequence[tuple[int, Any]], *, address: str, plan: Plan
) -> Iterator[tuple[int, Any]]:
    """Apply a pickled function to numbered items on Dask's workers. Yields number and result as they come.

    `address` is that of a scheduler, the path of its file (.json), or `local`. Dask moves the items of a worker that
    dies to others; the result of an item that kills several is Died. Raises MissingExtra, StepscopeError (no scheduler
    at that address).
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise MissingExtra("--dask", "cluster") from None
    with _client(distributed, address, plan) as client:
        futures = {client.submit(_called, function, item, pure=False): number for number, item in items}
        for future in distributed.as_completed(list(futures)):
            number = futures.pop(future)
            error = future.exception()
            if error is None:
                yield number, future.result()
            elif isinstance(error, distributed.scheduler.KilledWorker):
                yield number, Died(-9)
            else:
                raise error
            future.release()


def _called(function: bytes, item: Any) -> Any:
    with cores_at_most(1):  # the others have work of their own
        return pickle.loads(function)(item)  # noqa: S301  what this program sent


@contextmanager
def _client(distributed: Any, address: str, plan: Plan) -> Iterator[Any]:
    if address == LOCAL:
        # Workers have one thread each, because one thread reads a trace and its memory is known.
        with (
            distributed.LocalCluster(
                n_workers=max(plan.n_workers, 1),
                threads_per_worker=1,
                processes=True,
                memory_limit=None,
                dashboard_address=None,
                # Without a dashboard, too, the scheduler has an HTTP server; its usual port may be that of another one.
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
        return
    named = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    if address.endswith(".json") and not os.path.exists(address):  # noqa: PTH110  Dask would wait for it for ever
        raise StepscopeError(f"there is no scheduler's file {address}", "start dask-scheduler --scheduler-file there")
    try:
        client = distributed.Client(**named, timeout=_TIMEOUT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise StepscopeError(f"no Dask scheduler at {address}: {error}", "as in --dask tcp://host:8786") from None
    with client:
        yield client
