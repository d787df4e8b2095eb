"""From a function and cases to a Bench: make arguments, compare results, then measure."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.errors import StepscopeError
from stepscope.timing._arrays import ArraySpec, made, specs_in
from stepscope.timing._equal import difference
from stepscope.timing._function import blamed, bound, framework_of
from stepscope.timing._measure import Job, call_overhead_ns, clock_for, measure
from stepscope.timing._result import Bench, Outcome, described, result
from stepscope.timing._sweep import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.timing._equal import Difference
    from stepscope.timing._function import Function
    from stepscope.timing._measure import Budget


def bench(
    function: Function,
    reference: Function | None = None,
    *,
    cases: Sequence[Case] = (Case({}, {}),),
    budget: Budget,
    tolerances: Mapping[str, tuple[float, float]] | None = None,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Bench:
    """Measure the function, and the reference in turn with it, in each case.

    Both get their own arrays of the same numbers, each in the library that it works with. Arrays without a device of
    their own are on `device`. Each function is called once before it is measured, and the two results are compared.
    `progress` gets the number of finished cases and of all cases. The garbage collector is not touched.

    Raises FunctionFailed if a function raises, StepscopeError if arguments cannot be made or passed, or if results
    differ in shape.
    """
    functions = [function] if reference is None else [function, reference]
    outcomes = []
    for number, case in enumerate(cases, 1):
        if progress is not None:
            progress(number - 1, len(cases))
        where = f"case {number} of {len(cases)} ({_described(case)})" if len(cases) > 1 else ""
        outcomes.append(_outcome(functions, case, budget, tolerances, device, where))
    labels = [one.label for one in functions]
    other = None if reference is None else labels[1]
    return result(labels[0], other, outcomes, budget, gc_enabled=gc.isenabled())


def _described(case: Case) -> str:
    """What distinguishes a case: its variables, and arguments that no variable shapes."""
    numbers = {n: v for n, v in case.arguments.items() if not (case.variables and isinstance(v, ArraySpec))}
    return described({**case.variables, **numbers})


def _outcome(
    functions: Sequence[Function],
    case: Case,
    budget: Budget,
    tolerances: Mapping[str, tuple[float, float]] | None,
    device: str | None,
    where: str,
) -> Outcome:
    prepared = [_prepared(function, case, device, where) for function in functions]
    compared = _compared([one.result for one in prepared], tolerances, where) if len(prepared) > 1 else None
    jobs = [one.job for one in prepared]
    overheads = [one.overhead_ns for one in prepared]
    prepared.clear()  # results may be large, and the memory is the functions'
    timings = measure(jobs, budget, overheads)
    return Outcome(case, timings, tuple(job.clock for job in jobs), compared)


class _Prepared(msgspec.Struct, frozen=True):
    """A function with the arguments of a case, called once."""

    job: Job
    overhead_ns: float
    result: Any


def _prepared(function: Function, case: Case, device: str | None, where: str) -> _Prepared:
    # The function's library only matters if arrays have to be made.
    unsaid = any(spec.library is None for value in case.arguments.values() for spec in specs_in(value))
    library = framework_of(function) if unsaid else "numpy"
    arguments = {name: made(value, name, library=library, device=device) for name, value in case.arguments.items()}
    args, kwargs = bound(function, arguments)
    call = partial(function.call, *args, **kwargs)
    what = f"{function.label}, {where}," if where else function.label
    with blamed(what):
        given = call()
    clock = clock_for([args, kwargs, given])
    return _Prepared(Job(call, clock, what), call_overhead_ns(args, kwargs), given)


def _compared(results: Sequence[Any], tolerances: Mapping[str, tuple[float, float]] | None, where: str) -> Difference:
    try:
        return difference(results[0], results[1], tolerances)
    except StepscopeError as error:
        raise StepscopeError(f"{where}: {error.message}" if where else error.message, error.hint) from None
