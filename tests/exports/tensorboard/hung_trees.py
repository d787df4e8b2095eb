"""Hand-made traces with modules, backward operators and arrows between them, and their trees as plain values."""

from __future__ import annotations

from typing import Any

from chrome_traces import Event, arrow, op, read, x

from stepscope.exports.tensorboard._backward import rehung
from stepscope.exports.tensorboard._events import Events, find_launches, read_events
from stepscope.exports.tensorboard._forest import Costs, Forest, costs_of, grow
from stepscope.exports.tensorboard._names import BACKWARD_PREFIX, uses_tensor_cores


def module(name: str, ts: Any, dur: Any, python_id: int, around: int = 0, *, ident: int = 0, **more: Any) -> Event:
    """A call of a module on thread 1."""
    ids = {"Python_id": python_id, "Python_parent_id": around, "Python_module_id": ident}
    return x(f"nn.Module: {name}", ts, dur, "python_function", **ids, **more)


def root(name: str, ts: Any, dur: Any, **more: Any) -> Event:
    """What the autograd engine evaluates, on thread 2."""
    return op(f"{BACKWARD_PREFIX} {name}", ts, dur, **({"tid": 2} | more))


def link(ident: int, forward: Any, backward: Any, cat: str = "fwdbwd") -> tuple[Event, Event]:
    """An arrow from the start of a forward operator to that of a backward operator."""
    return arrow("s", ident, forward, cat=cat), arrow("f", ident, backward, tid=2, cat=cat)


def first_trees(*events: Event, **meta: Any) -> tuple[Events, Forest, Costs]:
    """The trees before anything is hung elsewhere."""
    seen = read_events(read(list(events), **meta))
    launches = find_launches(seen)
    forest = grow(seen, launches)
    return seen, forest, costs_of(seen, launches, forest, seen.where(uses_tensor_cores, launches.work))


def trees(*events: Event, **meta: Any) -> tuple[Events, Forest, Costs]:
    """The trees with backward operators below their modules."""
    seen, forest, costs = first_trees(*events, **meta)
    return seen, *rehung(seen, forest, costs)


def outline(forest: Forest) -> list[str]:
    """The names of all nodes in pre-order, with a dot for each level; without prefixes."""
    depth: list[int] = []
    for parent in forest.parent.tolist():
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    names = [forest.names[i] for i in forest.name.tolist()]
    short = [
        n.replace("nn.Module: ", "").replace(BACKWARD_PREFIX, "eval").replace("CallTreeRoot", "root") for n in names
    ]
    return ["." * d + name for d, name in zip(depth, short, strict=True)]
