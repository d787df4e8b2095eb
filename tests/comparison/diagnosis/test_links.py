from __future__ import annotations

from faulty_jobs import Job, Kernel, categories, diagnosed, gpu_job, not_judged
from msgspec.structs import replace

BASE = gpu_job()


def slower_copies(job, times):
    kernels = tuple(replace(k, each_ns=k.each_ns * times) if k.category != "kernel" else k for k in job.kernels)
    return replace(job, kernels=kernels)


def test_a_neighbour_s_copies_on_the_pcie_link_surface_though_their_carrier_is_small():
    other = slower_copies(BASE, 3.0).at("gpu0", "gpu_pcie_transmit", 7.5e9)
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis) == ["interconnect_pcie"]
    cause = diagnosis.causes[0]
    assert "PCIe traffic of GPU 0 rose" in cause.statement
    assert "takes 3× as long per call" in cause.statement
    assert any("NVLink traffic stays low" in row.text for row in cause.evidence)


def test_the_same_on_nvlink_is_nvlink():
    other = slower_copies(BASE, 2.0).at("gpu0", "gpu_link_transmit", 120e9)
    assert categories(diagnosed(BASE, other)) == ["interconnect_nvlink"]


def test_traffic_that_drifts_by_factors_near_zero_is_no_cause():
    assert not diagnosed(BASE, BASE.at("gpu0", "gpu_pcie_transmit", 4e7)).causes


def test_the_job_s_own_copies_are_not_a_neighbour_s():
    own = replace(BASE, kernels=(*BASE.kernels, Kernel("Memcpy HtoD (Pinned -> Device)", 40, 2e6, "memcpy")))
    other = own.at("gpu0", "gpu_pcie_transmit", 5e9)
    diagnosis = diagnosed(replace(own, kernels=BASE.kernels), other)
    assert "interconnect_pcie" not in categories(diagnosis)
    assert any("own copies" in row.reason for row in diagnosis.ruled_out if row.category == "interconnect_pcie")


def test_traffic_nobody_recorded_is_asked_for():
    bare = BASE.without("gpu_pcie_transmit", "gpu_link_transmit")
    needs = not_judged(diagnosed(bare, bare))
    assert "gpu_pcie_transmit" in needs["interconnect_pcie"]
    assert "gpu_link_transmit" in needs["interconnect_nvlink"]


BACK = Kernel("Memcpy DtoH (Device -> Pageable)", 3, 24e6, "memcpy")


def copying(job, *kernels, waits_ms):
    """The job with these copies added, for which the host waits."""
    return replace(job, kernels=(*job.kernels, *kernels), launch_ms=job.launch_ms + waits_ms)


def test_the_job_s_own_copies_that_it_waits_for_are_named():
    cause, *_ = diagnosed(BASE, copying(BASE, BACK, waits_ms=72.0)).causes
    assert cause.category == "device_copies"
    assert "3 of 24 ms each (Memcpy DtoH)" in cause.statement
    assert "not pinned" in cause.statement


def test_copies_beside_other_work_are_no_cause():
    assert "device_copies" not in categories(diagnosed(BASE, copying(BASE, BACK, waits_ms=0.0)))


def test_many_single_values_are_no_copies_but_small_calls():
    values = Kernel("Memcpy DtoH (Device -> Pinned)", 30_000, 1.5e3, "memcpy")
    assert "device_copies" not in categories(diagnosed(BASE, copying(BASE, values, waits_ms=80.0)))


TALKS = replace(Job(), talk_ms=20.0)


def test_lost_packets_and_slower_exchanges_are_the_network():
    lossy = {("eth0", "net_retransmits"): ("1/s", 1.0)}
    base = replace(TALKS, resources={**TALKS.resources, **lossy})
    other = replace(base, talk_ms=50.0).at("eth0", "net_retransmits", 400.0)
    cause = diagnosed(base, other).causes[0]
    assert cause.category == "network"
    assert cause.device == "eth0"


def test_an_interface_at_its_limit_is_the_network():
    base = TALKS.at("eth0", "net_recv_bytes_rate", 2e8)
    other = replace(base, talk_ms=50.0).at("eth0", "net_recv_bytes_rate", 8e9)
    assert categories(diagnosed(base, other)) == ["network"]


def test_rates_that_moved_without_slower_exchanges_are_drift():
    assert not diagnosed(TALKS, TALKS.at("eth0", "net_recv_bytes_rate", 5e9)).causes


def test_slower_exchanges_alone_are_not_the_network():
    assert "network" not in categories(diagnosed(TALKS, replace(TALKS, talk_ms=50.0)))


def test_interfaces_nobody_recorded_are_asked_for():
    base = TALKS.without("net_recv_bytes_rate")
    diagnosis = diagnosed(base, replace(base, talk_ms=50.0))
    assert "network" in not_judged(diagnosis)
