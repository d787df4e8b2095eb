"""Times a Python callable, compares its result with that of a reference: `stepscope.bench` and `stepscope bench`.

Not called `bench`: a package of that name would take the place of the function `stepscope.bench`.
"""

from __future__ import annotations

from stepscope.timing._bench import bench
from stepscope.timing._function import is_a_name, own_traceback, resolve
from stepscope.timing._measure import Budget
from stepscope.timing._result import BENCH, Bench, text
from stepscope.timing._sweep import cases_of, read_sweep

__all__ = [
    "BENCH",
    "Bench",
    "Budget",
    "bench",
    "cases_of",
    "is_a_name",
    "own_traceback",
    "read_sweep",
    "resolve",
    "text",
]
