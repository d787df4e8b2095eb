from __future__ import annotations

import polars as pl
import pytest

from stepscope import exports
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import KERNEL_METRICS, SPANS
from stepscope.core.trace import Meta, Run, Trace
from stepscope.exports.kernel_table import EXPORT, HEADER, printed_name

TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"


def trace_of(*launches: tuple[str, int | None, float | None, float | None]) -> Trace:
    """Launches as name, ns, percent of tensor cores, percent of DRAM."""
    spans = pl.DataFrame({
        "span_id": range(len(launches)), "track_id": 0, "name": [n for n, *_ in launches],
        "dur_ns": [d for _, d, *_ in launches], "category": "kernel",
    })  # fmt: skip
    rows = [(i, m, "%", v) for i, (_, _, t, d) in enumerate(launches) for m, v in ((TENSOR, t), (DRAM, d))]
    schema = {"span_id": pl.UInt32, "metric": pl.String, "unit": pl.String, "value": pl.Float64}
    metrics = pl.DataFrame(rows, schema=schema, orient="row")
    return Trace(
        Meta("a.csv", "ncu-csv"), {"spans": SPANS.conform(spans), "kernel_metrics": KERNEL_METRICS.conform(metrics)}
    )


def exported(*traces: Trace) -> str | bytes:
    found = {f"{i}.csv": trace for i, trace in enumerate(traces)}
    return EXPORT(Run(tuple(found), found.__getitem__), None)


def test_every_launch_is_a_line_of_76_columns():
    text = exported(
        trace_of(
            ("void at::native::elementwise_kernel<128, 4>(int)", 5632, 0.0, 19.0), ("Kernel", 1_624_224, 53.0, 12.4)
        )
    )
    assert text == (
        "Kernel                                                 Latency Tensor   DRAM\n"
        "elementwise_kernel                                |       5632   0.00   0.19\n"
        "Kernel                                            |    1624224   0.53   0.12\n"
    )
    assert {len(line) for line in str(text).splitlines()} == {76}


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("void at::native::<unnamed>::CatArrayBatchedCopy<T>(T)", "CatArrayBatchedCopy"),
        ("void cutlass::Kernel<cutlass_80_tensorop_gemm>(T1::Params)", "Kernel"),
        ("void <unnamed>::f(int)", "f"),
        ("a" * 50, "a" * 50),
        ("a" * 51, "a" * 47 + "..."),
        ("ns::plain", "ns::plain"),
    ],
)
def test_names_are_cleaned_in_a_fixed_order(name, printed):
    assert printed_name(name) == printed


def test_halves_are_rounded_as_the_doubles_say():
    text = str(exported(trace_of(("a", 1, 24.5, 0.5), ("b", 1, 12.5, 99.999))))
    assert [line[-13:] for line in text.splitlines()[1:]] == [
        f"{0.245:6.2f} {0.005:6.2f}",
        f"{0.125:6.2f} {0.99999:6.2f}",
    ]


def test_what_is_not_known_is_a_dash():
    text = str(exported(trace_of(("a", 7, None, 50.0), ("b", None, 1.0, None))))
    assert [line[50:] for line in text.splitlines()[1:]] == ["|          7      -   0.50", "|          -   0.01      -"]


def test_what_it_cannot_do_it_says():
    with pytest.raises(MissingTable, match="tensor utilisation") as caught:
        exported(trace_of(("a", 7, None, 50.0)))
    assert TENSOR in caught.value.hint
    one = trace_of(("a", 7, 1.0, 1.0))
    with pytest.raises(StepscopeError, match="one trace, and 2 were given"):
        exported(one, one)


def test_it_is_found_by_its_name():
    assert exports.find("kernel-table") is EXPORT
    assert EXPORT.options() == {}
    assert len(HEADER) == 77
