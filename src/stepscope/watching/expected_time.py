"""Says how long a cycle should take for its work, from the cycles before it.

The logarithm of a cycle's time is linear in a few functions of its work: hats over the logarithms of the batch size and
of the prompt tokens, which follow any curve, and the context that is read. Robust weights (Cauchy) leave outliers out
of the fit. What the past says stays in a matrix and a vector, so that memory does not grow; they learn from
`LEARN_CYCLES` at a time (recursive least squares). Nothing is expected of work that is unlike all before; a batch that
is new, but near to one that is known, takes between the time of that one and proportionally more. On top comes the
level of this stream: the median of its last residuals, which the fit leaves out. It takes half a window until a
level moves, hence a slow stretch that is shorter remains visible. What is expected does not depend on how the cycles
are divided into blocks.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.watching.medians import last_medians

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Batch sizes, and prompt tokens of a cycle, at which the curve of the time may bend.
_KNOTS = np.log(2.0 ** np.arange(0, 12.5, 0.5))
_PROMPT_KNOTS = np.log1p([0.0, 32.0, 128.0, 512.0, 2048.0, 8192.0])
_FEATURES = len(_KNOTS) + 2 + len(_PROMPT_KNOTS) - 1
#: What is expected where little is known: the curve of the batch size does not bend, and the rest has no effect.
_BENDS = np.diff(np.eye(len(_KNOTS), _FEATURES), 2, axis=0)
_PRIOR = 1e-3 * (_BENDS.T @ _BENDS + np.diag(np.arange(_FEATURES) >= len(_KNOTS)) * 1.0) + 1e-7 * np.eye(_FEATURES)
#: Work is known if its expectation has at most this share of a cycle's variance: some five cycles were like it. Where
#: cycles scatter little it may have more of it, as long as what is expected is known so well.
_MOST_LEVERAGE, _MOST_OF_PRECISE, _PRECISE = 0.2, 3.0, 0.01
#: Cycles that are learned from at once, and how many count in all; older ones are forgotten little by little.
LEARN_CYCLES, _MOST_CYCLES = 60, 100_000
#: Cycles whose median residual is the level, and the least number for which there is one.
LEVEL_CYCLES, _LEAST_CYCLES = 60, 10
#: Residuals that the interval is taken from.
_INTERVAL_CYCLES = 4096
_ROUNDS = 15
#: Residuals of so many scales count half.
_HALF_WEIGHT = 2.0
_LEAST_SCALE = 1e-4
#: Logarithms that a state may hold are within this, and no time differs so much from what its work explains.
MOST_LOG = 100.0
_MOST_SUM = 1e30


@dataclass(frozen=True)
class ExpectedTime:
    """What is known of the cycles so far. All times are natural logarithms of nanoseconds.

    `information` and `moments` are the weighted normal equations, `recent` the residuals of the last cycles of this
    stream before its level is subtracted, and `errors` those after it. `pending` are cycles that were not learned from
    yet, each the functions of its work and its time without the level. `scale` is how much the last ones that were
    scattered about what their work explains: a standard deviation.
    """

    information: tuple[tuple[float, ...], ...] = ()
    moments: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    pending: tuple[tuple[float, ...], ...] = ()
    scale: float = math.inf

    def new_stream(self) -> ExpectedTime:
        """The same knowledge of the work, for a job whose level is not known."""
        # Before the first fit, times that are not learned have the level of their stream.
        return replace(self, recent=(), pending=self.pending if self.information else ())

    def to_json(self) -> str:
        """The state as JSON text: at most some 120 kB."""
        state = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(state | {"scale": None if math.isinf(self.scale) else self.scale})

    @staticmethod
    def from_json(text: str) -> ExpectedTime:
        """The state that `to_json` wrote. Raises an error of `BAD_STATE` if it is another text."""
        state = json.loads(text)
        model = ExpectedTime(
            information=_rows(state["information"]),
            **{name: tuple(map(float, state[name])) for name in ("moments", "recent", "errors")},
            pending=_rows(state["pending"]),
            scale=math.inf if state.get("scale") is None else float(state["scale"]),
        )
        sizes = {len(model.moments), len(model.information), *map(len, model.information)} - {0}
        if sizes - {_FEATURES} or {len(row) for row in model.pending} - {_FEATURES + 1}:
            raise ValueError("it is of another version")
        sums = np.array([*model.moments, *(value for row in (*model.information, *model.pending) for value in row)])
        logs = np.array([*model.recent, *model.errors])
        is_bounded = (np.abs(sums) <= _MOST_SUM).all() and (np.abs(logs) <= 2 * MOST_LOG).all()
        if not (is_bounded and model.scale >= _LEAST_SCALE):
            raise ValueError("no such numbers are learnt")
        if (
            model.information
            and not np.isfinite(np.linalg.solve(np.array(model.information) + _PRIOR, model.moments)).all()
        ):
            raise ValueError("it has no solution")
        return model


#: What `from_json` raises, and what else reads a state.
BAD_STATE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, np.linalg.LinAlgError)


def _rows(values: list[list[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in values)


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


def _features(batch: Floats, context: Floats, prompt: Floats) -> Floats:
    size, new = np.log(np.maximum(batch, 1.0)), np.log1p(np.maximum(prompt, 0.0))
    hats = [np.interp(size, _KNOTS, one) for one in np.eye(len(_KNOTS))]
    of_prompt = [np.interp(new, _PROMPT_KNOTS, one) for one in np.eye(len(_PROMPT_KNOTS))[1:]]
    return np.stack([*hats, batch * context / 1e4, context / 1e3, *of_prompt], axis=1)


def observe(
    model: ExpectedTime,
    duration_ns: Floats,
    batch: Floats | None = None,
    context: Floats | None = None,
    prompt: Floats | None = None,
    *,
    coverage: float = 0.99,
) -> tuple[Expectation, ExpectedTime]:
    """What was expected of a block of cycles in order of time, and the model that has learned from them.

    `batch` is the number of requests, `context` their mean length in tokens, and `prompt` the number of prompt tokens
    that were computed in a cycle (none if not given). Where batch or context is not given, the level alone is expected.
    """
    log_time = np.log(duration_ns)
    if batch is None or context is None or not len(log_time):
        return _at_level(model, log_time, log_time, _levels(model.recent, log_time), coverage)
    work = _features(batch, context, np.zeros(len(batch)) if prompt is None else prompt)
    parts, start = [], 0
    while start < len(log_time):
        part = slice(start, start + LEARN_CYCLES - len(model.pending))
        residual, near = _residual(model, work[part], log_time[part])
        level = _levels(model.recent, residual)
        now, model = _at_level(model, log_time[part], residual, level, coverage, near)
        parts.append(now)
        # Work that is not known may be learned before there is a level, and other work is not.
        level = np.where(np.isnan(residual), np.nan_to_num(level), level)
        model = _learn(model, work[part], log_time[part] - level)
        start = part.stop
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in Expectation.__dataclass_fields__)
    return Expectation(*columns), model


@dataclass(frozen=True)
class _Near:
    """Of cycles whose batch is new and near to a known one: the residual as if it were that one, else not a number.

    `slack` is by how much more the batch may explain; it is negative where it is smaller than the known one.
    """

    residual: Floats
    slack: Floats


def _residual(model: ExpectedTime, work: Floats, log_time: Floats) -> tuple[Floats, _Near]:
    """Logarithms of times without what their work explains; not a number where the work is unlike all before."""
    n = len(log_time)
    if not model.information:
        return np.full(n, np.nan), _Near(np.full(n, np.nan), np.zeros(n))
    near, slack = _nearest(np.array(model.information), work)
    rows = np.concatenate([work, near])
    spread = np.linalg.solve(np.array(model.information) + _PRIOR, rows.T).T
    precise = min((_PRECISE / model.scale) ** 2, _MOST_OF_PRECISE)
    is_known = (spread * rows).sum(axis=1) <= max(_MOST_LEVERAGE, precise)
    residual = np.clip(np.tile(log_time, 2) - spread @ np.array(model.moments), -MOST_LOG, MOST_LOG)
    own, of_near = np.where(is_known, residual, np.nan).reshape(2, n)
    return own, _Near(np.where(np.isnan(own), of_near, np.nan), slack)


def _nearest(information: Floats, work: Floats) -> tuple[Floats, Floats]:
    """Each cycle's work with the mean batch of those learned that are near to it, and the logarithm of their ratio."""
    n_knots = len(_KNOTS)
    hats = work[:, :n_knots]
    size = hats @ _KNOTS
    # Hats of a cycle sum to 1 and have its logarithm as mean, so sums over learned cycles have their mean.
    learned = information[:n_knots, :n_knots].sum(axis=1)
    is_near = np.abs(np.arange(n_knots) - hats.argmax(axis=1)[:, None]) <= 1
    weights = np.where(is_near, learned, 0.0)
    total = weights.sum(axis=1)
    mean = np.where(total > 0, weights @ _KNOTS / np.maximum(total, 1e-300), size)
    near = work.copy()
    near[:, :n_knots] = np.stack([np.interp(mean, _KNOTS, one) for one in np.eye(n_knots)], axis=1)
    near[:, n_knots] *= np.exp(mean - size)
    return near, size - mean


