"""One small file, or folder of files, of every format: what changes of meaning begin with."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import mutations

import stepscope

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1] / "tests" / "readers"
#: Those that are also written as stored folders.
STORED = ("kineto-cuda", "kineto-steps", "nsys", "ncu-csv", "paddle-json", "rocprof-db", "latencyprism", "counters")
T0 = 1_700_000_000_000_000_000


@contextmanager
def _literal_files() -> Iterator[None]:
    """Within it, the literal files of the readers' tests can be imported."""
    folders = [str(TESTS / folder) for folder in ("..", "", "recorded", "nsight")]
    sys.path[:0] = folders
    try:
        yield
    finally:
        sys.path[:] = [folder for folder in sys.path if folder not in folders]


def write_all(target: Path, *, further: bool = False) -> dict[str, Path]:
    """Writes a folder for each seed below `target`; gives the folders, or their only files, by name."""
    seeds: dict[str, Path] = {}

    def put(name: str, file: str, content: str | bytes) -> Path:
        (target / name).mkdir(parents=True, exist_ok=True)
        path = target / name / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        seeds[name] = target / name
        return path

    for name, document in zip(("cuda", "hip", "ascend", "xla", "pairs"), mutations.made(), strict=True):
        put(f"kineto-{name}", "rank0.json", json.dumps(document))
    for rank in range(3 if further else 0):
        put("kineto-ranks", f"rank{rank}.json", json.dumps(_of_rank(rank)))
    with gzip.open(mutations.EXAMPLES / "demo-cpu-decode" / "rank0.pt.trace.json.gz") as file:
        document = json.load(file)
    document["traceEvents"] = document["traceEvents"][:600]
    put("kineto-steps", "rank0.json", json.dumps(document))
    with _literal_files():
        _of_tests(put)
        _recorded(put)
        _dumped(put)
    put("proton", "a.hatchet", json.dumps([_tree(), {"CUDA": {"0": {"arch": "90", "num_sms": 132}}}]))
    columns = "Kernel                                                 Latency Tensor   DRAM\n"
    put(
        "kernel-table",
        "kernels.txt",
        columns + "add_kernel                              |       5632   0.00   0.25\n" * 3,
    )
    put("processes", "processes.json", json.dumps(_processes()))
    put("step-costs", "costs.json", json.dumps({"batch_cost_s": [[0.1, 16], [0.2, 16]], "reader_cost_s": [[0.01, 0]]}))
    _served(put)
    for name in STORED:
        stepscope.export(stepscope.load_run([str(seeds[name])]), "parquet", output=target / f"stored-{name}")
        seeds[f"stored-{name}"] = next((target / f"stored-{name}").glob("*/meta.json")).parent
    return {
        name: next(iter(files)) if len(files := list(path.iterdir())) == 1 else path for name, path in seeds.items()
    }


def sound(folder: Path) -> Path:
    """A file as it should be among those written there: what a changed one is compared with."""
    return folder / "kineto-cuda" / "rank0.json"


def _of_rank(rank: int) -> dict[str, Any]:
    """The recording of one of three ranks, which come to their collectives one after the other."""
    document = mutations.made()[0]
    collectives = ("allreduce", "all_to_allv", "send")
    for number, event in enumerate(document["traceEvents"]):
        event["ts"] = event.get("ts", 0) + 7 * rank
        args = event.get("args", {})
        if "Collective name" in args:
            pair = {"Src Rank": 0, "Dst Rank": 1} if number % 3 == 2 else {}
            split = {"In split size": f"[{9 + rank}, 40, 50]", "Out split size": "[33, 33, 33]"}
            about = {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]", "Rank": rank, "Seq": number}
            whose = {"Collective name": collectives[number % 3], "Process Group Description": "default_pg"}
            event["args"] = args | about | whose | split | pair
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 3, "ranks": [0, 1, 2]}
    document["distributedInfo"] = {"rank": rank, "world_size": 3, "backend": "nccl", "pg_config": [group]}
    document["baseTimeNanoseconds"] = T0
    return document


