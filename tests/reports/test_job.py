from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.kernels.kernels import KERNEL_SUMMARY
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.report import Block
from stepscope.core.schema import ISSUES, SERIALISED
from stepscope.core.trace import Meta
from stepscope.reports._job import devices_of, job_of, measured, owners, runs_of
from stepscope.reports._summary import Summary


def summary(rank, world=None, path=None):
    return Summary(Meta(path or f"rank{rank}.json", "kineto", rank=rank, world_size=world), recorded_ns=10)


def job(*found):
    """Of summaries, numbers (their ranks) or errors, each with a path of its own."""
    outcomes = [summary(one, 8) if isinstance(one, int) else one for one in found]
    paths = [one.meta.path if isinstance(one, Summary) else one.args[0] for one in outcomes]
    return job_of(paths, outcomes)


def recording(path, *, rank=None, pids=(), places=("cuda:0",), host=None, start=None, **fields):
    meta = Meta(path, "kineto", rank=rank, host=host, origin_unix_ns=start)
    return Summary(meta, recorded_ns=10, pids=pids, places=places, devices=("NVIDIA H100",) * len(places), **fields)


def test_files_of_one_rank_are_one_owner_whatever_else_they_say():
    files = [recording(f"{i}.json", rank=i % 2, pids=(i,)) for i in range(6)]
    assert owners(files) == [0, 1, 0, 1, 0, 1]
    assert devices_of(files) == {"NVIDIA H100": 2}


def test_without_ranks_files_of_one_process_or_of_the_same_devices_belong_together():
    same_process = [recording("a", pids=(7,), places=()), recording("b", pids=(7, 8), places=())]
    assert owners(same_process) == [0, 0]
    each_device = [recording(f"{i}", places=(f"npu:{i % 2}",)) for i in range(4)]
    assert owners(each_device) == [0, 1, 0, 1]
    assert devices_of(each_device) == {"NVIDIA H100": 2}
    assert owners([recording("a", places=()), recording("b", places=())]) == [0, 1]


def test_processes_at_the_same_time_and_hosts_of_other_names_are_different_ones():
    at_once = [recording("a", pids=(7,), start=100), recording("b", pids=(8,), start=105)]
    assert owners(at_once) == [0, 1]
    assert devices_of(at_once) == {"NVIDIA H100": 2}
    one_after_the_other = [recording("a", pids=(7,), start=100), recording("b", pids=(8,), start=110)]
    assert owners(one_after_the_other) == [0, 0]
    assert owners([recording("a", host="x"), recording("b", host="y")]) == [0, 1]


def test_what_is_measured_are_the_files_of_each_owner_that_say_most():
    full = recording("full", busy={"cuda:0": 0.5}, numbers=(1,))
    work = recording("work", busy={"cuda:0": 0.5})
    steps = recording("steps", numbers=(1,))
    assert measured([full, work, steps]) == [full]
    assert measured([work, steps]) == [work]
    alone = recording("host", rank=1, places=())
    assert measured([recording("gpu", rank=0, busy={"cuda:0": 1.0}), alone])[1:] == [alone]


def of_kernels(path, kernels, **fields):
    frame = pl.DataFrame({"name": list(kernels), "total_ns": list(kernels.values())})
    return recording(path, tables=(Block("Kernels", KERNEL_SUMMARY, frame),), **fields)


def test_files_of_different_ranks_of_one_process_or_of_one_time_are_one_run():
    assert runs_of([recording(f"{rank}", rank=rank) for rank in range(3)]) == [0, 0, 0]
    times = [recording("a", pids=(7,), start=100), recording("b", pids=(7,), start=900)]
    assert runs_of([*times, recording("c", pids=(8,), start=905)]) == [0, 0, 0]


def test_files_of_one_program_are_one_run_and_of_different_programs_are_not():
    one, more, other = {"gemm": 8, "add": 2}, {"gemm": 5, "add": 5, "copy": 1}, {"conv": 8, "add": 2}
    assert runs_of([of_kernels("a", one), of_kernels("b", other), of_kernels("c", more)]) == [0, 1, 0]
    assert runs_of([of_kernels("a", one), of_kernels("b", {"gemm": 1, "add": 99})]) == [0, 1]  # times of other programs
    assert runs_of([of_kernels("a", one), of_kernels("b", one, places=())]) == [0, 0]
    assert runs_of([of_kernels("a", one, rank=0), of_kernels("b", other, rank=0)]) == [0, 1]


def test_a_file_between_two_others_makes_them_one_run():
    first, between, last = {"gemm": 6, "add": 4}, {"gemm": 4, "add": 3, "copy": 3, "fill": 3}, {"copy": 5, "fill": 5}
    assert runs_of([of_kernels("a", first), of_kernels("c", last)]) == [0, 1]
    assert runs_of([of_kernels("a", first), of_kernels("c", last), of_kernels("b", between)]) == [0, 0, 0]


