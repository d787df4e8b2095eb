from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.ranks.graph import solved


def edges(groups: list[list[int]], truth: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """What members say who are above their group's own, arbitrary level."""
    member = np.array([m for members in groups for m in members])
    group = np.array([g for g, members in enumerate(groups) for _ in members])
    level = rng.normal(0, 100, len(groups))
    return member, group, truth[member] - level[group]


@given(st.integers(0, 1000))
def test_overlapping_groups_give_every_member_its_value(seed):
    rng = np.random.default_rng(seed)
    groups = [[0, 1, 2], [2, 3], [3, 4, 5], [0, 5]]
    truth = rng.normal(0, 10, 6)
    member, group, value = edges(groups, truth, rng)
    found = solved(member, group, value, np.ones(member.size), 6, 4)
    assert found.values == pytest.approx(truth - np.median(truth), abs=1e-6)
    assert set(found.parts.tolist()) == {found.parts[0]}


def test_a_long_chain_is_solved():
    n = 300
    truth = np.cumsum(np.ones(n))
    member, group, value = edges([[i, i + 1] for i in range(n - 1)], truth, np.random.default_rng(0))
    found = solved(member, group, value, np.ones(member.size), n, n - 1)
    assert found.values == pytest.approx(truth - np.median(truth), abs=1e-4)


def test_parts_without_a_common_group_have_levels_of_their_own():
    truth = np.array([0.0, 2.0, 100.0, 104.0])
    member, group, value = edges([[0, 1], [2, 3]], truth, np.random.default_rng(0))
    found = solved(member, group, value, np.ones(4), 5, 2)
    assert found.values == pytest.approx([-1.0, 1.0, -2.0, 2.0, 0.0])
    assert len(set(found.parts.tolist())) == 3
    assert np.isinf(found.errors).tolist() == [False, False, False, False, True]


def test_an_edge_far_off_counts_little():
    member, group = np.tile(np.arange(3), 5), np.repeat(np.arange(5), 3)
    value = np.tile([0.0, 5.0, -5.0], 5)
    value[1] += 1000.0
    found = solved(member, group, value, np.ones(15), 3, 5)
    assert found.values == pytest.approx([0.0, 5.0, -5.0], abs=12.0)
