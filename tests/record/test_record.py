from __future__ import annotations

from stepscope import record


def test_recording_from_python(tmp_path):
    done = record.run(["sh", "-c", "exit 3"], tmp_path / "run", steps=None)
    assert isinstance(done, record.Recorded)
    assert (done.exit_code, done.problems, done.traces) == (3, (), ())
    assert done.folder == tmp_path / "run"
    assert 0 < done.seconds < 60
