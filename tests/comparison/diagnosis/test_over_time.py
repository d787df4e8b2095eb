from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from faulty_jobs import MS, Job, recorded, sampled_functions
from msgspec.structs import replace

from stepscope.comparison.model import RUN_RESOURCES, TIMED_STEPS
from stepscope.comparison.verdict import compare_runs
from stepscope.comparison.whole_run import growth, stretches

BASE = Job()
N = 400
STEP_MS = recorded(BASE).complete_cycles["dur_ns"].mean() / MS


def timed(seed, added_ms=0.0, job=BASE):
    """A recording whose profile shows nothing, with steps of the whole run that take so much longer, each."""
    profile = recorded(job, seed)
    whole_ms = STEP_MS * (1 + 0.01 * np.random.default_rng(seed).standard_normal(N)) + added_ms
    dur = whole_ms * MS
    frame = {"step": np.arange(N), "ts_ns": (np.cumsum(dur) - dur).astype(np.int64), "dur_ns": dur, "n_steps": [1] * N}
    return replace(profile, steps=TIMED_STEPS.conform(pl.DataFrame(frame)))


def compared(added_ms):
    return compare_runs([[timed(0)]], [[timed(1, added_ms)]])


def every(distance, ms):
    return np.where(np.arange(N) % distance == 5, ms, 0.0)


def test_work_that_comes_every_few_steps_is_named_with_its_distance():
    result = compared(every(20, 400.0))
    (cause,) = result.causes
    assert cause.category == "periodic_work"
    assert "every 20 steps" in cause.statement
    assert cause.explained_ns / MS == pytest.approx(20, rel=0.15)
    assert "every 20 steps" in cause.advice


def test_work_that_the_base_does_as_often_is_no_cause():
    result = compare_runs([[timed(0, every(20, 400.0))]], [[timed(1, every(20, 400.0))]])
    assert (result.verdict, result.causes) == ("no_difference", ())


def test_slow_steps_at_random_are_a_tail():
    slow = np.where(np.random.default_rng(5).random(N) < 0.06, 300.0, 0.0)
    result = compared(slow)
    assert [cause.category for cause in result.causes] == ["slow_tail"]
    assert result.verdict == "different"


def test_two_slow_steps_that_make_the_change_are_told_but_prove_nothing():
    slow = np.zeros(N)
    slow[[90, 310]] = 9000.0
    result = compared(slow)
    assert result.causes == ()
    (note,) = [note for note in result.notes if "too few" in note]
    assert note.startswith(f"2 steps of {N} take 9 s longer than the others, which is ")


def spending(recording, metric, ms):
    """The same where the process spends so long per step in what the metric counts, in each stretch of the run."""
    step_ns = stretches(recording.steps)
    rows = {"stretch": np.arange(40), "mu": 1e9 * np.asarray(ms) * MS / step_ns, "step_ns": step_ns}
    of_process = {"device": "process", "metric": metric, "unit": "ns/s"}
    frame = pl.DataFrame(rows).with_columns(pl.lit(value).alias(name) for name, value in of_process.items())
    return replace(recording, run_resources=RUN_RESOURCES.conform(frame))


@pytest.mark.parametrize("metric", ["process_runq_time", "process_python_gc_time"])
@pytest.mark.parametrize(("of_extra", "named"), [(0.0, True), (0.8, False)])
def test_slow_steps_that_wait_for_a_core_or_collect_garbage_are_no_tail_of_their_own(metric, of_extra, named):
    slow = np.where(np.random.default_rng(5).random(N) < 0.06, 300.0, 0.0)
    base, other = timed(0), timed(1, slow)
    extra_ms = (stretches(other.steps) - np.median(stretches(other.steps))) / MS
    more_ms = 1.0 + of_extra * np.maximum(extra_ms, 0)
    result = compare_runs(
        [[spending(base, metric, np.full(40, 1.0))]],
        [[spending(other, metric, more_ms)]],
    )
    assert ("slow_tail" in [cause.category for cause in result.causes]) is named


def without_profile(recording, slow, **shares):
    functions = sampled_functions(shares, 3000, slow=slow)
    return replace(recording, parts=recording.parts.clear(), python_functions=functions)


