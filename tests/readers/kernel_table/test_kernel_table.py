from __future__ import annotations

import pytest

from stepscope.core.errors import CorruptInput
from stepscope.readers import open_trace, reader_for

HEADER = "Kernel                                                 Latency Tensor   DRAM\n"
TABLE = f"""{HEADER}\
vectorized_elementwise_kernel                     |       5632   0.00   0.25
ampere_fp16_s16816gemm_fp16_64x128_ldg8_relu_f2...|      31392   0.37   0.08
Kernel                                            |      17024   0.22   0.19
"""


@pytest.fixture
def read(tmp_path):
    def of(text: str):
        path = tmp_path / "kernels.txt"
        path.write_text(text)
        return open_trace(str(path))

    return of


def test_every_line_is_a_launch_with_two_ratios(read):
    trace = read(TABLE)
    assert trace.meta.format == "kernel-table"
    assert not trace.has_clock
    assert trace.spans.select("span_id", "ts_ns", "dur_ns", "name").rows() == [
        (0, None, 5632, "vectorized_elementwise_kernel"),
        (1, None, 31392, "ampere_fp16_s16816gemm_fp16_64x128_ldg8_relu_f2..."), (2, None, 17024, "Kernel"),
    ]  # fmt: skip
    assert trace.kernel_metrics.rows()[:3] == [
        (0, "Tensor", "ratio", 0.0), (0, "DRAM", "ratio", 0.25), (1, "Tensor", "ratio", 0.37),
    ]  # fmt: skip
    assert trace.issues.select("code", "count").rows() == [("names_cut", 1)]


def test_a_newer_version_has_colons(read):
    assert read(TABLE.replace("|", ":")).spans["dur_ns"].to_list() == [5632, 31392, 17024]


def test_names_may_hold_the_sign(read):
    table = HEADER + f"{'ns::operator|=':<50}|{7:>11}{0:>7}{1:>7}\n"
    assert read(table).spans["name"].to_list() == ["ns::operator|="]


def test_a_dash_is_unknown(read):
    assert read(f"{HEADER}k | 7 - 0.50\n").kernel_metrics["value"].to_list() == [None, 0.5]


def test_other_lines_are_dropped_and_counted(read):
    trace = read(TABLE + "\n[done]\n")
    assert trace.spans.height == 3
    assert ("lines_dropped", 1) in trace.issues.select("code", "count").rows()
    with pytest.raises(CorruptInput, match="a header and no rows"):
        read(HEADER)


def test_it_is_known_by_its_header():
    assert reader_for("x", TABLE.encode()).name == "kernel-table"
    assert reader_for("x", TABLE.replace("\n", "\r\n").encode()).name == "kernel-table"
