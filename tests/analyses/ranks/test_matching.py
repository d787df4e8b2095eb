from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import part

from stepscope.analyses.ranks.groups import Comm
from stepscope.analyses.ranks.matching import job_of, missing_ranks, realigned
from stepscope.core.errors import MissingTable

PAIR = Comm("1", None, 2, (0, 1))
FOUR = Comm("0", None, 4, (0, 1, 2, 3))


def collectives(job) -> list[list[tuple[int, int]]]:
    """Of each collective the rank and the start of each call."""
    rows = job.calls.sort("exchange", "rank")
    result = {}
    for rank, number, start in rows.select("rank", "exchange", "start_ns").iter_rows():
        result.setdefault(number, []).append((job.ranks[rank], start))
    return list(result.values())


def test_calls_match_by_the_recorders_number_whatever_their_order():
    job = job_of([part(0, (0, 5), (10, 15), seq=[7, 8]), part(1, (1, 5), (30, 35), seq=[8, 9])])
    assert collectives(job) == [[(0, 0)], [(0, 10), (1, 1)], [(1, 30)]]
    assert job.collectives["status"].to_list() == ["missing on a rank", "matched", "missing on a rank"]
    assert missing_ranks(job, [0, 2]) == ["1", "0"]


def test_numbers_that_no_two_ranks_share_are_not_believed():
    job = job_of([part(0, (0, 5), (10, 15), seq=[1, 2]), part(1, (0, 5), (10, 15), seq=[101, 102])])
    assert [len(e) for e in collectives(job)] == [2, 2]


def test_without_numbers_order_within_the_step_counts():
    job = job_of([part(0, (0, 5), (10, 15), step=[1, 2]), part(1, (9, 14), (20, 25), step=[2, 3])])
    assert collectives(job) == [[(0, 0)], [(0, 10), (1, 9)], [(1, 20)]]


def test_without_steps_order_counts_and_kinds_are_apart():
    rows = ((0, 5), (10, 15, "allgather"), (20, 25))
    job = job_of([part(0, *rows), part(1, *rows)])
    assert job.collectives["kind"].to_list() == ["allreduce", "allgather", "allreduce"]
    assert job.collectives["status"].unique().to_list() == ["matched"]


def test_a_call_that_one_rank_lacks_in_a_step_does_not_shift_the_rest():
    times = [0, 100, 230, 310, 480]
    whole = part(0, *((t, t + 5) for t in times), step=[1] * 5)
    lacking = part(1, *((t, t + 5) for t in times if t != 230), step=[1] * 4)
    job = job_of([whole, lacking])
    assert [len(e) for e in collectives(job)] == [2, 2, 1, 2, 2]


def test_groups_are_apart_and_ranks_keep_their_numbers():
    other = Comm("2", None, 2, (5, 9))
    job = job_of([part(r, (0, 5), comms=(c,)) for r, c in ((9, other), (0, PAIR), (5, other), (1, PAIR))])
    assert job.ranks == (0, 1, 5, 9)
    assert sorted(sorted(r for r, _ in e) for e in collectives(job)) == [[0, 1], [5, 9]]


def test_sizes_types_and_kinds_that_differ_are_told():
    one = part(0, (0, 5), (10, 15), (20, 25), (30, 35, "alltoall"), seq=[1, 2, 3, 4], in_bytes=[8, 8, 8, 1])
    two = part(
        1, (0, 5), (10, 15), (20, 25, "allgather"), (30, 35, "alltoall"), seq=[1, 2, 3, 4], in_bytes=[16, 8, 8, 5],
        out_bytes=[16, 8, 8, 5], dtype=["Float", "Half", "Float", "Float"],
    )  # fmt: skip
    job = job_of([one, two])
    assert job.collectives["status"].to_list() == ["sizes differ", "sizes differ", "kinds differ", "matched"]


def test_the_size_is_that_of_the_whole():
    kinds = ["allgather", "reduce_scatter", "allreduce", "alltoall"]
    rows = [(10 * i, 10 * i + 5, kind) for i, kind in enumerate(kinds)]
    first = {"in_bytes": [8, 32, 8, 8], "out_bytes": [None, 8, 8, 8]}
    second = {"in_bytes": [8, None, 8, 4], "out_bytes": [None, 8, 8, 4]}
    job = job_of([part(0, *rows, **first, comms=(FOUR,)), part(1, *rows, **second, comms=(FOUR,))])
    assert job.collectives["size_bytes"].to_list() == [32, 32, 8, 6]


def test_unknown_sizes_stay_unknown():
    unknown = {"in_bytes": [None], "out_bytes": [None]}
    job = job_of([part(0, (0, 5), **unknown), part(1, (0, 5), **unknown)])
    assert job.collectives["size_bytes"].to_list() == [None]


def test_sends_match_receives_by_both_ends():
    four = [
        part(0, (0, 9, "send"), (10, 19, "recv"), src=[None, 2], dst=[1, None], comms=(FOUR,)),
        part(1, (1, 9, "recv"), src=[0], dst=[None], comms=(FOUR,)),
        part(2, (11, 19, "send"), src=[None], dst=[0], comms=(FOUR,)),
        part(3, (0, 1, "send"), src=[None], dst=[7], comms=(FOUR,)),
    ]
    job = job_of(four)
    assert sorted(collectives(job)) == [[(0, 0), (1, 1)], [(0, 10), (2, 11)], [(3, 0)]]
    assert sorted(job.collectives["status"].to_list()) == ["matched", "matched", "one rank only"]


