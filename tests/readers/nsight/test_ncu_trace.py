from __future__ import annotations

import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.impossible import without_impossible
from stepscope.readers.common.source import IssueLog, Source
from stepscope.readers.nsight.ncu_trace import (
    DEVICE_NAME,
    LAUNCHES,
    MEASURED,
    PRINTED,
    TEXTS,
    Notation,
    base_unit,
    build,
    is_unknown,
    measured,
    notation,
    numbers,
)

FIRST = {
    "name": "gemm", "pid": "7", "process": "python", "host": "box", "context": "1", "stream": "7", "device": "0",
    "cc": "9.0", "block": "(128, 2, 1)", "grid": "(264, 1, 1)",
}  # fmt: skip


def trace_of(launches, metrics, words=()):
    return build(
        Source("x.csv"), "ncu-csv", pl.DataFrame(launches, schema=dict.fromkeys(LAUNCHES, pl.String())),
        pl.DataFrame(metrics, schema=MEASURED, orient="row"), pl.DataFrame(list(words), schema=TEXTS, orient="row"),
        IssueLog(),
    )  # fmt: skip


def test_launches_are_spans_without_a_clock_in_their_order():
    trace = trace_of(
        [FIRST, FIRST | {"name": "copy", "stream": "13"}, FIRST],
        [(2, "gpu__time_duration.sum", "ns", 30.0), (0, "Duration", "ns", 10.4), (1, "Duration", "ns", 20.0)],
    )
    assert not trace.has_clock
    assert trace.spans.select("span_id", "track_id", "ts_ns", "dur_ns", "name", "category").rows() == [
        (0, 0, None, 10, "gemm", "kernel"), (1, 1, None, 20, "copy", "kernel"), (2, 0, None, 30, "gemm", "kernel"),
    ]  # fmt: skip
    assert trace.tracks.select("pid", "process", "host", "device_id", "stream", "kind").rows() == [
        (7, "python", "box", 0, 7, "stream"), (7, "python", "box", 0, 13, "stream"),
    ]  # fmt: skip
    assert trace.kernel_metrics["span_id"].to_list() == [0, 1, 2]
    assert (trace.meta.host, trace.meta.n_events) == ("box", 3)


def test_launch_configuration_and_device_come_from_launch_and_metrics():
    facts = [
        (0, "launch__sm_count", "SM", 132.0), (0, "launch__registers_per_thread", "register/thread", 40.0),
        (0, "launch__shared_mem_per_block_static", "byte/block", 1024.0),
        (0, "launch__shared_mem_per_block_dynamic", "byte/block", 512.0),
        (0, "sm__warps_active.avg.pct_of_peak_sustained_active", "%", 50.0),
        (0, "device__attribute_total_memory", "byte", 8e10),
    ]  # fmt: skip
    trace = trace_of([FIRST], facts, [(0, DEVICE_NAME, "NVIDIA H100")])
    kernel = trace.kernels.row(0, named=True)
    assert [kernel[f"grid_{a}"] for a in "xyz"] + [kernel[f"block_{a}"] for a in "xyz"] == [264, 1, 1, 128, 2, 1]
    assert (kernel["registers"], kernel["shared_bytes"]) == (40, 1536)
    assert (kernel["blocks_per_sm"], kernel["warps_per_sm"], kernel["est_occupancy_ratio"]) == (2.0, 16.0, 0.5)
    assert trace.devices.drop(cs.starts_with("recorded_")).row(0, named=True) == {
        "device_id": 0, "type": "cuda", "index": 0, "name": "NVIDIA H100", "sm_count": 132,
        "memory_bytes": 80_000_000_000, "compute_capability": "9.0",
    }  # fmt: skip


