from __future__ import annotations

import math
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core import units
from stepscope.core.errors import StepscopeError
from stepscope.core.units import counted, ranges, shares, sum_of

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e18, max_value=1e18)
NS = st.integers(0, 10**18)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0"),
        (850, "850 ns"),
        (0.25, "0.25 ns"),
        (64_000, "64 µs"),
        (64_349, "64.3 µs"),
        (999_499, "999 µs"),
        (999_999, "1 ms"),
        (431_000_000, "431 ms"),
        (1_214_000_000, "1.21 s"),
        (59_940_000_000, "59.9 s"),
        (59_960_000_000, "1 m 0 s"),
        (200 * 10**9, "3 m 20 s"),
        (3_599_600_000_000, "1 h 0 m"),
        (7_500 * 10**9, "2 h 5 m"),
        (97_000 * 10**9, "1 d 3 h"),
        (-64_000, "-64 µs"),
        (-200 * 10**9, "-3 m 20 s"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
    ],
)
def test_duration(ns, text):
    assert units.duration(ns) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0"),
        (512, "512 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (2**20 - 1, "1 MiB"),
        (3_355_443, "3.2 MiB"),
        (61 * 2**30, "61 GiB"),
        (-(2**31), "-2 GiB"),
        (2**70, "1,024 EiB"),
        (None, "–"),
    ],
)
def test_size_is_binary(n_bytes, text):
    assert units.size(n_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3.35e12, "3.35 TB/s"), (12_500_000_000, "12.5 GB/s"), (999.6, "1 kB/s"), (0, "0"), (None, "–")]
)
def test_rate_is_decimal(value, text):
    assert units.rate(value) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0"), (1212, "1,212"), (999_999, "999,999"), (1_900_000, "1.9 M"), (3_930_000_000, "3.93 G"), (-5, "-5"),
     (None, "–")],
)  # fmt: skip
def test_count_is_exact_below_a_million(n, text):
    assert units.count(n) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.003, "0.3 %"),
        (0.052, "5.2 %"),
        (0.05, "5 %"),
        (0.0996, "10 %"),
        (0.61, "61 %"),
        (0.996, "99.6 %"),
        (0.99999, ">99.9 %"),
        (1, "100 %"),
        (1.5, "150 %"),
        (12.5, "1,250 %"),
        (-0.17, "-17 %"),
        (-0.0001, ">-0.1 %"),
        (-0.99999, "<-99.9 %"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_percent_is_0_or_100_only_when_it_is(ratio, text):
    assert units.percent(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0, "0"), (-0.0, "0"), (1234567, "1,234,567"), (1234.5, "1,234"), (999.6, "1,000"), (12.345, "12.3"),
     (0.5, "0.5"), (0.00123, "0.00123"), (1e-7, "1e-07"), (-2.5, "-2.5"), (None, "–")],
)  # fmt: skip
def test_number(value, text):
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_500, "ns", "1.5 µs"),
        (1_500, "us", "1.5 ms"),
        (1.5, "ms", "1.5 ms"),
        (90, "s", "1 m 30 s"),
        (2**30, "bytes", "1 GiB"),
        (0.25, "ratio", "25 %"),
        (2e12, "bytes/s", "2 TB/s"),
        (989e12, "FLOP/s", "989 TFLOP/s"),
        (2_000_000, "count", "2 M"),
        (61.25, "W", "61.2 W"),
        (8.9, "1/s", "8.9/s"),
        (1212, None, "1,212"),
        (0.125, "", "0.125"),
        ("text", "ns", "text"),
        (True, "ns", "True"),
        (None, "ns", "–"),
    ],
)
def test_render_follows_the_unit_of_the_column(value, unit, text):
    assert units.render(value, unit) == text


@given(FINITE, st.sampled_from(["ns", "bytes", "bytes/s", "ratio", "count", "FLOP", None]))
def test_a_sign_changes_nothing_else(value, unit):
    text = units.render(abs(value), unit)
    if text[0] in "<>":
        return
    assert units.render(-abs(value), unit) == (text if value == 0 else f"-{text}")


