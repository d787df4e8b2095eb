from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_launches_of import percents, spans_of

from stepscope.analyses.kernels.kernel_similarity import ANALYSIS, KERNEL_SIMILARITY, _absorbed, kernel_similarity
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.trace import Meta, Trace

FMA = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed"
#: Three launches alike, one unlike, two that use nothing.
SPANS_6 = spans_of(("a", 10), ("b", 30), ("a", 20), ("copy", 25), ("idle", 10), ("idle", 5))
METRICS_6 = percents(sm=[50, 48, 80, 0, 0, 0], dram=[10, 11, 16, 90, 0, 0], **{FMA: [40, 39, 64, None, 0, 0]})


def test_every_launch_has_a_representative_the_longest_of_its_like() -> None:
    got = kernel_similarity(SPANS_6, METRICS_6)
    assert got.select("representative_id", "name", "calls", "n_names", "total_ns", "share_ratio").rows() == [
        (1, "b", 3, 2, 60, 0.6), (3, "copy", 1, 1, 25, 0.25), (4, "idle", 2, 1, 15, 0.15),
    ]  # fmt: skip
    assert got["cumulative_ratio"].to_list() == pytest.approx([0.6, 0.85, 1.0])
    assert 0 < got["max_distance"][0] <= 0.05
    assert got["n_counters"].to_list() == [3] * 3


def test_casio_goes_by_order_and_has_none_for_the_last_group() -> None:
    got = kernel_similarity(SPANS_6, METRICS_6, method="casio")
    assert got.select("representative_id", "calls").rows() == [(0, 3)]
    alike = kernel_similarity(SPANS_6.head(3), METRICS_6, method="casio")
    assert alike.is_empty()


def test_launches_without_any_counter_are_left_out() -> None:
    metrics = percents(sm=[50, None], dram=[10, None], **{FMA: [40, None]})
    got = kernel_similarity(spans_of(("a", 10), ("b", 30)), metrics)
    assert got.select("representative_id", "calls", "share_ratio").rows() == [(0, 1, 0.25)]


def test_wrong_options_and_lacking_data_are_refused() -> None:
    with pytest.raises(StepscopeError, match="distance is 1"):
        kernel_similarity(SPANS_6, METRICS_6, distance=1)
    with pytest.raises(MissingTable, match="at least 3 of the 17"):
        kernel_similarity(SPANS_6, percents(sm=[1], dram=[1]))


def casio(vectors: np.ndarray, distance: float) -> list[int]:
    """The greedy method in plain words; row numbers of the representatives."""
    length = np.linalg.norm(vectors, axis=1)
    absorbed, found = set(), []
    for i in range(len(vectors)):
        if i in absorbed:
            continue
        with np.errstate(all="ignore"):
            apart = 1 - vectors @ vectors[i] / (length * length[i])
        apart[i] = apart[i] if length[i] == 0 else 0
        absorbed |= {j for j in range(len(vectors)) if apart[j] <= distance}
        if any(apart[j] > distance for j in range(len(vectors)) if j not in absorbed):
            found.append(i)
    return found


vectors_of_three = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 5.0, 20.0])] * 3), min_size=1, max_size=25)


@given(vectors_of_three)
def test_casio_agrees_with_a_plain_loop(rows) -> None:
    vectors = np.array(rows)
    got, _ = _absorbed(vectors, np.arange(len(rows)), 0.05, fixed=False)
    assert sorted({int(i) for i in got if i >= 0}) == casio(vectors, 0.05)


@given(vectors_of_three)
def test_fixed_leaves_none_out_and_none_is_far(rows) -> None:
    vectors = np.array(rows)
    got, away = _absorbed(vectors, np.arange(len(rows)), 0.05, fixed=True)
    assert (got >= 0).all()
    assert (away <= 0.05).all()
    assert all(got[i] == i for i in set(got.tolist()))


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "ncu"), {"spans": SPANS_6, "kernel_metrics": METRICS_6})
    assert dict(ANALYSIS(trace).schema) == dict(KERNEL_SIMILARITY.dtypes)
