from __future__ import annotations

import pytest
from faulty_jobs import MS, Job, categories, diagnosed, loop, not_judged
from msgspec.structs import replace

from stepscope.comparison.verdict import compare_runs

BASE = Job()


def asleep(job, ms, whole=78.0):
    """The process sleeps or waits for so long in each cycle: its threads do not run then."""
    share = whole / (whole + ms)
    return job.levels(process_oncpu_time=1e9 * share, process_cpu_usage=100 * share, process_voluntary_ctx_switches=9.0)


def test_a_loader_that_sleeps_is_data_loading():
    diagnosis = diagnosed(BASE, asleep(replace(BASE, loading_ms=30.0), 30.0))
    assert categories(diagnosis) == ["data_loading"]
    cause = diagnosis.causes[0]
    assert "asleep or waiting" in cause.statement
    assert 25 * MS < cause.explained_ns < 33 * MS


def test_a_loader_that_works_is_data_loading():
    assert "at work on the batch" in diagnosed(BASE, replace(BASE, loading_ms=30.0)).causes[0].statement


def test_a_loader_that_reads_is_data_loading_not_disk():
    other = asleep(replace(BASE, loading_ms=40.0), 40.0).levels(process_read_bytes_rate=4e8)
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis) == ["data_loading"]
    assert ", reading " in diagnosis.causes[0].statement


def test_a_loader_that_takes_no_longer_is_ruled_out():
    diagnosis = diagnosed(BASE, BASE)
    assert any("time in the data loader" in row.reason for row in diagnosis.ruled_out if row.category == "data_loading")


def test_files_that_are_flushed_in_each_step_are_disk_io():
    other = asleep(replace(BASE, gaps_ms=22.0), 20.0).levels(process_write_bytes_rate=4e6)
    other = other.levels(process_voluntary_ctx_switches=120.0)
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis) == ["disk_io"]
    assert "writes" in diagnosis.causes[0].statement
    assert "waits for it" in diagnosis.causes[0].statement


def test_a_checkpoint_every_few_steps_is_disk_io():
    other = replace(BASE, every=5, rare_ms=150.0).levels(
        process_write_bytes_rate=3e8, process_oncpu_time=7e8, process_voluntary_ctx_switches=30.0
    )
    assert categories(diagnosed(BASE, other))[:1] == ["disk_io"]


def test_time_that_the_kernel_counts_as_stalled_names_a_disk_beside_other_causes():
    """40 ms are added between operators, of which writing accounts for 8: too little without the kernel's count."""
    stalls = {**BASE.resources, ("host", "host_pressure_io_some"): ("ns/s", 0.0)}
    base = replace(BASE, resources=stalls)
    other = replace(base, gaps_ms=42.0).levels(process_write_bytes_rate=4e7)
    seen = diagnosed(base, other.levels(host_pressure_io_some=3e7))
    (cause,) = [cause for cause in seen.causes if cause.category == "disk_io"]
    assert cause.explained_ns / MS == pytest.approx(1.5 * 8, rel=0.25)
    assert any("waited for a disk" in row.text for row in cause.evidence)
    assert "disk_io" not in categories(diagnosed(base, other))


def test_a_few_bytes_that_the_kernel_counts_no_stall_for_are_no_reason_to_sleep():
    """5 kB a cycle take a disk of 10 MB/s half a millisecond, while the process sleeps for 20."""
    base = replace(BASE, resources={**BASE.resources, ("host", "host_pressure_io_some"): ("ns/s", 0.0)})
    other = asleep(replace(base, gaps_ms=22.0), 20.0).levels(process_write_bytes_rate=5e4)
    other = other.levels(process_voluntary_ctx_switches=120.0)
    assert categories(diagnosed(base, other)) == ["host_overhead"]


@pytest.mark.slow
def test_a_writer_that_queues_for_its_core_after_each_wait_is_disk_io():
    """20 of 60 ms asleep would not do; most of the rest it waits for the threads that write for it."""
    other = replace(BASE, gaps_ms=62.0).levels(
        process_write_bytes_rate=3e7, process_oncpu_time=6.2e8, process_cpu_usage=62.0, process_runq_time=2.6e8,
        process_voluntary_ctx_switches=300.0,
    )  # fmt: skip
    assert categories(diagnosed(BASE, other))[0] == "disk_io"
    steady = other.levels(process_voluntary_ctx_switches=0.5)
    assert "disk_io" not in categories(diagnosed(BASE, steady))


def test_writing_that_nobody_waits_for_is_no_cause():
    assert not diagnosed(BASE, BASE.levels(process_write_bytes_rate=5e7)).causes


def test_a_log_that_is_written_while_python_works_is_not_disk_io():
    other = replace(BASE, gaps_ms=22.0).levels(process_write_bytes_rate=2e5)
    assert categories(diagnosed(BASE, other)) == ["host_overhead"]


def test_other_processes_disks_do_not_count_where_the_process_own_are_known():
    other = BASE.at("vda", "disk_write_bytes_rate", 2e8)
    assert not diagnosed(BASE, other).causes


def test_rates_nobody_recorded_are_asked_for():
    bare = BASE.without(
        "process_write_bytes_rate", "process_read_bytes_rate", "disk_write_bytes_rate", "disk_read_bytes_rate"
    )
    diagnosis = diagnosed(bare, replace(bare, gaps_ms=30.0))
    assert "process_write_bytes_rate" in not_judged(diagnosis)["disk_io"]


@pytest.mark.slow
def test_without_the_process_own_time_switches_tell_that_it_waits():
    base = BASE.without("process_oncpu_time", "process_cpu_usage")
    other = replace(base, gaps_ms=22.0).levels(process_write_bytes_rate=4e6, process_voluntary_ctx_switches=120.0)
    assert categories(diagnosed(base, other)) == ["disk_io"]
    quiet = replace(base, gaps_ms=22.0).levels(process_write_bytes_rate=4e6)
    assert categories(diagnosed(base, quiet)) == ["host_overhead"]


def test_of_a_run_without_a_profile_a_disk_explains_what_a_new_function_takes_and_no_more():
    """All of its step is outside operators, and a function that the base had, too, takes longer as well."""
    disk = {"process_write_bytes_rate": 1e8, "host_pressure_io_some": 1.2e8}
    base = loop(60.0, 58.0, {"solve (a.py)": 58.0})
    other = loop(88.0, 79.0, {"solve (a.py)": 77.0, "save (a.py)": 8.0}, seed=1, **disk)
    cause = next(each for each in compare_runs([[base]], [[other]]).causes if each.category == "disk_io")
    assert cause.explained_ns == pytest.approx(8 * MS, rel=0.05)