def test_sizes_may_stand_among_the_metrics_or_nowhere():
    bare = dict.fromkeys(LAUNCHES) | {"name": "k"}
    sizes = [(0, f"launch__{what}_dim_{a}", "", float(n)) for what, ns in (("grid", (3, 2, 1)), ("block", (64, 1, 1)))
             for a, n in zip("xyz", ns, strict=True)]  # fmt: skip
    got = trace_of([bare], sizes).kernels.row(0, named=True)
    assert [got[f"grid_{a}"] for a in "xyz"] + [got["block_x"]] == [3, 2, 1, 64]
    nothing = trace_of([bare], [])
    assert nothing.kernels["grid_x"].to_list() == [None]
    assert nothing.spans["dur_ns"].to_list() == [None]
    assert nothing.issues["code"].to_list() == ["no_duration"]


@pytest.mark.parametrize("text", ["(1,024, 1, 1)", "(1.024, 1, 1)", "(1024, 1, 1)"])
def test_sizes_may_be_grouped(text):
    assert trace_of([FIRST | {"grid": text}], []).kernels["grid_x"].to_list() == [1024]


def test_values_that_no_column_can_hold_are_unknown():
    trace = without_impossible(
        trace_of([FIRST], [(0, "launch__registers_per_thread", "", 1e12), (0, "launch__sm_count", "SM", 3e9)])
    )
    assert trace.kernels["registers"].to_list() == [None]
    assert trace.devices["sm_count"].to_list() == [None]


def test_devices_of_several_hosts_are_several():
    trace = trace_of([FIRST, FIRST | {"host": "other"}, FIRST | {"device": "1"}], [])
    assert trace.devices.select("device_id", "index").rows() == [(0, 0), (1, 0), (2, 1)]
    assert trace.tracks["device_id"].to_list() == [0, 1, 2]
    assert trace.meta.host is None


