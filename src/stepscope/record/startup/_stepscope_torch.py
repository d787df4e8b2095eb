"""PyTorch: profiles this process with torch.profiler, recognises its steps, and writes snapshots of its memory.

Functions of torch are wrapped, to see when an optimizer steps, a module is called, or a range or a profiler begins. A
wrapper pretends to come from the file of the original function, because torch.compile does not compile such files
and torch.jit looks up names in their module.
"""

from __future__ import annotations

import _thread
import functools
import inspect
import os
import sys
import time
import types
from _thread import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ENDING = ".pt.trace.json.gz"
#: Kineto's categories of operators, kernels and launches. The trace of a process that did anything has one of them.
_WORK = (b'"cpu_op"', b'"kernel"', b'"cuda_runtime"')
_ERRORS = (RuntimeError, OSError, AttributeError, AssertionError, TypeError, ValueError)
#: How many events a history of memory has at most, how often requests for snapshots are looked for, and how many
#: snapshots are written of failures that the job survives.
_EVENTS, _TICK_S, _FAILURES = 100_000, 0.1, 5


class TorchProfiler:
    """One profile by torch.profiler. It records the thread that starts it, and the autograd work of that thread.

    Recording all threads (`profile_all_threads`) is not possible: torch 2.13 corrupts its memory if that starts or
    stops while another thread is in an operator.
    """

    any_thread = False
    errors = _ERRORS

    def __init__(self, torch: types.ModuleType, folder: str, files: Any) -> None:
        self._torch, self.folder, self._files = torch, folder, files
        self._kineto = self._open = None  # type: Any
        self._rank = None  # type: int | None
        self._memory = bool(os.environ.get("STEPSCOPE_RECORD_MEMORY"))
        # Looked up now, because the package may be partly unloaded when the process ends.
        self._task = getattr(getattr(torch, "_C", None), "_current_graph_task_id", None)

    def obstacle(self) -> str | None:
        """Why this process is not profiled, as a text that is empty if obvious; None if it is profiled."""
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if getattr(worker, "_worker_info", None) is not None:
            return ""  # it loads data
        if self._torch.autograd._profiler_enabled():
            return "the job uses torch.profiler itself"
        return None

    def is_safe(self) -> bool:
        """Whether the profiler can start or stop on this thread now.

        It is unsafe inside the engine that runs backward, which resets a thread's state on its return, and while a CUDA
        graph is recorded, which the profiler would disturb.
        """
        if self._task is not None and self._task() != -1:
            return False
        cuda = self._torch.cuda
        return not (cuda.is_initialized() and cuda.is_current_stream_capturing())

    def prepare(self) -> None:
        """Prepare the profiler, which takes seconds with CUDA."""
        torch = self._torch
        activities = None
        if torch.version.cuda and not torch.cuda.is_initialized():
            # Devices that the job does not use stay untouched.
            activities = [torch.profiler.ProfilerActivity.CPU]
        self._rank = _own_rank(torch, self._files)
        kineto = torch.profiler._KinetoProfile(activities=activities, record_shapes=True, profile_memory=self._memory)
        make = torch.autograd.profiler.profile
        if "torch._inductor" in sys.modules or "use_device" not in inspect.signature(make).parameters:
            kineto.prepare_trace()
        else:
            # The same as prepare_trace, which would import torch._inductor: a second or more, and 70 MB.
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
        """Start the profile."""
        self._kineto.start_trace()

    def mark(self, n: int | None) -> None:
        """Step n begins; with None the current step ends and no other begins."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        if n is not None:
            self._open = self._torch.profiler.record_function("ProfilerStep#%d" % n)
            self._open.__enter__()

    def stop(self) -> None:
        """Stop the profile."""
        self._kineto.stop_trace()

    def write(self) -> bool:
        """Write rankN.pt.trace.json.gz; False, and no file, if nothing happened. Raises OSError, RuntimeError."""
        kineto, self._kineto = self._kineto, None
        files = self._files
        plain = files.part(self.folder, "json")
        try:
            kineto.export_chrome_trace(plain)
            if not any(word in piece for piece in files.pieces(plain) for word in _WORK):
                return False
            rank = self._rank if self._rank is not None else _own_rank(self._torch, files)
            files.pack(files.pieces(plain), self.folder, files.target(self.folder, rank, ENDING))
        finally:
            files.remove(plain)
        return True


class MemorySnapshots:
    """Records the history of a process' device memory, and writes snapshots of it as torch does.

    One is written when the process ends, one each time that the recorder asks for it, and one when a device is out of
    memory, before the job sees the error. The history begins when the job initialises CUDA.
    """

    def __init__(self, torch: types.ModuleType, log: Any, files: Any) -> None:
        self._torch, self._log, self._files = torch, log, files
        self._lock = _thread.allocate_lock()
        self._pid = self._n_failures = self._n_asked = 0

    def watch(self) -> None:
        """Begin as soon as CUDA is initialised."""
        cuda = self._torch.cuda
        later = getattr(cuda, "_lazy_call", None)
        if later is None or not hasattr(cuda.memory, "_record_memory_history"):
            self._log.issue("memory_snapshot_failed", "this torch has no history of memory: it needs torch 2.0")
            return
        later(self._begin)

    def _begin(self) -> None:
        memory = self._torch.cuda.memory
        try:
            new = getattr(memory, "_record_memory_history_impl", None)
            if new is None:  # torch 2.0
                memory._record_memory_history(True, trace_alloc_max_entries=_EVENTS, trace_alloc_record_context=True)
            else:
                wanted = {"stacks": "python", "max_entries": _EVENTS, "global_record_annotations": True}
                known = inspect.signature(new).parameters
                memory._record_memory_history("all", **{name: wanted[name] for name in wanted if name in known})
            self._torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        except _ERRORS as error:
            self._log.issue("memory_snapshot_failed", "the history of memory was not recorded: %r" % (error,))
            return
        self._pid = os.getpid()
        _thread.start_new_thread(self._listen, ())

    def at_exit(self) -> None:
        """The process ends: write the last snapshot."""
        self._write("")
        self._pid = 0

    def _out_of_memory(self, *_about: object) -> None:
        """Torch calls this before it raises the error."""
        self._n_failures += 1
        if self._n_failures <= _FAILURES:
            self._write(".oom-%d" % self._n_failures)

    def _listen(self) -> None:
        """Write a snapshot when the file of requests grows, until the process or the recording ends."""
        job = os.path.join(self._log.folder, ".job")
        n_done = 0
        while self._pid == os.getpid() and os.path.isdir(job):
            time.sleep(_TICK_S)
            try:
                n_asked = os.stat(os.path.join(job, "memory-snapshots")).st_size
            except OSError:
                continue
            if n_asked > n_done:
                n_done = n_asked
                self._n_asked += 1
                self._write(".asked-%d" % self._n_asked)

    def _write(self, why: str) -> None:
        if self._pid != os.getpid():  # CUDA is not initialised, or it is the parent's
            return
        folder, files = self._log.folder, self._files
        with self._lock:
            part = files.part(folder, "memory")
            try:
                self._torch.cuda.memory._dump_snapshot(part)
                os.rename(part, files.target(folder, _own_rank(self._torch, files), ".memory%s.pickle" % why))
            except _ERRORS as error:
                self._log.issue("memory_snapshot_failed", "a snapshot of memory could not be written: %r" % (error,))


def _own_rank(torch: types.ModuleType, files: Any) -> int | None:
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = files.rank_of(os.environ)
    return None if rank is None else int(rank)


def is_helper() -> bool:
    """Whether this process only compiles for another one. Torch starts a pool of such processes."""
    arguments = getattr(sys, "orig_argv", sys.argv)
    return any("_inductor" in word and "compile_worker" in word for word in arguments)


#: Names that `_call` finds in the torch module of the function that it replaces.
_stepscope_is_compiling = _stepscope_original = _stepscope_call = None  # type: Any


def watch(torch: types.ModuleType, steps: Any) -> bool:
    """Report this process' steps to `steps`. False if torch is too old for that."""
    kind = torch.optim.Optimizer
    if not hasattr(kind, "profile_hook_step"):
        return False
    is_compiling = _is_compiling(torch)
    modules = Modules(torch.nn.Module, steps)
    modules.wrap(torch.nn.Module, is_compiling)
    _watch_optimizers(torch, steps, is_compiling, modules)
    _watch_scalers(torch, steps)
    _watch_graphs(torch, steps, modules)
    _watch_ranges(torch.autograd.profiler.record_function, steps)
    _watch_profilers(torch.autograd.profiler.profile, steps.profile)
    _leave_out_all(torch, steps, steps.profile)
    _leave_out(torch, Modules._call.__code__, below=False)
    _leave_out(torch, Modules.rest.__code__, below=True)
    return True


