from __future__ import annotations

import polars as pl
import pytest
from launches import trace

from stepscope.analyses import find, ncu_join
from stepscope.analyses.ncu_join import CODE, stitched
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import ISSUES

DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
BYTES = "dram__bytes.sum"
COUNTED = trace(
    [("add", 20, 4, 32), ("add", 20, 4, 32), ("mul", 90, 8, 64)],
    metrics=[
        (0, BYTES, "byte", 100.0), (0, DRAM, "%", 10.0), (1, BYTES, "byte", 300.0), (1, DRAM, "%", 30.0),
        (2, BYTES, "byte", 500.0), (2, DRAM, "%", 50.0),
    ],
    path="ncu.csv", registers=[16, 16, 40], est_occupancy_ratio=[0.25, 0.75, 0.5], shared_bytes=[1024, 1024, 0],
    blocks_per_sm=[2.0, 2.0, None],
)  # fmt: skip


def rows(found):
    return found.kernel_metrics.with_columns(pl.col("metric", "unit").cast(pl.String)).rows()


def issue(found, code=CODE):
    return found.issues.filter(pl.col("code") == code).select("severity", "count", "example").row(0)


def test_launches_of_the_same_size_get_the_means_of_all_counters():
    found = stitched(trace([("mul", 9, 8, 64), ("add", 2, 4, 32)]), COUNTED)
    assert rows(found) == [
        (0, BYTES, "byte", 500.0), (0, DRAM, "%", 50.0), (1, BYTES, "byte", 200.0), (1, DRAM, "%", 20.0),
    ]  # fmt: skip


def test_launches_of_another_size_get_what_does_not_grow_with_the_work():
    found = stitched(trace([("add", 2, 5, 32), ("mul", 9, None, None)]), COUNTED)
    assert rows(found) == [(0, DRAM, "%", 20.0), (1, DRAM, "%", 50.0)]


