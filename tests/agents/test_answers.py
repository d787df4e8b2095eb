"""Answers are cut to their bound, and commands of reports become calls."""

from __future__ import annotations

import json

from stepscope.agents.answers import MOST_BYTES, call_of, fitted


def test_any_answer_is_cut_to_the_bound():
    whole = {
        "headline": "x" * 10**6,
        "quality": ["y" * 10**5] * 100,
        "bars": [{"k": 1}],
        "rows": [["é" * 9999]],
    }
    assert len(json.dumps(fitted(whole, "Narrow by less."))) < MOST_BYTES


def test_a_command_of_a_report_becomes_a_call():
    assert call_of("show idle --by gap") == {"table": "idle", "options": {"by": "gap"}}
    assert call_of("show operators --sort -host_self_ns") == {"table": "operators", "sort": "-host_self_ns"}
    assert call_of("compare") is None
    assert call_of("") is None
