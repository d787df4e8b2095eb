from __future__ import annotations

import os
import subprocess
import threading

from stepscope.record.system import threads
from stepscope.record.system.threads import threads_of


def test_threads_of_a_process_and_its_children_with_their_process(monkeypatch):
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    with subprocess.Popen(["sleep", "60"]) as child:
        found = threads_of(os.getpid())
        child.kill()
    go_on.set()
    thread.join()
    assert found[os.getpid()] == found[thread.native_id] == os.getpid()
    assert found[child.pid] == child.pid
    monkeypatch.setattr(threads, "descendants", lambda _: [child.pid])  # gone since it was listed
    assert threads_of(child.pid) == {}
