"""The published JSON Schemas hold for what the verbs print."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from stepscope.api.json_schemas import schema
from stepscope.cli import main
from stepscope.core.errors import UnknownName

DECODE, RANKS = "examples/demo-cpu-decode", "examples/demo-cpu-2ranks"


@pytest.mark.parametrize(
    "words",
    [
        ("report", DECODE), ("report", RANKS), ("compare", DECODE, DECODE), ("compare", RANKS), ("predict", DECODE),
        ("tables",),
        ("show", "operators", DECODE), ("show", "steps", RANKS), ("show", "spans", DECODE, "--limit", "9"),
        ("sql", DECODE, "SELECT 1 AS one"),
    ],
)  # fmt: skip
def test_what_a_verb_prints_fits_its_schema(words, capsys):
    assert main([*words, "--format", "json", *(["--no-progress"] if len(words) > 1 else [])]) == 0
    made = schema(words[0], words[1] if words[0] == "show" else None)
    Draft202012Validator.check_schema(made)
    Draft202012Validator(made).validate(json.loads(capsys.readouterr().out))


def test_a_schema_refuses_what_lacks_a_member():
    assert not Draft202012Validator(schema("report")).is_valid({"schema": "stepscope.report/1"})
    assert not Draft202012Validator(schema("show", "spans")).is_valid([{"dur_ns": "long"}])


def test_a_verb_without_json_is_refused():
    with pytest.raises(UnknownName, match="serve"):
        schema("serve")
