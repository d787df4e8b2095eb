from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stepscope.readers.common.forked import UnfinishedError, deadline_of, forget, forked, put


def soon():
    return time.monotonic() + 20


def leaves(data):
    return lambda handle: put(handle, data)


def test_each_process_leaves_what_it_wrote():
    with forked([leaves(b"one"), leaves(b"second" * 100_000)]) as (first, second):
        assert first(soon())[:] == b"one"
        assert second(soon())[:] == b"second" * 100_000


def test_what_a_process_left_can_be_given_up_in_whole_pages():
    with forked([leaves(b"x" * 3 * 4096)]) as (result,):
        left = result(soon())
        forget(left, 100, 2 * 4096 + 100)
        assert left[:] == b"x" * 4096 + b"\0" * 4096 + b"x" * 4096


@pytest.mark.parametrize("work", [lambda _: os._exit(9), lambda _: 1 / 0])
def test_a_process_that_fails_is_unfinished(work):
    with forked([work]) as (result,), pytest.raises(UnfinishedError):
        result(soon())


def test_a_process_that_takes_too_long_is_unfinished_and_ended():
    with forked([lambda _: time.sleep(60)]) as (result,):
        pids = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
        with pytest.raises(UnfinishedError):
            result(time.monotonic() + 0.01)
    assert pids
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[-1], 0)


def test_others_may_take_several_times_as_long_as_the_first():
    assert deadline_of(100.0) - time.monotonic() > 900