@pytest.mark.parametrize(
    ("of_pause", "causes"),
    [
        # All of `save` is in slow steps, and `pause` comes in each step.
        (0.0, ["periodic_work", "host_overhead"]),
        # Half of `pause` is in slow steps and belongs to them. The rest is not.
        (0.1, ["periodic_work", "host_overhead"]),
        (0.18, ["periodic_work"]),
    ],
)
def test_a_function_that_is_in_slow_steps_alone_is_told_once(of_pause, causes):
    base = without_profile(timed(0), {}, step=1.0)
    other = timed(1, every(20, 400.0) + 20.0)
    slow = {"save": 0.19, "pause": of_pause}
    result = compare_runs([[base]], [[without_profile(other, slow, step=0.61, save=0.2, pause=0.19)]])
    assert [cause.category for cause in result.causes] == causes
    places = [row.name for row in result.causes[0].evidence if row.name]
    assert places == (["save", "pause"] if of_pause > 0.1 else ["save"])
    for cause in result.causes[1:]:
        assert "in pause" in cause.statement


@pytest.mark.parametrize(("of_pause", "names"), [(0.045, ["slow_tail"]), (0.0, [])])
def test_few_slow_steps_are_a_tail_if_the_main_thread_is_somewhere_new_in_them(of_pause, names):
    """Four steps of 400 take five times as long, each by itself: with one in the base, chance may do that."""
    slow = np.zeros(N)
    slow[[50, 150, 250, 350]] = 4.5 * STEP_MS
    one = np.zeros(N)
    one[200] = 4.5 * STEP_MS
    base = [[without_profile(timed(seed, one if seed == 2 else 0.0), {}, step=1.0)] for seed in (2, 3, 4)]
    other = without_profile(timed(1, slow), {"pause": of_pause}, step=0.955, pause=0.045)
    result = compare_runs(base, [[other]])
    assert [cause.category for cause in result.causes if cause.category == "slow_tail"] == names


@pytest.mark.parametrize(("of_pause", "names"), [(0.06, ["slow_tail"]), (0.0, [])])
def test_a_tail_is_named_beside_larger_causes_if_samples_say_what_is_done_in_it(of_pause, names):
    """It is a seventh of what the mean step takes longer, so that it may be beside the point."""
    slow = np.zeros(N)
    slow[[31, 87, 150, 203, 256, 301, 350, 388]] = 5 * STEP_MS
    base = [[without_profile(timed(seed), {}, step=1.0)] for seed in (2, 3)]
    other = without_profile(timed(1, slow + 0.6 * STEP_MS), {"pause": of_pause}, step=0.59, print_all=0.35, pause=0.06)
    causes = compare_runs(base, [[other]]).causes
    assert [cause.category for cause in causes if cause.category == "slow_tail"] == names


@pytest.mark.parametrize("of_search", [0.2, 0.0])
def test_what_is_nearly_always_in_slow_steps_does_not_grow_though_more_of_them_come_late(of_search):
    slow = np.zeros(N)
    slow[[60, 150, 203, 256, 290, 301, 320, 350, 370, 388]] = 10 * STEP_MS
    shares = {"step": (0.95, 0.7), "search": (0.05, 0.3)}
    base = [[sampled(timed(seed), step=(1.0, 1.0))] for seed in (2, 3)]
    functions = sampled_functions({"step": 0.8, "search": 0.2}, 3000, thirds=shares, slow={"search": of_search})
    causes = compare_runs(base, [[replace(timed(1, slow), python_functions=functions)]]).causes
    assert ("growing_steps" in [cause.category for cause in causes]) is not bool(of_search)


@pytest.mark.parametrize(("distance", "names"), [(20, ["periodic_work"]), (80, [])])
def test_regular_work_is_named_beside_larger_causes_if_it_is_a_tenth_of_the_change(distance, names):
    base = without_profile(timed(0), {}, step=1.0)
    other = timed(1, every(distance, 200.0) + 60.0)
    found = without_profile(other, {"save": 0.09}, step=0.35, save=0.09, print_all=0.56)
    causes = compare_runs([[base]], [[found]]).causes
    assert [cause.category for cause in causes if cause.category != "host_overhead"] == names


def test_work_of_every_few_steps_is_no_larger_work_of_all():
    """A job that mostly is in one function, which now does more in every twentieth step."""
    base = at_work(without_profile(timed(0), {}, step=1.0), np.full(40, STEP_MS))
    other = at_work(timed(1, every(20, 400.0)), np.full(40, STEP_MS + 20.0))
    more = 20.0 / (STEP_MS + 20.0)
    result = compare_runs([[base]], [[without_profile(other, {"step": more}, step=1.0)]])
    assert [cause.category for cause in result.causes] == ["periodic_work"]


