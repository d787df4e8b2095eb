from __future__ import annotations

import pytest
from faulty_jobs import (
    MS,
    Job,
    Kernel,
    Op,
    bigger,
    case_of,
    categories,
    diagnosed,
    gpu_job,
    loop,
    not_judged,
    recorded,
    sampled_functions,
)
from msgspec.structs import replace

from stepscope.comparison.diagnosis import Case, diagnose
from stepscope.comparison.diagnosis.case import Suspect, view_of, views
from stepscope.comparison.diagnosis.workload import is_other, other_work, workload_change
from stepscope.comparison.effects import effects
from stepscope.comparison.model import Pair, RuledOut, Waits
from stepscope.comparison.verdict import compare_runs, judge, step_effect, step_times

BASE = Job()


def test_a_larger_batch_is_other_work():
    diagnosis = diagnosed(BASE, bigger(BASE, 1.5))
    assert categories(diagnosis) == ["workload_change"]
    cause = diagnosis.causes[0]
    assert "The run does other work" in cause.statement
    assert cause.magnitude is not None
    assert cause.magnitude > 1.1
    assert cause.explained_ns > 20 * MS


def test_a_smaller_batch_explains_that_cycles_are_shorter():
    cause = diagnosed(BASE, bigger(BASE, 0.5)).causes[0]
    assert cause.category == "workload_change"
    assert cause.explained_ns < 0


def test_sizes_that_shrink_are_no_cause_of_longer_cycles():
    slower = replace(bigger(BASE, 0.7), loading_ms=90.0)
    diagnosis = diagnosed(BASE, slower)
    assert categories(diagnosis) == ["data_loading"]
    reason = next(row.reason for row in diagnosis.ruled_out if row.category == "workload_change")
    assert "less to do per cycle, but the cycle takes" in reason


def test_slightly_larger_sizes_explain_a_part_of_much_longer_cycles():
    diagnosis = diagnosed(BASE, replace(bigger(BASE, 1.2), loading_ms=150.0))
    assert categories(diagnosis)[0] == "data_loading"
    assert all(abs(cause.explained_ns) < 120 * MS for cause in diagnosis.causes if cause.category == "workload_change")


def test_more_layers_are_other_work():
    ops = tuple(replace(op, calls=op.calls * 2) for op in BASE.operators)
    assert categories(diagnosed(BASE, replace(BASE, operators=ops))) == ["workload_change"]


def test_another_model_is_other_work_and_nothing_else():
    ops = tuple(replace(op, name=f"other::{op.name[6:]}") for op in BASE.operators)
    diagnosis = diagnosed(BASE, replace(BASE, operators=ops))
    assert categories(diagnosis) == ["workload_change"]
    assert "different work" in diagnosis.causes[0].statement


def test_work_that_was_added_is_told():
    names = ("aten::bmm", "aten::erf", "aten::tril")
    more = tuple(Op(name, 20, each * MS, "[[4,384,384]]") for name, each in zip(names, (0.4, 0.3, 0.3), strict=True))
    diagnosis = diagnosed(BASE, BASE.with_ops(*more))
    assert categories(diagnosis) == ["workload_change"]
    assert "20 calls of aten::bmm more per cycle" in diagnosis.causes[0].statement


def test_one_operator_that_is_most_of_what_was_added_is_a_slow_operator():
    svd, small = Op("aten::_linalg_svd", 13, 1.6 * MS, "[[64,64]]"), Op("aten::mul", 13, 0.2 * MS, "[[64,64]]")
    diagnosis = diagnosed(BASE, BASE.with_ops(svd, small))
    assert categories(diagnosis) == ["slow_operator"]
    assert (
        "_linalg_svd is new, the base never calls it: its own time is 20.7 ms per cycle"
        in diagnosis.causes[0].statement
    )


def test_copies_into_another_order_are_no_added_work():
    """A layer that works in another order of its inputs: its copies take a part of what it costs."""
    ops = (Op("aten::clone", 14, 0.1 * MS, "[[8,72,320]]"), Op("aten::mul", 7, 1.5 * MS, "[[8,72,320]]"))
    copies = replace(BASE.op("aten::copy_"), calls=37, each_ns=0.6 * MS)
    diagnosis = diagnosed(BASE, BASE.with_ops(*ops, copies))
    (work,) = (cause for cause in diagnosis.causes if cause.category == "slow_operator")
    assert categories(diagnosis)[0] == "layout_copies"
    assert "mul is new, the base never calls it: its own time is 10.5 ms" in work.statement


def test_without_shapes_counts_of_kernels_tell_other_work():
    base = gpu_job()
    kernels = tuple(replace(k, calls=k.calls * 2) for k in base.kernels)
    diagnosis = diagnosed(base, replace(base, kernels=kernels, gaps_ms=900.0))
    assert "workload_change" in categories(diagnosis)


def test_a_call_more_or_less_in_some_cycles_is_no_other_work():
    base = gpu_job()
    kernels = tuple(replace(k, calls=round(k.calls * 1.1)) for k in base.kernels)
    assert not diagnosed(base, replace(base, kernels=kernels)).causes


def test_work_that_nobody_recorded_is_not_judged():
    base = replace(gpu_job(), kernels=(), operators=())
    assert "workload_change" in not_judged(diagnosed(base, base))


def test_cycles_of_other_kinds_are_not_other_work():
    base = replace(gpu_job(), kernels=(*gpu_job().kernels, Kernel("void only_here", 1, 1e3)))
    diagnosis = diagnosed(base, replace(base, anchor="layer"))
    assert "workload_change" not in categories(diagnosis)


