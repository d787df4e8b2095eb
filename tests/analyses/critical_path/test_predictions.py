from __future__ import annotations

import polars as pl
import pytest
from path_traces import MAIN, OTHER, PATH_TRACKS, US, Row, call, kernel, op, spans_of, steps_of

from stepscope.analyses.critical_path.predictions import predictions, replayed_steps
from stepscope.core.errors import MissingTable, StepscopeError

# A host that needs 20 µs for a step queues a kernel of 60 µs, and waits for it.
BOUND_BY_DEVICE = spans_of(
    Row(MAIN, 0, 90, "ProfilerStep#0", "step"),
    op(2, 10, "aten::linear"),
    call(5, 5, "cudaLaunchKernel", key="a"),
    call(20, 60, "cudaDeviceSynchronize"),
    kernel(12, 60, "a", "ampere_sgemm_128x64"),
)


def predicted(spans, *changes, **options):
    steps = steps_of((0, 90))
    return predictions(spans, PATH_TRACKS, steps, changes="\n".join(changes), **options).row(0, named=True)


def launched_after(*delays):
    """Steps of 100 µs that launch a kernel and wait for it. Each kernel starts so many µs after its call, for 50."""
    rows = []
    for i, delay in enumerate(delays):
        at = 100 * i
        rows += [
            Row(MAIN, at, 100, f"ProfilerStep#{i}", "step", step=i),
            op(at + 5, 15, "aten::linear"),
            call(at + 10, 5, "cudaLaunchKernel", key=f"{i}"),
            call(at + 20, 45 + delay, "cudaDeviceSynchronize"),
            kernel(at + 15 + delay, 50, f"{i}", "ampere_sgemm_128x64", step=i),
        ]
    return spans_of(*rows), PATH_TRACKS, steps_of(*((100 * i, 100 * i + 100) for i in range(len(delays))))


@pytest.mark.parametrize(
    ("lags", "replayed_us"),
    [("recorded", [100, 100, 100, 100]), ("pooled", [104, 102, 98, 97]), ("other steps", [106, 104, 96, 95])],
)
def test_lags_are_those_of_the_recording_or_the_medians_of_all_or_of_other_steps(lags, replayed_us):
    frame = replayed_steps(*launched_after(2, 4, 8, 9), lags=lags)
    assert frame["recorded_ns"].to_list() == [100 * US] * 4
    assert (frame["replayed_ns"] / US).to_list() == replayed_us


def test_a_share_of_time_is_not_a_gain():
    # The host waits 60 µs for the device, and needs 30 µs of its own.
    row = predicted(BOUND_BY_DEVICE, "class gemm: 2x")
    assert (row["scenario"], row["step_ns"], row["basis"]) == ("class gemm: 2x", 90 * US, "replayed")
    assert row["predicted_ns"] == 60 * US
    assert row["gain_ratio"] == pytest.approx(1 / 3)
    assert predicted(BOUND_BY_DEVICE, "op ~ linear: 2x")["predicted_ns"] < 60 * US


def test_a_call_that_loads_a_kernel_costs_more_than_a_launch():
    # 3 launches of 10 µs and one of 2,010 µs, with nothing queued before it.
    launches = [(0, 10), (20, 10), (40, 10), (200, 2010)]
    rows = [(call(ts, dur, "cudaLaunchKernel", key=f"{ts}"), kernel(ts + dur, 5, f"{ts}")) for ts, dur in launches]
    marks = Row(MAIN, 0, 2300, "ProfilerStep#0", "step")
    spans = spans_of(marks, *(row for pair in rows for row in pair))
    row = predictions(spans, PATH_TRACKS, steps_of((0, 2300)), changes="launch: free").row(0, named=True)
    assert (row["step_ns"], row["predicted_ns"]) == (2300 * US, 2260 * US)


def test_changes_are_made_together():
    both = predicted(BOUND_BY_DEVICE, "class gemm: 2x", "host: 2x")["predicted_ns"]
    assert both < predicted(BOUND_BY_DEVICE, "class gemm: 2x")["predicted_ns"]
    assert predicted(BOUND_BY_DEVICE, "device: 2x", "host: 2x")["scenario"] == "device: 2x + host: 2x"


def test_times_are_scaled_to_the_clock_of_a_step_that_was_measured():
    row = predicted(BOUND_BY_DEVICE, "class gemm: 2x", measured_step="45us")
    assert (row["step_ns"], row["predicted_ns"]) == (45 * US, 30 * US)
    assert row["gain_ratio"] == pytest.approx(1 / 3)


def test_a_change_of_what_is_not_there_is_refused():
    with pytest.raises(StepscopeError, match="nothing to change"):
        predicted(BOUND_BY_DEVICE, "loader: hidden")


def test_another_number_of_ranks_is_refused_with_the_reason():
    with pytest.raises(StepscopeError, match="no change") as refused:
        predicted(BOUND_BY_DEVICE, "ranks: 16")
    assert "says nothing" in str(refused.value.hint)


def test_what_fusion_saves_at_best_is_all_but_the_longest_kernel_of_a_run():
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>"
    spans = spans_of(
        *(call(10 * i, 5, key=f"k{i}") for i in range(3)),
        *(kernel(20 + 40 * i, 40, f"k{i}", add) for i in range(3)),
        call(30, 110, "cudaDeviceSynchronize"),
        Row(MAIN, 0, 140, "ProfilerStep#0", "step"),
    )
    row = predictions(spans, PATH_TRACKS, steps_of((0, 140)), changes="device: fused").row(0, named=True)
    # The last call is made at 10 µs, as those before it are gone; its kernel begins 15 µs after the call.
    assert (row["basis"], row["predicted_ns"]) == ("bound", 70 * US)
    assert row["high_ns"] >= 140 * US


