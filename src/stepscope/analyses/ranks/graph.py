"""Differences between members of overlapping groups, put together into one value for each of all members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_MOST_TURNS = 2_000
_ROUNDS = 5
_FAR = 3.0  # standard errors: an edge farther off than that counts less


@dataclass(frozen=True, slots=True)
class Solved:
    """A value for each member, its standard error, and the connected part of the graph that it belongs to.

    Within a part the median is 0; between parts nothing is known.
    """

    values: Floats
    errors: Floats
    parts: Ints


def solved(member: Ints, group: Ints, value: Floats, error: Floats, n_members: int, n_groups: int) -> Solved:
    """Least squares over edges: an edge says that a member is `value` ± `error` above its group's own level.

    Edges far from the fit count less (Huber's weights). Members without an edge are parts of their own, with value 0
    and an infinite error. The system is a graph's Laplacian, solved by conjugate gradients.
    """
    parts = _parts(member, group, n_members, n_groups)
    weight: Floats = 1.0 / np.square(error)
    levels: Floats = np.zeros(n_members + n_groups)
    nodes = member, n_members + group
    for _ in range(_ROUNDS):
        levels = _least_squares(nodes, value, weight, levels, parts)
        off = np.abs(value - levels[nodes[0]] + levels[nodes[1]]) / error
        weight = np.minimum(1.0, _FAR / np.maximum(off, 1e-12)) / np.square(error)
    values = levels[:n_members].copy()
    own = parts[:n_members]
    order = np.argsort(own, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(own[order])) + 1):
        values[rows] -= np.median(values[rows])
    held = np.bincount(member, weight, minlength=n_members)
    with np.errstate(divide="ignore"):
        return Solved(values, 1.0 / np.sqrt(held), own)


def _least_squares(nodes: tuple[Ints, Ints], value: Floats, weight: Floats, start: Floats, parts: Ints) -> Floats:
    size = start.size
    a, b = nodes

    def times(x: Floats) -> Floats:
        flow = weight * (x[a] - x[b])
        return _sums(a, flow, size) - _sums(b, flow, size)

    pull = weight * value
    target = _sums(a, pull, size) - _sums(b, pull, size)
    diagonal = _sums(a, weight, size) + _sums(b, weight, size)
    diagonal[diagonal == 0] = 1.0
    x = start.copy()
    rest = target - times(x)
    step = rest / diagonal
    way = step.copy()
    gain = float(rest @ step)
    enough = 1e-20 * max(float(target @ (target / diagonal)), 1e-300)
    for _ in range(_MOST_TURNS):
        if gain <= enough:
            break
        along = times(way)
        length = gain / float(way @ along)
        x += length * way
        rest -= length * along
        step = rest / diagonal
        before, gain = gain, float(rest @ step)
        way = step + gain / before * way
    # The level of a whole part is free: the mean of its members is taken for zero, which keeps numbers small.
    mean: Floats = np.bincount(parts, x) / np.bincount(parts)
    centred: Floats = x - mean[parts]
    return centred


def _sums(at: Ints, values: Floats, size: int) -> Floats:
    return np.bincount(at, values, minlength=size).astype(np.float64, copy=False)


def _parts(member: Ints, group: Ints, n_members: int, n_groups: int) -> Ints:
    """Number of the connected part of each member and group, from 0."""
    label = np.arange(n_members + n_groups)
    nodes = n_members + group
    while True:
        least = label.copy()
        low = np.minimum(label[member], label[nodes])
        np.minimum.at(least, member, low)
        np.minimum.at(least, nodes, low)
        least = least[least]
        if np.array_equal(least, label):
            return np.unique(label, return_inverse=True)[1].ravel()
        label = least