def _watch_optimizers(torch: types.ModuleType, steps: Any, is_compiling: Callable[[], bool], modules: Any) -> None:
    """Report each step of each optimizer.

    Torch wraps the `step` of each optimizer's class when its first instance is made. Torch's own hooks would run inside
    the range that this wrapper records, and steps would end in the middle of it. So we wrap the wrapper.
    """
    kind = torch.optim.Optimizer
    wrap = kind.profile_hook_step

    def wrapped(step: Any) -> Any:
        inner = wrap(step)
        steps.has_optimizer = True

        def outer(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return inner(*args, **kwargs)
            steps.optimizer_begins()
            has_stepped = False
            try:
                result = inner(*args, **kwargs)
                has_stepped = True
            finally:
                steps.optimizer_ended(args[0], stepped=has_stepped)
            if not modules.is_resting and steps.is_enough():
                modules.rest()
            return result

        made = functools.wraps(inner)(outer)  # type: Any
        # torch.compile(optimizer.step) compiles what is below, and we see each step.
        _leave_out(torch, made.__code__, below=False)
        return made

    kind.profile_hook_step = staticmethod(wrapped)


def _watch_scalers(torch: types.ModuleType, steps: Any) -> None:
    """Report steps that a gradient scaler skips because a gradient is infinite: they end there too."""
    package = getattr(torch, "amp", None)
    kind = getattr(package, "GradScaler", None) or torch.cuda.amp.GradScaler
    original = kind.step

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = steps.n_begun
        result = original(self, optimizer, *args, **kwargs)
        if steps.n_begun == before:
            steps.after_step(optimizer)
        return result

    kind.step = _like(original, step)


def _watch_graphs(torch: types.ModuleType, steps: Any, modules: Any) -> None:
    """Report each replay of a captured CUDA graph that no module's call makes, and when one is captured."""
    kind = getattr(torch.cuda, "CUDAGraph", None)  # type: Any
    if not hasattr(kind, "capture_end"):
        return
    original, original_begin, original_end = kind.replay, kind.capture_begin, kind.capture_end

    def replay(self: Any) -> Any:
        if not modules.is_inside():
            steps.replayed()
        return original(self)

    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.is_capturing = True
        return original_begin(self, *args, **kwargs)

    def end(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.is_capturing = False
        return original_end(self, *args, **kwargs)

    kind.replay = functools.update_wrapper(replay, original)
    kind.capture_begin = functools.update_wrapper(begin, original_begin)
    kind.capture_end = functools.update_wrapper(end, original_end)


class Modules:
    """The wrapper of Module.__call__: it reports outermost calls, as long as they are needed."""

    def __init__(self, kind: Any, steps: Any) -> None:
        self._original = kind.__call__
        self._wrapper = None  # type: Any
        self._steps = steps
        self._busy = set()  # type: set[int]
        self.is_resting = False

    def wrap(self, kind: Any, is_compiling: Callable[[], bool]) -> None:
        """Put the wrapper in its place."""
        names = self._original.__globals__
        names["_stepscope_is_compiling"], names["_stepscope_call"] = is_compiling, self._call
        names["_stepscope_original"] = self._original
        self._wrapper = kind.__call__ = _like(self._original, _call)

    def rest(self) -> None:
        """Report no more calls, except those of the kind of model whose calls are the steps.

        The wrapper stays, because torch.compile stores and compares it, but it gets the code of the wrapped function.
        """
        if self.is_resting:
            return
        self.is_resting = True
        model = self._steps.model()
        kind = type(model)  # type: Any
        if model is not None and kind.__call__ is self._wrapper:
            kind.__call__ = _like(self._original, _call)
        self._wrapper.__code__ = self._original.__code__

    def is_inside(self) -> bool:
        """Whether this thread is in the call of a module."""
        return get_ident() in self._busy

    def _call(self, module: Any, args: Any, kwargs: Any) -> Any:
        thread = get_ident()
        if thread in self._busy:
            return self._original(module, *args, **kwargs)
        self._busy.add(thread)
        begin_ns = 0
        try:
            is_step = self._steps.module_called(module)
            if self._steps.is_settled():
                self.rest()
            begin_ns = time.monotonic_ns() if is_step else 0
            return self._original(module, *args, **kwargs)
        finally:
            self._busy.discard(thread)
            if begin_ns:
                self._steps.module_ended(time.monotonic_ns() - begin_ns)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    # torch.compile assumes that this is true, and does not see the rest.
    if _stepscope_is_compiling():
        return _stepscope_original(self, *args, **kwargs)
    return _stepscope_call(self, args, kwargs)


def _watch_ranges(kind: Any, steps: Any) -> None:
    original = kind.__enter__

    def enter(self: Any) -> Any:
        if steps.wants_ranges:
            steps.named_range(self.name)
        return original(self)

    kind.__enter__ = _like(original, enter)


def _watch_profilers(kind: Any, profile: Any) -> None:
    """End our profile before the job starts a profiler."""
    original = getattr(kind, "_prepare_trace", None)
    if original is None:
        return

    @functools.wraps(original)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        profile.make_way("the job uses torch.profiler itself")
        return original(self, *args, **kwargs)

    kind._prepare_trace = prepare


def _like(original: Any, wrapper: Any) -> Any:
    """The wrapper with file, line and module names of the original. It may only use closures."""
    code = wrapper.__code__.replace(
        co_filename=original.__code__.co_filename,
        co_firstlineno=original.__code__.co_firstlineno,
        co_name=original.__code__.co_name,
    )
    made = types.FunctionType(code, original.__globals__, original.__name__, wrapper.__defaults__, wrapper.__closure__)
    return functools.update_wrapper(made, original)


def _leave_out(torch: types.ModuleType, code: types.CodeType, *, below: bool) -> None:
    """Have torch.compile leave out a function that a call begins with; with `below`, also what that function calls."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)  # type: Any
    if hasattr(frames, "skip_code"):  # up to torch 2.6
        frames.skip_code(code)
    elif hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(
            code, frames._FrameExecStrategy(action.SKIP, action.SKIP if below else action.DEFAULT)
        )


def _leave_out_all(torch: types.ModuleType, *objects: Any) -> None:
    """Have torch.compile leave out methods of ours, which wrappers call."""
    for kind in map(type, objects):
        for method in vars(kind).values():
            if isinstance(method, types.FunctionType):
                _leave_out(torch, method.__code__, below=True)


def _is_compiling(torch: types.ModuleType) -> Any:
    """The function that says whether torch.compile is tracing the code without executing it."""
    return getattr(getattr(torch, "compiler", None), "is_compiling", None) or bool
