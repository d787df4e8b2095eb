from __future__ import annotations

import polars as pl
import pytest
from cycle_traces import samples_of

from stepscope.comparison.model import FUNCTIONS, OBSERVED_CYCLES, PARTS, RESOURCES, WORKLOAD
from stepscope.comparison.observe import observe
from stepscope.core.errors import MissingTable
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.trace import Meta, Result, Results

N = 6
REDUCE = "cross_device_reduce_1stage"
PATH = "case/normal_perf_data/result_perf_data.csv"


def row(cycle, name, device, category, calls, total_ns, metric=None, mu=None, unit=None, pid=7):
    return {
        "cycle": cycle, "pid": pid, "name": name, "device": device, "category": category, "calls": calls,
        "total_ns": total_ns, "metric": metric, "mu": mu, "unit": unit,
    }  # fmt: skip


def work(cycle, pid=7, clock=1000.0):
    gpu = {"device": "gpu3", "category": "kernel", "pid": pid}
    return [
        row(cycle, "gemm", **gpu, calls=64, total_ns=300, metric="gpu_frequency", mu=clock, unit="MHz"),
        row(cycle, "gemm", **gpu, calls=64, total_ns=300, metric="process_gpu_usage", mu=22.0, unit="%"),
        row(cycle, REDUCE, **gpu, calls=2, total_ns=100, metric="gpu_frequency", mu=2000.0, unit="MHz"),
        row(cycle, "Memcpy HtoD", **{**gpu, "category": "memcpy"}, calls=1, total_ns=50),
        row(cycle, "oncpu", "host", "sched_oncpu", 9, 1500, "process_cpu_usage", 2.5, "%", pid),
        row(cycle, "oncpu", "host", "sched_oncpu", 9, 1500, "cpu_frequency", 0.75, "ratio", pid),
        row(cycle, "cudaStreamSynchronize", "host", "sync", 2, 10, pid=pid),
    ]  # fmt: skip


def results(rows, *, lengths=(1000,) * N, pids=(7,), path=PATH, counters=None):
    cycles = [
        {"cycle": i + 1, "pid": pid, "ts_ns": 1000 * i, "dur_ns": length, "anchor": "Scheduler.run_batch"}
        for pid in pids
        for i, length in enumerate(lengths)
    ]
    held = {
        "cycles": Result(CYCLES, CYCLES.conform(pl.DataFrame(cycles))),
        "attribution": Result(ATTRIBUTION, ATTRIBUTION.conform(pl.DataFrame(rows, infer_schema_length=None))),
    }
    return Results(Meta(path, "latencyprism"), {} if counters is None else {"counters": counters}, held)


def every(**options):
    return [one for cycle in range(1, N + 1) for one in work(cycle, **options)]


def test_a_file_of_results_becomes_tables_by_cycle():
    (process,) = observe(results(every()))
    assert (process.label, process.pid, process.anchor, process.source) == ("", 7, "Scheduler.run_batch", "recorded")
    tables = (process.cycles, process.functions, process.parts, process.resources, process.workload)
    for table, frame in zip((OBSERVED_CYCLES, FUNCTIONS, PARTS, RESOURCES, WORKLOAD), tables, strict=True):
        assert frame.schema == table.empty().schema
    assert process.cycles["is_complete"].all()
    # Once for each function, however many metrics it has, and also if it has none.
    columns = ("device", "name", "calls", "total_ns", "self_ns")
    assert process.functions.filter(pl.col("cycle") == 1).select(columns).rows() == [
        ("gpu3", "gemm", 64, 300, None), ("gpu3", REDUCE, 2, 100, None),
        ("gpu3", "Memcpy HtoD", 1, 50, None), ("host", "oncpu", 9, 1500, None),
        ("host", "cudaStreamSynchronize", 2, 10, None),
    ]  # fmt: skip
    assert process.workload.select("device", "name", "calls_per_cycle", "total_ns_per_cycle").rows() == [
        ("gpu3", "gemm", 64.0, 300.0), ("gpu3", REDUCE, 2.0, 100.0),
        ("gpu3", "Memcpy HtoD", 1.0, 50.0),
    ]  # fmt: skip


