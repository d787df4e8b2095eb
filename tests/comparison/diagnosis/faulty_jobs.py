"""Jobs made from physics, healthy or with a fault: what a recording of such a job would show, by cycle.

A job is a list of operators and kernels with their time per call, time between operators, in the loader and in
exchanges, and the resources' levels. A fault changes what physics says that it changes: a slower clock stretches what
is bound to it, a neighbour adds waiting and leaves the process' own time alone. Cycles scatter by 1 % and runs drift
by as much; rates that idle near zero and loads of shared machines drift by factors.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace
from observations import observation

from stepscope.comparison.diagnosis import Case, diagnose
from stepscope.comparison.effects import effects
from stepscope.comparison.model import WORKLOAD, Pair
from stepscope.comparison.verdict import judge, step_effect, step_times

MS = 1e6
#: Levels that do not scatter from sample to sample.
EXACT = {"MHz", "count"}


class Op(msgspec.Struct, frozen=True):
    """An operator: its name, calls per cycle, time of its own per call (ns), and what it is given."""

    name: str
    calls: int
    each_ns: float
    shapes: str | None = "[[64,64]]"
    types: str | None = '["float"]'
    category: str = "operator"


class Kernel(msgspec.Struct, frozen=True):
    """Work of a device: its name, calls per cycle, time per call (ns). The host hides it."""

    name: str
    calls: int
    each_ns: float
    category: str = "kernel"
    device: str = "gpu0"


MODEL = (
    Op("aten::mm", 11, 4.0 * MS, "[[576,320],[320,2048]]", '["float","float"]'),
    Op("aten::addmm", 4, 2.2 * MS, "[[320],[576,320],[320,1280]]", '["float","float","float"]'),
    Op("aten::copy_", 23, 0.09 * MS, "[[8,72,320],[8,72,320]]", '["float","float"]'),
    Op("aten::gelu", 1, 1.4 * MS, "[[8,72,1280]]"),
    Op("aten::native_layer_norm", 3, 0.26 * MS, "[[8,72,320]]"),
    Op("aten::_log_softmax", 1, 2.5 * MS, "[[576,2048]]"),
    Op("aten::_fused_adamw_", 1, 3.0 * MS, "[[[320,320],[1280,320]]]"),
    Op("aten::add_", 36, 0.02 * MS, "[[320,320],[320,320]]"),
    Op("aten::item", 17, 0.002 * MS, "[[]]"),
)
KERNELS = (
    Kernel("ampere_bf16_s16816gemm_64x64", 170, 180e3),
    Kernel("void flashinfer::BatchPrefill", 56, 21e3),
    Kernel("void norm::RMSNorm", 113, 6e3),
    Kernel("void act_and_mul", 56, 13e3),
    Kernel("void elementwise", 113, 16e3),
    Kernel("Memcpy HtoD (Pageable -> Device)", 4, 5e3, "memcpy"),
    Kernel("Memset (Device)", 56, 2.5e3, "memset"),
)
#: Levels of a training process that has one of two cores to itself.
HOST = {
    ("host", "host_cpu_usage"): ("%", 50.0),
    ("cpu0", "host_cpu_usage"): ("%", 1.0),
    ("cpu1", "host_cpu_usage"): ("%", 99.0),
    ("cpu0", "cpu_frequency"): ("MHz", 2700.0),
    ("cpu1", "cpu_frequency"): ("MHz", 2700.0),
    ("host", "host_mem_available"): ("bytes", 24e9),
    ("vda", "disk_write_bytes_rate"): ("bytes/s", 0.0),
    ("vda", "disk_read_bytes_rate"): ("bytes/s", 0.0),
    ("eth0", "net_recv_bytes_rate"): ("bytes/s", 2e3),
    ("process", "process_cpu_usage"): ("%", 100.0),
    ("process", "process_oncpu_time"): ("ns/s", 1e9),
    ("process", "process_runq_time"): ("ns/s", 1e5),
    ("process", "process_voluntary_ctx_switches"): ("1/s", 0.5),
    ("process", "process_involuntary_ctx_switches"): ("1/s", 3.0),
    ("process", "process_major_faults"): ("1/s", 0.0),
    ("process", "process_minor_faults"): ("1/s", 190e3),
    ("process", "process_python_gc_time"): ("ns/s", 0.0),
    ("process", "process_python_gc_collections"): ("1/s", 0.0),
    ("process", "process_write_bytes_rate"): ("bytes/s", 2e3),
    ("process", "process_read_bytes_rate"): ("bytes/s", 0.0),
    ("process", "process_mem_rss"): ("bytes", 390e6),
    ("process", "num_threads"): ("count", 2.0),
}
#: Levels of an accelerator that serves.
DEVICE = {
    ("gpu0", "gpu_sm_frequency"): ("MHz", 1200.0),
    ("gpu0", "gpu_mem_frequency"): ("MHz", 1593.0),
    ("gpu0", "gpu_usage"): ("%", 8.0),
    ("gpu0", "gpu_pcie_transmit"): ("bytes/s", 3e6),
    ("gpu0", "gpu_link_transmit"): ("bytes/s", 1e6),
    ("gpu0", "gpu_mem_used"): ("bytes", 70e9),
}
#: Drift of runs, where it is more than that of times: other processes on the machine come and go.
LOOSE = {"vda": 2.0, "eth0": 2.0, "gpu_pcie_transmit": 1.0, "gpu_link_transmit": 1.0, "host_mem_available": 0.05}


class Job(msgspec.Struct, frozen=True):
    """A job and its machine; times in ms per cycle."""

    operators: tuple[Op, ...] = MODEL
    kernels: tuple[Kernel, ...] = ()
    loading_ms: float = 0.45
    gaps_ms: float = 1.9
    talk_ms: float = 0.0
    computing_ms: float = 0.0
    launch_ms: float = 0.0
    resources: dict = msgspec.field(default_factory=lambda: dict(HOST))
    typical_slowdown: float = 1.0
    growth_bytes: float = 1e6
    heap_bytes: float = 0.0
    cycles: int = 25
    rank: int | None = None
    every: int = 1
    rare_ms: float = 0.0
    anchor: str = "step"

    def levels(self, **changes):
        """The same with other levels: names of metrics with their values, of the process or of the host."""
        diagnosed = dict(self.resources)
        for metric, value in changes.items():
            keys = [key for key in diagnosed if key[1] == metric]
            assert keys, metric
            for key in keys:
                diagnosed[key] = (diagnosed[key][0], value)
        return replace(self, resources=diagnosed)

    def at(self, device, metric, value):
        """The same with another level of one device."""
        unit = self.resources[device, metric][0]
        return replace(self, resources={**self.resources, (device, metric): (unit, value)})

    def without(self, *metrics):
        """The same as a recorder that does not know these metrics would see it."""
        return replace(self, resources={k: v for k, v in self.resources.items() if k[1] not in metrics})

    def with_ops(self, *operators):
        """The same with these operators put in place of those of their name, or added."""
        new = {op.name: op for op in operators}
        rows = tuple(op for op in self.operators if op.name not in new)
        return replace(self, operators=(*rows, *operators))

    def op(self, name):
        return next(op for op in self.operators if op.name == name)


def gpu_job(**changes):
    """A serving job: the host paces it, the device idles most of the time."""
    job = Job(kernels=KERNELS, resources={**HOST, **DEVICE}, operators=(), gaps_ms=600.0, loading_ms=0.0, **changes)
    host = (Op("oncpu", 126_000, 9.5e3, None, None, "sched_oncpu"), Op("write", 168_000, 1.2e3, None, None, "io"))
    return replace(job, operators=host)


def recorded(job: Job, seed: int = 0):
    """The job as an observation. Another seed is another run of it: other noise, another drift."""
    random = np.random.default_rng(seed)
    drift = 1 + 0.01 * random.standard_normal()
    host_ops = [op for op in job.operators if op.shapes is not None]
    functions, parts, durations, rows = [], [], [], []
    stray = {key: 1 + _looseness(key) * random.random() for key in job.resources}
    for cycle in range(1, job.cycles + 1):
        noise = lambda: drift * (1 + 0.01 * random.standard_normal())  # noqa: E731
        own = {op.name: op.calls * op.each_ns * job.typical_slowdown * noise() for op in job.operators}
        spent = {
            "operators": sum(own[op.name] for op in host_ops),
            "data loading": job.loading_ms * MS * noise(),
            "exposed communication": job.talk_ms * MS * noise(),
            "computation": job.computing_ms * MS * noise(),
            "launch and runtime calls": job.launch_ms * MS * noise(),
            "python and other": job.gaps_ms * MS * job.typical_slowdown * noise()
            + (job.rare_ms * MS if cycle % job.every == 0 else 0),
        }
        spent = {name: round(ns) for name, ns in spent.items()}
        durations.append(sum(spent.values()))
        parts += [(cycle, name, ns) for name, ns in spent.items() if ns]
        functions += [
            (cycle, "host", op.name, op.category, op.calls, round(own[op.name]), round(own[op.name]))
            for op in job.operators
        ]
        for kernel in job.kernels:
            ns = round(kernel.calls * kernel.each_ns * noise())
            functions.append((cycle, kernel.device, kernel.name, kernel.category, kernel.calls, ns, None))
        for (device, metric), (unit, value) in job.resources.items():
            scatter = 0.0 if unit in EXACT else 0.01 * random.standard_normal()
            level = value * stray[device, metric] * (1 + scatter)
            if metric.startswith("process_mem_") and unit == "bytes":
                level += (job.growth_bytes + (job.heap_bytes if metric == "process_mem_rss" else 0.0)) * cycle
            if cycle % job.every and metric in ("process_python_gc_time", "process_write_bytes_rate"):
                level = HOST["process", metric][1]
            rows.append((cycle, device, metric, None, unit, level))
    observed = observation(
        durations, functions=functions, parts=parts, resources=rows, rank=job.rank, anchor=job.anchor
    )
    return replace(observed, workload=_workload(job))


def sampled_functions(shares, n, *, thirds=None, on_lock=None, slow=None):
    """What `python_functions` gives of so many samples: functions, and each one's share of the main thread's time.

    `thirds` has each one's share of the first and of the last third of the run, which is that of the run unless given;
    `on_lock` the part of its time in which it holds Python's lock, of which one sample in ten asks; else all of it.
    `slow` has the share that is only in slow steps.
    """
    share = pl.col("share_ratio")
    rows = [
        (
            name,
            of_run,
            *(thirds or {}).get(name, (of_run, of_run)),
            1.0 if on_lock is None else on_lock.get(name, 0.0),
            (slow or {}).get(name, 0.0),
        )
        for name, of_run in shares.items()
    ]
    frame = pl.DataFrame(
        rows,
        {"function": pl.String, "share_ratio": pl.Float64, "early_ratio": pl.Float64, "late_ratio": pl.Float64,
         "on_lock_ratio": pl.Float64, "slow_ratio": pl.Float64},
        orient="row",
    )  # fmt: skip
    counts = {"n_samples": n, "n_independent": float(n), "n_all_visits": n, "n_expected": share * n / 10}
    return frame.with_columns(**counts, n_visits=(share * n).cast(pl.Int64), worker_ratio=0.0, fetch_ratio=0.0)


def loop(ms, own_ms, times, *, seed=0, on_lock=None, **levels):
    """A plain loop: its step, the processor time of it, and the main thread's time in functions (ms).

    `on_lock` is the part of a function's time in which it holds Python's lock: none of it, unless given.
    """
    functions = sampled_functions({name: time / ms for name, time in times.items()}, 2000, on_lock=on_lock or {})
    job = replace(Job(), operators=(), gaps_ms=ms, loading_ms=0.0)
    if "host_pressure_io_some" in levels:
        job = replace(job, resources={**job.resources, ("host", "host_pressure_io_some"): ("ns/s", 0.0)})
    used = own_ms / ms
    run = recorded(job.levels(process_oncpu_time=1e9 * used, process_cpu_usage=100 * used, **levels), seed)
    return replace(run, parts=run.parts.clear(), python_functions=functions)


def _looseness(key):
    return next((value for name, value in LOOSE.items() if name in key), 0.0)


def _workload(job):
    rows = [
        ("host", op.name, op.shapes, op.types, float(op.calls), op.calls * op.each_ns, op.calls * op.each_ns)
        for op in job.operators
        if op.shapes is not None
    ]
    names = ["device", "name", "shapes", "types", "calls_per_cycle", "total_ns_per_cycle", "self_ns_per_cycle"]
    return WORKLOAD.conform(pl.DataFrame(rows, schema=names, orient="row")) if rows else WORKLOAD.empty()


def case_of(base, other, *, repeats=1, seed=0):
    """A case of one process: the base in some repeats against the other."""
    runs = tuple(recorded(base, seed + i) for i in range(repeats))
    return _case((Pair("", runs, (recorded(other, seed + 99),), "only process"),))


def _case(pairs):
    step = step_effect(step_times(pairs, side="base"), step_times(pairs, side="other"))
    return Case(pairs, effects(pairs), step, judge(step, None, has_cause=False)[0])


def not_judged(diagnosis):
    """What has to be recorded to judge each cause that cannot be judged."""
    return {row.category: row.reason for row in diagnosis.ruled_out if not row.is_judged}


def ranks_case(base, peers, *, seed=0):
    """A case of several ranks: the base on each against the others, a job for each rank."""
    pairs = tuple(
        Pair(
            f"rank {i}",
            (recorded(replace(base, rank=i), seed + i),),
            (recorded(replace(job, rank=i), seed + 50 + i),),
            "rank",
        )
        for i, job in enumerate(peers)
    )
    return _case(pairs)


def diagnosed(base, other, **how):
    """The diagnosis of a case of one process."""
    return diagnose(case_of(base, other, **how))


def bigger(job, times, names=None):
    """Each operator on `times` the elements takes as much longer; the optimizer's work is what it was."""

    def grown(op):
        if op.name == "aten::_fused_adamw_" or (names is not None and op.name not in names):
            return op
        rows = round(576 * times)
        return replace(
            op, each_ns=op.each_ns * times, shapes=op.shapes.replace("576", str(rows)).replace("8,72", f"{rows}")
        )

    return replace(job, operators=tuple(grown(op) for op in job.operators))


def categories(diagnosis):
    return [cause.category for cause in diagnosis.causes]


def hogged(job):
    """A Python thread that never rests: the process keeps the core, and its threads wait for one another."""
    slower = replace(job, typical_slowdown=1.6, gaps_ms=50.0)
    return slower.levels(process_runq_time=7.5e8, process_voluntary_ctx_switches=190.0, num_threads=3.0,
                         process_involuntary_ctx_switches=300.0)  # fmt: skip


def first(base, other):
    """The first cause of the difference."""
    diagnosis = diagnosed(base, other)
    assert diagnosis.causes, diagnosis.ruled_out
    return diagnosis.causes[0]
