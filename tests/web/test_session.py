from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import polars as pl
import pytest
from web_traces import training, written

from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Run
from stepscope.web import session as _session
from stepscope.web import workers
from stepscope.web.session import Busy, Session, stamp_of


def test_inputs_are_numbered_and_have_short_names(session):
    assert [(one.index, one.label) for one in session.inputs()] == [(0, "rank0"), (1, "rank1")]


def test_a_trace_is_read_once_and_again_when_its_file_changes(session, folder):
    first = session.trace(0)
    assert session.trace(0) is first
    assert session.scene(0) is session.scene(0)
    written(folder / "rank0.json", training(steps=5))
    assert session.trace(0).steps.height == 5
    assert session.scene(0).trace is session.trace(0)


def test_new_files_in_a_folder_get_the_next_number(session, folder, monkeypatch):
    monkeypatch.setattr(_session, "_RESCAN_S", 0)
    written(folder / "a-new.json", training())
    assert [one.label for one in session.inputs()] == ["rank0", "rank1", "a-new"]


def test_folders_are_not_looked_at_for_every_request(session, folder):
    written(folder / "a-new.json", training())
    assert len(session.inputs()) == 2


def test_inputs_stay_when_their_folder_goes(session, folder, monkeypatch):
    monkeypatch.setattr(_session, "_RESCAN_S", 0)
    for file in folder.iterdir():
        file.unlink()
    assert len(session.inputs()) == 2


@pytest.mark.parametrize("index", [-1, 2, 10**9])
def test_no_other_number_leads_to_a_file(session, index):
    with pytest.raises(StepscopeError, match="no trace has the number"):
        session.trace(index)


def test_memory_is_bounded_by_giving_up_the_trace_used_longest_ago(folder):
    session = Session([str(folder)], keep_bytes=1)
    first = session.trace(0)
    session.scene(0)
    session.trace(1)
    assert session.trace(0) is not first
    session.close()


def test_which_input_holds_a_rank_is_known_once_it_was_read(session):
    assert session.of_rank((0, 1)) == {}
    assert [trace.rank for trace in session.run((0, 1))] == [0, 1]
    assert session.of_rank((0, 1)) == {0: 0, 1: 1}


def test_an_answer_is_worked_out_once(session):
    calls = []
    asked = [session.ask("key", lambda: calls.append(1) or 7) for _ in range(3)]
    assert [one.result() for one in asked] == [7, 7, 7]
    assert calls == [1]


def test_too_many_questions_are_refused_and_old_answers_forgotten(session):
    gate = threading.Event()
    for i in range(64):
        session.ask(i, gate.wait)
    with pytest.raises(Busy):
        session.ask("one more", gate.wait)
    gate.set()
    last = session.ask(0, gate.wait)
    last.result()
    while True:
        try:
            session.ask("now", lambda: None).result()
            break
        except Busy:
            time.sleep(0.01)


def test_a_failure_is_told_for_a_while_and_then_tried_again(session, monkeypatch):
    calls = []

    def fail():
        calls.append(1)
        raise StepscopeError("no")

    assert session.ask("key", fail).exception(10) is session.ask("key", fail).exception(10)
    assert calls == [1]
    monkeypatch.setattr(_session, "_FAILURE_LASTS_S", 0)
    session.ask("key", fail).exception(10)
    assert calls == [1, 1]


def test_what_was_dropped_is_begun_anew_for_who_asks_again(session):
    first = session.ask("key", lambda: 1)
    first.result(10)
    session._answers["key"].answer = dropped = Future()
    dropped.cancel()
    assert session.ask("key", lambda: 2).result(10) == 2


def test_big_answers_push_each_other_out(session, monkeypatch):
    monkeypatch.setattr(_session, "_MOST_ANSWER_BYTES", 1_000)
    calls = []

    def work():
        calls.append(1)
        return SimpleNamespace(frame=pl.DataFrame({"x": range(100)}))

    for key in "ab":
        session.ask(key, work).result(10)
    session.ask("c", lambda: None).result(10)
    session.ask("b", work).result(10)
    assert len(calls) == 2
    session.ask("a", work).result(10)
    assert len(calls) == 3


def test_rows_are_counted_once_all_is_read(session):
    assert session.heights((0, 1)) is None
    session.trace(0)
    assert session.heights((0, 1)) is None
    one = session.heights((0,))["spans"]
    session.trace(1)
    assert session.heights((0, 1))["spans"] > one


def test_a_run_of_files_is_stopped_between_them(session, monkeypatch):
    monkeypatch.setattr(workers, "_UNWANTED_S", 0.01)
    opened, gate = [], threading.Event()

    def slow(path, **more):
        opened.append(path)
        gate.wait()
        return real(path, **more)

    real = _session.open_trace
    monkeypatch.setattr(_session, "open_trace", slow)
    answer = session.ask("all", lambda: list(session.run((0, 1))))
    while not opened:
        time.sleep(0.01)
    time.sleep(0.05)
    session._workers.tend()
    assert answer.cancelled()
    gate.set()
    while session._workers.pending():
        time.sleep(0.01)
    assert len(opened) == 1


def test_progress_tells_the_file_being_read(session, monkeypatch):
    seen = []

    def slow(path, **more):
        more["progress"](10)
        seen.extend(session.progress())
        return real(path, **more)

    real = _session.open_trace
    monkeypatch.setattr(_session, "open_trace", slow)
    session.trace(0)
    assert seen[0][0] == "rank0.json"
    assert 0 < seen[0][1] < 1
    assert session.progress() == []


def test_a_run_that_is_open_already_is_used_as_it_is(session):
    run = Run(("a", "b"), lambda path: session.trace("ab".index(path)))
    made = Session((), run=run)
    assert [one.path for one in made.inputs()] == ["a", "b"]
    assert made.trace(1).rank == 1
    made.close()


def test_what_is_no_file_has_no_stamp(tmp_path):
    assert stamp_of(str(tmp_path / "none")) is None


def test_a_failure_of_reading_is_told_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text('{"traceEvents": 7}')
    session = Session([str(path)])
    with pytest.raises(StepscopeError):
        session.trace(0)
    assert session.progress() == []
    session.close()
