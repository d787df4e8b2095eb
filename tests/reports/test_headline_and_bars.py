from __future__ import annotations

import polars as pl
import pytest
from bar_notes import texts
from msgspec.structs import replace

from stepscope.core.schema import ISSUES
from stepscope.core.trace import Meta
from stepscope.reports._headline_and_bars import overview_of_ranks
from stepscope.reports._summary import Cost, Lack, Memory, Summary

MS = 1_000_000


def summary(rank: int | None = 0, **fields) -> Summary:
    known = {
        "recorded_ns": 400 * MS,
        "devices": ("NVIDIA H100",),
        "numbers": (4, 5, 6),
        "windows_ns": (100 * MS, 100 * MS, 100 * MS),
        "parts": {"computation": 240 * MS, "idle": 60 * MS},
        "busy": {"cuda:0": 0.8},
    }
    meta = Meta(
        f"run/rank{rank}.json", "kineto", n_events=1000, rank=rank, world_size=8, framework="PyTorch",
        framework_version="2.9.0+cu128",
    )  # fmt: skip
    return Summary(meta, **(known | fields))


def test_the_headline_of_one_rank_says_what_was_recorded() -> None:
    assert overview_of_ranks([summary(3)]).headline == (
        "PyTorch 2.9.0 · NVIDIA H100 · rank 3 of 8 · steps 4–6 (3) · 400 ms recorded · 1,000 events read"
    )


def test_the_headline_of_a_job_counts_devices_and_names_ranks() -> None:
    headline = overview_of_ranks([summary(i) for i in range(8)]).headline
    assert headline.startswith("PyTorch 2.9.0 · 8 × NVIDIA H100 · ranks 0–7 · steps")
    assert headline.endswith("8,000 events read")
    assert "ranks 0–1 of 8" in overview_of_ranks([summary(0), summary(1)]).headline
    assert "2 files" in overview_of_ranks([summary(None), summary(None)]).headline


def test_the_headline_tells_files_from_ranks() -> None:
    def whose(*summaries: Summary) -> str:
        return overview_of_ranks(list(summaries)).headline.split(" · ")[2]

    assert whose(*[summary(i % 2) for i in range(6)]) == "ranks 0–1 of 8, 3 files each"
    assert whose(summary(0), summary(0), summary(1)) == "ranks 0–1 of 8, 3 files"
    assert whose(summary(3), summary(3)) == "rank 3 of 8, 2 files"
    assert whose(summary(None, pids=(5,)), summary(None, pids=(5,))) == "2 files of one process"
    of_devices = [summary(None, places=(f"cuda:{i % 2}",)) for i in range(4)]
    assert whose(*of_devices) == "4 files, 2 of each device"
    assert overview_of_ranks(of_devices).headline.startswith("PyTorch 2.9.0 · 2 × NVIDIA H100 · 4 files")


def test_a_step_on_the_clock_of_the_device_says_what_the_host_takes() -> None:
    ahead = summary(host_ns=(10 * MS,) * 3)
    report = overview_of_ranks([ahead])
    assert "steps 4–6 (3) on the device's clock" in report.headline
    assert texts(report.bars[0])[0] == "step on the device's clock: the host queues one in 10 ms"
    assert "clock" not in overview_of_ranks([summary(host_ns=(100 * MS,) * 3)]).headline


def test_a_lone_step_a_host_without_devices_and_a_foreign_trace() -> None:
    assert "CPU only" in overview_of_ranks([summary(devices=(), numbers=(6,), windows_ns=(5,))]).headline
    assert "step 6" in overview_of_ranks([summary(numbers=(6,), windows_ns=(5,))]).headline
    foreign = Summary(Meta("x.json", "kineto", n_events=5), 1000)
    assert overview_of_ranks([foreign]).headline == "Chrome trace · 1 µs recorded · 5 events read"


def issues(code: str, severity: str = "error"):
    row = {"code": code, "severity": severity, "count": 1, "example": "x"}
    return ISSUES.conform(pl.DataFrame([row]))


def test_damage_comes_first_and_says_what_may_be_missing() -> None:
    one = summary(issues=issues("truncated"))
    assert overview_of_ranks([one]).headline.startswith(
        "Truncated file: later events may be missing, the last step may be incomplete · PyTorch 2.9.0 · NVIDIA H100 ·"
    )
    packed = summary(issues=issues("damaged_packing"), numbers=(), windows_ns=(5,))
    assert overview_of_ranks([packed]).headline.startswith("Damaged archive: later events may be missing · PyTorch")
    job = overview_of_ranks([summary(0), summary(1, issues=issues("damaged_events")), summary(2)])
    assert job.headline.startswith("Damaged file (1 of 3 files): later events")
    assert not overview_of_ranks([summary(issues=issues("odd_commas", "warning"))]).headline.startswith("Damaged")


