from __future__ import annotations

import polars as pl
import pytest

from stepscope.exports.latencyprism import _report
from stepscope.exports.latencyprism._comparison import COMPARED
from stepscope.exports.latencyprism._report import (
    conclusion,
    csv_text,
    details_table,
    durations_table,
    headings,
    pipe_table,
    report_text,
    summary_table,
)

LABELS = ("normal", "abnormal")
BETA = "  - Its contribution to total cycle time (β)"
SURE = "statistically significant (p-value: 0.010)"


def compared(*rows):
    """Rows of COMPARED: score, function, metric, and what else is not 0."""
    frames = [
        dict.fromkeys(COMPARED.dtypes, 0.0)
        | {"function": function, "metric": metric, "device": "GPU 3", "score": float(score), "beta_p": 0.01}
        | values
        for score, function, metric, values in rows
    ]
    return COMPARED.conform(pl.DataFrame(frames, schema_overrides=dict(COMPARED.dtypes)))


GREW = {"beta_1": 2.0, "beta_2": 3.5, "beta_delta": 1.5, "mu_1": 118_687.5, "mu_2": 21_000.0, "mu_delta": -97_687.5}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_section_1_counts_cycles_and_takes_their_mean():
    lines = summary_table(LABELS, ([1000.0, 3000.0], [3000.0])).split("\n")
    assert cells(lines[2]) == ["Total Cycles", "2", "1", "-1", "-"]
    assert cells(lines[3]) == ["Avg Cycle Time (us)", "2,000.00", "3,000.00", "1,000.00", "+50.00%"]
    assert "+inf%" in summary_table(LABELS, ([0.0], [1.0]))


def test_section_2_sets_the_cycles_side_by_side():
    lines = durations_table(LABELS, ([1000.25, 2000.5, 0.0], [3000.0, 500.0])).split("\n")
    assert cells(lines[0]) == ["Time Rank", "normal Time (us)", "abnormal Time (us)", "Δ (us)", "Δ (%)"]
    assert [cells(line) for line in lines[2:]] == [
        ["1", "2,000.50", "3000.0", "999.50", "+49.96%"],
        ["2", "1,000.25", "500.0", "-500.25", "-50.01%"],
        ["3", "0.00", "-", "-", "-"],
    ]
    assert cells(durations_table(LABELS, ([0.0], [1.0])).split("\n")[2])[4] == "+inf%"


def test_the_detail_table_rounds_twice():
    frame = compared((1561.71834, "f", "m", {"beta_delta": 5.908, "mu_1": 118_687.5, "mu_p": float("nan")}))
    row = dict(zip(headings(LABELS), cells(details_table(frame, LABELS).split("\n")[2]), strict=True))
    assert row["Suspicion Score"] == "1561.72"
    assert row["Δβ(%)"] == "5.91"
    assert row["μ_normal"] == "118,687.50"
    assert row["p-value(μ)"] == "nan"
    assert row["p-value(β)"] == "0.01"


def test_the_csv_has_six_decimals_and_leaves_empty_what_is_no_number():
    frame = compared((2.0, "f(a, b)", "m", {"mu_p": float("nan"), "mu_1": 1 / 3}))
    head, row = csv_text(frame, ("a", "b")).splitlines()
    assert head.startswith("Function Name,Metric Name,Device,Suspicion Score,β_a(%),β_b(%),Δβ(%),Z-Score(β),")
    assert (
        row
        == '"f(a, b)",m,GPU 3,2.000000,'
        + "0.000000," * 4
        + "0.010000,0.000000,0.333333,"
        + "0.000000," * 4
        + ",0.000000"
    )


def test_nothing_suspicious_is_said_so():
    assert conclusion(compared((10.0, "f", "m", GREW)), LABELS) == [
        _report.OVERVIEW,
        "No significant performance difference between `normal` and `abnormal` (Suspicion Score > 10).",
    ]  # fmt: skip


def test_the_first_function_is_the_headline():
    found = conclusion(compared((12, "f", "m", GREW), (11, "g", "m", {"beta_delta": -1.0})), LABELS)
    assert found[1].startswith("The primary performance difference between `normal` and `abnormal`")
    assert "**`f`**. The analysis indicates a notable increase" in found[1]
    assert found[2].split("\n") == [
        "### Key Findings:",
        "- **`f` on device `GPU 3`:**",
        f"{BETA} **increased** from **2.00%** to **3.50%** (+1.50 ppt), which is {SURE}.",
        "  - This change in cycle time contribution correlates with changes in the following resource metrics (μ):",
        "    - **`m`**: decreased from 118,687.50 to 21,000.00.",
        "- **`g` on device `GPU 3`:**",
        f"{BETA} **decreased** from **0.00%** to **0.00%** (-1.00 ppt), which is {SURE}.",
    ]
    assert found[3:] == [_report.RECOMMENDATION]


