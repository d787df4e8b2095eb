"""Real dumps: two injected faults on 16 ranks with NCCL, a hanging and a healthy job with gloo."""

from __future__ import annotations

import pytest

from stepscope import show


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        ("nccl-16-ranks/lock_gil_1st", [9, 14]),
        ("nccl-16-ranks/gpu_error_2nd", [9, 14]),
        ("gloo/slow_rank2_hangs_at_step12", [2]),
        ("gloo/ok", []),
    ],
)
def test_the_injected_ranks_are_named_and_no_others(shared, case, ranks):
    assert show(shared / "flight-recorder" / case, "hang")["rank"].drop_nulls().to_list() == ranks
