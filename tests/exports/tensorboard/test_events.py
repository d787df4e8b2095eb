from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import call, kernel, op, read, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exports.tensorboard import _events
from stepscope.exports.tensorboard._events import Dialect, dialect_of, find_launches, read_events


def kinds(events, *items, **meta):
    found = read_events(read([*events, *items], **meta))
    return {found.names[n]: int(k) for n, k in zip(found.name, found.kind, strict=True)}


@pytest.mark.parametrize(
    ("cat", "kind"),
    [
        ("cpu_op", _events.OPERATOR),
        ("Operator", _events.OPERATOR),
        ("CPU_OP", _events.OPERATOR),
        ("user_annotation", _events.ANNOTATION),
        ("gpu_user_annotation", _events.ANNOTATION),
        ("python", _events.PYTHON),
        ("python_function", _events.FRAME),
        ("cuda_runtime", _events.RUNTIME),
        ("xpu_runtime", _events.RUNTIME),
        ("gpu_memset", _events.MEMSET),
        ("Memcpy", _events.MEMCPY),
        ("Kernel", _events.KERNEL),
        ("Trace", _events.TRACE),
        ("cuda_driver", _events.IGNORED),
        ("overhead", _events.IGNORED),
        ("anything", _events.IGNORED),
    ],
)
def test_the_recorders_category_decides_what_an_event_is(cat, kind):
    assert kinds([x("a", 0, 1, cat)]) == {"a": kind}


def test_steps_and_modules_are_told_by_name_and_id():
    assert kinds([
        x("ProfilerStep#3", 0, 9, "cpu_op"), x("ProfilerStep#4", 9, 9, "gpu_user_annotation", pid=0, tid=7),
        x("nn.Module: A_0", 1, 2, "python_function", Python_id=1, Python_module_id=0),
        x("f", 4, 2, "python_function", Python_id=2),
    ]) == {
        "ProfilerStep#3": _events.STEP, "ProfilerStep#4": _events.STEP, "nn.Module: A_0": _events.MODULE,
        "f": _events.FRAME,
    }  # fmt: skip


def test_lightning_ranges_lose_their_marks_and_python_calls_are_left_out():
    items = [
        op("[pl][profile]run_training_batch", 0, 9), op("[pl][module]torch.nn.Linear: layer", 1, 2),
        op("aten::mm", 1, 1), x("f", 4, 2, "python_function", Python_id=2),
    ]  # fmt: skip
    assert kinds(items, Framework="pytorch-lightning") == {
        "run_training_batch": _events.PL_PROFILE, "layer": _events.PL_MODULE,
        "aten::mm": _events.OPERATOR, "f": _events.IGNORED,
    }  # fmt: skip
    assert kinds(items)["[pl][module]torch.nn.Linear: layer"] == _events.OPERATOR


def test_whole_times_stay_integers_on_the_recorders_clock():
    events = read_events(read([op("a", 1_600_000_000_000_000, 7), op("b", 1_600_000_000_000_009, 1)]))
    assert events.ts.dtype == events.end.dtype == "int64"
    assert (events.ts.tolist(), events.end.tolist()) == (
        [1_600_000_000_000_000, 1_600_000_000_000_009], [1_600_000_000_000_007, 1_600_000_000_000_010],
    )  # fmt: skip


@pytest.mark.parametrize("ts", [0.001, 1428625731456.483, 1365627862757.064, 1700000000000000.25])
def test_fractions_are_the_doubles_that_the_file_spells(ts):
    events = read_events(read([op("a", ts, 2.368), op("b", ts + 8, 1)]))
    assert events.ts.tolist()[0] == ts
    assert events.end.tolist()[0] == ts + 2.368
    assert events.dur.tolist()[0] == 2.368


def test_whole_times_that_are_spelled_with_a_point_are_doubles():
    assert read_events(read([op("a", 1.0, 2.0)])).ts.dtype == "float64"


def test_threads_of_one_number_are_one_whatever_their_process():
    events = read_events(read([op("a", 0, 1, pid=1, tid=5), op("b", 2, 1, pid=2, tid=5), op("c", 3, 1, tid="main")]))
    assert [events.threads[i] for i in events.thread] == [5, 5, "main"]


def test_rows_come_by_time_and_without_what_does_not_count():
    events = read_events(read([
        op("b", 5, 1), kernel("k", 3, 1, 1), op("a", 1, 1, tid=2), x("no", 0, 1, "overhead"),
    ]))  # fmt: skip
    assert [events.names[events.name[i]] for i in events.order] == ["a", "k", "b"]
    assert [events.names[events.name[i]] for i in events.rows(_events.OPERATOR)] == ["a", "b"]
    rows = events.rows(_events.OPERATOR)
    assert events.where(lambda name: name == "b", rows).tolist() == [False, True]