def _of_tests(put: Any) -> None:
    import ascend_databases as databases
    import ascend_files as ascend
    import ncu_files as ncu
    import nsys_files as nsys
    import nsys_stats_files as stats
    import paddle_profiles as paddle
    import perf_files as latencyprism
    import perfetto_traces as perfetto
    import rocprof_files as rocm
    import test_ncu_csv
    import xplane_profiles as xplane

    def empty(name: str, file: str) -> Path:
        path: Path = put(name, file, b"")
        path.unlink()
        return path

    for name, text in ascend.tables().items():
        put("ascend-folder", name, text)
        if name != "trace_view.json":
            put("ascend-kernels", name, text)
        if name not in ("trace_view.json", "kernel_details.csv"):
            put("ascend-results", name, text)
    for name in ("ascend-folder", "ascend-kernels", "ascend-results"):
        put(name, "profiler_info_3.json", json.dumps(ascend.INFO))
    databases.database(empty("ascend-db", "ascend_pytorch_profiler_3.db").parent, databases.ROWS)
    nsys.write(
        empty("nsys", "report.sqlite"),
        CUPTI_ACTIVITY_KIND_KERNEL=(
            nsys.KERNEL,
            [nsys.kernel(1000 * i + 90, 1000 * i + 700, correlation=i + 1, grid=(2, i + 1, 1)) for i in range(8)],
        ),
        CUPTI_ACTIVITY_KIND_RUNTIME=(
            nsys.RUNTIME,
            [nsys.call(1000 * i + 50, 1000 * i + 70, correlation=i + 1) for i in range(8)],
        ),
        CUPTI_ACTIVITY_KIND_MEMCPY=(
            nsys.COPY,
            [(9000 + 90 * i, 9050 + 90 * i, 0, 1, 7, 20 + i, nsys.GLOBAL_PID, 4096, 1, 0, 2) for i in range(4)],
        ),
        NVTX_EVENTS=(nsys.NVTX, [nsys.nvtx(1000 * i, 1000 * i + 900, f"step {i}") for i in range(8)]),
        TARGET_INFO_GPU=(("id", "name", "smCount", "totalMemory"), [(0, "NVIDIA A100", 108, 80 << 30)]),
    )
    for name in ("GPU_TRACE", "API_TRACE", "PUSHPOP_TRACE", "KERN", "NVTX", "SIZES"):
        suffix = name.lower()
        file = {"gpu_trace": "cuda_gpu_trace", "api_trace": "cuda_api_trace", "pushpop_trace": "nvtx_pushpop_trace"}
        put("nsys-stats", f"r_{file.get(suffix, suffix)}.csv", getattr(stats, name))
    put("nsys-stats-summary", "kern.csv", stats.KERN)
    put("ncu-csv", "ncu.csv", "==PROF== Connected to process 7\n" + ncu.LONG + "".join(map(ncu.rows, range(6))))
    put("ncu-text", "ncu.txt", test_ncu_csv.PAGE)
    sys.modules.setdefault("ncu_report", _ncu_report())
    actions = [{"name": f"gemm{i}", "kind": 0, "metrics": [dict(metric) for metric in _METRICS]} for i in range(6)]
    put("ncu-rep", "a.ncu-rep", b"NVR\0" + json.dumps({"actions": actions}).encode())
    put("xplane-gpu", "node7.xplane.pb", xplane.jax_gpu())
    put("xplane-tpu", "node7.xplane.pb", xplane.tpu())
    put("paddle-protobuf", "a.pb", paddle.training())
    put("paddle-json", "a.json", paddle.json_training())
    put("perfetto", "a.pftrace", perfetto.TRAINING)
    rocm.folder(put("rocprof-csv", "77_x.csv", b"").parent, counter_collection=rocm.COUNTERS)
    put("rocprof-csv", "77_x.csv", b"").unlink()
    put("rocprof-json", "results.json", rocm.document())
    rocm.database(empty("rocprof-db", "results.db"))
    rocm.rpd(empty("rocprof-rpd", "trace.rpd"))
    cycles = [
        latencyprism.perf_row(i, beta_pct=str(10 + i), metric_name=m) for i in range(12) for m in ("gpu_usage", "sm")
    ]
    put("latencyprism", "result_perf_data.csv", latencyprism.perf_text(cycles))
    put("latencyprism-counters", "counters_data.csv", latencyprism.counters_text(
        [(name, latencyprism.START_US + 1000 * i, i) for i in range(20) for name in ("GPU 0 SM Activity", "CPU Usage")]
    ))  # fmt: skip
    samples = "".join(
        f"{T0 + 1000 * i},gpu_power,W,gpu1,{350 + i}\n{T0 + 1000 * i},host_cpu_usage,%,host,9\n" for i in range(20)
    )
    put("counters", "counters.csv", "ts_ns,metric,unit,device,value\n" + samples)
    meta = {
        "recorder": "stepscope",
        "host": "node7",
        "command": ["python"],
        "start_unix_ns": T0,
        "end_unix_ns": T0 + 90_000,
    }
    put(
        "counters",
        "meta.json",
        json.dumps({**meta, "exit_code": 0, "devices": [{"device": "gpu1", "memory_bytes": 1 << 37}]}),
    )


