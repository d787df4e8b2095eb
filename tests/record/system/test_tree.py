from __future__ import annotations

import contextlib
import os
import subprocess
import time

from stepscope.record.system.tree import descendants, is_alive


def test_descendants_are_found_and_the_dead_are_not():
    with subprocess.Popen(["sh", "-c", "sleep 60 & sh -c 'sleep 60; true'; true"]) as job:
        try:
            deadline = time.monotonic() + 20
            while len(descendants(job.pid)) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            found = descendants(job.pid)
            assert found[0] == job.pid
            assert job.pid in descendants(os.getpid())
        finally:
            for pid in reversed(descendants(job.pid)):
                with contextlib.suppress(ProcessLookupError):  # its parent ended it
                    os.kill(pid, 9)
        while is_alive(job.pid):  # it waits to be reaped then, and lives no more
            time.sleep(0.01)
        assert os.path.exists(f"/proc/{job.pid}")  # noqa: PTH110
        assert descendants(job.pid) == []
    assert not is_alive(job.pid)
