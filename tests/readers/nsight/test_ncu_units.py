from __future__ import annotations

import pytest

from stepscope.readers.nsight.ncu_units import base_unit


@pytest.mark.parametrize(
    ("unit", "base", "factor"),
    [
        ("ns", "ns", 1), ("nsecond", "ns", 1), ("us", "ns", 1e3), ("usecond", "ns", 1e3), ("msecond", "ns", 1e6),
        ("second", "ns", 1e9), ("s", "ns", 1e9), ("Ghz", "hz", 1e9), ("hz", "hz", 1), ("Kbyte", "byte", 1e3),
        ("Mbyte/second", "byte/s", 1e6), ("Tbyte/s", "byte/s", 1e12), ("byte/nsecond", "byte/s", 1e9),
        ("cycle/nsecond", "hz", 1e9), ("cycle/second", "hz", 1), ("Kbyte/block", "byte/block", 1e3),
        ("register/thread", "register/thread", 1), ("%", "%", 1), ("SM", "SM", 1), ("", "", 1), ("inst", "inst", 1),
        ("%/register", "%/register", 1), ("Kinst", "inst", 1e3),
    ],
)  # fmt: skip
def test_units_of_all_versions_become_base_units(unit, base, factor):
    assert base_unit(unit) == (base, pytest.approx(factor))