def _levels(recent: tuple[float, ...], residual: Floats) -> Floats:
    """Before each cycle the median of the last known residuals; not a number where there are few."""
    is_known = ~np.isnan(residual)
    # The level before a cycle is the median up to the one before it.
    levels = np.concatenate(
        [
            last_medians(recent[:-1], np.array(recent[-1:]), LEVEL_CYCLES, _LEAST_CYCLES) if recent else [np.nan],
            last_medians(recent, residual[is_known], LEVEL_CYCLES, _LEAST_CYCLES),
        ]
    )
    return np.asarray(levels[np.cumsum(is_known) - is_known], dtype=np.float64)


def _at_level(
    model: ExpectedTime, log_time: Floats, residual: Floats, level: Floats, coverage: float, near: _Near | None = None
) -> tuple[Expectation, ExpectedTime]:
    """What is expected where residuals are known, by their level; and the model that has these."""
    error = residual - level
    if near is not None:
        off = near.residual - level
        error = np.where(
            np.isnan(residual), off - np.clip(off, np.minimum(near.slack, 0.0), np.maximum(near.slack, 0.0)), error
        )
    margins = np.quantile(model.errors, [(1 - coverage) / 2, (1 + coverage) / 2]) if model.errors else [np.nan] * 2
    expected = np.exp(np.minimum(log_time - error, MOST_LOG))
    after = replace(
        model,
        recent=(model.recent + tuple(residual[~np.isnan(residual)].tolist()))[-LEVEL_CYCLES:],
        errors=(model.errors + tuple(error[~np.isnan(error)].tolist()))[-_INTERVAL_CYCLES:],
    )
    log = residual if near is None else np.where(np.isnan(residual), error + level, residual)
    return Expectation(expected, expected * np.exp(margins[0]), expected * np.exp(margins[1]), error, log), after