def report(*rows: tuple[int, str | None, str, str, str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=PRINTED, orient="row")


def values(*reports: pl.DataFrame) -> list[tuple[object, ...]]:
    return measured(reports, "ncu.csv", IssueLog())[0].rows()


def test_values_become_numbers_in_base_units():
    got = values(report((0, None, "a", "us", "1,234.50"), (0, None, "b", "%", "12.5"), (1, None, "c", "", "n/a")))
    assert got == [(0, "a", "ns", 1234500.0), (0, "b", "%", 12.5), (1, "c", "", None)]


def test_each_report_has_its_own_notation():
    english, european = report((0, None, "a", "ns", "117,344"), (0, None, "b", "%", "65.77")), report(
        (1, None, "a", "ns", "117.344"), (1, None, "b", "%", "65,77")
    )  # fmt: skip
    assert [value for *_, value in values(english, european)] == [117344, 65.77, 117344, 65.77]


def test_two_notations_in_one_report_are_refused():
    with pytest.raises(CorruptInput, match=r"ncu\.csv: .*two notations: 1,234\.5 and 65,77"):
        values(report((0, None, "a", "ns", "1,234.5"), (0, None, "b", "%", "65,77")))


def test_lists_of_units_are_no_evidence():
    got = values(report((0, None, "launch__tpc_enabled", "", "0,1"), (0, None, "b", "", "65.77")))
    assert got == [(0, "b", "", 65.77)]


def test_an_assumption_is_noted():
    log = IssueLog()
    got, _ = measured([report((0, None, "a", "ns", "117.344"))], "x", log)
    assert got["value"].to_list() == [117344]
    assert log.table()["code"].to_list() == ["number_notation_assumed"]


def test_words_are_kept_apart():
    log = IssueLog()
    rows = report((0, None, DEVICE_NAME, "", "NVIDIA A100"), (0, None, "policy", "", "Spread"), (0, None, "n", "", "1"))
    numbers, words = measured([rows], "x", log)
    assert numbers["metric"].to_list() == ["n"]
    assert words.rows() == [(0, DEVICE_NAME, "NVIDIA A100"), (0, "policy", "Spread")]
    assert log.table().select("code", "count").rows() == [("metrics_in_words", 1)]


def test_a_label_in_two_sections_is_told_apart_unless_it_says_the_same():
    got = values(
        report(
            (0, "Speed", "Throughput", "%", "61.84"), (0, "Speed", "Duration", "ns", "5"),
            (0, "Memory", "Throughput", "byte/s", "196"), (0, "Sampling", "Duration", "ns", "5"),
            (1, "Memory", "Throughput", "byte/s", "200"),
        )
    )  # fmt: skip
    assert [(launch, metric, value) for launch, metric, _, value in got] == [
        (0, "Throughput", 61.84), (0, "Duration", 5), (0, "Memory: Throughput", 196), (1, "Throughput", 200),
    ]  # fmt: skip


def test_no_reports_give_no_rows():
    assert values() == []


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


def told(*values: str | None, percent: tuple[str, ...] = ()) -> Notation:
    every = pl.Series([*values, *percent], dtype=pl.String)
    return notation(every, pl.Series([False] * len(values) + [True] * len(percent)))


@pytest.mark.parametrize(
    "values",
    [("1,234.5",), ("1,234,567",), ("65.77",), ("0.125",), ("1234.567",), ("53.326040",), ("12,345", "0.5")],
    ids=" ".join,
)
def test_english_and_plain_numbers_are_told(values):
    assert told(*values) == Notation(".")


@pytest.mark.parametrize(
    "values",
    [("1.234,5",), ("1.234.567",), ("65,77",), ("0,125",), ("1234,567",), ("53,326040",), ("117.344", "65,77")],
    ids=" ".join,
)
def test_european_numbers_are_told(values):
    assert told(*values) == Notation(",")


def test_whole_numbers_need_no_notation():
    assert told("1", "999", "3995313115", None) == Notation(".")


def test_without_certainty_percentages_do_not_reach_the_thousands():
    assert told("117,344", percent=("12,345",)) == Notation(",", assumed=True)
    assert told("117.344", percent=("12.345",)) == Notation(".", assumed=True)


def test_without_any_sign_three_digits_are_a_group():
    assert told("117,344") == Notation(".")
    assert told("117.344") == Notation(",", assumed=True)
    assert told("117.344", "117,344") == Notation(".", assumed=True)


def test_values_that_contradict_one_another_are_shown():
    assert told("1,234.5", "65,77").against == ("1,234.5", "65,77")


def test_the_evidence_may_stand_far_below():
    assert told(*["117.344"] * 5000, "65,77") == Notation(",")


def test_numbers_are_read_by_the_notation():
    english = pl.Series(["376,704", "1,234.50", "12", "-3", "1e3", "n/a", "nan", "inf", "0,1,2", "PolicySpread", None])
    assert numbers(english, Notation(".")).to_list() == [376704, 1234.5, 12, -3, 1000, *[None] * 6]
    european = pl.Series(["376.704", "1.234,50", "65,77", "12"])
    assert numbers(european, Notation(",")).to_list() == [376704, 1234.5, 65.77, 12]


def test_groups_may_be_set_apart_by_blanks_and_apostrophes():
    values = pl.Series(["1 234 567,5", "1\u202f234,5", "1\u00a0234,5"])
    assert numbers(values, Notation(",")).to_list() == [1234567.5, 1234.5, 1234.5]
    assert numbers(pl.Series(["1'234'567.5", "1\u2019234"]), Notation(".")).to_list() == [1234567.5, 1234]


def test_what_stands_for_unknown_is_told_from_words():
    values = pl.Series(["n/a", "NaN", "(!) nan", "", None, "all", "12"])
    assert is_unknown(values).to_list() == [True, True, True, True, True, False, False]


@given(st.lists(st.floats(0, 1e12), min_size=1), st.sampled_from([",", "."]))
def test_what_was_printed_comes_back(values, decimal):
    texts = [f"{value:,.2f}" for value in values]
    if decimal == ",":
        texts = [text.translate(str.maketrans(",.", ".,")) for text in texts]
    series = pl.Series(texts)
    found = notation(series, pl.Series([False] * len(texts)))
    assert found == Notation(decimal)
    assert numbers(series, found).to_list() == [float(f"{value:.2f}") for value in values]
