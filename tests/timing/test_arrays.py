from __future__ import annotations

import sys

import fake_frameworks
import numpy as np
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.timing._arrays import (
    ArraySpec,
    array_spec,
    as_numpy,
    framework_of_tensor,
    leaves,
    made,
    specs_in,
    torch_device,
)


def spec(names=None, **table):
    return array_spec(table, names or {}, "case 1, x")


def array(library="numpy", name="x", device=None, **table):
    return made(spec(**table), name, library=library, device=device)


def test_a_shape_is_numbers_and_names_of_numbers():
    found = spec({"n": 4, "kind": "float16"}, shape=["n", 3], dtype="kind")
    assert found == ArraySpec((4, 3), "float16")
    assert str(found) == "float16[4, 3]"
    assert spec(shape=5).shape == (5,)
    assert spec(shape=[]).shape == ()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "case 1, x: an array needs a shape"),
        ({"shap": [1]}, "an array has no shap"),
        ({"shape": [1], "typ": "x"}, "an array has no typ"),
        ({"shape": ["m"]}, "'m' is not a size"),
        ({"shape": [-1]}, "-1 is not a size"),
        ({"shape": [1.5]}, "1.5 is not a size"),
        ({"shape": [True]}, "True is not a size"),
        ({"shape": "flag"}, "'flag' is not a size"),
        ({"shape": [1], "dtype": 3}, "dtype of an array is 3"),
        ({"shape": [1], "seed": 1.5}, "seed of an array is 1.5"),
        ({"shape": [1], "seed": -1}, "seed of an array is -1"),
        ({"shape": [1], "values": "odd"}, "values of an array is 'odd'"),
        ({"shape": [1], "library": "jax"}, "library of an array is 'jax'"),
        ({"shape": [1], "low": "a"}, "low of an array is 'a'"),
    ],
)
def test_a_spec_that_is_wrong_is_refused_and_says_where(table, message):
    with pytest.raises(StepscopeError, match=message):
        spec({"n": 4, "flag": True}, **table)


def test_the_same_words_give_the_same_array_and_other_names_others():
    q, again, k = array(shape=[8]), array(shape=[8]), array(name="k", shape=[8])
    assert (q == again).all()
    assert (q != k).any()
    assert (array(shape=[8], seed=0) == array(name="k", shape=[8], seed=0)).all()
    assert (array(shape=[8], seed=0) == np.random.default_rng(0).standard_normal(8, np.float32)).all()


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int64", "uint8", "bool", "complex64", "complex128"]
)
def test_every_type_of_numbers_can_be_made(dtype):
    for values in (None, "uniform", "zeros", "ones", "arange"):
        found = array(shape=[3, 5], dtype=dtype, **({"values": values} if values else {}))
        assert (found.dtype.name, found.shape) == (dtype, (3, 5))
    assert array(shape=[2, 2], dtype=dtype, values="ones").all()
    assert not array(shape=[2, 2], dtype=dtype, values="zeros").any()


def test_values_lie_within_their_bounds():
    whole = array(shape=[1000], dtype="int64")
    assert (whole.min(), whole.max()) == (0, 99)
    shifted = array(shape=[1000], dtype="int32", low=-3, high=4)
    assert (shifted.min(), shifted.max()) == (-3, 3)
    real = array(shape=[1000], values="uniform", low=2)
    assert 2 <= real.min() < real.max() < 3
    assert array(shape=[1000], dtype="float64", low=9, high=10).min() >= 9
    assert abs(array(shape=[10_000]).std() - 1) < 0.05
    assert array(shape=[2, 2], values="arange").tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"shape": [1], "dtype": "flot"}, r"numpy cannot make x, flot\[1\]: data type 'flot' not understood"),
        ({"shape": [1], "dtype": "bfloat16"}, "NumPy has no bfloat16"),
        ({"shape": [1], "dtype": "object"}, "arrays of object are not made"),
        ({"shape": [10**7, 10**7]}, "Unable to allocate"),
        ({"shape": [1], "dtype": "int8", "high": 1000}, "high"),
        ({"shape": [1], "dtype": "int8", "values": "normal"}, "uniform, not normal"),
    ],
)
def test_what_numpy_cannot_make_is_one_clear_error(table, message):
    with pytest.raises(StepscopeError, match=message):
        array(**table)


