from __future__ import annotations

import fake_frameworks
import numpy as np

from stepscope.timing._leaves import as_numpy, framework_of_tensor, leaves


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
