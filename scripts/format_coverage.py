"""Which tables and columns each recorder's files give: what docs/coverage.md says.

python scripts/format_coverage.py ../shared/data    measures recorded files anew, into tests/conformance/coverage.csv

Recorded files are not part of this repository: what they fill is in that table, and tests/conformance/test_coverage.py
compares it with the files. The small files of the tests are written and read whenever the page is made.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.schema import TABLES
from stepscope.readers import expand, open_once, readers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.core.trace import Trace

    #: The columns with values of each table.
    Filled = Mapping[str, tuple[str, ...]]

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "conformance" / "coverage.csv"
#: Who wrote a file, and the file, below the folder of recorded traces.
RECORDERS = {
    "traces/kineto/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz": "PyTorch of 2021 on V100",
    "traces/more/kineto-multirank/megatron-tp8-a100/megatron_kineto_1.json.gz": "PyTorch of 2024 on A100, NCCL",
    "traces/more/kineto-recent/t4-amp-vs-fp32/fp32.pt.trace.json.gz": "PyTorch with CUDA 12.8 on T4",
    "traces/hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz": "PyTorch with ROCm 6.2 on MI250",
    "traces/tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz": "PyTorch with Python frames on H100",
    "traces/hta/nccl_parser_config/nccl_data.json.gz": "PyTorch with NCCL's arguments",
    "traces/hta/mtia_inference_trace/mtia_inference_rank_0.json.gz": "PyTorch on MTIA",
    "faultlab/ddp_straggler/abnormal/rank1/trace.json.gz": "PyTorch 2.13 on CPU, Gloo",
    "traces/more/ascend/msprof-analyze/trace_view.json.gz": "torch_npu, trace_view.json",
    "traces/more/ascend/mindspore-PROF-2device/PROF_000001_20230818142704322_COJGGGCANRMICFBC/device_0/timeline/"
    "msprof_0_2_1.json.gz": "msprof of MindSpore",
    "traces/more/tpu-jax-trace/2026_01_11_21_26_41.trace.json.gz": "JAX on TPU, Chrome JSON",
    "traces/more/rocm-rpd/matmul_result.json.gz": "rpd2tracing",
    "traces/more/ascend/torch_npu-2rank-db/level0/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/"
    "ascend_pytorch_profiler_0.db": "torch_npu, database, level 0",
    "traces/more/ascend/msprof_0-8npu-tiny.db": "msprof, database",
    "xplane/jax_conv_minimal_08_mi300.xplane.pb": "JAX 0.8 on MI300X",
    "traces/tracelens/jax/jax_conv_minimal_legacy/"
    "chi-mi300x-013.ord.vultr.cpe.ice.amd.com.xplane.pb": "JAX of about 0.6 on MI300X",
    "xplane/tf_gpu_multiworker_179.xplane.pb": "TensorFlow on V100",
    "nsight/nsys-sqlite/a100-tf-nerf-casio.2021.5.sqlite": "Nsight Systems 2021.5",
    "nsight/nsys-sqlite/rtx3090-tensorrt-2023.1.sqlite": "Nsight Systems 2023.1",
    "nsight/nsys-sqlite/t4-power-iteration-nvtx-2025.3.sqlite": "Nsight Systems 2025.3",
    "nsight/nsys-csv/nbody_nvtx_pushpop_trace.csv": "nsys stats",
    "nsight/ncu-csv/sm86-vectoradd.details.csv": "ncu --csv, sm_86",
    "nsight/ncu-csv/sm100-cublaslt-fp8-gemm.details.csv": "ncu --csv, sm_100",
    "nsight/ncu-text/gh200-silu-pytorch.details.txt": "ncu's text, GH200",
    "traces/more/rocprofv3-csv/llamacpp-prefill-gfx1151/prefill_kernel_trace.csv": "rocprofv3, CSV, gfx1151",
    "traces/tracelens/rocprof/908_results.json.gz": "rocprofv3, JSON, MI350X",
    "traces/more/rocm-rpd/matmul_result.rpd": "rocmProfileData",
    "nsight/rocprof/MI200-vcopy-pmc_perf.csv": "rocprof-compute, MI200",
    "nsight/proton/tritonbench.hatchet": "Triton Proton",
    "paddle/attention_block/trace.pb.gz": "PaddlePaddle 3.3 on CPU, .pb",
    "paddle/attention_block/trace.json.gz": "PaddlePaddle 3.3 on CPU, JSON",
}
#: Formats that are stepscope's own, or have results instead of tables of a trace.
_LEFT_OUT = ("stepscope", "unsupported", "latencyprism", "latencyprism-counters", "step_costs", "counters", "ncu-rep")
PAGE = """\
# What each recorder gives