def test_parts_are_device_work_and_the_rest():
    (process,) = observe(results(every()))
    assert process.parts.filter(pl.col("cycle") == 2).select("part", "total_ns").rows() == [
        ("communication", 100), ("computation", 300), ("memcpy", 50), ("other", 550),
    ]  # fmt: skip


def test_device_work_that_outlasts_its_cycle_is_scaled_to_it():
    (process,) = observe(results(every(), lengths=(1000, 1000, 225, 1000, 1000, 1000)))
    assert process.parts.filter(pl.col("cycle") == 3).select("part", "total_ns").rows() == [
        ("communication", 50), ("computation", 150), ("memcpy", 25), ("other", 0),
    ]  # fmt: skip
    assert "the device work queued by cycles 3 took longer than they lasted" in process.remarks[0]


def test_parts_sum_to_the_cycle_also_where_scaling_does_not_come_out_even():
    (process,) = observe(results(every(), lengths=(1000, 1000, 227, 1000, 101, 449)))
    sums = process.parts.group_by("cycle").agg(pl.col("total_ns").sum()).sort("cycle")
    assert sums["total_ns"].to_list() == process.cycles["dur_ns"].to_list()


def test_a_device_has_the_mean_of_its_functions_weighted_by_time():
    (process,) = observe(results(every()))
    mine = process.resources.filter(pl.col("cycle") == 1)
    assert sorted(mine.select("device", "metric", "name", "unit", "mu").rows(), key=str) == sorted([
        ("gpu3", "gpu_frequency", None, "MHz", (300 * 1000 + 100 * 2000) / 400),
        ("gpu3", "gpu_frequency", "gemm", "MHz", 1000.0),
        ("gpu3", "gpu_frequency", REDUCE, "MHz", 2000.0),
        ("process", "process_gpu_usage", None, "%", 22.0), ("process", "process_gpu_usage", "gemm", "%", 22.0),
        ("process", "process_cpu_usage", None, "%", 2.5), ("process", "process_cpu_usage", "oncpu", "%", 2.5),
        ("host", "cpu_frequency", None, "ratio", 0.75), ("host", "cpu_frequency", "oncpu", "ratio", 0.75),
    ], key=str)  # fmt: skip


def test_functions_that_took_no_time_count_alike():
    rows = [row(1, n, "gpu3", "kernel", 1, 0, "gpu_temp", mu, "°C") for n, mu in (("a", 50.0), ("b", 70.0))]
    (process,) = observe(results(rows, lengths=(10,)))
    assert process.resources.filter(pl.col("name").is_null())["mu"].to_list() == [60.0]


COUNTERS = samples_of(
    *((500 + 1000 * i, "host", "cpu_frequency", 3000.0, "MHz") for i in range(N)),
    *((500 + 1000 * i, "pid:7", "process_cpu_usage", 160.0, "%") for i in range(N)),
    *((400 + 1000 * i, None, "gpu_frequency", 500.0 * i, "MHz") for i in (0, 1)),
)


def test_shares_of_the_machine_are_multiplied_out_by_what_the_samples_show():
    (process,) = observe(results(every(), counters=COUNTERS))
    oncpu = process.resources.filter(pl.col("name") == "oncpu", pl.col("cycle") == 3)
    assert sorted(oncpu.select("device", "metric", "unit", "mu", "n_samples").rows()) == [
        ("host", "cpu_frequency", "MHz", 3000.0, 1), ("process", "process_cpu_usage", "%", 160.0, 1),
    ]  # fmt: skip


def test_the_gpus_are_never_pooled_and_resources_of_cycles_stand_once():
    (process,) = observe(results(every(), counters=COUNTERS))
    whole = process.resources.filter(pl.col("name").is_null())
    assert not whole.select("cycle", "device", "metric").is_duplicated().any()
    clock = whole.filter(pl.col("metric") == "gpu_frequency")
    assert set(clock["device"]) == {"gpu3"}
    assert clock.sort("cycle")["n_samples"].to_list() == [1, 1, 0, 0, 0, 0]
    assert process.counters.filter(pl.col("device").is_null()).height == 2


