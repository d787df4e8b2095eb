from __future__ import annotations

import numpy as np

from stepscope.reports._outliers import outlier_costs
from stepscope.reports._summary import Scope


def scope_of(*lengths: int) -> Scope:
    ends = np.cumsum(lengths)
    return Scope(ends - lengths, ends, tuple(range(10, 10 + len(lengths))))


def test_a_step_far_slower_than_the_median_costs_what_it_took_more() -> None:
    scope = scope_of(100, 100, 300, 100, 140)
    parts = {"computation": np.array([80, 80, 90, 80, 80]), "idle": np.array([20, 20, 210, 20, 60])}
    (cost,) = outlier_costs(parts, scope)
    assert (cost.kind, cost.ns) == ("outlier", 240)
    assert cost.title == "Step 12 took 300 ns, 3.0 × the median"
    assert cost.details == ("190 ns of the difference is idle; 1 other step took more than 1.3 × the median",)


def test_the_first_step_may_be_warm_up() -> None:
    (cost,) = outlier_costs({"idle": np.array([200, 0, 0, 0])}, scope_of(300, 100, 100, 100))
    assert "warm-up" in cost.details[0]


def test_even_or_few_steps_cost_nothing() -> None:
    assert outlier_costs({"idle": np.zeros(4)}, scope_of(100, 110, 90, 100)) == []
    assert outlier_costs({"idle": np.zeros(3)}, scope_of(100, 900, 100)) == []
    assert outlier_costs({"idle": np.zeros(4)}, scope_of(0, 0, 0, 0)) == []
