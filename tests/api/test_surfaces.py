"""Every surface says the same number by the same name, of the recordings in this repository."""

from __future__ import annotations

import pytest
import surface_checks

RECORDINGS = ("demo-cpu-decode/rank0.pt.trace.json.gz", "demo-ncu/decoder.csv.gz")


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDINGS)
@pytest.mark.parametrize("check", [surface_checks.forms, surface_checks.tables, surface_checks.numbers])
def test_surfaces_agree(examples, path, check):
    assert check(examples / path) == []


def test_a_disagreement_is_found():
    words = ["computation 61 %", "431 ms"]
    assert surface_checks.lacking("page", "computation 61 % of 431 ms", words) == []
    assert surface_checks.lacking("page", "computation 62 % of 431 ms", words) == [
        "page does not say 'computation 61 %'"
    ]