def test_the_share_of_time_is_told_by_rule():
    timeline = trace(
        [("add", 60, 4, 32), ("mul", 20, 1, 64), ("mul", 10, None, None), ("nccl", 8, 1, 1), ("x", 2, 1, 1)]
    )
    assert issue(stitched(timeline, COUNTED)) == (
        "info", 3,
        (
            "counters of ncu.csv cover 90 % of the time of kernels (60 % by name, grid and block, 20 % by name and"
            " nearest size, 10 % by name alone); the most without: nccl, 8 %"
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("launches", "text"),
    [
        ([("nccl", 5, 1, 1)], "cover 0 % of the time of kernels; the most without: nccl, 100 %"),
        ([("nccl", 6, 1, 1), ("add", 4, 4, 32)], "cover 40 % of the time of kernels (40 % by name, grid and block); "),
    ],
)
def test_less_than_half_is_a_warning(launches, text):
    severity, _, example = issue(stitched(trace(launches), COUNTED))
    assert severity == "warning"
    assert text in example


def test_what_takes_next_to_no_time_is_not_worth_a_word():
    found = stitched(trace([("add", 9999, 4, 32), ("nccl", 1, 1, 1)]), COUNTED)
    assert issue(found)[2] == (
        "counters of ncu.csv cover >99.9 % of the time of kernels (>99.9 % by name, grid and block)"
    )


def test_kernels_without_a_duration():
    found = stitched(trace([("add", None, 4, 32)]), COUNTED)
    assert issue(found)[2] == "counters of ncu.csv cover 0 % of the time of kernels (0 % by name, grid and block)"


def test_names_that_stand_for_several_kernels_are_told():
    metrics = [(0, DRAM, "%", 10.0), (1, DRAM, "%", 30.0)]
    counted = trace([("void copy<(int)1>(T1)", 1, 4, 32), ("void copy<(int)2>(T1)", 1, 4, 32)], metrics=metrics)
    found = stitched(trace([("copy", 6, 4, 32), ("copy<2>", 4, 4, 32)]), counted)
    assert rows(found) == [(0, DRAM, "%", 20.0), (1, DRAM, "%", 30.0)]
    what = "names that stand for several counted kernels, as copy: 60 % of the time has their means"
    assert issue(found, "counters_mixed") == ("info", 1, what)


def test_what_the_timeline_lacks_of_kernels_is_filled_in():
    timeline = trace(
        [("add", 2, 4, 32), ("add", 2, 9, 32), ("add", 2, 4, 32)], registers=[None, None, 99],
        est_occupancy_ratio=[None, None, 0.1],
    )  # fmt: skip
    columns = ("registers", "est_occupancy_ratio", "shared_bytes", "blocks_per_sm", "grid_x")
    assert stitched(timeline, COUNTED).kernels.select(columns).rows() == [
        (16, 0.5, 1024, 2.0, 4), (16, 0.5, None, None, 9), (99, 0.1, 1024, 2.0, 4),
    ]  # fmt: skip


def test_a_timeline_without_launch_sizes_gets_a_row_for_each_kernel():
    timeline = trace([("add", 2, None, None), ("mul", 2, None, None)])
    bare = timeline.with_tables(kernels=timeline.kernels.head(0))
    assert stitched(bare, COUNTED).kernels.select("span_id", "registers", "shared_bytes").rows() == [
        (0, 16, None),
        (1, 40, None),
    ]


def test_kernels_with_counters_of_their_own_keep_them():
    timeline = trace([("add", 2, 4, 32), ("add", 2, 4, 32)], metrics=[(1, "flops", "FLOP", 7.0)])
    found = stitched(timeline, COUNTED)
    assert rows(found) == [(0, BYTES, "byte", 200.0), (0, DRAM, "%", 20.0), (1, "flops", "FLOP", 7.0)]


def test_values_that_are_not_known_are_no_counters():
    counted = trace([("add", 1, 4, 32)], metrics=[(0, DRAM, "%", None), (0, BYTES, "byte", 5.0)])
    assert rows(stitched(trace([("add", 2, 4, 32)]), counted)) == [(0, BYTES, "byte", 5.0)]


def test_launches_that_were_not_counted_stand_for_nothing():
    counted = trace([("add", 1, 4, 32), ("mul", 1, 4, 32)], metrics=[(1, DRAM, "%", 5.0)])
    assert rows(stitched(trace([("add", 2, 4, 32), ("mul", 2, 4, 32)]), counted)) == [(1, DRAM, "%", 5.0)]


@pytest.mark.parametrize(
    ("metric", "unit", "stays"),
    [
        ("x", "%", True), ("x", "byte/s", True), ("x", "hz", True), ("x", "ratio", True),
        ("x", "register/thread", True), ("OccupancyPercent", None, True),
        ("smsp__inst.sum.per_cycle_elapsed", "inst", True), ("x", "byte", False), ("x", "ns", False),
        ("x", None, False), ("MeanOccupancyPerCU", None, False),
    ],
)  # fmt: skip
def test_which_counters_do_not_grow_with_the_work(metric, unit, stays):
    counted = trace([("add", 1, 4, 32)], metrics=[(0, metric, unit, 5.0)])
    assert bool(rows(stitched(trace([("add", 2, 5, 32)]), counted))) is stays


def test_counters_of_another_product_are_a_warning():
    counted = trace([("add", 1, 4, 32)], metrics=[(0, DRAM, "%", 5.0)], device="NVIDIA A100")
    launches = [("add", 2, 4, 32)]
    found = stitched(trace(launches, device="NVIDIA H100"), counted)
    assert issue(found, "other_device")[2] == "counters are of NVIDIA A100, the timeline is of NVIDIA H100"
    for same in (trace(launches), trace(launches, device="NVIDIA A100")):
        assert stitched(same, counted).issues["code"].to_list() == [CODE]


def test_issues_of_the_timeline_stay():
    row = pl.DataFrame([("truncated", "error", 1, "x")], schema=dict(ISSUES.dtypes), orient="row")
    found = stitched(trace([("add", 2, 4, 32)]).with_tables(issues=row), COUNTED)
    assert found.issues["code"].to_list() == ["truncated", CODE]


def test_of_too_many_counters_those_stay_that_an_analysis_looks_at(monkeypatch):
    metrics = [(0, DRAM, "%", 10.0), (0, BYTES, "byte", 5.0), (0, "l1tex__x.sum", "request", 5.0)]
    counted = trace([("add", 1, 4, 32)], metrics=metrics)
    timeline = trace([("add", 2, 4, 32)] * 3)
    assert stitched(timeline, counted).kernel_metrics.height == 9
    monkeypatch.setattr(ncu_join, "MOST_ROWS", 8)
    found = stitched(timeline, counted)
    assert sorted(set(found.kernel_metrics["metric"])) == [BYTES, DRAM]
    assert issue(found, "metrics_left_out")[:2] == ("info", 1)


def test_a_timeline_without_kernels_and_a_file_without_counters_are_refused():
    with pytest.raises(MissingTable, match="--with needs kernels"):
        stitched(trace([("add", 2, 4, 32)]).with_tables(spans=pl.DataFrame(schema=COUNTED.spans.schema)), COUNTED)
    with pytest.raises(StepscopeError, match=r"a\.sqlite holds no counters of kernels") as caught:
        stitched(COUNTED, trace([("add", 2, 4, 32)]))
    assert "ncu --csv" in caught.value.hint


def test_analyses_show_the_counters_with_the_timeline_s_own_times():
    timeline = trace([("add", 30, 4, 32), ("mul", 70, 8, 64)])
    found = find("kernels")(stitched(timeline, COUNTED))
    assert found.select("name", "total_ns", "dram_ratio", "est_occupancy_ratio").rows() == [
        ("mul", 70, 0.5, 0.5),
        ("add", 30, 0.2, 0.5),
    ]
    (used,) = find("utilisation")(stitched(timeline, COUNTED)).rows(named=True)
    assert used["dram_ratio"] == pytest.approx(0.3 * 0.2 + 0.7 * 0.5)
