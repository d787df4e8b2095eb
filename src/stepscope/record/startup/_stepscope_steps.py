"""Where a job's steps begin: at numbered ranges, or else at steps of an optimizer, or else at calls of its model.

Replays of captured graphs that no model's call makes count as calls of a model. All of these are reported here as they
happen. The most reliable source so far marks the steps, and it stays the same once a profile has begun.
"""

from __future__ import annotations

import _thread
import re
import threading
import time
import weakref
from typing import Any

#: Names of ranges that number steps, without the number.
_NAME = re.compile(
    r"((?:[a-z]+[ _:#./-]*)?(?:step|iter|iteration|batch))[ _:#./-]*\d+",
    re.IGNORECASE,
)
#: An optimizer that steps this often while the one that marked steps did not replaces that one.
_TAKES_OVER = 10

#: So does a thread that calls the model so often while the one that marked steps has not called it for so long: models
#: are tried out on the main thread before others answer requests.
_SILENT_NS = 1_000_000_000

#: So many replays of captured graphs since an optimizer stepped show that it will not any more: its steps are in them.
_REPLAYS = 64

#: A thread that called models this often is not short-lived, as a thread for one request would be.
_KNOWN = 3

_NOTHING, _MODULE, _OPTIMIZER, _RANGE = range(4)
_NAMES = (None, "module calls", "optimizer steps", "named ranges")
_GRAPHS = "replays of graphs"


