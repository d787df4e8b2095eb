"""A profile of some training steps through torch.profiler, with no change to the code: optimizers mark the steps."""

from __future__ import annotations

import atexit
import functools
import gzip
import os
import shutil
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

#: Trace files are packed while the job waits: quickly.
_LEVEL = 1


class Watcher:
    """Counts the steps of the first optimizer that steps, and profiles those from `first` up to `last`."""

    def __init__(self, torch: ModuleType, notes: Any, first: int, last: int, steps: Any) -> None:
        self._torch, self._notes, self._steps = torch, notes, steps
        self._folder, self._wish, self._next = notes.folder, None, None  # type: str, Any, Any
        self._first, self._last = first, last
        self._optimizer = None  # type: Any
        self._pid = os.getpid()
        self._profiler = None  # type: Any
        self._mark = None  # type: Any
        self._is_starting = False
        self._is_over = last == 0
        self.n_steps = 0

    def after_step(self, optimizer: Any) -> None:
        """A step of an optimizer has ended. Of several optimizers the first one alone tells steps apart."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self.n_steps += 1
        if self._profiler is not None:
            self._steps.skip()
        self._next = self._steps.ended(self.n_steps) or self._next
        if self._next is not None and self._is_over:
            self._begin_again()
        if self._is_over:
            return
        if self._profiler is None and self.n_steps >= self._first - 1:
            # A step before the first wanted one is for the profiler to warm up, which takes seconds with CUDA.
            self._prepare()
        if self._profiler is None or self.n_steps < self._first:
            return
        if self.n_steps >= self._last:
            self.finish()
            return
        if self._mark is None:
            self._profiler.start_trace()
        else:
            self._mark.__exit__(None, None, None)
        self._mark = self._torch.profiler.record_function("ProfilerStep#%d" % self.n_steps)
        self._mark.__enter__()

    def foreign(self) -> None:
        """The job starts a profiler of its own: ours makes way."""
        if self._is_starting or self._is_over:
            return
        what = "the job uses torch.profiler itself: "
        if self._profiler is None:
            self._notes.issue("profile_left_out", what + "none of ours was taken", "info")
            self._end()
        else:
            self._notes.issue("profile_cut", what + "ours ended at step %d" % self.n_steps)
            self.finish()

    def _begin_again(self) -> None:
        """Profile some more steps, for a dump of the recorder's."""
        wish, self._wish, self._next, self._is_over = self._next, self._next, None, False
        self._first = max(wish.first, self.n_steps + 1)
        self._last = self._first + wish.n_steps
        self._folder = os.path.join(self._notes.folder, wish.name)

    def _end(self) -> None:
        """No more profile, for now; the recorder may be waiting for it."""
        self._is_over = True
        wish, self._wish = self._wish, None
        if wish is not None:
            self._steps.tell(profiled=wish.name)

    def _prepare(self) -> None:
        torch = self._torch
        if torch.autograd._profiler_enabled():
            self.foreign()
            return
        self._is_starting = True
        self._steps.skip()
        try:
            self._profiler = torch.profiler._KinetoProfile(record_shapes=True)
            self._profiler.prepare_trace()
        except RuntimeError as error:
            self._profiler = None
            self._notes.issue("profile_failed", "torch.profiler did not start: %s" % str(error).splitlines()[0])
            self._end()
        finally:
            self._is_starting = False

    def finish(self) -> None:
        """Stop the profiler and write what it has, if a whole step is in it."""
        profiler, mark, self._profiler, self._mark, self._is_over = self._profiler, self._mark, None, None, True
        if profiler is not None and mark is not None:
            self._steps.skip()
            mark.__exit__(None, None, None)
            profiler.stop_trace()
            if self.n_steps > self._first:
                try:
                    write(profiler, self._folder)
                    if self._wish is None:  # the one that was asked for from the start
                        self._steps.tell(profiled="")
                except (OSError, RuntimeError) as error:
                    self._notes.issue("profile_failed", "the profile could not be written: %s" % error, "error")
        self._end()

    def at_exit(self) -> None:
        """The job ends: write what there is, and tell how far it came."""
        if os.getpid() != self._pid:
            return
        if self._profiler is not None and self.n_steps > self._first:
            text = "the job ended at step %d, before step %d" % (self.n_steps, self._last)
            self._notes.issue("profile_short", text, "info")
        self.finish()
        self._notes.add(steps=self.n_steps)

    def in_child(self) -> None:
        """In a forked child the profiler is its parent's."""
        self._pid = os.getpid()
        self._profiler = self._mark = self._wish = self._next = None
        self._is_over = self._is_over or self.n_steps >= self._first


def write(profiler: Any, folder: str) -> str:
    """The profile as rankN.pt.trace.json.gz (pidN where there is no rank), which appears whole or not at all.

    Raises OSError, RuntimeError (the profiler has nothing).
    """
    rank = os.environ.get("RANK", "")
    pid = os.getpid()
    name = "rank%d" % int(rank) if rank.isdigit() else "pid%d" % pid
    target = os.path.join(folder, name + ".pt.trace.json.gz")
    if os.path.exists(target):
        target = os.path.join(folder, "%s.pid%d.pt.trace.json.gz" % (name, pid))
    plain = os.path.join(folder, ".profile-%d.json.part" % pid)
    packed = os.path.join(folder, ".profile-%d.gz.part" % pid)
    try:
        profiler.export_chrome_trace(plain)
        with open(plain, "rb") as source, gzip.open(packed, "wb", _LEVEL) as out:
            shutil.copyfileobj(source, out, 1 << 20)
        os.rename(packed, target)
    finally:
        for part in (plain, packed):
            if os.path.exists(part):
                os.remove(part)
    return target


def watch(torch: ModuleType, notes: Any, first: int, last: int, steps: Any) -> None:
    """Have the steps of this process watched, and told through `steps`. Notes why not, with a torch that is too old.

    A `last` of 0: no profile but for a dump.
    """
    if not hasattr(torch.optim.Optimizer, "profile_hook_step"):
        notes.issue("profile_left_out", "torch %s does not let us see when a step ends" % torch.__version__)
        return
    watcher = Watcher(torch, notes, first, last, steps)
    _after_each_step(torch, watcher)
    _notice_others(torch, watcher)
    atexit.register(watcher.at_exit)
    os.register_at_fork(after_in_child=watcher.in_child)


def _after_each_step(torch: ModuleType, watcher: Watcher) -> None:
    """Tell the watcher after each step of each optimizer.

    Torch wraps the `step` of each optimizer's class when the first of its kind is made. A hook of torch's would run
    inside the range that this wrapper records, and steps would end in the middle of it; so the wrapper is wrapped.
    """
    kind = torch.optim.Optimizer
    wrap = kind.profile_hook_step

    def wrapped(step: Any) -> Any:
        inner = wrap(step)

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            watcher.after_step(args[0])
            return result

        return outer

    kind.profile_hook_step = staticmethod(wrapped)


def _notice_others(torch: ModuleType, watcher: Watcher) -> None:
    """Tell the watcher before a profiler is started, whoever starts it."""
    kind = torch.autograd.profiler.profile
    original = getattr(kind, "_prepare_trace", None)
    if original is None:
        return

    @functools.wraps(original)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.foreign()
        return original(self, *args, **kwargs)

    kind._prepare_trace = prepare
