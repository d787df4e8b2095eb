"""The tables of a verdict: culprits with their evidence, and the chain from each waiting rank."""

from __future__ import annotations

from dumps import SECOND, call, dump, write

from stepscope import load, show


def test_a_rank_that_did_not_make_the_call_in_which_all_others_wait_is_to_blame(tmp_path):
    waiting = [call(9, ended=False)]
    done = [call(i) for i in range(1, 9)]
    folder = write(tmp_path, {rank: dump(done + waiting * (rank != 2), {"0": [0, 1, 2, 3]}) for rank in range(4)})
    row = show(load(folder), "hang").row(0, named=True)
    assert (row["verdict"], row["rank"], row["reason"], row["seq"]) == ("hung", 2, "never arrived", 9)
    assert (row["n_waiting"], row["since_ns"]) == (3, 8 * SECOND)
    graph = show(load(folder), "hang-graph").select("rank", "waits_for", "culprit", "hops").rows()
    assert graph == [(0, 2, 2, 1), (1, 2, 2, 1), (3, 2, 2, 1)]


def test_the_matrix_says_how_far_each_rank_came_in_each_group_and_whom_to_blame_first(tmp_path):
    done = [call(i) for i in range(1, 9)]
    stuck = [call(9, ended=False)]
    dumps = {rank: dump(done + stuck * (rank != 2), {"0": [0, 1, 2, 3]}) for rank in range(4)}
    for rank, one in dumps.items():
        enqueued = 9 - (rank == 2)
        one["pg_status"] = {"0": {"last_enqueued_collective": enqueued, "last_completed_collective": 8}}
    matrix = show(load(write(tmp_path, dumps)), "hang-matrix")
    columns = "rank", "is_culprit", "enqueued", "completed", "pending", "behind"
    assert matrix.select(columns).rows() == [
        (2, True, 8, 8, 0, 1), (0, False, 9, 8, 1, 0), (1, False, 9, 8, 1, 0), (3, False, 9, 8, 1, 0),
    ]  # fmt: skip
    assert matrix["operation"].to_list() == ["all_reduce"] * 4
