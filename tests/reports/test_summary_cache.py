from __future__ import annotations

import os
import pickle
import shutil
import time
import zlib
from dataclasses import replace

import pytest

import stepscope
from stepscope import store
from stepscope.core import files
from stepscope.reports import overview as overview_home
from stepscope.reports.overview import summarise, summarise_file
from stepscope.reports.summary_cache import WHAT, keep_summary, kept_summary
from stepscope.store._key import settled as is_settled


@pytest.fixture
def run(tmp_path, examples, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(examples / "demo-cpu-2ranks", tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    return stepscope.load_run(tmp_path / "run")


def settled(run):
    """Wait until a change of the files would show in their times."""
    for path in run.paths:
        while not is_settled(path, time.time_ns()):
            pass
    return run


def text(run):
    return str(stepscope.report(run, workers=0))


def formats():
    store.wait()
    return sorted(entry.format for entry in store.entries(store.place()))


def test_a_report_of_the_same_ranks_is_made_of_kept_summaries(run, monkeypatch):
    first = text(settled(run))
    assert formats() == ["kineto", "kineto", "kineto, summary", "kineto, summary"]
    monkeypatch.setattr(overview_home, "summarise", lambda _: pytest.fail("read again"))
    assert text(run) == first


def test_so_is_the_report_of_one_file(run, monkeypatch):
    one = stepscope.load_run(settled(run).paths[0])
    first = text(one)
    assert formats() == ["kineto", "kineto, summary"]
    monkeypatch.setattr(overview_home, "summarise", lambda _: pytest.fail("read again"))
    assert text(one) == first


def test_a_file_that_changed_is_read_again(run):
    text(settled(run))
    path = run.paths[0]
    shutil.copy(run.paths[1], path)
    assert "2 files" in text(run) or "another file has rank 1" in " ".join(text(run).split())


def test_a_side_file_that_appears_counts_as_a_change(run, tmp_path):
    before = [store.note_ticket(WHAT, path, run.open_trace.depends(path)).key for path in run.paths]
    (tmp_path / "run" / "counters.csv").write_text("ts_ns,metric,unit,device,value\n1,host_cpu_usage,%,host,5\n")
    after = [store.note_ticket(WHAT, path, run.open_trace.depends(path)).key for path in run.paths]
    assert not set(before) & set(after)


def test_of_many_files_only_summaries_are_kept(run, monkeypatch):
    monkeypatch.setattr(overview_home, "_MOST_KEPT", 1)
    text(settled(run))
    assert formats() == ["kineto, summary", "kineto, summary"]


def test_what_is_opened_otherwise_is_not_kept(run):
    settled(run)
    path = run.paths[0]
    summary = summarise_file(stepscope.load, path, most_calls=100)
    assert summary.calls is not None
    assert "kineto, summary" not in formats()


def test_summaries_of_formats_that_are_several_files_are_not_kept(run):
    ticket = store.note_ticket(WHAT, settled(run).paths[0], ())
    summary = summarise(run.open_trace(run.paths[0]))
    keep_summary(ticket, replace(summary, meta=replace(summary.meta, format="rocprof")))
    assert kept_summary(ticket) is None
    keep_summary(ticket, summary)
    assert kept_summary(ticket).meta == summary.meta


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    "content",
    [
        b"not packed",
        zlib.compress(b"not a pickle"),
        zlib.compress(pickle.dumps(Evil())),
        zlib.compress(pickle.dumps(5)),
    ],
    ids=["not packed", "no pickle", "another program", "another value"],
)
def test_what_is_no_summary_is_not_made_into_one(run, content):
    ticket = store.note_ticket(WHAT, settled(run).paths[0], ())
    trace = run.open_trace(run.paths[0])
    store.keep_noted(ticket, content, trace.meta, what=WHAT)
    assert store.noted(ticket) == content
    assert kept_summary(ticket) is None


def test_kept_summaries_are_shown_in_the_cache_by_their_file(run):
    text(settled(run))
    store.wait()
    shown = {entry.source for entry in store.entries(store.place()) if "summary" in entry.format}
    assert shown == {files.absolute(path) for path in run.paths}
