"""Of which function a stack is, and what that does."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.comparison.stack_functions import gets_data, named, named_up_to_queue
from stepscope.core.schema import STACK_SAMPLES, STACKS


def stacks(*frames):
    return STACKS.conform(pl.DataFrame({"stack_id": range(len(frames)), "frames": [list(each) for each in frames]}))


def functions(*frames):
    return named(stacks(*frames))["function"].to_list()


def test_time_in_an_expression_is_that_of_the_function_in_which_it_is_written():
    inner = ["main.<locals>.<genexpr> (t.py:2)", "C.f.<locals>.<listcomp> (t.py:3)", "main.<locals>.key (t.py:4)"]
    found = functions(*(["main (t.py:1)", each] for each in inner))
    assert found == ["main (t.py)", "C.f (t.py)", "main.<locals>.key (t.py)"]


@pytest.mark.parametrize(
    "entry",
    [
        "_compile (torch/_dynamo/convert_frame.py:9)",
        "_compile_for_args (numba/core/dispatcher.py:9)",
        "load_inline (torch/utils/cpp_extension.py:9)",
        "trace_to_jaxpr_dynamic (jax/_src/interpreters/partial_eval.py:9)",
    ],
)
def test_what_a_compiler_calls_is_of_the_function_through_which_it_is_entered(entry):
    ran = "fn (torch/_dynamo/eval_frame.py:5)"
    found = functions(
        ["main (t.py:1)", ran, entry, "hash (torch/fx/node.py:3)"], ["main (t.py:1)", ran, "linear (nn.py:4)"]
    )
    assert found == [entry.replace(":9", ""), "linear (nn.py)"]


def test_a_compiler_that_a_program_calls_by_name_has_a_caller():
    calls = ["trace (torch/jit/_trace.py:7)", "_compile (torch/_dynamo/convert_frame.py:9)", "add (a.py:7)"]
    found = named(stacks(*(["main (t.py:1)", "mixers (t.py:5)", each, "fn (t.py:9)"] for each in calls)))
    assert found["calls_compiler"].to_list() == ["mixers (t.py)", None, None]


def test_a_wait_for_an_item_of_a_queue_is_of_the_function_that_takes_it():
    wait, get = "Condition.wait (threading.py:320)", "Queue.get (queue.py:171)"
    frames = (["main (t.py:1)", "batches (t.py:7)", get, wait], ["main (t.py:1)", "join (pool.py:3)", wait])
    assert functions(*frames) == ["waits for an item: batches (t.py)", "Condition.wait (threading.py)"]
    assert named_up_to_queue(stacks(*frames)).equals(named(stacks(*frames)))


def test_a_lock_of_several_processes_is_of_the_function_that_takes_it():
    wait, inside = "SemLock.__enter__ (multiprocessing/synchronize.py:95)", "Queue.put (multiprocessing/queues.py:3)"
    found = functions(["main (t.py:1)", "flush (t.py:2)", wait], ["main (t.py:1)", inside, wait])
    assert found == [
        "waits: a lock of several processes, in flush (t.py)",
        "SemLock.__enter__ (multiprocessing/synchronize.py)",
    ]


def test_threads_and_processes_of_a_pool_are_known_and_a_loaders_workers_are_none():
    pool, loader = "_worker (concurrent/futures/thread.py:9)", "_worker_loop (torch/utils/data/_utils/worker.py:9)"
    process = "BaseProcess.run (multiprocessing/process.py:9)"
    found = named(stacks([pool, "f (t.py:1)"], [process, "f (t.py:1)"], [process, loader, "f (t.py:1)"]))
    assert found.select("is_pool_thread", "is_worker_process").rows() == [(True, False), (False, True), (False, False)]


def test_what_makers_of_batches_call_gets_data_unless_the_loop_has_such_a_name():
    frames = stacks(
        ["train_batches (t.py:1)", "step (t.py:2)"], ["train_batches (t.py:1)", "make_batch (t.py:3)", "fft (n.py:4)"]
    )
    rows = [
        {"ts_ns": 0, "dur_ns": dur, "pid": 7, "tid": 7, "stack_id": i, "n_samples": 1, "on_gil": False}
        for i, dur in enumerate((90, 10))
    ]
    samples = STACK_SAMPLES.conform(pl.DataFrame(rows))
    assert gets_data(frames, samples).to_list() == [False, True]
