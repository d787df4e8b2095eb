from __future__ import annotations

import polars as pl
import pytest
from path_traces import MAIN, PATH_TRACKS, STREAM_7, STREAM_8, Row, call, op, parts_of, queued, spans_of

from stepscope.analyses.critical_path.events import awaited_by_events, crossings
from stepscope.core.schema import EVENT_WAITS

RECORD, WAIT, SYNC = "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventSynchronize"
#: Two pieces on one stream, an event between them, and a piece on another stream that waits for the event.
TWO_STREAMS = [
    *queued(0, 2, 3, 20, "a"),
    call(4, 1, RECORD, key="record"),
    *queued(6, 2, 23, 5, "b"),
    call(10, 1, WAIT, key="wait"),
    *queued(12, 2, 40, 5, "c", STREAM_8),
]


def waits_of(spans, **records):
    """The table of waits: for each call with a record on the device the call that recorded the event on stream 7."""
    names = spans["name"].cast(pl.String).to_list()
    rows = [(names.index(mark), 7, names.index(record)) for mark, record in records.items()]
    return EVENT_WAITS.conform(pl.DataFrame(rows, schema=["span_id", "stream", "recording_id"], orient="row"))


def crossed(*rows, **records):
    """Names of pairs: what waited, and what had to end first."""
    spans = spans_of(op(0, 1), *rows)
    _, work, _ = parts_of(spans)
    name = spans["name"].cast(pl.String).gather(work.row).to_list()
    later, earlier = crossings(spans, PATH_TRACKS, work, waits_of(spans, **records))
    return [(name[a], name[b]) for a, b in zip(later, earlier, strict=True)]


def test_a_named_event_stands_for_what_its_stream_was_given_before_it():
    mark = Row(STREAM_8, 11, 1, "mark", "sync", launch="wait")
    assert crossed(*TWO_STREAMS, mark, mark=RECORD) == [("c", "a")]


def test_an_event_that_is_not_named_stands_for_all_that_was_queued_before_the_wait():
    assert crossed(*TWO_STREAMS) == [("c", "b")]
    assert crossed(*TWO_STREAMS, Row(STREAM_8, 11, 1, "mark", "sync", launch="wait")) == [("c", "b")]


def test_what_ended_too_late_was_not_waited_for():
    assert crossed(*TWO_STREAMS[:-2], *queued(12, 2, 25, 5, "c", STREAM_8)) == []


@pytest.mark.parametrize(("end", "expected"), [(24, "a"), (30, "b")])
def test_a_synchronisation_waits_for_the_last_record_that_the_recording_allows(end, expected):
    again = call(9, 1, RECORD)
    rows = [op(0, 1), *TWO_STREAMS[:-3], again, call(12, end - 12, SYNC)]
    spans = spans_of(*rows)
    _, work, _ = parts_of(spans)
    name = spans["name"].cast(pl.String).to_list()
    (awaited,) = awaited_by_events(
        spans, PATH_TRACKS, work, EVENT_WAITS.empty(), pl.Series([name.index(SYNC)]).to_numpy()
    )
    assert name[work.row[awaited]] == expected


def test_a_named_synchronisation_waits_for_that_record():
    mark = Row(STREAM_7, 12, 1, "mark", "sync", launch="sync")
    spans = spans_of(op(0, 1), *TWO_STREAMS[:-3], mark, call(12, 20, SYNC, track=MAIN, key="sync"))
    _, work, _ = parts_of(spans)
    name = spans["name"].cast(pl.String).to_list()
    rows = pl.Series([name.index(SYNC)]).to_numpy()
    (awaited,) = awaited_by_events(spans, PATH_TRACKS, work, waits_of(spans, mark=RECORD), rows)
    assert name[work.row[awaited]] == "a"
