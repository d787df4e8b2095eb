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
