from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from launches import trace

from stepscope.analyses.ncu_join.launch_matching import launches_of, matched


def groups(timeline, counted):
    """For each launch of the timeline the counted launches that stand for it, and the rule."""
    members, found = matched(launches_of(trace(timeline)), launches_of(trace(counted)))
    of_group = defaultdict(list)
    for group, span in members.rows():
        of_group[group].append(span)
    assert found["span_id"].to_list() == list(range(len(timeline)))
    return [(sorted(of_group[group]) if group is not None else [], rule) for _, group, rule, _ in found.rows()]


def test_the_same_name_grid_and_block():
    counted = [("add", 1, 4, 32), ("add", 1, 4, 64), ("mul", 1, 4, 32), ("add", 1, 4, 32)]
    assert groups([("add", 1, 4, 32), ("mul", 1, 4, 32)], counted) == [([0, 3], "size"), ([2], "size")]


def test_the_nearest_number_of_threads():
    counted = [("add", 1, 1, 32), ("add", 1, 10, 32), ("mul", 1, 6, 32)]
    assert groups([("add", 1, 4, 32), ("add", 1, 8, 32), ("add", 1, 99, 32)], counted) == [
        ([0], "nearest"), ([1], "nearest"), ([1], "nearest"),
    ]  # fmt: skip


def test_of_two_as_near_the_one_that_ran_first():
    assert groups([("add", 1, 5, 32)], [("add", 1, 8, 32), ("add", 1, 2, 32)]) == [([0], "nearest")]
    assert groups([("add", 1, 5, 32)], [("add", 1, 2, 32), ("add", 1, 8, 32)]) == [([0], "nearest")]
    # As many threads in blocks of two sizes.
    assert groups([("add", 1, 5, 32)], [("add", 1, 2, 64), ("add", 1, 4, 32)]) == [([0], "nearest")]


def test_by_name_alone_where_a_size_is_not_known():
    assert groups([("add", 1, None, None)], [("add", 1, 4, 32), ("add", 1, 8, 32)]) == [([0, 1], "name")]
    assert groups([("add", 1, 4, 32)], [("add", 1, None, None), ("add", 1, None, None)]) == [([0, 1], "name")]


def test_no_counted_launch_of_that_name():
    assert groups([("add", 1, 4, 32)], [("mul", 1, 4, 32)]) == [([], None)]


def test_names_that_may_be_several_kernels_are_told():
    counted = launches_of(trace([("void copy<(int)1>(T1)", 1, 4, 32), ("void copy<(int)2>(T1)", 1, 4, 32)]))
    timeline = launches_of(trace([("copy", 1, 4, 32), ("copy<2>", 1, 4, 32), ("add", 1, 4, 32)]))
    members, found = matched(timeline, counted)
    assert found.select("rule", "is_mixed").rows() == [("size", True), ("size", False), (None, False)]
    assert sorted(members.filter(members["group"] == found["group"][0])["span_id"].to_list()) == [0, 1]


sizes = st.none() | st.integers(1, 6)
launch = st.tuples(st.sampled_from(["a", "b", "c"]), st.just(1), sizes, st.sampled_from([32, 64])).map(
    lambda row: row if row[2] is not None else (row[0], 1, None, None)
)


def plainly(timeline, counted):
    found = []
    for name, _, grid, block in timeline:
        mine = [i for i, other in enumerate(counted) if other[0] == name]
        exact = [i for i in mine if counted[i][2:] == (grid, block) and grid is not None]
        sized = [i for i in mine if counted[i][2] is not None]
        if exact:
            found.append((exact, "size"))
        elif grid is not None and sized:
            best = min(sized, key=lambda i: (abs(counted[i][2] * counted[i][3] - grid * block), i))
            found.append(([i for i in sized if counted[i][2:] == counted[best][2:]], "nearest"))
        else:
            found.append((mine, "name" if mine else None))
    return found


@settings(deadline=None)
@given(st.lists(launch, min_size=1, max_size=12), st.lists(launch, min_size=1, max_size=12))
def test_every_launch_finds_what_a_plain_search_finds(timeline, counted):
    assert groups(timeline, counted) == plainly(timeline, counted)