def test_an_operator_that_reads_a_value_waits_for_the_device_where_no_call_is_recorded():
    spans = spans_of(
        call(0, 5, key="k"),
        kernel(10, 80, "k"),
        Row(MAIN, 10, 82, "aten::_local_scalar_dense", "operator"),
        Row(MAIN, 0, 92, "ProfilerStep#0", "step"),
    )
    row = predictions(spans, PATH_TRACKS, steps_of((0, 92)), changes="device: 2x").row(0, named=True)
    assert row["predicted_ns"] == pytest.approx(52 * US)


def test_without_changes_standard_questions_are_answered_best_first():
    rows = predictions(BOUND_BY_DEVICE, PATH_TRACKS)
    asked = rows["scenario"].cast(pl.String).to_list()
    assert {"kernel ~ ampere_sgemm_128x64: 2x", "sync: removed"} <= set(asked)
    *changes, last = (asked.index(one) for one in ("sync: removed", "launch: graphs", "device: free"))
    assert changes == sorted(changes)
    assert max(changes) < last
    replayed = rows.filter(basis="replayed").slice(0, changes[0] + 1)["gain_ratio"]
    assert replayed.is_sorted(descending=True)


def queue_of(n_launches, depth, kernel_us):
    """A host that could queue a kernel each 10 µs, on a device whose queue holds only so many."""
    host, device, rows = 0, 0, []
    starts = []
    for i in range(n_launches):
        begin = host
        host += 5
        if i >= depth:
            host = max(host, starts[i - depth])
        rows.append(call(begin, host - begin, key=f"k{i}"))
        starts.append(max(device, host + 2 if i < depth else host))
        rows.append(kernel(starts[-1], kernel_us, f"k{i}"))
        device = starts[-1] + kernel_us
        host += 5
    rows.append(call(host, device - host, "cudaDeviceSynchronize"))
    return spans_of(*rows, Row(MAIN, 0, device, "ProfilerStep#0", "step")), device


def test_a_full_launch_queue_takes_no_gain_back_nor_gives_one():
    recorded, length = queue_of(200, 10, 50)
    _, truth = queue_of(200, 10, 25)
    steps = steps_of((0, length))
    row = predictions(recorded, PATH_TRACKS, steps, changes="device: 2x").row(0, named=True)
    assert row["predicted_ns"] == pytest.approx(truth * US, rel=0.01)
    assert row["n_inferred"] >= 150
    assert predictions(recorded, PATH_TRACKS, steps, changes="host: free").row(0, named=True)["gain_ratio"] < 0.02


def fed_by_loader(service, owns):
    """Steps of a thread that needs so many µs for each batch of one worker, which needs `service` µs."""
    rows, bounds, ready, now = [], [], 0, 0
    for i, own in enumerate(owns):
        ready += service
        took = max(ready, now + 2)
        rows.append(Row(MAIN, now, took - now, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter", "dataloader"))
        rows.append(op(took, own + i % 3))
        bounds.append((now, took + own + i % 3))
        now = took + own + i % 3
    return spans_of(*rows), steps_of(*bounds)


def test_what_the_loader_would_take_back_is_no_gain():
    spans, steps = fed_by_loader(100, [60] * 60)
    options = {"changes": "op ~ aten::mm: 4x"}
    row = predictions(spans, PATH_TRACKS, steps, **options).row(0, named=True)
    assert row["gain_ratio"] == pytest.approx(0, abs=0.01)
    assert row["binds_next"] == "data loader"
    row = predictions(spans, PATH_TRACKS, steps, changes="loader: hidden").row(0, named=True)
    assert row["predicted_ns"] == pytest.approx(61 * US, rel=0.2)  # some of the fetch may be taking the batch over


def test_no_step_is_promised_in_less_time_than_the_loader_needs_for_its_batch():
    # The later half, which is measured, has the one step that is longer than its batch takes.
    spans, steps = fed_by_loader(100, [60] * 6 + [260] + [60] * 3)
    row = predictions(spans, PATH_TRACKS, steps, changes="op ~ aten::mm: 4x").row(0, named=True)
    assert row["basis"] == "replayed"
    assert 98 * US < row["predicted_ns"] < 103 * US


def test_the_pace_of_a_loader_that_was_never_waited_for_gives_a_bound():
    spans, steps = fed_by_loader(10, [60] * 12)
    row = predictions(spans, PATH_TRACKS, steps, changes="op ~ aten::mm: 2x").row(0, named=True)
    assert row["basis"] == "bound"
    assert row["low_ns"] < 35 * US < 62 * US < row["high_ns"]
    assert "loader" in row["reason"]


def test_steps_of_a_thread_of_which_little_else_is_recorded_have_no_prediction():
    spans = spans_of(
        Row(MAIN, 0, 90, "ProfilerStep#0", "step", step=0), Row(OTHER, 10, 70, "gloo:all_reduce", "user_range")
    )
    with pytest.raises(MissingTable, match="threads that mark steps"):
        predicted(spans, "comm: free")
