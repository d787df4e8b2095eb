from __future__ import annotations

import math

import fake_frameworks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.core.errors import StepscopeError
from stepscope.timing import _equal
from stepscope.timing._equal import difference

NAN, INF = math.nan, math.inf


def test_equal_results_are_equal():
    found = difference(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3))
    assert (found.n_elements, found.equal_ratio, found.within_tolerance) == (6, 1.0, True)
    assert (found.max_abs_error, found.max_rel_error) == (0.0, 0.0)
    assert found.tolerances == (("float64", 1e-7, 1e-7),)


def test_errors_are_the_largest_and_the_relative_one_is_of_what_is_not_0():
    found = difference(np.array([0.5, 11.0, 100.0, 4.0]), np.array([0.0, 10.0, 99.0, 4.0]))
    assert (found.n_equal, found.max_abs_error, found.max_rel_error) == (1, 1.0, 0.1)
    assert found.within_tolerance is False
    assert difference(np.array([1.0]), np.array([0.0])).max_rel_error is None


@pytest.mark.parametrize(
    ("mine", "theirs", "equal", "error"),
    [
        (NAN, NAN, 1, 0.0),
        (INF, INF, 1, 0.0),
        (-INF, INF, 0, INF),
        (NAN, 1.0, 0, INF),
        (1.0, NAN, 0, INF),
        (1.0, INF, 0, INF),
        (INF, 1.0, 0, INF),
        (0.0, -0.0, 1, 0.0),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_what_is_no_number_is_equal_to_itself_and_infinitely_far_from_all_else(mine, theirs, equal, error, dtype):
    found = difference(np.array([mine, 2], dtype), np.array([theirs, 2], dtype))
    assert (found.n_equal, found.max_abs_error) == (equal + 1, error)
    assert found.within_tolerance is bool(equal)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_the_tolerance_is_that_of_the_element_type(dtype):
    rtol, atol = _equal.TOLERANCES[dtype]
    reference = np.full(3, 100, dtype)
    near, far = (
        (reference.astype("complex128") + part * (atol + rtol * 100)).astype(dtype)
        if "complex" in dtype
        else (reference.astype("float64") + part * (atol + rtol * 100)).astype(dtype)
        for part in (0.5, 3.0)
    )
    assert difference(near, reference).within_tolerance
    assert not difference(far, reference).within_tolerance
    assert difference(far, reference, {dtype: (1.0, 0.0)}).within_tolerance


def test_whole_numbers_must_be_equal_and_their_distance_does_not_overflow():
    found = difference(np.array([-(2**63), 5]), np.array([2**63 - 1, 5]))
    assert (found.n_equal, found.max_abs_error, found.within_tolerance) == (1, 2.0**64, False)
    assert difference(np.array([2**53]), np.array([2**53 + 1])).max_abs_error == 1.0
    assert difference(np.array([3, 250], "uint8"), np.array([250, 3], "uint8")).max_abs_error == 247.0
    assert difference(np.array([True, False]), np.array([True, True])).max_abs_error == 1.0


def test_of_two_types_the_wider_tolerance_holds():
    found = difference(np.array([1.0005], "float32"), np.array([1.0], "float16"))
    assert found.tolerances == (("float32 and float16", 1e-3, 1e-5),)
    assert found.within_tolerance


def test_narrow_types_do_not_overflow():
    found = difference(np.array([6e4], "float16"), np.array([-6e4], "float16"))
    assert found.max_abs_error == 120000.0


def test_results_may_be_nested():
    mine = {"loss": 1.5, "grads": [np.ones(3), (np.zeros(2), None)], "name": "a"}
    theirs = {"loss": 1.5, "grads": [np.ones(3), (np.ones(2), None)], "name": "b"}
    found = difference(mine, theirs)
    assert (found.n_elements, found.n_equal, found.max_abs_error) == (7, 4, 1.0)
    assert difference((1, 2.0), [1, 2.0]).equal_ratio == 1.0


@pytest.mark.parametrize(
    ("mine", "theirs", "message"),
    [
        (np.ones(3), np.ones(4), r"differ in shape: \(3,\) and \(4,\)"),
        (np.ones((3, 1)), np.ones(3), r"differ in shape: \(3, 1\)"),
        ([np.ones(3), np.ones(2)], [np.ones(3), np.ones(1)], r"shape at \[1\]"),
        ({"a": 1}, {"b": 1}, r"structure: only one of them has \['a'\]"),
        ([np.ones(1), None], [np.ones(1)], r"only one of them has \[1\]"),
        (None, 1.0, "the function returns nothing"),
        (1.0, None, "the reference returns nothing"),
    ],
)
def test_results_of_different_shape_are_an_error(mine, theirs, message):
    with pytest.raises(StepscopeError, match=message):
        difference(mine, theirs)


@pytest.mark.parametrize("nothing", [None, np.ones(0), []])
def test_nothing_is_neither_equal_nor_different(nothing):
    found = difference(nothing, nothing)
    assert (found.n_elements, found.equal_ratio, found.within_tolerance) == (0, None, None)


def test_texts_are_equal_or_not_and_have_no_distance():
    found = difference(["a", "b"], ["a", "c"])
    assert (found.n_elements, found.n_equal, found.max_abs_error, found.within_tolerance) == (2, 1, None, False)


def test_big_results_are_compared_in_pieces(monkeypatch):
    whole = difference(np.arange(100.0), np.arange(100.0) ** 1.01)
    monkeypatch.setattr(_equal, "_CHUNK", 7)
    assert difference(np.arange(100.0), np.arange(100.0) ** 1.01) == whole


def test_tensors_are_compared_with_arrays_and_keep_the_name_of_their_type():
    torch, paddle = fake_frameworks.torch([]), fake_frameworks.paddle([])
    narrow = torch.Tensor(np.ones(2, np.float32), dtype="bfloat16")
    assert difference(narrow, narrow).tolerances == (("bfloat16", 1.6e-2, 1e-5),)
    wide = paddle.Tensor(np.ones(2, np.float32))
    assert difference(wide, np.ones(2, np.float32)).tolerances == (("float32", 1.3e-6, 1e-5),)
    assert difference(paddle.Tensor(np.ones(2), dtype="bfloat16"), narrow).within_tolerance


@given(
    arrays.array_shapes(max_dims=2, max_side=5).flatmap(
        lambda shape: st.tuples(*[arrays.arrays(np.float64, shape, elements=st.floats(width=32))] * 2)
    )
)
def test_it_agrees_with_numpy(pair):
    mine, theirs = pair
    found = difference(mine, theirs)
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    assert found.n_equal == same.sum()
    assert found.within_tolerance == np.allclose(mine, theirs, rtol=1e-7, atol=1e-7, equal_nan=True)
    finite = np.isfinite(mine) & np.isfinite(theirs)
    expected = np.abs(mine[finite] - theirs[finite]).max(initial=0.0) if (same | finite).all() else INF
    assert found.max_abs_error == expected
