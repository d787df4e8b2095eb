"""The report of a job with what else is wanted of each file: the same wherever files are read, each opened once."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

import pytest
from job_simulator import Layout, Plan, simulate
from make_ranks import write

import stepscope
from stepscope.api.reporting import report_and_more
from stepscope.core.trace import Run


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    write(simulate(Plan(Layout(dp=3), steps=4)), folder)
    return folder


RANK_OF = attrgetter("rank")


def counted(opener, opened, path):
    opened.append(path)
    return opener(path)


def test_the_report_is_the_same_and_every_file_gives_what_is_wanted_of_it(job):
    run = stepscope.load_run(job)
    report, more = report_and_more(run, RANK_OF)
    assert report.headline == stepscope.report(job, workers=0).headline
    assert more == dict(zip(run.paths, (0, 1, 2), strict=True))


def test_a_file_is_opened_once_for_both(job):
    run, opened = stepscope.load_run(job), []
    report_and_more(Run(run.paths, partial(counted, run.open_trace, opened)), RANK_OF)
    assert opened == list(run.paths)


def test_a_file_that_cannot_be_read_gives_nothing_more(job, tmp_path):
    broken = tmp_path / "rank9.pt.trace.json"
    broken.write_text("{")
    run = stepscope.load_run([job, broken])
    report, more = report_and_more(run, RANK_OF)
    assert list(more) == [path for path in run.paths if path != str(broken)]
    assert "rank9" in " ".join(report.quality)


@pytest.mark.slow
def test_worker_processes_give_the_same(job, monkeypatch):
    monkeypatch.setattr("stepscope.query.workers.pool._START_S", 0.0)
    monkeypatch.setattr("stepscope.query.workers.pool.cores", lambda: 2)
    done = []
    run = stepscope.load_run(job)
    # What is sent to another process must be found there: tests are not.
    report, more = report_and_more(run, RANK_OF, progress=lambda *n: done.append(n))
    assert done[-1] == (3, 3)
    assert list(more.values()) == [0, 1, 2]
    assert report.headline == stepscope.report(job, workers=0).headline