@given(st.floats(1e-3, 59.4e9))
def test_a_short_duration_reads_back_within_half_a_percent(ns):
    digits, unit = units.duration(ns).split()
    factor = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(digits) * factor == pytest.approx(ns, rel=0.0051)
    assert len(digits.replace(".", "").lstrip("0")) <= 3


@given(NS)
def test_a_shown_duration_can_be_parsed(ns):
    rounded = units.parse_duration(units.duration(ns).replace(",", ""))
    assert rounded == pytest.approx(ns, rel=0.02)


@given(st.lists(NS, min_size=2, max_size=2).map(sorted))
def test_longer_durations_never_read_shorter(pair):
    low, high = (units.parse_duration(units.duration(ns).replace(",", "")) for ns in pair)
    assert low <= high


@given(st.integers(0, 2**62))
def test_a_shown_size_can_be_parsed(n_bytes):
    assert units.parse_size(units.size(n_bytes).replace(",", "")) == pytest.approx(n_bytes, rel=0.0051)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("2GiB", 2**31),
        ("500MB", 500_000_000),
        ("1.5 G", 1_500_000_000),
        ("1e9", 10**9),
        ("4096", 4096),
        (4096, 4096),
        (" 64 kib ", 65_536),
        ("0.5k", 500),
        (".5MiB", 2**19),
        ("1b", 1),
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_parse_size(text, n_bytes):
    assert units.parse_size(text) == n_bytes


@pytest.mark.parametrize(
    "text", ["", "big", "-3", "1,000", "5 XB", "GB", "nan", "inf", "1e999", "1e9999999999", "9" * 10_000, "9EiB", "2 3"]
)
def test_a_bad_size_says_what_to_write(text):
    with pytest.raises(StepscopeError) as caught:
        units.parse_size(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("3ms", 3_000_000),
        ("1.5 s", 1_500_000_000),
        ("250us", 250_000),
        ("250µs", 250_000),
        ("7ns", 7),
        ("2m", 120 * 10**9),
        ("2min", 120 * 10**9),
        ("1 h 30 m", 5_400 * 10**9),
        ("1h30m", 5_400 * 10**9),
        ("1d", 86_400 * 10**9),
        ("0", 0),
    ],
)
def test_parse_duration(text, ns):
    assert units.parse_duration(text) == ns
    assert units.parse_duration(text, default_unit="s") == ns


def test_a_duration_without_a_unit_is_in_the_one_that_the_caller_names():
    assert units.parse_duration("30", default_unit="s") == 30 * 10**9
    assert units.parse_duration(" 1.5 ", default_unit="ms") == 1_500_000
    with pytest.raises(StepscopeError):
        units.parse_duration("1 h 30", default_unit="s")


@pytest.mark.parametrize("text", ["", " ", "5", "ms", "3ms junk", "-3ms", "3 parsecs", "1e30s", "ms3", "1 2"])
def test_a_bad_duration_says_what_to_write(text):
    with pytest.raises(StepscopeError) as caught:
        units.parse_duration(text)
    assert caught.value.hint


def test_importing_units_loads_no_table_library():
    code = "import sys, stepscope.core.units; print('numpy' in sys.modules or 'polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_counts_agree_with_their_noun() -> None:
    assert counted(1, "kernel") == "1 kernel"
    assert counted(1212.4, "kernel") == "1,212 kernels"
    assert counted(2.54, "gap") == "2.5 gaps"
    assert counted(2, "batch", "batches") == "2 batches"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([0], "0"), ([3, 1, 2], "1–3"), ([0, 1, 4], "0–1, 4"), ([1, 3, 5, 7, 9], "1 … 9"), (range(8), "0–7")],
)
def test_runs_of_numbers_are_drawn_together(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_only_parts_worth_naming_are_named() -> None:
    assert shares([("a", 0.62), ("b", 0.3), ("c", 0.04)]) == "a 62 %, b 30 %"
    assert shares([("a", 0.97), ("b", 0.03)]) == "a"
    assert shares([]) == ""


def test_the_sum_of_nothing_is_nothing() -> None:
    assert sum_of(pl.Series([], dtype=pl.Int64)) == 0
    assert sum_of(pl.Series([1, None, 2])) == 3