def test_cycles_before_kernels_were_recorded_are_set_aside():
    rows = [one for one in every() if one["cycle"] > 2 or one["device"] == "host"]
    (process,) = observe(results(rows))
    assert process.cycles["is_complete"].to_list() == [False, False, True, True, True, True]
    assert "recorded in part and left out: cycles 1, 2" in process.remarks
    assert process.workload["calls_per_cycle"].to_list() == [64.0, 2.0, 1.0]


def test_each_process_is_observed():
    first, second = observe(results([*every(), *every(pid=8, clock=500.0)], pids=(7, 8), counters=COUNTERS))
    assert (first.label, second.label) == ("pid 7", "pid 8")
    assert "pid:7" not in second.resources["device"].cast(pl.String).to_list()
    clocks = [
        process.resources.filter(pl.col("name") == "gemm", pl.col("metric") == "gpu_frequency")["mu"][0]
        for process in (first, second)
    ]
    assert clocks == [1000.0, 500.0]  # fmt: skip


def test_processes_of_one_number_on_two_hosts_are_two():
    there = results([{**one, "host": "b"} for one in every(clock=500.0)])
    here = results([{**one, "host": "a"} for one in every()])
    held = {
        name: Result(
            result.table,
            pl.concat([
                result.frame.with_columns(host=pl.lit("a", pl.Categorical)),
                there.results[name].frame.with_columns(host=pl.lit("b", pl.Categorical)),
            ]),
        )
        for name, result in here.results.items()
    }  # fmt: skip
    first, second = observe(Results(Meta(PATH, "latencyprism"), {}, held))
    assert (first.label, second.label) == ("a pid 7", "b pid 7")
    assert first.functions.equals(second.functions)
    assert not first.resources.equals(second.resources)


def without(column, counters=None):
    """The results of a file that lacks a column."""
    whole = results(every(), counters=counters)
    rows = whole.result("attribution").with_columns(beta_ratio=pl.col("total_ns") / 1000)
    frames = {"cycles": whole.result("cycles"), "attribution": rows}
    tables = {"cycles": CYCLES, "attribution": ATTRIBUTION}
    left = {name: tables[name].conform(frame.drop(column, strict=False)) for name, frame in frames.items()}
    held = {name: Result(tables[name], frame) for name, frame in left.items()}
    return Results(whole.meta, whole.tables, held)


def test_where_only_shares_are_told_times_follow_from_them():
    assert observe(without("total_ns"))[0].functions.equals(observe(results(every()))[0].functions)


def test_where_it_is_not_told_when_cycles_began_counters_are_not_used():
    (process,) = observe(without("ts_ns", COUNTERS))
    assert process.cycles["ts_ns"].to_list() == [1000 * i for i in range(N)]
    assert process.counters.is_empty()
    assert process.remarks == ("the file does not say when its cycles began: counters are not used",)
    assert process.resources.filter(pl.col("metric") == "gpu_frequency").height == 3 * N


@pytest.mark.parametrize(
    ("path", "phase"),
    [(PATH, None), ("a/result_prefill_perf_data.csv.gz", "prefill"), ("a/result_decode_perf_data.csv", "decode")],
)
def test_the_name_of_the_file_tells_the_phase(path, phase):
    (process,) = observe(results(every(), path=path))
    assert process.cycles["phase"].unique().to_list() == [phase]


def test_the_notes_speak_of_counters():
    assert observe(results(every()))[0].remarks == ("no counters were recorded",)
    away = COUNTERS.with_columns(pl.col("ts_ns") + 7_200 * 10**9)
    assert "perhaps a time zone of 2 h" in observe(results(every(), counters=away))[0].remarks[0]
    assert observe(results(every(), counters=COUNTERS))[0].remarks == ()


def test_files_of_other_results_are_refused():
    with pytest.raises(MissingTable, match="compare needs cycles") as caught:
        observe(Results(Meta("kernels.csv", "kernel-table"), {}, {}))
    assert "--table" in caught.value.hint
    with pytest.raises(MissingTable, match="compare needs attribution"):
        observe(Results(Meta("a.csv", "x"), {}, {"cycles": results(every()).results["cycles"]}))
