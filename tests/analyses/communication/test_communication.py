from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from device_traces import BACKWARD, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import assume, given
from hypothesis import strategies as st

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.communication.communication import (
    ANALYSIS,
    COMMUNICATION_SUMMARY,
    collective_calls,
    communication,
    element_bytes,
)
from stepscope.core.errors import MissingTable
from stepscope.core.schema import COLLECTIVES, OPS
from stepscope.core.trace import Meta, Trace

if TYPE_CHECKING:
    from stepscope.core.intervals import Intervals

ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def inputs(*rows: tuple[object, ...]) -> pl.DataFrame:
    return OPS.conform(pl.DataFrame(rows, schema=("span_id", "input_shapes", "input_types"), orient="row"))


def calls(
    spans: pl.DataFrame, collectives: pl.DataFrame | None = None, ops: pl.DataFrame | None = None
) -> list[dict[str, object]]:
    known = COLLECTIVES.empty() if collectives is None else collectives
    work = device_work(spans, TRACKS_5, needed_by=None)
    found, _ = collective_calls(spans, TRACKS_5, known, OPS.empty() if ops is None else ops, work)
    return found.to_dicts()


def columns(rows: list[dict[str, object]], *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_element_sizes_are_those_of_the_recorded_names() -> None:
    assert [element_bytes(t) for t in ("Float", "BFloat16", "Long", "Byte", "Float8_e4m3fn", "quint4x2")] == [
        4, 2, 8, 1, 1, None,
    ]  # fmt: skip


def test_a_kernel_is_described_by_its_own_record() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 10), kernel(STREAM_7, 20, 5, PLAIN), kernel(STREAM_8, 30, 5, PLAIN))
    known = records((1, "allreduce", "Float", 10, 10, "0", 8), (2, "_allgather_base", "Half", 2, 16, "1", 8))
    assert columns(
        calls(spans, known), "span_id", "collective", "dtype", "group", "group_size", "in_bytes", "out_bytes"
    ) == [(1, "allreduce", "Float", "0", 8, 40, 40), (2, "_allgather_base", "Half", "1", 8, 4, 32)]


NESTED = (
    (HOST, 0, 90, "c10d::allreduce_", "operator"),
    (HOST, 10, 70, "record_param_comms", "operator"),
    (HOST, 20, 50, "nccl:all_reduce", "user_range"),
    (HOST, 30, 5, "cudaLaunchKernel", "runtime"),
    (HOST, 40, 5, "cudaLaunchKernel", "runtime"),
    (BACKWARD, 0, 5, "cudaLaunchKernel", "runtime"),
)
PARENTS = [None, 0, 1, 2, 2, None, None, None, None]


def nested(*names: str) -> pl.DataFrame:
    """Three kernels, two of them queued within the operators of a collective."""
    rows = [kernel(STREAM_7, 50 + 10 * i, 5, name, 3 + i) for i, name in enumerate(names)]
    return spans_of(*NESTED, *rows, parent_id=PARENTS)


def test_else_by_the_record_of_the_operator_around_its_launch_which_is_one_call() -> None:
    known = records((1, "allreduce", "Float", 100, 100, "0", 2))
    rows = calls(nested(ALLREDUCE, PLAIN, PLAIN), known)
    assert columns(rows, "span_id", "call_id", "collective", "in_bytes", "measured") == [
        (6, 1, "allreduce", 400, "device"), (7, 1, "allreduce", 400, "device"), (8, 8, PLAIN, None, "device"),
    ]  # fmt: skip


def test_else_by_the_name_and_the_inputs_of_the_operator() -> None:
    ops = inputs((2, "[[4,2],[2]]", '["c10::Half","c10::Half"]'), (0, "[[[8]]]", '["TensorList"]'))
    rows = calls(nested(PLAIN, PLAIN, ALLREDUCE), ops=ops)
    assert columns(rows, "call_id", "collective", "dtype", "in_bytes", "out_bytes") == [
        (2, "allreduce", "Half", 20, None), (2, "allreduce", "Half", 20, None), (8, "allreduce", None, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "types"),
    [
        ("[[[8]]]", '["TensorList"]'),
        ("[[8],[8]]", '["float","double"]'),
        ("[[[8]]]", '["float"]'),
        ("[[8", '["float"]'),
        ("{}", '["float"]'),
        (None, None),
    ],
)
def test_what_the_inputs_do_not_tell_is_unknown(shapes: str | None, types: str | None) -> None:
    rows = calls(nested(PLAIN, PLAIN, PLAIN), ops=inputs((2, shapes, types)))
    assert columns(rows[:1], "dtype", "in_bytes") == [(None, None)]