def test_messages_of_two_match_without_their_ends_told_and_of_more_do_not():
    job = job_of([part(0, (0, 9, "send"), comms=(PAIR,)), part(1, (0, 9, "recv"), comms=(PAIR,))])
    assert job.collectives["status"].to_list() == ["matched"]
    job = job_of([part(0, (0, 9, "send_recv"), comms=(FOUR,)), part(1, (0, 9, "send_recv"), comms=(FOUR,))])
    assert job.collectives["status"].to_list() == ["ends unknown"] * 2


def test_a_receive_that_is_missing_is_told():
    job = job_of([part(0, (0, 9, "send"), dst=[1], comms=(FOUR,)), part(1, (0, 9), comms=(FOUR,))])
    number = job.collectives["kind"].to_list().index("send")
    assert job.collectives["status"][number] == "missing on a rank"
    assert missing_ranks(job, [number]) == ["1"]


def test_ranks_whose_files_are_absent_are_not_missing():
    job = job_of([part(r, (0, 9), comms=(FOUR,)) for r in (0, 2)])
    assert job.collectives.select("status", "n_ranks", "n_expected").rows() == [("matched", 2, 2)]


def test_times_lie_on_one_axis_by_the_time_of_day():
    job = job_of([part(0, (0, 9), origin_unix_ns=1000), part(1, (0, 9), origin_unix_ns=1400)])
    assert job.start.tolist() == [0, 400]
    assert (job.origin_unix_ns, job.shifts) == (1000, (0, 400))


def test_a_rank_that_does_not_know_the_time_begins_with_the_others():
    job = job_of([part(0, (70, 79), origin_unix_ns=1000), part(1, (500, 509), origin_unix_ns=None)])
    assert job.start.tolist() == [70, 0]


def test_recordings_of_one_rank_follow_each_other_or_the_first_counts():
    first = part(0, (0, 9), label="a", origin_unix_ns=0)
    later = part(0, (0, 9), label="b", origin_unix_ns=100)
    same = part(0, (0, 9), label="c", origin_unix_ns=105)
    lost = part(0, (0, 9), label="d", origin_unix_ns=None)
    job = job_of([first, same, later, lost])
    assert job.start.tolist() == [0, 100]
    assert sorted(label for label, _ in job.left_out) == ["c", "d"]
    assert job.left_out[0][1] == "it holds rank 0 at the same time as a"


def test_ranks_without_numbers_get_the_next_free_ones():
    assert job_of([part(None, (0, 9)), part(3, (0, 9)), part(None, (0, 9))]).ranks == (3, 4, 5)


def test_no_ranks_are_refused():
    with pytest.raises(MissingTable, match="ranks"):
        job_of([])


def test_collectives_are_numbered_in_order_of_time():
    job = job_of([part(0, (0, 5), (10, 15), (20, 25)), part(1, (0, 5), (10, 15), (20, 25))])
    first = [job.start[job.collective == i].min() for i in range(job.collectives.height)]
    assert first == sorted(first)
    assert np.array_equal(job.by_collective.sizes, [2, 2, 2])


def aligned(*ranks: list[float], sizes: list[list[int]] | None = None, anchored: bool = True, fixed: bool = False):
    rank = np.concatenate([np.full(len(ends), i) for i, ends in enumerate(ranks)])
    order = np.concatenate([np.arange(len(ends)) for ends in ranks])
    ends = np.concatenate([np.array(e, float) for e in ranks]).astype(np.int64)
    size = np.concatenate(sizes) if sizes else np.zeros(rank.size, np.int64)
    flags = np.full(rank.size, True)
    result = realigned(
        np.zeros(rank.size, np.int64), rank, order, ends, np.array(size, np.int64),
        anchored=flags & anchored, fixed=flags & fixed,
    )  # fmt: skip
    return [result[rank == i].tolist() for i in range(len(ranks))]


TIMES = [0, 100, 230, 310, 480, 520, 700]


def test_equal_numbers_with_a_step_to_hold_on_to_stay_in_order():
    assert aligned(TIMES, [t + 7000 for t in TIMES]) == [list(range(7)), list(range(7))]


def test_a_call_that_a_rank_lacks_is_found_by_time_whatever_its_clock():
    ahead = [t + 50_000 for t in TIMES if t != 310]
    assert aligned(TIMES, ahead) == [list(range(7)), [0, 1, 2, 4, 5, 6]]


@given(st.integers(0, 6), st.integers(-10_000, 10_000))
def test_whichever_call_is_missing(which, offset):
    rest = [t + offset for i, t in enumerate(TIMES) if i != which]
    assert aligned(TIMES, rest)[1] == [i for i in range(7) if i != which]


def test_recordings_that_begin_at_different_calls_are_shifted_where_no_step_tells():
    times = np.cumsum([3, 50, 20, 90, 35, 60, 10, 75, 44, 31, 28, 66]).tolist()
    assert aligned(times[:-2], [t + 999 for t in times[2:]], anchored=False)[1][:8] == list(range(2, 10))


def test_sizes_tell_where_times_are_regular():
    sizes = [1, 2, 3, 4, 5, 6]
    regular = [100 * i for i in range(6)]
    result = aligned(regular, regular[:5], sizes=[sizes, sizes[1:]])
    assert result[1] == [1, 2, 3, 4, 5]


def test_what_has_no_counterpart_stands_alone():
    result = aligned(TIMES, [0, 100, 101, 230, 310])
    assert result[1][:2] + result[1][3:] == [0, 1, 2, 3]
    assert result[1][2] >= len(TIMES)


def test_numbers_of_the_recorder_are_not_touched():
    assert aligned(TIMES, TIMES[1:], fixed=True) == [list(range(7)), list(range(6))]


@pytest.mark.parametrize("n", [1, 2])
def test_a_family_of_one_rank_or_one_call_each_needs_nothing(n):
    assert aligned(*[[5.0]] * n, anchored=False) == [[0]] * n
