from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.result_tables import ATTRIBUTION
from stepscope.exports.latencyprism._comparison import (
    COMPARED,
    compared,
    exact_tails,
    mann_whitney,
    student_tails,
    welch,
)


def rows(*values, device="gpu3", metric="m"):
    """Rows of one function: cycle, beta, mu."""
    frame = pl.DataFrame(values, schema=["cycle", "recorded_beta", "recorded_mu"], orient="row").with_columns(
        pl.col("recorded_beta", "recorded_mu").cast(pl.Float64), name=pl.lit("f"), metric=pl.lit(metric, pl.String),
        device=pl.lit(device, pl.String),
    )  # fmt: skip
    return ATTRIBUTION.conform(frame)


NONE = ATTRIBUTION.empty()


def only(first, second):
    found = compared(first, second)
    assert found.columns == list(COMPARED.dtypes)
    assert found.height == 1
    return found.row(0, named=True)


def test_means_differences_scores():
    row = only(rows((1, 10, 0), (2, 12, 0), (3, 14, 3)), rows((1, 20, 8), (2, 20, 8)))
    assert [row[name] for name in ("beta_1", "beta_2", "beta_delta", "beta_z")] == [12, 20, 8, 4]
    assert [row[name] for name in ("mu_1", "mu_2", "mu_delta")] == [1, 8, 7]
    assert row["mu_z"] == pytest.approx(7 / 3**0.5)
    log_spread = 2 * math.log(2) / 3**0.5
    log_z = (math.log(9) - 2 * math.log(2) / 3) / log_spread
    assert row["log_mu_z"] == pytest.approx(log_z)
    assert row["score"] == pytest.approx(8 * (4 + log_z))
    assert row["beta_u"] == pytest.approx(0.1386, abs=1e-4)  # the two that are alike make it the normal one
    assert 0 < row["beta_p"] < 0.05


def test_what_one_run_lacks_is_zero_there():
    row = only(NONE, rows((1, 20, 8), (2, 21, 8)))
    assert [row[name] for name in ("beta_1", "beta_delta", "beta_z", "beta_p", "beta_u", "score")] == [
        0,
        20.5,
        0,
        1,
        1,
        0,
    ]
    row = only(rows((1, 20, 8), (2, 22, 8)), NONE)
    assert row["beta_z"] == pytest.approx(-21 / 2**0.5)
    assert (row["mu_z"], row["mu_p"]) == (0, 1)


def test_without_any_spread_there_is_no_z_and_p_is_none_or_nothing():
    row = only(rows((1, 0.1, 5), (2, 0.1, 5), (3, 0.1, 5)), rows((1, 0.1, 6), (2, 0.1, 6)))
    assert (row["beta_delta"], row["beta_z"], row["mu_z"]) == (0, 0, 0)
    assert math.isnan(row["beta_p"])
    assert row["mu_p"] == 0


def test_a_single_row_has_no_spread():
    row = only(rows((1, 10, 5)), rows((1, 20, 6), (2, 30, 6)))
    assert (row["beta_z"], row["beta_p"], row["beta_u"]) == (0, 1, 1)


def test_welch_counts_cycles_and_the_u_test_rows():
    twice = rows((1, 10, 5), (1, 11, 5))
    row = only(twice, rows((1, 20, 6), (2, 30, 6)))
    assert row["beta_p"] == 1
    assert row["beta_u"] == pytest.approx(1 / 3)


def test_rows_without_a_metric_or_function_do_not_count():
    unnamed = rows((1, 1, 1)).with_columns(name=pl.lit(None, ATTRIBUTION.dtypes["name"]))
    both = pl.concat([rows((1, 1, None), metric=None), unnamed])
    assert compared(both, both).is_empty()


def test_a_metric_that_is_no_number_is_zero():
    assert only(rows((1, 1, None), (2, 1, 4)), rows((1, 1, 2)))["mu_1"] == 2


def test_devices_have_their_published_names():
    parts = [rows((1, 1, 1), device=device) for device in ("host", "gpu3", "gpu3 (virtual)", None)]
    found = compared(pl.concat(parts), NONE)
    assert found["device"].to_list() == ["GPU 3", "GPU 3 (virtual)", "Host", "N/A"]


