"""Marks the steps of a job whose loop nothing else shows."""

from __future__ import annotations

import sys


def step() -> None:
    """A step of the job's loop begins here, and the one before it has ended.

    Call it once in each turn of a loop that no optimizer, numbered range or JAX annotation marks, so that `stepscope
    record` times its steps. Threads that answer requests may call it after each of these. It takes less than a
    microsecond, and does nothing in a job that is not recorded.
    """
    hook = sys.modules.get("_stepscope_job")  # the recorder's start-up hook, which needs no stepscope in the job
    if hook is not None:
        hook.step()
