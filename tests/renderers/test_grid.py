from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.renderers._grid import Column, fit, grid, pad
from stepscope.renderers.cells import width


def test_columns_are_aligned_under_headers_that_wrap():
    found = grid([Column("name", ["a", "long name"]), Column("mean duration", ["5 ns", "10 ns"], right=True)], 80)
    assert found.head == ("               mean", "name       duration")
    assert found.body == ("a              5 ns", "long name     10 ns")


def test_the_widest_text_gives_way_first():
    found = grid([Column("a", ["x" * 60], squeeze=True), Column("b", ["y" * 30], squeeze=True)], 82)
    shortened, whole = found.body[0].split("  ")
    assert (len(shortened), whole) == (50, "y" * 30)


def test_sentences_are_broken_into_lines():
    found = grid([Column("a", ["x"]), Column("doc", ["one two three four five six seven"], wrap=True)], 25)
    assert found.body == ("x  one two three four", "   five six seven")


@pytest.mark.parametrize(
    ("room", "left_out"), [(26, ()), (25, ("c",)), (18, ("c", "d")), (11, ("b", "c", "d")), (1, ("b", "c", "d"))]
)
def test_what_can_be_spared_is_left_out_from_the_right(room, left_out):
    cells = ["12345"]
    columns = [Column("a", cells), Column("b", cells), Column("c", cells, spare=2), Column("d", cells, spare=1)]
    assert grid(columns, room).left_out == left_out


SEQUENCE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int) ×3 → "
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(T3) → "
    "void ns::layer_norm_kernel<float>(int) → aten::mul"
)


def test_a_sequence_of_kernels_is_told_by_what_each_does():
    whole = fit(SEQUENCE, 150)
    assert whole == (
        "vectorized_elementwise_kernel<CUDAFunctor_add> ×3 → reduce_kernel<MeanOps> → ns::layer_norm_kernel → aten::mul"
    )
    assert fit(SEQUENCE, 60) == "add ×3 → Mean → layer_norm → mul"
    assert fit(SEQUENCE, 20) == "add ×3 → Mean → lay…"
    assert fit(SEQUENCE, len(SEQUENCE)) == SEQUENCE


def test_no_columns_are_no_lines():
    assert grid([], 80).body == ()


@given(st.text(), st.integers(1, 80))
def test_fitted_text_never_exceeds_its_room_unless_a_sign_is_wider(text, room):
    assert width(fit(text, room)) <= room


@given(st.text(st.characters(categories=["L", "N"])), st.integers(0, 20), st.booleans())
def test_padded_text_keeps_its_letters_and_reaches_its_room(text, room, right):
    padded = pad(text, room, right=right)
    assert padded.strip(" ") == text
    assert width(padded) == max(room, width(text))


@given(
    st.lists(
        st.tuples(st.text("ab c", max_size=30), st.text("xyz:<>", max_size=90), st.booleans()), min_size=1, max_size=6
    ),
    st.integers(40, 160),
)
def test_lines_fit_the_room_whatever_the_columns(columns, room):
    found = grid([Column(header, [cell], squeeze=squeeze) for header, cell, squeeze in columns], room)
    only = len(columns) - len(found.left_out) == 1  # the first column stays even if it is too wide
    assert all(width(line) <= room for line in (*found.head, *found.body)) or only
