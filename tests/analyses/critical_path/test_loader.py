from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
from path_traces import MAIN, PATH_TRACKS, US, Row, spans_of

from stepscope.analyses.critical_path.loader import loader_limits
from stepscope.analyses.critical_path.threads import host_threads
from stepscope.core.errors import MissingTable

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def limits_of(*fetches, work=1600):
    """The limits of a thread that works for so many µs between fetches of these lengths in µs."""
    rows, at = [], 0
    for length in fetches:
        rows.append(Row(MAIN, at, length, NEXT, "dataloader"))
        at += length + work
    spans = spans_of(*rows)
    return loader_limits(spans, host_threads(spans, PATH_TRACKS))


def test_short_fetches_say_nothing_of_the_loaders_pace():
    limits, known = limits_of(60, 62, 58, 61, 60, 59)
    assert limits.at.size == 0
    assert known == {0: False}


def test_fetches_that_alternate_and_add_up_to_the_same_are_waits_for_two_workers():
    limits, known = limits_of(1300, 860, 1280, 880, 1260, 900, 1240, 920)
    assert known == {0: True}
    made = limits.producer >= 0
    assert (limits.producer[made] == np.flatnonzero(made) - 2).all()
    assert limits.after[made].tolist() == pytest.approx([5360 * US] * 6, rel=0.02)


def test_fetches_that_differ_without_adding_up_are_copies():
    limits, known = limits_of(900, 960, 1000, 910, 870, 930, 980, 890)
    assert limits.at.size == 0
    assert known == {0: False}


def test_a_multiple_of_the_number_of_workers_is_not_taken_for_it():
    # One worker makes a batch in some 450 µs.
    fetches = (400, 430, 370, 440, 385, 410, 360, 425)
    limits, _ = limits_of(*fetches, work=50)
    made = limits.producer >= 0
    assert (limits.producer[made] == np.flatnonzero(made) - 1).all()


def test_one_wait_among_short_fetches_does_not_make_waits_of_them():
    limits, known = limits_of(59, 912, 70, 60, 61, 61, 66, 57, work=2200)
    assert known == {0: False}
    assert np.flatnonzero(limits.at > limits.since).tolist() == [1]


def test_a_few_short_fetches_tell_how_long_it_takes_to_take_a_batch_over():
    took = np.array([1346, 57, 188, 771, 1718, 64, 62, 736])
    limits, _ = limits_of(*took, work=940)
    assert np.flatnonzero(limits.at > limits.since).tolist() == [0, 2, 3, 4, 7]
    ends = np.cumsum(took + 940) - 940
    assert (ends - limits.at / US)[[0, 2, 3, 4, 7]].tolist() == pytest.approx([62] * 5)


BURST = (12000, 60, 60, 60)


def test_two_bursts_do_not_tell_the_number_of_workers():
    limits, known = limits_of(*BURST, 10500, 70, 60, 50)
    assert known == {0: False}
    assert (limits.after > 0).any()


def test_many_bursts_of_the_same_length_tell_the_pace():
    _, known = limits_of(*BURST * 6)
    assert known == {0: True}


def test_more_threads_than_a_program_has_are_refused():
    rows = [Row(MAIN, 0, 5, NEXT, "dataloader")]
    many = PATH_TRACKS.head(1).select(pl.all().repeat_by(20_000).explode())
    with pytest.raises(MissingTable, match="at most 16,384 threads"):
        host_threads(spans_of(*rows), many)


def test_many_fetches_cost_no_time_each():
    rows = [Row(MAIN, 2_000 * i, 900 + i % 7, NEXT, "dataloader") for i in range(20_000)]
    began = time.process_time()
    spans = spans_of(*rows)
    loader_limits(spans, host_threads(spans, PATH_TRACKS))
    assert time.process_time() - began < 3