def _recorded(put: Any) -> None:
    """Counters with what else `record` writes."""
    import sched_files as sched
    import test_stack_samples as stacks

    for name in ("stacks", "sched", "sched-perf"):
        put(name, "counters.csv", stacks.COUNTERS)
    put("stacks", "stacks.tsv", "".join(stacks.ROWS))
    put("stacks", "meta.json", json.dumps(stacks.META))
    switched = ((2_000 + 100 * i, sched.switch(1 + i % 2, "RSD"[i % 3], 2 - i % 2)) for i in range(20))
    perf = b"".join(sched.perf_switch(1 + i % 2, 9_000 + 100 * i, out=i % 3 == 0) for i in range(20))
    frames = (sched.frame(2, 0, sched.pages(*switched), 5_000),)
    sched.write(
        put("sched", "sched.ring", b""), *frames, unix=stacks.BASE_NS, began=((1, 1), (1, 2)), names=("main", "loader")
    )
    frames = (sched.frame(2, 0, perf, 12_000),)
    sched.write(put("sched-perf", "sched.ring", b""), *frames, source="perf", unix=stacks.BASE_NS, end=20_000)


def _processes() -> dict[str, Any]:
    """A job of which one rank is elsewhere while the other stands in a collective."""
    stacks = [("c10d::Reducer::finalize_backward", "libtorch_cpu.so", 0), ("load", "/job/train.py", 8)]
    return {
        "schema": "stepscope.processes/1",
        "host": "a",
        "taken_unix_ns": 10**18,
        "counters": [["gpu_busy", "ratio", "0", 1.0]],
        "issues": [{"code": "counters_unavailable", "severity": "info", "count": 1, "example": "no AMD library"}],
        "processes": [
            {
                "pid": 100 + rank, "rank": rank, "world_size": 2, "command": "python train.py", "state": "S",
                "wait_channel": "futex_wait", "cores_used": 0.5, "problem": None,
                "threads": [{
                    "thread_name": "MainThread", "os_thread_id": 100 + rank,
                    "frames": [{"name": name, "filename": file, "line": line}],
                }],
            }
            for rank, (name, file, line) in enumerate(stacks)
        ],
    }  # fmt: skip


def _dumped(put: Any) -> None:
    """Snapshots of memory, dumps of a flight recorder, and captures of graphs next to a profile."""
    import dumps
    import snapshots
    import test_captures as captures

    put("memory-snapshot", "a.pickle", pickle.dumps(snapshots.snapshot(), protocol=2))
    groups = {"0": [0, 1, 2], "1": [1, 2]}
    for rank in (0, 1):
        calls = [dumps.call(i, frames=[snapshots.FORWARD[0]], sizes=[[2, 3]]) for i in range(1, 9 - rank)]
        stopped = dumps.call(9 - rank, "all_gather" if rank else "all_reduce", ended=False)
        stages = [dumps.call(i, "send 0->1", group="1", place=20 + i) for i in range(3)]
        document = dumps.dump([*calls, stopped, *stages], groups)
        document["pg_status"] = {"0": {"last_enqueued_collective": 9 - rank, "last_completed_collective": 8 - rank}}
        put("flight-recorder", f"nccl_trace_rank_{rank}", dumps.pickled(document))
        put("flight-recorder-json", f"dump_{rank}.json", json.dumps(document))
    layers, names = [captures.LAYER] * 2, [[kernel for _, kernel in captures.LAYER]] * 2
    put("captures", "profile.json", json.dumps({"traceEvents": captures.replay(*names)}))
    put("captures", "capture_traces/graph_capture_rank_0.json", json.dumps({"traceEvents": captures.capture(*layers)}))


#: Metrics of a launch in a report of Nsight Compute.
_METRICS = [
    {"name": name, "value": value, "unit": unit}
    for name, value, unit in (
        ("gpu__time_duration.sum", 26_112, "ns"), ("dram__bytes.sum", 1.5, "Mbyte"),
        *((f"launch__{what}_dim_{axis}", 2, "") for what in ("grid", "block") for axis in "xyz"),
        ("launch__stream_id", 7.0, ""), ("launch__device_id", 1, ""),
        ("device__attribute_compute_capability_major", 8, ""), ("device__attribute_display_name", "NVIDIA A100", ""),
    )
]  # fmt: skip