def test_a_record_of_waiting_is_no_collective() -> None:
    known = records((0, "wait", "Byte", 0, 0, "0", 1), (1, None, "Byte", 0, 0, "0", 1))
    assert columns(calls(nested(ALLREDUCE, PLAIN, PLAIN), known), "call_id", "group") == [
        (2, None),
        (2, None),
        (8, None),
    ]
    assert calls(spans_of((HOST, 0, 9, "record_param_comms", "operator")), known) == []


def test_without_kernels_the_innermost_that_tells_stands_for_all_around_it() -> None:
    host = spans_of(*NESTED, parent_id=PARENTS[:6])
    assert columns(calls(host), "span_id", "collective", "measured") == [(2, "allreduce", "call")]
    dispatch = spans_of(*NESTED[:2], parent_id=[None, 0])
    assert columns(calls(dispatch), "span_id", "measured") == [(0, "call")]
    known = records((1, "allreduce", "Float", 100, 100, "0", 2))
    assert columns(calls(dispatch, known), "span_id", "in_bytes") == [(1, 400)]


def test_of_operators_inside_one_another_the_outermost_is_the_call() -> None:
    spans = spans_of(
        (HOST, 0, 9, "gloo:all_reduce", "user_range"), (HOST, 1, 5, "gloo:reduce_scatter", "user_range"),
        parent_id=[None, 0],
    )  # fmt: skip
    assert columns(calls(spans), "span_id", "measured") == [(0, "host")]


def test_beside_kernels_only_libraries_for_hosts_count_on_the_host() -> None:
    spans = spans_of(
        (HOST, 0, 9, "nccl:all_reduce", "user_range"), (HOST, 20, 9, "gloo:barrier", "user_range"),
        kernel(STREAM_7, 5, 5, ALLREDUCE),
    )  # fmt: skip
    assert columns(calls(spans), "span_id", "collective", "measured") == [
        (1, "barrier", "host"), (2, "allreduce", "device"),
    ]  # fmt: skip


def test_what_computes_is_on_devices_or_else_on_the_host_outside_of_collectives() -> None:
    host = (
        (HOST, 0, 50, "aten::mm", "operator"), (HOST, 10, 20, "c10d::allreduce_", "operator"),
        (HOST, 12, 5, "aten::copy_", "operator"), (HOST, 60, 10, "record_param_comms", "operator"),
        (BACKWARD, 25, 10, "aten::add", "operator"), (BACKWARD, 80, 10, "mine", "user_range"),
    )  # fmt: skip

    def computing_of(spans: pl.DataFrame) -> dict[int | None, Intervals]:
        work = device_work(spans, TRACKS_5, needed_by=None, communication="library")
        return collective_calls(spans, TRACKS_5, COLLECTIVES.empty(), OPS.empty(), work)[1]

    computing = computing_of(spans_of(*host))
    assert [part.tolist() for part in computing[3]] == [[0, 25], [10, 50]]
    device = (kernel(STREAM_7, 5, 5), kernel(STREAM_7, 20, 9, ALLREDUCE), kernel(OTHER_DEVICE, 8, 4))
    computing = computing_of(spans_of(*host, *device))
    assert [part.tolist() for part in computing[3]] == [[5], [12]]
    computing = computing_of(spans_of(*host[1:2]))
    assert [part.tolist() for part in computing[3]] == [[], []]


REDUCE, GATHER, PLAIN = "ncclDevKernel_AllReduce_RING", "ncclDevKernel_AllGather_RING", "ncclDevKernel_Generic"


def records(*rows: tuple[object, ...]) -> pl.DataFrame:
    names = ("span_id", "collective", "dtype", "in_elements", "out_elements", "group", "group_size")
    return COLLECTIVES.conform(pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None))


