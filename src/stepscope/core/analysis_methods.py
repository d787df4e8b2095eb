"""Every analysis as a method: `trace.analyses.idle(by="gap")` is `stepscope.show(trace, "idle", by="gap")`.

The methods are looked up by name. `analysis_methods.pyi` declares them with their options, so that editors complete
them; `make docs` writes it from the analyses.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.core.hooks import verb

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl


class AnalysisMethods:
    """The analyses of a trace, or of all traces of a run, as methods that return frames."""

    def __init__(self, source: object) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Callable[..., pl.DataFrame]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in dir(self):
            msg = f"no analysis named {name!r}; dir() of this lists them"
            raise AttributeError(msg)
        return partial(verb("show"), self._source, name)

    def __dir__(self) -> list[str]:
        listed = verb("tables")()
        names: Any = listed.filter(listed["kind"].is_in(["analysis", "ranks"]))["name"]
        return [name.replace("-", "_") for name in names]
