"""Python imports a module of this name when it starts: ours, then the one that it would have found without us."""

from __future__ import annotations

import importlib
import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.environ.get("STEPSCOPE_RECORD_DIR", "")
    if os.path.isdir(os.path.join(folder, ".job")):
        steps, window = (os.environ.get("STEPSCOPE_RECORD_" + name, "") for name in ("STEPS", "WINDOW"))
        job = importlib.import_module("_stepscope_job")
        job.start(folder, steps, window)
        if tracer := os.environ.get("STEPSCOPE_RECORD_TRACER"):
            job.allow_tracer(int(tracer))
    # Child processes inherit the variable; this process no longer needs the folder.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    _users_own()


def _users_own() -> None:
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start()
