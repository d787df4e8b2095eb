from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from path_traces import (
    AUTOGRAD,
    MAIN,
    OTHER_DEVICE,
    STREAM_7,
    STREAM_8,
    US,
    Row,
    call,
    kernel,
    op,
    parts_of,
    queued,
    spans_of,
)

from stepscope.analyses.critical_path.threads import LONG_AGO
from stepscope.analyses.critical_path.work import (
    ACROSS,
    BEFORE,
    KERNEL_WAIT,
    LAUNCH,
    LAUNCH_DELAY,
    NOTHING,
    UNEXPLAINED,
    calls_like,
    rows_of,
)

WAITS = {LAUNCH_DELAY: "launch_delay", KERNEL_WAIT: "kernel_wait", UNEXPLAINED: "unexplained"}


def held(*rows, last=None):
    """What held up the work of that name (else the last by track and start): by, until when in µs, the wait."""
    spans = spans_of(*rows)
    _, work, bound = parts_of(spans)
    names = spans["name"].gather(work.row).cast(pl.String).to_list()
    k = names.index(last) if last else len(names) - 1
    at = None if bound.at[k] == LONG_AGO else bound.at[k] // US
    return int(bound.by[k]), at, WAITS[int(bound.wait[k])]


def test_work_on_a_free_stream_waits_for_the_end_of_its_call():
    assert held(*queued(10, 5, 18, 5)) == (LAUNCH, 15, "launch_delay")


def test_work_that_begins_while_its_call_is_open_waits_for_nothing_but_that():
    assert held(*queued(10, 20, 18, 5)) == (LAUNCH, 18, "launch_delay")


def test_work_queued_in_time_waits_for_the_work_before_it():
    assert held(*queued(0, 5, 6, 30), *queued(10, 5, 38, 5)) == (BEFORE, 36, "kernel_wait")


def test_work_before_that_ended_while_the_call_was_open_is_what_was_waited_for_if_the_call_outlasts_the_wait():
    assert held(*queued(0, 5, 6, 30), *queued(30, 20, 38, 5)) == (BEFORE, 36, "kernel_wait")
    assert held(*queued(0, 5, 6, 20), *queued(30, 20, 38, 5)) == (LAUNCH, 38, "launch_delay")


def test_work_that_overlaps_the_work_before_it_begins_as_far_into_that():
    assert held(*queued(0, 5, 6, 30), *queued(10, 5, 20, 5)) == (BEFORE, 20, "kernel_wait")


def test_of_the_work_before_the_one_that_ends_last_counts():
    rows = [*queued(0, 2, 6, 30, "long"), *queued(3, 2, 8, 4, "short"), *queued(10, 5, 38, 5, "third")]
    assert held(*rows, last="third") == (BEFORE, 36, "kernel_wait")


def test_without_a_launch_record_the_work_before_counts_and_the_gap_is_unexplained():
    assert held(kernel(0, 10), kernel(12, 5)) == (BEFORE, 10, "unexplained")
    assert held(kernel(5, 10)) == (NOTHING, None, "unexplained")


def test_a_long_gap_after_the_work_before_is_unexplained():
    assert held(*queued(0, 5, 6, 30), *queued(10, 5, 66, 5)) == (BEFORE, 36, "unexplained")


def test_a_long_launch_delay_of_the_first_work_of_a_device_is_unexplained_as_earlier_work_may_be_in_its_way():
    first = queued(0, 5, 100, 5)
    assert held(*first) == (LAUNCH, 5, "unexplained")
    later = queued(10, 5, 200, 5, "later", STREAM_8)
    ended = queued(1, 2, 101, 2, "ended")
    assert held(*first, *ended, *later, last="later")[0] == ACROSS
    assert held(*first, *queued(150, 5, 200, 5), last="gemm")[2] == "unexplained"
    assert held(*first, *queued(150, 5, 200, 5)) == (LAUNCH, 155, "launch_delay")


def test_a_wait_for_an_event_queued_in_between_makes_work_wait_for_other_streams():
    other = queued(0, 5, 6, 30, "other", STREAM_8)
    mine = [*queued(2, 2, 7, 1, "first"), *queued(20, 5, 37, 5, "second")]
    assert held(*other, *mine, last="second") == (LAUNCH, 25, "launch_delay")
    wait = call(10, 2, "cudaStreamWaitEvent")
    assert held(*other, *mine, wait, last="second") == (ACROSS, 36, "kernel_wait")
    assert held(*other, *mine, call(1, 1, "cudaStreamWaitEvent"), last="second")[0] == LAUNCH


