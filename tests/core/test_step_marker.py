from __future__ import annotations

import sys
import types

import stepscope


def test_a_job_that_is_not_recorded_notices_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "_stepscope_job", raising=False)
    assert stepscope.step() is None


def test_the_hook_of_a_recorded_job_is_told(monkeypatch):
    calls: list[int] = []
    hook = types.ModuleType("_stepscope_job")
    monkeypatch.setattr(hook, "step", lambda: calls.append(1), raising=False)
    monkeypatch.setitem(sys.modules, "_stepscope_job", hook)
    stepscope.step()
    assert calls == [1]