SPANS_5 = spans_of(
    kernel(STREAM_7, 0, 20),
    kernel(STREAM_8, 10, 30, REDUCE),
    kernel(STREAM_8, 30, 20, REDUCE),  # 10 of it together with the one before
    kernel(STREAM_8, 60, 10, GATHER),
    kernel(STREAM_8, 80, 5, PLAIN),
    step=[1, 1, 2, 2, 2],
)
RECORDS = records(
    (1, "allreduce", "Float", 100, 100, "0", 4),
    (2, "allreduce", "Float", 150, 150, "0", 4),
    (3, "_allgather_base", "Half", 10, 40, "1", 4),
)


def test_each_collective_of_a_group_is_a_row_longest_in_total_first() -> None:
    got = communication(SPANS_5, TRACKS_5, RECORDS).to_dicts()
    assert got[0] == pytest.approx({
        "rank": 3, "collective": "allreduce", "group": "0", "dtype": "Float", "measured": "device", "group_size": 4,
        "calls": 2, "in_bytes": 1000, "mean_in_bytes": 500.0, "out_bytes": 1000, "mean_out_bytes": 500.0,
        "total_ns": 50, "mean_ns": 25.0, "merged_ns": 40, "hidden_ns": 10, "exposed_ns": 30, "hidden_ratio": 0.25,
        "algorithm_bytes_per_s": 2e10, "bus_bytes_per_s": 3e10,
    })  # fmt: skip
    assert [(r["collective"], r["in_bytes"], r["out_bytes"], r["total_ns"]) for r in got[1:]] == [
        ("_allgather_base", 20, 80, 10), (PLAIN, None, None, 5),
    ]  # fmt: skip
    assert [r["algorithm_bytes_per_s"] for r in got[1:]] == [8e9, None]
    assert [r["bus_bytes_per_s"] for r in got[1:]] == [6e9, None]


def test_by_step_they_are_apart_by_the_step_that_queued_them() -> None:
    got = communication(SPANS_5, TRACKS_5, RECORDS, by="step")
    assert got.select("step", "collective", "total_ns", "hidden_ns").rows() == [
        (1, "allreduce", 30, 10), (2, "allreduce", 20, 0), (2, "_allgather_base", 10, 0), (2, PLAIN, 5, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "in_elements", "out_elements", "algorithm", "bus"),
    [
        ("allreduce", 100, 100, 400, 600),
        ("_reduce_scatter_base", 100, 25, 400, 300),
        ("allgather", 25, 100, 400, 300),
        ("all_to_allv", 80, 100, 400, 300),
        ("broadcast", 100, 100, 400, 400),
        ("send", 100, 0, 400, 400),
        ("allgather", 25, None, 400, 300),
        ("unheard_of", 100, 100, 400, None),
    ],
)
def test_bandwidth_on_the_bus_is_what_each_rank_has_to_send(
    collective: str, in_elements: int, out_elements: int | None, algorithm: int | None, bus: int | None
) -> None:
    spans = spans_of(kernel(STREAM_7, 0, 1_000_000_000, PLAIN))
    got = communication(spans, TRACKS_5, records((0, collective, "Float", in_elements, out_elements, "0", 4)))
    assert got.select("algorithm_bytes_per_s", "bus_bytes_per_s").row(0) == (algorithm, bus)


def test_bandwidth_is_over_the_calls_whose_size_and_time_are_known() -> None:
    spans = spans_of(*(kernel(STREAM_7, 10 * i, dur, PLAIN) for i, dur in enumerate((5, 5, 0, 7))))
    known = records(
        (0, "allreduce", "Float", 25, 25, "0", 2), (1, "allreduce", "Float", 25, 25, "0", None),
        (2, "allreduce", "Float", 9000, 9000, "0", 2), (3, "allreduce", "Float", None, None, "0", 2),
    )  # fmt: skip
    got = communication(spans, TRACKS_5, known)
    assert got.select("calls", "group_size", "algorithm_bytes_per_s", "bus_bytes_per_s").row(0) == (4, None, 2e10, 2e10)


