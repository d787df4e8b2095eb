from __future__ import annotations

import gc
import json
import sys
import weakref

import fake_frameworks
import numpy as np
import pytest

import stepscope
from stepscope import timing
from stepscope.core.errors import FunctionFailed, StepscopeError
from stepscope.timing import BENCH, Budget, resolve
from stepscope.timing._bench import bench
from stepscope.timing._sweep import cases_of

ONCE = Budget(warmup=0, repeats=1)
X = {"shape": [3, 4], "dtype": "float64"}


def double(x):
    return x * 2


def twice(x):
    return x + x


def power(x, n=2):
    return x**n


def double_in_place(x):
    x *= 2
    return x


def fails(n):
    return 1 / n


def measured(function, reference=None, document=None, budget=ONCE, **options):
    other = None if reference is None else resolve(reference)
    return bench(resolve(function), other, cases=cases_of(document or {}, {}), budget=budget, **options)


def test_cases_are_measured_in_order():
    found = measured(power, document={"arguments": {"x": X}, "sweep": {"n": [3, 1, 2]}})
    assert found.frame["n"].to_list() == [3, 1, 2]
    assert found.frame["case"].to_list() == [1, 2, 3]
    assert found.frame["n_repeats"].to_list() == [1, 1, 1]
    assert (found.frame["median_ns"] > 0).all()


def test_a_function_is_compared_with_its_reference():
    found = measured(double, twice, {"arguments": {"x": X}}, Budget(repeats=8))
    row = found.frame.row(0, named=True)
    assert (row["equal_ratio"], row["within_tolerance"], row["n_elements"]) == (1.0, True, 12)
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    assert found.n_differing == 0
    differs = measured(double, power, {"arguments": {"x": X}})
    assert differs.n_differing == 1
    wide = {"float64": (100.0, 100.0)}
    assert measured(double, power, {"arguments": {"x": X}}, tolerances=wide).n_differing == 0


def test_both_get_their_own_arrays_of_the_same_numbers():
    found = measured(double_in_place, double, {"arguments": {"x": X}})
    assert found.n_differing == 0


def test_a_result_is_not_kept_while_the_function_is_measured():
    class Result:
        shape, dtype = (), "none"

    alive = []

    def function():
        made = Result()
        if not alive:
            alive.append(weakref.ref(made))
        else:
            assert alive[0]() is None
        return made

    measured(function, budget=Budget(warmup=1, repeats=2))


def test_a_failure_says_in_which_case():
    with pytest.raises(FunctionFailed, match=r"fails, case 2 of 2 \(n=0\), raised ZeroDivisionError") as caught:
        measured(fails, document={"sweep": {"n": [1, 0]}})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(FunctionFailed, match="fails raised ZeroDivisionError"):
        measured(fails, document={"arguments": {"n": 0}})


def test_results_of_different_shape_say_in_which_case():
    document = {"variables": {"n": [1, 2]}, "arguments": {"x": {"shape": ["n", 2]}}}
    with pytest.raises(StepscopeError, match=r"^case 2 of 2 \(n=2\): the results differ in shape"):
        measured(lambda x: x[:1], double, document)
    with pytest.raises(StepscopeError, match=r"^the results differ in shape"):
        measured(lambda x: x[:1], double, {"arguments": {"x": X}})


def test_progress_and_the_garbage_collector():
    told = []
    gc.disable()
    try:
        found = measured(power, document={"sweep": {"x": [1, 2]}}, progress=lambda *at: told.append(at))
    finally:
        gc.enable()
    assert told == [(0, 2), (1, 2)]
    assert not found.gc_enabled


def test_a_reference_in_numpy_serves_a_function_of_fake_torch(monkeypatch):
    log = []
    torch = fake_frameworks.torch(log, used=("cuda",))
    monkeypatch.setitem(sys.modules, "torch", torch)

    def on_device(x):
        log.append("call")
        return torch.Tensor(x.array * 2, "cuda:0")

    on_device.__module__ = "torch.fake"
    found = measured(on_device, double, {"arguments": {"x": X}}, Budget(warmup=0, repeats=3))
    own, other = found.frame.to_dicts()
    assert (own["clock"], own["clock_device"], own["median_ns"]) == ("CUDA events of torch", "cuda:0", 2e6)
    assert other["clock"] == "wall clock after torch.cuda.synchronize"
    assert (own["equal_ratio"], own["result_dtype"]) == (1.0, "float64")
    assert measured(on_device, double, {"arguments": {"x": X}}, device="cuda:0").n_differing == 0


def test_from_python_a_benchmark_is_printed_as_on_the_command_line(tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"arguments": {"x": X}, "sweep": {"n": [1, 2]}}))
    found = stepscope.bench(power, sweep=path, repeats=7, warmup=1)
    assert isinstance(found, stepscope.Bench)
    assert str(found).split()[:2] == ["median", "median"]
    assert "1 call of warm-up" in str(found)
    assert stepscope.bench(power, sweep=str(path), arguments={"n": 3}, seconds=0.001).frame["n"].to_list() == [3]
    assert stepscope.bench(power, sweep={"sweep": {"n": [1], "x": [2]}}, repeats=1).frame.height == 1
    assert stepscope.bench is not timing.bench  # and no package of that name takes its place
    assert callable(stepscope.bench)


def test_objects_are_passed_from_python_as_they_are():
    given = np.ones(3)
    seen = []
    found = stepscope.bench(seen.append, arguments={"0": given}, warmup=0, repeats=1)
    assert all(one is given for one in seen)
    assert found.frame["arg_0"].to_list() == ["float64[3]"]


def test_every_column_has_a_meaning():
    assert all(column.doc for column in BENCH.columns)
    assert all(column.unit for column in BENCH.columns if column.name.endswith(("_ns", "_ratio")))
