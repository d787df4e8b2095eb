from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stepscope.core.options import keyword_options

if TYPE_CHECKING:
    from decimal import Decimal


def question(first: Decimal, second: Decimal, *, by: Literal["a", "b"] = "a", most: int | None = None):
    """Something to look at."""


def test_only_keyword_options_are_found_and_their_types_known():
    found = keyword_options(question)
    assert list(found) == ["by", "most"]
    assert found["by"].annotation == Literal["a", "b"]
    assert found["most"].annotation == int | None
    assert found["by"].default == "a"


def test_annotations_may_be_types_already():
    def run(*, n=3):
        return n

    run.__annotations__ = {"n": int}
    assert keyword_options(run)["n"].annotation is int