def test_specs_are_found_and_made_within_lists():
    one = ArraySpec((2,))
    assert specs_in([1, [one], one]) == [one, one]
    first, second = made([one, one], "xs", library="numpy")
    assert (first != second).any()
    assert made("text", "x", library="numpy") == "text"


def test_fake_torch_gets_the_same_numbers_on_its_accelerator(monkeypatch):
    torch = fake_frameworks.torch([], used=("xpu",))
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensor = array("torch", shape=[4], dtype="float16")
    assert (tensor.array == array(shape=[4], dtype="float16")).all()
    assert (tensor.device.type, tensor.dtype) == ("xpu", "torch.float16")
    assert array("torch", device="cpu", shape=[4], dtype="bfloat16").dtype == "torch.bfloat16"
    assert made(spec(shape=[4], library="torch", device="cpu"), "x", library="numpy").device.type == "cpu"
    with pytest.raises(StepscopeError, match="torch cannot make x, float12"):
        array("torch", shape=[4], dtype="float12")


@pytest.mark.parametrize("used", ["cuda", "xpu", "mps", "cpu"])
def test_the_accelerator_of_fake_torch_is_the_one_that_is_there(used):
    assert torch_device(fake_frameworks.torch([], used=(used,))) == used


def test_fake_paddle_gets_the_same_numbers_where_it_puts_them(monkeypatch):
    paddle = fake_frameworks.paddle([])
    monkeypatch.setitem(sys.modules, "paddle", paddle)
    tensor = array("paddle", shape=[4])
    assert (tensor.array == array(shape=[4])).all()
    array("paddle", device="cpu", shape=[4], dtype="bfloat16")
    assert paddle.made == [("float32", None), ("bfloat16", "cpu")]


def test_a_library_that_is_not_installed_is_said_to_be(monkeypatch):
    monkeypatch.setitem(sys.modules, "paddle", None)
    with pytest.raises(StepscopeError, match="need paddle, which is not installed"):
        array("paddle", shape=[1])


def test_leaves_are_found_with_their_place():
    value = {"a": (1, [None, "x"]), "b": [1.5, 2]}
    assert list(leaves(value)) == [("['a'][0]", 1), ("['a'][1][0]", None), ("['a'][1][1]", "x"), ("['b']", [1.5, 2])]
    assert list(leaves(7)) == [("", 7)]
    assert list(leaves([])) == []


def test_tensors_are_known_by_their_class_or_one_that_it_is_made_from():
    torch = fake_frameworks.torch([])

    class Parameter(torch.Tensor):
        pass

    assert framework_of_tensor(Parameter(np.ones(2))) == "torch"
    assert framework_of_tensor(fake_frameworks.paddle([]).Tensor(np.ones(2))) == "paddle"
    assert framework_of_tensor(np.ones(2)) is None
    assert framework_of_tensor(torch) is None  # a thing of torch, but no tensor


def test_any_leaf_is_an_array_with_the_name_of_its_type():
    torch, paddle = fake_frameworks.torch([]), fake_frameworks.paddle([])
    cases = [
        (np.ones(2, np.int8), "int8"),
        (1.5, "float64"),
        ([1, 2], "int64"),
        (torch.Tensor(np.ones(2, np.float32)), "float32"),
        (torch.Tensor(np.ones(2, np.float32), dtype="bfloat16"), "bfloat16"),
        (paddle.Tensor(np.ones(2, np.float16)), "float16"),
        (paddle.Tensor(np.ones(2, np.float32), dtype="bfloat16"), "bfloat16"),
    ]
    for value, name in cases:
        array, dtype = as_numpy(value)
        assert isinstance(array, np.ndarray)
        assert dtype == name
