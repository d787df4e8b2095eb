"""The declarations of `trace.analyses`, made from the signatures of the analyses, so that editors complete options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import analyses

if TYPE_CHECKING:
    from stepscope.core.options import Option

HEAD = '''\
# Made by scripts/generate_docs.py from the analyses; `make docs` writes it anew.

from typing import Literal

import polars as pl

from stepscope.core.trace import Run, Trace

class AnalysisMethods:
    """The analyses of a trace, or of all traces of a run, as methods that return frames."""

    def __init__(self, source: Trace | Run) -> None: ...
    def __dir__(self) -> list[str]: ...
'''


def stubs() -> str:
    """The text of analysis_methods.pyi."""
    names = [*analyses.names("trace"), *analyses.names("ranks")]
    own = [name for name in names if name in analyses.ANALYSES.modules]
    return HEAD + "".join(map(method, own))


def method(name: str) -> str:
    """The declaration of one analysis."""
    analysis = analyses.find(name)
    options = [f"        {argument(option)},\n" for option in analysis.options().values()]
    arguments = "\n        self,\n        *,\n" + "".join(options) + "    " if options else "self"
    return f'    def {name.replace("-", "_")}({arguments}) -> pl.DataFrame:\n        """{analysis.doc}"""\n'


def argument(option: Option) -> str:
    """An option with its type and default."""
    kind = f"Literal[{', '.join(map(repr, option.choices))}]" if option.choices else option.kind.__name__
    optional = " | None" if option.default is None else ""
    return f"{option.name}: {kind}{optional} = {option.default!r}"
