from __future__ import annotations

import signal

import pytest
import typer

from stepscope.cli._run import opened, size_of
from stepscope.core.errors import StepscopeError


@pytest.mark.parametrize(("text", "n_bytes"), [("4096", 4096), ("20GB", 20 * 10**9), ("2GiB", 2 << 30)])
def test_sizes_are_read_in_the_usual_words(text, n_bytes):
    assert size_of(text) == n_bytes


@pytest.mark.parametrize("text", ["lots", "-1", ""])
def test_a_wrong_size_is_a_usage_error_that_shows_a_right_one(text):
    with pytest.raises(typer.BadParameter, match="is not a size; write a size as"):
        size_of(text)


def test_a_run_is_opened_as_files_are_asked_for(job, paths):
    with opened([str(path) for path in paths], max_bytes="10", no_progress=True) as run:
        assert job.opened == []
        assert [trace.rank for trace in run] == [0, 1, 10]
    assert {limit for _, limit in job.opened} == {10}


def test_nothing_there_is_refused():
    with pytest.raises(StepscopeError), opened(["no-such-file"], max_bytes=None, no_progress=True) as run:
        list(run)


def test_interrupts_end_blocked_reads_on_systems_without_the_switch_too(job, paths, monkeypatch):
    monkeypatch.delattr(signal, "siginterrupt", raising=False)
    with opened([str(paths[0])], max_bytes=None, no_progress=True) as run:
        assert len(run) == len(job.traces) - 2
