"""Costs of calls written down as literal arguments."""

from __future__ import annotations

import json

from stepscope.analyses.costs.op_costs import cost_of


def cost(name, *arguments):
    """The cost of a call; an argument is a shape with its type, or a plain value."""
    shapes = [list(a[0]) if isinstance(a, tuple) else [] for a in arguments]
    types = [
        a[1] if isinstance(a, tuple) else ("ScalarList" if str(a).startswith("[") else "Scalar") for a in arguments
    ]
    values = ["" if isinstance(a, tuple) else str(a) for a in arguments]
    types = ["" if a is None else t for a, t in zip(arguments, types, strict=True)]
    values = ["" if a is None else v for a, v in zip(arguments, values, strict=True)]
    return cost_of(name, json.dumps(shapes), json.dumps(types), json.dumps(values))
