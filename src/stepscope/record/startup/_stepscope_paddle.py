"""Paddle: profiles this process with paddle.profiler, and recognises steps of optimizers."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

ENDING = ".paddle_trace.pb.gz"
#: The environment variable from which Paddle's logging library takes the level from which it writes to standard error.
_LOG_LEVEL = "_ZN3fLI17FLAGS_minloglevelE"


class PaddleProfiler:
    """One profile by paddle.profiler, which sees all threads, and may be started and stopped from any."""

    any_thread = True
    errors = (RuntimeError, SystemError, OSError, AttributeError, TypeError, ValueError)

    def __init__(self, paddle: ModuleType, folder: str, files: Any) -> None:
        self._paddle, self.folder, self._files = paddle, folder, files
        self._profiler = self._range = None  # type: Any
        #: While ours is made the job has not made one.
        self.is_making = False
        #: Called after a profiler was made, because that wraps the optimizers' steps again.
        self.made = []  # type: list[Any]

    def obstacle(self) -> str | None:
        """Why this process is not profiled, as a text that is empty if obvious; None if it is profiled."""
        worker = sys.modules.get("paddle.io.dataloader.worker")
        return "" if getattr(worker, "_worker_info", None) is not None else None  # it loads data

    def is_safe(self) -> bool:
        """Anywhere."""
        return True

    def prepare(self) -> None:
        """Prepare the profiler. Raises RuntimeError if the job has made one, because there can only be one."""
        self.is_making = True
        try:
            made = self._paddle.profiler.Profiler(on_trace_ready=lambda _: None, record_shapes=True)
        finally:
            self.is_making = False
        for call in self.made:
            call()
        if made.profiler is None:
            raise RuntimeError("the job uses paddle.profiler itself")
        self._profiler = made
        made.profiler.prepare()

    def start(self) -> None:
        """Start the profile as Paddle's own start does, but without its first mark of a step: we mark the steps."""
        parts = sys.modules["paddle.profiler.profiler"]
        parts.enable_op_info_recorder()
        parts.utils._is_profiler_used = True
        self._profiler.profiler.start()

    def mark(self, n: int | None) -> None:
        """Step n begins; with None the current step ends and no other begins."""
        profiler = self._paddle.profiler
        if self._range is not None:
            self._range.end()
            self._range = None
        if n is not None:
            kind = profiler.TracerEventType.ProfileStep
            self._range = profiler.RecordEvent(name="ProfileStep#%d" % n, event_type=kind)
            self._range.begin()

    def stop(self) -> None:
        """Stop the profile."""
        parts = sys.modules["paddle.profiler.profiler"]
        self._profiler.profiler_result = self._profiler.profiler.stop()
        parts.utils._is_profiler_used = False
        parts.disable_op_info_recorder()

    def write(self) -> bool:
        """Write rankN.paddle_trace.pb.gz. Raises OSError."""
        profiler, self._profiler = self._profiler, None
        plain = self._files.part(self.folder, "pb")
        try:
            with _Quiet(self._paddle):
                profiler.export(plain, format="pb")
            path = self._files.target(self.folder, self._files.rank_of(os.environ), ENDING)
            self._files.pack(self._files.pieces(plain), self.folder, path)
        finally:
            self._files.remove(plain)
        return True


class _Quiet:
    """A context in which Paddle does not write to the job's standard error where its file goes."""

    def __init__(self, paddle: ModuleType) -> None:
        self._level = None  # type: Any
        self._before = 0
        try:
            library = ctypes.CDLL(paddle.base.libpaddle.__file__)
            self._level = ctypes.c_int.in_dll(library, _LOG_LEVEL)
        except (OSError, ValueError, AttributeError):
            return  # a build that has it elsewhere prints its line

    def __enter__(self) -> None:
        if self._level is not None:
            self._before, self._level.value = self._level.value, 2

    def __exit__(self, *_: object) -> None:
        if self._level is not None:
            self._level.value = self._before


def watch(paddle: ModuleType, steps: Any, profiler: PaddleProfiler) -> bool:
    """Report each step of each optimizer to `steps`. False if this version of Paddle does not allow that."""
    if not hasattr(paddle, "profiler") or not hasattr(paddle, "amp"):
        return False
    base = paddle.optimizer.Optimizer
    make = base.__init__
    kinds = set()  # type: set[Any]
    ours = set()  # type: set[Any]

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        steps.has_optimizer = True
        if type(self) not in kinds:
            kinds.add(type(self))
            wrap()
        make(self, *args, **kwargs)

    def wrap() -> None:
        """Wrap methods without our wrapper on the outside, because a step ends when the outermost wrapper does."""
        for kind in kinds:
            for name in ("step", "minimize"):
                owner = next((owner for owner in kind.__mro__ if name in vars(owner)), None)
                if owner is not None and vars(owner)[name] not in ours:
                    made = _watched(vars(owner)[name], steps)
                    ours.add(made)
                    setattr(owner, name, made)

    base.__init__ = init
    profiler.made.append(wrap)
    _watch_scalers(paddle, steps)
    _watch_profilers(paddle.profiler.Profiler, steps.profile, profiler)
    return True


def _watched(step: Any, steps: Any) -> Any:
    @functools.wraps(step)
    def outer(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.optimizer_begins()
        has_stepped = False
        try:
            result = step(self, *args, **kwargs)
            has_stepped = True
        finally:
            steps.optimizer_ended(self, stepped=has_stepped)
        return result

    return outer


def _watch_scalers(paddle: ModuleType, steps: Any) -> None:
    """Report steps that a gradient scaler skips because a gradient is infinite: they end there too."""
    kind = paddle.amp.GradScaler
    original = kind.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = steps.n_begun
        result = original(self, optimizer, *args, **kwargs)
        if steps.n_begun == before:
            steps.after_step(optimizer)
        return result

    kind.step = step


def _watch_profilers(kind: Any, profile: Any, profiler: PaddleProfiler) -> None:
    """End our profile before the job makes a profiler."""
    make = kind.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not profiler.is_making:
            profile.make_way("the job uses paddle.profiler itself")
        make(self, *args, **kwargs)

    kind.__init__ = init
