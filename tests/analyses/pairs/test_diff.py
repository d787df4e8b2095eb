from __future__ import annotations

import pytest
from chrome_traces import call, kernel, op, read, x
from polars.testing import assert_frame_equal

from stepscope.analyses.pairs.diff import DIFF, diff
from stepscope.core.errors import MissingTable


def step(number, ts, dur):
    return x(f"ProfilerStep#{number}", ts, dur, "user_annotation")


BASE = read([
    step(1, 0, 100), step(2, 100, 100),
    *(op("aten::mm", t, 10, External_id=t + 1) for t in (10, 110)),
    *(call("cudaLaunchKernel", t, 1, t) for t in (11, 111)), *(kernel("gemm", t, 20, t - 1) for t in (12, 112)),
    op("gone", 30, 6),
])  # fmt: skip
OTHER = read([
    step(1, 0, 100), op("aten::mm", 10, 12, External_id=1), call("cudaLaunchKernel", 11, 1, 11),
    kernel("gemm", 12, 50, 11), op("new", 40, 4),
])  # fmt: skip


def test_operators_are_compared_per_step_largest_change_first():
    found = diff(BASE, OTHER)
    assert found.columns == [c for c in DIFF.dtypes if c != "part"]
    assert found["name"].to_list() == ["aten::mm", "gone", "new"]
    first = found.row(0, named=True)
    assert (first["base_calls"], first["other_calls"]) == (1.0, 1.0)
    own = [first[f"{side}_device_self_ns"] for side in ("base", "other", "delta")]
    assert [*own, first["delta_ns"]] == [20_000.0, 50_000.0, 30_000.0, 30_000.0]


def test_what_only_one_run_has_is_unknown_in_the_other_and_changes_by_all_of_it():
    rows = {row["name"]: row for row in diff(BASE, OTHER).to_dicts()}
    assert (rows["gone"]["other_calls"], rows["gone"]["delta_calls"]) == (None, -0.5)
    assert (rows["new"]["base_host_self_ns"], rows["new"]["delta_host_self_ns"]) == (None, 4_000.0)


def test_changes_add_up_row_by_row():
    found = diff(BASE, OTHER)
    assert found["cumulative_delta_ns"].to_list() == found["delta_ns"].cum_sum().to_list()


def test_without_device_work_host_time_decides():
    found = diff(read([op("a", 0, 5), op("b", 9, 1)]), read([op("a", 0, 4), op("b", 9, 9)]))
    assert found.select("name", "delta_ns", "cumulative_delta_ns").rows() == [("b", 8e3, 8e3), ("a", -1e3, 7e3)]
    assert "base_device_self_ns" not in found.columns


def test_equal_runs_differ_in_nothing():
    found = diff(BASE, BASE)
    assert set(found["delta_ns"].to_list()) == {0.0}
    assert_frame_equal(diff(BASE, BASE, by="part"), diff(BASE, BASE, by="part"))


def parts(trace, other=None):
    found = diff(trace, other or trace, by="part")
    return {row["part"]: row for row in found.to_dicts()}


STEP = (
    step(1, 0, 100), x("enumerate(DataLoader)#a.__next__", 1, 20, "user_annotation"), op("aten::add", 25, 5),
    x("nn.Module: Net_0", 40, 20, "python_function", Python_id=1, Python_module_id=0), op("aten::mm", 41, 10),
    call("cudaLaunchKernel", 42, 1, 1), kernel("gemm", 50, 7, 1),
    x("Optimizer.step#SGD.step", 80, 10, "user_annotation"), op("aten::add_", 81, 2),
    op("autograd::engine::evaluate_function: MmBackward0", 62, 9, tid=2), op("aten::x", 75, 3, tid=2),
    op("between steps", 200, 9),
)  # fmt: skip


def test_parts_stand_in_order_of_time_and_name_ranges():
    found = parts(read(list(STEP)))
    assert list(found) == [
        "data loading", "operators outside ranges", "nn.Module: Net_0", "backward", "other threads",
        "Optimizer.step#SGD.step",
    ]  # fmt: skip
    assert found["nn.Module: Net_0"]["base_device_total_ns"] == 7_000
    assert found["data loading"]["base_host_total_ns"] == 20_000


def test_a_part_changes_on_the_device_if_it_does_anything_there_else_on_the_host():
    slower = [dict(e, dur=60) if e["name"] == "gemm" else e for e in STEP]
    slower = [dict(e, dur=2) if e["name"].startswith("enumerate") else e for e in slower]
    found = parts(read(list(STEP)), read(slower))
    assert found["nn.Module: Net_0"]["delta_ns"] == 53_000
    assert found["data loading"]["delta_ns"] == -18_000


def test_without_steps_the_recording_is_one():
    found = parts(read([op("a", 0, 5), op("b", 9, 1, tid=2)]))
    assert {k: v["base_host_total_ns"] for k, v in found.items()} == {
        "operators outside ranges": 5_000, "other threads": 1_000,
    }  # fmt: skip
    assert "base_device_total_ns" not in found["other threads"]


def test_a_run_without_a_host_side_cannot_be_compared():
    device = read([kernel("k", 0, 1, 1)])
    with pytest.raises(MissingTable, match="operators"):
        diff(device, device)
    with pytest.raises(MissingTable, match="host activity"):
        diff(device, device, by="part")
