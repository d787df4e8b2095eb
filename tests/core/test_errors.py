from __future__ import annotations

import pickle

import pytest

import stepscope
from stepscope.core import errors
from stepscope.core.errors import CorruptInput, MissingExtra, MissingTable, StepscopeError, UnknownName, WouldOverwrite


def test_every_error_is_a_stepscope_error_and_exported():
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert kinds <= set(stepscope.__all__)
    assert all(issubclass(getattr(errors, name), StepscopeError) for name in kinds)


def test_an_error_keeps_its_message_and_hint_apart():
    error = StepscopeError("no trace in x", "look elsewhere")
    assert (str(error), error.message, error.hint, error.exit_code) == (
        "no trace in x",
        "no trace in x",
        "look elsewhere",
        1,
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"path": "a.json", "offset": 1234}, "a.json at byte 1,234: ends early"),
        ({"path": "a.json"}, "a.json: ends early"),
        ({}, "ends early"),
    ],
)
def test_corrupt_input_says_where(place, message):
    assert CorruptInput("ends early", **place).message == message


def test_missing_table_says_who_needs_it_and_who_provides_it():
    error = MissingTable("steps", needed_by="overlap", providers=("kineto", "paddle"))
    assert error.message == "overlap needs steps, which this trace does not hold"
    assert error.hint == "recorded by: kineto, paddle"
    assert MissingTable("steps").message == "no steps in this trace"
    assert MissingTable("steps", providers=("kineto",), hint="record them").hint == "record them"


def test_unknown_name_offers_the_nearest_first_and_all_of_them():
    error = UnknownName("table", "kernel", ["spans", "devices", "kernels"])
    assert error.message == "no table named 'kernel'"
    assert error.hint == "known: kernels, devices, spans"


def test_missing_extra_gives_the_line_that_installs_it():
    assert (
        MissingExtra("record", "record").hint
        == "install the extra record: pip install '.[record]' in a checkout of stepscope"
    )


def test_would_overwrite_names_the_way_out():
    error = WouldOverwrite("out.md")
    assert "out.md" in error.message
    assert "--force" in error.hint


@pytest.mark.parametrize(
    "error",
    [
        StepscopeError("what", "hint"),
        CorruptInput("what", "hint", path="x.json", offset=5),
        MissingTable("steps", needed_by="idle"),
        UnknownName("table", "span", ["spans"]),
        MissingExtra("s3://", "cloud"),
        WouldOverwrite("x.json"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_to_another_process_as_they_are(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
