"""What a framework operator has to compute and to move, by its name and the arguments that it was called with."""

from __future__ import annotations

from functools import lru_cache

from stepscope.analyses._cost_arguments import Arguments, Unclear
from stepscope.analyses._cost_matrix import MATRIX, Cost
from stepscope.analyses._cost_rows import ROWS

FORMULAS = {**MATRIX, **ROWS}


@lru_cache(1 << 16)
def cost_of(name: str, shapes: str | None, types: str | None, values: str | None) -> Cost | str:
    """The cost of a call, or why it is not known; `shapes`, `types` and `values` are those of the table `ops`.

    Source: textbook counts, as TraceLens's performance models make them, so that the two can be compared.

    >>> cost_of("aten::mm", "[[8,4],[4,2]]", '["float","float"]', None)
    Cost(family='gemm', flop=128, nbytes=224, precision='fp32', matrix=True)
    >>> cost_of("aten::unknown", None, None, None)
    'no formula for this operator'
    """
    formula = FORMULAS.get(name)
    if formula is None:
        return "no formula for this operator"
    try:
        return formula(Arguments.parse(shapes, types, values))
    except Unclear as error:
        return str(error)
    except (IndexError, ValueError, ZeroDivisionError):  # fewer or other arguments than this operator takes
        return "its recorded arguments are not those that it takes"
