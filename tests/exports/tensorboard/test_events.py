from __future__ import annotations

import pytest
from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard import _events
from stepscope.exports.tensorboard._events import read_events


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
