from __future__ import annotations

import pytest

from stepscope.analyses.costs.arguments import Arguments, Unclear

ARGS = Arguments.parse(
    "[[2,3],[],[3],[[1],[2]],[]]",
    '["c10::BFloat16","Scalar","float","TensorList","ScalarList"]',
    '["","True","","","[1, -2]"]',
)


def test_tensors_have_shapes_types_and_bytes():
    assert ARGS.shape(0) == (2, 3)
    assert (ARGS.count(0), ARGS.element(0), ARGS.nbytes(0)) == (6, 2, 12)
    assert ARGS.dtype(2) == "float"
    assert [ARGS.has(i) for i in range(6)] == [True, False, True, False, False, False]


def test_numbers_among_the_operands_are_arguments_of_four_bytes():
    assert [ARGS.nbytes(i) for i in (1, 3, 9)] == [4, 0, 0]


def test_plain_values():
    assert ARGS.flag(1)
    assert ARGS.numbers(4) == [1, -2]
    assert ARGS.value(9) == ""
    assert Arguments([], [], ["", "[True, False]"]).flags(1) == [True, False]
    assert Arguments([], [], ["15"]).wanted_dtype(0, "float") == "c10::BFloat16"
    assert Arguments([], [], [""]).wanted_dtype(0, "float") == "float"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ARGS.shape(1), lambda: ARGS.shape(0, 3), lambda: ARGS.dtype(3), lambda: ARGS.flag(4),
        lambda: ARGS.numbers(1), lambda: ARGS.flags(4), lambda: Arguments([[-1]], ["float"], []).shape(0),
        lambda: Arguments.parse(None, None, None), lambda: Arguments.parse("[[1]]", None, None),
        lambda: Arguments.parse("[[1]", "[]", None), lambda: Arguments.parse("5", "[]", None),
    ],
)  # fmt: skip
def test_what_is_not_told_is_unclear(ask):
    with pytest.raises(Unclear):
        ask()
