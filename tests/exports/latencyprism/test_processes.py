from __future__ import annotations

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.exports.latencyprism._processes import Pair, chosen_pair, pairs_of


def test_processes_of_both_runs_go_before_those_of_one():
    assert pairs_of([3, 1, 5], [7, 3, 8, 1]) == [Pair(1, 1), Pair(3, 3), Pair(5, 7), Pair(5, 8)]


def test_the_first_pair_is_taken_unless_another_is_asked_for():
    runs = ([3, 1, 5], [7, 3, 8, 1])
    assert chosen_pair(*runs, None, None) == Pair(1, 1)
    assert chosen_pair(*runs, 3, None) == Pair(3, 3)
    assert chosen_pair(*runs, None, 8) == Pair(5, 8)
    assert chosen_pair(*runs, 1, 7) == Pair(1, 7)


@pytest.mark.parametrize(("pid", "other", "message"), [(9, None, "no process 9, as --pid"), (None, 5, "--other-pid")])
def test_a_process_that_is_not_there_is_named(pid, other, message):
    with pytest.raises(StepscopeError, match=message) as caught:
        chosen_pair([3], [3, 4], pid, other)
    assert "3" in caught.value.hint


def test_a_process_that_the_published_tool_pairs_with_none_needs_both_named():
    with pytest.raises(StepscopeError, match="leave no pair") as caught:
        chosen_pair([3], [3, 4], None, 4)
    assert "--other-pid" in caught.value.hint


def test_titles_and_labels_tell_the_processes():
    strict, cross = Pair(3, 3), Pair(3, 4)
    assert strict.labels == ("normal", "abnormal")
    assert strict.title("x") == "# Strict Performance Comparison: x (PID: 3)"
    assert cross.labels == ("normal_pid_3", "abnormal_pid_4")
    assert cross.title("x") == "# Cross Performance Comparison: x (Normal PID:3 vs Abnormal PID:4)"
