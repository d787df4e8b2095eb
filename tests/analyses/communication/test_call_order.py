"""The order of calls: who differs from the other members of a group between two of its calls."""

from __future__ import annotations

from dumps import call, dump, write

from stepscope import load
from stepscope.analyses.communication.call_order import unlike_their_peers
from stepscope.analyses.communication.wait_graph import waits_of


def odd_ones(tmp_path, sequences: dict[int, str]) -> list[int]:
    """The odd ranks, where each makes the calls of its letters; `|` is a call of all ranks, the others of one."""
    groups = {"0": list(sequences), **{str(rank + 1): [rank] for rank in sequences}}
    dumps = {}
    for rank, letters in sequences.items():
        calls, n = [], dict.fromkeys(groups, 0)
        for i, letter in enumerate(letters):
            group = "0" if letter == "|" else str(rank + 1)
            n[group] += 1
            facts = {"ended": letter != "|" or n["0"] < 4, "place": i}
            calls.append(call(n[group], {"|": "barrier"}.get(letter, f"all_to_all_{letter}"), group=group, **facts))
        dumps[rank] = dump(calls, groups)
    trace = load(write(tmp_path, dumps))
    return unlike_their_peers(waits_of(trace.collective_records, trace.group_status), list(sequences))


def test_the_rank_that_leaves_out_a_call_is_odd(tmp_path):
    assert odd_ones(tmp_path, {0: "|ab|ab|ab|", 1: "|ab|ab|ab|", 2: "|ab|ab|a|", 3: "|ab|ab|ab|"}) == [2]


def test_a_rank_that_was_always_different_is_not_odd(tmp_path):
    assert odd_ones(tmp_path, {0: "|ab|ab|ab|", 1: "|ab|ab|ab|", 2: "|b|b|b|", 3: "|ab|ab|ab|"}) == []


def test_of_two_ranks_none_is_odd(tmp_path):
    assert odd_ones(tmp_path, {0: "|ab|ab|ab|", 1: "|ab|ab|a|"}) == []