def _ncu_report() -> ModuleType:
    """NVIDIA's package is not installed everywhere, and cannot write: what it offers, for reports of JSON."""

    class Action:
        NameBase_DEMANGLED, NameBase_FUNCTION = 1, 0

        def __init__(self, action: Any) -> None:
            self._action = action if isinstance(action, dict) else {}
            metrics = self._action.get("metrics")
            metrics = [one for one in metrics if isinstance(one, dict)] if isinstance(metrics, list) else []
            self._metrics = {str(one.get("name")): one for one in metrics}

        def name(self, _base: int) -> str:
            return str(self._action.get("name") or "")

        def workload_type(self) -> object:
            return self._action.get("kind")

        def metric_names(self) -> tuple[str, ...]:
            return tuple(self._metrics)

        def metric_by_name(self, name: str) -> Any:
            value, unit = (self._metrics[name].get(key) for key in ("value", "unit"))
            if isinstance(value, int) and not 0 <= value < 2**64:
                value = float(value)
            value = value if isinstance(value, int | float | str) else None
            return SimpleNamespace(
                value=lambda: value, unit=lambda: str(unit or ""), has_value=lambda: value is not None
            )

    def load_report(path: str) -> Any:
        text = re.sub(rb"\\u[dD][89a-fA-F]..", b"?", Path(path).read_bytes()[4:])  # its texts are always UTF-8
        listed = json.loads(text).get("actions")
        actions = [Action(one) for one in listed] if isinstance(listed, list) else []
        part = SimpleNamespace(num_actions=lambda: len(actions), action_by_idx=actions.__getitem__)
        return SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda _: part)

    package: Any = ModuleType("ncu_report")
    package.load_report = load_report
    return package


def _served(put: Any) -> None:
    """Requests to an engine: one by one, of a benchmark, with a profile of batches; and scrapes of its metrics."""
    rows = [
        {"request_id": f"r{i}", "arrival_time": T0 / 1e9 + i / 100, "ttft": 0.01, "e2e_latency": 0.05 + i / 1000,
         "queue_time": 0.001 * i, "prompt_tokens": 100, "output_tokens": 8, "itl": [0.005, 0.01]}
        for i in range(24)
    ]  # fmt: skip
    lines = "\n".join(map(json.dumps, rows))
    for rank in range(2):
        put("expert-hotspots", f"decode_{rank}.csv", "".join(f"{9 * i + rank},{40 - i},{i}\n" for i in range(12)))
    counts = "".join(f"decode,{i % 3},{i % 2},{i},{50 * i}\n" for i in range(12))
    put("expert-counts", "experts.csv", f"phase,layer,rank,expert,tokens\n{counts}")
    put("requests", "requests.jsonl", lines)
    lists = {"ttfts": [0.1] * 9, "itls": [[0.01, 0.02]] * 9, "output_lens": [3] * 9, "errors": [""] * 9}
    put("requests-benchmark", "result.json", json.dumps({"request_throughput": 2.0, **lists}))
    put("requests-profile", "requests.jsonl", lines)
    calls = [{"ph": "X", "pid": 1, "tid": 1, "cat": cat, "name": name, "ts": 10_000 * i + at, "dur": dur,
              "args": {"correlation": i}}
             for i in range(20)
             for cat, name, at, dur in (
                 ("user_annotation", "step[EXTEND bs=1 toks=512]" if i % 7 == 3 else "step[DECODE bs=4]", 0, 9_000),
                 ("cuda_runtime", "cudaGraphLaunch", 10, 5))]  # fmt: skip
    work = [{"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "k", "ts": 10_000 * i + 50, "dur": 9_500,
             "args": {"correlation": i, "device": 0, "stream": 7}} for i in range(20)]  # fmt: skip
    document = {"schemaVersion": 1, "baseTimeNanoseconds": T0, "traceEvents": [*calls, *work]}
    put("requests-profile", "profile.json", json.dumps(document))
    for scrape in range(2):
        text = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3\n'
        for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time"):
            text += f"# TYPE vllm:{name}_seconds histogram\n"
            buckets = zip(("0.1", "0.5", "+Inf"), (2 + scrape, 6 + scrape, 9 + 3 * scrape), strict=True)
            text += "".join(f'vllm:{name}_seconds_bucket{{engine="0",le="{le}"}} {n}\n' for le, n in buckets)
            text += f'vllm:{name}_seconds_sum{{engine="0"}} {2.5 + scrape}\n'
            text += f'vllm:{name}_seconds_count{{engine="0"}} {9 + 3 * scrape}\n'
        put("metrics", f"metrics-{T0 // 10**9 + scrape}.prom", text)


def _tree() -> dict[str, Any]:
    def node(name: str, *children: Any, **metrics: Any) -> dict[str, Any]:
        return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}

    def kernel(name: str, ns: int) -> dict[str, Any]:
        return node(
            name, count=3, device_id="0", device_type="CUDA", **{"time (ns)": ns, "flops16": 10**9, "bytes": 4096}
        )

    return node("ROOT", node("step", node("forward", kernel("gemm", 900)), kernel("add", 30)), kernel("alone", 7))