def test_where_the_recorder_tells_which_stream_waits_others_do_not():
    other = queued(0, 5, 6, 30, "other", STREAM_8)
    mine = [*queued(2, 2, 7, 1, "first"), *queued(20, 5, 37, 5, "second")]
    wait = call(10, 2, "cudaStreamWaitEvent", key="wait")
    sync = Row(STREAM_7, 10, 26, "Stream Wait Event", "sync", launch="wait")
    assert held(*other, *mine, wait, sync, last="second")[0] == ACROSS
    assert (
        held(*other, *mine, wait, Row(STREAM_8, 10, 26, "Stream Wait Event", "sync", launch="wait"), last="second")[0]
        == LAUNCH
    )


def test_work_queued_after_it_is_not_waited_for():
    later = queued(30, 2, 33, 3, "later", STREAM_8)
    mine = [*queued(2, 2, 7, 1, "first"), *queued(20, 5, 37, 5, "second")]
    assert held(*later, *mine, call(10, 2, "cudaStreamWaitEvent"), last="second") == (LAUNCH, 25, "launch_delay")


def test_work_of_one_graph_waits_for_its_other_branches():
    rows = [call(0, 5, "cudaGraphLaunch", key="graph")]
    rows += [kernel(6, 10, "graph", "root"), kernel(6, 20, "graph", "side", STREAM_8), kernel(27, 5, "graph", "join")]
    assert held(*rows, last="join") == (ACROSS, 26, "kernel_wait")


def test_late_work_waits_for_room_while_other_work_of_its_sort_runs():
    busy = queued(0, 5, 6, 100, "busy", STREAM_8)
    assert held(*busy, *queued(10, 5, 80, 5, "late"), last="late") == (ACROSS, 80, "kernel_wait")
    copy = [call(10, 5, "cudaMemcpyAsync", key="copy"), Row(STREAM_7, 80, 5, "Memcpy HtoD", "memcpy", launch="copy")]
    assert held(*busy, *copy, last="Memcpy HtoD") == (LAUNCH, 15, "launch_delay")


def test_late_work_waits_for_what_ended_before_it_on_another_stream():
    other = queued(0, 5, 6, 60, "other", STREAM_8)
    assert held(*other, *queued(10, 5, 68, 5, "late"), last="late") == (ACROSS, 66, "kernel_wait")


def test_other_devices_do_not_matter():
    busy = queued(0, 5, 6, 100, "busy", OTHER_DEVICE)
    first = queued(0, 3, 5, 1, "first")
    assert held(*busy, *first, *queued(10, 5, 80, 5, "late"), last="late") == (LAUNCH, 15, "launch_delay")


def test_a_call_that_lies_on_no_thread_tells_nothing():
    rows = [call(0, 5, track=STREAM_8, key="odd"), kernel(10, 5, "odd")]
    _, work, bound = parts_of(spans_of(op(0, 1), *rows))
    assert (work.call.tolist(), bound.by.tolist()) == ([-1], [NOTHING])


def test_rows_are_found_also_in_a_table_of_which_rows_are_missing():
    spans = spans_of(op(0, 5), op(6, 2), op(9, 1))
    assert rows_of(spans, pl.Series([2, None], dtype=pl.UInt32)).tolist() == [2, -1]
    assert rows_of(spans.filter(pl.col("span_id") != 1), pl.Series([2, None], dtype=pl.UInt32)).tolist() == [1, -1]


def test_calls_are_told_by_their_names():
    spans = spans_of(op(0, 9, "cudaFree"), call(1, 2, "cudaFree"), call(4, 2, "cudaMalloc"))
    assert calls_like(spans, lambda name: name == "cudaFree").tolist() == [1]


# Everything at once against the rules, one piece of work at a time. A unit is 10 µs: three are a long gap.
UNIT = 10 * US
calls = st.tuples(
    st.integers(0, 3),  # pause before the call
    st.integers(1, 3),  # its length
    st.sampled_from([MAIN, AUTOGRAD]),
    st.sampled_from(["kernel", "memcpy", "graph", "wait", "unlinked"]),
    st.sampled_from([STREAM_7, STREAM_8, OTHER_DEVICE]),
    st.integers(0, 9),  # from the call's start to its work's
    st.integers(0, 6),  # length of the work
)