def test_a_damaged_file_without_device_work_is_not_called_cpu_only() -> None:
    host = summary(devices=(), parts={"operators": 200 * MS, "Python and other": 100 * MS}, busy={})
    lost = replace(host, issues=issues("truncated"))
    report = overview_of_ranks([lost])
    assert report.headline.startswith("Truncated file: device work may be missing, the last step")
    assert "CPU only" not in report.headline
    assert texts(report.bars[0])[0] == "time of the host alone: the file holds no device work"
    launched = replace(lost, quality=(Lack("no_device", "…"),))
    assert "device work is missing" in overview_of_ranks([launched]).headline
    unrecorded = overview_of_ranks([replace(host, quality=(Lack("no_device", "…"),))])
    assert " · device work not recorded · " in unrecorded.headline


def test_the_bar_shows_the_mean_step_its_spread_and_its_parts() -> None:
    (bar,) = overview_of_ranks([summary(windows_ns=(90 * MS, 100 * MS, 110 * MS))]).bars
    assert (bar.label, bar.value) == ("Step", "100 ms ±10 %")
    assert [(part.name, part.ratio) for part in bar.parts] == [("computation", 0.8), ("idle", 0.2)]
    assert texts(bar) == ("device busy 80 %",)


def test_the_busy_share_weighs_files_by_their_time_as_the_bar_does() -> None:
    short = summary(0, windows_ns=(10 * MS,), parts={"computation": 2 * MS, "idle": 8 * MS}, busy={"cuda:0": 0.2})
    long = summary(1, windows_ns=(90 * MS,), parts={"computation": 81 * MS, "idle": 9 * MS}, busy={"cuda:0": 0.9})
    (bar,) = overview_of_ranks([short, long]).bars
    assert {part.name: part.ratio for part in bar.parts} == {"computation": 0.83, "idle": 0.17}
    assert "device busy 83 % (least: rank 0, 20 %)" in texts(bar)


def test_unrelated_files_have_a_line_each_and_no_means() -> None:
    first = summary(None, costs=(Cost("idle", "waits", 60 * MS), Cost("rule", "try", None)))
    second = summary(0, windows_ns=(5 * MS,), numbers=(), devices=("NVIDIA A100",))
    second = replace(second, meta=replace(second.meta, path="run/other.json", rank=0))
    report = overview_of_ranks([first, second])
    assert report.headline == "PyTorch 2.9.0 · NVIDIA A100 · NVIDIA H100 · 2 unrelated files · 2,000 events read"
    assert (report.bars, report.findings) == ((), ())
    (block,) = report.tables
    assert block.frame.sort("n_steps").rows() == [
        ("other", 0, 5 * MS, 0.8, None, None),
        ("rankNone", 3, 100 * MS, 0.8, "waits", 0.2),
    ]
    runs = overview_of_ranks([first, second, replace(second, pids=(7,)), replace(second, pids=(7, 8))])
    assert "4 files of at least 2 unrelated runs" in runs.headline


def test_files_of_one_name_are_labelled_by_their_folders() -> None:
    costs = (Cost("work", "Work", 90 * MS, ("much",)),)
    files = [summary(None, costs=costs), summary(None, windows_ns=(MS, MS, MS))]
    named = [replace(s, meta=replace(s.meta, path=f"run/cycle{i}/t.json.gz")) for i, s in enumerate(files)]
    (finding,) = overview_of_ranks(named).findings
    assert finding.details == ("cycle0/t: 30 ms, none on cycle1/t", "On cycle0/t: much")


def test_how_well_kernels_use_devices_is_told_as_a_mean_over_ranks() -> None:
    first = summary(0, use={"est_sm_efficiency_ratio": 0.5, "est_occupancy_ratio": 0.25, "tensor_core_ratio": 0.0})
    second = summary(1, use={"est_sm_efficiency_ratio": 0.7, "tensor_core_ratio": 0.4})
    assert texts(overview_of_ranks([first, second]).bars[0]) == (
        "device busy 80 %", "est. SM efficiency 60 %, occupancy 25 %", "tensor cores 20 %",
    )  # fmt: skip
    one = summary(use={"tensor_core_ratio": 0.4})
    assert texts(overview_of_ranks([one]).bars[0]) == ("device busy 80 %", "tensor cores 40 %")
    amd = replace(one, places=("rocm:0",))
    assert texts(overview_of_ranks([amd]).bars[0]) == ("device busy 80 %", "matrix cores 40 %")
    unknown = replace(amd, use={"tensor_core_ratio": 0.0})
    assert texts(overview_of_ranks([unknown]).bars[0]) == ("device busy 80 %",)


