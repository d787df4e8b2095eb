from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from stepscope import exports
from stepscope.core.errors import UnknownName
from stepscope.exports.export import Export


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
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries if group else [])


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
