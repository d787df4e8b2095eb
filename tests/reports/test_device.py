from __future__ import annotations

import pytest
from bar_notes import texts

from stepscope.reports._device import device_time, work_of
from stepscope.reports._summary import scope_of


def timed(trace):
    return device_time(trace, scope_of(trace), work_of(trace))


def costs(trace):
    return {cost.kind: cost for cost in timed(trace).costs}


def test_each_window_divides_into_four_parts(rows) -> None:
    rows.step(1, 0, 100)
    rows.step(2, 100, 100)
    first = rows.launch(5)
    rows.kernel(10, 40, "gemm", launch=first)
    rows.kernel(40, 80, "ncclDevKernel_AllReduce_Sum", track=11)
    rows.kernel(150, 20, "Memcpy HtoD (Pageable -> Device)")
    found = timed(rows.trace())
    assert {name: lengths.tolist() for name, lengths in found.by_window.items()} == {
        "computation": [40, 0], "exposed communication": [50, 20], "exposed memcpy": [0, 20], "idle": [10, 60],
    }  # fmt: skip
    assert found.parts == {"computation": 40, "exposed communication": 70, "exposed memcpy": 20, "idle": 70}
    assert texts(found) == ("1 computing kernel in 2 steps, 40 ns",)


def test_busy_is_told_for_each_device(rows) -> None:
    rows.step(1, 0, 100)
    rows.kernel(0, 80)
    rows.kernel(0, 40, track=20)
    assert timed(rows.trace()).busy == {"cuda:0": 0.8, "cuda:1": 0.4}


def test_what_the_host_did_is_told_of_idle_time_alone(rows) -> None:
    rows.step(1, 0, 100)
    rows.op(0, 100)
    rows.kernel(0, 80)
    assert timed(rows.trace()).while_idle["operators"] == 20
    rows.kernel(80, 20)
    assert timed(rows.trace()).while_idle == {}


def test_computation_is_told_by_class_and_shared_where_kernels_run_at_once(rows) -> None:
    mm, add = rows.op(0, 10), rows.op(20, 10, "aten::add")
    rows.kernel(100, 300, "ampere_bf16_s16816gemm", op=mm)
    rows.kernel(100, 100, "vectorized_elementwise_kernel<4, add>", track=11, op=add)
    found = costs(rows.trace())
    assert found["compute gemm"].ns == pytest.approx(225)
    assert found["compute pointwise"].ns == pytest.approx(75)
    assert found["compute gemm"].title == "Matrix products: aten::mm"
    assert found["compute gemm"].command == "show operators"


def test_without_operators_kernels_are_named(rows) -> None:
    rows.kernel(0, 90, "ampere_bf16_s16816gemm_a")
    rows.kernel(90, 10, "ampere_bf16_s16816gemm_b")
    found = costs(rows.trace())["compute gemm"]
    assert (found.title, found.command) == ("Matrix products", "show kernels")
    assert found.details == ("2 kernels, mean 50 ns; largest ampere_bf16_s16816gemm_a, 90 %",)


def test_kernels_that_run_at_the_same_time_are_said_to_share_their_cost(rows) -> None:
    rows.kernel(0, 100, "ampere_gemm")
    rows.kernel(0, 80, "vectorized_elementwise_kernel", track=11)
    assert "at the same time as others" in costs(rows.trace())["compute gemm"].details[0]


@pytest.mark.parametrize(("capability", "instead"), [("9.0", "allow TF32"), ("7.0", "float16")])
def test_float32_without_tensor_cores_is_told_with_what_the_device_can_do(rows, capability, instead) -> None:
    rows.kernel(0, 100, "volta_sgemm_128x64_tn")
    devices = [{"device_id": 1, "type": "cuda", "index": 0, "compute_capability": capability}]
    assert instead in costs(rows.trace(devices=devices))["compute gemm"].details[1]


def test_many_small_kernels_are_to_be_fused_unless_a_compiler_wrote_them(rows, new_rows) -> None:
    compiled = new_rows()
    for i in range(60):
        rows.kernel(10 * i, 5, "vectorized_elementwise_kernel<4, add>")
        compiled.kernel(10 * i, 5, "triton_poi_fused_add_0")
    assert "torch.compile" in costs(rows.trace())["compute pointwise"].details[1]
    assert len(costs(compiled.trace())["compute pointwise"].details) == 1


def test_exposed_communication_is_named_and_says_how_much_is_hidden(rows) -> None:
    rows.kernel(0, 100, "gemm")
    rows.kernel(50, 150, "ncclDevKernel_AllReduce_Sum", track=11)
    found = costs(rows.trace())["communication"]
    assert found.ns == 100
    assert found.title == "Exposed communication, while nothing computes: all-reduce"
    assert "33 % of communication is hidden" in found.details[0]


def test_what_was_recorded_of_a_collective_counts_before_its_kernels_name(rows) -> None:
    op = rows.op(0, 5, "record_param_comms")
    direct = rows.kernel(0, 70, "ncclDevKernel_Generic")
    rows.kernel(80, 30, "ncclDevKernel_Generic", op=op)
    rows.side("collectives", direct, collective="_reduce_scatter_base")
    rows.side("collectives", op, collective="allreduce")
    found = costs(rows.trace())["communication"]
    assert found.title.endswith(": reduce-scatter 70 %, all-reduce 30 %")
    assert found.details[0].endswith("none of it is hidden")


def test_a_collective_that_nobody_named_is_just_communication(rows) -> None:
    rows.kernel(0, 70, "ncclDevKernel_Generic")
    assert costs(rows.trace())["communication"].title == "Exposed communication, while nothing computes"


@pytest.mark.parametrize(
    ("kind", "src", "dst", "word", "advice"),
    [
        ("HtoD", "Pageable", "Device", "from host to device", "pin_memory"),
        ("DtoH", "Device", "Pageable", "from device to host", "pinned memory"),
        ("DtoD", "Device", "Device", "within the device", None),
    ],
)
def test_exposed_copies_are_told_with_direction_amount_and_memory(rows, kind, src, dst, word, advice) -> None:
    copy = rows.kernel(0, 1000, f"Memcpy {kind} ({src} -> {dst})")
    rows.side("transfers", copy, bytes=4096, kind=kind, src=src, dst=dst)
    found = costs(rows.trace())["memcpy"]
    assert found.title == f"Copies while no kernel runs, {word}"
    assert found.details[0] == "1 copy, 1 µs, 4 KiB at 4.1 GB/s"
    assert advice is None or advice in found.details[1]
    assert len(found.details) == (1 if advice is None else 2)


def test_copies_of_several_directions_are_counted_together_as_their_cost_is(rows) -> None:
    for ts, ns, kind in ((0, 3000, "HtoD"), (4000, 1000, "DtoH")):
        copy = rows.kernel(ts, ns, f"Memcpy {kind} (Pinned -> Device)")
        rows.side("transfers", copy, bytes=4000, kind=kind, src="Pinned", dst="Device")
    found = costs(rows.trace())["memcpy"]
    assert found.title == "Copies while no kernel runs, mostly from host to device"
    assert found.details[0] == "2 copies, mean 2 µs, 7.81 KiB at 2 GB/s"
    assert found.ns == 4000
