from __future__ import annotations

import pytest

import stepscope
from stepscope import record


@pytest.mark.slow
def test_a_job_that_forks_and_execs_is_recorded_from_python(tmp_path):
    job = ["sh", "-c", "(sleep 0.1; true) & wait; exec sh -c 'exit 3'"]
    done = record.run(job, tmp_path / "run", steps=None)
    assert isinstance(done, record.Recorded)
    assert (done.exit_code, done.problems, done.traces) == (3, (), ())
    assert done.folder == tmp_path / "run"
    assert 0 < done.seconds < 60
    assert [trace.counters.height > 0 for trace in stepscope.load_run(done.folder)] == [True]
