from __future__ import annotations

import paddle_profiles as made
import pytest
from paddle_profiles import call, host, kernel, memcpy, thread

from stepscope.exports.paddle_summary._kernels import _shown, kernel_summary


def names(text):
    return [line.split("  ")[0] for line in text.splitlines() if " / " in line][1:]


def test_kernels_by_their_whole_name_even_those_outside_any_host_event(tree):
    launches = call("c", 1, 2, 1, kernel("f<A>(int)", 0, 9), kernel("f<A>(long)", 10, 14), memcpy("m", 20, 90))
    found = tree(
        thread((0, host("op", made.OPERATOR, 0, 50, launches)), root=call("c", 0, 1, 2, kernel("free", 50, 61)))
    )
    text = kernel_summary(found, "ns", "CPUMin")
    assert names(text) == ["free", "f<A>", "f<A>"]
    assert "11.00 / 11.00 / 11.00 / 11.00 / 45.83" in text
    assert names(kernel_summary(found, "ns", "GPUMin")) == ["f<A>", "f<A>", "free"]


def test_without_kernels_there_is_no_table(tree):
    assert kernel_summary(tree(thread((0, host("op", made.OPERATOR, 0, 50)))), "ns", "CPUTotal") == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void f<int>(int*, int)", "void f<int>"),
        ("f(int)", "f(int)"),
        ("f<a>(b<c>(d))", "f<a>(b<c>"),
        ("x" * 91, "x" * 87 + "..."),
        ("x" * 90, "x" * 90),
    ],
)
def test_parameters_go_and_long_names_are_cut(name, shown):
    assert _shown(name) == shown
