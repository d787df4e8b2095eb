"""One small file, or folder of files, of every format: what changes of meaning begin with."""

from __future__ import annotations

import gzip
import json
import sys
from contextlib import contextmanager
from pathlib import Path
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
    folders = [str(TESTS), str(TESTS / "recorded")]
    sys.path[:0] = folders
    try:
        yield
    finally:
        sys.path[:] = [folder for folder in sys.path if folder not in folders]


def write_all(target: Path) -> dict[str, Path]:
    """Writes a folder for each seed below `target`; gives the folders, or their only files, by name."""
    seeds: dict[str, Path] = {}

    def put(name: str, file: str, content: str | bytes) -> Path:
        (target / name).mkdir(parents=True, exist_ok=True)
        path = target / name / file
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        seeds[name] = target / name
        return path

    for name, document in zip(("cuda", "hip", "ascend", "xla", "pairs"), mutations.made(), strict=True):
        put(f"kineto-{name}", "rank0.json", json.dumps(document))
    with gzip.open(mutations.EXAMPLES / "demo-cpu-decode" / "rank0.pt.trace.json.gz") as file:
        document = json.load(file)
    document["traceEvents"] = document["traceEvents"][:600]
    put("kineto-steps", "rank0.json", json.dumps(document))
    with _literal_files():
        _of_tests(put)
    put("proton", "a.hatchet", json.dumps([_tree(), {"CUDA": {"0": {"arch": "90", "num_sms": 132}}}]))
    columns = "Kernel                                                 Latency Tensor   DRAM\n"
    put(
        "kernel-table",
        "kernels.txt",
        columns + "add_kernel                              |       5632   0.00   0.25\n" * 3,
    )
    put("step-costs", "costs.json", json.dumps({"batch_cost_s": [[0.1, 16], [0.2, 16]], "reader_cost_s": [[0.01, 0]]}))
    for name in STORED:
        stepscope.export(stepscope.load_run([str(seeds[name])]), "parquet", output=target / f"stored-{name}")
        seeds[f"stored-{name}"] = next((target / f"stored-{name}").glob("*/meta.json")).parent
    return {
        name: next(iter(files)) if len(files := list(path.iterdir())) == 1 else path for name, path in seeds.items()
    }


def sound(folder: Path) -> Path:
    """A file as it should be among those written there: what a changed one is compared with."""
    return folder / "kineto-cuda" / "rank0.json"


def _of_tests(put: Any) -> None:
    import ncu_files as ncu
    import nsys_files as nsys
    import nsys_stats_files as stats
    import paddle_profiles as paddle
    import perf_files as latencyprism
    import perfetto_traces as perfetto
    import rocprof_files as rocm
    import xplane_profiles as xplane

    def empty(name: str, file: str) -> Path:
        path: Path = put(name, file, b"")
        path.unlink()
        return path

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
    put("paddle-protobuf", "a.pb", paddle.training())
    put("paddle-json", "a.json", paddle.json_training())
    put("xplane-gpu", "a.xplane.pb", xplane.jax_gpu())
    put("xplane-tpu", "a.xplane.pb", xplane.tpu())
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


def _tree() -> dict[str, Any]:
    def node(name: str, *children: Any, **metrics: Any) -> dict[str, Any]:
        return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}

    def kernel(name: str, ns: int) -> dict[str, Any]:
        return node(
            name, count=3, device_id="0", device_type="CUDA", **{"time (ns)": ns, "flops16": 10**9, "bytes": 4096}
        )

    return node("ROOT", node("step", node("forward", kernel("gemm", 900)), kernel("add", 30)), kernel("alone", 7))
