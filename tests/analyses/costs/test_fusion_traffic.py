from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.costs.fusion_traffic import METHODS, savings_of


def stages(*rows, in_bytes=True):
    """Stages from (run, duration, read, written, largest); read is None where nothing is known."""
    frame = pl.DataFrame(
        rows,
        schema={"run": pl.Int64, "dur_ns": pl.Int64, "read": pl.Float64, "written": pl.Float64, "largest": pl.Float64},
        orient="row",
    )
    known = pl.col("read").is_not_null()
    return frame.with_columns(
        method=pl.when(known).then(pl.lit("shapes")).cast(pl.Enum(METHODS)),
        in_bytes=pl.lit(in_bytes),
        reason=pl.when(~known).then(pl.lit("why")),
    )


def only(frame):
    (row,) = frame.to_dicts()
    return row


def test_at_best_the_largest_input_is_read_and_the_last_output_written():
    row = only(savings_of(stages((0, 100, 64, 64, 64), (0, 150, 128, 64, 64), (0, 50, 64, 8, 64))))
    assert (row["bytes"], row["between_bytes"], row["known_ns"]) == (392, 392 - 64 - 8, 300)
    assert row["saved_high_ns"] == pytest.approx(300 * (392 - 72) / 392)


def test_at_worst_what_is_handed_on_is_not_read_again():
    row = only(savings_of(stages((0, 100, 64, 64, 64), (0, 150, 128, 64, 64), (0, 50, 64, 8, 64))))
    assert row["saved_low_ns"] == pytest.approx(64 / 192 * 150 + 64 / 72 * 50)
    assert (row["method"], row["reason"]) == ("shapes", None)


def test_the_lower_bound_is_never_above_the_upper_one():
    # A slow stage that only reads what it is handed, before a fast one that moves much.
    row = only(savings_of(stages((0, 1, 1, 1, 1), (0, 1000, 1, 0, 1), (0, 1, 1e6, 1e6, 1e6))))
    assert row["saved_low_ns"] <= row["saved_high_ns"]


def test_stages_of_unknown_bytes_part_a_run_and_save_nothing():
    row = only(
        savings_of(
            stages(
                (0, 10, 64, 64, 64),
                (0, 10, 64, 64, 64),
                (0, 30, None, None, None),
                (0, 20, 64, 64, 64),
                (0, 20, 64, 64, 64),
            )
        )
    )
    assert row["saved_high_ns"] == pytest.approx((20 + 40) / 2)
    assert row["saved_low_ns"] == pytest.approx((10 + 20) / 2)
    assert (row["known_ns"], row["bytes"], row["reason"]) == (60, 512, "why")


def test_what_is_saved_is_unknown_where_no_two_in_succession_are_known():
    row = only(savings_of(stages((0, 10, 64, 64, 64), (0, 10, None, None, None), (0, 10, 64, 64, 64))))
    assert row["saved_high_ns"] is row["saved_low_ns"] is row["between_bytes"] is None
    assert (row["bytes"], row["known_ns"]) == (256, 20)
    row = only(savings_of(stages((0, 10, None, None, None), (0, 10, None, None, None))))
    assert row["bytes"] is row["method"] is None
    assert row["known_ns"] == 0


def test_of_work_that_moves_nothing_nothing_can_be_said():
    row = only(savings_of(stages((0, 10, 0, 0, 0), (0, 10, 0, 0, 0))))
    assert row["saved_high_ns"] is row["saved_low_ns"] is None


def test_runs_do_not_mix_and_amounts_that_are_no_bytes_are_not_told_as_such():
    found = savings_of(stages((0, 10, 64, 64, 64), (1, 10, 64, 64, 64), (1, 10, 64, 64, 64), in_bytes=False))
    assert found["saved_high_ns"].to_list() == [None, 10.0]
    assert found["saved_low_ns"].to_list() == [None, 5.0]
    assert found["bytes"].to_list() == [None, None]
    assert found["between_bytes"].to_list() == [None, None]


AMOUNT = st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)))


@given(st.lists(st.tuples(st.integers(0, 9), AMOUNT), min_size=1, max_size=9))
def test_bounds_agree_with_a_walk(rows):
    flat = [(0, t, *(a or (None,) * 3)) for t, a in rows]
    row = only(savings_of(stages(*flat)))
    stretches, now = [], []
    for t, a in [*rows, (0, None)]:
        if a is None:
            stretches.append(now)
            now = []
        else:
            now.append((t, *a))
    low = high = 0.0
    can_save = False
    for stretch in stretches:
        amount, time = sum(r + w for _, r, w, _ in stretch), sum(t for t, *_ in stretch)
        if len(stretch) < 2 or amount == 0:
            continue
        can_save = True
        least = max(largest for *_, largest in stretch) + stretch[-1][2]
        best = time * max(amount - least, 0) / amount
        reread = sum(t * min(w, r) / (r + v) for (_, _, w, _), (t, r, v, _) in pairwise(stretch) if r + v)
        high += best
        low += min(reread, best)
    assert row["saved_high_ns"] == (pytest.approx(high) if can_save else None)
    assert row["saved_low_ns"] == (pytest.approx(low) if can_save else None)
