from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.comparison.main_thread import lock_held, main_thread
from stepscope.comparison.model import TIMED_STEPS, LockHeld
from stepscope.core.schema import STACK_SAMPLES, STACKS
from stepscope.core.trace import Meta, Trace


def python_functions(*args, **options):
    found = main_thread(*args, **options)
    return None if found is None else found.functions


def trace() -> Trace:
    rows = [
        {"ts_ns": 0, "dur_ns": 90, "pid": 7, "tid": 7, "stack_id": 0, "n_samples": 9, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 7, "tid": 7, "stack_id": 1, "n_samples": 3, "on_gil": False},
        {"ts_ns": 120, "dur_ns": 10, "pid": 7, "tid": 7, "stack_id": 0, "n_samples": 1, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 7, "tid": 8, "stack_id": 0, "n_samples": 3, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 9, "tid": 9, "stack_id": 0, "n_samples": 3, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 7, "tid": 7, "stack_id": 0, "n_samples": 3, "on_gil": True},
    ]
    frames = [["main (t.py:1)", "load (t.py:2)"], ["main (t.py:1)"]]
    tables = {
        "stack_samples": STACK_SAMPLES.conform(pl.DataFrame(rows)),
        "stacks": STACKS.conform(pl.DataFrame({"stack_id": [0, 1], "frames": frames})),
    }
    return Trace(Meta("x", "kineto"), tables)


def test_the_main_threads_time_from_the_first_cycle_on():
    frame = python_functions(trace(), 7, 50)
    rows = frame.select("function", "share_ratio", "n_samples").rows()
    assert rows == [("main (t.py)", 0.75, 4), ("load (t.py)", 0.25, 4)]


def test_a_single_long_visit_of_a_function_is_worth_a_sample_or_two():
    frame = python_functions(trace(), 7, 50)
    # Two visits: 30 of 40 ns in one function, 10 in another; each share is uncertain by (30² × ¼² + 10² × ¾²) / 40².
    assert frame["n_independent"].to_list() == pytest.approx([0.1875 / (112.5 / 1600)] * 2)


def test_a_function_that_is_seen_more_and_more_has_a_larger_share_of_the_last_third():
    shares = python_functions(trace(), 7, 50).select("function", "early_ratio", "late_ratio").rows()
    # From 90 to 130 ns, in thirds of 13 ns: the last 10 are in the other function.
    assert shares == [("main (t.py)", 1.0, pytest.approx(3 / 13)), ("load (t.py)", 0.0, pytest.approx(10 / 13))]


def test_what_comes_after_the_last_step_does_not_count():
    assert python_functions(trace(), 7, 50, 125).select("function", "share_ratio").rows() == [
        ("main (t.py)", pytest.approx(30 / 35)),
        ("load (t.py)", pytest.approx(5 / 35)),
    ]


def test_what_a_function_takes_only_in_slow_steps_is_known():
    # 50 steps of 100 ns; in two of them `save` takes 300 ns more, in all `load` takes 40 of the first 100.
    lengths = [400 if step in (20, 41) else 100 for step in range(50)]
    begins = [sum(lengths[:step]) for step in range(50)]
    steps = TIMED_STEPS.conform(
        pl.DataFrame({"step": range(50), "ts_ns": begins, "dur_ns": [float(x) for x in lengths], "n_steps": [1] * 50})
    )
    rows = []
    for begin, length in zip(begins, lengths, strict=True):
        for stack_id, low, high in ((0, 0, 40), (1, 40, 100), (2, 100, length)):
            if high > low:
                rows.append({"ts_ns": begin + low, "dur_ns": high - low, "stack_id": stack_id})
    of_all = {"pid": 7, "tid": 7, "n_samples": 1, "on_gil": False}
    samples = STACK_SAMPLES.conform(pl.DataFrame([row | of_all for row in rows]))
    stacks = STACKS.conform(pl.DataFrame({"stack_id": [0, 1, 2], "frames": [["load"], ["fit"], ["save"]]}))
    sampled = Trace(Meta("x", "kineto"), {"stack_samples": samples, "stacks": stacks})
    found = python_functions(sampled, 7, 0, None, steps)
    slow = dict(found.select("function", "slow_ratio").rows())
    assert slow == {"save": pytest.approx(600 / 5600), "load": 0.0, "fit": 0.0}
    assert python_functions(trace(), 7, 50)["slow_ratio"].to_list() == [0.0, 0.0]


