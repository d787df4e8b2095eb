from __future__ import annotations

import functools
import math
import sys
import types

import numpy as np
import pytest

from stepscope.core.errors import FunctionFailed, StepscopeError
from stepscope.timing import _function
from stepscope.timing._function import blamed, bound, framework_of, is_a_name, own_traceback, resolve


def plain(x, y=2, *, z=3):
    return x, y, z


def positional(a, b=1, /, c=2):
    return a, b, c


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that can be imported; its name is new in each test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(text):
        name = f"written_{tmp_path.name.replace('-', '_')}_{len(made)}"
        made.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_a_name_leads_to_its_function(module):
    name = module("class Layer:\n    @staticmethod\n    def forward(x):\n        return x\n")
    assert resolve("math:sqrt").call is math.sqrt
    found = resolve(f"{name}:Layer.forward")
    assert (found.label, found.module, found.call(5)) == (f"{name}:Layer.forward", name, 5)


def test_a_callable_is_called_what_it_is():
    assert resolve(plain).label.endswith(":plain")
    assert resolve(math.sqrt).label == "math:sqrt"
    assert resolve(np.add).label.endswith("add")
    assert resolve(functools.partial(plain, 1)).label == "functools:partial"


@pytest.mark.parametrize("name", ["", "f", "m:", ":f", "m.py/x:f", "a b:f", "m:f:g", "m:f()", "1m:f", ".m:f"])
def test_other_texts_are_no_names(name):
    assert not is_a_name(name)
    with pytest.raises(StepscopeError, match="MODULE:FUNCTION"):
        resolve(name)


@pytest.mark.parametrize(
    ("named", "message", "hint"),
    [
        ("no_such_module:f", "no module named 'no_such_module'", "current folder"),
        ("os.no_such:f", "no module named 'os.no_such'", "current folder"),
        ("kernel.py:f", "no module named 'kernel", "write kernel"),
        ("math:sqrd", "math has no function 'sqrd'", "it has sqrt"),
        ("math:zzzzzz", "math has no function 'zzzzzz'", "it has acos, acosh, "),
        ("string:Formatter.formt", "Formatter has no function 'formt'", "it has format"),
        ("math:pi", "math:pi is of type float and cannot be called", "name a function"),
    ],
)
def test_what_cannot_be_found_or_called_is_one_clear_error(named, message, hint):
    with pytest.raises(StepscopeError) as caught:
        resolve(named)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert (caught.value.exit_code, type(caught.value)) == (1, StepscopeError)


def test_what_is_no_function_cannot_be_measured():
    with pytest.raises(StepscopeError, match="of type int cannot be called"):
        resolve(7)


def test_a_module_s_own_fault_is_told_as_such(module):
    with pytest.raises(FunctionFailed, match="ModuleNotFoundError: No module named 'no_such_module'"):
        resolve(f"{module('import no_such_module')}:f")
    with pytest.raises(FunctionFailed, match="SyntaxError"):
        resolve(f"{module('def f(:')}:f")


def test_the_framework_is_the_function_s_own_or_that_of_its_module(monkeypatch):
    torch, paddle = types.ModuleType("torch.nn"), types.ModuleType("paddle")
    assert framework_of(resolve("math:sqrt")) == "numpy"
    assert framework_of(resolve(plain)) == "numpy"
    monkeypatch.setitem(plain.__globals__, "nn", torch)
    assert framework_of(resolve(plain)) == "torch"
    assert framework_of(resolve(functools.wraps(plain)(lambda: None))) == "torch"
    monkeypatch.setitem(plain.__globals__, "paddle", paddle)
    with pytest.raises(StepscopeError, match="torch or paddle"):
        framework_of(resolve(plain))


def test_a_builtin_of_a_framework_is_known_by_the_name_it_was_found_under(monkeypatch):
    module = types.ModuleType("paddle")
    module.matmul = math.sqrt
    monkeypatch.setitem(sys.modules, "paddle", module)
    assert framework_of(resolve("paddle:matmul")) == "paddle"


@pytest.mark.parametrize(
    ("function", "arguments", "call"),
    [
        (plain, {"x": 1, "z": 4}, (1, 2, 4)),
        (plain, {"0": 1, "1": 5}, (1, 5, 3)),
        (plain, {"1": 5, "0": 1, "z": 0}, (1, 5, 0)),
        (positional, {"a": 1}, (1, 1, 2)),
        (positional, {"b": 5, "a": 1, "c": 0}, (1, 5, 0)),
        (positional, {"0": 1, "b": 5}, (1, 5, 2)),
        (max, {"0": 1, "1": 2}, 2),
    ],
)
def test_arguments_go_where_they_belong(function, arguments, call):
    args, kwargs = bound(resolve(function), arguments)
    assert function(*args, **kwargs) == call


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (plain, {}, "with no arguments: missing a required argument: 'x'"),
        (plain, {"x": 1, "w": 2}, "with x, w: got an unexpected keyword argument 'w'"),
        (positional, {"b": 1}, "missing a required"),
        (plain, {"1": 5}, "stand at positions 1"),
    ],
)
def test_arguments_that_the_function_does_not_take_are_refused_before_the_call(function, arguments, message):
    with pytest.raises(StepscopeError, match=message) as caught:
        bound(resolve(function), arguments)
    assert type(caught.value) is StepscopeError


def test_a_function_without_a_signature_is_called_as_it_is():
    class Hidden:
        __signature__ = "none"

        def __call__(self, **named):
            return named

    assert bound(resolve(Hidden()), {"x": 1}) == ((), {"x": 1})


def faulty():
    raise ZeroDivisionError("in the\nmiddle")


def test_what_is_raised_is_the_cause_of_one_clear_error():
    with pytest.raises(FunctionFailed, match=r"^mine:f raised ZeroDivisionError: in the$") as caught, blamed("mine:f"):
        faulty()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.exit_code == 1


def test_leaving_the_process_is_a_failure_too_and_an_interrupt_is_not():
    with pytest.raises(FunctionFailed, match="raised SystemExit: 0"), blamed("f"):
        raise SystemExit(0)
    with pytest.raises(KeyboardInterrupt), blamed("f"):
        raise KeyboardInterrupt


def test_the_traceback_begins_with_the_code_that_failed(tmp_path, monkeypatch):
    (tmp_path / "module_that_fails.py").write_text("def deep():\n    return 1 / 0\n\n\ndeep()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FunctionFailed) as caught:
        _function.resolve("module_that_fails:deep")
    lines = own_traceback(caught.value).splitlines()
    assert lines[0].startswith("Traceback")
    assert "module_that_fails.py" in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert not [line for line in lines if _function.__file__ in line or "importlib" in line]


def test_without_a_cause_there_is_no_traceback():
    assert own_traceback(FunctionFailed("f raised nothing")) == ""
