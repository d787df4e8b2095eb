from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.communication.hang_from_stacks import doing_now, hang_of_processes
from stepscope.core.schema import PROCESSES


def processes(*rows):
    """A process for each (what it awaits, its line); "gone" has ended, "unknown" has no stack."""
    return PROCESSES.conform(pl.DataFrame(
        [
            {"rank": rank, "pid": 100 + rank, "host": "a", "is_gone": awaits == "gone", "state": "sleeping",
             "awaits": awaits if awaits in ("collective", "device") else None, "line": line,
             "stack_id": None if awaits in ("gone", "unknown") else rank}
            for rank, (awaits, line) in enumerate(rows)
        ],
        schema_overrides=dict(PROCESSES.dtypes),
    ))  # fmt: skip


WAIT, ELSEWHERE, DEVICE, GONE, UNKNOWN = "collective", None, "device", "gone", "unknown"


@pytest.mark.parametrize(
    ("rows", "verdict", "culprits"),
    [
        ([(WAIT, "a"), (ELSEWHERE, "b"), (WAIT, "a")], "hung", [(1, "never arrived", 0.8)]),
        ([(WAIT, "a"), (DEVICE, "b"), (WAIT, "a")], "hung", [(1, "never arrived", 0.4)]),
        ([(WAIT, "a"), (DEVICE, "b"), (ELSEWHERE, "c")], "hung", [(2, "never arrived", 0.8)]),
        ([(WAIT, "a"), (GONE, None), (ELSEWHERE, "c")], "crashed", [(1, "process gone", 0.9)]),
        ([(WAIT, "a"), (WAIT, "a"), (WAIT, "b")], "hung", [(2, "other operation", 0.5)]),
        ([(WAIT, "a"), (WAIT, "b")], "hung", []),
        ([(WAIT, "a"), (WAIT, "a")], "hung", []),
        ([(WAIT, "a"), (UNKNOWN, None)], "hung", []),
        ([(ELSEWHERE, "a"), (ELSEWHERE, "b")], "healthy", []),
        ([], "healthy", []),
    ],
)
def test_who_is_elsewhere_while_others_wait_is_to_blame(rows, verdict, culprits):
    table = hang_of_processes(processes(*rows))
    assert table["verdict"][0] == verdict
    named = table.drop_nulls("rank")
    assert list(named.select("rank", "reason", "confidence_ratio").iter_rows()) == culprits
    assert table["text"].null_count() == 0


def test_many_that_are_elsewhere_are_each_less_likely_to_blame():
    rows = [(WAIT, "a"), *[(ELSEWHERE, "b")] * 5]
    assert hang_of_processes(processes(*rows))["confidence_ratio"].unique().to_list() == [0.2]


def test_what_a_process_does_is_one_sentence():
    row = {"is_gone": False, "stack_id": 1, "problem": None, "state": "sleeping", "wait_channel": "futex_wait",
           "cores_used": 0.01, "function": "time_sleep", "line": "load (train.py:8)"}  # fmt: skip
    assert doing_now(row) == (
        "When it was asked, it was in time_sleep at load (train.py:8) (sleeping, in the kernel's futex_wait, "
        "using 1 % of a core)."
    )
    assert doing_now({**row, "stack_id": None, "problem": "py-spy failed"}) == "Its stack is not known: py-spy failed."
    assert doing_now({**row, "is_gone": True}) == "Its process had ended when it was asked."
