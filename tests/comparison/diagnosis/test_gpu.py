from __future__ import annotations

import pytest
from faulty_jobs import KERNELS, MODEL, MS, Job, Kernel, categories, diagnosed, gpu_job, not_judged
from msgspec.structs import replace

BASE = gpu_job()


def slowed(job, times, *, names=None):
    kernels = tuple(
        replace(k, each_ns=k.each_ns * times) if k.category == "kernel" and (names is None or k.name in names) else k
        for k in job.kernels
    )
    return replace(job, kernels=kernels)


def test_a_locked_clock_is_named_though_the_host_hides_its_cost():
    other = slowed(BASE, 3.4).at("gpu0", "gpu_sm_frequency", 210.0).at("gpu0", "gpu_usage", 25.0)
    other = other.levels(process_cpu_usage=170.0)  # the host polls
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis) == ["gpu_frequency"]
    cause = diagnosis.causes[0]
    assert cause.statement.startswith("GPU 0's SM clock fell from 1,")
    assert "210 MHz" in cause.statement
    assert "slowed 3.4×" in cause.statement
    assert "memory clock unchanged" in cause.statement
    assert cause.device == "gpu0"
    assert any("use of the accelerator" in row.text for row in cause.consequences)
    assert any("gemm" in row.text for row in cause.consequences)


def test_kernels_that_the_clock_slows_are_not_causes_of_their_own():
    other = slowed(BASE, 2.0).at("gpu0", "gpu_sm_frequency", 600.0)
    assert categories(diagnosed(BASE, other)) == ["gpu_frequency"]


def test_a_memory_clock_that_fell_too_is_told():
    other = slowed(BASE, 2.0).at("gpu0", "gpu_sm_frequency", 600.0).at("gpu0", "gpu_mem_frequency", 800.0)
    assert "memory clock fell" in diagnosed(BASE, other).causes[0].statement


def test_reasons_for_a_low_clock_are_evidence():
    hot = {("gpu0", "gpu_temp"): ("°C", 60.0), ("gpu0", "clocks_throttle_reasons_sw_thermal"): ("count", 0.0)}
    base = replace(BASE, resources={**BASE.resources, **hot})
    other = slowed(base, 2.0).at("gpu0", "gpu_sm_frequency", 600.0).at("gpu0", "gpu_temp", 91.0)
    other = other.at("gpu0", "clocks_throttle_reasons_sw_thermal", 1.0)
    texts = [row.text for row in diagnosed(base, other).causes[0].evidence]
    assert "temperature" in texts
    assert "reason for a lower clock" in texts


def test_a_clock_that_is_low_while_nothing_runs_is_no_cause():
    assert not diagnosed(BASE, BASE.at("gpu0", "gpu_sm_frequency", 900.0)).causes


def test_a_higher_use_of_the_device_is_no_cause():
    assert not diagnosed(BASE, BASE.at("gpu0", "gpu_usage", 20.0)).causes


@pytest.mark.slow
def test_a_clock_nobody_recorded_is_asked_for():
    bare = BASE.without("gpu_sm_frequency")
    assert "gpu_sm_frequency" in not_judged(diagnosed(bare, bare))["gpu_frequency"]


def test_without_an_accelerator_its_clock_is_ruled_out():
    host = replace(BASE, kernels=())
    reasons = {row.category: row.reason for row in diagnosed(host, host).ruled_out}
    assert reasons["gpu_frequency"] == reasons["slow_kernel"] == "no accelerator worked"


def test_one_slow_kernel_is_named():
    big = replace(BASE, gaps_ms=60.0, operators=())
    names = {"void flashinfer::BatchPrefill"}
    kernels = (*KERNELS, Kernel("exposed", 1, 1e3))
    base = replace(big, kernels=kernels)
    diagnosis = diagnosed(base, slowed(base, 6.0, names=names))
    assert categories(diagnosis) == ["slow_kernel"]
    assert "BatchPrefill" in diagnosis.causes[0].statement
    assert "6× as long" in diagnosis.causes[0].statement


def test_kernels_that_are_slower_alike_are_no_single_one():
    diagnosis = diagnosed(BASE, slowed(BASE, 1.5))
    assert "slow_kernel" not in categories(diagnosis)
    assert any("slower" in row.reason for row in diagnosis.ruled_out if row.category == "slow_kernel")