def test_steps_last_as_long_as_the_thread_works_if_waits_are_left_out():
    steps = TIMED_STEPS.conform(
        pl.DataFrame({"step": [0, 1, 2], "ts_ns": [0, 100, 150], "dur_ns": [100.0, 40.0, 10.0], "n_steps": [1, 1, 2]})
    )
    rows = [(0, 30, 0), (30, 50, 1), (80, 45, 0), (125, 45, 1)]
    of_all = {"pid": 7, "tid": 7, "n_samples": 1, "on_gil": False}
    samples = [{"ts_ns": ts, "dur_ns": dur, "stack_id": stack} | of_all for ts, dur, stack in rows]
    tables = {
        "stack_samples": STACK_SAMPLES.conform(pl.DataFrame(samples)),
        "stacks": STACKS.conform(
            pl.DataFrame({"stack_id": [0, 1], "frames": [["handle"], ["run", "Queue.get (queue.py:171)"]]})
        ),
    }
    found = main_thread(Trace(Meta("x", "kineto"), tables), 7, 0, None, steps)
    # The first step works to 30 and from 80 to 100, the second up to 125, the others wait.
    assert found.worked["dur_ns"].to_list() == [50.0, 25.0, 0.0]
    assert found.worked.drop("dur_ns").equals(steps.drop("dur_ns"))
    assert main_thread(trace(), 7, 50).worked.is_empty()


@pytest.mark.parametrize(
    ("compiler", "prefix"), [("trace (torch/jit/_trace.py:7)", "compiles: "), ("add (a.py:7)", "")]
)
def test_what_a_function_does_with_the_result_of_a_compiler_that_it_calls_is_compiling(compiler, prefix):
    frames = [["main (t.py:1)", "mixers (t.py:5)", compiler, "fn (t.py:9)"], ["main (t.py:1)", "mixers (t.py:6)"]]
    stacks = STACKS.conform(pl.DataFrame({"stack_id": [0, 1], "frames": frames}))
    found = python_functions(trace().with_tables(stacks=stacks), 7, 0)
    assert f"{prefix}mixers (t.py)" in set(found["function"])


def test_only_what_was_sampled_during_timed_steps_counts():
    frame = {"step": [0, 1], "ts_ns": [100, 115], "dur_ns": [10.0, 20.0], "n_steps": [1, 1]}
    steps = TIMED_STEPS.conform(pl.DataFrame(frame))
    found = python_functions(trace(), 7, 50, None, steps)
    # From 100 to 110 and from 115 to 120 ns it is in main, from 120 to 130 in load.
    assert dict(found.select("function", "share_ratio").rows()) == {
        "main (t.py)": pytest.approx(15 / 25), "load (t.py)": pytest.approx(10 / 25),
    }  # fmt: skip
    nowhere = steps.with_columns(pl.col("ts_ns") + 1000)
    assert python_functions(trace(), 7, 50, None, nowhere).equals(python_functions(trace(), 7, 50))


def test_none_where_the_process_was_not_looked_at():
    assert python_functions(trace(), 8, 0) is None
    assert python_functions(trace(), None, 0) is None
    assert python_functions(Trace(Meta("x", "kineto"), {}), 7, 0) is None


