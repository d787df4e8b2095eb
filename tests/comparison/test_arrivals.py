from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from observations import observation, pair

from stepscope.comparison.arrivals import without_waits
from stepscope.comparison.model import OPERATORS, PYTHON, RUN_RESOURCES, TIMED_STEPS, Answers
from stepscope.comparison.verdict import compare_runs
from stepscope.comparison.whole_run import stretches

MS = 1_000_000
N = 720
#: Steps of a request: the last one lasts until the next request comes.
STEPS = 9


def served(step_ms, wait_ms, *, seed=0, busy=0.0, source="module calls", every=STEPS):
    """A job that waits for a request every so many steps, at random; `busy` is how much of the waits it works."""
    chance = np.random.default_rng(seed)
    step = step_ms * (1 + 0.05 * chance.standard_normal(N))
    is_last = np.arange(N) % every == every - 1
    waits = np.where(is_last, 10 * step_ms + chance.exponential(max(wait_ms, 1e-9), N), 0.0) * (wait_ms > 0)
    dur = (step + waits) * MS
    begin = (np.cumsum(dur) - dur).astype(np.int64)
    ones = np.ones(N, np.int64)
    frame = {"step": np.arange(N), "ts_ns": begin, "dur_ns": dur, "n_steps": ones}
    steps = TIMED_STEPS.conform(pl.DataFrame(frame).with_columns(source=pl.lit(source)))
    whole = stretches(steps)
    work = [part.mean() * MS for part in np.array_split(step + busy * waits, 40)]
    rows = pl.DataFrame({"stretch": np.arange(40), "mu": 1e9 * np.array(work) / whole, "step_ns": whole})
    constants = {"device": "process", "metric": "process_oncpu_time", "unit": "ns/s"}
    resources = RUN_RESOURCES.conform(rows.with_columns(pl.lit(value).alias(name) for name, value in constants.items()))
    profile = observation([int(step_ms * MS)] * 8, anchor="steps")
    return replace(profile, steps=steps, run_resources=resources)


def mean_ms(run):
    return run.steps["dur_ns"].mean() / MS


def test_steps_that_end_with_a_wait_for_a_request_are_left_out_of_both_runs():
    (both,), (remark,) = without_waits([pair(served(1, 40), served(1.5, 40, seed=1))])
    assert both.answers_requests
    assert mean_ms(both.base[0]) == pytest.approx(1, rel=0.02)
    assert mean_ms(both.other[0]) == pytest.approx(1.5, rel=0.02)
    assert both.base[0].steps.height == N * (STEPS - 1) / STEPS
    assert remark.startswith("the job waits for requests 8")
    base, other = both.waits
    assert base.n_requests == other.n_requests == pytest.approx(N / STEPS)
    assert base.step_ns / MS == pytest.approx(1 + (10 + 40) / STEPS, rel=0.2)


@pytest.mark.parametrize(("sampled", "is_left_out"), [(0.2, True), (0.02, False), (None, False)])
def test_few_waits_are_left_out_if_samples_show_the_main_thread_waiting_as_long(sampled, is_left_out):
    runs = [served(10, 50, every=60), served(12, 50, every=60, seed=1)]
    if sampled is not None:
        shares = {"share_ratio": [sampled, 1 - sampled], "worker_ratio": [0.0, 0.0]}
        rows = {"function": ["Condition.wait (threading.py)", "step (serve.py)"], **shares}
        runs = [replace(run, python_functions=pl.DataFrame(rows)) for run in runs]
    (both,), _ = without_waits([pair(*runs)])
    assert both.answers_requests == is_left_out
    assert mean_ms(both.base[0]) == pytest.approx(10 if is_left_out else 12.5, rel=0.05)


def test_of_two_threads_that_answer_both_wait_for_the_part_of_a_part():
    # Steps hold waits for 0.45 of the time, and nobody works for 0.2 of it: that is as much as two threads would.
    rows = {"function": ["Condition.wait (threading.py)", "step (serve.py)"], "share_ratio": [0.2, 0.8]}
    runs = [served(10, 180, every=36), served(12, 180, every=36, seed=1)]
    for worker_ratio, is_left_out in ((1.0, True), (0.0, False)):
        sampled = pl.DataFrame({**rows, "worker_ratio": [0.0, worker_ratio]})
        (both,), _ = without_waits([pair(*(replace(run, python_functions=sampled) for run in runs))])
        assert both.answers_requests == is_left_out


def test_a_repeat_of_the_base_that_waits_a_little_less_is_treated_as_the_others():
    # The second waits for less than half of its time, which by itself would be no sign of requests.
    repeats = (served(1, 40), served(4, 16, seed=2), served(1, 40, seed=3))
    (both,), _ = without_waits([replace(pair(repeats[0], served(1.5, 40, seed=1)), base=repeats)])
    assert both.answers_requests
    assert [mean_ms(run) for run in both.base] == pytest.approx([1, 4, 1], rel=0.02)