def test_amounts_are_known_from_shapes_and_work_that_did_not_change_is_the_same():
    assert other_work(views(case_of(BASE, BASE))[0]) == (0.0, 1.0)
    share, ratio = other_work(views(case_of(BASE, bigger(BASE, 2.0)))[0])
    assert share > 0.8
    assert 1.9 < ratio < 2.1
    assert is_other((share, ratio))


def test_half_the_work_or_a_tenth_more_is_needed_to_call_it_other():
    assert not is_other(None)
    assert not is_other((0.4, 2.0))
    assert not is_other((0.9, 1.05))
    assert is_other((0.9, 0.8))


def pool(ms, computes, waits):
    """Without a profile: a parent waits for workers, which compute and wait for a core for these shares of a second."""
    shares = {"process_oncpu_time": computes, "process_runq_time": waits}
    theirs = {("workers", metric): ("ns/s", 1e9 * share) for metric, share in shares.items()}
    job = Job(operators=(), gaps_ms=ms, loading_ms=0.0).levels(process_oncpu_time=1e8, process_cpu_usage=10.0)
    return replace(job, resources={**job.resources, **theirs})


def of_pool(base, other):
    """What is said of two such runs, of which no parts are known."""
    runs = [replace(recorded(job, seed), parts=recorded(job).parts.clear()) for seed, job in ((0, base), (9, other))]
    pair = Pair("", (runs[0],), (runs[1],), "only process")
    step = step_effect(step_times([pair], side="base"), step_times([pair], side="other"))
    return diagnose(Case((pair,), effects([pair]), step, judge(step, None, has_cause=False)[0]))


def test_workers_that_compute_longer_without_waiting_have_other_work():
    diagnosis = of_pool(pool(40.0, 0.9, 0.4), pool(58.0, 0.93, 0.3))
    assert categories(diagnosis) == ["workload_change"]
    assert "The worker processes compute" in diagnosis.causes[0].statement
    assert 10 * MS < diagnosis.causes[0].explained_ns < 19 * MS


@pytest.mark.parametrize(("waits_at", "category"), [("queue", "data_loading"), ("pool", "workload_change")])
def test_workers_that_fill_the_queue_of_a_loop_get_its_data(waits_at, category):
    """The loop waits for what they put into its queue, or for the results of a pool."""
    wait = {"queue": "waits for an item: fit (a.py)", "pool": "Condition.wait (threading.py)"}[waits_at]
    base, other = (
        replace(
            recorded(pool(ms, 0.9, 0.3), seed),
            parts=recorded(BASE).parts.clear(),
            python_functions=sampled_functions({"solve (a.py)": 30 / ms, wait: 1 - 30 / ms}, 2000),
        )
        for seed, ms in ((0, 40.0), (9, 58.0))
    )
    assert compare_runs([[base]], [[other]]).causes[0].category == category


def test_workers_that_wait_for_cores_have_no_other_work():
    assert "workload_change" not in categories(of_pool(pool(40.0, 0.9, 0.4), pool(80.0, 0.55, 1.2)))


def test_workers_that_compute_as_long_in_a_longer_cycle_have_no_other_work():
    assert "workload_change" not in categories(of_pool(pool(40.0, 0.9, 0.1), pool(58.0, 0.62, 0.1)))


def exchanging(ms, own_ms, turns, their_turns):
    """A process whose workers compute alike, that itself runs so long per cycle, and how often both wait in it."""
    job = pool(ms, 36.0 / ms, 0.1).levels(
        process_oncpu_time=1e9 * own_ms / ms, process_voluntary_ctx_switches=1e3 * turns / ms
    )
    theirs = {("workers", "process_voluntary_ctx_switches"): ("1/s", 1e3 * their_turns / ms)}
    return replace(job, resources={**job.resources, **theirs})


@pytest.mark.parametrize(("turns", "their_turns", "named"), [
    (180, 105, True),  # a pipe's 64 KiB by turns
    (180, 9, False),  # the workers do not take part
    (60, 28, False),  # threads that pass on a lock do so less often
])  # fmt: skip
def test_process_and_workers_that_wait_for_each_other_far_more_often_exchange_more(turns, their_turns, named):
    diagnosis = of_pool(exchanging(40.0, 3.0, 20, 9), exchanging(58.0, 20.0, turns, their_turns))
    assert (categories(diagnosis)[:1] == ["workload_change"]) is named
    assert any("More data passes" in cause.statement for cause in diagnosis.causes) is named


@pytest.mark.parametrize(("load", "named"), [(50.0, True), (95.0, False)])
def test_requests_that_wait_because_others_take_the_cores_come_in_larger_batches(load, named):
    crowded = recorded(bigger(BASE, 1.5).levels(host_cpu_usage=load, process_runq_time=6e8), 1)
    waits = Waits(100, 0.9, 10 * MS), Waits(100, 0.5, 10 * MS)
    both = Pair("", (recorded(BASE),), (crowded,), "only process", waits=waits)
    found = workload_change(view_of(both, effects((both,))))
    assert isinstance(found, Suspect if named else RuledOut)
    assert named or "requests that wait are answered together" in found.reason


@pytest.mark.parametrize(("times", "category"), [(2.2, "workload_change"), (1.0, "host_overhead")])
def test_functions_that_all_take_twice_as_long_are_none_that_the_base_hardly_had(times, category):
    usual = {"solve (a.py)": 30.0, "reduce (b.py)": 20.0, "write (c.py)": 8.0}
    longer = {name: times * ms for name, ms in usual.items()} | {"write (c.py)": 17.6}
    whole = sum(longer.values())
    base, other = loop(60.0, 58.0, usual), loop(whole + 2, whole, longer, seed=1, on_lock={"write (c.py)": 0.9})
    assert compare_runs([[base]], [[other]]).causes[0].category == category