def test_the_most_suspicious_come_first_and_equal_ones_by_name():
    first = pl.concat([rows((1, 10, 1), (2, 12, 1), metric=name) for name in "cba"])
    second = pl.concat([rows((1, 9 if name == "b" else 20, 1), metric=name) for name in "abc"])
    assert compared(first, second)["metric"].to_list() == ["a", "c", "b"]


def group(mean, sd, n):
    return np.array([mean]), np.array([sd]), np.array([n])


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (1.0, 1.0, 0.5),  # 1 − 2 atan(t)/π
        (2.0, 2.0, 1 - 2 / 6**0.5),  # 1 − t / √(2 + t²)
        (2.0, 3.0, 0.13932597),
        (-0.5, 10.5, 0.6273873),
        (12.7, 1.0, 0.05002433),
        (1.959964, 1e9, 0.05),
        (0.0, 5.0, 1.0),
        (np.inf, 5.0, 0.0),
    ],
)
def test_tails_of_students_t(t, freedom, p):
    assert student_tails(np.array([t]), np.array([freedom]))[0] == pytest.approx(p, abs=5e-8)


def test_a_tail_of_nothing_is_nothing():
    assert np.isnan(student_tails(np.array([np.nan]), np.ones(1)))[0]
    assert student_tails(np.empty(0), np.empty(0)).size == 0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.1, 1e6))
def test_a_larger_t_has_no_larger_tail(t, more, freedom):
    near, far = student_tails(np.array([t, t + more]), np.array([freedom, freedom]))
    assert 0 <= far <= near + 1e-9 <= 1 + 1e-9


def test_welch_compares_means_of_unequal_spread():
    assert welch(group(1.0, 0.5, 4), group(2.0, 0.25, 6))[0] == pytest.approx(0.020626046957456696)


def test_welch_without_spread_and_without_members():
    assert np.isnan(welch(group(1.0, 0.0, 4), group(1.0, 0.0, 6)))[0]
    assert welch(group(1.0, 0.0, 4), group(2.0, 0.0, 6))[0] == 0
    assert welch(group(1.0, 0.0, 1), group(2.0, 1.0, 6))[0] == 1
    assert welch(group(0.0, 0.0, 0), group(2.0, 1.0, 6))[0] == 1
    assert 0 < welch(group(1.0, 0.0, 4), group(2.0, 1.0, 6))[0] < 1


@pytest.mark.parametrize(("n_1", "n_2"), [(1, 1), (2, 3), (3, 3), (2, 7), (4, 5)])
def test_exact_tails_are_those_of_all_orders(n_1, n_2):
    places = range(n_1 + n_2)
    found = [sum(chosen) - n_1 * (n_1 - 1) // 2 for chosen in combinations(places, n_1)]
    expected = [np.mean(np.array(found) >= k) for k in range(n_1 * n_2 + 1)]
    assert exact_tails(n_1, n_2) == pytest.approx(np.array(expected))


def test_exact_tails_hold_numbers_that_no_double_does():
    tails = exact_tails(8, 400)
    assert tails[0] == 1
    assert tails[-1] == pytest.approx(1.86e-17, rel=1e-2)  # 1 / (408 over 8)
    assert np.all(np.diff(tails) <= 0)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ([1, 2, 3], [4, 5, 6, 7], 0.05714285714285714),  # exact
        ([1, 2, 2], [2, 5, 6, 7], 0.09872864789482493),  # ties: normal
        (range(10), np.arange(10) + 3.5, 0.031209012771740218),  # more than 8: normal
        ([1, 1], [1, 1, 1], 1.0),
        ([1], [2, 3], 1.0),
    ],
)
def test_the_u_test(first, second, p):
    both = np.concatenate([first, second]).astype(float)
    wins = np.sum(np.array(first)[:, None] > np.array(second)[None, :])
    u = wins + np.sum(np.array(first)[:, None] == np.array(second)[None, :]) / 2
    counts = np.unique(both, return_counts=True)[1].astype(float)
    for one, sizes in ((u, (len(first), len(second))), (len(first) * len(second) - u, (len(second), len(first)))):
        found = mann_whitney(
            np.array([float(one)]), *(np.array([n]) for n in sizes), np.array([np.sum(counts**3 - counts)])
        )
        assert found[0] == pytest.approx(p)
