from __future__ import annotations

import math

import polars as pl
import pytest

from stepscope.core.schema import ATTRIBUTION
from stepscope.exports.latencyprism._comparison import COMPARED, compared


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
