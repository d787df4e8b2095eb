from __future__ import annotations

from observations import observation

from stepscope.comparison.repeats import as_repeats


def file(**facts):
    return (observation([100, 100], **facts),)


def layout(files):
    return [len(run) for run in as_repeats(files)]


def test_other_ranks_are_processes_of_one_job():
    assert layout([file(rank=0), file(rank=1), file(rank=2)]) == [3]


def test_a_rank_that_comes_again_is_a_repeat():
    assert layout([file(rank=0), file(rank=1), file(rank=0), file(rank=1)]) == [2, 2]


def test_recordings_of_one_time_are_of_one_job():
    assert layout([file(origin=1000), file(origin=1100)]) == [2]


def test_recordings_of_other_times_are_repeats():
    assert layout([file(origin=1000), file(origin=5000), file(origin=9000)]) == [1, 1, 1]


def test_files_that_say_neither_are_of_one_job():
    assert layout([file(), file(origin=1000)]) == [2]


def test_a_process_without_cycles_says_no_time():
    assert layout([(observation([], origin=5),), file(origin=100)]) == [2]
