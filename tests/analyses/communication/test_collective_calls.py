from __future__ import annotations

import polars as pl
import pytest
from device_traces import BACKWARD, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of

from stepscope.analyses.communication.collective_calls import collective_calls, element_bytes
from stepscope.core.schema import COLLECTIVES, OPS

REDUCE, PLAIN = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_Generic"


def records(*rows: tuple[object, ...]) -> pl.DataFrame:
    names = ("span_id", "collective", "dtype", "in_elements", "out_elements", "group", "group_size")
    return COLLECTIVES.conform(pl.DataFrame(rows, schema=names, orient="row"))


def inputs(*rows: tuple[object, ...]) -> pl.DataFrame:
    return OPS.conform(pl.DataFrame(rows, schema=("span_id", "input_shapes", "input_types"), orient="row"))


def calls(
    spans: pl.DataFrame, collectives: pl.DataFrame | None = None, ops: pl.DataFrame | None = None
) -> list[dict[str, object]]:
    known = COLLECTIVES.empty() if collectives is None else collectives
    found, _ = collective_calls(spans, TRACKS_5, known, OPS.empty() if ops is None else ops, communication="library")
    return found.to_dicts()


def columns(rows: list[dict[str, object]], *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_element_sizes_are_those_of_the_recorded_names() -> None:
    assert [element_bytes(t) for t in ("Float", "BFloat16", "Long", "Byte", "Float8_e4m3fn", "quint4x2")] == [
        4, 2, 8, 1, 1, None,
    ]  # fmt: skip


def test_a_kernel_is_described_by_its_own_record() -> None:
    spans = spans_of(kernel(STREAM_7, 0, 10), kernel(STREAM_7, 20, 5, PLAIN), kernel(STREAM_8, 30, 5, "odd"))
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
    rows = calls(nested(REDUCE, PLAIN, PLAIN), known)
    assert columns(rows, "span_id", "call_id", "collective", "in_bytes", "measured") == [
        (6, 1, "allreduce", 400, "device"), (7, 1, "allreduce", 400, "device"), (8, 8, PLAIN, None, "device"),
    ]  # fmt: skip


def test_else_by_the_name_and_the_inputs_of_the_operator() -> None:
    ops = inputs((2, "[[4,2],[2]]", '["c10::Half","c10::Half"]'), (0, "[[[8]]]", '["TensorList"]'))
    rows = calls(nested(PLAIN, PLAIN, REDUCE), ops=ops)
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


def test_a_record_of_waiting_is_no_exchange() -> None:
    known = records((0, "wait", "Byte", 0, 0, "0", 1), (1, None, "Byte", 0, 0, "0", 1))
    assert columns(calls(nested(REDUCE, PLAIN, PLAIN), known), "call_id", "group") == [(2, None), (2, None), (8, None)]
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
        kernel(STREAM_7, 5, 5, REDUCE),
    )  # fmt: skip
    assert columns(calls(spans), "span_id", "collective", "measured") == [
        (1, "barrier", "host"), (2, "allreduce", "device"),
    ]  # fmt: skip


def test_ranges_drawn_on_a_device_stand_for_kernels() -> None:
    spans = spans_of(
        (HOST, 0, 9, "c10d::allreduce_", "operator"), (STREAM_7, 5, 5, "hcom_allReduce__586_0_1", "device_range"),
        (STREAM_7, 5, 3, "step", "device_range"),
    )  # fmt: skip
    assert columns(calls(spans), "span_id", "collective", "measured") == [(1, "allreduce", "device")]


def test_what_computes_is_on_devices_or_else_on_the_host_outside_of_exchanges() -> None:
    host = (
        (HOST, 0, 50, "aten::mm", "operator"), (HOST, 10, 20, "c10d::allreduce_", "operator"),
        (HOST, 12, 5, "aten::copy_", "operator"), (HOST, 60, 10, "record_param_comms", "operator"),
        (BACKWARD, 25, 10, "aten::add", "operator"), (BACKWARD, 80, 10, "mine", "user_range"),
    )  # fmt: skip
    none = COLLECTIVES.empty(), OPS.empty()
    _, computing = collective_calls(spans_of(*host), TRACKS_5, *none, communication="library")
    assert [part.tolist() for part in computing[3]] == [[0, 25], [10, 50]]
    device = (kernel(STREAM_7, 5, 5), kernel(STREAM_7, 20, 9, REDUCE), kernel(OTHER_DEVICE, 8, 4))
    _, computing = collective_calls(spans_of(*host, *device), TRACKS_5, *none, communication="library")
    assert [part.tolist() for part in computing[3]] == [[5], [12]]
    _, computing = collective_calls(spans_of(*host[1:2]), TRACKS_5, *none, communication="library")
    assert [part.tolist() for part in computing[3]] == [[], []]
