from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError
from stepscope.timing._arrays import ArraySpec
from stepscope.timing._sweep import MAX_CASES, cases_of, read_sweep

TOML = """
[variables]
n = [2, 4]
dim = 8

[sweep]
kind = ["a", "b"]

[arguments]
x = {shape = ["n", "dim"]}
flag = true

[[cases]]
n = 100
kind = "c"
"""


def told(cases):
    return [(dict(case.variables), dict(case.arguments)) for case in cases]


def test_toml_and_json_say_the_same(tmp_path):
    (tmp_path / "s.toml").write_text(TOML)
    found = read_sweep(str(tmp_path / "s.toml"))
    (tmp_path / "s.JSON").write_text(json.dumps(found))
    assert read_sweep(str(tmp_path / "s.JSON")) == found
    assert [(case.variables["n"], case.arguments["kind"], case.arguments["x"]) for case in cases_of(found, {})] == [
        (2, "a", ArraySpec((2, 8))), (2, "b", ArraySpec((2, 8))), (4, "a", ArraySpec((4, 8))),
        (4, "b", ArraySpec((4, 8))), (100, "c", ArraySpec((100, 8))),
    ]  # fmt: skip


def test_nothing_is_one_case_without_arguments():
    assert told(cases_of({}, {})) == [({}, {})]
    assert told(cases_of({}, {"n": 3})) == [({}, {"n": 3})]


def test_cases_that_are_written_stand_alone_or_after_the_combinations():
    assert told(cases_of({"cases": [{"n": 1}, {"n": 2, "m": 3}], "arguments": {"m": 0}}, {})) == [
        ({}, {"m": 0, "n": 1}), ({}, {"m": 3, "n": 2}),
    ]  # fmt: skip
    both = cases_of({"cases": [{"n": 9}], "sweep": {"n": [1, 2]}}, {})
    assert [case.arguments["n"] for case in both] == [1, 2, 9]


def test_arguments_of_the_sweep_may_be_lists_and_arrays_and_name_sizes():
    found = cases_of({"sweep": {"n": [3], "axes": [[0, 1], [1]], "x": [{"shape": ["n"]}, None]}}, {})
    assert [list(case.arguments.values()) for case in found] == [
        [3, [0, 1], ArraySpec((3,))], [3, [0, 1], None], [3, [1], ArraySpec((3,))], [3, [1], None],
    ]  # fmt: skip
    nested = cases_of({"arguments": {"xs": [{"shape": [2]}, {"shape": [3]}]}}, {})
    assert nested[0].arguments["xs"] == [ArraySpec((2,)), ArraySpec((3,))]


def test_what_is_fixed_holds_whatever_the_document_says():
    document = {"variables": {"n": [1, 2]}, "sweep": {"kind": ["a", "b"]}, "cases": [{"n": 5, "kind": "z"}]}
    fixed = cases_of(document, {"kind": "c", "n": 7, "more": 0})
    assert told(fixed) == [({"n": 7}, {"kind": "c", "more": 0})] * len(fixed)
    assert [case.variables["n"] for case in cases_of(document, {"n": [3, 4], "kind": "a"})] == [3, 4, 5]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"sweeep": {}}, "unknown part 'sweeep'"),
        ({"sweep": [1]}, "sweep is a list, not a table"),
        ({"sweep": {"n": 3}}, "n of the sweep is 3"),
        ({"sweep": {"n": []}}, r"n of the sweep is \[\]"),
        ({"variables": {"n": []}}, r"n of the sweep is \[\]"),
        ({"cases": {"n": 3}}, "cases are a list of tables"),
        ({"cases": [3]}, "cases are a list of tables"),
        ({"sweep": {"n": [1]}, "arguments": {"n": 2}}, "n stands in two parts"),
        ({"variables": {"n": 1}, "arguments": {"n": 2}}, "n stands in two parts"),
        ({"variables": {"n": [1, 2]}, "cases": [{"m": 1}]}, "case 3 lacks a value for n"),
        ({"arguments": {"x": {"shape": ["n"]}}}, "case 1, x: 'n' is not a size"),
        ({"arguments": {"x": [{"shp": 1}]}}, "case 1, x: an array has no shp"),
        ({"sweep": {"a": list(range(101)), "b": list(range(100))}}, "has 10,100 cases"),
    ],
)
def test_a_wrong_sweep_is_one_clear_error(document, message):
    with pytest.raises(StepscopeError, match=f"s.toml.*{message}"):
        cases_of(document, {}, where="s.toml")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.toml", b"a = [", "s.toml is not valid TOML"),
        ("s.json", b"{", "s.json is not valid JSON.*line 1"),
        ("s.json", b"[" * 100_000, "s.json is not valid JSON"),
        ("s.json", b"[1]", "s.json holds a list, not a table"),
        ("s.json", b"\xff\xfe{}", "not valid JSON"),
        ("s.yaml", b"{}", "s.yaml is not a sweep file"),
        ("missing.toml", None, "cannot read .*missing.toml: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StepscopeError, match=message):
        read_sweep(str(tmp_path / name))


@given(st.dictionaries(st.text("abc", min_size=1), st.lists(st.integers(), min_size=1, max_size=3), max_size=4))
def test_every_combination_is_there_once_in_order(axes):
    found = [tuple(case.arguments.values()) for case in cases_of({"sweep": axes}, {})]
    expected = [()]
    for values in axes.values():
        expected = [(*before, value) for before in expected for value in values]
    assert found == expected
    assert len(found) <= MAX_CASES
