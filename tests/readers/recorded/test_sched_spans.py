from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.recorded.sched_events import ENDED, IN, OUT, RUNNABLE, SLEEPS, WAKE, Events
from stepscope.readers.recorded.sched_spans import AT_END, PREEMPTED, WOKEN, spans_of

END = 1000


def events(*rows: tuple[int, ...], began: dict[int, int] | None = None, losses=(), names=None) -> Events:
    """Rows are (time, thread, what, core, state, other)."""
    table = np.array(sorted(rows, key=lambda row: row[:3]), np.int64).reshape(-1, 6)
    ts, tid, what, core, state, other = table.T
    none = np.zeros(1, np.int64)
    return Events(
        ts, tid, what.astype(np.int8), core.astype(np.int32), state.astype(np.int8), other,
        names or {}, began or {}, {}, {}, list(losses), END, none, none,
    )  # fmt: skip


def found(given_events: Events) -> list[tuple]:
    spans = spans_of(given_events)
    columns = (spans.tid, spans.start_ns, spans.end_ns, spans.is_wait, spans.core, spans.state, spans.other)
    rows = zip(*(column.tolist() for column in columns), spans.why.tolist(), strict=True)
    return [row[:7] + ((row[7],) if row[3] else ()) for row in rows]


def life_of(tid: int, rows: list[tuple[int, ...]], began: int | None) -> tuple[list[tuple], bool]:
    """The spans of one thread, an event after the other; whether it got a core from idle unseen."""
    spans: list[tuple] = []
    unseen = False
    now, since, core_now, why, by = "unknown", began, -1, WOKEN, -1
    for ts, what, core, state, other in rows:
        if what == WAKE and now in ("unknown", "asleep"):
            now, since, why, by = "waits", ts, WOKEN, -1
        elif what == IN:
            if now == "waits":
                spans.append((tid, since, ts, True, core, AT_END, by if why == PREEMPTED else other, why))
            now, since, core_now = "runs", ts, core
        elif what == OUT:
            had_it = now == "unknown" and since is not None and since <= ts
            from_idle = now == "waits" and why == WOKEN
            unseen = unseen or from_idle
            if had_it or from_idle or (now == "runs" and core == core_now):
                spans.append((tid, since, ts, False, core, state, other))
            now, since, why, by = "waits" if state == RUNNABLE else "asleep", ts, PREEMPTED, other
    if now == "runs":
        spans.append((tid, since, END, False, core_now, AT_END, -1))
    elif now == "waits":
        spans.append((tid, since, END, True, -1, AT_END, by, why))
    return spans, unseen


def oracle(given_events: Events) -> list[tuple]:
    """A thread after the other."""
    names = ("ts_ns", "what", "core", "state", "other")
    rows = list(zip(given_events.tid.tolist(), *(getattr(given_events, n).tolist() for n in names), strict=True))
    lives = [
        life_of(tid, [row[1:] for row in rows if row[0] == tid], given_events.began.get(tid))
        for tid in {row[0] for row in rows}
    ]
    spans = [span for life, _ in lives for span in life]
    if any(unseen for _, unseen in lives):  # so may have been what followed the last wake-up
        spans = [span for span in spans if not (span[3] and span[2] == END and span[4] == -1 and span[7] == WOKEN)]

    def is_known(span: tuple) -> bool:
        return not any(
            span[1] < max(high, low + 1) and span[2] > low and (span[3] or span[4] == core)
            for core, low, high in given_events.losses
        )

    return sorted(filter(is_known, spans), key=lambda span: span[:3])


TIMES = st.integers(0, END)
ROWS = st.tuples(
    TIMES, st.integers(1, 3), st.sampled_from([OUT, WAKE, IN]), st.integers(0, 1),
    st.sampled_from([RUNNABLE, SLEEPS, ENDED]), st.integers(0, 9),
)  # fmt: skip
LOSSES = st.tuples(st.integers(0, 1), TIMES, st.integers(0, 200)).map(
    lambda loss: (loss[0], loss[1], loss[1] + loss[2])
)


