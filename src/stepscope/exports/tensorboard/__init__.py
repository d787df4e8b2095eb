"""The views of the TensorBoard PyTorch profiler plugin, value by value, as one JSON object.

The plugin's arithmetic is kept with its defects: own times below zero, parts of a step that exceed it, steps that
overlap. The normal report and the tables of `stepscope show` do not have them.

Source: pytorch/kineto's tb_plugin, as it was before its removal in 2026, and Cambricon's fork of it for MLU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from stepscope.core.errors import StepscopeError
from stepscope.exports import Export
from stepscope.exports.tensorboard._diff import diff as difference
from stepscope.exports.tensorboard._distributed import by_span, distributed, workers_of
from stepscope.exports.tensorboard._json import encoded
from stepscope.exports.tensorboard._views import basis_of, missing_from, views_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Run
    from stepscope.exports import Context
    from stepscope.exports.tensorboard._distributed import Part, Worker
    from stepscope.exports.tensorboard._views import Basis


class _Exported(msgspec.Struct, frozen=True):
    """One trace's views as JSON text, and what the view of all workers needs of it."""

    path: str
    rank: int | None
    views: bytes
    part: Part


def tensorboard(run: Run, context: Context, *, diff: str | None = None) -> bytes:
    """What the plugin's API served for a run: one JSON object of views by name.

    For one trace the object holds the views themselves. For several traces it holds such an object per worker, or per
    span of each worker if a worker has several. If all workers of a span communicate it also holds `distributed`, per
    span if there are several. `diff` names another run, whose first trace is compared with the first one of this run.

    Units: µs; KB and MB of 1024, as the plugin has them.
    Raises MissingTable, StepscopeError (no trace can be read). Single traces that cannot be read are left out with a
    note.
    """
    exported: list[_Exported] = []
    first: Basis | None = None
    n_workers = len({worker.worker for worker in workers_of([(path, None) for path in run.paths])})
    sent: set[str] = set()
    for path in run.paths:
        try:
            trace = run.open_trace(path)
            basis = basis_of(trace)
        except StepscopeError as error:
            if len(run.paths) == 1:
                raise
            context.tell(f"{path} is left out: {error.message}")
            continue
        views, part = views_of(basis, path, n_workers=n_workers)
        for message in missing_from(basis, views):
            if message not in sent:
                context.tell(message)
                sent.add(message)
        exported.append(_Exported(path, trace.rank, encoded(views), part))
        first = basis if first is None and diff is not None else first
        del trace, basis, views  # one at a time
    if not exported:
        raise StepscopeError("none of the traces can be read", "see the notes above")
    document = _joined(exported)
    if diff is not None and first is not None:
        compared_run = context.open_run(diff)
        other = basis_of(compared_run.open_trace(compared_run.paths[0]))
        document["diff"] = difference((first.forest, first.costs), (other.forest, other.costs))
    return encoded(document)


def _joined(exported: Sequence[_Exported]) -> dict[str, Any]:
    workers = workers_of([(one.path, one.rank) for one in exported])
    if len(exported) == 1:
        return _fields(exported[0].views)
    document: dict[str, Any] = {}
    spans_of: dict[str, list[Worker]] = {}
    for worker in workers:
        spans_of.setdefault(worker.worker, []).append(worker)
    for worker, one in zip(workers, exported, strict=True):
        if len(spans_of[worker.worker]) == 1:
            document[worker.worker] = msgspec.Raw(one.views)
        else:
            document.setdefault(worker.worker, {})[worker.span] = msgspec.Raw(one.views)
    together = {}
    for span, places in by_span(workers).items():
        parts = [replace(exported[i].part, worker=workers[i].worker) for i in places]
        view = distributed(parts) if len(parts) > 1 else None
        if view is not None:
            together[span] = view
    if together:
        document["distributed"] = together if len(by_span(workers)) > 1 else next(iter(together.values()))
    return document


def _fields(views: bytes) -> dict[str, Any]:
    """The views by name, each still as text."""
    return msgspec.json.decode(views, type=dict[str, msgspec.Raw])


EXPORT = Export(
    "tensorboard", "what the API of the TensorBoard PyTorch profiler plugin served, as one JSON object", tensorboard
)
