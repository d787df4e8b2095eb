"""Verdicts on small jobs: each way in which a rank can fail, and jobs that are well."""

from __future__ import annotations

import os

import pytest
from dumps import SECOND, START, call, dump, write

from stepscope import load, show

WORLD = {"0": [0, 1, 2, 3]}


def verdict(folder) -> list:
    rows = show(load(folder), "hang").select("rank", "reason").rows()
    return [(rank, reason) for rank, reason in rows if rank is not None]


def job(tmp_path, last: dict, groups=WORLD, n: int = 8):
    """Ranks that have ended `n` calls, and then made the calls in `last`."""
    done = [call(i) for i in range(1, n + 1)]
    return write(tmp_path, {rank: dump([*done, *own], groups) for rank, own in last.items()})


def test_a_rank_that_waits_elsewhere_is_innocent(tmp_path):
    groups = {"0": [0, 1, 2, 3], "1": [1, 2]}
    waiting = [call(9, ended=False)]
    inner = [call(1, group="1", place=9, ended=False)]
    folder = job(tmp_path, {0: waiting, 1: inner, 2: [], 3: waiting}, groups)
    assert verdict(folder) == [(2, "never arrived")]
    hops = show(load(folder), "hang-graph").select("rank", "hops").rows()
    assert hops == [(0, 1), (1, 1), (3, 1)]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [({"name": "broadcast"}, "other operation"), ({"sizes": [[32]]}, "other size"), ({"dtype": "Half"}, "other dtype")],
)
def test_a_rank_that_calls_something_else_is_to_blame(tmp_path, facts, reason):
    waiting = [call(9, ended=False)]
    folder = job(tmp_path, {0: waiting, 1: waiting, 2: [call(9, ended=False, **facts)], 3: waiting})
    assert verdict(folder) == [(2, reason)]


def test_sizes_of_all_to_all_may_differ(tmp_path):
    own = {rank: [call(9, "all_to_all", ended=False, sizes=[[rank + 1]])] for rank in (0, 1, 3)}
    assert verdict(job(tmp_path, {**own, 2: []})) == [(2, "never arrived")]


def test_a_rank_that_came_when_the_others_had_given_up_is_late(tmp_path):
    waiting = [call(9, ended=False)]
    folder = job(tmp_path, {0: waiting, 1: [call(9, ended=False, at_s=700)], 2: waiting, 3: waiting})
    assert verdict(folder) == [(1, "arrived late")]


def test_what_its_own_records_show_of_a_rank_counts_whatever_others_wait_for(tmp_path):
    waiting = [call(9, ended=False), call(10, ended=False)]
    late = [call(9, ended=False, at_s=700), call(10, ended=False, at_s=701)]
    other = [call(9, ended=False), call(10, "broadcast", ended=False)]
    groups = {"0": [0, 1, 2, 3, 4]}
    folder = job(tmp_path, {0: waiting, 1: late, 2: other, 3: waiting}, groups)
    assert verdict(folder) == [(1, "arrived late"), (2, "other operation"), (4, "dump missing")]


def retired(*calls):
    """The calls as gloo retires them, without an end."""
    return [one | {"state": "scheduled", "time_discovered_completed_ns": None} for one in calls]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (retired(call(1)), [(2, "never arrived")]),
        (retired(call(1), call(2, sizes=[[5]])), [(2, "other size")]),
        (retired(call(1), call(2, at_s=700)), [(2, "arrived late")]),
        (retired(call(1), call(2)), []),
        (None, [(2, "dump missing")]),
    ],
)
def test_a_call_that_was_retired_but_cannot_have_ended_was_given_up(tmp_path, own, expected):
    dumps = {rank: dump(retired(call(1), call(2)), {"0": [0, 1, 2]}) for rank in (0, 1)}
    folder = write(tmp_path, dumps if own is None else {**dumps, 2: dump(own, {"0": [0, 1, 2]})})
    assert verdict(folder) == expected


def test_the_two_ends_of_a_message_that_does_not_move_are_a_link(tmp_path):
    groups = {"0": [0, 1]}
    send, receive = (call(8, name, place=9, message=1, ended=False) for name in ("send 0->1", "recv 1<-0"))
    assert verdict(job(tmp_path, {0: [send], 1: [receive]}, groups)) == [(0, "link"), (1, "link")]
    assert verdict(job(tmp_path, {0: [send], 1: []}, groups)) == [(1, "never arrived")]


def test_a_missing_dump_is_to_blame_only_if_nothing_else_explains_the_wait(tmp_path):
    waiting = [call(9, ended=False)]
    folder = job(tmp_path, {0: waiting, 1: waiting, 3: waiting})
    assert show(load(folder), "hang").select("verdict", "rank", "reason").rows() == [("crashed", 2, "dump missing")]
    (tmp_path / "both").mkdir()
    assert verdict(job(tmp_path / "both", {0: waiting, 1: [], 3: waiting})) == [(1, "never arrived")]


def test_of_ranks_in_a_circle_the_one_that_changed_its_order_is_to_blame(tmp_path):
    groups = {"0": [0, 1], "1": [0, 1]}

    def rank(*pairs):
        return [call(seq, group=group, desc=group, place=i, ended=i < 8) for i, (group, seq) in enumerate(pairs)]

    usual = [(group, seq) for seq in range(1, 5) for group in "01"]
    folder = write(tmp_path, {0: dump(rank(*usual, ("0", 5)), groups), 1: dump(rank(*usual, ("1", 5)), groups)})
    assert verdict(folder) == [(1, "other order")]


def test_a_device_that_stopped_is_known_by_calls_that_only_others_have_ended(tmp_path):
    waiting = [call(9, ended=False)]
    done = [call(i) for i in range(1, 9)]
    stalled = [*done[:6], call(7, ended=False), call(8, ended=False)]
    dumps = {rank: dump([*done, *waiting] if rank != 3 else stalled, WORLD) for rank in range(4)}
    assert verdict(write(tmp_path, dumps)) == [(3, "never arrived")]


def test_a_call_that_is_retired_has_ended_whatever_its_state_says(tmp_path):
    calls = [call(i, ended=False, retired=True) for i in range(1, 9)]
    folder = write(tmp_path, {rank: dump(calls, WORLD) for rank in range(4)})
    assert show(load(folder), "hang").select("verdict", "rank").rows() == [("healthy", None)]


def test_a_job_whose_dumps_are_as_new_as_its_calls_is_at_work(tmp_path):
    folder = job(tmp_path, {0: [call(9, ended=False)], 1: [], 2: [], 3: []})
    assert verdict(folder)
    for path in tmp_path.iterdir():
        os.utime(path, ns=(START + 9 * SECOND + 1000,) * 2)
    assert show(load(folder), "hang").select("verdict", "rank").rows() == [("healthy", None)]


def test_a_call_that_all_members_made_and_that_does_not_end_accuses_nobody(tmp_path):
    waiting = [call(9, ended=False)]
    folder = job(tmp_path, dict.fromkeys(range(4), waiting))
    row = show(load(folder), "hang").row(0, named=True)
    assert (row["verdict"], row["rank"]) == ("hung", None)
    assert "look at the network and the devices" in row["text"]