def test_who_holds_the_lock_goes_by_names_without_numbers():
    rows = [
        {"ts_ns": 0, "dur_ns": 100, "pid": 7, "tid": 7, "thread": "MainThread", "n_samples": 10, "on_gil": True},
        {"ts_ns": 0, "dur_ns": 20, "pid": 7, "tid": 8, "thread": "Thread-1 (log)", "n_samples": 2, "on_gil": True},
        {"ts_ns": 50, "dur_ns": 30, "pid": 7, "tid": 9, "thread": "Thread-2 (log)", "n_samples": 3, "on_gil": True},
        {"ts_ns": 50, "dur_ns": 30, "pid": 7, "tid": 11, "thread": "poll", "n_samples": 3, "on_gil": False},
        {"ts_ns": 300, "dur_ns": 30, "pid": 7, "tid": 9, "thread": "Thread-2 (log)", "n_samples": 3, "on_gil": True},
    ]
    samples = STACK_SAMPLES.conform(pl.DataFrame([{**row, "stack_id": 0} for row in rows]))
    recorded = Trace(Meta("x", "kineto"), {"stack_samples": samples})
    assert lock_held(recorded, 7, 0, 200) == {
        "MainThread": LockHeld(0.5, 10), "Thread-# (log)": LockHeld(0.25, 5), "poll": LockHeld(0.0, 0),
    }  # fmt: skip
    pooled = STACKS.conform(pl.DataFrame({"stack_id": [0], "frames": [["_worker (concurrent/futures/thread.py:83)"]]}))
    of_pool = recorded.with_tables(stacks=pooled)
    assert lock_held(of_pool, 7, 0, 200)["MainThread"] == LockHeld(0.5, 10, is_in_pool=True)
    assert lock_held(recorded, 8, 0, 200) is None
    unknown = Trace(Meta("x", "kineto"), {"stack_samples": samples.filter(~pl.col("on_gil"))})
    assert lock_held(unknown, 7, 0, 200) is None


WAIT = ["main (t.py:1)", "gather (t.py:3)", "Future.result (concurrent/futures/_base.py:449)"]
IN_POOL = ["_worker (concurrent/futures/thread.py:83)", "_WorkItem.run (concurrent/futures/thread.py:58)"]
IN_PROCESS = ["BaseProcess._bootstrap (multiprocessing/process.py:314)", "serve (t.py:9)"]
OF_LOADER = [*IN_PROCESS, "_worker_loop (torch/utils/data/_utils/worker.py:349)", "decode (t.py:7)"]
ALL = [
    ["main (t.py:1)"], WAIT, [*IN_POOL, "model (t.py:5)"], [*IN_POOL, "embed (t.py:6)"], IN_POOL[:1],
    [*IN_PROCESS, "solve (t.py:8)"], OF_LOADER, [*IN_PROCESS, "Queue.get (multiprocessing/queues.py:103)"],
]  # fmt: skip
MAIN, WAITS, MODEL, EMBED, IDLE, SOLVE, DECODE, TAKES = range(len(ALL))


def visits(*rows):
    """A trace of visits: process, thread, stack, start and end; one sample per ns."""
    samples = [
        {"ts_ns": low, "dur_ns": high - low, "pid": pid, "tid": tid, "stack_id": stack, "n_samples": high - low}
        for pid, tid, stack, low, high in rows
    ]
    table = STACK_SAMPLES.conform(pl.DataFrame(samples).with_columns(on_gil=False))
    return Trace(Meta("x", "kineto"), {
        "stack_samples": table, "stacks": STACKS.conform(pl.DataFrame({"stack_id": range(len(ALL)), "frames": ALL})),
    })  # fmt: skip


def shares(trace, **options):
    return dict(python_functions(trace, 7, 0, **options).select("function", "share_ratio").rows())


def test_while_it_waits_for_a_pool_of_threads_their_functions_count():
    trace = visits(
        (7, 7, MAIN, 0, 20), (7, 7, WAITS, 20, 100), (7, 8, IDLE, 0, 40), (7, 8, MODEL, 40, 80), (7, 9, EMBED, 10, 50)
    )
    # From 20 to 40 ns embed alone works, to 50 both, to 80 model alone, then nobody.
    assert shares(trace) == {
        "main (t.py)": pytest.approx(0.2), "embed (t.py)": pytest.approx(0.25), "model (t.py)": pytest.approx(0.35),
        "Future.result (concurrent/futures/_base.py)": pytest.approx(0.2),
    }  # fmt: skip


