from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.options import Option, check_options, options_of

if TYPE_CHECKING:
    from decimal import Decimal


def question(
    first: Decimal, second: Decimal, *, by: Literal["a", "b"] = "a", most: int | None = None, merge: bool = True
):
    """Something to look at."""


OPTIONS = options_of(question)


def test_only_keyword_options_are_read_and_their_types_known():
    assert list(OPTIONS.values()) == [
        Option("by", str, ("a", "b"), "a"), Option("most", int, (), None), Option("merge", bool, (), default=True),
    ]  # fmt: skip


def test_annotations_may_be_types_already():
    def run(*, n=3):
        return n

    run.__annotations__ = {"n": int}
    assert options_of(run)["n"].kind is int


@pytest.mark.parametrize(
    ("name", "text", "value"), [("by", "b", "b"), ("most", "12", 12), ("merge", "off", False), ("merge", "True", True)]
)
def test_a_text_becomes_a_value_of_the_options_type(name, text, value):
    assert OPTIONS[name].decode(text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("by", "c", "by c: choose from a, b"),
        ("most", "many", "most many: not a whole number"),
        ("merge", "perhaps", "merge perhaps: not true or false"),
    ],
)
def test_a_text_that_does_not_fit_is_refused(name, text, message):
    with pytest.raises(StepscopeError) as caught:
        OPTIONS[name].decode(text)
    assert caught.value.message == message


def test_the_error_calls_the_option_as_the_user_typed_it():
    with pytest.raises(StepscopeError, match="--by c: choose from a, b"):
        OPTIONS["by"].decode("c", called="--by")


def test_an_unknown_option_is_refused_by_the_name_of_its_owner():
    with pytest.raises(UnknownName, match="no option of kernels named 'buy'"):
        check_options("kernels", {"by": "a", "buy": "a"}, OPTIONS)
    with pytest.raises(UnknownName, match="no choice of by for kernels named 'c'"):
        check_options("kernels", {"by": "c"}, OPTIONS)
    check_options("kernels", {"by": "a"}, OPTIONS)
