"""torch.profiler as what takes a profile of this process, and what keeps it from doing so."""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

ENDING = ".pt.trace.json.gz"
#: One of these is in the trace of a process that did anything: Kineto's categories of operators, kernels and launches.
_WORK = (b'"cpu_op"', b'"kernel"', b'"cuda_runtime"')


class TorchProfiler:
    """One profile by torch.profiler. It sees the thread that starts it, and what that has autograd do elsewhere.

    All threads at once (`profile_all_threads`) are no choice: started or stopped while another one is in an operator,
    torch 2.13 corrupts its memory.
    """

    any_thread = False
    errors = (RuntimeError, OSError, AttributeError, AssertionError, TypeError, ValueError)

    def __init__(self, torch: ModuleType, folder: str, files: Any) -> None:
        self._torch, self.folder, self._files = torch, folder, files
        self._kineto = self._open = None  # type: Any
        self._rank = None  # type: int | None
        self._memory = bool(os.environ.get("STEPSCOPE_RECORD_MEMORY"))
        # Looked up now: the package may be half gone when the process ends.
        self._task = getattr(getattr(torch, "_C", None), "_current_graph_task_id", None)

    def obstacle(self) -> str | None:
        """Why this process is not to be profiled, in words if that is worth any; None if it is."""
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if getattr(worker, "_worker_info", None) is not None:
            return ""  # it loads data
        if self._torch.autograd._profiler_enabled():
            return "the job uses torch.profiler itself"
        return None

    def is_safe(self) -> bool:
        """Whether the profiler can start or stop on this thread now.

        Not inside of the engine that runs backward, which on its return sets back what a thread does, nor while a
        CUDA graph is recorded, which the profiler would disturb.
        """
        if self._task is not None and self._task() != -1:
            return False
        cuda = self._torch.cuda
        return not (cuda.is_initialized() and cuda.is_current_stream_capturing())

    def prepare(self) -> None:
        """Have the profiler ready: with CUDA it takes seconds."""
        torch = self._torch
        activities = None
        if torch.version.cuda and not torch.cuda.is_initialized():
            # Devices that the job does not use stay untouched.
            activities = [torch.profiler.ProfilerActivity.CPU]
        self._rank = self._own_rank()
        kineto = torch.profiler._KinetoProfile(activities=activities, record_shapes=True, profile_memory=self._memory)
        make = torch.autograd.profiler.profile
        if "torch._inductor" in sys.modules or "use_device" not in inspect.signature(make).parameters:
            kineto.prepare_trace()
        else:
            # As prepare_trace does, which would import torch._inductor: a second or more, and 70 MB.
            kineto.profiler = make(
                use_cpu=True,
                use_device=getattr(kineto, "use_device", None),
                record_shapes=True,
                profile_memory=self._memory,
                use_kineto=True,
            )
            kineto.profiler._prepare_trace()
        self._kineto = kineto

    def start(self) -> None:
        """Profile from now on."""
        self._kineto.start_trace()

    def mark(self, n: int | None) -> None:
        """Step n begins; None: no other begins."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        if n is not None:
            self._open = self._torch.profiler.record_function("ProfilerStep#%d" % n)
            self._open.__enter__()

    def stop(self) -> None:
        """Profile no longer."""
        self._kineto.stop_trace()

    def write(self) -> bool:
        """Write rankN.pt.trace.json.gz; False, and no file, for a process that did nothing in that time.

        Raises OSError, RuntimeError (the profiler has nothing).
        """
        kineto, self._kineto = self._kineto, None
        files = self._files
        plain = files.part(self.folder, "json")
        try:
            kineto.export_chrome_trace(plain)
            if not any(word in piece for piece in files.pieces(plain) for word in _WORK):
                return False
            rank = self._rank if self._rank is not None else self._own_rank()
            files.pack(files.pieces(plain), self.folder, files.target(self.folder, rank, ENDING))
        finally:
            files.remove(plain)
        return True

    def _own_rank(self) -> int | None:
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        rank = self._files.rank_of(os.environ)
        return None if rank is None else int(rank)


def is_helper() -> bool:
    """Whether this process only compiles for another one: torch starts a pool of such."""
    words = getattr(sys, "orig_argv", sys.argv)
    return any("_inductor" in word and "compile_worker" in word for word in words)