def test_while_a_server_waits_for_requests_the_threads_that_answer_some_count():
    accepts = ["serve_forever (socketserver.py:238)", "select (selectors.py:415)"]
    answers = ["ThreadingMixIn.process_request_thread (socketserver.py:691)", "do_POST (t.py:4)"]
    frames = pl.DataFrame({"stack_id": [0, 1], "frames": [accepts, answers]})
    recorded = visits((7, 7, 0, 0, 100), (7, 8, 1, 20, 60)).with_tables(stacks=STACKS.conform(frames))
    assert shares(recorded) == {"do_POST (t.py)": pytest.approx(0.4), "select (selectors.py)": pytest.approx(0.6)}


@pytest.mark.parametrize(
    ("taker", "of_model"),
    [("answer (t.py:4)", 0.4), ("_pin_memory_loop (torch/utils/data/_utils/pin_memory.py:50)", 0.0)],
)
def test_while_it_sleeps_threads_that_take_requests_from_a_queue_count(taker, of_model):
    frames = [["serve (t.py:9)"], [taker, "Queue.get (queue.py:171)"], [taker, "model (t.py:5)"], ["start (t.py:8)"]]
    second = 10**9
    recorded = visits((7, 7, 3, 0, second // 2), (7, 7, 0, second // 2, 5 * second // 2), (7, 8, 1, 0, second),
                      (7, 8, 2, second, 2 * second), (7, 8, 1, 2 * second, 3 * second))  # fmt: skip
    table = STACKS.conform(pl.DataFrame({"stack_id": range(4), "frames": frames}))
    found = shares(recorded.with_tables(stacks=table))
    assert found.get("model (t.py)", 0.0) == pytest.approx(of_model)
    assert found["start (t.py)"] == pytest.approx(0.2)
    sleeps = "sleeps: serve (t.py)" if of_model else "serve (t.py)"
    assert found[sleeps] == pytest.approx(0.8 - of_model)


def test_threads_that_call_the_model_in_place_of_the_main_thread_count_with_their_waits():
    calls, idles = ["answer (t.py:4)", "Module._call_impl (torch/nn/modules/module.py:1)"], ["answer (t.py:4)"]
    frames = [
        ["serve (t.py:9)", "Thread.join (threading.py:1)"],
        [*idles, "Queue.get (queue.py:171)"],
        [*calls, "forward (t.py:5)"],
        [*idles, "waits: with lock: (t.py:6)"],
    ]
    steps = TIMED_STEPS.conform(
        pl.DataFrame({"step": [0, 1], "ts_ns": [0, 100], "dur_ns": [100.0, 100.0], "n_steps": [1, 1]}).with_columns(
            source=pl.lit("module calls"), is_profiled=False
        )
    )
    # In the first step one of two threads works and the other waits for its lock; in the second both are idle for half.
    rows = [(7, 7, 0, 0, 200), (7, 8, 2, 0, 100), (7, 9, 3, 0, 100), (7, 8, 1, 100, 200), (7, 9, 2, 100, 200)]
    recorded = visits(*rows).with_tables(stacks=STACKS.conform(pl.DataFrame({"stack_id": range(4), "frames": frames})))
    answers = main_thread(recorded, 7, 0, steps=steps).answers
    assert dict(answers.functions.select("function", "share_ratio").rows()) == {
        "forward (t.py)": pytest.approx(0.5), "waits: with lock: (t.py)": pytest.approx(0.25),
        "waits for an item: answer (t.py)": pytest.approx(0.25),
    }  # fmt: skip
    assert answers.worked["dur_ns"].to_list() == [100.0, 50.0]
    assert (answers.n_at_work, answers.n_waits) == (3, 0.5)
    called_by_main = visits((7, 7, 2, 0, 200), *rows[1:]).with_tables(stacks=recorded.stacks)
    assert main_thread(called_by_main, 7, 0, steps=steps).answers is None
    of_loops = steps.with_columns(source=pl.lit("loop").cast(steps["source"].dtype))
    assert main_thread(recorded, 7, 0, steps=of_loops).answers is None


def own_steps(n, ns):
    """Steps of equal length that the job marks itself."""
    steps = {"step": range(n), "ts_ns": [i * ns for i in range(n)], "dur_ns": [float(ns)] * n, "n_steps": [1] * n}
    return TIMED_STEPS.conform(pl.DataFrame(steps).with_columns(source=pl.lit("named ranges"), is_profiled=False))


def renderers(*rows, named=("render-0", "render-1")):
    """A main thread that waits for a service's two threads, which are threads 8 and 9; visits are theirs."""
    frames = [
        ["serve (t.py:9)", "Event.wait (threading.py:1)"],
        ["work (t.py:4)", "Queue.get (queue.py:171)"],
        ["work (t.py:4)", "draw (t.py:5)"],
        ["page (t.py:7)"],
    ]
    recorded = visits((7, 7, 0, 0, 200), *rows)
    names = pl.col("tid").replace_strict({7: "MainThread", 8: named[0], 9: named[1], 10: "status"})
    samples = STACK_SAMPLES.conform(recorded.stack_samples.with_columns(thread=names))
    table = STACKS.conform(pl.DataFrame({"stack_id": range(4), "frames": frames}))
    return recorded.with_tables(stacks=table, stack_samples=samples)


def test_threads_in_which_a_job_marks_its_steps_count_in_place_of_a_main_thread_that_only_waits():
    recorded = renderers((7, 8, 1, 0, 150), (7, 8, 2, 150, 200), (7, 9, 2, 0, 200), (7, 10, 3, 0, 40))
    answers = main_thread(recorded, 7, 0, steps=own_steps(2, 100)).answers
    assert dict(answers.functions.select("function", "share_ratio").rows()) == {
        "draw (t.py)": pytest.approx(0.625), "waits for an item: work (t.py)": pytest.approx(0.375),
    }  # fmt: skip
    assert (answers.is_marked_there, sorted(answers.idle_ratios)) == (True, [0.0, 0.75])
    # The other thread never waits for an item, so its name says what it does.
    other = renderers((7, 8, 1, 0, 200), (7, 9, 2, 0, 200), named=("render-0", "other"))
    assert main_thread(other, 7, 0, steps=own_steps(2, 100)).answers.idle_ratios == (1.0,)


def test_threads_that_never_wait_for_an_item_are_known_as_those_that_do_most():
    recorded = renderers((7, 8, 2, 0, 200), (7, 9, 2, 0, 200), (7, 10, 3, 0, 190))
    assert shares(recorded, steps=own_steps(2, 100)) == {"draw (t.py)": pytest.approx(1.0)}
    assert main_thread(recorded, 7, 0, steps=own_steps(2, 100)).answers.idle_ratios == (0.0, 0.0)
    of_optimizer = own_steps(2, 100).with_columns(source=pl.lit("optimizer steps"))
    of_training = main_thread(recorded, 7, 0, steps=TIMED_STEPS.conform(of_optimizer))
    assert of_training.answers is None
    assert of_training.functions["function"].to_list() == ["Event.wait (threading.py)"]


@pytest.mark.parametrize(("on_core", "is_idle"), [(0.02, True), (0.9, False), (None, False)])
def test_a_main_thread_that_hardly_runs_does_no_steps_wherever_it_is_found(on_core, is_idle):
    """It sends requests and sleeps between them, in a line that says nothing of that."""
    recorded = renderers((7, 8, 1, 0, 150), (7, 8, 2, 150, 200), (7, 9, 2, 0, 200))
    frames = recorded.stacks.with_columns(
        frames=pl.when(pl.col("stack_id") == 0).then(pl.lit(["main (t.py:9)"])).otherwise("frames")
    )
    ran = pl.when(pl.col("tid") == 7).then(pl.lit(on_core, pl.Float64)).otherwise(0.8)
    samples = STACK_SAMPLES.conform(recorded.stack_samples.with_columns(oncpu_ratio=ran))
    recorded = recorded.with_tables(stacks=STACKS.conform(frames), stack_samples=samples)
    assert (main_thread(recorded, 7, 0, steps=own_steps(2, 100)).answers is not None) is is_idle


def test_lines_with_much_of_the_time_are_known_beside_the_rest_of_their_function():
    frames = [["main (t.py:1)", "load (t.py:2)"], ["main (t.py:1)", "load (t.py:3)"], ["main (t.py:1)"]]
    recorded = visits((7, 7, 0, 0, 50), (7, 7, 1, 50, 51), (7, 7, 0, 51, 81), (7, 7, 1, 81, 91), (7, 7, 2, 91, 300))
    table = STACKS.conform(pl.DataFrame({"stack_id": range(3), "frames": frames}))
    found = main_thread(recorded.with_tables(stacks=table), 7, 0)
    lines = dict(found.lines.select("function", "share_ratio").rows())
    assert lines == {"load (t.py:2)": pytest.approx(80 / 300), "load (t.py:3)": pytest.approx(11 / 300)}
    assert dict(found.functions.select("function", "share_ratio").rows())["load (t.py)"] == pytest.approx(91 / 300)
    assert main_thread(trace(), 7, 50).lines.is_empty()  # each function is in one line


def test_a_main_thread_that_never_holds_the_lock_in_a_line_sleeps_there_while_others_answer_requests():
    frames = [
        ["serve (t.py:9)"],
        ["answer (t.py:4)", "Queue.get (queue.py:171)"],
        ["answer (t.py:4)", "model (t.py:5)"],
    ]
    ms = 10**6
    # It is found in the line 40 times, for 10 ms each; a thread holds the lock in one sample for each 20 ms.
    mine = [(7, 7, 0, 20 * k * ms, (20 * k + 10) * ms) for k in range(40)]
    recorded = visits(*mine, (7, 8, 1, 0, 400 * ms), (7, 8, 2, 400 * ms, 800 * ms))
    table = STACKS.conform(pl.DataFrame({"stack_id": range(3), "frames": frames}))
    recorded = recorded.with_tables(stacks=table)
    assert "sleeps: serve (t.py)" not in shares(recorded)  # nobody asked who holds the lock
    asked = {"ts_ns": 0, "dur_ns": 400 * ms, "pid": 7, "tid": 8, "stack_id": 2, "n_samples": 20, "on_gil": True}
    samples = pl.concat([recorded.stack_samples, STACK_SAMPLES.conform(pl.DataFrame([asked]))])
    found = shares(recorded.with_tables(stack_samples=samples))
    assert found == {"sleeps: serve (t.py)": pytest.approx(0.5), "model (t.py)": pytest.approx(0.5)}


def test_while_it_waits_for_worker_processes_their_functions_count():
    trace = visits(
        (7, 7, MAIN, 0, 20),
        (7, 7, WAITS, 20, 100),
        (9, 9, SOLVE, 0, 60),
        (9, 9, TAKES, 60, 100),
        (11, 11, DECODE, 0, 100),
    )
    waits = "Future.result (concurrent/futures/_base.py)"
    assert shares(trace) == {"main (t.py)": 0.2, "solve (t.py)": 0.4, waits: 0.4}
    assert shares(trace, siblings=[7, 9]) == {"main (t.py)": 0.2, waits: 0.8}


def test_work_outside_of_timed_steps_does_not_count_either():
    trace = visits((7, 7, MAIN, 0, 20), (7, 7, WAITS, 20, 100), (7, 8, MODEL, 40, 80))
    frame = {"step": [0, 1], "ts_ns": [10, 60], "dur_ns": [40.0, 40.0], "n_steps": [1, 1]}
    steps = TIMED_STEPS.conform(pl.DataFrame(frame))
    assert shares(trace, steps=steps) == {
        "main (t.py)": pytest.approx(10 / 80), "model (t.py)": pytest.approx(30 / 80),
        "Future.result (concurrent/futures/_base.py)": pytest.approx(40 / 80),
    }  # fmt: skip


TIMES = st.lists(st.integers(0, 40), min_size=2, max_size=6, unique=True).map(sorted)


@given(TIMES, st.lists(st.tuples(st.integers(8, 10), st.sampled_from([MODEL, EMBED, IDLE]), TIMES), max_size=4))
def test_each_moment_of_a_wait_belongs_to_those_that_work_then(own, others):
    # The thread waits and works by turns, and so does each other one, in whose gaps nothing was sampled.
    mine = [(7, 7, WAITS if k % 2 else MAIN, *ends) for k, ends in enumerate(pairwise(own))]
    taken = {tid: (tid, stack, ends[:2]) for tid, stack, ends in others}
    theirs = [(7, tid, stack, *ends) for tid, stack, ends in taken.values()]
    expected = {}
    for _, _, stack, low, high in mine:
        for t in range(low, high):
            at_work = [s for _, _, s, a, b in theirs if a <= t < b and s != IDLE] if stack == WAITS else []
            for each in at_work or [stack]:
                name = ALL[each][-1].split(":")[0].split()[0]
                expected[name] = expected.get(name, 0.0) + 1 / len(at_work or [stack])
    in_us = [(*names, low * 1000, high * 1000) for *names, low, high in (*mine, *theirs)]  # times are rounded to ns
    got = {name.split()[0]: share for name, share in shares(visits(*in_us)).items()}
    whole = own[-1] - own[0]
    assert got == {name: pytest.approx(time / whole, rel=1e-2) for name, time in expected.items()}


def test_how_much_of_a_functions_time_its_thread_holds_the_lock():
    frame = python_functions(trace(), 7, 0).sort("function")
    # A sample of who holds the lock stands for 10 ns; load has 100 ns and 30 of others.
    rows = dict(zip(frame["function"], frame.select("on_lock_ratio", "n_expected").rows(), strict=True))
    assert rows["main (t.py)"] == (0.0, 3.0)
    assert rows["load (t.py)"] == (pytest.approx(30 / 130), 13.0)


def test_time_in_what_makers_of_batches_call_is_known():
    frames = [
        ["main (t.py:1)", "train_batches (t.py:7)", "augment_wave (t.py:9)", "fft (numpy/fft.py:3)"],
        ["main (t.py:1)", "process_batches (t.py:8)", "fft (numpy/fft.py:3)"],
    ]
    stacks = STACKS.conform(pl.DataFrame({"stack_id": [0, 1], "frames": frames}))
    rows = [(0, 30, 0), (30, 10, 1)]
    of_all = {"pid": 7, "tid": 7, "n_samples": 1, "on_gil": False}
    samples = [{"ts_ns": ts, "dur_ns": dur, "stack_id": stack} | of_all for ts, dur, stack in rows]
    tables = {"stack_samples": STACK_SAMPLES.conform(pl.DataFrame(samples)), "stacks": stacks}
    sampled = Trace(Meta("x", "kineto"), tables)
    assert python_functions(sampled, 7, 0).select("function", "fetch_ratio").rows() == [("fft (numpy/fft.py)", 0.75)]
    # A function in which the thread always is must be the loop, whatever its name.
    all_of_it = frames[0], frames[0]
    stacks = STACKS.conform(pl.DataFrame({"stack_id": [0, 1], "frames": all_of_it}))
    assert python_functions(sampled.with_tables(stacks=stacks), 7, 0)["fetch_ratio"].to_list() == [0.0]
