from __future__ import annotations

from jobs import part

from stepscope.analyses.ranks.comms import Comm
from stepscope.analyses.ranks.groups import Group, groups_of


def groups(*comms: tuple[Comm, ...], ranks: tuple[int, ...] | None = None) -> tuple[tuple[Group, ...], list[list[int]]]:
    parts = [part(i, (0, 1), comms=own) for i, own in enumerate(comms)]
    found, at = groups_of(parts, ranks or range(len(parts)))
    return found, [a.tolist() for a in at]


def test_ranks_that_name_the_same_members_share_a_group():
    one, other = Comm("1", "tp", 2, (0, 1)), Comm("1", None, 2, (2, 3))
    found, at = groups((one,), (one,), (other,), (other,))
    assert [(g.name, g.description, g.members, g.present) for g in found] == [
        ("1", "tp", (0, 1), (0, 1)), ("1", None, (2, 3), (2, 3)),
    ]  # fmt: skip
    assert at == [[0], [0], [1], [1]]


def test_members_without_a_trace_count_for_the_size():
    found, _ = groups((Comm("0", None, 4, (0, 1, 2, 3)),), (Comm("0", None, 4, (0, 1, 2, 3)),))
    assert (found[0].size, found[0].present, found[0].ranks) == (4, (0, 1), (0, 1, 2, 3))


def test_a_name_alone_makes_a_group_where_the_list_of_ranks_is_cut_short():
    found, at = groups(*[(Comm("0", None, 64),)] * 3)
    assert len(found) == 1
    assert (found[0].size, found[0].ranks) == (64, (0, 1, 2))
    assert at == [[0]] * 3


def test_a_nameless_group_as_large_as_the_job_is_that_of_all():
    found, _ = groups(*[(Comm(size=3),)] * 3)
    assert [(g.name, g.ranks) for g in found] == [("0–2", (0, 1, 2))]
    found, _ = groups(*[(Comm(),)] * 2)
    assert found[0].ranks == (0, 1)


def test_smaller_nameless_groups_follow_from_places_in_them():
    blocks = [(Comm(size=2, place=r % 2),) for r in range(4)]
    assert [g.ranks for g in groups(*blocks)[0]] == [(0, 1), (2, 3)]
    strided = [(Comm(size=2, place=r // 2),) for r in range(4)]
    assert [g.ranks for g in groups(*strided)[0]] == [(0, 2), (1, 3)]


def test_two_nameless_groups_of_a_rank_are_apart():
    both = [(Comm(size=2, place=r % 2), Comm(size=2, place=r // 2, ordinal=1)) for r in range(4)]
    assert [g.ranks for g in groups(*both)[0]] == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_places_that_fit_no_layout_leave_ranks_alone():
    odd = [(Comm(size=2, place=p),) for p in (0, 0, 1, 0)]
    assert [g.ranks for g in groups(*odd)[0]] == [(0,), (1,), (2,), (3,)]
    assert groups(*odd)[0][0].size == 2
