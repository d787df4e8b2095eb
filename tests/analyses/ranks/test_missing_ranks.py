from __future__ import annotations

import pytest

from stepscope.analyses.ranks.missing_ranks import missing_of


@pytest.mark.parametrize(
    ("ranks", "sizes", "found"),
    [
        ([0, 1, 3], [4, 4, 4], (4, (2,))),
        ([0, 1, 2, 3], [4, None], (4, ())),
        ([0, 5], [None, None], (None, ())),  # more gaps than numbers: these are not the ranks of one job
        ([0, 1, 2, 4], [None], (None, (3,))),
        ([0, 9], [4], (None, ())),  # a rank that the job cannot have
        ([], [4], (None, ())),
        ([1], [8, 8, 2], (8, (0, 2, 3, 4, 5, 6, 7))),
    ],
)
def test_ranks_without_a_trace_are_missing(ranks, sizes, found):
    assert missing_of(ranks, sizes) == found