def test_a_cause_explains_no_more_than_the_cycle_grew():
    other = slowed(BASE, 3.4).at("gpu0", "gpu_sm_frequency", 210.0)
    cause = diagnosed(BASE, other).causes[0]
    assert 0 <= cause.explained_ns < 60 * MS


def test_other_kernels_for_the_same_operators_are_told():
    ops = Job(kernels=KERNELS, operators=MODEL, resources=BASE.resources, gaps_ms=20.0)
    kernels = (*KERNELS[1:], Kernel("cutlass::other_gemm", 170, 400e3))
    other = replace(ops, kernels=kernels, gaps_ms=60.0)
    diagnosis = diagnosed(ops, other)
    assert categories(diagnosis)[0] == "slow_kernel"
    assert "run other kernels on GPU 0" in diagnosis.causes[0].statement
    assert "cutlass::other_gemm" in diagnosis.causes[0].statement


def test_other_kernels_that_are_as_fast_are_no_cause():
    ops = Job(kernels=KERNELS, operators=MODEL, resources=BASE.resources, gaps_ms=20.0)
    kernels = (*KERNELS[1:], Kernel("cutlass::other_gemm", 170, 180e3))
    assert not diagnosed(ops, replace(ops, kernels=kernels)).causes


def test_a_single_kernel_slowed_by_the_clock_is_the_clock_s():
    base = replace(BASE, gaps_ms=60.0, operators=())
    slow = slowed(base, 6.0, names={"void flashinfer::BatchPrefill"}).at("gpu0", "gpu_sm_frequency", 1000.0)
    diagnosis = diagnosed(base, slow)
    assert "slow_kernel" not in categories(diagnosis)
    assert any("clock" in row.reason for row in diagnosis.ruled_out if row.category == "slow_kernel")


def test_most_kernels_are_no_single_one():
    base = replace(BASE, gaps_ms=60.0, operators=())
    names = {"ampere_bf16_s16816gemm_64x64"}
    diagnosis = diagnosed(base, slowed(base, 1.2, names=names))
    assert any("most kernels" in row.reason for row in diagnosis.ruled_out if row.category == "slow_kernel")


USED = {("process", "process_gpu_usage"): ("%", 40.0), ("gpu0", "gpu_mem_used"): ("bytes", 5e9)}
SHARED = {
    ("process", "process_gpu_usage"): ("%", 45.0),
    ("neighbours", "process_gpu_usage"): ("%", 50.0),
    ("gpu0", "gpu_mem_used"): ("bytes", 7e9),
}
BUSY = replace(BASE, computing_ms=50.0, resources={**BASE.resources, **USED})


def beside_another(job, times):
    """The job while another process computes on its device, and kernels take so many times as long."""
    return replace(slowed(job, times), computing_ms=50.0 * times, resources={**job.resources, **SHARED})


def test_another_process_on_the_device_is_named_with_its_share():
    cause, *_ = diagnosed(BUSY, beside_another(BUSY, 2.4)).causes
    assert cause.category == "gpu_contention"
    assert cause.statement.startswith("Other processes compute on GPU 0 for 5")
    assert "(was 0 %); a typical kernel of the job takes 2.4× as long" in cause.statement
    assert any(row.text == "memory of the device in use" for row in cause.evidence)


def test_the_clock_that_a_neighbour_s_power_lowers_is_a_consequence_of_it():
    other = beside_another(BUSY, 2.4).at("gpu0", "gpu_sm_frequency", 1090.0)
    diagnosis = diagnosed(BUSY, other)
    assert categories(diagnosis)[0] == "gpu_contention"
    assert "gpu_frequency" not in categories(diagnosis)
    assert any(row.text == "clock of the multiprocessors" for row in diagnosis.causes[0].consequences)


def test_a_neighbour_that_slows_nothing_is_no_cause():
    other = replace(BUSY, resources={**BUSY.resources, **SHARED})
    diagnosis = diagnosed(BUSY, other)
    assert "gpu_contention" not in categories(diagnosis)
    assert any("but its kernels take" in row.reason for row in diagnosis.ruled_out if row.category == "gpu_contention")


def test_slow_kernels_without_a_neighbour_are_no_contention():
    other = replace(slowed(BUSY, 2.0), computing_ms=100.0)
    assert "gpu_contention" not in categories(diagnosed(BUSY, other))


def test_who_uses_the_device_is_asked_for_where_the_job_s_own_use_is_unknown():
    assert "process_gpu_usage" in not_judged(diagnosed(BASE, BASE))["gpu_contention"]
