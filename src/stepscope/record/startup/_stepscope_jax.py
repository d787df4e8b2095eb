"""JAX: profiles this process with jax.profiler, and recognises the steps that the job marks.

JAX has no optimizer, and the functions that it compiles are called from outside of Python: steps are known only where
the job marks them, with jax.profiler.StepTraceAnnotation.
"""

from __future__ import annotations

import functools
import glob
import gzip
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

ENDING = ".jax.trace.json.gz"


class JaxProfiler:
    """One profile by jax.profiler, which sees all threads, and may be started and stopped from any."""

    any_thread = True
    errors = (RuntimeError, OSError, AttributeError, TypeError, ValueError, LookupError)

    def __init__(self, jax: ModuleType, folder: str, files: Any) -> None:
        self._jax, self.folder, self._files = jax, folder, files
        # The recorder removes what is left there.
        self._job = os.path.join(folder, ".job")
        self._into = os.path.join(self._job, "jax-%d" % os.getpid())
        self._start_ns = 0
        self._range = None  # type: Any
        #: While ours is started the job does not start one.
        self.is_starting = False

    def obstacle(self) -> str | None:
        """Why this process is not profiled, as a text that is empty if obvious; None if it is profiled."""
        state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
        return "the job uses jax.profiler itself" if getattr(state, "profile_session", None) is not None else None

    def is_safe(self) -> bool:
        """Anywhere."""
        return True

    def prepare(self) -> None:
        """Do nothing: JAX needs no preparation."""
        self._into = os.path.join(self._job, "jax-%d" % os.getpid())

    def start(self) -> None:
        """Start the profile of JAX and XLA. Python calls are left out, because they would slow the job down."""
        profiler = self._jax.profiler
        options = {}  # type: dict[str, Any]
        if hasattr(profiler, "ProfileOptions"):
            options["profiler_options"] = profiler.ProfileOptions()
            options["profiler_options"].python_tracer_level = 0
        self._start_ns = time.time_ns()
        self.is_starting = True
        try:
            profiler.start_trace(self._into, **options)
        finally:
            self.is_starting = False

    def mark(self, n: int | None) -> None:
        """Step n begins; with None the current step ends and no other begins."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        if n is not None:
            self._range = self._jax.profiler.TraceAnnotation("ProfilerStep#%d" % n)
            self._range.__enter__()

    def stop(self) -> None:
        """Stop the profile. JAX writes it, with times that count from its start."""
        self._jax.profiler.stop_trace()

    def write(self) -> bool:
        """Write rankN.jax.trace.json.gz, and in it when it began. Raises OSError, LookupError (JAX left none)."""
        try:
            traces = glob.glob(os.path.join(glob.escape(self._into), "plugins", "profile", "*", "*.trace.json.gz"))
            if not traces:
                raise LookupError("jax.profiler left no trace.json.gz")
            path = self._files.target(self.folder, self._rank(), ENDING)
            head = b'{"baseTimeNanoseconds":%d,"jax_version":"%s",' % (self._began(), self._version())
            self._files.pack(_with_head(traces[0], head), self.folder, path)
        finally:
            shutil.rmtree(self._into, ignore_errors=True)
        return True

    def _version(self) -> bytes:
        return str(self._jax.__version__).encode()

    def _began(self) -> int:
        """Unix time at which times of the trace are 0: from the profile itself, or else when we started it."""
        files = glob.glob(os.path.join(glob.escape(self._into), "plugins", "profile", "*", "*.xplane.pb"))
        reader = getattr(self._jax.profiler, "ProfileData", None)
        if reader is not None and files:
            for plane in reader.from_file(files[0]).planes:
                for name, value in plane.stats:
                    if name == "profile_start_time":
                        return int(value)
        return self._start_ns

    def _rank(self) -> int | None:
        rank = self._files.rank_of(os.environ)
        if rank is None:
            state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
            if (getattr(state, "num_processes", None) or 1) > 1:
                rank = getattr(state, "process_id", None)
        return None if rank is None else int(rank)


def _with_head(path: str, head: bytes) -> Iterable[bytes]:
    """The trace with additional fields at its start. Raises OSError."""
    with gzip.open(path, "rb") as source:
        source.read(1)  # the opening brace, which the head already has
        yield head
        while True:
            piece = source.read(1 << 20)
            if not piece:
                return
            yield piece


def watch(jax: ModuleType, steps: Any, profiler: JaxProfiler) -> bool:
    """Report each step that the job marks to `steps`. False if this version of JAX does not allow that."""
    inner = sys.modules.get("jax._src.profiler")
    if inner is None or not hasattr(jax.profiler, "start_trace"):
        return False
    kind = jax.profiler.StepTraceAnnotation
    make = kind.__init__

    # It begins when it is made, not when it is entered.
    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if steps.wants_ranges:
            steps.marked()
        make(self, *args, **kwargs)

    kind.__init__ = init
    start = jax.profiler.start_trace

    @functools.wraps(start)
    def start_trace(*args: Any, **kwargs: Any) -> Any:
        if not profiler.is_starting:
            steps.profile.make_way("the job uses jax.profiler itself")
        return start(*args, **kwargs)

    vars(inner)["start_trace"] = vars(jax.profiler)["start_trace"] = start_trace
    return True