class Steps:
    """Counts steps of this process, and reports the begin of each to `profile` and to `times`."""

    def __init__(self, profile: Any, log: Any, times: Any) -> None:
        self.profile, self._log, self._times = profile, log, times
        self._source = _NOTHING
        self._range = None  # type: Any
        self._n_ranges = self._n_optimizer = 0
        self._optimizer = None  # type: Any
        self._n_other_steps = {}  # type: dict[int, int]
        self._inside = {}  # type: dict[int, int]
        #: Of each thread: how often it called a module, and its modules: weak, whether it is a model, calls - 1.
        self._here = _thread._local()  # type: Any
        self._lead = -1
        self._model = None  # type: Any
        #: When the thread whose calls are steps called last, and calls of the model on other threads since then.
        self._led_ns = self._n_apart = 0
        #: Replays of graphs since an optimizer stepped, and those that count as steps, from 0 on.
        self._n_since = 0
        self._n_replays = -1
        self._graphs_lead = self._graphs_are_parts = False
        #: Whether a graph is being captured: what is called then does nothing yet.
        self.is_capturing = False
        self.has_optimizer = False
        #: How often a step of an optimizer has begun.
        self.n_begun = 0

    def named_range(self, name: str) -> None:
        """A range of this name begins. It is a step if it ends with a number and is named like the first such range."""
        match = _NAME.fullmatch(name) if isinstance(name, str) and name[-1:].isdigit() else None
        if match is None or self.profile.is_marking:
            return
        kind = match.group(1)
        if self._range is None and (self._source == _RANGE or not self.profile.is_near):
            self._range = kind
            self.profile.has_own_marks = kind == "ProfilerStep"
        if self._range == kind:
            self.marked()

    def marked(self) -> None:
        """A range that is a step begins."""
        n, self._n_ranges = self._n_ranges, self._n_ranges + 1
        self._tell(_RANGE, n)

    def optimizer_begins(self) -> None:
        """A step of an optimizer begins. It may call that of another one inside; the outermost counts."""
        thread = _thread.get_ident()
        self.n_begun += 1
        self._inside[thread] = self._inside.get(thread, 0) + 1

    def optimizer_ended(self, optimizer: Any, *, stepped: bool = True) -> None:
        """A step of an optimizer has ended, or failed."""
        thread = _thread.get_ident()
        depth = self._inside.pop(thread, 1) - 1
        if depth:
            self._inside[thread] = depth
        elif stepped and not self.is_capturing:
            self.after_step(optimizer)

    def after_step(self, optimizer: Any) -> None:
        """A step of an optimizer has ended, or was left out. Of several optimizers only the first one marks steps."""
        self.has_optimizer = True
        self._n_since = 0
        if self._graphs_lead:
            # Graphs are parts of steps after all: this optimizer only steps seldom.
            self._graphs_lead, self._graphs_are_parts = False, True
        now = self._optimizer() if self._optimizer is not None else None
        if now is not optimizer:
            n_since = self._n_other_steps.get(id(optimizer), 0) + 1
            if now is not None and n_since < _TAKES_OVER:
                self._n_other_steps[id(optimizer)] = n_since
                return
            self._optimizer = weakref.ref(optimizer)
        self._n_other_steps.clear()
        self._n_optimizer += 1
        self._tell(_OPTIMIZER, self._n_optimizer)

    def module_called(self, module: Any) -> bool:
        """A module is called, not from within another's call. Calls of a model are steps if nothing is trained.

        Whether this call marks a step: if so, `module_ended` must be called.
        """
        here = self._here
        here.n_calls = getattr(here, "n_calls", 0) + 1
        self.profile.safe_point(
            may_begin=here.n_calls > _KNOWN or (threading.current_thread() is threading.main_thread())
        )
        if self._source > _MODULE or self.has_optimizer or self.is_capturing:
            return False
        if not hasattr(here, "models"):
            here.models = {}
        known = here.models.get(id(module))
        if known is None or known[0]() is not module:
            # Transforms, losses and the like have no parameters; copies for a device are made again for each call.
            is_model = _holds_something(module) and not getattr(module, "_is_replica", False)
            known = here.models[id(module)] = [weakref.ref(module), is_model, -1]
        if not known[1]:
            return False
        known[2] += 1
        # Of several models the one that is called most often marks steps: the first one to reach a number of calls.
        if self._takes_over(known):
            return False
        if known[2] > self._lead and (self._model is known or not self.profile.is_near):
            self._lead, self._model, self._graphs_lead = known[2], known, False
            self._tell(_MODULE, known[2])
            return True
        return False

    def _takes_over(self, known: Any) -> bool:
        """Whether this thread's calls are steps from the next one on, because the thread that marked them is silent."""
        now = time.monotonic_ns()
        if self._model is None or self._model is known:
            self._led_ns, self._n_apart = now, 0
        if self._model is None or self._model is known or self._model[0]() is not known[0]():
            return False
        self._n_apart += 1
        if self._n_apart < _TAKES_OVER or now - self._led_ns < _SILENT_NS:
            return False
        self._model, known[2] = known, self._lead
        self._led_ns, self._n_apart = now, 0
        self.profile.moves_here()
        self._times.paused()
        return True

    def replayed(self) -> None:
        """A captured graph is replayed, not from within a model's call.

        It is a step if graphs are replayed more often than any model is called, and no optimizer steps any more.
        """
        self._n_since += 1
        if self._source == _RANGE or self._graphs_are_parts or (self.has_optimizer and self._n_since < _REPLAYS):
            return
        self._n_replays += 1
        if not self._graphs_lead:
            if self.profile.is_near or (not self.has_optimizer and self._n_replays <= self._lead):
                return
            self._graphs_lead, self._model, self.has_optimizer = True, None, False
            self._source = min(self._source, _MODULE)
            self._log.add(step_source=_GRAPHS)
        self._lead = max(self._lead, self._n_replays)
        self._tell(_MODULE, self._n_replays)

    def module_ended(self, took_ns: int) -> None:
        """A call of the model that marked a step has ended, after so long."""
        if self._source == _MODULE:
            self._times.worked(took_ns)

    @property
    def wants_ranges(self) -> bool:
        """Whether ranges may be steps: ranges mark them, or it is not known yet what does."""
        return self._source == _RANGE or not self.profile.is_over

    def is_enough(self) -> bool:
        """Whether the profile needs no other events than ends of steps such as this one."""
        return self._source > _MODULE and self.profile.is_content()

    def is_settled(self) -> bool:
        """Whether no calls of modules are needed any more, except those of the model whose calls are the steps."""
        is_known = self._source > _MODULE or self.has_optimizer or self._lead >= _TAKES_OVER
        return self.profile.is_over and is_known

    def model(self) -> Any:
        """The model whose calls are the steps; None if something else marks them."""
        is_known = self._model is not None and self._source == _MODULE and not self.has_optimizer
        return self._model[0]() if is_known else None

    def at_exit(self) -> None:
        """The process ends."""
        self._times.flush()

    def in_child(self) -> None:
        """In a forked child."""
        self._inside.clear()
        self._times.in_child()
        self.profile.in_child()

    def _tell(self, source: int, n: int) -> None:
        if source != self._source:
            if source < self._source or self.profile.is_near:
                return
            self._source = source
            self._log.add(step_source=_GRAPHS if self._graphs_lead else _NAMES[source])
        runs = self.profile.runs_here
        self._times.ended(source, is_unlike=runs)
        self.profile.step_begins(n)
        if runs or self.profile.runs_here:
            self._times.unlike()


def _holds_something(module: Any) -> bool:
    """Whether a module has parameters or buffers."""
    for _ in module.parameters():
        return True
    return any(True for _ in module.buffers())
