"""The keeper of stacks: a process of its own that lets py-spy look at a job, and writes down what it saw.

`python -m stepscope.record.stacks.main '{"folder": …, "hz": 100, "spy": "/…/py-spy"}'`; the job's pid comes as a line
on standard input. At its end a line of JSON on standard output tells what was recorded and what could not be.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from stepscope.record.stacks.stack_file import NAME, StackFile
from stepscope.record.stacks.stack_watcher import Keeper
from stepscope.record.system import meta
from stepscope.record.system.child_main import pid_from, tell
from stepscope.record.system.tree import is_alive

__all__ = ["main"]


def main(argument: str) -> int:
    """Keep stacks until the end; what came of it goes to standard output. 0, or 1 if there was no job."""
    wanted = json.loads(argument)
    folder = Path(wanted["folder"])
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    # The recorder holds its signals back, and so would we, and py-spy.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the job
        signal.signal(number, signal.SIG_IGN)
    root = pid_from(sys.stdin.fileno())
    if root is None:
        return 1
    gc.disable()
    before = time.process_time()
    failure = None
    file = None
    keeper = None
    try:
        file = StackFile(folder / NAME)
        keeper = Keeper(root, folder, file, wanted["spy"], int(wanted["hz"]))
        _keep(keeper, bell)
        keeper.finish()
    except OSError as error:
        failure = f"Python stacks end early, the job goes on: {error.strerror or error}"
    issues = []
    if keeper is not None:
        keeper.drop()
        issues = keeper.issues()
    if file is not None:
        file.close()
    if failure is not None:
        issues.append(meta.issue("stacks_ended", failure, severity="error"))
    cost = {"keeping": time.process_time() - before, "py-spy": keeper.ledger.cpu_seconds if keeper else 0.0}
    fields = {
        "n_stack_samples": file.n_samples if file else 0,
        "stacks_cpu_seconds": {name: round(seconds, 3) for name, seconds in cost.items()},
    }
    tell({"issues": issues, "fields": fields})
    return 0


def _keep(keeper: Keeper, bell: int) -> None:
    """Until the job ends, the bell rings, or nobody listens. Raises OSError."""
    while is_alive(keeper.root) and not keeper.file.is_full:
        wait_s = keeper.turn()
        poll = select.poll()
        for handle in (sys.stdin.fileno(), bell, *keeper.handles):
            poll.register(handle, select.POLLIN | select.POLLHUP)
        told = {handle for handle, _ in poll.poll(max(0.0, wait_s * 1000))}
        if bell in told or (sys.stdin.fileno() in told and not os.read(sys.stdin.fileno(), 64)):
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