def test_steps_that_grow_are_named():
    result = compared(np.linspace(0, 60, N))
    assert [cause.category for cause in result.causes] == ["growing_steps"]
    assert result.proof is not None
    assert result.proof.delta / MS == pytest.approx(30, rel=0.1)


def sampled(recording, **functions):
    """The same with functions of the main thread, each with its share of the first and of the last third of the run."""
    shares = {name: (early + late) / 2 for name, (early, late) in functions.items()}
    return replace(recording, python_functions=sampled_functions(shares, 3000, thirds=functions))


@pytest.mark.parametrize(
    ("before", "after", "is_growing"),
    [
        ((0.0, 0.0), (0.02, 0.22), True),
        ((0.02, 0.22), (0.02, 0.22), False),  # as in the base
        ((0.0, 0.0), (0.09, 0.15), False),  # steady, as far as samples can tell
        ((0.0, 0.0), (0.22, 0.02), False),
    ],
)
def test_where_the_machine_drifts_a_function_that_takes_longer_and_longer_says_that_steps_grow(
    before, after, is_growing
):
    wave = 10 + 20 * np.sin(np.arange(N) / N * 6)
    base = sampled(timed(0, wave - 10), step=(0.8, 0.8), search=before)
    other = sampled(timed(1, wave), step=(0.75, 0.75), search=after)
    result = compare_runs([[base], [sampled(timed(2, wave - 10), step=(0.8, 0.8), search=before)]], [[other]])
    growing = [cause for cause in result.causes if cause.category == "growing_steps"]
    assert bool(growing) is is_growing
    for cause in growing:
        assert "longer and longer in search" in cause.statement
        assert cause is result.causes[0]


@pytest.mark.parametrize(("first", "last", "names"), [(0.5, 0.62, False), (0.5, 0.8, True)])
def test_on_slower_cores_functions_rise_only_if_they_grow_more_than_the_rest(first, last, names):
    drift = 12 * np.cos(np.arange(N) / N * 6 * np.pi)
    base = sampled(timed(0, drift), merge=(0.55, 0.55), rest=(0.45, 0.45))
    other = sampled(timed(1, drift + 0.3 * STEP_MS), merge=(first, last), rest=(1 - first, 1 - last))
    result = compare_runs([[base]], [[other]])
    assert ("growing_steps" in [cause.category for cause in result.causes]) is names


@pytest.mark.parametrize(("rise_ms", "names"), [(24.0, True), (0.0, False)])
def test_few_samples_of_a_function_that_takes_longer_and_longer_are_enough_if_the_steps_grow_too(rise_ms, names):
    drift = 12 * np.cos(np.arange(N) / N * 6 * np.pi)  # its first quarter is as long as its last
    thirds = {"step": (0.95, 0.8), "search": (0.05, 0.2)}
    shares = {"step": 0.87, "search": 0.13}
    base = replace(timed(0, drift), python_functions=sampled_functions({"step": 1.0}, 120))
    grows = timed(1, drift + np.linspace(0, rise_ms, N) + (24.0 - rise_ms) / 2)
    assert growth(grows.steps)[1] < 0.8
    other = replace(grows, python_functions=sampled_functions(shares, 120, thirds=thirds))
    result = compare_runs([[base]], [[other]])
    causes = [cause for cause in result.causes if cause.category == "growing_steps"]
    assert bool(causes) is names
    assert all("longer and longer in search" in cause.statement for cause in causes)


def at_work(recording, ms):
    """The same with the time on cores of each stretch's steps (ms)."""
    step_ns = stretches(recording.steps)
    rows = {"stretch": np.arange(step_ns.size), "mu": 1e9 * np.asarray(ms) * MS / step_ns, "step_ns": step_ns}
    of_process = {"device": "process", "metric": "process_oncpu_time", "unit": "ns/s"}
    frame = pl.DataFrame(rows).with_columns(pl.lit(value).alias(name) for name, value in of_process.items())
    return replace(recording, run_resources=RUN_RESOURCES.conform(frame))


