"""stepscope says where the time of a training or inference step went. The public names, each imported on first use.

>>> import stepscope
>>> trace = stepscope.load("examples/demo-cpu-decode/rank0.pt.trace.json.gz")
>>> print(stepscope.report(trace))  # doctest: +ELLIPSIS
PyTorch · CPU only · steps 4–15 (12) · 39.7 ms recorded · 5,357 events read
...
>>> stepscope.show(trace, "operators", by="shape").columns[:3]
['name', 'input_shapes', 'calls']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stepscope.core.hooks import use_verbs

if TYPE_CHECKING:
    from stepscope.api.verbs import (
        bench,
        compare,
        export,
        load,
        load_run,
        plot,
        predict,
        report,
        schema_of,
        show,
        sql,
        tables,
    )
    from stepscope.comparison import Comparison
    from stepscope.core.errors import (
        CorruptInput,
        FunctionFailed,
        MissingExtra,
        MissingTable,
        StepscopeError,
        UnknownFormat,
        UnknownName,
        UnsupportedVersion,
        WouldOverwrite,
    )
    from stepscope.core.report import Report
    from stepscope.core.step_marker import step
    from stepscope.core.trace import Results, Run, Trace
    from stepscope.timing import Bench

    __version__: str

__all__ = [
    "Bench",
    "Comparison",
    "CorruptInput",
    "FunctionFailed",
    "MissingExtra",
    "MissingTable",
    "Report",
    "Results",
    "Run",
    "StepscopeError",
    "Trace",
    "UnknownFormat",
    "UnknownName",
    "UnsupportedVersion",
    "WouldOverwrite",
    "bench",
    "compare",
    "export",
    "load",
    "load_run",
    "plot",
    "predict",
    "report",
    "schema_of",
    "show",
    "sql",
    "step",
    "tables",
]

_VERBS = (
    "bench", "compare", "export", "load", "load_run", "plot", "predict", "report", "schema_of", "show", "sql", "tables",
)  # fmt: skip
_HOMES = {
    **dict.fromkeys(
        _VERBS, "stepscope.api.verbs"
    ),
    **dict.fromkeys(("Trace", "Results", "Run"), "stepscope.core.trace"),
    "Report": "stepscope.core.report",
    "step": "stepscope.core.step_marker",
    "Bench": "stepscope.timing",
    "Comparison": "stepscope.comparison",
    **dict.fromkeys(
        (
            "CorruptInput", "FunctionFailed", "MissingExtra", "MissingTable", "StepscopeError", "UnknownFormat",
            "UnknownName", "UnsupportedVersion", "WouldOverwrite",
        ),
        "stepscope.core.errors",
    ),
}  # fmt: skip


if not TYPE_CHECKING:  # or a misspelt name would pass as any object

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from stepscope.core.version import program_version

            return program_version()
        if name not in _HOMES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


use_verbs(lambda name: getattr(importlib.import_module("stepscope.api.verbs"), name))