def random_rows(drawn):
    rows, now = [op(0, 1)], dict.fromkeys((MAIN, AUTOGRAD), 1)
    for i, (pause, length, thread, what, stream, delay, lasts) in enumerate(drawn):
        at = now[thread] + pause
        now[thread] = at + length
        if what == "wait":
            rows.append(call(at, length, "cudaStreamWaitEvent", thread))
            continue
        rows.append(call(at, length, "cudaLaunchKernel", thread, key=f"c{i}"))
        launch = None if what == "unlinked" else f"c{i}"
        sort = "memcpy" if what == "memcpy" else "kernel"
        rows.append(Row(stream, at + delay, lasts, f"w{i}", sort, launch=launch))
        if what == "graph":
            rows.append(Row(STREAM_8, at + delay, 1, f"g{i}", "kernel", launch=launch))
    return rows


def queued_before(work, k, at):
    """The last work of each other stream of the device by then, if piece k is the first that its stream gets after."""
    order = sorted(range(work.start.size), key=lambda j: (work.called[j], j))
    after = [j for j in order if work.track[j] == work.track[k] and work.called[j] > at]
    if after[:1] != [k]:
        return []
    last = {work.track[j]: j for j in order if work.called[j] <= at and work.device[j] == work.device[k]}
    return [j for track, j in last.items() if track != work.track[k]]


def by_the_rules(work, waits, k):
    """What held up piece k: (by, at, other), by looking at everything."""
    start, n = work.start[k], work.start.size
    earlier = [j for j in range(k) if work.track[j] == work.track[k]]
    before = max(earlier, key=lambda j: (work.end[j], j), default=None)
    options = []
    if before is not None:
        options.append((min(work.end[before], start), BEFORE, before))
    if work.call[k] >= 0:
        if work.returned[k] <= start:
            submitted = work.returned[k]
        elif options and options[0][0] >= work.called[k]:
            submitted = work.called[k]
        else:
            submitted = start
        options.append((submitted, LAUNCH, None))
    siblings = [j for j in range(n) if j != k and work.call[j] == work.call[k] >= 0]
    device = [j for j in range(n) if work.device[j] == work.device[k] and work.end[j] > work.start[j]]
    ended = [j for j in device if work.end[j] <= start and work.called[j] <= work.called[k]]
    last = max((work.end[j] for j in ended), default=None)
    crossed = [work.end[j] for t in waits for j in queued_before(work, k, t) if work.end[j] <= start]
    if last is not None and siblings and work.call[k] >= 0:
        crossed.append(last)
    options += [(at, ACROSS, None) for at in crossed]
    if work.call[k] >= 0 and start - max(options)[0] >= 3 * UNIT:
        same = [j for j in device if work.sort[j] == work.sort[k]]
        running = any(work.start[j] < start < work.end[j] for j in same)
        ready = max(at for at, by, _ in options if by != ACROSS)
        if running:
            options = [o for o in options if o[1] != ACROSS] + [(start, ACROSS, None)]
        elif last is not None and last > ready:
            options = [o for o in options if o[1] != ACROSS] + [(last, ACROSS, None)]
    # Nothing is known of it: it follows its device.
    options = options or [(work.end[j], ACROSS, None) for j in device if j != k and work.end[j] <= start]
    options = options or [(LONG_AGO, NOTHING, None)]
    at = max(at for at, _, _ in options)
    return min(by for when, by, _ in options if when == at), at


@pytest.mark.slow
@given(st.lists(calls, min_size=1, max_size=9))
def test_the_rules_hold_for_all_work_together(drawn):
    rows = random_rows(drawn)
    spans = spans_of(*rows, unit=UNIT)
    _, work, bound = parts_of(spans)
    waits = [row.ts * UNIT for row in rows if row.name == "cudaStreamWaitEvent"]
    for k in range(work.start.size):
        assert (bound.by[k], bound.at[k]) == by_the_rules(work, waits, k)
        if bound.by[k] == ACROSS:
            assert min(work.end[bound.across[k]], work.start[k]) == bound.at[k]
        if work.call[k] >= 0:
            assert work.called[k] <= bound.submitted[k] <= max(work.start[k], work.called[k])


@pytest.mark.parametrize("unit", [US, UNIT])
def test_no_device_work_is_no_work(unit):
    _, work, bound = parts_of(spans_of(op(0, 5), unit=unit))
    assert work.start.size == bound.by.size == 0