@pytest.mark.parametrize(("last_ms", "category"), [(84.0, "growing_steps"), (60.0, "host_overhead")])
def test_a_function_that_takes_longer_while_the_process_works_more_and_more_makes_steps_grow(last_ms, category):
    wave = 12 * np.cos(np.arange(N) / N * 6 * np.pi)
    thirds = {"step": (0.95, 0.8), "search": (0.05, 0.2)}
    usual = sampled_functions({"step": 1.0}, 120)
    base = replace(at_work(timed(0, wave), np.full(40, 60.0)), python_functions=usual)
    other = at_work(timed(1, wave + 12.0), np.linspace(60.0, last_ms, 40))
    assert growth(other.steps)[1] < 0.5
    seen = sampled_functions({"step": 0.87, "search": 0.13}, 120, thirds=thirds)
    (cause,) = compare_runs([[base]], [[replace(other, python_functions=seen)]]).causes
    assert cause.category == category  # and it is not told a second time as host overhead
    assert "in search" in cause.statement


def test_where_the_profile_hardly_shows_the_change_of_the_run_samples_say_where_the_time_goes():
    base = replace(timed(0), python_functions=sampled_functions({"step": 1.0}, 2000))
    other = replace(timed(1, 15.0), python_functions=sampled_functions({"step": 0.87, "pause": 0.13}, 2000))
    (cause,) = compare_runs([[base]], [[other]]).causes
    assert cause.category == "host_overhead"
    assert "in pause" in cause.statement


def test_a_change_that_a_noisy_profile_hides_is_proven_by_the_whole_run():
    result = compared(15.0)
    assert (result.verdict, result.step_verdict) == ("different", "different")
    assert result.step_time is not None
    assert not result.step_time.is_different
    assert result.whole_run is not None
    assert result.whole_run.n_base == N
    assert result.added_ns / MS == pytest.approx(15, rel=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_healthy_runs_have_no_cause(seed):
    result = compare_runs([[timed(seed)]], [[timed(seed + 50)]])
    assert (result.verdict, result.causes) == ("no_difference", ())


def test_without_times_of_steps_these_causes_are_not_judged():
    result = compare_runs([[recorded(BASE, 0)]], [[recorded(BASE, 1)]])
    missing = {row.category for row in result.ruled_out if "times of all steps" in row.reason}
    assert missing == {"periodic_work", "slow_tail", "growing_steps"}


def with_memory(recording, level_bytes, *, each=1):
    """The same with a level of resident memory in each stretch of the whole run, sampled in one of so many."""
    n = len(level_bytes)
    frame = pl.DataFrame({"stretch": np.arange(n), "mu": level_bytes, "step_ns": [STEP_MS * MS] * n}).with_columns(
        device=pl.lit("process"),
        metric=pl.lit("process_mem_rss"),
        unit=pl.lit("bytes"),
        n_samples=(pl.col("stretch") % each == each // 2).cast(pl.Int64),
    )
    return replace(recording, run_resources=RUN_RESOURCES.conform(frame))


def test_memory_that_grows_is_named_though_a_sample_stands_for_many_stretches():
    level = np.full(40, 700e6)
    held = 700e6 + np.repeat(np.arange(5), 8) * 80e6
    result = compare_runs([[with_memory(timed(0), level, each=8)]], [[with_memory(timed(1), held, each=8)]])
    assert [cause.category for cause in result.causes] == ["memory_growth"]


def test_memory_that_grows_while_the_profiler_runs_is_no_growth_of_the_run():
    level = np.full(40, 700e6)
    grown = with_memory(timed(1, job=replace(BASE, growth_bytes=8e6)), level)
    assert compare_runs([[with_memory(timed(0), level)]], [[grown]]).causes == ()


def test_memory_that_grows_over_the_whole_run_is_named_although_the_profile_is_short():
    level = np.full(40, 700e6)
    result = compare_runs([[with_memory(timed(0), level)]], [[with_memory(timed(1), level + np.arange(40) * 10e6)]])
    (cause,) = result.causes
    assert cause.category == "memory_growth"
    assert "977 KiB every cycle" in cause.statement


def test_what_causes_explain_is_told_in_steps_of_the_run_which_no_profiler_made_longer():
    """Profiled cycles take half as long again as steps: 400 ms of each 20th step are 20 of each step."""
    profiled = [
        replace(timed(seed, ms), cycles=slower(timed(seed, ms).cycles))
        for seed, ms in ((0, 0.0), (1, every(20, 400.0)))
    ]
    (cause, *_) = compare_runs([[profiled[0]]], [[profiled[1]]]).causes
    assert cause.category == "periodic_work"
    assert cause.explained_ns / MS == pytest.approx(20, rel=0.15)


def slower(cycles):
    return cycles.with_columns((pl.col("dur_ns") * 3 // 2).alias("dur_ns"))