def test_a_file_with_nothing_to_compare_is_of_the_first_run_unless_its_time_is_another():
    kernels = of_kernels("a", {"gemm": 1}, start=100)
    assert runs_of([kernels, recording("b")]) == [0, 0]
    assert runs_of([kernels, recording("b", start=900)]) == [0, 1]
    other = of_kernels("b", {"conv": 1}, start=500)
    assert runs_of([kernels, other, recording("c", start=900), recording("d")]) == [0, 1, 2, 0]


def test_a_run_in_which_counters_were_read_is_measured_only_if_there_is_no_other():
    codes = pl.DataFrame({"code": [SERIALISED], "severity": ["warning"], "count": [1], "example": ["x"]})
    counted = recording("pmc", busy={"rocm:0": 0.1}, issues=ISSUES.conform(codes))
    timed = recording("trace", busy={"rocm:0": 0.9}, issues=ISSUES.empty())
    assert measured([counted, timed]) == [timed]
    assert measured([counted]) == [counted]


def test_a_whole_job_has_nothing_to_tell():
    whole = job(*range(8))
    assert [s.meta.rank for s in whole.summaries] == list(range(8))
    assert whole.sentences() == []
    assert whole.facts() == {"missing_ranks": [], "n_missing_ranks": 0, "left_out": [], "duplicates": []}


def test_ranks_without_a_file_are_missing():
    some = job(0, 1, 4, 7)
    assert some.missing == (2, 3, 5, 6)
    assert some.sentences() == ["4 ranks of 8 are missing: 2–3, 5–6."]
    assert job(*range(7)).sentences() == ["1 rank of 8 is missing: 7."]
    assert some.facts()["missing_ranks"] == [2, 3, 5, 6]


def test_of_many_gaps_the_first_are_told():
    def missing(*ranks):
        there = [rank for rank in range(20) if rank not in ranks]
        return job_of([str(r) for r in there], [summary(r, 20) for r in there]).sentences()[0].partition(": ")[2]

    assert missing(1, 3, 4, 6, 8) == "1, 3–4, 6, 8."
    assert missing(1, 3, 4, 6, 8, 9, 12, 15) == "1, 3–4, 6, 8–9 …"


def test_one_file_of_a_job_is_no_complaint_but_a_fact():
    assert job(3).sentences() == []
    assert job(3).missing == (0, 1, 2, 4, 5, 6, 7)


def test_a_broken_file_is_told_and_its_rank_not_missed():
    some = job(*range(5), CorruptInput("cut", path="run/rank5.json"), CorruptInput("cut", path="run/rank6.json"))
    paths = [s.meta.path for s in some.summaries]
    assert "rank5.json" not in paths
    found = job_of(
        [*paths, "run/rank5.json", "run/odd.json"],
        [*some.summaries, CorruptInput("cut", path="x"), StepscopeError("n")],
    )
    assert found.missing == (6, 7)
    assert found.sentences() == ["2 files left out: rank5.json, odd.json (x: cut).", "2 ranks of 8 are missing: 6–7."]
    assert found.facts()["left_out"] == [
        {"path": "run/rank5.json", "rank": 5, "error": "x: cut"},
        {"path": "run/odd.json", "rank": None, "error": "n"},
    ]


def test_a_rank_that_is_there_twice_counts_once():
    found = job(*range(8), summary(3, 8, "copies/rank3.json"), summary(5, 8, "copies/rank5.json"))
    assert len(found.summaries) == 8
    assert found.sentences() == ["2 files left out: rank3.json, rank5.json (another file has ranks 3, 5)."]
    assert found.facts()["duplicates"] == [
        {"path": "copies/rank3.json", "rank": 3},
        {"path": "copies/rank5.json", "rank": 5},
    ]
    assert job(0, 1, summary(1, 8, "b.json")).sentences()[0] == "1 file left out: b.json (another file has rank 1)."


def test_recordings_of_one_rank_are_not_copies():
    assert len(job(0, summary(0, 8, "later.json")).summaries) == 2
    twice = [*range(4), *(summary(i, 8, f"later{i}.json") for i in range(4))]
    assert len(job(*twice).summaries) == 8


def test_without_the_size_of_the_job_gaps_count_if_they_are_few():
    def of(*ranks):
        return job_of([f"rank{r}.json" for r in ranks], [summary(r) for r in ranks])

    assert of(2, 3, 5).missing == (4,)
    assert of(2, 3, 5).sentences() == ["1 rank is missing: 4."]
    assert of(0, 8).missing == ()


def test_files_without_ranks_miss_none():
    found = job_of(["a.json", "b.json"], [summary(None), summary(None)])
    assert (found.missing, len(found.summaries)) == ((), 2)


def test_a_size_that_cannot_be_is_not_believed():
    assert job_of(["a", "b"], [summary(1, 2), summary(9, 2)]).missing == ()
    several = [summary(0, 4), summary(1, 4), summary(2, 64)]
    assert job_of(["a", "b", "c"], several).missing == (3,)


def test_if_nothing_can_be_read_the_first_error_is_raised():
    with pytest.raises(CorruptInput, match="first"):
        job_of(["a", "b"], [CorruptInput("first", path="a"), StepscopeError("second")])
    with pytest.raises(StepscopeError, match="no traces given"):
        job_of([], [])