def _learn(model: ExpectedTime, work: Floats, time: Floats) -> ExpectedTime:
    """The model with these cycles pending, or learned from if there are enough. Times have no level."""
    rows = np.column_stack([work, time])[~np.isnan(time)]
    pending = model.pending + tuple(map(tuple, rows.tolist()))
    if len(pending) < LEARN_CYCLES:
        return replace(model, pending=pending)
    work, time = np.array(pending)[:, :-1], np.array(pending)[:, -1]
    before = np.array(model.information) if model.information else np.zeros((_FEATURES, _FEATURES))
    earlier = np.array(model.moments) if model.moments else np.zeros(_FEATURES)
    weights = np.ones(len(time))
    for _ in range(_ROUNDS):
        weighted = work * weights[:, None]
        information, moments = before + weighted.T @ work, earlier + weighted.T @ time
        residual = time - work @ np.linalg.solve(information + _PRIOR, moments)
        scale = max(1.4826 * float(np.median(np.abs(residual))), _LEAST_SCALE)
        weights = 1 / (1 + (residual / (_HALF_WEIGHT * scale)) ** 2)
    share = min(1.0, _MOST_CYCLES / float(information[: len(_KNOTS), : len(_KNOTS)].sum()))
    return replace(
        model,
        information=_rows((share * information).tolist()),
        moments=tuple((share * moments).tolist()),
        pending=(),
        scale=scale,
    )
