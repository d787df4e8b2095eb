"""Lets the recorder's py-spy look at this process where the system (Yama) allows that to a process' parents alone."""

from __future__ import annotations

import os

_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61


def allow(pid: int, scope: str = _SCOPE) -> None:
    """Name the process that may read our memory, and those that it starts; children of ours that fork do the same."""
    try:
        with open(scope, encoding="ascii") as file:
            if file.read().strip() != "1":  # 0 needs nothing, 2 and 3 give nothing
                return
    except OSError:  # there is no Yama
        return
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def name() -> None:
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)

    name()
    os.register_at_fork(after_in_child=name)
