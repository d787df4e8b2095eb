from __future__ import annotations

import pytest

from stepscope.readers._ranks import rank_in


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/rank3/trace.json", 3),
        ("rank-12.json", 12),
        ("rank1/rank_2.json", 2),
        ("RANK[0].json", None),
        ("drank7.json", None),
        ("trace.json", None),
        ("rank99999999999.json", None),
        ("rank2147483648.json", None),
    ],
)
def test_the_last_rank_in_a_path_counts(path, rank):
    assert rank_in(path) == rank
