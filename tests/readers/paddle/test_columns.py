from __future__ import annotations

import pytest

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.paddle._columns import Args, Event, Events, _bare, _compact, _ns, _sizes, _thread


@pytest.mark.parametrize(
    ("text", "ns"),
    [("0.000 us", 0), ("1234.567 us", 1_234_567), ("2.5 ms", 2_500_000), ("7 ns", 7), ("5 parsecs", ABSENT),
     ("", ABSENT), ("x us", ABSENT), ("nan us", ABSENT), ("1e300 us", ABSENT)],
)  # fmt: skip
def test_times_have_their_unit_behind_them(text, ns):
    assert _ns(text) == ns


@pytest.mark.parametrize(
    ("name", "bare"), [("a[1.000 us]", "a"), ("a[0][1.000 ms]", "a[0]"), ("a[0]", "a[0]"), ("a", "a")]
)
def test_the_duration_behind_a_name_goes(name, bare):
    assert _bare(name) == bare


@pytest.mark.parametrize(("tid", "number"), [("14538(Python)", 14538), (7, 7), ("main", ABSENT), (None, ABSENT)])
def test_threads_are_numbers(tid, number):
    assert _thread(tid) == number


def test_sizes_are_three_or_unknown():
    assert _sizes([1, 2, 3]) == (1, 2, 3)
    assert _sizes([1]) == _sizes(None) == (ABSENT,) * 3


def test_arguments_are_compact_and_nothing_where_empty():
    assert _compact(b'{"X": [[2, 3]]}') == '{"X":[[2,3]]}'
    assert _compact(b"{}") == _compact(b"") == ""
    assert _compact(b'{"X": "\xb4"}') == '{"X": "\ufffd"}'
    assert _compact(b'{"\\ud800": 1}') == '{"\\ud800": 1}'


def test_events_go_to_the_table_of_their_sort_with_their_place_in_the_file():
    events = Events()
    events.add(
        [Event(name="a", ph="X", cat="Operator", tid="1(C++)"), Event(ph="M"), Event(ph="X", cat="Kernel", tid=3)]
    )
    events.add([
        Event(ph="i", cat="Free", tid="1(C++)", args=Args(addr=4, increase_bytes=-5)),
        Event(ph="X", cat="CudaRuntime", tid="1(C++)", args=Args(correlation=9)),
        Event(ph="X", cat="MluRuntime", tid="1(C++)"),
        Event(ph="s", cat="async"),
    ])  # fmt: skip
    assert [events.table(t)["at"].tolist() for t in ("host", "device", "memory")] == [[0], [2], [3]]
    runtime = events.table("runtime")
    assert runtime["at"].tolist() == [4, 5]
    assert runtime["correlation"].tolist() == [9, ABSENT]


def test_numbers_that_fit_no_column_are_absent():
    events = Events()
    events.add(
        [
            Event(ph="X", cat="Operator", tid="1(C++)", ts=2**63, dur=1e300),
            Event(ph="X", tid="2(C++)", dur=float("nan")),
        ]
    )
    host = events.table("host")
    assert host["ts"].tolist() == host["dur"].tolist() == [ABSENT, ABSENT]
