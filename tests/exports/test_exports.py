from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from stepscope import exports
from stepscope.core.errors import UnknownName
from stepscope.core.trace import Run
from stepscope.exports import Context, Export


def text_of(run, context, *, upper: bool = False):
    text = f"{len(run.paths)} {context}"
    return text.upper() if upper else text


PLAIN = Export("plain", "only text", text_of)


@pytest.fixture
def offered(monkeypatch):
    entries = [
        EntryPoint("plain", f"{__name__}:PLAIN", "stepscope.exports"),
        EntryPoint("odd", f"{__name__}:text_of", "stepscope.exports"),
    ]
    monkeypatch.setattr("stepscope.core.registry.entry_points_of", lambda _: {entry.name: entry for entry in entries})


def test_our_own_kinds_are_found_by_name():
    assert exports.names()[0] == "tensorboard"
    assert all(exports.find(name).name == name for name in ("tensorboard", "latencyprism"))


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(UnknownName) as caught:
        exports.find("tensorbored")
    assert "tensorboard" in caught.value.hint


@pytest.mark.usefixtures("offered")
def test_other_packages_offer_kinds():
    assert exports.names()[-2:] == ["odd", "plain"]
    assert exports.find("plain").doc == "only text"
    with pytest.raises(TypeError, match="not Export"):
        exports.find("odd")


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