def test_mfu_is_told_as_a_mean_over_ranks_and_as_a_lower_bound_where_not_all_is_known() -> None:
    first = summary(0, use={"mfu_ratio": 0.3, "mfu_known_ratio": 1.0})
    second = summary(1, use={"mfu_ratio": 0.4, "mfu_known_ratio": 0.7})
    assert texts(overview_of_ranks([first]).bars[0]) == ("device busy 80 %", "MFU 30 %")
    assert texts(overview_of_ranks([first, second]).bars[0])[1] == "MFU ≥ 35 %"


def test_what_hosts_do_while_devices_idle_is_told_as_shares_of_the_bar() -> None:
    first = summary(0, while_idle={"operators": 30 * MS, "other": 1 * MS, "runtime calls": 9 * MS})
    second = summary(1, while_idle={"data loading": 60 * MS, "operators": 30 * MS})
    assert texts(overview_of_ranks([first, second]).bars[0]) == (
        "device busy 80 %", "host during the 20 % idle: operators 10 %, data loading 10 %, runtime calls 1.5 %",
    )  # fmt: skip
    assert texts(overview_of_ranks([summary(while_idle={"other": MS})]).bars[0]) == ("device busy 80 %",)


def test_advice_without_a_price_is_left_out_where_a_cost_that_is_shown_says_it() -> None:
    cost, advice = Cost("compute gemm", "Matrix products", 30.0 * MS), Cost("rule x", "Tensor cores are not used", None)
    told = Cost("rule y", "Told already", None, covered_by=("compute gemm", "other"))
    findings = overview_of_ranks([summary(costs=(cost, advice, told))]).findings
    assert [finding.title for finding in findings] == ["Matrix products", "Tensor cores are not used"]
    findings = overview_of_ranks([summary(costs=(advice, told))]).findings
    assert [finding.title for finding in findings] == ["Tensor cores are not used", "Told already"]


def test_two_steps_have_no_spread_and_no_steps_have_no_step() -> None:
    assert overview_of_ranks([summary(numbers=(1, 2), windows_ns=(MS, 3 * MS))]).bars[0].value == "2 ms"
    without = {"numbers": (), "windows_ns": (7 * MS,)}
    assert overview_of_ranks([summary(**without)]).bars[0].label == "Device"
    assert overview_of_ranks([summary(**without, devices=())]).bars[0].label == "Recording"
    assert overview_of_ranks([summary(parts={})]).bars == ()


def test_ranks_that_are_apart_are_named_in_the_notes() -> None:
    slow = summary(
        1, windows_ns=(150 * MS,) * 3, busy={"cuda:0": 0.5}, memory=Memory("cuda:0", 2 << 30, None, 80 << 30)
    )
    notes = texts(overview_of_ranks([summary(0), slow]).bars[0])
    assert notes == (
        "slowest rank 1: 150 ms, fastest rank 0: 100 ms",
        "device busy 62 % (least: rank 1, 50 %)",
        "peak memory 2 GiB of 80 GiB (rank 1)",
    )


def test_of_several_devices_the_least_busy_is_named() -> None:
    notes = texts(overview_of_ranks([summary(busy={"cuda:0": 0.9, "cuda:1": 0.5}, devices=("A", "A"))]).bars[0])
    assert notes == ("device busy 70 %, mean of 2 devices (least: cuda:1, 50 %)",)


def test_the_three_largest_costs_are_told_per_step_and_small_ones_are_not() -> None:
    costs = [Cost(f"kind {i}", f"cost {i}", ns * MS, ("why",), "show x") for i, ns in enumerate((30, 90, 2, 60, 15))]
    findings = overview_of_ranks([summary(costs=tuple(costs))]).findings
    assert [(f.title, f.value_ns, f.value_label) for f in findings] == [
        ("cost 1", 30 * MS, "per step"), ("cost 3", 20 * MS, "per step"), ("cost 0", 10 * MS, "per step"),
    ]  # fmt: skip
    assert findings[0].share_ratio == pytest.approx(0.3)
    tiny = summary(costs=(Cost("kind", "cost", 2 * MS),))
    assert overview_of_ranks([tiny]).findings == ()


