from __future__ import annotations

import pytest

from stepscope.core.errors import UnknownName
from stepscope.core.trace import Run
from stepscope.exports.export import Context, Export


def first_path(run, context, *, other: str | None = None):
    context.tell("working")
    return run.paths[0] if other is None else context.open_run(other)


EXPORT = Export("plain", "only text", first_path)
RUN = Run(("a.json",), lambda _: None)


def test_an_export_is_called_with_a_run_a_context_and_its_options():
    told = []
    context = Context(str.upper, told.append)
    assert EXPORT(RUN, context) == "a.json"
    assert EXPORT(RUN, context, other="b.json") == "B.JSON"
    assert told == ["working"] * 2
    assert list(EXPORT.options()) == ["other"]


def test_an_option_it_does_not_have_is_refused():
    with pytest.raises(UnknownName, match="option of plain"):
        EXPORT(RUN, Context(str.upper, str), colour="red")
