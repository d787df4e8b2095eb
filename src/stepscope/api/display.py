"""Gives reports, comparisons and benchmarks their display: text, HTML for notebooks, Plotly figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stepscope.core.errors import StepscopeError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.comparison import Comparison
    from stepscope.core.report import Report
    from stepscope.core.trace import Run, Trace
    from stepscope.renderers.figures import Drawn
    from stepscope.timing import Bench

_BARS = "Where the time went"


def with_display(report: Report) -> Report:
    """The report with functions to print it as in the terminal, to draw it in a notebook and to plot it."""
    return replace(report, to_text=_text, to_html=_html, to_figure=_figure)


def with_display_of_comparison(outcome: Comparison) -> Comparison:
    """The same for a comparison."""
    return replace(outcome, to_text=_outcome_text, to_html=_outcome_html, to_figure=_outcome_figure)


def _text(report: Report) -> str:
    """The report as the terminal shows it."""
    from stepscope import renderers

    render = renderers.find("terminal").report
    return render(report, renderers.Screen()) if render else report.headline


def _html(report: Report) -> str:
    """The report as an element without scripts."""
    from stepscope.renderers.html import fragment

    return fragment(report)


def _figure(report: Report) -> Any:
    """The report's own figure, as that of a comparison, else its bars: a `plotly.graph_objects.Figure`."""
    from stepscope.renderers import figures
    from stepscope.renderers.figures.stacked import bars

    for block in report.tables:
        drawn = None if block.drawn is None else figures.drawn(block.table.name, block.drawn)
        if drawn is not None:
            return _of_plotly(drawn, figures.find(block.table.name).title)
    return _of_plotly(bars([(bar.label, [(p.name, p.ratio) for p in bar.parts]) for bar in report.bars]), _BARS)


def _outcome_text(outcome: Comparison) -> str:
    """The comparison as the terminal shows it."""
    from stepscope.reports.comparison import comparison

    return _text(comparison(outcome))


def _outcome_html(outcome: Comparison) -> str:
    """The comparison as an element without scripts."""
    from stepscope.reports.comparison import comparison

    return _html(comparison(outcome))


def _outcome_figure(outcome: Comparison) -> Any:
    """The step time of the base and, part by part, what changed: a `plotly.graph_objects.Figure`.

    Raises StepscopeError if the step times are unknown.
    """
    from stepscope.renderers import figures
    from stepscope.reports.comparison import bounded_parts

    drawn = figures.drawn("parts", bounded_parts(outcome))
    if drawn is None:
        raise StepscopeError("the comparison has no parts of a step to draw", "print it to see the reason")
    return _of_plotly(drawn, figures.find("parts").title)


def bench_text(bench: Bench) -> str:
    """The measurements as the terminal shows them."""
    from stepscope import renderers, timing

    draw = renderers.find("terminal").table
    return timing.text(bench, lambda block: str(draw(block, renderers.Screen()))) if draw else repr(bench)


def plot(
    source: Trace | Run, name: str, options: Mapping[str, Any], *, on_missing: Callable[[str, StepscopeError], None]
) -> Any:
    """The figure of a table, as a `plotly.graph_objects.Figure`.

    The table gets the options that the figure needs, unless `options` say otherwise. Raises UnknownName
    (no figure for the table, option), MissingTable, StepscopeError (nothing to draw).
    """
    from stepscope.query import tables
    from stepscope.renderers import figures

    if name not in figures.names():
        tables.find(name)  # an unknown table has its own error
        raise UnknownName("figure", name, figures.names())
    figure = figures.find(name)
    frame, _ = tables.collect(source, tables.find(name), on_missing=on_missing, **{**figure.options, **options})
    drawn = None if frame.is_empty() else figure(frame)
    if drawn is None:
        raise StepscopeError(f"{name} cannot be drawn: all its values are unknown", f"see the table: show {name}")
    return _of_plotly(drawn, figure.title)


def _of_plotly(drawn: Drawn, title: str) -> Any:
    import plotly.graph_objects as go

    from stepscope.renderers import figures

    made = figures.titled(drawn, title)
    # The plain form has a transparent background, through which a notebook's theme would show.
    plain = {k: v for k, v in made["layout"].items() if k not in ("paper_bgcolor", "plot_bgcolor")}
    return go.Figure({"data": made["data"], "layout": {**plain, "template": "plotly_white"}})