def test_times_of_other_tables_are_told_on_the_same_clock():
    events = read_events(read([op("a", 1_000_000, 7)]))
    assert events.us(events.trace.spans["ts_ns"].to_numpy()).tolist() == [1_000_000]


def test_device_properties_are_kept_and_what_is_none_is_not():
    assert read_events(read([op("a", 0, 1)], deviceProperties=[{"name": "A100"}, 5])).properties == [{"name": "A100"}]
    assert read_events(read([op("a", 0, 1)], deviceProperties="x")).properties == []


def test_work_of_recorders_that_the_plugin_never_knew_counts_by_our_category():
    labels = [{"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "Ascend Hardware"}},
              {"ph": "M", "name": "thread_name", "pid": 9, "tid": 3, "args": {"name": "Stream 3"}}]  # fmt: skip
    assert kinds(labels, op("aten::mm", 0, 9), x("MatMulV2", 3, 2, None, pid=9, tid=3)) == {
        "aten::mm": _events.OPERATOR, "MatMulV2": _events.KERNEL,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "noun"),
    [("cuda", "GPU"), ("rocm", "GPU"), ("mlu", "MLU"), ("npu", "NPU"), ("xpu", "XPU"), ("mtia", "MTIA")],
)
def test_devices_are_called_by_their_vendors_word(kind, noun):
    assert Dialect(kind).noun == noun


def test_the_dialect_is_that_of_the_traces_accelerator():
    assert dialect_of(read([op("a", 0, 1)])) == Dialect("cuda")
    trace = read([x("cnInvokeKernel", 0, 1, "mlu_runtime", correlation=1), kernel("k", 2, 1, 1)])
    assert dialect_of(trace).is_mlu
    assert not dialect_of(trace).uses_own_categories


def owners(events):
    """Name of the call that each kernel belongs to, by the kernel's name."""
    found = find_launches(events)
    names = [events.names[i] for i in events.name[found.work]]
    calls = [events.names[events.name[found.calls[i]]] if i >= 0 else None for i in found.call_of]
    return dict(zip(names, calls, strict=True))


def test_work_belongs_to_the_call_of_its_correlation():
    events = read_events(read([op("a", 0, 9), call("one", 1, 1, 1), call("two", 3, 1, 2), kernel("k", 5, 1, 2)]))
    assert owners(events) == {"k": "two"}


def test_of_several_calls_the_latest_before_the_work_counts_else_the_first_after():
    events = read_events(read([
        kernel("early", 0, 1, 1), call("one", 2, 1, 1), kernel("mid", 4, 1, 1), call("two", 6, 1, 1),
        kernel("late", 8, 1, 1), kernel("alone", 9, 1, 5),
    ]))  # fmt: skip
    assert owners(events) == {"early": "one", "mid": "one", "late": "two", "alone": None}


def test_work_and_calls_without_an_id_belong_together():
    events = read_events(read([call("c", 0, 1, None), kernel("k", 2, 1, None)]))
    assert owners(events) == {"k": "c"}


def test_driver_calls_launch_nothing():
    driver = call("cuLaunchKernel", 0, 1, 1) | {"cat": "cuda_driver"}
    assert owners(read_events(read([driver, kernel("k", 2, 1, 1)]))) == {"k": None}


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=20))
def test_ties_equal_those_made_one_after_the_other(kinds):
    items = [
        call(f"c{i}", 2 * i, 1, corr) if is_call else kernel(f"k{i}", 2 * i, 1, corr)
        for i, (is_call, corr) in enumerate(kinds)
    ]
    expected: dict[str, str | None] = {}
    latest: dict[int, str] = {}
    waiting: dict[int, list[str]] = {}
    for i, (is_call, corr) in enumerate(kinds):
        if is_call:
            latest[corr] = f"c{i}"
            expected.update(dict.fromkeys(waiting.pop(corr, []), f"c{i}"))
        else:
            expected[f"k{i}"] = latest.get(corr)
            if corr not in latest:
                waiting.setdefault(corr, []).append(f"k{i}")
    assert owners(read_events(read([op("a", 100, 1), *items]))) == expected


def test_sums_and_pairs_are_by_call():
    events = read_events(read([call("a", 0, 1, 1), call("b", 2, 1, 2), kernel("k", 5, 3, 1), kernel("l", 9, 4, 1)]))
    found = find_launches(events)
    assert found.summed(events.dur[found.work]).tolist() == [7, 0]
    place, work = found.work_of(np.array([1, 0, 0]))
    assert (place.tolist(), work.tolist()) == ([1, 1, 2, 2], [0, 1, 0, 1])
