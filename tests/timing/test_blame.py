from __future__ import annotations

import pytest

from stepscope.core.errors import FunctionFailed
from stepscope.timing import _blame, _function
from stepscope.timing._blame import blamed, own_traceback


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
    assert not [line for line in lines if _blame.__file__ in line or "importlib" in line]


def test_without_a_cause_there_is_no_traceback():
    assert own_traceback(FunctionFailed("f raised nothing")) == ""