def test_waits_of_the_other_run_that_are_too_few_to_tell_are_left_out_as_often_as_those_of_the_base():
    (both,), _ = without_waits([pair(served(1, 40), served(4, 16, seed=1))])
    assert mean_ms(both.other[0]) == pytest.approx(4, rel=0.02)


def answered(step_ms, work_ms, *, n_at_work=400, seed=0):
    """A server whose threads are at work for a part of each step, as samples of them show."""
    run = served(step_ms, 0, seed=seed)
    functions = pl.DataFrame({"function": ["answer (t.py)"], "share_ratio": [1.0], "worker_ratio": [1.0]})
    worked = TIMED_STEPS.conform(run.steps.with_columns(dur_ns=pl.lit(work_ms * MS)))
    return replace(run, answers=Answers(functions, functions.clear(), worked, n_at_work, 60.0))


def test_the_time_in_which_threads_that_answer_requests_work_is_compared_if_samples_tell_it():
    (both,), (remark,) = without_waits([pair(answered(10, 5), answered(10, 8, seed=1))])
    assert (mean_ms(both.base[0]), mean_ms(both.other[0])) == pytest.approx((5, 8))
    assert both.base[0].python_functions["function"].to_list() == ["answer (t.py)"]
    assert both.waits[0].n_requests == 60
    assert remark.endswith("the time in which its threads work, by samples, is compared")


def test_threads_that_hardly_wait_count_in_place_of_a_main_thread_that_only_waits():
    waits = pl.DataFrame({"function": ["Thread.join (threading.py)"], "share_ratio": [1.0], "worker_ratio": [0.0]})
    runs = [replace(answered(10, 9.9, seed=seed), python_functions=waits) for seed in (0, 1)]
    (both,), remarks = without_waits([pair(*runs)])
    assert (both.answers_requests, remarks) == (False, ())
    assert mean_ms(both.base[0]) == pytest.approx(10, rel=0.01)
    assert both.other[0].python_functions["function"].to_list() == ["answer (t.py)"]


def test_threads_in_which_a_job_marks_its_steps_count_whatever_else_works_for_the_main_thread():
    functions = pl.DataFrame({"function": ["draw (t.py)"], "share_ratio": [1.0], "worker_ratio": [1.0]})
    runs = [replace(answered(10, 9.9, seed=seed), python_functions=functions) for seed in (0, 1)]
    assert without_waits([pair(*runs)])[0][0].other[0].python_functions["function"].to_list() == ["draw (t.py)"]
    marked = [replace(run, answers=replace(run.answers, is_marked_there=True)) for run in runs]
    (both,), remarks = without_waits([pair(*marked)])
    assert (both.other[0].python_functions["function"].to_list(), remarks) == (["answer (t.py)"], ())


@pytest.mark.parametrize(("work_ms", "n_at_work"), [(9.8, 400), (5, 50)])
def test_threads_that_hardly_wait_or_that_few_samples_found_are_not(work_ms, n_at_work):
    (both,), _ = without_waits([pair(answered(10, work_ms, n_at_work=n_at_work), answered(10, 8, seed=1))])
    assert not both.answers_requests


