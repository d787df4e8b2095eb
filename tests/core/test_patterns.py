from __future__ import annotations

import importlib
import pickle
import pkgutil
import re

import pytest

import stepscope
from stepscope.core.patterns import regex


def test_it_answers_as_the_compiled_pattern_does():
    pattern = regex(r"(?P<word>[a-z]+)\d*")
    assert pattern.search("12 ab3")["word"] == "ab"
    assert pattern.sub("-", "a1 b2") == "- -"
    assert list(pattern.groupindex) == ["word"]


def test_flags_and_bytes_are_those_of_re_compile():
    assert regex("ab", re.IGNORECASE).fullmatch("AB")
    assert regex(rb"a.b", re.DOTALL).match(b"a\nb")


def test_nothing_is_compiled_until_it_is_used():
    wrong = regex("(")
    assert wrong.pattern == "("
    with pytest.raises(re.error):
        wrong.search("x")


def test_it_can_be_sent_to_another_process():
    pattern = regex("a+")
    assert pattern.search("caa").span() == (1, 3)
    assert pickle.loads(pickle.dumps(pattern)).search("caa").span() == (1, 3)


def test_every_pattern_of_a_module_can_be_compiled():
    lazy, n = type(regex("")), 0
    for info in pkgutil.walk_packages(stepscope.__path__, "stepscope."):
        if info.name.endswith("__main__") or ".so" in info.name:
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # an extra that is not installed
            continue
        for value in vars(module).values():
            if isinstance(value, lazy):
                assert value.groups >= 0
                n += 1
    assert n > 200
