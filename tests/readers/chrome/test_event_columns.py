from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from chrome_traces import by_name, call, column, kernel, op, packed, read, rows, x

from stepscope.readers.chrome.event_columns import Columns
from stepscope.readers.chrome.events import Event
from stepscope.readers.common.issues import IssueLog

DOCUMENT = [
    op("aten::mm", 0, 9, External_id=4, Input_Dims=[[2, 3], [3, 4]], Input_type=["float", "float"]),
    call("cudaLaunchKernel", 2, 1, 91, External_id=4),
    kernel("sgemm", 5, 2, 91, grid=[8, 1, 1], block=[64, 1, 1]),
    x("cpu", 1, 1, None),
]


def columns_from(events, *, block_size: int = 100) -> Columns:
    columns = Columns(IssueLog(), exact=False)
    for start in range(0, len(events), block_size):
        block = packed(events[start : start + block_size])[15:-1]
        columns.add(msgspec.json.decode(block, type=list[Event]), block)
    return columns


def joined(group) -> dict[str, list]:
    return {name: column.join().tolist() for name, column in group.items()}


@pytest.mark.parametrize("block_size", [1, 2, 100])
def test_blocks_of_any_size_give_the_same_columns(block_size):
    columns = columns_from(DOCUMENT, block_size=block_size)
    assert columns.n_events == columns.n_spans == 4
    assert columns.phases == {"X"}
    assert list(columns.names) == ["aten::mm", "cudaLaunchKernel", "sgemm", "cpu"]
    assert list(columns.tracks) == [(1, 1), (0, 7, 0, 7)]
    assert joined(columns.spans) == {
        "ts": [0, 2, 5, 1], "dur": [9, 1, 2, 1], "name": [0, 1, 2, 3], "cat": [0, 1, 2, 3], "track": [0, 0, 1, 0],
    }  # fmt: skip
    assert joined(columns.calls) == {"row": [1, 2], "correlation": [91, 91]}
    assert joined(columns.ops)["row"] == [0]
    assert joined(columns.kernels)["row"] == [2]
    assert list(columns.dims) == [b"[8,1,1]", b"[64,1,1]"]


def test_exact_times_are_rounded_to_nanoseconds_and_what_is_no_time_is_none():
    columns = Columns(IssueLog(), exact=True)
    times = [
        Decimal("1712345678901234.567"),
        None,
        Decimal("0.0006"),
        Decimal("-0.0006"),
        Decimal("1e999999"),
        Decimal(0),
    ]
    assert columns.times(times) == [1712345678901234567, None, 1, -1, None, 0]
    odd = [Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal(1)]
    assert columns.times(odd) == [None, None, None, 1000]


def test_ids_spelled_in_lower_case_are_found_beside_the_others():
    trace = read([
        op("a", 0, 1, External_id=1), op("b", 2, 1, external_id=2), op("c", 4, 1),
        call("d", 6, 1, 1, external_id=2, tid=2), call("e", 8, 1, 2, External_id=1, tid=2),
    ])  # fmt: skip
    assert by_name(trace, "external_id") == {"a": 1, "b": 2, "c": None, "d": 2, "e": 1}
    assert column(trace.spans, "op_id") == [None, None, None, 1, 0]


def test_counters_of_hardware_are_read_from_the_arguments_of_ranges():
    trace = read([
        kernel("k", 0, 5, 1),
        x("gemm", 0, 5, "cuda_profiler_range", pid=0, tid=0, smsp__inst_executed=12.5, l2_hits=3, text="x"),
        x("norm", 6, 5, "cuda_profiler_range", pid=0, tid=0, smsp__inst_executed=7),
    ])  # fmt: skip
    names = column(trace.spans, "name")
    found = [(names[i], m, v) for i, m, v in rows(trace.kernel_metrics, "span_id", "metric", "value")]
    assert found == [
        ("gemm", "smsp  inst executed", 12.5),
        ("gemm", "l2 hits", 3.0),
        ("norm", "smsp  inst executed", 7.0),
    ]