def grouped(run):
    """The same where the short steps of a request share a row, as those of a long run do."""
    rows = run.steps.with_columns(group=pl.col("step") // STEPS, is_last=pl.col("step") % STEPS == STEPS - 1)
    sums = rows.group_by("group", "is_last").agg(
        pl.col("step", "ts_ns", "source").first(), pl.col("dur_ns").mean(), pl.col("n_steps").sum()
    )
    return replace(run, steps=TIMED_STEPS.conform(sums.sort("step")))


def test_steps_that_share_a_row_count_each():
    (both,), _ = without_waits([pair(grouped(served(1, 40)), grouped(served(1.5, 40, seed=1)))])
    assert mean_ms(both.base[0]) == pytest.approx(1, rel=0.02)
    assert mean_ms(both.other[0]) == pytest.approx(1.5, rel=0.02)
    assert both.waits[0].n_requests == pytest.approx(N / STEPS)


def test_a_run_that_never_waits_keeps_all_its_steps():
    (both,), _ = without_waits([pair(served(1, 40), served(12, 0, seed=1))])
    assert both.other[0].steps.height == N
    assert both.waits[1].waiting_ratio == pytest.approx(0, abs=1e-9)


def test_long_steps_in_which_the_other_run_works_are_left_out_as_often_as_the_base_waits():
    (both,), _ = without_waits([pair(served(1, 40), served(1, 80, seed=1, busy=1.0))])
    assert both.other[0].steps.height == pytest.approx(N * (STEPS - 1) / STEPS, abs=1)


def one_call(inside_ms, wait_ms, *, seed=0, busy=0.0):
    """A job with one call of its model a request, and waits between them; a cycle of its profile has both as parts."""
    chance = np.random.default_rng(seed)
    inside = inside_ms * (1 + 0.05 * chance.standard_normal(N))
    outside = chance.exponential(wait_ms, N)
    run = served(1, 0)
    dur = (inside + outside) * MS
    frame = run.steps.with_columns(
        ts_ns=pl.Series((np.cumsum(dur) - dur).astype(np.int64)), dur_ns=dur, inside_ns=pl.Series(inside * MS)
    )
    steps = TIMED_STEPS.conform(frame)
    work = np.array([part.mean() * MS for part in np.array_split(inside + busy * outside, 40)])
    whole = stretches(steps)
    resources = run.run_resources.with_columns(mu=1e9 * work / whole, step_ns=whole)
    parts = [(c, name, int(ms * MS)) for c in range(1, 9) for name, ms in ((OPERATORS, inside_ms), (PYTHON, wait_ms))]
    profile = observation([int((inside_ms + wait_ms) * MS)] * 8, parts=parts, anchor="steps")
    return replace(profile, steps=steps, run_resources=resources)


def test_of_a_job_with_one_call_a_request_the_time_inside_calls_is_compared():
    (both,), (remark,) = without_waits([pair(one_call(3, 20), one_call(5, 20, seed=1))])
    assert mean_ms(both.base[0]) == pytest.approx(3, rel=0.01)
    assert mean_ms(both.other[0]) == pytest.approx(5, rel=0.01)
    assert both.base[0].cycles["dur_ns"].to_list() == [3 * MS] * 8
    assert both.base[0].parts["part"].unique().to_list() == [OPERATORS]
    assert remark.endswith("the time inside the calls of its model is compared")


def handled(work_ms, wait_ms, *, wakes=50.0, seed=0, n=1):
    """A job whose handler works besides the calls of its model, as samples show; `n` calls of that share a request.

    `wakes` is how often a second it gives up its core.
    """
    run = one_call(work_ms / n / 4, (wait_ms + 0.75 * work_ms) / n, seed=seed)
    worked = TIMED_STEPS.conform(run.steps.with_columns(dur_ns=pl.lit(work_ms * MS / n)))
    each = run.run_resources.with_columns(metric=pl.lit("process_voluntary_ctx_switches"), mu=pl.lit(wakes))
    return replace(run, worked=worked, run_resources=pl.concat([run.run_resources, RUN_RESOURCES.conform(each)]))


def test_what_a_handler_does_besides_the_calls_of_its_model_counts_if_samples_show_it():
    (both,), (remark,) = without_waits([pair(handled(12, 20), handled(16, 20, seed=1))])
    assert (mean_ms(both.base[0]), mean_ms(both.other[0])) == pytest.approx((12, 16))
    assert remark.endswith("the time in which its main thread works, by samples, is compared")
    assert both.waits[0].waiting_ratio == pytest.approx(20 / 32, rel=0.05)


@pytest.mark.parametrize(
    ("wakes", "work_ms", "every_ms", "ending"),
    [
        (55.0, 24, 44, "each request of the other run has 2.9 times as many steps as one of the base, since"),
        (150.0, 8, 44 / 3, "is compared"),  # three times as many requests come
    ],
)
def test_steps_that_come_more_often_are_of_more_requests_only_if_the_job_is_woken_more_often(
    wakes, work_ms, every_ms, ending
):
    (both,), (remark,) = without_waits([pair(handled(12, 32), handled(24, 20, n=3, wakes=wakes, seed=1))])
    assert mean_ms(both.other[0]) == pytest.approx(work_ms, rel=0.05)
    assert both.waits[1].step_ns / MS == pytest.approx(every_ms, rel=0.05)
    assert ending in remark.rpartition("; ")[2]


@pytest.mark.parametrize("base", [one_call(3, 20, busy=1.0), one_call(20, 3)], ids=["work between calls", "few waits"])
def test_work_between_calls_is_compared_too(base):
    before = pair(base, one_call(5, 20, seed=1))
    assert without_waits([before]) == ((before,), ())


def test_a_job_that_waits_for_its_loader_waits_for_no_requests():
    functions = pl.DataFrame({"function": ["_get_data (torch/utils/data/dataloader.py)"], "share_ratio": [0.8]})
    before = pair(replace(one_call(3, 20), python_functions=functions), one_call(5, 20, seed=1))
    assert without_waits([before]) == ((before,), ())


@pytest.mark.parametrize(
    "base",
    [served(1, 40, busy=1.0), served(1, 0), served(1, 40, source="optimizer steps")],
    ids=["work", "none", "train"],
)
def test_long_steps_that_are_no_waits_for_requests_stay(base):
    before = pair(base, served(1.5, 40, seed=1))
    assert without_waits([before]) == ((before,), ())


def test_a_server_is_judged_by_its_own_steps_and_not_by_how_often_requests_come():
    base = [[served(1, 40, seed=seed)] for seed in range(3)]
    slower = compare_runs(base, [[served(1.5, 30, seed=7)]])
    assert (slower.verdict, slower.reason) == ("different", "slower")
    assert slower.whole_run.ratio == pytest.approx(1.5, rel=0.03)
    fewer = compare_runs(base, [[served(1, 60, seed=7)]])
    assert fewer.step_verdict == "no_difference"
    assert not fewer.causes
