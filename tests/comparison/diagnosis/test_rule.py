from __future__ import annotations

from stepscope.comparison.diagnosis.rule import clipped, weigh
from stepscope.comparison.model import Evidence


def test_evidence_that_is_there_raises_the_confidence():
    one, two = Evidence("one"), Evidence("two")
    confidence, shown = weigh(0.5, [(0.2, one), None, (0.0, two)])
    assert confidence == 0.7
    assert shown == (one, two)


def test_nothing_is_quite_certain():
    assert clipped(1.4) == 0.97
    assert clipped(-1.0) == 0.0