{made}
Which [tables](tables.md) and columns have values in files of each recorder and version. Recorded files come from other
projects and are not part of this repository; a test compares this page with them. What only a small file of the tests
shows was written by the format's description: it is **read by its schema, never seen** in a recording.
"""


def filled(trace: Trace) -> Filled:
    """The columns of a trace that have any value, by table."""
    tables = {name: trace.tables[name] for name in TABLES if name in trace.tables and name != "issues"}
    return {
        name: tuple(column for column in frame.columns if frame[column].null_count() < frame.height)
        for name, frame in tables.items()
        if frame.height
    }


def measure(path: Path) -> tuple[str, Filled]:
    """The format of a recorded file, and what it fills."""
    trace = open_once(str(path))
    return trace.meta.format, filled(trace)


def recorded() -> dict[str, tuple[str, str, Filled]]:
    """Recorder, format and filled columns of each file in the table."""
    rows: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            _, _, tables = rows.setdefault(row["path"], (row["recorder"], row["format"], {}))
            tables[row["table"]] = tuple(row["columns"].split())
    return dict(rows)


def of_tests() -> dict[str, dict[str, set[str]]]:
    """What the small files of the tests fill, by format and table."""
    sys.path.append(str(ROOT / "lab"))
    import small_files

    columns: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    with tempfile.TemporaryDirectory() as folder:
        for seed in small_files.write_all(Path(folder)).values():
            for path in expand([str(seed)]):
                trace = open_once(path)
                for table, names in filled(trace).items():
                    columns[trace.meta.format][table].update(names)
    return columns


def _cell(tables: Mapping[str, Iterable[str]]) -> str:
    """Tables with their columns: those that lack some say which, or which they have, whatever is shorter."""
    parts = []
    for name, columns in tables.items():
        have = [column for column in TABLES[name].dtypes if column in set(columns)]
        lacks = [column for column in TABLES[name].dtypes if column not in have]
        but = f" all but {', '.join(lacks)}" if lacks else " all"
        parts.append(f"**{name}**:{but if len(lacks) <= len(have) else ' ' + ', '.join(have)}")
    return "; ".join(parts)


def page(made: str, grid: object) -> str:
    """The page, with the note on how it is made, and the function that makes tables."""
    assert callable(grid)
    real, own = recorded(), of_tests()
    parts = [PAGE.format(made=made)]
    for one in readers():
        if one.name in _LEFT_OUT:
            continue
        rows, known = [], defaultdict(set)
        for path, (recorder, format_, tables) in real.items():
            if format_ == one.name:
                rows.append((recorder, f"`{Path(path).name}`", _cell(tables)))
                for table, columns in tables.items():
                    known[table].update(columns)
        only = {table: columns - known[table] for table, columns in own[one.name].items() if columns - known[table]}
        if only:
            parts_of = "; ".join(
                f"**{table}**: {', '.join(c for c in TABLES[table].dtypes if c in columns)}"
                for table, columns in only.items()
            )
            rows.append(("read by its schema, never seen", "the tests' own small files", parts_of))
        if rows:
            parts.append(f"## {one.name}\n\n" + grid(("recorder", "shown by", "tables and columns"), rows))
    return "\n".join(parts)


def main(shared: Path) -> None:
    """Writes the table of recorded files."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("path", "recorder", "format", "table", "columns"))
        for path, recorder in RECORDERS.items():
            format_, tables = measure(shared / path)
            writer.writerows((path, recorder, format_, table, " ".join(names)) for table, names in tables.items())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
