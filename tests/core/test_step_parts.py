"""Parts of a step have one name each, and a command that shows their events."""

from __future__ import annotations

import shlex

import pytest

from stepscope.core import step_parts
from stepscope.query import tables


@pytest.mark.parametrize("commands", [step_parts.ON_DEVICE, step_parts.ON_HOST], ids=["device", "host"])
def test_each_part_has_a_command_that_shows_a_table(commands):
    for part in commands:
        verb, table, *_ = shlex.split(step_parts.command_of(part, commands))
        assert verb == "show"
        assert tables.find(table).name == table


def test_communication_is_shown_where_it_was_recorded():
    assert step_parts.command_of("exposed communication", step_parts.ON_DEVICE) == "show overlap --by collective"
    assert step_parts.command_of("exposed communication", step_parts.ON_HOST) == "show communication"


def test_a_comparison_has_parts_of_the_host_too():
    assert step_parts.command_of("operators", ["computation", "operators"]) == "show operators"
    assert "synchronize" in step_parts.command_of("synchronisation", ["idle"])
    assert step_parts.command_of("other", ["idle"]) == ""