def test_three_functions_with_three_metrics_each_are_told():
    rows = [(90 - i, f"f{i % 4}", f"m{i // 4}", GREW) for i in range(20)]
    text = conclusion(compared(*rows), LABELS)[2]
    assert [name for name in ("f0", "f1", "f2", "f3") if f"**`{name}`" in text] == ["f0", "f1", "f2"]
    assert text.count("    - **`m") == 9
    assert "m3" not in text


@pytest.mark.parametrize("p", [0.05, 0.3, float("nan")])
def test_a_change_that_may_be_chance_is_told_as_such(p):
    text = conclusion(compared((12, "f", "m", GREW | {"beta_p": p})), LABELS)[2]
    assert f"though this change may not be statistically significant (p-value: {p:.3f})" in text


def test_metrics_that_stay_or_are_not_suspicious_are_left_out():
    same = {**GREW, "mu_delta": 1e-7}
    text = conclusion(compared((12, "f", "m", same), (9, "f", "n", GREW)), LABELS)[2]
    assert _report.CORRELATES not in text


def test_a_share_above_all_is_explained():
    assert _report.OVER_ALL in conclusion(compared((12, "f", "m", GREW | {"beta_2": 100.5})), LABELS)
    assert _report.OVER_ALL not in conclusion(compared((12, "f", "m", GREW), (9, "g", "m", {"beta_1": 200.0})), LABELS)


def test_the_report_has_its_parts_in_order():
    text = report_text("# Title", LABELS, ([1000.0], [2000.0]), compared((12, "f", "m", GREW)))
    assert [line for line in text.split("\n") if line.startswith("#")] == [
        "# Title", _report.SUMMARY, _report.DURATIONS, _report.CORE, _report.OVERVIEW, _report.FINDINGS,
        _report.DETAILS,
        "## 5. Legend",
    ]  # fmt: skip
    assert f"{_report.RECOMMENDATION}\n{_report.DETAILS}\n{_report.TABLE_IS}\n\n|" in text
    assert text.endswith("**Focus on items with the highest score first.**\n\n")


def column(cells, number="g"):
    """The rows of a table of one column, without their pipes."""
    return [line[2:-2] for line in pipe_table(["x"], [[cell] for cell in cells], number).split("\n")[2:]]


def test_numbers_are_set_right_and_texts_left_under_headings_with_room():
    assert pipe_table(["Rank", "Name"], [[1, "a"], [12, "b or more"]]) == (
        "|   Rank | Name      |\n"
        "|-------:|:----------|\n"
        "|      1 | a         |\n"
        "|     12 | b or more |"
    )  # fmt: skip


def test_texts_that_spell_numbers_are_written_anew_with_points_below_each_other():
    assert column(["1561.7183", "0.5000", "+5.91", "-0.00"]) == ["1561.72", "   0.5 ", "   5.91", "  -0   "]
    assert column(["127110906.5", "nan"]) == ["  1.27111e+08", "nan          "]


def test_a_number_with_a_comma_makes_its_column_text():
    assert column(["1,000.00", "2.50"]) == ["1,000.00", "2.50    "]


@pytest.mark.parametrize("odd", ["-", "", "+nan", "+inf", "1 0"])
def test_a_cell_that_spells_no_number_makes_its_column_text(odd):
    assert column(["2.50", odd]) == [cell.ljust(4) for cell in ("2.50", odd)]


def test_whole_numbers_stay_as_they_are():
    assert column(["+12", "3"]) == ["+12", "  3"]


def test_floats_are_written_in_the_format_asked_for_unless_one_is_missing():
    assert column([1234.5, 7.0], ",.2f") == ["1,234.50", "    7.00"]
    assert column([1234.5, "-"], ",.2f") == ["1234.5", "-     "]


def test_a_table_without_rows_has_its_headings():
    assert pipe_table(["a", "bc"], []) == "| a   | bc   |\n|:----|:-----|"