def test_a_call_that_only_queues_has_no_bandwidth() -> None:
    spans = spans_of((HOST, 0, 5, "nccl:all_reduce", "user_range"), (HOST, 10, 5, "aten::mm", "operator"))
    got = communication(spans, TRACKS_5, records((0, "allreduce", "Float", 25, 25, "0", 2)))
    assert got.select("measured", "in_bytes", "algorithm_bytes_per_s", "hidden_ns").row(0) == ("call", 100, None, 0)


def test_a_call_without_length_has_no_share_that_is_hidden() -> None:
    got = communication(spans_of(kernel(STREAM_7, 3, 0, REDUCE)), TRACKS_5)
    assert got.select("merged_ns", "hidden_ns", "hidden_ratio").row(0) == (0, 0, None)


def test_several_kernels_of_one_call_are_one_whose_size_counts_once() -> None:
    spans = spans_of(
        (HOST, 0, 9, "record_param_comms", "operator"), (HOST, 1, 1, "cudaLaunchKernel", "runtime"),
        (HOST, 4, 1, "cudaLaunchKernel", "runtime"),
        kernel(STREAM_7, 10, 5, PLAIN, 1), kernel(STREAM_8, 12, 5, PLAIN, 2),
        parent_id=[None, 0, 0, None, None],
    )  # fmt: skip
    got = communication(spans, TRACKS_5, records((0, "allreduce", "Float", 25, 25, "0", 2)))
    assert got.select("calls", "in_bytes", "total_ns", "mean_ns", "merged_ns").row(0) == (1, 100, 10, 10.0, 7)


def test_missing_things_are_said() -> None:
    with pytest.raises(MissingTable, match="collectives"):
        communication(spans_of(kernel(STREAM_7, 0, 5)), TRACKS_5)
    with pytest.raises(MissingTable, match="by step needs steps"):
        communication(spans_of(kernel(STREAM_7, 0, 5, REDUCE)), TRACKS_5, by="step")


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": SPANS_5, "tracks": TRACKS_5, "collectives": RECORDS})
    for by in ("collective", "step"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: COMMUNICATION_SUMMARY.dtypes[name] for name in got.columns}


WORK = st.lists(
    st.tuples(
        st.sampled_from((STREAM_7, STREAM_8)), st.integers(0, 50), st.integers(0, 9),
        st.sampled_from((REDUCE, GATHER, "gemm")), st.integers(1, 3), st.integers(1, 20),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@pytest.mark.slow
@given(WORK, st.sampled_from(("collective", "step")))
def test_times_and_sizes_equal_a_count_of_nanoseconds(work: list[tuple[int, int, int, str, int, int]], by: str) -> None:
    rows = sorted(work)
    spans = spans_of(*(kernel(*row[:4]) for row in rows), step=[row[4] for row in rows])
    known = records(*(
        (i, "allreduce" if row[3] == REDUCE else "allgather", "Byte", row[5], row[5], "0", 2)
        for i, row in enumerate(rows) if row[3] != "gemm"
    ))  # fmt: skip
    assume(known.height > 0)
    computing = np.zeros(60, bool)
    for _, ts, dur, name, *_ in rows:
        computing[ts : ts + dur] |= name == "gemm"
    wanted: dict[tuple[object, ...], list[object]] = {}
    for _, ts, dur, name, step, size in rows:
        if name == "gemm":
            continue
        key = (step if by == "step" else None, "allreduce" if name == REDUCE else "allgather")
        busy, n, total, n_bytes = wanted.setdefault(key, [np.zeros(60, bool), 0, 0, 0])
        busy[ts : ts + dur] = True
        wanted[key] = [busy, n + 1, total + dur, n_bytes + size]
    got = communication(spans, TRACKS_5, known, by=by)  # type: ignore[arg-type]
    assert got.height == len(wanted)
    for row in got.to_dicts():
        busy, n, total, n_bytes = wanted[row.get("step"), row["collective"]]
        assert (row["calls"], row["total_ns"], row["in_bytes"]) == (n, total, n_bytes)
        assert row["merged_ns"] == busy.sum()
        assert (row["hidden_ns"], row["exposed_ns"]) == ((busy & computing).sum(), (busy & ~computing).sum())
