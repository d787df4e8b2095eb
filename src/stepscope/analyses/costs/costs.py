"""What a framework operator has to compute and to move, by its name and the arguments that it was called with."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from stepscope.analyses.costs.cost_arguments import Arguments, Unclear
from stepscope.analyses.costs.cost_engines import PAGED, fused, is_fused, paged_attention
from stepscope.analyses.costs.cost_matrix import MATRIX, Cost
from stepscope.analyses.costs.cost_rows import ROWS

FORMULAS = {**MATRIX, **ROWS}


def has_formula(name: str) -> bool:
    """Whether the cost of an operator of that name can be known."""
    return name in FORMULAS or name in PAGED or is_fused(name)


@lru_cache(1 << 16)
def cost_of(
    name: str, shapes: str | None, types: str | None, values: str | None, annotation: str | None = None
) -> Cost | str:
    """The cost of a call, or why it is not known; `shapes`, `types` and `values` are those of the table `ops`.

    `annotation` is the name of the range around it that tells how long the requests of an engine's pass are.

    Source: textbook counts, as TraceLens's performance models make them, so that the two can be compared.

    >>> cost_of("aten::mm", "[[8,4],[4,2]]", '["float","float"]', None)
    Cost(family='gemm', flop=128, nbytes=224, precision='fp32', matrix=True)
    >>> cost_of("aten::unknown", None, None, None)
    'no formula for this operator'
    """
    if not has_formula(name):
        return "no formula for this operator"
    try:
        arguments = Arguments.parse(shapes, types, values)
        if name in PAGED:
            return paged_attention(arguments, *PAGED[name], annotation)
        cost = FORMULAS[name](arguments) if name in FORMULAS else fused(name, arguments)
        return cost if cost.written is None else replace(cost, largest=_largest(arguments, cost.nbytes - cost.written))
    except Unclear as error:
        return str(error)
    except (IndexError, ValueError, ZeroDivisionError):  # fewer or other arguments than this operator takes
        return "its recorded arguments are not those that it takes"


def _largest(arguments: Arguments, read: float) -> float:
    """Bytes of the largest tensor that is read; `read` bounds it, as a target among the arguments is only written."""
    sizes = [arguments.nbytes(at) for at in range(len(arguments.shapes)) if arguments.has(at)]
    return min(max(sizes, default=0), read)
