"""`stepscope skill`: prints how an agent gets from a slow run to a measured fix."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from stepscope.cli._output import emit

SETTINGS: dict[str, Any] = {"short_help": "Print the instructions for language-model agents."}


def command() -> None:
    """Print SKILL.md: how an agent gets from "it is slow" to a measured fix, with and without the server."""
    emit(files("stepscope.agents").joinpath("SKILL.md").read_text(encoding="utf-8"), None)