@given(
    st.lists(ROWS, max_size=40, unique_by=lambda row: row[:3]),
    st.dictionaries(st.integers(1, 3), TIMES),
    st.lists(LOSSES, max_size=3),
)
def test_spans_are_what_one_event_after_the_other_gives(rows, began, losses):
    told = events(*rows, began=began, losses=losses)
    assert sorted(found(told), key=lambda span: span[:3]) == oracle(told)


def test_a_thread_sleeps_wakes_waits_and_runs():
    told = events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, SLEEPS, 8), (50, 5, WAKE, 1, 0, -1), (65, 5, IN, 1, 0, 9))
    assert found(told) == [
        (5, 10, 30, False, 0, SLEEPS, 8),
        (5, 50, 65, True, 1, AT_END, 9, WOKEN),
        (5, 65, END, False, 1, AT_END, -1),
    ]


def test_a_thread_that_loses_the_core_waits_behind_the_one_that_took_it():
    told = events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, RUNNABLE, 8), (33, 5, WAKE, 1, 0, -1), (65, 5, IN, 1, 0, 9))
    assert found(told)[1] == (5, 30, 65, True, 1, AT_END, 8, PREEMPTED)


def test_a_thread_that_ended_is_nowhere():
    assert found(events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, ENDED, 8))) == [(5, 10, 30, False, 0, ENDED, 8)]


def test_a_thread_that_was_there_had_the_core_that_it_loses_first():
    assert found(events((30, 5, OUT, 0, SLEEPS, 8), began={5: 3})) == [(5, 3, 30, False, 0, SLEEPS, 8)]
    assert found(events((30, 5, OUT, 0, SLEEPS, 8))) == []


def test_nothing_happened():
    assert found(events()) == []


def test_switches_that_nobody_told_of_are_counted():
    def gaps(*rows):
        return spans_of(events(*rows)).n_gaps

    assert gaps((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, SLEEPS, 8), (50, 5, WAKE, 1, 0, -1)) == 0
    assert gaps((50, 5, WAKE, 1, 0, -1), (60, 5, OUT, 1, SLEEPS, 8)) == 0  # it must have got the core from idle
    assert gaps((10, 5, OUT, 0, RUNNABLE, 7), (60, 5, OUT, 1, SLEEPS, 8)) == 1
    assert gaps((10, 5, IN, 0, 0, 7), (60, 5, IN, 0, 0, 8)) == 1
    assert gaps((10, 5, IN, 0, 0, 7), (60, 5, OUT, 1, SLEEPS, 8)) == 1  # on another core
    assert gaps((10, 5, OUT, 0, SLEEPS, 7), (60, 5, IN, 0, 0, 8)) == 0  # its wake-up may be older than the recording


def test_a_thread_that_got_an_idle_core_unseen_has_it_from_its_wake_up_on():
    told = events((10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, SLEEPS, 0), (50, 5, WAKE, 0, 0, -1), (65, 5, OUT, 1, SLEEPS, 0))
    assert found(told) == [(5, 10, 30, False, 0, SLEEPS, 0), (5, 50, 65, False, 1, SLEEPS, 0)]
    assert spans_of(told).n_from_idle == 1
    # Nor is it known then whether a thread that woke up last waits until the end.
    assert not spans_of(
        events((50, 5, WAKE, 0, 0, -1), (65, 5, OUT, 1, SLEEPS, 0), (80, 5, WAKE, 0, 0, -1))
    ).is_wait.any()


def test_a_thread_of_the_kernel_that_came_first_is_not_to_blame_for_the_one_that_stayed():
    def behind(first, last):
        rows = (10, 5, IN, 0, 0, 7), (30, 5, OUT, 0, RUNNABLE, first), (65, 5, IN, 1, 0, last)
        names = {2: "rcu_preempt", 3: "kworker/0:1H", 4: "migration/1", 8: "greedy", 9: "rcurve"}
        return spans_of(events(*rows, names=names)).other.tolist()[1]

    assert [behind(kernel, 8) for kernel in (2, 3, 4)] == [8, 8, 8]
    assert (behind(8, 2), behind(9, 8), behind(2, 0), behind(2, -1)) == (8, 9, 2, 2)
