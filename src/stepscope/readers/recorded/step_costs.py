"""Costs of steps that a training loop's own timer measured: a side file, since no trace holds them.

Format: JSON with `batch_cost_s`, a list of [seconds, samples or null] for each step, and perhaps `reader_cost_s`, a
list of [seconds, steps ended before] for each batch read.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stepscope.core.errors import CorruptInput
from stepscope.core.schema import STEP_COSTS
from stepscope.core.trace import Meta, Trace

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source
_HINT = 'it should look like {"batch_cost_s": [[0.0054, 16], …], "reader_cost_s": [[0.0001, 0], …]}'


class _Costs(msgspec.Struct):
    batch_cost_s: list[tuple[float, int | None]]
    reader_cost_s: list[tuple[float, int]] = []


def read(source: Source) -> Trace:
    """The file as the table `step_costs`. Raises CorruptInput, StepscopeError (size limit)."""
    text = b"".join(source.chunks())
    try:
        costs = msgspec.json.decode(text, type=_Costs)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CorruptInput(f"not costs of steps: {source.damage or error}", _HINT, path=source.label) from None
    rows: list[tuple[Any, ...]] = [("step", i, cost, n) for i, (cost, n) in enumerate(costs.batch_cost_s)]
    rows += [("reader", n, cost, None) for cost, n in costs.reader_cost_s]
    if any(cost < 0 or not isfinite(cost) for _, _, cost, _ in rows):
        raise CorruptInput("a cost is below zero or not finite", _HINT, path=source.label)
    schema = {name: STEP_COSTS.dtypes[name] for name in ("kind", "n_before", "cost_s", "n_samples")}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(source=pl.lit("timer"))
    meta = Meta(source.label, "step_costs", n_events=frame.height, size_bytes=source.n_bytes)
    return Trace(meta, {"step_costs": STEP_COSTS.conform(frame)} if rows else {})