def test_costs_of_short_device_work_in_a_long_recording_are_named() -> None:
    ends, small = Cost("idle ends", "No device work", 295 * MS), Cost("gemm", "Products", 2 * MS)
    fields = {"windows_ns": (300 * MS,), "costs": (ends, small)}
    assert [f.title for f in overview_of_ranks([summary(numbers=(), **fields)]).findings] == [
        "No device work",
        "Products",
    ]
    assert [f.title for f in overview_of_ranks([summary(numbers=(1,), **fields)]).findings] == ["No device work"]


def test_what_has_no_price_in_time_stands_last() -> None:
    costs = (Cost("growth", "memory grows", None), Cost("kind", "cost", 90 * MS))
    assert [f.title for f in overview_of_ranks([summary(costs=costs)]).findings] == ["cost", "memory grows"]


def test_the_same_cost_of_ranks_is_their_mean_in_the_words_of_the_one_that_pays_most() -> None:
    ranks = [
        summary(0, costs=(Cost("communication", "of rank 0", 30 * MS, ("ten calls",)),)),
        summary(1, costs=(Cost("communication", "of rank 1", 150 * MS, ("nine calls", "→ do")),)),
    ]
    (finding,) = overview_of_ranks(ranks).findings
    assert (finding.title, finding.value_ns, finding.share_ratio) == ("of rank 1", 30 * MS, pytest.approx(0.3))
    assert finding.details == (
        "10 ms to 50 ms by rank, waits for one another included",
        "nine calls",
        "→ do",
    )
    ranks = [replace(one, costs=(replace(one.costs[0], kind="idle"),)) for one in ranks]
    (finding,) = overview_of_ranks(ranks).findings
    assert finding.details == ("rank 1: 50 ms, rank 0: 10 ms", "On rank 1: nine calls", "→ do")


def test_a_cost_that_one_rank_lacks_counts_as_none_there() -> None:
    (finding,) = overview_of_ranks([summary(0, costs=(Cost("idle", "late", 60 * MS),)), summary(1)]).findings
    assert (finding.value_ns, finding.share_ratio) == (10 * MS, pytest.approx(0.1))
    assert finding.details == ("rank 0: 20 ms, none on rank 1",)


def test_ranks_that_agree_are_told_as_one() -> None:
    same = Cost("idle", "late", 60 * MS, ("often",))
    (finding,) = overview_of_ranks([summary(0, costs=(same,)), summary(1, costs=(same,))]).findings
    assert finding.details == ("often",)


def test_a_lack_is_told_once_with_the_ranks_that_have_it() -> None:
    everywhere, here = Lack("steps", "No steps."), Lack("launch", "1 % lacks a launch.")
    there = Lack("launch", "2 % lacks a launch.")
    ranks = [summary(0, quality=(everywhere, here)), summary(1, quality=(everywhere, there))]
    ranks.append(summary(2, quality=(everywhere, Lack("cut", "Cut off."))))
    report = overview_of_ranks(ranks, "1 file left out.")
    assert report.quality == (
        "No steps.",
        "1 % lacks a launch (on rank 0, alike on 1 other).",
        "Cut off (on rank 2).",
        "1 file left out.",
    )


def test_issues_of_all_ranks_are_added_up() -> None:
    row = {"code": "no_launch", "severity": "info", "count": 3, "example": "x"}
    issues = ISSUES.conform(ISSUES.empty().__class__([row]))
    report = overview_of_ranks([summary(0, issues=issues), summary(1, issues=issues)])
    assert report.issues is not None
    assert report.issues.select("code", "count").rows() == [("no_launch", 6)]
    alone = overview_of_ranks([summary(0)]).issues
    assert alone is not None
    assert alone.is_empty()


def test_machines_get_the_facts() -> None:
    meta = overview_of_ranks([summary(1), summary(0)]).meta
    assert meta["ranks"] == [0, 1]
    assert (meta["n_events"], meta["n_steps"], meta["recorded_ns"]) == (2000, 3, 400 * MS)


@pytest.mark.parametrize("ns", [None, 0])
def test_a_cost_without_time_is_told_in_the_words_of_a_rank_that_has_it(ns) -> None:
    ranks = [summary(0), summary(1, costs=(Cost("growth", "memory grows on rank 1", ns),))]
    titles = [finding.title for finding in overview_of_ranks(ranks).findings]
    assert titles in ([], ["memory grows on rank 1"])
    assert titles or ns == 0
