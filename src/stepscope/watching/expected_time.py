"""Says how long a cycle should take for its work, from the cycles before it.

The logarithm of a cycle's time is linear in a few functions of its work: hats over the logarithm of the batch size,
which follow any curve, and the context that is read. Robust weights (Cauchy) leave outliers out of the fit. What the
past says stays in a matrix and a vector, so that memory does not grow and each block of cycles refines
the fit (recursive least squares). On top comes the level of this stream: the median of its last residuals. It takes
half a window until a level moves, hence a slow stretch that is shorter remains visible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Batch sizes at which the curve of the time may bend.
_KNOTS = np.log(2.0 ** np.arange(0, 17))
_FEATURES = len(_KNOTS) + 2
#: Cycles whose median residual is the level, and the least number for which there is one.
LEVEL_CYCLES, _LEAST_CYCLES = 60, 10
#: Residuals that the interval is taken from.
_INTERVAL_CYCLES = 4096
_ROUNDS = 15
#: Residuals of so many scales count half.
_HALF_WEIGHT = 2.0
_LEAST_SCALE = 1e-4


@dataclass(frozen=True)
class ExpectedTime:
    """What is known of the cycles so far. All times are natural logarithms of nanoseconds.

    `information` and `moments` are the weighted normal equations, `recent` the residuals of the last cycles of this
    stream before its level is subtracted, and `errors` those after it.
    """

    information: tuple[tuple[float, ...], ...] = ()
    moments: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()

    def new_stream(self) -> ExpectedTime:
        """The same knowledge of the work, for a job whose level is not known."""
        return replace(self, recent=())

    def to_json(self) -> str:
        """The state as JSON text: at most some 120 kB."""
        return json.dumps({name: getattr(self, name) for name in self.__dataclass_fields__})

    @staticmethod
    def from_json(text: str) -> ExpectedTime:
        """The state that `to_json` wrote. Raises `ValueError` or `KeyError` if it is another text."""
        state = json.loads(text)
        return ExpectedTime(
            tuple(tuple(map(float, row)) for row in state["information"]),
            *(tuple(map(float, state[name])) for name in ("moments", "recent", "errors")),
        )


@dataclass(frozen=True)
class Expectation:
    """A value a cycle, in nanoseconds: expected time and interval; not a number where nothing is known yet.

    `error` is the logarithm of measured by expected time, `log_time` that of the time without what the work explains.
    """

    expected: Floats
    low: Floats
    high: Floats
    error: Floats
    log_time: Floats


def _features(batch: Floats, context: Floats) -> Floats:
    size = np.log(np.maximum(batch, 1.0))
    hats = [np.interp(size, _KNOTS, one) for one in np.eye(len(_KNOTS))]
    return np.stack([*hats, batch * context / 1e4, context / 1e3], axis=1)


def _coefficients(model: ExpectedTime) -> Floats:
    ridge = 1e-3 * np.eye(_FEATURES)
    return np.asarray(np.linalg.solve(np.array(model.information) + ridge, np.array(model.moments)))


def observe(
    model: ExpectedTime,
    duration_ns: Floats,
    batch: Floats | None = None,
    context: Floats | None = None,
    *,
    coverage: float = 0.99,
) -> tuple[Expectation, ExpectedTime]:
    """What was expected of a block of cycles in order of time, and the model that has learned from them.

    The work's part of the expectation is that before the block; the level is that before each cycle. `batch` is the
    number of requests, `context` their mean length in tokens. Where they are not given, the level alone is expected.
    """
    log_time = np.log(duration_ns)
    if batch is None or context is None:
        unknown, learned, residual = False, model, log_time
    else:
        work, unknown = _features(batch, context), not model.information
        learned = _learn(model, work, log_time)
        residual = log_time - work @ _coefficients(learned if unknown else model)
    series = pl.Series(np.concatenate([model.recent, residual]))
    past = series.rolling_median(LEVEL_CYCLES, min_samples=_LEAST_CYCLES).shift(1).to_numpy()[len(model.recent) :]
    error = residual - past if not unknown else np.full(len(residual), np.nan)
    margins = np.quantile(model.errors, [(1 - coverage) / 2, (1 + coverage) / 2]) if model.errors else [np.nan] * 2
    expected = np.exp(log_time - error)
    own_errors = (residual - past)[~np.isnan(past)]
    after = replace(
        learned,
        recent=tuple(series[-LEVEL_CYCLES:].to_list()),
        errors=tuple(np.concatenate([model.errors, own_errors])[-_INTERVAL_CYCLES:].tolist()),
    )
    return Expectation(expected, expected * np.exp(margins[0]), expected * np.exp(margins[1]), error, residual), after


def _learn(model: ExpectedTime, work: Floats, log_time: Floats) -> ExpectedTime:
    before = np.array(model.information) if model.information else np.zeros((_FEATURES, _FEATURES))
    moments = np.array(model.moments) if model.moments else np.zeros(_FEATURES)
    weights = np.ones(len(log_time))
    for _ in range(_ROUNDS):
        weighted = work * weights[:, None]
        now = replace(
            model,
            information=tuple(map(tuple, (before + weighted.T @ work).tolist())),
            moments=tuple((moments + weighted.T @ log_time).tolist()),
        )
        residual = log_time - work @ _coefficients(now)
        scale = max(1.4826 * float(np.median(np.abs(residual))), _LEAST_SCALE)
        weights = 1 / (1 + (residual / (_HALF_WEIGHT * scale)) ** 2)
    return now
